// Scores as bars.

import { el } from "./api.js";

let groups = 0; // of radio buttons

// Rows { label, score }, best first. `chosen` makes them a choice, and is called with the place of the chosen one.
export function barsView(rows, { title, chosen } = {}) {
  const scores = rows.map(({ score }) => score ?? 0);
  const parts = scores.every((score) => score >= 0 && score <= 1); // else the longest bar is the best
  const shares = parts && scores.reduce((sum, one) => sum + one, 0) < 1.001; // of probabilities
  const most = parts ? 1 : Math.max(...scores, 1e-9);
  const name = `bars-${++groups}`;
  return el("ol", { class: "bars", "aria-label": title ?? "Best first" }, rows.map(({ label, score }, at) => {
    const cells = [
      el("span", { class: "label" }, label),
      el("span", { class: "score" }, score === null ? "not finite" : shares ? `${(100 * score).toFixed(score < 0.1 ? 2 : 1)} %` : score.toFixed(3)),
      el("span", { class: "track" }, el("i", { style: { width: `${Math.max(0, 100 * (score ?? 0) / most)}%` } })),
    ];
    return el("li", {}, chosen
      ? el("label", {}, el("input", { type: "radio", name, checked: at === 0, onchange: () => chosen(at) }), cells)
      : cells);
  }));
}
