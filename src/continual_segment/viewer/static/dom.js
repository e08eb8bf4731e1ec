// Elements made of text alone: no string from a file is ever read as HTML.

export function element(tag, options = {}, ...children) {
  const made = document.createElement(tag);
  const { text, onclick, dataset, ...attributes } = options;
  if (text !== undefined) made.textContent = text;
  if (onclick) made.addEventListener("click", onclick);
  Object.assign(made.dataset, dataset ?? {});
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== undefined && value !== false) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

export function swatch(colour) {
  const made = element("span", { class: "swatch" });
  if (colour) made.style.backgroundColor = `rgb(${colour.join(" ")})`;
  return made;
}

export function byId(id) {
  return document.getElementById(id);
}

export function press(button, on) {
  button.setAttribute("aria-pressed", String(on));
}

export async function getJson(route) {
  const answer = await fetch(route);
  const data = await answer.json().catch(() => ({ error: `${answer.status} ${answer.statusText}` }));
  if (!answer.ok) throw new Error(data.error);
  return data;
}

// Numbers of this kind of array, such as Uint8Array.
export async function getNumbers(route, Numbers) {
  const answer = await fetch(route);
  if (!answer.ok) throw new Error(`${answer.status} ${answer.statusText}`);
  return new Numbers(await answer.arrayBuffer());
}
