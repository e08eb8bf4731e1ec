// The page: loads a case, and joins scene, organ list, comparison, case list and readout.

import { CaseList } from "./cases.js";
import { Comparison, DIFFERENCE_COLOURS, DIFFERENCE_COLOURS_3D, countedAs, differences } from "./compare.js";
import { byId, element, getJson, press } from "./dom.js";
import { OrganList } from "./organs.js";
import { Readout } from "./readout.js";
import { LAYOUTS, Scene, WINDOWS } from "./scene.js";

const KEYS = {
  "1 2 3 4 5": "all views, axial, coronal, sagittal, 3D",
  "↑ ↓": "next or previous axial slice", "← →": "one voxel to the side", "Page up, down": "one voxel to the front or back",
  "+ −": "zoom", "W": "next window", "O": "outline", "D": "differences", "R": "reset view",
  "N P": "next, previous case", "S": "screenshot", "/": "search organs",
  "Mouse": "click or drag: crosshair; wheel: slices; Ctrl + wheel: zoom; right drag: pan; drag in 3D: turn",
};
const PHONE = "(max-width: 760px)";
const PAUSE_MS = 150; // before a case is requested: who steps through many cases waits for the last alone

const readout = new Readout();
const scene = new Scene((location) => readout.show(location, describedMaps()));
const organs = new OrganList(() => paint(), (organ) => jump(organ));
const comparison = new Comparison(() => paint(), (organ) => jump(organ));
let cases = null;
let data = null;
let current = 0;
let mapIndex = 0;
let windowName = "Soft tissue";
let loading = 0;
let coarse = false; // on a machine without a graphics card, unless a finer grid is asked for

function describedMaps() {
  if (!data?.maps.length) return [];
  if (!comparison.active || panelShown() !== "compare") return [["", mapIndex]];
  return [comparison.reference, comparison.compared].map((index) => [data.maps[index].title, index]);
}

async function open(index) {
  current = index;
  const turn = (loading += 1);
  const route = `${coarse ? "coarse" : "cases"}/${index}`;
  document.body.dataset.state = "loading";
  cases.mark(index);
  say("Reading scan and labels, measuring organs …");
  try {
    await new Promise((resolve) => setTimeout(resolve, PAUSE_MS));
    if (turn !== loading) return;
    const found = await getJson(`${route}/case.json`);
    if (turn !== loading) return;
    say("Drawing …");
    const files = found.maps.map((map) => `${route}/${map.file}`);
    await scene.load(`${route}/scan.nii`, files, WINDOWS[windowName], () => turn === loading);
    if (turn !== loading) return;
    show(found, route);
    say("");
    document.body.dataset.state = "ready";
  } catch (error) {
    if (turn !== loading) return;
    fail(error);
  }
}

function show(found, route) {
  data = found;
  mapIndex = 0;
  byId("map").replaceChildren(...data.maps.map((map, index) => element("option", { value: index, text: map.title })));
  showMapChoice();
  const notes = data.notes.map((text) => element("li", { text }));
  byId("notes").replaceChildren(...(data.reduced ? [sizeNote()] : []), ...notes);
  setLayout(scene.layout);
  comparison.fill(route, data);
  organs.fill(data.organs, data.maps[mapIndex], data.flags);
  readout.fill(route, data, scene);
  paint();
  const largest = data.organs.filter((organ) => data.maps[0]?.middles[organ.number])
    .sort((one, other) => volume(other) - volume(one))[0];
  if (largest) jump(largest);
  else scene.reset();
}

// That the grid is coarser than the scan, why, and how to change it.
function sizeNote() {
  const shown = `Shown on a coarser grid, ${data.size_shown}; the scan has ${data.size}. Volumes, HU and Dice are of the full scan.`;
  if (!coarse) return element("li", { class: "info", text: shown });
  const finer = element("button", { id: "finer", text: "Finer grid", onclick: () => { coarse = false; open(current); } });
  return element("li", { class: "info", text: `${shown} This browser draws without a graphics card, which is slow. ` }, finer);
}

function volume(organ) {
  return data.maps[0].organs[organ.number]?.volume_ml ?? 0;
}

function fail(error) {
  data = null;
  scene.clear();
  for (const id of ["organ-list", "compare", "notes", "readout"]) byId(id).replaceChildren();
  say(error.message, true);
  document.body.dataset.state = "failed";
}

function say(text, isError = false) {
  byId("message").textContent = text;
  byId("message").classList.toggle("error", isError);
}

// Draw the organs that are visible, or how two label maps differ in them.
function paint() {
  if (!data?.maps.length) return;
  const comparing = comparison.active && panelShown() === "compare";
  const isVisible = (organ) => organs.isVisible(organ);
  if (comparing && comparison.showing === "differences") {
    const [one, other] = [comparison.reference, comparison.compared].map((index) => scene.maps[index].img);
    const numbers = countedAs(data.organs, comparison.named, isVisible);
    scene.draw(differences(one, other, numbers), DIFFERENCE_COLOURS, DIFFERENCE_COLOURS_3D);
  } else {
    const { img } = scene.maps[comparing ? comparison[comparison.showing] : mapIndex];
    scene.draw(data.organs.every(isVisible) ? img : visibleOnly(img, isVisible), data.organs.map((organ) => organ.colour));
  }
  scene.planes.createOnLocationChange();
}

function visibleOnly(values, isVisible) {
  const numbers = Uint16Array.from([0, ...data.organs.map((organ) => (isVisible(organ) ? organ.number : 0))]);
  return values.map((value) => numbers[value]);
}

function jump(organ) {
  const places = [mapIndex, ...data.maps.keys()].map((index) => data.maps[index]?.middles[organ.number]);
  const place = places.find(Boolean);
  if (place) scene.jumpTo(place);
}

function setWindow(name) {
  windowName = name;
  for (const button of byId("windows").children) press(button, button.textContent === name);
  if (data) scene.setWindow(WINDOWS[name]);
}

function setLayout(name) {
  for (const button of byId("layouts").children) press(button, button.textContent === name);
  for (const label of document.querySelectorAll(".plane-name")) {
    const place = scene.placesOf(name)[label.dataset.plane];
    label.hidden = !place;
    if (place) Object.assign(label.style, { left: `${100 * place[0]}%`, top: `${100 * place[1]}%` });
  }
  scene.setLayout(name);
}

// A comparison has a choice of two label maps of its own.
function showMapChoice() {
  byId("map-choice").hidden = !data || data.maps.length < 2 || panelShown() === "compare";
}

function panelShown() {
  return document.querySelector("[role=tab][aria-selected=true]").dataset.panel;
}

function showPanel(name) {
  for (const tab of document.querySelectorAll("[role=tab]")) {
    tab.setAttribute("aria-selected", String(tab.dataset.panel === name));
    byId(tab.dataset.panel).hidden = tab.dataset.panel !== name;
  }
  showMapChoice();
  paint();
}

function setOutline(on) {
  scene.outline = on;
  press(byId("outline"), on);
  scene.refresh();
}

function screenshot() {
  scene.picture().toBlob((blob) => {
    const link = element("a", { href: URL.createObjectURL(blob), download: `${fileName(cases.cases[current].name)}.png` });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  });
}

function fileName(text) {
  return text.replace(/[^\p{L}\p{N}_-]+/gu, "_").slice(0, 80) || "case";
}

function turnWindow() {
  const names = Object.keys(WINDOWS);
  setWindow(names[(names.indexOf(windowName) + 1) % names.length]);
}

function step(by) {
  const index = current + by;
  if (index >= 0 && index < cases.cases.length) open(index);
}

const ACTIONS = {
  ArrowUp: () => scene.step(0, 0, 1), ArrowDown: () => scene.step(0, 0, -1),
  ArrowLeft: () => scene.step(1, 0, 0), ArrowRight: () => scene.step(-1, 0, 0),
  PageUp: () => scene.step(0, 1, 0), PageDown: () => scene.step(0, -1, 0),
  "+": () => scene.zoom(1.25), "=": () => scene.zoom(1.25), "-": () => scene.zoom(0.8),
  w: turnWindow, o: () => setOutline(!scene.outline), r: () => scene.reset(), s: screenshot,
  n: () => step(1), p: () => step(-1), "/": () => { showPanel("organs"); byId("search").focus(); },
  d: () => { showPanel("compare"); comparison.show(comparison.showing === "differences" ? "reference" : "differences"); },
  "?": () => byId("keys").showModal(),
};

function onKey(event) {
  if (event.target.matches("input[type=search], select") || event.ctrlKey || event.metaKey || event.altKey) return;
  const layout = Object.keys(LAYOUTS)[Number(event.key) - 1];
  const action = layout ? () => setLayout(layout) : ACTIONS[event.key];
  if (!action) return;
  event.preventDefault();
  event.stopPropagation(); // NiiVue has keys of its own
  action();
}

function wire() {
  byId("layouts").append(...Object.keys(LAYOUTS).map((name) => element("button", { text: name, onclick: () => setLayout(name) })));
  byId("windows").append(...Object.entries(WINDOWS).map(([name, { level, width }]) =>
    element("button", { text: name, title: `level ${level}, width ${width} HU (W)`, onclick: () => setWindow(name) })));
  byId("key-list").append(...Object.entries(KEYS).flatMap(([keys, text]) => [element("dt", { text: keys }), element("dd", { text })]));
  byId("previous").addEventListener("click", () => step(-1));
  byId("next").addEventListener("click", () => step(1));
  byId("screenshot").addEventListener("click", screenshot);
  byId("help").addEventListener("click", () => byId("keys").showModal());
  byId("outline").addEventListener("click", () => setOutline(!scene.outline));
  byId("reset").addEventListener("click", () => scene.reset());
  byId("opacity").addEventListener("input", (event) => { scene.opacity = event.target.value / 100; scene.refresh(); });
  byId("map").addEventListener("change", (event) => {
    mapIndex = Number(event.target.value);
    organs.fill(data.organs, data.maps[mapIndex], data.flags);
    paint();
  });
  for (const tab of document.querySelectorAll("[role=tab]")) tab.addEventListener("click", () => showPanel(tab.dataset.panel));
  document.addEventListener("keydown", onKey, { capture: true });
  byId("planes").addEventListener("pointermove", (event) => {
    const vox = event.pointerType === "mouse" && !event.buttons ? scene.voxelAt(event) : null;
    readout.hover(event, vox, describedMaps());
  });
  byId("planes").addEventListener("reasons", () => data && scene.planes.createOnLocationChange());
  byId("planes").addEventListener("pointerleave", (event) => readout.hover(event, null, []));
}

async function start() {
  wire();
  const overview = await getJson("cases.json");
  byId("model-link").hidden = !overview.has_model;
  cases = new CaseList(overview.cases, open);
  setWindow(windowName);
  try {
    await scene.attach(byId("planes"), byId("render"));
  } catch (error) {
    return say(`This browser cannot draw with WebGL 2, which the viewer needs (${error.message}).`, true);
  }
  coarse = scene.isSoftware;
  setLayout(window.matchMedia(PHONE).matches ? "Axial" : "All");
  return open(0);
}

start().catch(fail);
