// What the memory knows: its figures, its labels, and the labels to choose from. All of it is the service's, none the browser's.

import { clean } from "./dom.js";
import { ask, tell } from "./service.js";

export const memory = { stats: null, choices: { own: [], hidden: [] } };
const listeners = [];
export const whenKnown = (what) => listeners.push(what);

export const learned = () => (memory.stats?.labels ?? []).map((item) => item.label);

// What pictures are told apart by: everything taught or named, less what was taken out.
export function labels() {
  const hidden = new Set(memory.choices.hidden);
  return [...new Set([...learned(), ...memory.choices.own])].filter((label) => !hidden.has(label));
}

let under_way = null;
let again = false;
export function refresh() { // one at a time; who asks meanwhile gets a newer answer
  if (under_way) { again = true; return under_way; }
  under_way = fetchAll().finally(() => {
    under_way = null;
    if (again) { again = false; refresh().catch(() => {}); }
  });
  return under_way;
}

async function fetchAll() {
  const [stats, choices] = await Promise.all([ask("GET", "stats"), ask("GET", "choices")]);
  Object.assign(memory, { stats, choices });
  listeners.forEach((listener) => listener(memory));
}

let timer = 0;
export function refreshSoon() { // several asking at once are one refresh, and none of them puts it off
  timer ||= setTimeout(() => { timer = 0; refresh().catch(() => {}); }, 120);
}

export async function choose({ add = [], remove = [] }) {
  const wanted = add.map(clean).filter(Boolean);
  memory.choices = await tell("POST", "choices", { add: wanted, remove });
  listeners.forEach((listener) => listener(memory));
}
