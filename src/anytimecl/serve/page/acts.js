// After every act: what was done, and a button that takes it back.

import { $ } from "./dom.js";
import { refreshSoon } from "./memory.js";
import { tell } from "./service.js";

let last = null; // {steps, event, revert}
let expected = 0; // events that this page's own acts will be told of
const listeners = [];
export const whenUndone = (what) => listeners.push(what);

// `event` is the memory's number of the act: what others did meanwhile is never undone in its place.
export function did(words, { steps = 1, event = null, revert = () => {} } = {}) {
  last = event === null ? null : { steps, event, revert };
  expected += steps;
  say(words, { undo: last !== null });
  refreshSoon();
}

export const failed = (error) => say(error.message ?? String(error), { bad: true });

// Of several acts, this many were done before one failed.
export const failedAfter = (done, all, what, error) =>
  failed({ message: `${done ? `${done} of ${all} were ${what}. ` : ""}${error.message}` });

export function say(words, { bad = false, undo = false } = {}) {
  $("notice-text").textContent = words;
  $("notice").className = bad ? "notice bad" : "notice";
  $("notice").hidden = !words;
  $("undo").hidden = !undo;
}

// A new picture: what went wrong with the one before is over, what was done can still be undone.
export function settle() {
  if ($("notice").classList.contains("bad")) say("");
}

// Whether an event is about something that this page did.
export function wasOwn() {
  if (!expected) return false;
  expected--;
  return true;
}

export async function undo() {
  if (!last) return;
  const act = last;
  last = null;
  const focused = document.activeElement === $("undo");
  say("Undoing …");
  try {
    await tell("POST", "undo", { steps: act.steps, event: act.event });
    expected++;
    act.revert();
    listeners.forEach((listener) => listener());
    say(act.steps === 1 ? "Undone." : `Undone: ${act.steps} acts.`);
  } catch (error) {
    const gone = error.status === 409;
    failed(gone ? { message: "Something else happened since, so this cannot be undone from here. Correct it under Examples." } : error);
    if (!gone) { last = act; $("undo").hidden = false; }
  }
  if (focused) $("notice").focus(); // its button is gone; focus is not
  refreshSoon();
}
