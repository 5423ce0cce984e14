// Requests to the server, its errors, and elements made of text. No text ever becomes HTML.

const meta = (name) => document.querySelector(`meta[name=${name}]`).content;

export const limits = { maxBody: Number(meta("max-body")), version: meta("version") };
export const needsKey = meta("needs-key") === "true";
export const root = new URL(".", location.href).href.replace(/\/$/, "");

let key = ""; // kept in memory only
export const lacksKey = () => needsKey && !key;
export const headers = () => (key ? { "x-api-key": key } : {});

// Shows the field of the key once one is needed; calls `then` when there is one.
export function askForKey(then) {
  const form = document.getElementById("key-form");
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    key = document.getElementById("key").value.trim();
    then();
  });
  addEventListener("key-needed", () => { form.hidden = false; });
  form.hidden = !needsKey;
}

// An element with attributes, properties and listeners (`onclick`), and with children; texts stay texts.
export function el(name, given = {}, ...children) {
  const one = document.createElement(name);
  for (const [attribute, value] of Object.entries(given)) {
    if (value === undefined || value === false) continue;
    if (attribute.startsWith("on")) one.addEventListener(attribute.slice(2), value);
    else if (attribute === "style") Object.assign(one.style, value);
    else if (attribute in one && typeof value !== "string") one[attribute] = value;
    else one.setAttribute(attribute, value === true ? "" : value);
  }
  one.append(...children.flat().filter((child) => child !== undefined && child !== null && child !== false));
  return one;
}

// What went wrong, as the server says it: { error: { code, message, hint, modelname, request_id } }.
export class Failure extends Error {
  constructor(status, body, retryAfter) {
    const said = body?.error;
    super(typeof said === "string" ? said : said?.message || `the answer has the status ${status} and no reason`);
    this.status = status;
    this.code = said?.code ?? "";
    this.hint = said?.hint ?? "";
    this.requestId = said?.request_id ?? "";
    this.retryAfter = retryAfter;
    this.body = body;
  }
}

class Unreachable extends Failure {
  constructor() {
    super(0, { error: { code: "no_answer", message: "the server does not answer", hint:
      "it may be starting or stopping, or the network is gone" } });
  }
}

const AGAIN = 2000; // milliseconds

// Whether another try may help: the server is away, starts, or is busy.
export const passes = (error) => error instanceof Failure && (error.status === 0 || error.status === 429 || error.status >= 500);

// Does work until the server lets it; `show` gets each failure, and nothing once it is done.
export async function insist(work, show) {
  for (;;) {
    try {
      const done = await work();
      show();
      return done;
    } catch (error) {
      show(error);
      if (!passes(error)) return undefined;
      await new Promise((go) => { setTimeout(go, AGAIN); });
    }
  }
}

function parsed(text) {
  try { return JSON.parse(text); } catch { return undefined; }
}

function failure(status, text, retryAfter) {
  if (status === 401) dispatchEvent(new Event("key-needed"));
  return new Failure(status, parsed(text), retryAfter);
}

// Asks a path of the server; returns its JSON, or its text where it has none.
export async function call(path, options = {}) {
  let response, text;
  try {
    response = await fetch(path, { ...options, headers: { ...options.headers, ...headers() }, cache: "no-store" });
    text = await response.text();
  } catch {
    throw new Unreachable();
  }
  if (!response.ok) throw failure(response.status, text, response.headers.get("Retry-After"));
  return parsed(text) ?? text;
}

// Asks a model; `onProgress` gets the share of the body that was sent (fetch cannot tell).
export function ask(body, { onProgress, signal }) {
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    const began = performance.now();
    request.open("POST", "invocations");
    request.setRequestHeader("Content-Type", "application/json");
    for (const [name, value] of Object.entries(headers())) request.setRequestHeader(name, value);
    request.upload.onprogress = (event) => event.lengthComputable && onProgress?.(event.loaded / event.total);
    request.upload.onload = () => onProgress?.(1);
    request.onerror = () => reject(new Unreachable());
    request.onabort = () => reject(new DOMException("cancelled", "AbortError"));
    signal?.addEventListener("abort", () => request.abort());
    request.onload = () => {
      const text = request.responseText;
      if (request.status < 200 || request.status > 299) {
        reject(failure(request.status, text, request.getResponseHeader("Retry-After")));
        return;
      }
      resolve({
        body: parsed(text),
        text,
        total: performance.now() - began,
        timings: timings(request.getResponseHeader("Server-Timing")),
        requestId: request.getResponseHeader("X-Request-Id"),
      });
    };
    request.send(body);
  });
}

// Milliseconds by phase: "queue;dur=0.1, decode;dur=2.0" becomes { queue: 0.1, decode: 2 }.
function timings(header) {
  const found = {};
  for (const part of (header ?? "").split(",")) {
    const match = /^\s*([\w-]+);dur=([\d.]+)/.exec(part);
    if (match) found[match[1]] = Number(match[2]);
  }
  return found;
}

const UNITS = [[2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]];

export function size(bytes) {
  const [unit, name] = UNITS.find(([least]) => bytes >= least) ?? [];
  return unit ? `${(bytes / unit).toFixed(1)} ${name}` : `${bytes} bytes`;
}

// The view of an error: what was wrong, how to mend it, and what the log calls the request. `again`
// is for work that is repeated.
export function errorView(error, again = false) {
  const facts = [
    error.status ? `${error.status} ${error.code}` : error.code,
    error.retryAfter && `try again after ${error.retryAfter} s`,
    error.requestId && `request ${error.requestId}`,
  ].filter(Boolean);
  return el("div", { class: "error" },
    el("p", { class: "message" }, error.message),
    error.hint && el("p", { class: "hint" }, error.hint),
    again && passes(error) && el("p", { class: "hint" }, "This page tries again by itself."),
    facts.length > 0 && el("p", { class: "facts" }, facts.join(" · ")));
}

// Shows above everything why work that is repeated failed, or a text; nothing removes it.
export function banner(what) {
  const place = document.getElementById("banner");
  place.replaceChildren(...(what ? [what instanceof Error ? errorView(what, true) : el("p", {}, what)] : []));
}

// The loaded models as `GET /models` has them, and those that can be loaded: { models, available }.
export async function servedModels() {
  const models = [];
  let token, page;
  do {
    page = await call(`models${token ? `?next_page_token=${encodeURIComponent(token)}` : ""}`);
    models.push(...page.models);
    token = page.nextPageToken;
  } while (token);
  return { models, available: page.available ?? [] };
}

// All models: loaded ones, and names that are loaded at their first request.
export async function listModels() {
  const { models: found, available } = await servedModels();
  const names = new Set(found.map((one) => one.modelName));
  for (const one of available) {
    if (names.has(one.modelName)) continue;
    names.add(one.modelName);
    found.push({ ...one, state: "AVAILABLE" });
  }
  // Classes that ask no model of their own name, and examples of models that are not loaded.
  const document_ = await call("openapi.json").catch(() => ({}));
  for (const { value } of Object.values(examples(document_))) {
    const { modelname, payload } = value;
    const known = found.find((one) => one.modelName === modelname);
    if (!known) found.push({ modelName: modelname, state: "", client: modelname, examples: [payload] });
    else if (!known.example) (known.examples ??= []).push(payload);
  }
  return found;
}

function examples(described) {
  return described.components?.requestBodies?.Inference?.content["application/json"].examples ?? {};
}
