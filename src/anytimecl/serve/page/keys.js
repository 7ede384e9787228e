// Keys: 1 to 9 teach the label that stands beside them, N goes to the next picture, Ctrl+Z takes back.

import { undo } from "./acts.js";
import { $ } from "./dom.js";
import { next } from "./queue.js";

const OFF = "anytimecl.keys";

export function wire() {
  $("keys").checked = localStorage.getItem(OFF) !== "off";
  $("keys").onchange = () => localStorage.setItem(OFF, $("keys").checked ? "on" : "off");
  addEventListener("keydown", (event) => {
    if (event.repeat || event.altKey || event.shiftKey || writing(event.target) || document.querySelector("dialog[open]")) return;
    if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "z") { event.preventDefault(); undo(); return; }
    if (event.ctrlKey || event.metaKey || !$("keys").checked || $("teach-view").hidden) return;
    if (/^[1-9]$/.test(event.key)) $("bars").children[event.key - 1]?.firstChild.click();
    if (event.key.toLowerCase() === "n") next();
  });
}

const writing = (element) => element.matches("input:not([type=checkbox]), select, textarea");
