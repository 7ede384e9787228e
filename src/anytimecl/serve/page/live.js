// Hearing of what happens elsewhere. A browser has six connections to a host for all its tabs, so none of them keeps
// one: each asks every second what happened, and a tab that nobody sees every ten.

import { $ } from "./dom.js";
import { ask } from "./service.js";

export async function listen({ everything, event, token }) {
  for (let last = -1; ;) {
    try {
      const told = await ask("GET", `changes?after=${Math.max(0, last)}`);
      if (last < 0 || told.missed) await everything();
      else told.events.forEach(event);
      last = told.last;
      connected("live", "live");
    } catch (error) {
      if (error.status === 401) {
        connected("off", "needs a token");
        await token();
        continue;
      }
      connected("off", "not connected");
      last = -1; // it may be another process when it is back
    }
    await seenOrAfter(document.hidden ? 10000 : 1000);
  }
}

function seenOrAfter(ms) { // whoever comes back to a tab does not wait for it
  return new Promise((done) => {
    const end = () => { clearTimeout(timer); document.removeEventListener("visibilitychange", end); done(); };
    const timer = setTimeout(end, ms);
    document.addEventListener("visibilitychange", end);
  });
}

function connected(state, words) {
  if ($("link").textContent === words) return; // a live region: say it when it changes
  $("link").textContent = words;
  $("link").className = `pill ${state}`;
}
