// Two views, named in the address: teaching, and what was taught.

import { $ } from "./dom.js";

const VIEWS = ["teach", "examples"];
export const shown = () => VIEWS.find((name) => location.hash === `#${name}`) ?? "teach";

export function wire(entered) {
  const show = () => {
    for (const name of VIEWS) {
      const here = name === shown();
      $(`${name}-view`).hidden = !here;
      if (here) $(`${name}-link`).setAttribute("aria-current", "page"); else $(`${name}-link`).removeAttribute("aria-current");
    }
    document.title = shown() === "teach" ? "Teach · anytimecl" : "Examples · anytimecl";
    entered(shown());
  };
  addEventListener("hashchange", show);
  show();
}
