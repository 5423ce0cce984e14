// The fields of one model: those of its payload that are no picture and no shared text, its tensors,
// and its declared parameters.

import { call, el, errorView, insist } from "./api.js";

const SURE = 0.05; // objects are asked for from this score on; the slider hides the others

let count = 0;
const fresh = () => `field-${++count}`;

const isClassifier = (entry) => /^Classification /.test(entry.client ?? "");

export class FieldError extends Error {
  constructor(message, field) {
    super(message);
    this.field = field;
  }
}

function field(label, input, note) {
  const id = (input.id = fresh());
  const described = note && el("span", { class: "note", id: `${id}-note` }, note);
  if (described) input.setAttribute("aria-describedby", described.id);
  return el("div", { class: "field" }, el("label", { for: id }, label), input, described);
}

function fromJson(input, name) {
  input.removeAttribute("aria-invalid");
  try {
    return JSON.parse(input.value);
  } catch (error) {
    input.setAttribute("aria-invalid", "true");
    throw new FieldError(`“${name}” is not JSON: ${error.message}`, input);
  }
}

export class ModelForm {
  constructor(entry, taken) {
    this.entry = entry;
    this.taken = taken;
    this.others = {};
    this.parameters = {};
    this.tensors = null;
    const parts = [];
    for (const [name, value] of Object.entries(taken.others)) {
      const text = typeof value === "string" ? value : JSON.stringify(value);
      const input = el("textarea", { rows: Math.min(8, 1 + Math.floor(text.length / 60)), spellcheck: "false" });
      input.value = text;
      this.others[name] = { input, plain: typeof value === "string" };
      parts.push(field(name, input, typeof value === "string" ? "a text" : "JSON"));
    }
    if (taken.tensors) {
      this.place = el("div", { class: "tensors" }, el("p", { class: "note" }, "Looking for the inputs …"));
      parts.push(this.place);
      this.readTensors();
    }
    const declared = Object.entries(entry.parameters ?? {});
    const parameters = declared.length > 0 && el("details", { class: "parameters" },
      el("summary", {}, `Parameters of ${entry.modelName}`),
      el("div", { class: "grid" }, declared.map(([name, one]) => this.parameter(name, one))));
    const fields = parts.length > 0 && el("fieldset", { class: "model-form" },
      el("legend", {}, entry.modelName), parts);
    this.elements = [fields, parameters].filter(Boolean);
  }

  parameter(name, one) {
    const first = name === "format" && one.enum?.includes("objects") ? "objects" : one.default;
    let input;
    if (one.enum) {
      input = el("select", {}, one.enum.map((choice) => el("option", { value: choice }, choice)));
    } else {
      input = el("input", {
        type: "number", step: one.type === "integer" ? "1" : "any", inputmode: "decimal",
        min: one.minimum === undefined ? undefined : String(one.minimum),
        max: one.maximum === undefined ? undefined : String(one.maximum),
      });
    }
    input.value = String(first);
    this.parameters[name] = { input, ...one };
    return field(name, input, [one.meaning, one.expected].filter(Boolean).join("; "));
  }

  // Sets the other fields to those of an example.
  fill(example) {
    for (const [name, { input, plain }] of Object.entries(this.others)) {
      if (name in example) input.value = plain ? example[name] : JSON.stringify(example[name]);
    }
  }

  async readTensors() {
    const described = await insist(
      () => call(`v2/models/${encodeURIComponent(this.entry.modelName)}`),
      (error) => error && this.place.replaceChildren(errorView(error, true)));
    if (!described) return;
    this.tensors = described.inputs.map((one) => new TensorField(one));
    this.place.replaceChildren(...this.tensors.map((one) => one.element));
  }

  // The model's request, without its picture and its text: { payload, inputs, parameters, wanted }.
  // `wanted` has the parameters that the caller means, where the request asks for more: for less
  // sure objects, which the slider hides, and for all classes, of which shares are computed.
  read() {
    if (this.taken.tensors && !this.tensors) throw new FieldError(`The inputs of ${this.entry.modelName} are not known yet.`);
    const request = { payload: {}, inputs: this.tensors?.map((one) => one.read()), parameters: {}, wanted: {} };
    for (const [name, { input, plain }] of Object.entries(this.others)) {
      request.payload[name] = plain ? input.value : fromJson(input, name);
    }
    for (const [name, one] of Object.entries(this.parameters)) {
      const text = one.input.value;
      if (text === "" || text === String(one.default)) continue;
      request.parameters[name] = one.enum ? text : Number(text);
    }
    const { confidence, top_k: most } = this.parameters;
    const meant = (one) => Number(one.input.value || one.default);
    if (request.parameters.format !== "objects") return request;
    if (confidence?.type === "number") {
      request.wanted.confidence = meant(confidence);
      if (meant(confidence) > SURE && meant(confidence) <= 1) request.parameters.confidence = SURE;
    }
    if (isClassifier(this.entry) && meant(most) <= most.maximum) {
      request.wanted.top_k = meant(most);
      request.parameters.top_k = most.maximum;
    }
    return request;
  }
}

const MOST = 2_000_000; // numbers that a browser writes as JSON within a second

class TensorField {
  constructor({ name, datatype, shape }) {
    this.name = name;
    this.datatype = datatype;
    const texts = datatype === "BYTES";
    this.shape = el("input", { type: "text", inputmode: "numeric", spellcheck: "false" });
    this.shape.value = shape.map((size) => (size < 0 ? 1 : size)).join(", ");
    this.fill = el("select", { onchange: () => this.show() },
      texts ? null : ["zeros", "ones", "random"].map((one) => el("option", { value: one }, one)),
      el("option", { value: "own" }, "my own, as JSON"));
    this.data = el("textarea", { rows: 3, spellcheck: "false" });
    this.data.value = texts ? '["a text"]' : "[0]";
    this.own = field(`Elements of ${name}`, this.data, "a list of all elements, flat or nested");
    this.element = el("div", { class: "tensor" },
      el("p", {}, el("strong", {}, name), ` ${datatype} [${shape.map((size) => (size < 0 ? "any" : size)).join(", ")}]`),
      el("div", { class: "grid" }, field(`Shape of ${name}`, this.shape), field(`Filled with`, this.fill)),
      this.own);
    this.show();
  }

  show() {
    this.own.hidden = this.fill.value !== "own";
  }

  read() {
    const shape = this.shape.value.split(/[\s,x×]+/).filter(Boolean).map(Number);
    this.shape.removeAttribute("aria-invalid");
    if (!shape.every((size) => Number.isInteger(size) && size >= 0)) {
      this.shape.setAttribute("aria-invalid", "true");
      throw new FieldError(`The shape of “${this.name}” must be whole numbers, such as 1, 3, 224, 224.`, this.shape);
    }
    const { name, datatype } = this;
    if (this.fill.value === "own") return { name, datatype, shape, data: fromJson(this.data, name) };
    const size = shape.reduce((product, one) => product * one, 1);
    if (size > MOST) throw new FieldError(`“${name}” would have ${size} elements; at most ${MOST} are made here.`, this.shape);
    return { name, datatype, shape, data: Array.from({ length: size }, element(this.fill.value, datatype)) };
  }
}

function element(fill, datatype) {
  if (datatype === "BOOL") return () => fill === "ones" || (fill === "random" && Math.random() < 0.5);
  if (fill !== "random") return () => (fill === "ones" ? 1 : 0);
  return /^FP|^BF/.test(datatype) ? () => Number(Math.random().toFixed(4)) : () => Math.floor(Math.random() * 100);
}
