// The page of a model: its packs, where in the body their organs are, and whether anything has changed.

import { byId, element, getJson, press, swatch } from "./dom.js";

const SVG = "http://www.w3.org/2000/svg";
const NAMES = { head_neck: "Head and neck", chest: "Chest", abdomen: "Abdomen", hip_thigh: "Hip and thigh" };
// Top, bottom and half width of each part on the picture, from the middle line at 150.
const PLACES = { head_neck: [10, 120, 40], chest: [125, 275, 88], abdomen: [280, 410, 76], hip_thigh: [415, 610, 84] };
const OUTLINE = "M150 8 C182 8 192 34 190 62 C188 84 180 94 174 100 L176 118 C200 128 236 128 246 158 "
  + "C252 190 236 236 230 280 C226 320 228 370 232 420 C238 480 226 550 214 612 L160 612 L152 470 L148 470 L140 612 "
  + "L86 612 C74 550 62 480 68 420 C72 370 74 320 70 280 C64 236 48 190 54 158 C64 128 100 128 124 118 L126 100 "
  + "C120 94 112 84 110 62 C108 34 118 8 150 8 Z";
const DOT = 5;

let model = null;

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
  const packs = model.packs.filter((pack) => name === "" || pack.name === name);
  drawBody(packs);
}

function drawBody(packs) {
  const organs = [...new Map(packs.flatMap((pack) => pack.organs).map((organ) => [organ.name, organ])).values()];
  const parts = model.body_parts.map((part) => drawPart(part, organs.filter((organ) => organ.body_part === part), coverageOf(packs, part)));
  byId("body").replaceChildren(shape("path", { d: OUTLINE, class: "outline" }), ...parts.flat());
  const crossing = organs.filter((organ) => !(organ.body_part in PLACES));
  byId("crossing").replaceChildren(...organNames(crossing));
}

// How well the scans of the packs covered a part; null where none of them measured it.
function coverageOf(packs, part) {
  const measured = packs.filter((pack) => Object.keys(pack.coverage).length);
  return measured.length ? Math.max(...measured.map((pack) => pack.coverage[part] ?? 0)) : null;
}

function drawPart(part, organs, coverage) {
  const [top, bottom, half] = PLACES[part];
  const covered = coverage === null ? "coverage not measured" : coverage ? `covered (${coverage.toFixed(2)})` : "not covered";
  const box = shape("rect", { x: 150 - half, y: top, width: 2 * half, height: bottom - top, rx: 8, class: coverage === 0 ? "part uncovered" : "part" },
    titled(`${NAMES[part]}: ${organs.length} organs, ${covered}`));
  const label = shape("text", { x: 338, y: top + 12, class: "part-name" });
  label.textContent = `${NAMES[part]} ${organs.length}`;
  return [box, label, ...dots(organs, top + 20, bottom - 8, half - 10)];
}

function dots(organs, top, bottom, half) {
  const sides = { right: [150 - half, 150 - half / 3], "": [150 - half / 3, 150 + half / 3], left: [150 + half / 3, 150 + half] };
  return Object.entries(sides).flatMap(([side, [left, right]]) => {
    const members = organs.filter((organ) => organ.side === side);
    const columns = Math.max(1, Math.min(Math.floor((right - left) / (2 * DOT + 2)), members.length));
    const rows = Math.ceil(members.length / columns);
    return members.map((organ, index) => shape("circle", {
      cx: left + ((index % columns) + 0.5) * ((right - left) / columns),
      cy: top + (Math.floor(index / columns) + 0.5) * Math.min(16, (bottom - top) / rows),
      r: DOT, fill: `rgb(${organ.colour.join(" ")})`, class: "dot",
    }, titled(organ.name)));
  });
}

function organNames(organs) {
  return organs.map((organ) => element("span", { class: "organ-chip", title: `id ${organ.id}${organ.snomed ? `, SNOMED CT ${organ.snomed}` : ""}` },
    swatch(organ.colour), organ.name));
}

function card(pack) {
  const facts = {
    organs: pack.organs.length, size: megabytes(pack.bytes), parameters: pack.parameters.toLocaleString("en"),
    ...pack.card, anomalies: pack.anomalies.join(", ") || "none named", licence: pack.licence || "none given", fingerprint: pack.fingerprint,
  };
  return element("article", { class: "pack", dataset: { pack: pack.name } },
    element("h2", {}, element("span", { text: pack.name }), element("span", { class: "soft", text: pack.organs.length === 1 ? "1 organ" : `${pack.organs.length} organs` }), element("span", { class: "verified" })),
    coverageBars(pack),
    element("div", { class: "chips" }, ...organNames(pack.organs)),
    element("details", {}, element("summary", { text: "Training card and licence" }),
      element("dl", {}, ...Object.entries(facts).flatMap(([name, value]) => [element("dt", { text: name }), element("dd", { text: value })]))));
}

function coverageBars(pack) {
  if (!Object.keys(pack.coverage).length) return element("p", { class: "soft", text: "Body parts were not measured: the pack runs everywhere." });
  return element("div", { class: "coverage", title: "Share of the labelled height of the training scans in each body part" }, ...model.body_parts.map((part) => {
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
    ? "Verified: weights and outputs of every part are those that were stored when it was made."
    : "Changed: at least one part differs from when it was made.";
  for (const finding of found.findings) {
    const part = [...byId("packs").children].find((each) => each.dataset.pack === finding.part);
    const mark = part?.querySelector(".verified");
    if (mark) Object.assign(mark, { textContent: finding.good ? "verified" : "changed", title: finding.sentence, className: `verified ${finding.good ? "good" : "bad"}` });
    if (!finding.good) place.append(element("p", { text: `${finding.part}: ${finding.sentence}` }));
  }
}

async function start() {
  model = await getJson("model.json");
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
