// Sends a request of /docs, and shows its answer as it comes.

import { el, errorView, headers as keyHeaders, limits, size, Unreachable } from "./api.js";
import { saved } from "./code.js";
import { encoded, written } from "./docs-body.js";

const SHOWN = 100_000; // characters of an answer that are shown; all of it can be saved
const STREAMED = /event-stream|jsonlines|ndjson/;

export class AnswerView {
  constructor() {
    this.head = el("p", { class: "answer-head", role: "status" });
    this.place = el("div", { class: "answer" });
    this.element = el("div", { class: "answer" }, this.head, this.place);
  }

  wait() {
    this.head.className = "answer-head";
    this.head.textContent = "Waiting for the answer …";
    this.place.replaceChildren();
    this.began = performance.now();
  }

  fail(error) {
    this.head.className = "answer-head failed";
    this.head.textContent = error.name === "AbortError" ? "Cancelled." : "There is no answer.";
    this.place.replaceChildren(...(error.name === "AbortError" ? [] : [errorView(error)]));
  }

  // Shows status and headers; returns the place of the body.
  begin(response) {
    this.head.classList.toggle("failed", !response.ok);
    this.head.textContent = [
      `${response.status} ${response.statusText}`, `${(performance.now() - this.began).toFixed(0)} ms`,
      response.headers.get("Content-Type"),
    ].filter(Boolean).join(" · ");
    const body = el("div", { class: "answer" });
    const lines = [...response.headers].map(([name, value]) => `${name}: ${value}`).join("\n");
    this.place.replaceChildren(body, el("details", {}, el("summary", {}, "Headers"), el("pre", { tabindex: "0", "aria-label": "Headers of the answer" }, lines)));
    return body;
  }

  end(blob) {
    this.head.textContent += ` · ${size(blob.size)}`;
  }
}

export async function send({ method, path, headers, body }, view, signal) {
  const made = await encoded(body);
  const length = made.body?.length ?? made.body?.size ?? 0;
  if (length > limits.maxBody) {
    throw new Error(`The body has ${size(length)}; the server takes at most ${size(limits.maxBody)} (MODEL_SERVER_MAX_BODY_MB).`);
  }
  let response;
  try {
    response = await fetch(path || "./", { method, headers: { ...made.headers, ...headers, ...keyHeaders() }, body: made.body, signal, cache: "no-store" });
  } catch (error) {
    throw error.name === "AbortError" ? error : new Unreachable();
  }
  const place = view.begin(response), type = response.headers.get("Content-Type") ?? "";
  try {
    const blob = STREAMED.test(type) ? await streamed(response, type, place) : await whole(response, type, place);
    view.end(blob);
  } catch (error) {
    throw error.name === "AbortError" ? error : new Unreachable();
  }
}

const textPlace = (place) => {
  const code = el("code");
  place.append(el("pre", { tabindex: "0", "aria-label": "The answer" }, code));
  return code;
};

// Lines and events, each as it comes.
async function streamed(response, type, place) {
  const code = textPlace(place), decoder = new TextDecoder(), chunks = [];
  for (let reader = response.body.getReader(), read; !(read = await reader.read()).done;) {
    chunks.push(read.value);
    if (code.textContent.length < SHOWN) code.append(decoder.decode(read.value, { stream: true }));
  }
  return new Blob(chunks, { type });
}

async function whole(response, type, place) {
  const blob = await response.blob();
  if (!blob.size) {
    place.append(el("p", { class: "note" }, "The body is empty."));
  } else if (type.startsWith("image/") && !type.includes("svg")) {
    place.append(el("img", { src: URL.createObjectURL(blob), alt: "The picture that came as the answer" }));
    place.append(el("p", { class: "note" }, saved(blob, `answer.${type.slice(6)}`)));
  } else if (/json|text\/|javascript|svg/.test(type)) {
    const text = await blob.text();
    const shown = /json/.test(type) && text.length < 10 * SHOWN ? indented(text) : text;
    textPlace(place).textContent = shown.slice(0, SHOWN);
    if (shown.length > SHOWN) place.append(el("p", { class: "note" }, `The first ${SHOWN.toLocaleString("en")} characters. All of it: `, saved(blob, "answer.txt")));
  } else {
    place.append(el("p", { class: "note" }, `${size(blob.size)} of ${type || "no type"}: `, saved(blob, "answer.bin")));
  }
  return blob;
}

function indented(text) {
  try { return written(JSON.parse(text)); } catch { return text; }
}
