// What is under the crosshair: organ, value in the file, Hounsfield units, pack, probability, reason.

import { byId, element, getNumbers, swatch } from "./dom.js";

export class Readout {
  fill(route, data, scene) {
    Object.assign(this, { data, scene, reasons: data.maps.map((map) => new Reasons(route, map)) });
  }

  // `maps` are [title, index] of the label maps that are described.
  show(location, maps) {
    if (!this.data || !location.vox) return;
    const vox = location.vox.map(Math.round);
    const parts = [];
    for (const [title, index] of maps) parts.push(this.organAt(vox, title, index), ...this.reason(vox, index));
    if (this.data.has_scan) parts.push(fact("HU", this.scene.scan.getValue(...vox).toFixed(0)));
    parts.push(fact("mm", [...location.mm].slice(0, 3).map((mm) => mm.toFixed(1)).join(", ")), fact("voxel", this.inScan(vox).join(", "), "Of the scan, counted from 0."));
    byId("readout").replaceChildren(...parts);
  }

  // A label beside the mouse; null hides it.
  hover(event, vox, maps) {
    const box = byId("hover");
    box.hidden = !this.data || !vox || !maps.length;
    if (box.hidden) return;
    box.replaceChildren(...maps.flatMap(([title, index]) => [this.organAt(vox, title, index), ...this.reason(vox, index)]));
    const stage = byId("stage").getBoundingClientRect();
    const [left, top] = [event.clientX - stage.left + 14, event.clientY - stage.top + 14];
    box.style.left = `${Math.min(left, stage.width - box.offsetWidth - 4)}px`;
    box.style.top = `${Math.min(top, stage.height - box.offsetHeight - 4)}px`;
  }

  // The scan's voxel in the middle of one of the page, which may be coarser.
  inScan(vox) {
    const { shape, full_shape: full } = this.data;
    return vox.map((index, axis) => Math.floor(((index + 0.5) * full[axis]) / shape[axis]));
  }

  organAt(vox, title, index) {
    const number = this.scene.maps[index].getValue(...vox);
    const organ = this.data.organs[number - 1];
    const value = organ ? this.data.maps[index].values[number] : 0;
    const name = element("strong", { text: organ ? organ.shown : "background" });
    const detail = element("span", { class: "soft", text: `${title ? `${title}, ` : ""}label ${value}` });
    return element("span", { class: "at", dataset: { value, number, map: index } }, swatch(organ?.colour), name, detail);
  }

  reason([x, y, z], map) {
    const [width, height] = this.data.shape;
    const { pack, probability } = this.reasons[map].at(x + width * (y + height * z));
    const { rule } = this.data.maps[map];
    const facts = [];
    if (pack) facts.push(fact("pack", pack, `Of all packs, this one won the voxel by the merge rule ${rule}.`));
    if (pack && rule) facts.push(fact("by rule", rule, "How the label was chosen among the packs."));
    if (probability !== null) facts.push(fact("probability", probability.toFixed(2), "Of the organ by the pack that won, 0 to 1."));
    return facts;
  }
}

// Why voxels of a label map have their labels; read when first needed, as most maps are not looked at.
class Reasons {
  constructor(route, map) {
    Object.assign(this, { route, map, packs: null, scores: null, requested: false });
  }

  async request() {
    this.requested = true;
    if (Object.keys(this.map.packs).length) this.packs = await getNumbers(`${this.route}/${this.map.packs_file}`, Uint16Array);
    if (this.map.scores_file) this.scores = await getNumbers(`${this.route}/${this.map.scores_file}`, Uint8Array);
    byId("planes").dispatchEvent(new Event("reasons"));
  }

  at(index) {
    if (!this.requested) this.request();
    const pack = this.packs ? this.map.packs[this.packs[index]] : undefined;
    const probability = this.scores && (pack || !this.packs) ? this.scores[index] / 255 : null;
    return { pack, probability };
  }
}

function fact(title, text, hint) {
  return element("span", { class: "fact", title: hint }, element("span", { class: "soft", text: title }), element("span", { text }));
}
