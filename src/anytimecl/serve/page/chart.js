// How often each model was right before it was told.

import { $, draw, make } from "./dom.js";

const MODELS = ["blended", "tuned", "original"];

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

export function showChart({ outcomes, window }) {
  const lines = averages(outcomes, window);
  const [width, height, left, top, bottom] = [460, 190, 44, 12, 24];
  const x = (at) => left + (width - left - 10) * (lines.length < 2 ? 0.5 : at / (lines.length - 1));
  const y = (value) => top + (height - top - bottom) * (1 - value / 100);
  const last = lines.at(-1);
  const span = Math.min(window, lines.length);
  const svg = draw("svg", { viewBox: `0 0 ${width} ${height}`, role: "img" });
  svg.setAttribute("aria-label", last
    ? `Right before it was told, of the last ${span}: ${MODELS.map((model, i) => `${model} ${Math.round(last[i])} %`).join(", ")}`
    : "Nothing is learned yet");
  svg.dataset.lessons = lines.length;
  for (const value of [0, 50, 100]) {
    svg.append(draw("line", { class: "grid", x1: left, x2: width - 10, y1: y(value), y2: y(value) }));
    svg.append(draw("text", { x: left - 8, y: y(value) + 4, "text-anchor": "end" }, `${value} %`));
  }
  [2, 1, 0].forEach((model) => { // blended on top
    const points = lines.map((line, at) => `${x(at).toFixed(1)},${y(line[model]).toFixed(1)}`);
    svg.append(draw("polyline", { class: MODELS[model], points: points.join(" ") }));
    if (last) svg.append(draw("circle", { class: MODELS[model], cx: x(lines.length - 1), cy: y(last[model]), r: 3.5 }));
  });
  svg.append(draw("text", { x: left, y: height - 5 }, lines.length
    ? `the last ${lines.length} lessons, each point the mean of ${span}` : "teach one, and the chart begins"));
  $("chart").replaceChildren(svg);
  $("accuracy").replaceChildren(...MODELS.map((model, i) =>
    make("span", {}, make("i", { className: `key ${model}` }), `${model} ${last ? `${Math.round(last[i])} %` : "–"}`)));
}
