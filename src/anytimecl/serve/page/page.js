// The page as a whole: who hears of what. No library, nothing from elsewhere.

import * as acts from "./acts.js";
import * as camera from "./camera.js";
import { showChart } from "./chart.js";
import * as chips from "./chips.js";
import * as desk from "./desk.js";
import { $, count } from "./dom.js";
import * as exporting from "./exporting.js";
import * as gallery from "./gallery.js";
import * as intake from "./intake.js";
import * as keys from "./keys.js";
import { listen } from "./live.js";
import { refresh, refreshSoon, whenKnown } from "./memory.js";
import { practise, showJob } from "./practise.js";
import * as queue from "./queue.js";
import * as shelf from "./shelf.js";
import * as token from "./token.js";
import * as views from "./views.js";
import * as welcome from "./welcome.js";

let known = null;

whenKnown(({ stats }) => {
  $("facts").textContent = `${count(stats.examples, "example")} · ${count(stats.labels.length, "label")} · ${stats.model}`;
  $("examples-count").textContent = stats.examples.toLocaleString();
  $("stored").textContent = stats.keeps_images
    ? "This memory stores the pictures themselves." : "The memory learns from features; of each picture it keeps at most a small thumbnail.";
  chips.showChips();
  desk.labelsChanged();
  queue.labelsChanged();
  queue.reorder();
  showChart(stats);
  shelf.showShelf();
  showJob(stats.job, stats.examples);
  welcome.showWelcome(stats.examples, desk.onDesk());
  known = stats;
});
desk.whenDeskChanges((item) => { queue.show(); welcome.showWelcome(known?.examples ?? 0, item); });
acts.whenUndone(() => { if (views.shown() === "examples") gallery.load(); });

for (const part of [camera, chips, exporting, gallery, intake, keys, shelf, token, welcome]) part.wire();
views.wire((name) => { if (name === "examples") gallery.load(); });
$("undo").onclick = acts.undo;
$("notice-close").onclick = () => acts.say("");
$("clear").onclick = () => { queue.clear(); $("choose").focus(); };
$("teach").onsubmit = (event) => { event.preventDefault(); desk.teachOpen($("teach-text").value); };
$("teach-all").onclick = queue.teachAll;
$("queue-order").onchange = queue.reorder;
$("queue-clear").onclick = () => { queue.clear(); $("choose").focus(); };
$("consolidate").onclick = practise;
$("skip").onclick = (event) => { event.preventDefault(); $("main").focus(); };

showChart({ outcomes: [], window: 1 });
desk.put(null);
listen({
  everything: refresh,
  event: ({ kind, data }) => {
    if (kind === "job") return showJob(data);
    refreshSoon();
    const labels = kind === "changed" && data.event === undefined; // to choose from: no example changed
    if (!labels && !acts.wasOwn() && views.shown() === "examples") gallery.changedElsewhere();
    return null;
  },
  token: token.tokenGiven,
});
