// Requests to the server, its errors, and elements made of text. No text ever becomes HTML.

const meta = (name) => document.querySelector(`meta[name=${name}]`).content;

export const maxBody = Number(meta("max-body"));
export const root = new URL(".", location.href).href.replace(/\/$/, "");
export const at = (id) => document.getElementById(id);

let key = ""; // kept in memory only
const needsKey = meta("needs-key") === "true";
export const headers = () => (key ? { "x-api-key": key } : {});

// Calls `begin` at once where no key is needed, and with every key that is entered.
export function startWithKey(begin) {
  at("key-form").hidden = !needsKey;
  at("key-form").addEventListener("submit", (event) => {
    event.preventDefault();
    key = at("key").value.trim();
    begin();
  });
  if (needsKey) showBanner("This server needs an API key. Enter yours above.");
  else begin();
}

// An element with attributes, listeners (`onclick`) and children; texts stay texts.
export function el(name, given = {}, ...children) {
  const one = document.createElement(name);
  for (const [attribute, value] of Object.entries(given)) {
    if (attribute.startsWith("on")) one.addEventListener(attribute.slice(2), value);
    else if (attribute === "style") Object.assign(one.style, value);
    else if (value !== undefined) one.setAttribute(attribute, value);
  }
  one.append(...children.flat().filter(Boolean));
  return one;
}

// What went wrong, as the server says it.
class Failure extends Error {
  constructor(status, said) {
    super(typeof said === "string" ? said : said?.message ?? "the answer has no reason");
    this.hint = said?.hint;
    this.facts = [status, said?.code, said?.request_id && `request ${said.request_id}`].filter(Boolean).join(" ");
  }
}

function parse(text) {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

// Asks a path of the server; returns its JSON, and what it says of the time.
export async function send(path, options = {}) {
  let response, text;
  try {
    response = await fetch(path, { ...options, headers: { Accept: "application/json", ...options.headers, ...headers() }, cache: "no-store" });
    text = await response.text();
  } catch {
    throw new Failure(0, { message: "the server does not answer", hint: "load this page again in a few seconds" });
  }
  const body = parse(text);
  if (!response.ok) throw new Failure(response.status, body?.error);
  return { body, timing: response.headers.get("Server-Timing") };
}

export function showError(place, error) {
  place.replaceChildren(el("div", { class: "error" },
    el("p", { class: "message" }, error.message),
    error.hint && el("p", { class: "hint" }, error.hint),
    error.facts && el("p", { class: "note" }, error.facts)));
}

export function showBanner(text) {
  at("banner").replaceChildren(text);
}
