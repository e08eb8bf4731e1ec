// The page of a model: its packs, where in the body their organs are, and whether anything has changed.

import { byId, element, getJson, press, swatch } from "./dom.js";

const SVG = "http://www.w3.org/2000/svg";
const NAMES = { head_neck: "Head and neck", chest: "Chest", abdomen: "Abdomen", hip_thigh: "Hip and thigh" };
const DICE = "Dice on validation patches"; // as model_data.py titles it
const MARGIN = 330; // for the names of body parts, left of the picture

let model = null;
let body = null; // outlines of a phantom: benchmarks/body_picture.py

function shape(tag, attributes, ...children) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

function titled(text) {
  const title = document.createElementNS(SVG, "title");
  title.textContent = text;
  return title;
}

function choose(name) {
  for (const button of byId("packs-choice").children) press(button, button.dataset.pack === name);
  for (const card of byId("packs").children) card.classList.toggle("chosen", card.dataset.pack === name);
  drawBody(model.packs.filter((pack) => name === "" || pack.name === name));
}

function drawBody(packs) {
  const organs = new Map(packs.flatMap((pack) => pack.organs).map((organ) => [organ.name, organ]));
  const drawn = Object.keys(body.organs).filter((name) => organs.has(name)).map((name) => outline(organs.get(name)));
  const clip = shape("clipPath", { id: "inside" }, shape("path", { d: body.body }));
  const hatching = shape("pattern", { id: "hatching", width: 26, height: 26, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" },
    shape("line", { x1: 0, x2: 0, y1: 0, y2: 26, class: "hatch" }));
  byId("body").setAttribute("viewBox", `${-MARGIN} 0 ${body.width + MARGIN} ${body.height}`);
  byId("body").replaceChildren(shape("defs", {}, clip, hatching), shape("path", { d: body.body, class: "outline" }),
    ...drawParts(packs, [...organs.values()]), ...drawn);
  const others = [...organs.values()].filter((organ) => !(organ.name in body.organs));
  byId("not-drawn").replaceChildren(...(others.length ? [element("span", { class: "soft", text: "Not in the picture:" }), ...organNames(others)] : []));
}

function outline(organ) {
  return shape("path", { d: body.organs[organ.name], class: "organ-outline", "data-organ": organ.name, fill: `rgb(${organ.colour.join(" ")})` }, titled(organ.shown));
}

// A band per body part: its name, the organs in it, and hatching where no pack covers it.
function drawParts(packs, organs) {
  let top = 0;
  return model.body_parts.flatMap((part) => {
    const [from, bottom] = [top, body.parts[part]];
    top = bottom;
    const uncovered = coverageOf(packs, part) === 0;
    const count = organs.filter((organ) => organ.body_part === part).length;
    const name = shape("text", { x: -MARGIN, y: from + 60, class: "part-name" });
    name.textContent = NAMES[part];
    const detail = shape("text", { x: -MARGIN, y: from + 106, class: "part-detail" });
    detail.textContent = uncovered ? "not covered" : count === 1 ? "1 organ" : `${count} organs`;
    const line = shape("line", { x1: -MARGIN, x2: body.width, y1: from, y2: from, class: "part-line" });
    const band = shape("rect", { x: 0, width: body.width, y: from, height: bottom - from, class: "uncovered", "clip-path": "url(#inside)", fill: "url(#hatching)" });
    return [name, detail, ...(from ? [line] : []), ...(uncovered ? [band] : [])];
  });
}

// How well the scans of the packs covered a part; null where some pack, not measured, runs everywhere.
function coverageOf(packs, part) {
  if (packs.some((pack) => !Object.keys(pack.coverage).length)) return null;
  return Math.max(0, ...packs.map((pack) => pack.coverage[part] ?? 0));
}

function light(name, on) {
  for (const path of byId("body").querySelectorAll(".organ-outline")) path.classList.toggle("dim", on && path.dataset.organ !== name);
}

function organNames(organs) {
  return organs.map((organ) => {
    const chip = element("span", { class: "organ-chip", title: `id ${organ.id}${organ.snomed ? `, SNOMED CT ${organ.snomed}` : ""}` }, swatch(organ.colour), organ.shown);
    chip.addEventListener("pointerenter", () => light(organ.name, true));
    chip.addEventListener("pointerleave", () => light(organ.name, false));
    return chip;
  });
}

function card(pack) {
  const facts = {
    ...pack.card, parameters: pack.parameters.toLocaleString("en"), anomalies: pack.anomalies.join(", ") || "none named",
    licence: pack.licence || "not stated", fingerprint: pack.fingerprint,
  };
  const glance = [megabytes(pack.bytes), pack.card[DICE] && `Dice ${pack.card[DICE]} on validation patches`, `licence ${pack.licence ? pack.licence.slice(0, 40) : "not stated"}`];
  return element("article", { class: "pack", dataset: { pack: pack.name } },
    element("h2", {}, element("button", { class: "pack-name", text: pack.name, title: "Show this pack on the body", onclick: () => choose(pack.name) }),
      element("span", { class: "soft", text: pack.organs.length === 1 ? "1 organ" : `${pack.organs.length} organs` }), element("span", { class: "verified" })),
    element("p", { class: "soft glance", text: glance.filter(Boolean).join(" · ") }),
    element("div", { class: "chips" }, ...organNames(pack.organs)),
    coverageBars(pack),
    element("details", {}, element("summary", { text: "Training card and licence" }),
      element("dl", {}, ...Object.entries(facts).flatMap(([name, value]) => [element("dt", { text: name }), element("dd", { text: value })]))),
    element("details", {}, element("summary", { text: "Ids, codes and training volumes" }), organTable(pack)));
}

function organTable(pack) {
  const rows = pack.organs.map((organ) => element("tr", {}, ...[organ.shown, organ.id, organ.snomed || "–", trained(organ)].map((text) => element("td", { text }))));
  const head = element("tr", {}, ...["organ", "id", "SNOMED CT", "volume in training scans"].map((text) => element("th", { text })));
  return element("div", { class: "scroll" }, element("table", {}, element("thead", {}, head), element("tbody", {}, ...rows)));
}

function trained(organ) {
  if (!organ.trained) return "not measured";
  const [least, most] = organ.trained.volume_ml.map((ml) => (ml < 10 ? ml.toFixed(1) : Math.round(ml).toLocaleString("en")));
  return `${least} to ${most} ml in ${organ.trained.scans}`;
}

function coverageBars(pack) {
  if (!Object.keys(pack.coverage).length) return element("p", { class: "soft", text: "Body parts were not measured: the pack runs everywhere." });
  return element("div", { class: "coverage" }, element("p", { class: "soft small", text: "Share of the labelled height of its training scans:" }), ...model.body_parts.map((part) => {
    const share = pack.distribution[part] ?? 0;
    const bar = element("span", { class: "bar" });
    bar.style.width = `${100 * share}%`;
    const text = pack.coverage[part] ? `${(100 * share).toFixed(0)} %` : "not run";
    return element("div", {}, element("span", { class: "soft", text: NAMES[part] }), element("span", { class: "track" }, bar), element("span", { class: "figure", text }));
  }));
}

function megabytes(bytes) {
  return `${(bytes / 1e6).toFixed(2)} MB`;
}

async function verify() {
  const found = await getJson("verify.json");
  const place = byId("verification");
  place.className = found.good ? "verified-all" : "error";
  place.textContent = found.good
    ? "Verified just now: weights and outputs of the encoder and of every pack are those stored when they were made."
    : "Changed: at least one part differs from when it was made.";
  for (const finding of found.findings) {
    const part = [...byId("packs").children].find((each) => each.dataset.pack === finding.part);
    const mark = part?.querySelector(".verified");
    if (mark) Object.assign(mark, { textContent: finding.good ? "verified" : "changed", title: finding.sentence, className: `verified ${finding.good ? "good" : "bad"}` });
    if (!finding.good) place.append(element("p", { text: `${finding.part}: ${finding.sentence}` }));
  }
}

async function start() {
  [model, body] = await Promise.all(["model.json", "body.json"].map(getJson));
  const overview = await getJson("cases.json");
  byId("cases-link").hidden = !overview.cases.length;
  const organs = new Set(model.packs.flatMap((pack) => pack.organs.map((organ) => organ.name)));
  byId("model-name").textContent = model.name;
  byId("summary").textContent = `${organs.size} organs in ${model.packs.length} packs on one frozen encoder (${megabytes(model.encoder.bytes)}, fingerprint ${model.encoder.fingerprint}).`;
  byId("packs").replaceChildren(...model.packs.map(card));
  const names = ["", ...model.packs.map((pack) => pack.name)];
  byId("packs-choice").replaceChildren(...names.map((name) => element("button", { text: name || "All packs", class: "clip", dataset: { pack: name }, onclick: () => choose(name) })));
  choose("");
  await verify();
  document.body.dataset.state = "ready";
}

start().catch((error) => {
  byId("verification").className = "error";
  byId("verification").textContent = error.message;
  document.body.dataset.state = "failed";
});
