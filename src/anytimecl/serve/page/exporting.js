// Every label as a file: fetched with the token, then saved by the browser.

import { failed, say } from "./acts.js";
import { $, make } from "./dom.js";
import { call } from "./service.js";

async function save(format) {
  try {
    say("Collecting the labels …");
    const blob = await (await call("GET", `export?format=${format}`)).blob();
    const link = make("a", { href: URL.createObjectURL(blob), download: `labels.${format}` });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 60000);
    say(`Saved as labels.${format}.`);
  } catch (error) {
    failed(error);
  }
}

export function wire() {
  for (const format of ["csv", "jsonl"]) $(`export-${format}`).onclick = () => save(format);
}
