// Boxes over a picture, and a slider that hides the less sure ones without asking again.

import { el } from "./api.js";

const MOST = 300; // boxes that are drawn
// Each is dark enough for white letters (4.5:1).
const COLOURS = ["#0b5cad", "#b3261e", "#1b6e3c", "#7a3fb0", "#8a4b00", "#00696f", "#a0246b", "#4a5568"];

export const areBoxes = (result) => Array.isArray(result) && result.length > 0
  && result.every((one) => typeof one?.box?.x1 === "number" && typeof one.box.y2 === "number");

function colourOf(index) {
  return COLOURS[Math.abs(Math.trunc(Number(index) || 0)) % COLOURS.length];
}

// Returns the view and what it shows: { element, threshold() }; `moved` is called by the slider.
export function boxesView(objects, { picture, sure, low, moved }) {
  let threshold = Math.max(sure ?? low ?? 0, low ?? 0);
  const image = el("img", { src: picture.preview, alt: "The picture, with the objects that were found" });
  const layer = el("div", { class: "layer", "aria-hidden": "true" });
  const stage = el("div", { class: "stage" }, image, layer);
  const list = el("ul", { class: "found", tabindex: "0", "aria-label": "Objects, surest first" });
  const count = el("output", { class: "count" });
  const slider = el("input", { type: "range", "aria-label": "Threshold", min: String(low ?? 0), max: "1", step: "0.01", oninput: () => {
    threshold = Number(slider.value);
    draw();
    moved?.();
  } });
  slider.value = String(threshold);

  function draw() {
    const { naturalWidth: width, naturalHeight: height } = image;
    const shown = objects.filter((one) => one.score >= threshold);
    count.textContent = `${shown.length} of ${objects.length}, from ${threshold.toFixed(2)} on`;
    slider.setAttribute("aria-valuetext", `${threshold.toFixed(2)}: ${shown.length} objects`);
    list.replaceChildren(...shown.slice(0, MOST).map((one, at) => row(one, at)));
    if (shown.length > MOST) list.append(el("li", {}, `and ${shown.length - MOST} more`));
    if (!shown.length) list.append(el("li", { class: "note" }, "Nothing is that sure. Move the slider to the left."));
    if (!width) return;
    const percent = (part, whole) => `${Math.max(0, Math.min(100, 100 * part / whole))}%`;
    // The surest is drawn last, over the others.
    layer.replaceChildren(...shown.slice(0, MOST).map(({ box, label, score, index }, at) => {
      const colour = colourOf(index);
      return el("div", { class: box.y1 < height * 0.08 ? "box inside" : "box", "data-at": String(at), style: {
        left: percent(box.x1, width), top: percent(box.y1, height), borderColor: colour,
        width: percent(box.x2 - box.x1, width), height: percent(box.y2 - box.y1, height) } },
        el("span", { style: { backgroundColor: colour } }, `${label} ${score.toFixed(2)}`));
    }).reverse());
  }

  function row({ label, score, index }, at) {
    const point = (on) => layer.querySelector(`[data-at="${at}"]`)?.classList.toggle("pointed", on);
    return el("li", { onpointerenter: () => point(true), onpointerleave: () => point(false) },
      el("i", { class: "dot", style: { backgroundColor: colourOf(index) } }), el("span", { class: "label" }, label),
      el("span", { class: "score" }, score.toFixed(3)));
  }

  image.addEventListener("load", draw);
  draw();
  return {
    threshold: () => threshold,
    element: el("div", { class: "boxes" }, stage,
      el("label", { class: "slider" }, el("span", {}, "Threshold"), slider, count), list),
  };
}
