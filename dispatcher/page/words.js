// Words in the place of a mask, and the distance of two texts' vectors.

import { ask, el, errorView } from "./api.js";
import { barsView } from "./bars.js";

const isFilled = (list) => Array.isArray(list) && list.length > 0
  && list.every((one) => typeof one?.token === "string" && "score" in one);

export const areWords = (result) => isFilled(result)
  || (Array.isArray(result) && result.length > 0 && result.every(isFilled));

// The word that an answer has in the place of a mask; the whole sentence where it cannot be seen.
function wordOf(sentence, before, after) {
  let begin = 0, end = 0;
  while (begin < before.length && sentence[begin] === before[begin]) begin++;
  while (end < after.length && sentence.length - end > begin && sentence.at(-1 - end) === after.at(-1 - end)) end++;
  return sentence.slice(begin, sentence.length - end).trim() || sentence;
}

// The sentence with the chosen words in it, and the candidates of each mask as bars.
export function wordsView(result, { text, mask }) {
  const lists = isFilled(result) ? [result] : result;
  const parts = mask ? text.split(mask) : [text];
  const placed = mask && parts.length === lists.length + 1;
  if (!placed) return el("div", {}, lists.map((list) => barsView(list.map(({ token, score }) => ({ label: token, score })))));
  const marks = lists.map(() => el("mark"));
  const sentence = el("p", { class: "sentence", "aria-live": "polite" },
    parts.flatMap((part, at) => (at < marks.length ? [part, marks[at]] : [part])));
  const groups = lists.map((list, place) => {
    const before = parts.slice(0, place + 1).join(mask), after = parts.slice(place + 1).join(mask);
    const words = list.map(({ token, score }) => ({ label: wordOf(token, before, after), score }));
    const show = (at) => { marks[place].textContent = words[at].label; };
    show(0);
    const title = lists.length > 1 ? `Words for blank ${place + 1}` : "Words, most likely first";
    return el("div", {}, lists.length > 1 && el("p", { class: "note" }, title), barsView(words, { title, chosen: show }));
  });
  return el("div", { class: "words" }, sentence, groups);
}

export const isVector = (result, entry) => Array.isArray(result) && result.length > 0
  && result.every((one) => typeof one === "number" || one === null)
  && (result.length >= 16 || /^Embedding /.test(entry.client ?? ""));

const dot = (a, b) => a.reduce((sum, one, at) => sum + one * b[at], 0);

function cosine(a, b) {
  const lengths = Math.sqrt(dot(a, a) * dot(b, b));
  return lengths ? dot(a, b) / lengths : 0;
}

// The numbers as a strip: blue above zero, red below, the stronger the larger.
function strip(vector, title) {
  const canvas = el("canvas", { class: "strip", width: vector.length, height: 1, role: "img", "aria-label": title });
  const most = vector.reduce((one, number) => Math.max(one, Math.abs(number)), 0) || 1;
  const context = canvas.getContext("2d");
  vector.forEach((number, at) => {
    context.fillStyle = `hsla(${number < 0 ? 8 : 212}, 78%, 48%, ${Math.abs(number) / most})`;
    context.fillRect(at, 0, 1, 1);
  });
  return canvas;
}

const CLOSE = [[0.8, "very close"], [0.5, "related"], [0.25, "a little related"], [-1.01, "not related"]];

// A text's vector, and a field for a second text to compare it with.
export function vectorView(vector, { text, request }) {
  const out = el("div", { class: "words", "aria-live": "polite" });
  const input = el("input", { type: "text", value: "", "aria-label": "Second text", placeholder: "a second text" });
  const button = el("button", { type: "button", onclick: compare }, "Compare");
  input.addEventListener("keydown", (event) => {
    if (event.key !== "Enter") return;
    event.preventDefault();
    compare();
  });
  async function compare() {
    if (!input.value) return input.focus();
    button.disabled = true;
    try {
      const { body } = await ask(JSON.stringify(request(input.value)), {});
      const second = body.result, alike = cosine(vector, second);
      const word = CLOSE.find(([least]) => alike >= least)[1];
      out.replaceChildren(
        strip(second, "The second text's vector"),
        el("p", { class: "cosine" }, "Cosine ", el("strong", {}, alike.toFixed(4)), el("span", { class: "note" }, ` ${word}`)),
        el("div", { class: "track" }, el("i", { style: { width: `${Math.max(0, 100 * alike)}%` } })));
    } catch (error) {
      out.replaceChildren(errorView(error));
    }
    button.disabled = false;
    return undefined;
  }
  return el("div", { class: "vector" },
    el("p", {}, `${vector.length} numbers, length ${Math.sqrt(dot(vector, vector)).toFixed(3)}`),
    strip(vector, `The vector of ${text ? "the text" : "the input"}`),
    text !== undefined && el("div", { class: "row" }, input, button), out);
}
