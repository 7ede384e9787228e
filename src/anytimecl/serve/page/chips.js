// The labels to choose from. They belong to the memory: every browser sees the same.

import { failed } from "./acts.js";
import { $, count, keyed, make } from "./dom.js";
import { choose, labels } from "./memory.js";

export function showChips() {
  const all = labels();
  $("labels-count").textContent = all.length ? count(all.length, "label") : "none yet";
  keyed($("chips"), all, (label) => label, chip);
}

function chip(label) {
  const remove = make("button", { type: "button", textContent: "×", title: `Do not choose ${label}` });
  remove.setAttribute("aria-label", `Take ${label} out of the choice`);
  remove.onclick = () => {
    const neighbour = remove.closest("li").nextElementSibling ?? remove.closest("li").previousElementSibling;
    change({ remove: [label] });
    (neighbour?.querySelector("button") ?? $("add-text")).focus(); // focus goes to what takes its place
  };
  return make("li", {}, make("span", { textContent: label, title: label }), remove);
}

export async function change(what) {
  try { await choose(what); } catch (error) { failed(error); }
}

export function wire() {
  $("add").onsubmit = (event) => {
    event.preventDefault();
    const add = $("add-text").value.split(",");
    $("add-text").value = "";
    change({ add });
  };
}
