// Many pictures at once: an answer each, and one click for all that are right.

import { did, failed, failedAfter, say, settle } from "./acts.js";
import { onDesk, put, show as showDesk } from "./desk.js";
import { $, count, keyed, make, percent } from "./dom.js";
import { labels, learned } from "./memory.js";
import { NONE, drop, look, picture, teach } from "./pictures.js";
import { tell } from "./service.js";

const MOST = 500;
let items = [];
let busy = false;
let ranks = new Map(); // what the service knows a picture as -> its place among those that wait
let turn = 0;

export async function take(files) {
  const images = files.filter((file) => !file.type || file.type.startsWith("image/"));
  if (!images.length) {
    return failed({ message: files.length ? "There is no picture among these files. Try a JPEG or a PNG." : "There is nothing in it." });
  }
  if (images.length + items.length > MOST) return failed({ message: `The queue takes ${MOST} pictures at a time. Show fewer.` });
  const added = images.map(picture);
  const alone = images.length === 1 && items.length <= 1; // it needs no queue
  if (alone || (items.length === 1 && items[0].taught)) {
    items.forEach(drop);
    items = [];
  }
  items.push(...added);
  put(added[0]);
  show();
  const passed = files.length - images.length;
  settle();
  if (passed) say(`${count(passed, "file")} passed over: not pictures.`);
  await again((item) => added.includes(item));
}

export function clear() {
  items.forEach(drop);
  items = [];
  put(null);
  show();
}

// A tick says: this answer is right. Nothing is taught before the button is pressed.
const proposal = (item) => (item.state === "answered" && item.answer.label !== NONE ? item.answer.label : null);
const right = () => items.filter((item) => item.ticked && !item.taught && proposal(item));

export function show() {
  $("queue-card").hidden = items.length < 2;
  if (items.length < 2) return;
  keyed($("queue"), inOrder(), (item) => item.number, tile, update);
  const done = items.filter((item) => item.state !== "looking").length;
  $("queue-facts").textContent = [
    done < items.length ? `${done} of ${items.length} answered` : count(items.length, "picture"),
    `${items.filter((item) => item.taught).length} taught`,
    items.some((item) => item.state === "failed") ? `${items.filter((item) => item.state === "failed").length} unreadable` : "",
  ].filter(Boolean).join(" · ");
  $("teach-all").textContent = `Teach the ${right().length} ticked`;
  $("teach-all").disabled = busy || !right().length;
}

const telling = () => $("queue-order").value === "telling";

function inOrder() {
  const by = { unsure: sureness, telling: rank }[$("queue-order").value];
  return by ? [...items].sort((a, b) => by(a) - by(b)) : items;
}

const rank = (item) => (item.taught ? items.length + 1 : ranks.get(item.key) ?? items.length);

// Which would teach most, now that something was taught.
export async function reorder() {
  show();
  const mine = ++turn;
  const waiting = items.filter((item) => !item.taught && item.key);
  if (!telling() || waiting.length < 2) return;
  try {
    const taught = new Set(learned());
    const told = await tell("POST", "order", { images: waiting.map((item) => item.key), labels: labels().filter((label) => !taught.has(label)) });
    if (mine !== turn) return;
    ranks = new Map(told.images.map((key, at) => [key, at]));
    show();
    const lost = waiting.filter((item) => told.unknown.includes(item.key));
    lost.forEach((item) => { item.key = null; });
    if (lost.length) await again((item) => lost.includes(item)); // it was restarted, or forgot something
  } catch (error) {
    if (mine === turn) failed(error);
  }
}

const sureness = (item) => (item.taught ? 2 : item.answer ? item.answer.probability - (item.answer.label === NONE ? 1 : 0) : 1);

function tile(item) {
  const open = make("button", { type: "button", className: "open" }, make("img", { src: item.url, alt: "" }));
  open.onclick = () => { put(item); show(); $("look").scrollIntoView({ block: "nearest" }); };
  const box = make("input", { type: "checkbox" });
  box.onchange = () => { item.ticked = box.checked; show(); };
  return make("li", {}, open, make("label", { className: "foot" }, box, make("span", { className: "name" }), make("span", { className: "value" })));
}

function update(element, item) {
  const [open, foot] = element.children;
  const [box, name, value] = foot.children;
  const proposed = proposal(item);
  const words = item.taught ? item.taught.label : item.state === "failed" ? "cannot be read" : item.state === "looking" ? "looking …"
    : item.state === "unlabelled" ? "no labels yet" : proposed ?? "none of these";
  name.textContent = name.title = words;
  value.textContent = item.taught ? "✓ taught" : item.answer ? percent(item.answer.probability) : "";
  box.hidden = box.disabled = Boolean(item.taught) || !proposed;
  box.checked = Boolean(item.ticked);
  box.setAttribute("aria-label", `${words} is right for ${item.name || `picture ${item.number}`}`);
  open.setAttribute("aria-label", `Open ${item.name || `picture ${item.number}`}: ${words}`);
  open.title = item.state === "failed" ? item.error : item.name;
  element.dataset.state = item.taught ? "taught" : item.state;
  element.classList.toggle("open", item === onDesk());
}

export async function teachAll() {
  if (busy) return;
  busy = true;
  const todo = right(), done = [];
  let event = null, steps = 0, trouble = null;
  for (const item of todo) {
    say(`Learning ${done.length + 1} of ${todo.length} …`);
    try {
      const told = await teach(item, proposal(item));
      if (told.event !== null) { event = told.event; steps++; } // else it was known already
      done.push({ item, told });
    } catch (error) {
      trouble = error;
      if (error.status === 422) continue; // this one alone
      break;
    } finally {
      show();
    }
  }
  busy = false;
  const revert = () => done.forEach(({ item, told }) => { told.revert(); item.ticked = true; });
  if (done.length) did(`Learned ${count(done.length, "picture")} as ticked.`, { steps, event, revert });
  if (trouble) failedAfter(done.length, todo.length, "learned", trouble);
  show();
  showDesk();
  await again((item) => !item.taught); // who was taught some may answer the rest otherwise
}

async function again(which) {
  await look(items.filter(which), (some) => { if (some.includes(onDesk())) showDesk(); show(); });
  if (telling()) await reorder();
}

// There was nothing to choose from, and now there is.
export const labelsChanged = () => { if (items.some((item) => item.state === "unlabelled")) again((item) => item.state === "unlabelled"); };

// The next picture that nobody has taught yet, for who works through them by keys.
export function next() {
  const order = inOrder();
  const waits = (item) => !item.taught && item.state !== "failed" && item !== onDesk();
  const after = order.slice(order.indexOf(onDesk()) + 1).find(waits) ?? order.find(waits);
  if (after) { put(after); show(); }
}
