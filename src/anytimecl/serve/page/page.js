// The page: one image at a time, its answer, and one click to teach. No library, nothing from elsewhere.

const $ = (id) => document.getElementById(id);
const MODELS = ["blended", "tuned", "original"];
const state = { image: null, url: null, labels: [], before: {}, busy: false, asked: 0, stats: null };
const kept = load("anytimecl.labels", { own: [], hidden: [] });
const pictures = new Map(); // example -> object URL

// --- the service ---------------------------------------------------------------------------------

class Refused extends Error {
  constructor(status, detail) { super(detail); this.status = status; }
}

async function call(method, path, body, headers = {}) {
  const token = sessionStorage.getItem("anytimecl.token");
  const sent = { ...headers, ...(token ? { Authorization: `Bearer ${token}` } : {}) };
  for (let attempt = 0; ; attempt++) {
    let response;
    try {
      response = await fetch(path, { method, body, headers: sent, cache: "no-store" });
    } catch {
      throw new Refused(0, "The service does not answer.");
    }
    if (response.ok) return response;
    if (response.status === 429 && attempt < 8) { // nothing was taken on: ask again
      await sleep(1000 * Math.min(10, Number(response.headers.get("Retry-After")) || 1));
      continue;
    }
    const told = await response.json().catch(() => ({}));
    if (response.status === 401) askForToken();
    throw new Refused(response.status, told.detail || `The service answered ${response.status}.`);
  }
}

const ask = async (method, path, body, headers) => (await call(method, path, body, headers)).json();
const sleep = (ms) => new Promise((done) => setTimeout(done, ms));

async function listen() { // EventSource cannot send a token, so the stream is read by hand
  for (let pause = 500; ; pause = Math.min(10000, pause * 2)) {
    try {
      const response = await call("GET", "v1/events");
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      connected(true);
      pause = 500;
      refresh();
      for (let text = ""; ;) {
        const { value, done } = await reader.read();
        if (done) break;
        const parts = (text + value).split("\n\n");
        text = parts.pop();
        parts.forEach(hear);
      }
    } catch (error) {
      if (error.status === 401) { connected(false, "needs a token"); await tokenGiven(); continue; }
    }
    connected(false);
    await sleep(pause);
  }
}

function hear(part) {
  const kind = /^event: (.*)$/m.exec(part)?.[1];
  const data = /^data: (.*)$/m.exec(part)?.[1];
  if (!kind) return;
  if (kind === "job") showJob(JSON.parse(data));
  else soon();
}

let timer = 0;
function soon() { clearTimeout(timer); timer = setTimeout(refresh, 120); }

function connected(yes, text) {
  $("link").textContent = text || (yes ? "live" : "not connected");
  $("link").className = `pill ${yes ? "live" : "off"}`;
}

// --- labels --------------------------------------------------------------------------------------

function labels() {
  const learned = state.labels.map((item) => item.label);
  return [...new Set([...learned, ...kept.own])].filter((label) => !kept.hidden.includes(label));
}

function addLabel(text) {
  const label = text.normalize("NFC").replace(/\s+/g, " ").trim();
  if (!label) return;
  kept.hidden = kept.hidden.filter((other) => other !== label);
  if (!kept.own.includes(label)) kept.own.push(label);
}

function removeLabel(label) {
  kept.own = kept.own.filter((other) => other !== label);
  if (!kept.hidden.includes(label)) kept.hidden.push(label);
}

function labelsChanged() {
  try { localStorage.setItem("anytimecl.labels", JSON.stringify(kept)); } catch { /* private mode */ }
  showLabels();
  predict();
}

function showLabels() {
  $("chips").replaceChildren(...labels().map((label) => {
    const remove = make("button", { type: "button", textContent: "×", title: `Do not choose ${label}` });
    remove.setAttribute("aria-label", `Remove ${label}`);
    remove.onclick = () => { removeLabel(label); labelsChanged(); $("add-text").focus(); };
    return make("li", {}, make("span", { textContent: label }), remove);
  }));
  $("known").replaceChildren(...labels().map((label) => make("option", { value: label })));
}

// --- the image and its answer ----------------------------------------------------------------------

function show(image) {
  if (!image) return;
  if (!image.type.startsWith("image/")) return tell("This is not an image.", true);
  if (state.url) URL.revokeObjectURL(state.url);
  Object.assign(state, { image, url: URL.createObjectURL(image), before: {} });
  $("preview").src = state.url;
  $("preview").alt = image.name ? `The image ${image.name}` : "The image";
  $("preview").hidden = false;
  $("drop-hint").hidden = true;
  tell("");
  predict();
}

async function predict() {
  if (!state.image) return;
  const chosen = labels();
  if (!chosen.length) {
    $("bars").replaceChildren();
    $("verdict").replaceChildren(make("p", { className: "quiet", textContent: "Add a label to choose from, or teach one below." }));
    $("teach").hidden = false;
    return;
  }
  const turn = ++state.asked;
  const form = new FormData();
  form.append("images", state.image, "image");
  const learned = new Set(state.labels.map((item) => item.label));
  if (chosen.length !== learned.size || !chosen.every((label) => learned.has(label))) {
    chosen.forEach((label) => form.append("labels", label)); // else it chooses among all by itself
  }
  form.append("top_k", "9");
  try {
    const told = await ask("POST", "v1/predict", form);
    if (turn === state.asked) showAnswer(told.predictions[0]);
  } catch (error) {
    if (turn === state.asked) tell(error.message, true);
  }
}

function showAnswer(answer) {
  const learned = answer.scores.some((score) => score.tuned !== null);
  $("verdict").replaceChildren(
    make("p", { className: "label", textContent: answer.label }),
    make("p", { className: "why", textContent: why(answer, learned) }),
  );
  const focused = document.activeElement?.dataset.label; // who works with the keyboard stays where she was
  $("bars").replaceChildren(...answer.scores.map((score, rank) => bar(score, rank)));
  if (focused) $("bars").querySelector(`[data-label="${CSS.escape(focused)}"]`)?.focus();
  state.before = Object.fromEntries(answer.scores.map((score) => [score.label, score.blended]));
  for (const id of ["legend", "teach", "keys"]) $(id).hidden = false;
}

function why(answer, learned) {
  const who = answer.spoke === "tuned" ? "mostly from what it was taught" : "mostly from what it knew at first";
  const none = learned ? `; ${percent(answer.none_of_these)} for none of these` : "; nothing is learned about these labels yet";
  return `${percent(answer.probability)}, ${who}${none}`;
}

function bar(score, rank) {
  const before = state.before[score.label];
  const change = before === undefined ? 0 : score.blended - before;
  const value = make("span", { className: "value", textContent: percent(score.blended) });
  if (Math.abs(change) >= 0.0005) {
    const way = change > 0 ? "rise" : "fall";
    value.append(make("span", { className: way, textContent: `${change > 0 ? "▲" : "▼"} ${percent(Math.abs(change))}` }));
  }
  const tracks = make("span", { className: "tracks" }, ...MODELS.map((model) => track(model, score[model])));
  const button = make("button", { type: "button", title: `Teach: this is ${score.label}` },
    make("span", { className: "name", textContent: score.label }), value, tracks);
  button.dataset.label = score.label;
  button.dataset.blended = score.blended;
  const said = MODELS.filter((model) => score[model] !== null).map((model) => `${model} ${percent(score[model])}`);
  button.setAttribute("aria-label", `${score.label}: ${said.join(", ")}. Teach this label. Key ${rank + 1}.`);
  button.onclick = () => teach(score.label);
  return make("li", {}, button);
}

function track(model, share) {
  const fill = make("i", { className: model });
  fill.style.width = `${100 * (share ?? 0)}%`;
  return make("span", { className: "track", title: `${model}: ${share === null ? "not yet" : percent(share)}` }, fill);
}

async function teach(label) {
  if (!state.image || state.busy || !label.trim()) return;
  state.busy = true;
  const form = new FormData();
  form.append("image", state.image, "image");
  form.append("label", label);
  // It is told apart from what was on the screen; otherwise only from labels that were taught before.
  if (labels().length <= 500) labels().forEach((other) => form.append("candidates", other));
  tell("Learning …");
  try {
    const told = await ask("POST", "v1/learn", form, { "Idempotency-Key": key() });
    addLabel(told.label);
    tell(`Learned as “${told.label}”. ${told.before.blended ? "It had been right." : "It had been wrong."}`);
    $("teach-text").value = "";
    labelsChanged();
    soon();
  } catch (error) {
    tell(error.message, true);
  } finally {
    state.busy = false;
  }
}

// --- what is known -----------------------------------------------------------------------------------

async function refresh() {
  try {
    const [stats, recent] = await Promise.all([ask("GET", "v1/stats"), ask("GET", "v1/examples?limit=24")]);
    const first = state.stats === null;
    const changed = JSON.stringify(state.labels.map((item) => item.label)) !== JSON.stringify(stats.labels.map((item) => item.label));
    state.stats = stats;
    state.labels = stats.labels;
    $("facts").textContent = `${stats.examples.toLocaleString()} examples · ${stats.labels.length.toLocaleString()} labels · ${stats.model}`;
    if (stats.keeps_images) $("stored").textContent = "This memory stores the images themselves.";
    if (first || changed) { showLabels(); if (changed && !first) predict(); }
    showChart(stats);
    showCounts(stats.labels);
    showGallery(recent.examples);
    if (stats.job) showJob(stats.job);
    $("consolidate").disabled = !stats.examples || running(stats.job);
  } catch (error) {
    if (error.status && error.status !== 401) tell(error.message, true);
  }
}

function averages(outcomes, window) { // running means of the three models, in per cent
  const sums = [0, 0, 0];
  return outcomes.map((one, at) => {
    const gone = at >= window ? outcomes[at - window] : null;
    return sums.map((_, model) => {
      sums[model] += one[model + 1] - (gone ? gone[model + 1] : 0);
      return 100 * sums[model] / Math.min(at + 1, window);
    });
  });
}

function showChart({ outcomes, window }) {
  const lines = averages(outcomes, window);
  const [width, height, left, top, bottom] = [460, 170, 44, 10, 20];
  const x = (at) => left + (width - left - 8) * (lines.length < 2 ? 0.5 : at / (lines.length - 1));
  const y = (value) => top + (height - top - bottom) * (1 - value / 100);
  const last = lines.at(-1);
  const svg = draw("svg", { viewBox: `0 0 ${width} ${height}`, role: "img" });
  svg.setAttribute("aria-label", last ? `Right before learning, of the last ${Math.min(window, lines.length)}: ${MODELS.map((m, i) => `${m} ${Math.round(last[i])} %`).join(", ")}` : "Nothing is learned yet");
  svg.dataset.lessons = lines.length;
  for (const value of [0, 50, 100]) {
    svg.append(draw("line", { class: "grid", x1: left, x2: width - 8, y1: y(value), y2: y(value) }));
    svg.append(draw("text", { x: left - 6, y: y(value) + 4, "text-anchor": "end" }, `${value} %`));
  }
  [2, 1, 0].forEach((model) => { // blended on top
    const points = lines.map((line, at) => `${x(at).toFixed(1)},${y(line[model]).toFixed(1)}`);
    svg.append(draw("polyline", { class: MODELS[model], points: points.join(" ") }));
    if (last) svg.append(draw("circle", { class: MODELS[model], cx: x(lines.length - 1), cy: y(last[model]), r: 3.5 }));
  });
  svg.append(draw("text", { x: left, y: height - 4 }, lines.length ? `the last ${lines.length} lessons, mean over ${Math.min(window, lines.length)}` : "teach one, and the chart begins"));
  $("chart").replaceChildren(svg);
  $("accuracy").replaceChildren(...MODELS.map((model, i) => make("span", {}, make("i", { className: `key ${model}` }), `${model} ${last ? `${Math.round(last[i])} %` : "–"}`)));
}

function showCounts(items) {
  const most = Math.max(1, ...items.map((item) => item.examples));
  const sorted = [...items].sort((a, b) => b.examples - a.examples).slice(0, 100);
  $("counts").replaceChildren(...sorted.map((item) => {
    const forget = make("button", { type: "button", textContent: "Forget", title: `Forget every example of ${item.label}` });
    forget.onclick = () => confirmForget(`Forget all ${item.examples} examples of “${item.label}” for good?`, `v1/labels/${encodeURIComponent(item.label)}`, () => removeLabel(item.label));
    const row = make("li", {}, make("span", { className: "name", textContent: item.label, title: item.label }),
      track("blended", item.examples / most), make("span", { className: "number", textContent: item.examples.toLocaleString() }), forget);
    row.querySelector(".track").title = `tuned ${percent(item.tuned)}, original ${percent(item.original)}, weight of tuned ${percent(item.weight)}`;
    return row;
  }));
  if (!sorted.length) $("counts").replaceChildren(make("li", { className: "quiet", textContent: "None yet" }));
}

function showGallery(examples) {
  const shown = new Set(examples.map((item) => item.id));
  for (const [id, url] of pictures) if (!shown.has(id)) { URL.revokeObjectURL(url); pictures.delete(id); }
  $("gallery").replaceChildren(...examples.map((item) => {
    const forget = make("button", { type: "button", textContent: "Forget", title: `Forget example ${item.id}` });
    forget.setAttribute("aria-label", `Forget example ${item.id}, ${item.label}`);
    forget.onclick = () => confirmForget(`Forget example ${item.id} of “${item.label}” for good?`, `v1/examples/${item.id}`);
    const blank = make("span", { className: "blank", textContent: "no picture kept" });
    const entry = make("li", {}, blank, make("div", { className: "foot" }, make("span", { className: "name", textContent: item.label, title: `${item.label}, example ${item.id}` }), forget));
    entry.dataset.id = item.id;
    if (item.thumbnail) picture(item).then((url) => url && blank.replaceWith(make("img", { src: url, alt: item.label })));
    return entry;
  }));
  if (!examples.length) $("gallery").replaceChildren(make("li", { className: "blank quiet", textContent: "None yet" }));
}

async function picture({ id }) {
  if (!pictures.has(id)) {
    try {
      const blob = await (await call("GET", `v1/examples/${id}/thumbnail`)).blob();
      pictures.set(id, URL.createObjectURL(blob));
    } catch { return null; }
  }
  return pictures.get(id);
}

function confirmForget(question, path, after = () => {}) {
  const dialog = $("confirm-dialog");
  $("confirm-text").textContent = question;
  $("confirm-no").onclick = () => dialog.close();
  $("confirm-yes").onclick = async () => {
    dialog.close();
    try { await ask("DELETE", path); after(); tell("Forgotten."); await refresh(); labelsChanged(); } catch (error) { tell(error.message, true); }
  };
  dialog.showModal();
}

// --- consolidation -----------------------------------------------------------------------------------

const running = (job) => Boolean(job) && (job.state === "queued" || job.state === "running");

function showJob(job) {
  const bar = $("progress");
  bar.hidden = !running(job);
  bar.max = job.steps || 1;
  if (job.steps) bar.value = job.done; else bar.removeAttribute("value");
  const words = { queued: "waiting for its turn", running: job.steps ? `step ${job.done} of ${job.steps}` : "beginning", done: "done", failed: job.error };
  $("job").textContent = words[job.state];
  $("consolidate").disabled = running(job);
  if (job.state === "done" && state.job !== job.id) { state.job = job.id; predict(); soon(); }
}

async function consolidate() {
  $("consolidate").disabled = true;
  try {
    showJob(await ask("POST", "v1/consolidate", JSON.stringify({ epochs: 3 }), { "Content-Type": "application/json" }));
  } catch (error) {
    $("job").textContent = error.message;
    $("consolidate").disabled = false;
  }
}

// --- camera and token ----------------------------------------------------------------------------------

async function openCamera() {
  if (!navigator.mediaDevices) return tell("The browser gives the camera to secure pages only: use https or localhost.", true);
  try {
    $("video").srcObject = await navigator.mediaDevices.getUserMedia({ video: { facingMode: "environment" } });
    $("camera-dialog").showModal();
  } catch {
    tell("The camera cannot be used.", true);
  }
}

function snap() {
  const video = $("video");
  const canvas = make("canvas", { width: video.videoWidth, height: video.videoHeight });
  canvas.getContext("2d").drawImage(video, 0, 0);
  canvas.toBlob((blob) => { $("camera-dialog").close(); show(blob); }, "image/jpeg", 0.92);
}

function closeCamera() {
  $("video").srcObject?.getTracks().forEach((one) => one.stop());
  $("video").srcObject = null;
}

let given = () => {};
const tokenGiven = () => new Promise((done) => { given = done; });
function askForToken() { $("token-open").hidden = false; if (!$("token-dialog").open) $("token-dialog").showModal(); }

// --- small things ----------------------------------------------------------------------------------------

function make(tag, properties, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

function draw(tag, attributes, text = "") {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (text) element.textContent = text;
  return element;
}

const percent = (share) => share > 0 && share < 0.0005 ? "< 0.1 %" : `${(100 * share).toFixed(share > 0 && share < 0.1 ? 1 : 0)} %`;
const key = () => [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");

function load(name, otherwise) {
  try { return { ...otherwise, ...JSON.parse(localStorage.getItem(name)) }; } catch { return otherwise; }
}

function tell(text, bad = false) {
  $("notice").textContent = text;
  $("notice").className = bad ? "notice bad" : "notice";
}

// --- wiring ------------------------------------------------------------------------------------------------

$("file").onchange = (event) => { show(event.target.files[0]); event.target.value = ""; };
$("choose").onclick = () => $("file").click();
$("drop").onkeydown = (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); $("file").click(); } };
addEventListener("dragover", (event) => { event.preventDefault(); $("drop").classList.add("over"); });
addEventListener("dragleave", () => $("drop").classList.remove("over"));
addEventListener("drop", (event) => { event.preventDefault(); $("drop").classList.remove("over"); show(event.dataTransfer.files[0]); });
addEventListener("paste", (event) => { const [file] = event.clipboardData.files; if (file) show(file); });
addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input") || document.querySelector("dialog[open]")) return;
  const button = /^[1-9]$/.test(event.key) && $("bars").querySelectorAll("button")[event.key - 1];
  if (button) button.click();
});
$("add").onsubmit = (event) => { event.preventDefault(); $("add-text").value.split(",").forEach(addLabel); $("add-text").value = ""; labelsChanged(); };
$("teach").onsubmit = (event) => { event.preventDefault(); teach($("teach-text").value); };
$("consolidate").onclick = consolidate;
$("camera").onclick = openCamera;
$("snap").onclick = snap;
$("camera-close").onclick = () => $("camera-dialog").close();
$("camera-dialog").onclose = closeCamera;
$("token-open").onclick = askForToken;
$("token-form").onsubmit = (event) => {
  event.preventDefault();
  sessionStorage.setItem("anytimecl.token", $("token-text").value.trim());
  $("token-text").value = "";
  $("token-dialog").close();
  given();
  refresh();
};
showLabels();
showChart({ outcomes: [], window: 1 });
listen();
