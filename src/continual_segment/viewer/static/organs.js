// The list of organs by group: search, show, solo, jump, volume, Hounsfield units, quality.

import { byId, element, press, swatch } from "./dom.js";

const MOST_MISSING = 12; // organs that are named without a click

export class OrganList {
  constructor(onChange, onJump) {
    this.onChange = onChange;
    this.onJump = onJump;
    this.hidden = new Set(); // names: a choice survives the next case
    this.solo = null;
    this.onlyFlagged = false;
    byId("search").addEventListener("input", () => this.filter());
    byId("all").addEventListener("click", () => this.showOnly(() => true));
    byId("none").addEventListener("click", () => this.showOnly(() => false));
    byId("flagged").addEventListener("click", () => { this.onlyFlagged = !this.onlyFlagged; this.filter(); });
  }

  // `organs` are those of the case, `map` the label map whose numbers are shown, `meanings` those of flags.
  fill(organs, map, meanings) {
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
      const many = missing.length > MOST_MISSING;
      list.append(many
        ? element("details", { class: "missing" }, element("summary", { text: `Not found: ${missing.length} organs` }), element("p", { text: `${names}.` }))
        : element("p", { class: "missing", text: `Not found: ${names}.` }));
    }
    const flagged = present.filter((organ) => map.organs[organ.number].flags.length);
    byId("flagged").hidden = !flagged.length;
    byId("flagged").textContent = `Flagged ${flagged.length}`;
    this.onlyFlagged &&= flagged.length > 0;
    if (flagged.length) list.append(flagHelp(meanings, new Set(flagged.flatMap((organ) => map.organs[organ.number].flags.map((flag) => flag.name)))));
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
    const sentences = element("p", { class: "flag-sentences soft small", text: found.flags.map((flag) => flag.sentence).join(" "), hidden: "" });
    const flags = found.flags.map((flag) => element("button", {
      class: "flag", text: flag.name, title: flag.sentence, onclick: () => { sentences.hidden = !sentences.hidden; },
    }));
    return element("div", { class: "organ", dataset: { number: organ.number } },
      eye, element("div", { class: "organ-title" }, name, ...flags), solo,
      element("span", { class: "figure", text: millilitres(found.volume_ml) }),
      element("span", { class: "figure", text: found.mean_hu === null ? "–" : found.mean_hu.toFixed(0),
        title: found.deviation_hu === null ? undefined : `standard deviation ${found.deviation_hu.toFixed(0)} HU` }), ...(flags.length ? [sentences] : []));
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
    press(byId("flagged"), this.onlyFlagged);
    const wanted = byId("search").value.trim().toLowerCase();
    for (const group of byId("organ-list").querySelectorAll(".organ-group")) {
      const rows = [...group.querySelectorAll(".organ")];
      for (const row of rows) {
        const named = row.querySelector(".organ-name").textContent.toLowerCase().includes(wanted);
        row.hidden = !named || (this.onlyFlagged && !row.querySelector(".flag"));
      }
      group.hidden = rows.every((row) => row.hidden);
    }
  }
}

// What the flags in the list mean; those that do not occur in it are left out.
function flagHelp(meanings, names) {
  const shown = Object.entries(meanings).filter(([name]) => names.has(name));
  return element("div", { class: "flag-help" }, element("p", { class: "soft small", text: "Flags are reasons to look, not errors. Click one for its numbers." }),
    ...shown.map(([name, meaning]) => element("p", { class: "small" }, element("span", { class: "flag", text: name }), element("span", { class: "soft", text: meaning }))));
}

function millilitres(volume) {
  return volume < 10 ? volume.toFixed(1) : Math.round(volume).toLocaleString("en");
}
