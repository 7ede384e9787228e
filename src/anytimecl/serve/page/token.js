// The access token, kept until this tab is closed.

import { $ } from "./dom.js";
import { useToken, whenDenied } from "./service.js";

let given = () => {};
export const tokenGiven = () => new Promise((done) => { given = done; });

function open() {
  $("token-open").hidden = false;
  if (!$("token-dialog").open) $("token-dialog").showModal();
}

export function wire() {
  whenDenied(open);
  $("token-open").onclick = open;
  $("token-form").onsubmit = (event) => {
    event.preventDefault();
    useToken($("token-text").value.trim());
    $("token-text").value = "";
    $("token-dialog").close();
    given();
  };
}
