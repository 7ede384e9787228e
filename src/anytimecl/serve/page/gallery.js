// Everything that was taught: found, looked through, corrected, taken back.

import { did, failed, failedAfter } from "./acts.js";
import { confirm } from "./confirm.js";
import { onDesk } from "./desk.js";
import { $, clean, count, keyed, make, percent } from "./dom.js";
import { ask, call, tell } from "./service.js";
import { when, whoSpoke } from "./words.js";

const PAGE = 48;
export const DRAGGED = "application/x-anytimecl-examples";
const asked = { label: "", source: "", suspicious: false, like: null };
let found = [], next = null, total = 0, turn = 0;
const selected = new Set();
const thumbnails = new Map(); // example -> object URL, or null

export const filter = () => asked.label;

export function search(changes) {
  Object.assign(asked, changes);
  selected.clear();
  return load();
}

// From the beginning, or one page more.
export async function load(more = false) {
  const mine = ++turn;
  $("gallery").setAttribute("aria-busy", "true");
  try {
    const told = await query(more ? next : null);
    if (mine !== turn) return;
    found = more ? [...found, ...told.examples] : told.examples;
    ({ next, total } = told);
    $("stale").hidden = true;
  } catch (error) {
    if (mine === turn) failed(error);
  }
  if (mine === turn) { $("gallery").removeAttribute("aria-busy"); show(); }
}

function query(after) {
  if (asked.like) {
    const form = new FormData();
    form.append("image", asked.like.file, "image");
    if (asked.label) form.append("label", asked.label);
    form.append("limit", String(PAGE));
    if (after) form.append("after", after);
    return ask("POST", "examples/like", form);
  }
  const words = new URLSearchParams({ limit: String(PAGE) });
  if (asked.label) words.set("label", asked.label);
  if (asked.source) words.set("source", asked.source);
  if (asked.suspicious) words.set("suspicious", "true");
  if (after) words.set("after", after);
  return ask("GET", `examples?${words}`);
}

export function show() {
  keyed($("gallery"), found, (item) => item.id, tile, update);
  const what = asked.like ? "most alike first" : asked.suspicious ? "most doubtful first" : "newest first";
  $("gallery-facts").textContent = found.length
    ? `${found.length.toLocaleString()} of ${count(total, "example")}${asked.label ? ` of “${asked.label}”` : ""}, ${what}` : "";
  $("gallery-empty").hidden = found.length > 0;
  $("gallery-empty").textContent = asked.label || asked.source || asked.like || asked.suspicious
    ? "No example fits." : "Nothing is taught yet. What you teach appears here.";
  $("more").hidden = !next;
  $("chosen").hidden = !selected.size;
  $("chosen-count").textContent = `${selected.size} chosen`;
  $("like-clear").hidden = !asked.like;
  $("like").disabled = !onDesk() || onDesk().state === "failed";
}

function tile(item) {
  const box = make("input", { type: "checkbox" });
  box.onchange = () => { if (box.checked) selected.add(item.id); else selected.delete(item.id); show(); };
  const frame = make("label", { className: "frame" }, make("span", { className: "blank", textContent: "no picture kept" }), box);
  const name = make("button", { type: "button", className: "name" });
  name.onclick = () => details(found.find((one) => one.id === item.id) ?? item);
  const forget = make("button", { type: "button", className: "forget", textContent: "×", title: "Forget this example" });
  forget.onclick = () => forgetSome([item.id]);
  const element = make("li", { draggable: true }, frame, make("div", { className: "foot" }, name, forget));
  element.dataset.id = item.id;
  element.ondragstart = (event) => {
    const ids = selected.has(item.id) ? [...selected] : [item.id];
    event.dataTransfer.setData(DRAGGED, JSON.stringify(ids));
    event.dataTransfer.effectAllowed = "move";
  };
  if (item.thumbnail) {
    thumbnail(item.id).then((url) => url && frame.firstChild.replaceWith(make("img", { src: url, alt: "", draggable: false })));
  }
  return element;
}

function update(element, item) {
  const [frame, foot] = element.children;
  const [name, forget] = foot.children;
  const box = frame.querySelector("input");
  box.checked = selected.has(item.id);
  box.setAttribute("aria-label", `Choose example ${item.id}, ${item.label}`);
  element.classList.toggle("chosen", box.checked);
  name.textContent = item.label;
  name.title = [item.label, item.source, when(item.time)].filter(Boolean).join("\n");
  name.setAttribute("aria-label", `${item.label}, example ${item.id}: look closer or relabel`);
  forget.setAttribute("aria-label", `Forget example ${item.id}, ${item.label}`);
  element.classList.toggle("doubtful", asked.suspicious && item.suspicion > 0.5);
}

export async function thumbnail(id) {
  if (!thumbnails.has(id)) {
    try {
      thumbnails.set(id, URL.createObjectURL(await (await call("GET", `examples/${id}/thumbnail`)).blob()));
    } catch { return null; }
  }
  return thumbnails.get(id);
}

// --- correcting ------------------------------------------------------------------------------------

export async function relabel(ids, text) {
  const label = clean(text);
  const todo = ids.filter((id) => found.find((item) => item.id === id)?.label !== label);
  if (!label || !todo.length) return;
  const before = new Map(found.map((item) => [item.id, item.label]));
  let event = null, done = 0, trouble = null;
  try {
    for (const id of todo) {
      ({ event } = await tell("POST", `examples/${id}/label`, { label }));
      done++;
      const item = found.find((one) => one.id === id);
      if (item) item.label = label; // it keeps its place, whatever is filtered by
      show();
    }
  } catch (error) {
    if (!done) return failed(error);
    trouble = error;
  }
  selected.clear();
  const revert = () => { found.forEach((item) => { item.label = before.get(item.id) ?? item.label; }); show(); };
  const what = done === 1 ? "Relabelled as" : `${done} relabelled as`;
  did(`${what} “${label}”.`, { steps: done, event, revert });
  if (trouble) failedAfter(done, todo.length, "relabelled", trouble);
  show();
}

async function forgetSome(ids) {
  const words = ids.length === 1 ? `Forget example ${ids[0]}?` : `Forget these ${ids.length} examples?`;
  if (!await confirm(`${words} What was learned from it wears off.`, "Forget")) return;
  const gone = found.filter((item) => ids.includes(item.id));
  const at = found.findIndex((item) => ids.includes(item.id));
  const focused = document.activeElement === document.body || Boolean(document.activeElement?.closest("#gallery"));
  let done = 0, trouble = null;
  try {
    for (const id of ids) {
      await ask("DELETE", `examples/${id}`);
      done++;
      found = found.filter((item) => item.id !== id);
      selected.delete(id);
      total--;
    }
  } catch (error) {
    trouble = error;
  }
  if (done) did(`Forgot ${count(done, "example")}.`, { steps: done });
  if (trouble) failedAfter(done, ids.length, "forgotten", trouble);
  show();
  const place = $("gallery").children[Math.min(Math.max(at, 0), found.length - 1)];
  if (focused && gone.length && place) place.querySelector(".forget").focus(); // where the one that went had been
}

// One example, closer: what each expert says of it now.
async function details(item) {
  $("detail-title").textContent = item.label;
  $("detail-facts").textContent = [`example ${item.id}`, item.source, when(item.time)].filter(Boolean).join(" · ");
  const url = item.thumbnail ? await thumbnail(item.id) : null;
  $("detail-picture").hidden = !url;
  if (url) $("detail-picture").src = url;
  $("detail-picture").alt = item.label;
  $("detail-says").replaceChildren(...Object.entries(item.says ?? {}).map(([expert, said]) => make("li", {}, opinion(expert, said, item.label))));
  const others = [...new Set(Object.values(item.says ?? {}).map((said) => said.label))].filter((label) => label !== item.label);
  $("detail-proposed").replaceChildren(...others.map((label) => {
    const button = make("button", { type: "button", textContent: `It is “${label}”` });
    button.onclick = () => { $("detail").close(); relabel([item.id], label); };
    return button;
  }));
  $("detail-doubt").hidden = item.suspicion === null || item.suspicion === undefined;
  $("detail-doubt").textContent = `Doubt ${percent(item.suspicion ?? 0)}: how little the others of its kind support this label, with this example left out.`;
  $("detail-text").value = "";
  $("detail-form").onsubmit = (event) => {
    event.preventDefault();
    const label = $("detail-text").value;
    $("detail").close();
    relabel([item.id], label);
  };
  $("detail").showModal();
  $("detail-text").focus();
}

function opinion(expert, said, label) {
  const agrees = said.label === label;
  const words = `${agrees ? "✓" : "≠"} ${whoSpoke(expert)}: ${said.label}, ${percent(said.probability)}`;
  return make("span", { className: agrees ? "agrees" : "differs", textContent: words });
}

export function wire() {
  $("more").onclick = async () => {
    const first = found.length;
    await load(true);
    $("gallery").children[first]?.querySelector("button").focus(); // reading goes on where it stopped
  };
  $("stale").onclick = () => load();
  $("suspicious").onchange = () => search({ suspicious: $("suspicious").checked, like: null });
  $("search").onsubmit = (event) => { event.preventDefault(); search({ source: $("search-text").value.trim(), like: null }); };
  $("search-text").oninput = () => { if (!$("search-text").value && asked.source) search({ source: "" }); };
  $("like").onclick = () => search({ like: onDesk() });
  $("like-clear").onclick = () => { search({ like: null }); $("like").focus(); };
  $("chosen").onsubmit = (event) => { event.preventDefault(); relabel([...selected], $("chosen-text").value); $("chosen-text").value = ""; };
  $("chosen-forget").onclick = () => forgetSome([...selected]);
  $("chosen-none").onclick = () => { selected.clear(); show(); };
  $("detail-close").onclick = () => $("detail").close();
}

// Others changed something: tiles do not move by themselves.
export const changedElsewhere = () => { $("stale").hidden = false; };
