// An answer: its boxes over the picture, or its mask, its labels with their scores, and all of it as JSON.

import { el } from "./api.js";

const LONGEST = 20_000; // characters of JSON that are shown
const MOST = 300; // rows and boxes
// Each is dark enough for white letters (4.5:1).
const COLOURS = ["#0b5cad", "#b3261e", "#1b6e3c", "#7a3fb0", "#8a4b00", "#00696f", "#a0246b", "#4a5568"];

const colourOf = (index) => COLOURS[Math.abs(Math.trunc(index ?? 0)) % COLOURS.length];
// As the server paints a mask: class 0 is black, and neighbours have distant hues.
const paintOf = (index) => (index ? `hsl(${(index * 0.618034 % 1) * 360} 82% 47%)` : "#000");
const nameOf = (row) => row.label ?? row.token;
const scoreOf = ({ score, share }) => (share !== undefined ? `${(100 * share).toFixed(1)} %` : score === null ? "not finite" : score.toFixed(3));

const isPng = (value) => typeof value === "string" && value.startsWith("iVBORw0KGgo");
const shorten = (_, value) => (isPng(value) ? `${value.slice(0, 40)}…` : value);

const areRows = (result) => Array.isArray(result) && result.length > 0
  && result.every((one) => typeof nameOf(one ?? {}) === "string" && "score" in one);

export function showAnswer(place, { body, timing }, picture, seconds) {
  const result = body?.result;
  const json = JSON.stringify(body, shorten, 2);
  const made = [result?.mask, result?.picture].find(isPng);
  place.replaceChildren(
    el("p", { class: "note" }, `${(1000 * seconds).toFixed(0)} ms`, timing && `, of them in the server: ${timing.replaceAll(";dur=", " ")} ms`),
    ...(areRows(result) ? [picture && result.some((one) => one.box) && drawBoxes(result, picture), listRows(result)] : []).filter(Boolean),
    ...(made ? [showMade(made), result.classes && listRows(result.classes, paintOf)] : []).filter(Boolean),
    el("details", areRows(result) || made ? {} : { open: "" }, el("summary", {}, "The answer as JSON"),
      el("pre", { tabindex: "0" }, json.length > LONGEST ? `${json.slice(0, LONGEST)}…` : json)));
}

function listRows(rows, paint = colourOf) {
  return el("ol", { class: "rows", tabindex: "0", "aria-label": "Best first" }, rows.slice(0, MOST).map((row) =>
    el("li", {}, (row.box || row.share) && el("i", { style: { backgroundColor: paint(row.index) } }), nameOf(row) ?? `class ${row.index}`,
      el("span", { class: "note" }, scoreOf(row)))));
}

// The picture, or the mask, that is the answer.
const showMade = (made) => el("div", { class: "stage" }, el("img", { src: `data:image/png;base64,${made}`, alt: "The picture that is the answer" }));

// The surest is drawn last, over the others.
function drawBoxes(objects, picture) {
  const image = el("img", { src: picture, alt: "The picture, with the objects that were found" });
  const stage = el("div", { class: "stage" }, image);
  image.addEventListener("load", () => {
    const { naturalWidth: width, naturalHeight: height } = image;
    const percent = (part, whole) => `${Math.max(0, Math.min(100, 100 * part / whole))}%`;
    stage.append(drawShapes(objects.slice(0, MOST), width, height), ...objects.slice(0, MOST).reverse().map(({ box: { x1, y1, x2, y2 }, index, ...row }) =>
      el("div", { class: "box", "aria-hidden": "true", style: {
        left: percent(x1, width), top: percent(y1, height), borderColor: colourOf(index),
        width: percent(x2 - x1, width), height: percent(y2 - y1, height) } },
      el("span", { style: { backgroundColor: colourOf(index) } }, `${nameOf(row)} ${scoreOf(row)}`))));
  });
  return stage;
}

// What objects have besides their boxes, in pixels of the picture: polygons of a mask, corners, keypoints.
function drawShapes(objects, width, height) {
  const make = (name, attributes) => {
    const one = document.createElementNS("http://www.w3.org/2000/svg", name);
    Object.entries(attributes).forEach(([key, value]) => one.setAttribute(key, value));
    return one;
  };
  const svg = make("svg", { class: "shapes", viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" });
  const line = Math.max(width, height) / 300;
  for (const { index, mask, corners, keypoints = [] } of objects) {
    const look = { stroke: colourOf(index), "stroke-width": line, fill: colourOf(index) };
    const outlines = corners ? [corners.map(({ x, y }) => [x, y])] : Array.isArray(mask) ? mask : [];
    svg.append(
      ...outlines.map((points) => make("polygon", { ...look, points: points.join(" "), "fill-opacity": corners ? 0 : 0.4 })),
      ...keypoints.filter(({ score = 1 }) => score >= 0.5).map(({ x, y }) => make("circle", { ...look, cx: x, cy: y, r: 2 * line, stroke: "#fff" })));
  }
  return svg;
}
