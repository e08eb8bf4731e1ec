// The list of organs by group: search, show, solo, jump, volume, Hounsfield units, quality.

import { byId, element, press, swatch } from "./dom.js";

const LOW_SCORE = 0.7;
const CONTESTED = 0.2;

export class OrganList {
  constructor(onChange, onJump) {
    this.onChange = onChange;
    this.onJump = onJump;
    this.hidden = new Set(); // names: a choice survives the next case
    this.solo = null;
    byId("search").addEventListener("input", () => this.filter());
    byId("all").addEventListener("click", () => this.showOnly(() => true));
    byId("none").addEventListener("click", () => this.showOnly(() => false));
  }

  // `organs` are those of the case, `map` the label map whose numbers are shown.
  fill(organs, map) {
    this.organs = organs;
    this.map = map;
    if (!organs.some((organ) => organ.name === this.solo && map?.organs[organ.number])) this.solo = null;
    const list = byId("organ-list");
    list.replaceChildren();
    const present = organs.filter((organ) => map?.organs[organ.number]);
    for (const [group, members] of Map.groupBy(present, (organ) => organ.group)) {
      list.append(this.group(group, members));
    }
    if (map && !present.length) list.append(element("p", { class: "empty", text: "No organ was found in this label map." }));
    const missing = organs.filter((organ) => map && !map.organs[organ.number] && map.values[organ.number]);
    if (missing.length) {
      const names = missing.map((organ) => organ.shown).join(", ");
      list.append(element("p", { class: "missing", text: `Not found: ${names}.` }));
    }
    this.filter();
  }

  group(name, members) {
    const toggle = element("button", {
      class: "group-name", title: "Show or hide the group", text: name,
      onclick: () => {
        const on = members.some((organ) => !this.isVisible(organ));
        this.solo = null;
        for (const organ of members) this.set(organ, on);
        this.changed();
      },
    });
    return element("div", { class: "organ-group" }, toggle, ...members.map((organ) => this.row(organ)));
  }

  row(organ) {
    const found = this.map.organs[organ.number];
    const eye = element("button", {
      class: "eye", "aria-pressed": String(this.isVisible(organ)), title: "Show or hide", "aria-label": `Show ${organ.shown}`,
      onclick: () => { this.solo = null; this.set(organ, !this.isVisible(organ)); this.changed(); },
    }, swatch(organ.colour));
    const name = element("button", {
      class: "organ-name clip", text: organ.shown, title: `${organ.shown}: go there`, onclick: () => this.onJump(organ),
    });
    const solo = element("button", {
      class: "solo", text: "solo", title: "Show this organ alone", "aria-pressed": String(this.solo === organ.name),
      onclick: () => { this.solo = this.solo === organ.name ? null : organ.name; this.changed(); },
    });
    const flags = flagsOf(found).map(([text, title]) => element("span", { class: "flag", text, title }));
    return element("div", { class: "organ", dataset: { number: organ.number } },
      eye, element("div", { class: "organ-title" }, name, ...flags), solo,
      element("span", { class: "figure", text: millilitres(found.volume_ml) }),
      element("span", { class: "figure", text: found.mean_hu === null ? "–" : found.mean_hu.toFixed(0),
        title: found.deviation_hu === null ? undefined : `standard deviation ${found.deviation_hu.toFixed(0)} HU` }));
  }

  set(organ, on) {
    if (on) this.hidden.delete(organ.name);
    else this.hidden.add(organ.name);
  }

  showOnly(wanted) {
    this.solo = null;
    for (const organ of this.organs) this.set(organ, wanted(organ));
    this.changed();
  }

  changed() {
    const rows = new Map(this.organs.map((organ) => [String(organ.number), organ]));
    for (const row of byId("organ-list").querySelectorAll(".organ")) {
      const organ = rows.get(row.dataset.number);
      press(row.querySelector(".eye"), this.isVisible(organ));
      press(row.querySelector(".solo"), this.solo === organ.name);
    }
    this.onChange();
  }

  // A whole is shown with its parts: they are drawn over it.
  isVisible(organ) {
    if (this.solo === null) return !this.hidden.has(organ.name);
    const names = [organ.number, ...organ.wholes].map((number) => this.organs[number - 1].name);
    return names.includes(this.solo);
  }

  filter() {
    const wanted = byId("search").value.trim().toLowerCase();
    for (const group of byId("organ-list").querySelectorAll(".organ-group")) {
      const rows = [...group.querySelectorAll(".organ")];
      for (const row of rows) row.hidden = !row.querySelector(".organ-name").textContent.toLowerCase().includes(wanted);
      group.hidden = rows.every((row) => row.hidden);
    }
  }
}

function flagsOf(found) {
  const flags = [];
  if (found.touches_edge.length) flags.push(["edge", `Touches the edge of the scan (${found.touches_edge.join(", ")}): it may be cut off`]);
  if (found.mean_score !== null && found.mean_score < LOW_SCORE) flags.push(["unsure", `Mean probability ${found.mean_score.toFixed(2)}`]);
  if (found.contested_share !== null && found.contested_share > CONTESTED) {
    flags.push(["contested", `Packs disagree in ${(100 * found.contested_share).toFixed(0)} % of its voxels`]);
  }
  return flags;
}

function millilitres(volume) {
  return volume < 10 ? volume.toFixed(1) : Math.round(volume).toLocaleString("en");
}
