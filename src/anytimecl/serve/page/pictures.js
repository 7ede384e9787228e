// A picture that somebody showed: what it is answered with, and what it was taught as.

import { labels, learned } from "./memory.js";
import { ask, freshKey, tell } from "./service.js";
import { inWords } from "./words.js";

export const NONE = "none of these";
const ROWS = 9; // labels shown of an answer
const AT_ONCE = 6; // pictures in one request: small enough that answers come one after the other
const BYTES = 24 << 20;
let numbers = 0;

// state: looking -> answered | unlabelled (there is nothing to choose from yet) | failed
export function picture(file) {
  return {
    number: ++numbers, file, name: file.name || "", url: URL.createObjectURL(file), state: "looking", answer: null,
    order: [], before: {}, key: null, taught: null, error: "", busy: false, asked: 0, ticked: null,
  };
}

export const drop = (item) => URL.revokeObjectURL(item.url);
export const teachable = (item) => Boolean(item) && !item.busy && (item.state === "answered" || item.state === "unlabelled");

// Ask about pictures, a few at a time; `shown` is called whenever some have changed.
export async function look(items, shown) {
  const waiting = items.filter((item) => item.state !== "failed");
  if (!labels().length) {
    waiting.forEach((item) => { item.state = "unlabelled"; });
    return shown(waiting);
  }
  for (let start = 0; start < waiting.length;) {
    const some = [waiting[start]];
    let bytes = waiting[start].file.size;
    while (some.length < AT_ONCE && start + some.length < waiting.length) {
      const next = waiting[start + some.length];
      bytes += next.file.size;
      if (bytes > BYTES) break;
      some.push(next);
    }
    await lookAtSome(some);
    shown(some);
    start += some.length;
  }
}

async function lookAtSome(items) {
  const turns = items.map((item) => ++item.asked);
  const form = new FormData();
  items.forEach((item) => form.append("images", item.file, "image"));
  const chosen = labels();
  const known = new Set(learned());
  if (chosen.length !== known.size || !chosen.every((label) => known.has(label))) {
    chosen.forEach((label) => form.append("labels", label)); // else it chooses among all by itself
  }
  // The first answer needs the best few; later ones need those that are on the screen, wherever they are by now.
  const again = items.some((item) => item.order.length);
  form.append("remember", "true"); // so that it can say which to label first
  form.append("top_k", String(again ? Math.max(ROWS, Math.min(2000, chosen.length)) : ROWS));
  let told;
  try {
    told = await ask("POST", "predict", form);
  } catch (error) {
    if (items.length > 1 && (error.status === 413 || error.status === 422)) { // one of them: find out which
      for (const item of items) await lookAtSome([item]);
    } else {
      items.forEach((item, at) => { if (turns[at] === item.asked) fail(item, error); });
    }
    return;
  }
  items.forEach((item, at) => {
    if (turns[at] !== item.asked) return; // asked again since
    if (told.predictions[at]) answered(item, told.predictions[at]);
    else fail(item, unreadable(told.errors.find((one) => one.index === at)));
  });
}

const unreadable = (one) => ({ message: one ? inWords(422, one.detail) : "It was not answered." });

function fail(item, error) {
  if (item.taught) return; // it was fine once: keep what is shown
  Object.assign(item, { state: "failed", error: error.message, answer: null, order: [], ticked: false });
}

// Rows keep their place until the next picture, whatever the answer is by now.
function answered(item, answer) {
  const scores = new Map(answer.scores.map((score) => [score.label, score]));
  item.before = Object.fromEntries((item.answer?.scores ?? []).map((score) => [score.label, score.blended]));
  item.order = item.order.length ? item.order.filter((label) => scores.has(label)) : [...scores.keys()].slice(0, ROWS);
  if (item.taught && !item.order.includes(item.taught.label) && scores.has(item.taught.label)) item.order.push(item.taught.label);
  Object.assign(item, { state: "answered", answer, key: answer.image });
  item.ticked ??= answer.label !== NONE && answer.probability >= 0.5;
}

// Teach a picture, or correct what it was taught. Returns what to say, and how to take it back.
export async function teach(item, label) {
  item.busy = true;
  try {
    return item.taught ? await correct(item, label) : await learn(item, label);
  } finally {
    item.busy = false;
  }
}

async function learn(item, label) {
  const form = new FormData();
  form.append("image", item.file, "image");
  form.append("label", label);
  if (item.name) form.append("source", item.name.slice(0, 200));
  const others = labels(); // it is told apart from what could have been the answer
  if (others.length && others.length <= 500) others.forEach((other) => form.append("candidates", other));
  const told = await ask("POST", "learn", form, { "Idempotency-Key": freshKey() });
  item.taught = { id: told.id, label: told.label };
  if (told.event === null) return { words: `It was taught as “${told.label}” before.`, event: null, revert: () => {} };
  const was = told.replaced && told.replaced !== told.label ? `, not as “${told.replaced}” any more` : "";
  const before = told.before ? (told.before.blended ? " It had been right." : " It had been wrong.") : "";
  return { words: `Learned as “${told.label}”${was}.${before}`, event: told.event, revert: () => { item.taught = null; } };
}

async function correct(item, label) {
  const before = item.taught;
  let told;
  try {
    told = await tell("POST", `examples/${before.id}/label`, { label });
  } catch (error) {
    if (error.status !== 404) throw error;
    item.taught = null; // it was forgotten elsewhere
    return learn(item, label);
  }
  item.taught = { id: told.id, label: told.label };
  return {
    words: `Now “${told.label}”, no longer “${told.before}”.`, event: told.event,
    revert: () => { item.taught = before; },
  };
}
