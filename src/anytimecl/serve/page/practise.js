// Consolidation: practising on everything stored, with progress.

import { $ } from "./dom.js";
import { lookAgain } from "./desk.js";
import { refreshSoon } from "./memory.js";
import { tell } from "./service.js";

let seen = null;
const running = (job) => Boolean(job) && (job.state === "queued" || job.state === "running");

export function showJob(job, examples = 1) {
  $("consolidate").disabled = !examples || running(job);
  if (!job) return;
  const bar = $("progress");
  bar.hidden = !running(job);
  bar.max = job.steps || 1;
  if (job.steps) bar.value = job.done; else bar.removeAttribute("value");
  const words = {
    queued: "waiting for its turn", running: job.steps ? `step ${job.done} of ${job.steps}` : "beginning",
    done: "done", failed: job.error, cancelled: "cancelled",
  };
  $("job").textContent = words[job.state];
  if (job.state === "done" && seen !== job.id) {
    if (seen !== null || bar.dataset.began) { lookAgain(); refreshSoon(); }
    seen = job.id;
  }
  if (running(job)) bar.dataset.began = "yes";
}

export async function practise() {
  $("consolidate").disabled = true;
  try {
    showJob(await tell("POST", "consolidate", { epochs: 3 }));
  } catch (error) {
    $("job").textContent = error.message;
    $("consolidate").disabled = false;
  }
}
