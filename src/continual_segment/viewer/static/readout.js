// What is under the crosshair: organ, value in the file, Hounsfield units, pack, probability, reason.

import { byId, element, swatch } from "./dom.js";

export class Readout {
  fill(data, scene, packs, scores) {
    Object.assign(this, { data, scene, packs, scores });
  }

  // `maps` are [title, index] of the label maps that are described.
  show(location, maps) {
    if (!this.data || !location.vox) return;
    const vox = location.vox.map(Math.round);
    const parts = [];
    for (const [title, index] of maps) parts.push(this.organAt(vox, title, index));
    if (this.data.has_scan) parts.push(fact("HU", this.scene.scan.getValue(...vox).toFixed(0)));
    if (maps.some(([, index]) => index === this.data.explained)) parts.push(...this.reason(vox));
    parts.push(fact("mm", [...location.mm].slice(0, 3).map((mm) => mm.toFixed(1)).join(", ")), fact("voxel", vox.join(", ")));
    byId("readout").replaceChildren(...parts);
  }

  organAt(vox, title, index) {
    const number = this.scene.maps[index].getValue(...vox);
    const organ = this.data.organs[number - 1];
    const value = organ ? this.data.maps[index].values[number] : 0;
    const name = element("strong", { text: organ ? organ.shown : "background" });
    const detail = element("span", { class: "soft", text: `${title ? `${title}, ` : ""}label ${value}` });
    return element("span", { class: "at", dataset: { value, number, map: index } }, swatch(organ?.colour), name, detail);
  }

  reason([x, y, z]) {
    const [width, height] = this.data.shape;
    const index = x + width * (y + height * z);
    const pack = this.packs?.length ? this.data.packs[this.packs[index]] : undefined;
    const facts = [];
    if (pack) facts.push(fact("pack", pack, `This pack won the voxel by the merge rule ${this.data.rule}.`));
    if (pack && this.data.rule) facts.push(fact("by rule", this.data.rule));
    if (this.scores?.length && (pack || !this.packs?.length)) facts.push(fact("probability", (this.scores[index] / 255).toFixed(2)));
    return facts;
  }
}

function fact(title, text, hint) {
  return element("span", { class: "fact", title: hint }, element("span", { class: "soft", text: title }), element("span", { text }));
}
