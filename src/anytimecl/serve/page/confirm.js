// A question before something that is not easily taken back.

import { $ } from "./dom.js";

export function confirm(question, yes) {
  const dialog = $("confirm-dialog");
  $("confirm-text").textContent = question;
  $("confirm-yes").textContent = yes;
  return new Promise((done) => {
    const end = (answer) => { dialog.onclose = null; dialog.close(); done(answer); };
    $("confirm-yes").onclick = () => end(true);
    $("confirm-no").onclick = () => end(false);
    dialog.onclose = () => done(false); // Escape
    dialog.showModal();
    $("confirm-no").focus();
  });
}
