// /docs: a form for each route, made from openapi.json, with its command for curl and its answer.

import { banner, call, el, insist, lacksKey, needsKey, root, setKey } from "./api.js";
import { copier } from "./code.js";
import { AnswerView, send } from "./docs-answer.js";
import { BodyField } from "./docs-body.js";
import { curl } from "./docs-curl.js";

let api; // the document

// Follows a reference; what is beside it counts more.
export function resolve(node) {
  if (!node?.$ref) return node ?? {};
  const { $ref, ...beside } = node;
  const found = $ref.split("/").slice(1).reduce((one, part) => one[part], api);
  return { ...resolve(found), ...beside };
}

let count = 0;

function field(label, input, note) {
  input.id = `field-${++count}`;
  const described = note && el("span", { class: "note", id: `${input.id}-note` }, note);
  if (described) input.setAttribute("aria-describedby", described.id);
  return el("div", { class: "field" }, el("label", { for: input.id }, label), input, described);
}

// The field of a parameter in a path, a query or a header.
function parameterField(one) {
  const schema = resolve(one.schema), isModel = one.in === "path" && one.name === "model";
  // (Fuzzers take examples too: the document names no model that they would unload.)
  const examples = isModel ? [...document.querySelectorAll("[data-model]")].map((block) => block.dataset.model) : schema.examples ?? [];
  const input = schema.type === "integer"
    ? el("input", { type: "number", step: "1", min: schema.minimum === undefined ? undefined : String(schema.minimum) })
    : el("input", { type: "text", autocomplete: "off", spellcheck: "false" });
  if (one.required) {
    input.required = true;
    input.value = String(examples[0] ?? "");
  } else if (examples.length) input.placeholder = String(examples[0]);
  const place = field(one.name, input, [one.in === "path" ? "" : `${one.in}.`, one.description].filter(Boolean).join(" "));
  if (examples.length > 1) {
    const list = el("datalist", { id: `list-${count}` }, examples.map((value) => el("option", { value: String(value) })));
    input.setAttribute("list", list.id);
    place.append(list);
  }
  return { ...one, input, place };
}

// The form of one route.
class Trial {
  constructor(path, method) {
    const route = api.paths[path][method];
    this.path = path;
    this.method = method.toUpperCase();
    this.needsKey = needsKey && route.security?.length !== 0;
    this.parameters = (route.parameters ?? []).map((one) => parameterField(resolve(one)));
    this.model = this.parameters.find((one) => one.in === "path" && one.name === "model");
    const content = route.requestBody && resolve(route.requestBody).content;
    this.body = content && new BodyField(content, {
      field, changed: () => this.changed(), model: (name, alone) => this.named(name, alone), described: this.described,
    });
    const types = Object.keys(resolve(route.responses["200"] ?? {}).content ?? {});
    this.accept = types.length > 1 && el("select", {}, el("option", { value: "" }, "as the server chooses"), types.map((type) => el("option", { value: type }, type)));
    const code = this.code = el("code");
    const { button: copy, copied } = copier(code);
    this.submit = el("button", { type: "submit", class: "main" }, `Send ${this.method}`);
    this.cancel = el("button", { type: "button", hidden: true, onclick: () => this.sending.abort() }, "Cancel");
    this.answer = new AnswerView();
    const first = (one) => one.required || (one.name === "modelname" && this.body);
    const required = this.parameters.filter(first), others = this.parameters.filter((one) => !first(one));
    this.element = el("form", { class: "trial", "aria-label": `Try ${this.method} ${path}`, onsubmit: (event) => this.send(event), oninput: () => this.changed() },
      required.length > 0 && el("div", { class: "grid" }, required.map((one) => one.place)),
      this.body?.element,
      (others.length > 0 || this.accept) && el("details", {}, el("summary", {}, "Optional parameters and headers"),
        el("div", { class: "grid" }, others.map((one) => one.place), this.accept && field("Accept", this.accept, "header. The type of the answer."))),
      el("div", { class: "code" }, el("div", { class: "code-head" }, el("span", { class: "note" }, "The same request for curl"), el("span", {}, copy, " ", copied)),
        el("pre", { tabindex: "0", "aria-label": "The command for curl" }, code)),
      el("div", { class: "go" }, this.submit, this.cancel),
      this.answer.element);
    this.changed();
  }

  // Names the model in the path; else in the query, where the body is `alone` and cannot name it.
  named(name, alone) {
    const place = this.model ?? this.parameters.find((one) => one.name === "modelname");
    if (!place) return;
    place.input.value = place === this.model || alone ? name : "";
    if (place !== this.model) place.place.hidden = !alone;
  }

  // Asks what the model in the path takes, for an example of its tensors; only where tensors are sent.
  get described() {
    return this.model && this.path.startsWith("/v2/models/")
      ? () => call(`v2/models/${encodeURIComponent(this.model.input.value)}`) : undefined;
  }

  request() {
    const query = new URLSearchParams(), headers = {};
    let path = this.path;
    for (const { name, in: where, input } of this.parameters) {
      if (where === "path") path = path.replace(`{${name}}`, encodeURIComponent(input.value));
      else if (input.value === "") continue;
      else if (where === "query") query.set(name, input.value);
      else headers[name] = input.value;
    }
    if (this.accept?.value) headers.Accept = this.accept.value;
    const asked = query.toString();
    return { method: this.method, path: path.slice(1) + (asked && `?${asked}`), headers, body: this.body?.read() };
  }

  changed() {
    if (this.code) this.code.textContent = curl(this.request(), { root, key: this.needsKey });
  }

  async send(event) {
    event.preventDefault();
    if (this.submit.disabled) return;
    this.sending = new AbortController();
    this.submit.disabled = true;
    this.cancel.hidden = false;
    this.answer.wait();
    try {
      await send(this.request(), this.answer, this.sending.signal);
    } catch (error) {
      this.answer.fail(error);
    }
    this.submit.disabled = false;
    this.cancel.hidden = true;
  }
}

// A form is made when its route is opened.
function addForms() {
  const trials = new Map();
  for (const block of document.querySelectorAll("details[data-path]")) {
    const { path, method } = block.dataset;
    const open = () => {
      if (!block.open || trials.has(block)) return;
      const trial = new Trial(path, method);
      trials.set(block, trial);
      block.querySelector("summary").after(trial.element);
    };
    block.addEventListener("toggle", open);
    open();
    if (path === "/invocations") addButtons(block, () => { block.open = true; open(); return trials.get(block); });
  }
}

// In the part about each model: a button that goes to its example in the form of /invocations.
function addButtons(block, trialOf) {
  for (const one of document.querySelectorAll("details[data-model]")) {
    const command = one.querySelector(":scope > pre");
    if (!command) continue;
    const { button: copy, copied } = copier(command);
    one.append(el("div", { class: "buttons" }, copy,
      el("button", { type: "button", onclick: () => {
        const trial = trialOf();
        trial.body.choose(one.dataset.model);
        trial.changed();
        block.scrollIntoView();
        trial.submit.focus();
      } }, "Try it in a form"), copied));
  }
}

async function start() {
  if (lacksKey()) {
    banner("The forms need the API key.");
    return;
  }
  api = await insist(() => call("openapi.json"), banner);
  if (api) addForms();
}

const keys = document.getElementById("key-form");
keys.addEventListener("submit", (event) => {
  event.preventDefault();
  setKey(document.getElementById("key").value.trim());
  if (!api) start();
});
start();
