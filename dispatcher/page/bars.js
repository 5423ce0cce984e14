// Scores as bars.

import { el } from "./api.js";

let groups = 0; // of radio buttons

const sum = (numbers) => numbers.reduce((total, one) => total + one, 0);
const percent = (share) => `${(100 * share).toFixed(share < 0.1 ? 2 : 1)} %`;

// What share of all each score is, as softmax has it; nothing where one is not finite.
function softmax(scores) {
  if (scores.includes(null)) return undefined;
  const powers = scores.map((score) => Math.exp(score - Math.max(...scores))), total = sum(powers);
  return powers.map((power) => power / total);
}

// Rows { label, score }, best first. `chosen` makes them a choice, and is called with the place of the chosen one.
// `most` of them are shown, where they are all classes; else all.
export function barsView(rows, { title, chosen, most } = {}) {
  const scores = rows.map(({ score }) => score ?? 0);
  const parts = scores.every((score) => score >= 0 && score <= 1);
  const logits = !parts && most !== undefined;
  const shares = logits ? softmax(rows.map(({ score }) => score)) : parts && sum(scores) < 1.001 ? scores : undefined;
  const longest = parts ? 1 : Math.max(...scores, 1e-9); // the best has the longest bar
  const name = `bars-${++groups}`;
  const bars = el("ol", { class: "bars", "aria-label": title ?? "Best first" }, rows.slice(0, most).map(({ label, score }, at) => {
    const share = shares ? shares[at] : (score ?? 0) / longest;
    const cells = [
      el("span", { class: "label" }, label),
      el("span", { class: "score" }, score === null ? "not finite" : shares ? percent(share) : score.toFixed(3)),
      el("span", { class: "track" }, el("i", { style: { width: `${Math.max(0, 100 * share)}%` } })),
    ];
    return el("li", {}, chosen
      ? el("label", {}, el("input", { type: "radio", name, checked: at === 0, onchange: () => chosen(at) }), cells)
      : cells);
  }));
  return logits && shares
    ? el("div", {}, bars, el("p", { class: "note" }, `Per cent by softmax over ${rows.length} classes. The model's own score of the first is ${scores[0].toFixed(3)}.`)) : bars;
}
