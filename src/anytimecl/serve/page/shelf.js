// The labels that were taught, beside the gallery: filter by one, drop examples on one, rename, merge, forget.

import { did, failed } from "./acts.js";
import { confirm } from "./confirm.js";
import { $, clean, count, keyed, make, percent, track } from "./dom.js";
import { DRAGGED, filter, load, relabel, search } from "./gallery.js";
import { choose, memory } from "./memory.js";
import { ask, tell } from "./service.js";

export function showShelf() {
  const items = memory.stats?.labels.filter((item) => item.examples > 0) ?? [];
  const most = Math.max(1, ...items.map((item) => item.examples));
  const wanted = $("shelf-text").value.toLowerCase();
  const shown = [...items].sort((a, b) => b.examples - a.examples || a.label.localeCompare(b.label))
    .filter((item) => item.label.toLowerCase().includes(wanted));
  keyed($("shelf"), shown, (item) => item.label, entry, (element, item) => update(element, item, most));
  $("shelf-facts").textContent = shown.length === items.length ? count(items.length, "label") : `${shown.length} of ${count(items.length, "label")}`;
  $("all").setAttribute("aria-pressed", String(!filter()));
  $("labels-known").replaceChildren(...items.map((item) => make("option", { value: item.label })));
}

function entry({ label }) {
  const open = make("button", { type: "button", className: "label" },
    make("span", { className: "name", textContent: label, title: label }), make("span", { className: "number" }), track("blended", 0));
  open.onclick = async () => { await search({ label: filter() === label ? "" : label }); showShelf(); };
  const change = make("button", { type: "button", className: "change", textContent: "⋯", title: `Rename, merge or forget ${label}` });
  change.setAttribute("aria-label", `Change the label ${label}`);
  change.onclick = () => edit(label);
  const element = make("li", {}, open, change);
  element.ondragover = (event) => {
    if (!event.dataTransfer.types.includes(DRAGGED)) return;
    event.preventDefault();
    element.classList.add("over");
  };
  element.ondragleave = () => element.classList.remove("over");
  element.ondrop = (event) => {
    element.classList.remove("over");
    const ids = event.dataTransfer.getData(DRAGGED);
    if (ids) { event.preventDefault(); relabel(JSON.parse(ids), label); }
  };
  return element;
}

function update(element, item, most) {
  const [open] = element.children;
  open.children[1].textContent = item.examples.toLocaleString();
  open.children[2].firstChild.style.width = `${100 * item.examples / most}%`;
  open.setAttribute("aria-pressed", String(filter() === item.label));
  open.title = `${count(item.examples, "example")}. Before they were learned, the tuned model was right about ${percent(item.tuned)}, the original one about ${percent(item.original)}.`;
}

function edit(label) {
  const dialog = $("label-dialog");
  $("label-title").textContent = label;
  $("label-text").value = label;
  const told = () => {
    const other = clean($("label-text").value);
    const exists = other !== label && memory.stats.labels.some((item) => item.label === other && item.examples > 0);
    $("label-send").textContent = exists ? `Merge into “${other.slice(0, 24)}”` : "Rename";
    return { other, exists };
  };
  told();
  $("label-text").oninput = told;
  $("label-form").onsubmit = (event) => {
    event.preventDefault();
    const { other, exists } = told();
    dialog.close();
    if (other && other !== label) change(label, other, exists);
  };
  $("label-forget").onclick = () => { dialog.close(); forget(label); };
  $("label-close").onclick = () => dialog.close();
  dialog.showModal();
  $("label-text").select();
}

async function change(label, other, exists) {
  try {
    const { examples, event } = exists
      ? await tell("POST", "labels/merge", { source: label, into: other })
      : await tell("POST", "labels/rename", { old: label, new: other });
    did(exists ? `Merged ${count(examples, "example")} of “${label}” into “${other}”.` : `“${label}” is “${other}” now.`, { event, revert: () => load() });
    await search({ label: filter() === label ? other : filter() });
  } catch (error) {
    failed(error);
  }
}

async function forget(label) {
  const examples = memory.stats.labels.find((item) => item.label === label)?.examples ?? 0;
  if (!await confirm(`Forget all ${count(examples, "example")} of “${label}”?`, "Forget")) return;
  try {
    const { forgotten } = await ask("DELETE", `labels/${encodeURIComponent(label)}`);
    did(`Forgot ${count(forgotten, "example")} of “${label}”.`);
    await choose({ remove: [label] });
    await search({ label: "" });
  } catch (error) {
    failed(error);
  }
}

export function wire() {
  $("shelf-text").oninput = showShelf;
  $("all").onclick = async () => { await search({ label: "" }); showShelf(); };
}
