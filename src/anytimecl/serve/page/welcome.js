// The first screen: what this is, three steps, and pictures to begin with.

import { failed } from "./acts.js";
import { change } from "./chips.js";
import { $, make } from "./dom.js";
import { labels } from "./memory.js";
import { take } from "./queue.js";

const SAMPLES = ["beach", "mountain", "forest", "house", "sailing boat", "night sky"];
const SIDE = 480; // pixels
let wanted = null; // as somebody asked; else while there is nothing

export function showWelcome(examples, open) {
  $("welcome").hidden = !(wanted ?? (examples === 0 && !open));
  $("welcome-open").setAttribute("aria-expanded", String(!$("welcome").hidden));
}

async function sample(name) {
  try {
    if (!labels().length) await change({ add: SAMPLES });
    wanted = null;
    take([await drawn(name)]);
  } catch {
    failed({ message: "The sample cannot be shown." });
  }
}

// Drawings, turned into what a camera would give.
async function drawn(name) {
  const image = make("img", { src: file(name) });
  await image.decode();
  const canvas = make("canvas", { width: SIDE, height: SIDE });
  canvas.getContext("2d").drawImage(image, 0, 0, SIDE, SIDE);
  const blob = await new Promise((done) => canvas.toBlob(done, "image/png"));
  return new File([blob], `${name}.png`, { type: "image/png" });
}

const file = (name) => `samples/${name.replace(" ", "-")}.svg`;

export function wire() {
  $("samples").replaceChildren(...SAMPLES.map((name) => {
    const button = make("button", { type: "button", title: `Show the ${name}` }, make("img", { src: file(name), alt: `Sample: ${name}`, width: 96, height: 96 }));
    button.onclick = () => sample(name);
    return make("li", {}, button);
  }));
  $("welcome-open").onclick = () => {
    wanted = $("welcome").hidden;
    $("welcome").hidden = !wanted;
    $("welcome-open").setAttribute("aria-expanded", String(wanted));
    location.hash = "#teach";
    if (wanted) $("welcome").scrollIntoView();
  };
}
