// How pictures come in: dropped (files or folders), chosen, pasted.

import { failed } from "./acts.js";
import { $ } from "./dom.js";
import { take } from "./queue.js";

const hasFiles = (event) => event.dataTransfer?.types.includes("Files");

export function wire() {
  for (const id of ["file", "folder"]) {
    $(id).onchange = (event) => { const files = [...event.target.files]; event.target.value = ""; if (files.length) take(files); };
  }
  $("choose").onclick = () => $("file").click();
  $("choose-folder").onclick = () => $("folder").click();
  addEventListener("dragover", (event) => { if (hasFiles(event)) { event.preventDefault(); $("drop").classList.add("over"); } });
  addEventListener("dragleave", () => $("drop").classList.remove("over"));
  addEventListener("drop", async (event) => {
    if (!hasFiles(event)) return;
    event.preventDefault();
    $("drop").classList.remove("over");
    location.hash = "#teach";
    let files;
    try {
      files = await dropped(event.dataTransfer);
    } catch {
      return failed({ message: "What was dropped cannot be read. Choose the pictures instead." });
    }
    return take(files);
  });
  addEventListener("paste", (event) => {
    const files = [...event.clipboardData.files];
    if (files.length) take(files);
  });
}

// What was dropped, folders and all: entries must be asked for before anything is awaited.
async function dropped(transfer) {
  const entries = [...transfer.items].map((item) => item.webkitGetAsEntry?.()).filter(Boolean);
  if (!entries.some((entry) => entry.isDirectory)) return [...transfer.files];
  return (await Promise.all(entries.map(inside))).flat();
}

async function inside(entry) {
  if (entry.isFile) return [await new Promise((done, fail) => entry.file(done, fail))];
  const reader = entry.createReader(), found = [];
  for (;;) { // a folder is read a hundred at a time
    const some = await new Promise((done, fail) => reader.readEntries(done, fail));
    if (!some.length) break;
    found.push(...some.filter((one) => !one.name.startsWith(".")));
  }
  return (await Promise.all(found.map(inside))).flat();
}
