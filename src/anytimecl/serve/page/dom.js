// Small things for building the page. Text goes in as text alone, never as HTML.

export const $ = (id) => document.getElementById(id);

export function make(tag, properties = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children.filter((child) => child !== null));
  return element;
}

export function draw(tag, attributes, text = "") {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (text) element.textContent = text;
  return element;
}

// Elements that stand for the same thing stay the same elements: focus, scrolling and a pointer keep their place.
export function keyed(parent, items, keyOf, create, update = () => {}) {
  const focused = document.activeElement;
  const old = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  const keys = items.map((item) => String(keyOf(item)));
  const kept = new Set(keys);
  old.forEach((element, key) => { if (!kept.has(key)) element.remove(); });
  items.forEach((item, at) => {
    let element = old.get(keys[at]);
    if (!element) { element = create(item); element.dataset.key = keys[at]; }
    update(element, item, at);
    if (parent.children[at] !== element) parent.insertBefore(element, parent.children[at] ?? null);
  });
  if (focused !== document.activeElement && parent.contains(focused)) focused.focus({ preventScroll: true }); // it was moved
}

export const percent = (share) =>
  share > 0 && share < 0.0005 ? "< 0.1 %" : `${(100 * share).toFixed(share > 0 && share < 0.1 ? 1 : 0)} %`;

export const count = (number, one, many = `${one}s`) => `${number.toLocaleString()} ${number === 1 ? one : many}`;

export const clean = (label) => label.normalize("NFC").replace(/\s+/g, " ").trim();

export const sleep = (ms) => new Promise((done) => setTimeout(done, ms));

// A bar of one share.
export function track(name, share, title = "") {
  const fill = make("i", { className: name });
  fill.style.width = `${100 * Math.min(1, share ?? 0)}%`;
  return make("span", { className: "track", title }, fill);
}
