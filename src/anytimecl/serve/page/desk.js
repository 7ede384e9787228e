// The picture on the desk: its answer, and one click to teach it.

import { did, failed, say } from "./acts.js";
import { $, clean, keyed, make, percent, track } from "./dom.js";
import { labels } from "./memory.js";
import { NONE, look, teach, teachable } from "./pictures.js";
import { whoSpoke } from "./words.js";

const MODELS = ["blended", "tuned", "original"];
const MOST = 9; // rows that come at once
let open = null;
const listeners = [];
export const whenDeskChanges = (what) => listeners.push(what);
export const onDesk = () => open;

// A new picture clears the answer at once.
export function put(item) {
  open = item;
  $("preview").hidden = $("clear").hidden = !item;
  $("drop-hint").hidden = Boolean(item);
  if (item) {
    $("preview").src = item.url;
    $("preview").alt = item.name ? `The picture ${item.name}` : "The picture";
  } else {
    $("preview").removeAttribute("src");
  }
  $("bars").replaceChildren();
  $("teach-text").value = "";
  show();
}

export function show() {
  const item = open;
  const busy = Boolean(item) && (item.state === "looking" || item.busy);
  $("answer").setAttribute("aria-busy", String(busy));
  $("answer").dataset.state = item ? item.state : "empty";
  const words = verdict(item);
  if ($("verdict").textContent !== words.map((line) => line.textContent).join("")) $("verdict").replaceChildren(...words);
  const answered = item?.state === "answered";
  $("legend").hidden = $("keys-line").hidden = !answered;
  keyed($("bars"), answered ? rowsOf(item) : [], (label) => label, row, (element, label, at) => fill(element, item, label, at));
  $("teach").hidden = !item || item.state === "failed" || item.state === "looking";
  $("teach-send").disabled = !teachable(item);
  listeners.forEach((listener) => listener(item));
}

// A label that was just added has no value yet.
const rowsOf = (item) => item.order.filter((label) => item.answer.scores.some((score) => score.label === label));

const line = (className, textContent) => make("p", { className, textContent });

function verdict(item) {
  if (!item) return [line("quiet", "Show a picture, and the answer appears here.")];
  if (item.state === "looking") return [make("p", { className: "busy" }, make("i", { className: "spinner" }), `Looking at ${item.name || "the picture"} …`)];
  if (item.state === "failed") return [line("label sad", "No answer"), line("why", item.error)];
  if (item.state === "unlabelled") {
    return [line("label", item.taught ? item.taught.label : "What is it?"),
      line("why", "There are no labels yet: type what this picture shows, and teach it.")];
  }
  const { answer } = item;
  if (answer.label === NONE) {
    return [line("label none", "None of these"), line("why", `${percent(answer.none_of_these)} sure that it is none of the labels below. Type what it is, and teach it.`)];
  }
  return [line("label", answer.label), line("why", because(answer))];
}

function because(answer) {
  const anything = answer.scores.some((score) => score.tuned !== null);
  const none = anything ? `; ${percent(answer.none_of_these)} for none of these` : "; none of these labels was taught yet";
  return `${percent(answer.probability)} sure, mostly from ${whoSpoke(answer.spoke)}${none}`;
}

function row(label) {
  const button = make("button", { type: "button" },
    make("kbd", {}), make("span", { className: "name", textContent: label }), make("span", { className: "value" }), make("span", { className: "tracks" }));
  button.dataset.label = label;
  button.onclick = () => teachOpen(label); // the label that this row shows, whatever happens to the order
  return make("li", {}, button);
}

function fill(element, item, label, at) {
  const button = element.firstChild;
  const score = item.answer.scores.find((one) => one.label === label);
  const [key, , value, tracks] = button.children;
  key.textContent = at < 9 ? at + 1 : "";
  const change = label in item.before ? score.blended - item.before[label] : 0;
  value.replaceChildren(percent(score.blended));
  if (Math.abs(change) >= 0.0005) {
    value.append(make("span", { className: change > 0 ? "rise" : "fall", textContent: `${change > 0 ? "▲" : "▼"} ${percent(Math.abs(change))}` }));
  }
  const taught = item.taught?.label === label;
  if (taught) value.prepend(make("span", { className: "tick", textContent: "✓ taught" }));
  tracks.replaceChildren(...MODELS.map((model) => track(model, score[model], `${model}: ${score[model] === null ? "not yet" : percent(score[model])}`)));
  button.dataset.blended = score.blended;
  button.classList.toggle("taught", taught);
  button.disabled = !teachable(item) && !item.busy; // while it learns, a click is passed over, and focus stays
  const said = MODELS.filter((model) => score[model] !== null).map((model) => `${model} ${percent(score[model])}`);
  const does = taught ? "Taught as this." : `Teach this label.${at < 9 ? ` Key ${at + 1}.` : ""}`;
  button.setAttribute("aria-label", `${label}: ${said.join(", ")}. ${does}`);
}

export async function teachOpen(text) {
  const item = open, label = clean(text);
  if (!label || !teachable(item)) return;
  if (item.taught?.label === label) return say(`It is taught as “${label}” already.`);
  const learning = teach(item, label);
  say("Learning …");
  show();
  try {
    const told = await learning;
    if (open === item) $("teach-text").value = "";
    item.ticked = false;
    did(told.words, { steps: told.event === null ? 0 : 1, event: told.event, revert: () => { told.revert(); lookAgain(item); } });
  } catch (error) {
    failed(error);
  }
  show();
  await lookAgain(item);
}

export async function lookAgain(item = open) {
  if (!item || item.state === "failed") return;
  await look([item], () => { if (open === item) show(); });
}

// Labels came or went: what is on the desk is answered anew, in the rows that are there.
let known = new Set();
export function labelsChanged() {
  const before = known, now = labels();
  known = new Set(now);
  const added = now.filter((label) => !before.has(label));
  if (!added.length && before.size === known.size) return;
  $("known").replaceChildren(...now.map((label) => make("option", { value: label })));
  if (!open || open.state === "looking" || open.state === "failed") return;
  const kept = open.order.filter((label) => known.has(label));
  open.order = kept.length ? [...new Set([...kept, ...added.slice(0, MOST)])] : [];
  lookAgain();
}
