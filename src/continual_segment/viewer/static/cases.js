// The list of cases: those that failed first, then those with warnings.

import { byId, element } from "./dom.js";

const MARKS = { failed: "✕", warning: "!", good: "✓" };

export class CaseList {
  constructor(cases, onOpen) {
    this.cases = cases;
    this.onOpen = onOpen;
    const rows = cases.map((each, index) => element("button", { class: `case ${each.status}`, title: each.note, onclick: () => onOpen(index) },
      element("span", { class: "mark", text: MARKS[each.status] }), element("span", { class: "clip", text: each.name }),
      element("span", { class: "case-note clip", text: each.note })));
    byId("cases").replaceChildren(element("p", { class: "soft", text: this.counts() }), ...rows);
  }

  counts() {
    const count = (status) => this.cases.filter((each) => each.status === status).length;
    return `${this.cases.length} cases: ${count("failed")} failed, ${count("warning")} with warnings.`;
  }

  mark(index) {
    byId("cases").querySelectorAll(".case").forEach((row, number) => row.setAttribute("aria-current", String(number === index)));
    byId("case-name").textContent = this.cases[index].name;
    byId("case-count").textContent = `${index + 1} of ${this.cases.length}`;
    byId("previous").disabled = index === 0;
    byId("next").disabled = index === this.cases.length - 1;
  }
}
