// Two label maps of a case against each other: where they differ, and Dice per organ.

import { byId, element, getJson, press, swatch } from "./dom.js";

const KINDS = [
  { text: "same organ", colour: [120, 130, 140] },
  { text: "reference only", colour: [66, 133, 244] },
  { text: "compared only", colour: [255, 152, 0] },
  { text: "another organ", colour: [224, 64, 200] },
];
export const DIFFERENCE_COLOURS = KINDS.map((kind) => kind.colour);
// In 3D, what agrees is a haze around what does not.
export const DIFFERENCE_COLOURS_3D = KINDS.map((kind, index) => [...kind.colour, index ? 255 : 10]);

// Kind of every voxel, 1 to 4; 0 where both maps are 0 in `numbers`, which says what each value counts as.
export function differences(reference, compared, numbers) {
  const kinds = new Uint8Array(reference.length);
  for (let index = 0; index < kinds.length; index += 1) {
    const one = numbers[reference[index]];
    const other = numbers[compared[index]];
    if (one || other) kinds[index] = one === other ? 1 : !other ? 2 : !one ? 3 : 4;
  }
  return kinds;
}

// As Dice is computed: a part counts as the whole where `named` has that alone, and organs that it lacks count
// as background.
export function countedAs(organs, named, isVisible) {
  const counted = (organ) => [organ.number, ...organ.wholes].find((number) => named.has(number)) ?? 0;
  return Uint16Array.from([0, ...organs.map((organ) => (isVisible(organ) ? counted(organ) : 0))]);
}

export class Comparison {
  constructor(onChange, onJump) {
    this.onChange = onChange;
    this.onJump = onJump;
    this.showing = "reference"; // or compared, differences
  }

  fill(route, data) {
    this.route = route;
    this.data = data;
    this.reference = 0;
    this.compared = Math.min(1, data.maps.length - 1);
    this.showing = "reference";
    this.draw();
  }

  // Numbers of the organs that both label maps name, themselves or by parts of them.
  get named() {
    const [reference, compared] = [this.reference, this.compared].map((index) => this.data.maps[index].values);
    const there = this.data.organs.filter((organ) => compared[organ.number] !== undefined);
    const known = new Set(there.flatMap((organ) => [organ.number, ...organ.wholes]));
    return new Set([...known].filter((number) => reference[number] !== undefined));
  }

  get active() {
    return this.data.maps.length > 1;
  }

  draw() {
    const panel = byId("compare");
    if (!this.active) {
      panel.replaceChildren(element("p", { class: "empty", text: "Open a scan with two label maps to compare them: conseg view SCAN REFERENCE OTHER." }));
      return;
    }
    this.table = element("div", { class: "scores" }, element("p", { class: "empty", text: "Dice is computed in full resolution …" }));
    const left = element("p", { class: "soft small", text: "Organs that both label maps name; others are left out of the picture." });
    const legend = element("ul", { class: "legend" }, ...KINDS.map((kind) => element("li", { text: kind.text }, swatch(kind.colour))));
    panel.replaceChildren(this.chooser("reference", "Reference"), this.chooser("compared", "Compared"), this.modes(), legend, left, this.table);
    this.score();
  }

  chooser(role, title) {
    const select = element("select", { id: `${role}-map` }, ...this.data.maps.map((map, index) => element("option", { value: index, text: map.title })));
    select.value = String(this[role]);
    select.addEventListener("change", () => {
      const other = role === "reference" ? "compared" : "reference";
      const before = this[role];
      this[role] = Number(select.value);
      if (this[other] === this[role]) this[other] = before;
      this.draw();
      this.onChange();
    });
    return element("label", { class: "field wide", text: title }, select);
  }

  modes() {
    const names = { reference: "Reference", compared: "Compared", differences: "Differences" };
    const buttons = Object.entries(names).map(([mode, text]) => element("button", {
      text, dataset: { mode }, "aria-pressed": String(mode === this.showing), onclick: () => this.show(mode),
    }));
    return element("div", { class: "group modes" }, ...buttons);
  }

  show(mode) {
    this.showing = mode;
    for (const button of byId("compare").querySelectorAll("[data-mode]")) press(button, button.dataset.mode === mode);
    this.onChange();
  }

  async score() {
    const table = this.table;
    try {
      const scores = await getJson(`${this.route}/compare/${this.reference}-${this.compared}.json`);
      table.replaceChildren(...this.rows(scores.organs));
    } catch (error) {
      table.replaceChildren(element("p", { class: "error", text: error.message }));
    }
  }

  rows(scores) {
    const { named } = this;
    const organs = this.data.organs.filter((organ) => scores[organ.number] && named.has(organ.number));
    const worstFirst = organs.sort((one, other) => (scores[one.number].dice ?? -1) - (scores[other.number].dice ?? -1));
    const dices = organs.map((organ) => scores[organ.number].dice).filter((dice) => dice !== null);
    const mean = dices.reduce((sum, dice) => sum + dice, 0) / Math.max(1, dices.length);
    const head = element("div", { class: "score head" }, element("span", { text: "organ, worst first" }), element("span", { text: "Dice" }), element("span", { text: "HD95 mm" }));
    const last = element("div", { class: "score mean" }, element("span", { text: `mean of ${dices.length}` }), element("span", { text: dices.length ? mean.toFixed(3) : "–" }), element("span", { text: "" }));
    const missing = this.data.organs.filter((organ) => scores[organ.number] && !named.has(organ.number)).map((organ) => organ.shown);
    const note = missing.length ? element("p", { class: "missing", text: `Not named by ${this.data.maps[this.compared].title}, so without a score here: ${missing.join(", ")}.` }) : null;
    return [head, ...worstFirst.map((organ) => this.row(organ, scores[organ.number])), last, note].filter(Boolean);
  }

  row(organ, score) {
    const bar = element("span", { class: "bar" });
    bar.style.width = `${100 * (score.dice ?? 0)}%`;
    const name = element("button", { class: "organ-name clip", text: organ.shown, onclick: () => this.onJump(organ) });
    const extra = score.dice === null ? element("span", { class: "flag", text: "compared only", title: "The reference has none of it in this scan." }) : null;
    const dice = score.dice === null ? "–" : score.dice.toFixed(3);
    return element("div", { class: "score", dataset: { number: organ.number } },
      element("span", { class: "name" }, swatch(organ.colour), name, extra),
      element("span", { class: "figure dice" }, bar, element("span", { text: dice })),
      element("span", { class: "figure", text: score.hd95_mm === null ? "–" : score.hd95_mm.toFixed(1) }));
  }
}
