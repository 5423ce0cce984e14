// Answers side by side: a card per model, with its time as a bar and a view that suits its result.

import { el, errorView } from "./api.js";
import { barsView } from "./bars.js";
import { areBoxes, boxesView } from "./boxes.js";
import { codeView } from "./code.js";
import { areWords, isVector, vectorView, wordsView } from "./words.js";

const PHASES = [
  ["queue", "queue"], ["s3", "S3"], ["decode", "decode"], ["class", "class"], ["inference", "inference"],
  ["postprocess", "post-processing"], ["rest", "network and browser"],
];
const CLASS_TEXT = /^(-?[\d.]+(?:e[+-]?\d+)?|null):(\d+):(.*)$/s; // as Triton writes classes
const LONGEST = 20_000; // characters of an answer that are shown

const milliseconds = (time) => (time < 10 ? `${time.toFixed(1)} ms` : time < 10_000 ? `${Math.round(time)} ms` : `${(time / 1000).toFixed(1)} s`);

const areScores = (result) => Array.isArray(result) && result.length > 0
  && result.every((one) => typeof one?.label === "string" && !one.box && (one.score === null || typeof one.score === "number"));

const areClassTexts = (result) => Array.isArray(result) && result.length > 0
  && result.every((one) => typeof one === "string" && CLASS_TEXT.test(one));

function fromClassText(text) {
  const [, score, , label] = CLASS_TEXT.exec(text);
  return { label, score: score === "null" ? null : Number(score) };
}

function tensorsView(outputs) {
  const flat = (data) => (Array.isArray(data) ? data.flat(Infinity) : [data]);
  return el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Output tensors" }, el("table", {},
    el("thead", {}, el("tr", {}, ["Output", "Type", "Shape", "First elements"].map((one) => el("th", { scope: "col" }, one)))),
    el("tbody", {}, outputs.map((one) => {
      const numbers = flat(one.data);
      const first = numbers.slice(0, 8).map((value) => (typeof value === "number" ? Number(value.toPrecision(6)) : JSON.stringify(value)));
      return el("tr", {}, el("th", { scope: "row" }, one.name), el("td", {}, one.datatype), el("td", {}, `[${one.shape.join(", ")}]`),
        el("td", { class: "numbers" }, first.join(", ") + (numbers.length > 8 ? ", …" : "")));
    }))));
}

// The view of a result, and the score from which boxes are shown: { element, threshold? }.
function viewOf(card, answer, moved) {
  const { body } = answer, { request, entry, picture, text, mask } = card.given;
  const result = body?.result;
  if (Array.isArray(body?.outputs)) return { element: tensorsView(body.outputs) };
  const { confidence: sure, top_k: most } = request.wanted;
  if (picture && (areBoxes(result) || (sure !== undefined && Array.isArray(result) && !result.length))) {
    return boxesView(result, { picture, sure, low: request.parameters.confidence ?? sure, moved });
  }
  if (areScores(result)) return { element: barsView(result, { most }) };
  if (areClassTexts(result)) return { element: barsView(result.map(fromClassText)) };
  if (areWords(result)) return { element: wordsView(result, { text: text ?? "", mask }) };
  if (isVector(result, entry)) {
    const again = (other) => ({ ...card.given.document_, payload: { ...request.payload, [card.given.textField]: other } });
    return { element: vectorView(result, { text: card.given.textField && text, request: again }) };
  }
  return { element: jsonView(result === undefined ? body ?? answer.text : result) };
}

function jsonView(value) {
  const text = typeof value === "string" ? value : JSON.stringify(value, null, 2) ?? "nothing";
  const pre = el("pre", { tabindex: "0" }, text.slice(0, LONGEST));
  return text.length > LONGEST
    ? el("div", {}, pre, el("p", { class: "note" }, `The first ${LONGEST} of ${text.length} characters.`)) : pre;
}

export class Card {
  // `given`: { entry, request, document_, picture, text, textField, mask }.
  constructor(given) {
    this.given = given;
    this.progress = el("progress", { max: 1, "aria-label": `Sending to ${given.entry.modelName}` });
    this.state = el("p", { class: "note" }, "Sending …");
    this.body = el("div", { class: "body" }, this.state, this.progress);
    this.element = el("article", { class: "card", "aria-busy": "true" },
      el("h2", {}, given.entry.modelName, " ", badges(given.entry)), this.body);
  }

  sent(share) {
    if (share < 1) this.progress.value = share;
    else this.progress.removeAttribute("value");
    this.state.textContent = share < 1 ? `Sending, ${Math.round(100 * share)} %` : "The model is at work …";
  }

  async fill(answer) {
    const code = details("The same request in code", () => codeView(this.codeRequest(view)));
    const view = viewOf(this, answer, () => code.renew());
    this.total = answer.total;
    this.timings = answer.timings;
    await view.element.querySelector("img")?.decode().catch(() => {}); // else the card grows later
    this.bar = el("div", { class: "time" });
    this.done(
      this.bar, view.element, code.element,
      details("The answer as JSON", () => jsonView(answer.body ?? answer.text)).element);
  }

  // What a caller sends for what is shown: only as unsure objects, and as many classes, as are wanted.
  codeRequest(view) {
    const { document_, request, entry } = this.given;
    const wanted = { ...request.wanted };
    if (view.threshold && wanted.confidence !== undefined) wanted.confidence = Number(view.threshold().toFixed(2));
    const parameters = { ...document_.parameters, ...wanted };
    if (parameters.top_k === entry.parameters?.top_k?.default) delete parameters.top_k;
    return Object.keys(wanted).length ? { ...this.given, document_: { ...document_, parameters } } : this.given;
  }

  fail(error) {
    this.failed = true;
    this.done(error.name === "AbortError" ? el("p", { class: "note" }, "Cancelled.") : errorView(error),
      details("The same request in code", () => codeView(this.given)).element);
    this.element.classList.toggle("failed", error.name !== "AbortError");
  }

  done(...parts) {
    this.element.removeAttribute("aria-busy");
    // Where cards are below each other none grows above an answer that is being read.
    if (matchMedia("(max-width: 800px)").matches) this.element.parentElement?.querySelector("[aria-busy]")?.before(this.element);
    this.body.replaceChildren(...parts);
  }

  // Draws the time as a bar, on a scale that all cards share.
  draw(longest) {
    if (!this.bar) return;
    const known = Object.values(this.timings).reduce((sum, one) => sum + one, 0);
    const times = { ...this.timings, rest: Math.max(0, this.total - known) };
    const parts = PHASES.filter(([name]) => times[name] !== undefined);
    this.bar.replaceChildren(
      el("div", { class: "time-bar", "aria-hidden": "true" }, parts.map(([name]) =>
        el("i", { class: name, style: { width: `${100 * times[name] / longest}%` } }))),
      el("ul", { class: "legend", "aria-label": "Time" }, el("li", {}, el("strong", {}, milliseconds(this.total))),
        parts.map(([name, title]) => el("li", {}, el("i", { class: name }), `${title} ${milliseconds(times[name])}`))));
  }
}

export function badges(entry) {
  const texts = [entry.engine && `${entry.engine}${entry.precision ? `, ${entry.precision}` : ""}`,
    entry.state === "AVAILABLE" ? "loaded at its first request" : entry.state && entry.state !== "READY" && entry.state.toLowerCase()];
  return texts.filter(Boolean).map((text) => el("span", { class: "badge" }, text));
}

// A part that is made when it is opened: { element, renew() }.
function details(title, make) {
  const element = el("details", { ontoggle: () => renew() }, el("summary", {}, title));
  const place = el("div");
  element.append(place);
  const renew = () => element.open && place.replaceChildren(make());
  return { element, renew };
}
