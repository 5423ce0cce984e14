// The body of a request in a form of /docs: its type, an example or a file, and what is sent.

import { el, errorView, limits, size } from "./api.js";
import { blobOf, pictureType } from "./kinds.js";
import { base64 } from "./picture.js";

const JSON_TYPE = "application/json", FORM_TYPE = "multipart/form-data";
const LONG = 300; // characters of a picture in an example from which on a name takes its place
const MOST_NUMBERS = 2000; // of a tensor that is made for a form

const isLines = (type) => /jsonlines|ndjson/.test(type);
const isText = (type) => type.startsWith("text/") || isLines(type);
const isPicture = (type) => type.startsWith("image/");

// JSON in lines, but for lists of numbers and texts, which have one line each.
export const written = (value) => JSON.stringify(value, null, 2)
  .replace(/\[\n\s+([^[\]{}]*?)\n\s+\]/g, (_, list) => `[${list.replace(/,\n\s+/g, ", ")}]`);

// A body: `parts` are texts and files in the place of base64; or a file; or the fields and files of a form.
export class BodyField {
  constructor(content, { field, changed, model, described }) {
    Object.assign(this, { content, changed, model, described });
    this.long = new Map(); // what the names in a text are in place of: a text, or a file
    this.files = [];
    const types = Object.keys(content).filter((type) => !isPicture(type));
    const pictures = Object.keys(content).filter(isPicture);
    // One choice for all kinds of pictures: the file says which it is.
    const options = [...types.slice(0, 1), ...(pictures.length ? ["image/*"] : []), ...types.slice(1)];
    this.type = el("select", { onchange: () => this.showType() }, options.map((type) => el("option", { value: type }, type === "image/*" ? "image/… (a picture)" : type)));
    this.example = el("select", { onchange: () => this.showExample() });
    this.exampleField = field("Example", this.example);
    this.text = el("textarea", { rows: 8, spellcheck: "false", oninput: () => this.check() });
    this.textField = field("Body", this.text);
    this.said = el("p", { class: "note" });
    this.chooser = el("input", { type: "file", onchange: () => this.chosen() });
    this.chooserField = field("File", this.chooser);
    this.thumbnail = el("img", { class: "thumbnail", alt: "The picture that is sent", hidden: true, onerror: () => { this.thumbnail.hidden = true; } });
    this.fields = Object.fromEntries(["modelname", "modelversion", "parameters"].map((name) => [name, el("input", { type: "text", autocomplete: "off", spellcheck: "false" })]));
    this.formFields = el("div", { class: "grid" }, Object.entries(this.fields).map(([name, input]) => field(name, input, name === "parameters" ? "a JSON object" : "")));
    this.make = el("button", { type: "button", onclick: () => this.fromTensors() }, "Make one for this model");
    this.trouble = el("div", {});
    this.element = el("div", { class: "body" },
      el("div", { class: "grid" }, field("Content-Type", this.type), this.exampleField),
      this.formFields, this.textField, this.chooserField, this.thumbnail, this.said,
      el("div", { class: "buttons" }, this.make), this.trouble);
    this.showType();
  }

  get chosenType() { return this.type.value; }
  get isText() { return this.chosenType === JSON_TYPE || isText(this.chosenType); }
  get examples() {
    const own = this.content[this.chosenType]?.examples ?? {};
    if (!isLines(this.chosenType)) return own;
    const all = Object.values(this.content[JSON_TYPE].examples ?? {}).map(({ value }) => `${JSON.stringify(value)}\n`);
    return { "a line for each model": { value: all.join("") } };
  }

  showType() {
    const type = this.chosenType, names = Object.keys(this.examples);
    this.example.replaceChildren(...names.map((name) => el("option", { value: name }, name)));
    this.exampleField.hidden = names.length < 2;
    this.textField.hidden = !this.isText;
    this.formFields.hidden = type !== FORM_TYPE;
    this.chooser.multiple = type === FORM_TYPE;
    this.chooser.accept = type === "image/*" ? "image/*" : "";
    this.make.hidden = type !== JSON_TYPE || !this.described;
    this.forgetFile();
    this.showExample();
  }

  // The first model of the examples that takes a picture, else the first one.
  firstModel() {
    const found = Object.entries(this.content[JSON_TYPE].examples);
    return (found.find(([, one]) => one["x-picture"]) ?? found[0])?.[0] ?? "";
  }

  // Chooses the JSON example of this name.
  choose(name) {
    this.type.value = JSON_TYPE;
    this.showType();
    this.example.value = name;
    this.showExample();
  }

  showExample() {
    const name = this.example.value, example = this.examples[name];
    this.long.clear();
    this.trouble.replaceChildren();
    this.picture = this.chosenType === JSON_TYPE ? example?.["x-picture"] : undefined;
    const offersFile = !this.isText || this.picture;
    this.chooserField.hidden = !offersFile;
    this.chooserField.querySelector("label").textContent = this.picture ? `Another picture, for “${this.picture}”`
      : this.chosenType === FORM_TYPE ? "Files" : "File";
    if (this.isText) {
      const value = example?.value ?? "";
      this.text.value = typeof value === "string" ? value : written(this.shortened(value));
    }
    if (this.content[JSON_TYPE]?.examples) this.nameModel(name, example?.value);
    this.text.rows = Math.min(18, Math.max(4, this.text.value.split("\n").length + 1));
    this.forgetFile();
    this.check();
    this.changed();
  }

  // Names the model outside of the body, where the body cannot: that of the example, or one that
  // takes a picture.
  nameModel(name, value) {
    const type = this.chosenType, examples = this.content[JSON_TYPE].examples;
    if (type === JSON_TYPE) this.lastModel = value?.modelname ?? this.lastModel;
    else if (type === "text/plain") this.lastModel = name;
    else if (!isLines(type) && !examples[this.lastModel]?.["x-picture"]) this.lastModel = this.firstModel();
    if (type === FORM_TYPE) this.fields.modelname.value = this.lastModel ?? "";
    if (typeof this.lastModel === "string") this.model(this.lastModel, !(type === JSON_TYPE || type === FORM_TYPE || isLines(type)));
  }

  // A copy with names in the place of long texts, such as pictures in base64.
  shortened(value) {
    if (typeof value === "string" && value.length > LONG) {
      const type = pictureType(value);
      const name = this.place(`the example's ${type ? "picture" : "text"}`, value);
      if (type && this.long.size === 1) this.preview(blobOf(value, type));
      return name;
    }
    if (Array.isArray(value)) return value.map((one) => this.shortened(one));
    if (value && typeof value === "object") return Object.fromEntries(Object.entries(value).map(([name, one]) => [name, this.shortened(one)]));
    return value;
  }

  place(title, what) {
    let name = `<${title}>`;
    for (let at = 2; this.long.has(name); at++) name = `<${title} ${at}>`;
    this.long.set(name, what);
    return name;
  }

  preview(blob) {
    if (this.shownPicture) URL.revokeObjectURL(this.shownPicture);
    this.shownPicture = URL.createObjectURL(blob);
    this.thumbnail.src = this.shownPicture;
    this.thumbnail.hidden = false;
  }

  forgetFile() {
    this.chooser.value = "";
    this.files = [];
    this.thumbnail.hidden = !this.long.size || !this.picture;
    this.say();
  }

  chosen() {
    const files = [...this.chooser.files];
    const bytes = files.reduce((sum, file) => sum + file.size, 0) * (this.picture ? 4 / 3 : 1);
    this.trouble.replaceChildren();
    if (bytes > limits.maxBody) {
      this.chooser.value = "";
      this.trouble.replaceChildren(el("p", { class: "trouble", role: "alert" },
        `The body would have ${size(bytes)}; the server takes at most ${size(limits.maxBody)} (MODEL_SERVER_MAX_BODY_MB). Choose something smaller.`));
      return;
    }
    this.files = files;
    if (files[0]?.type.startsWith("image/")) this.preview(files[0]);
    if (this.picture && files[0]) this.insert(files[0]);
    this.say();
    this.changed();
  }

  // Puts the name of a file into the field of the example that has the picture.
  insert(file) {
    let document_;
    try {
      document_ = JSON.parse(this.text.value);
    } catch {
      document_ = null;
    }
    const payload = document_?.payload;
    if (!payload || typeof payload !== "object" || Array.isArray(payload)) {
      this.trouble.replaceChildren(el("p", { class: "trouble", role: "alert" }, `The body has no object “payload” in which “${this.picture}” could be. Choose the example again.`));
      return;
    }
    this.long.clear();
    payload[this.picture] = this.place(file.name, file);
    this.text.value = written(document_);
  }

  say() {
    const names = [...this.long.keys()].filter((name) => this.text.value.includes(name));
    this.said.textContent = this.files.length ? this.files.map((file) => `${file.name}, ${size(file.size)}${file.type && `, ${file.type}`}`).join("; ")
      : names.length ? `${names.join(" and ")} is sent as base64.` : "";
  }

  // A body that is no JSON can be sent too: the server says what is wrong with it.
  check() {
    let wrong = "";
    if (this.chosenType === JSON_TYPE && this.text.value.trim()) {
      try { JSON.parse(this.text.value); } catch (error) { wrong = error.message; }
    }
    this.text.setAttribute("aria-invalid", String(Boolean(wrong)));
    this.say();
    if (wrong) this.said.textContent = `This is not JSON: ${wrong}. It is sent as it is.`;
  }

  // Zeros in the shapes that the model says, where they are few.
  async fromTensors() {
    this.trouble.replaceChildren();
    try {
      const { inputs } = await this.described();
      const made = inputs.map(({ name, datatype, shape }) => {
        const sides = shape.map((side) => Math.max(1, Number(side)));
        const size = sides.reduce((one, side) => one * side, 1);
        const zero = datatype === "BYTES" ? "text" : datatype === "BOOL" ? false : 0;
        return { name, shape: sides, datatype, size, data: Array.from({ length: Math.min(size, MOST_NUMBERS) }, () => zero) };
      });
      const large = made.find((one) => one.size > MOST_NUMBERS);
      if (large) {
        this.trouble.replaceChildren(el("p", { class: "trouble", role: "status" },
          `“${large.name}” takes [${large.shape.join(", ")}], ${large.size.toLocaleString("en")} numbers: too many to write here. Send a file, or ask the model by /infer/{model}.`));
        return;
      }
      const fields = "inputs" in (this.examples[this.example.value]?.value ?? {});
      this.text.value = written(fields
        ? { inputs: made.map(({ size, ...one }) => one) }
        : Object.fromEntries(made.map(({ name, data }) => [name, data])));
      this.check();
      this.changed();
    } catch (error) {
      this.trouble.replaceChildren(errorView(error));
    }
  }

  // The text in parts: those that are sent as they are, and what is sent in the place of a name.
  get parts() {
    let parts = [this.text.value];
    for (const [name, what] of this.long) {
      const quoted = JSON.stringify(name);
      parts = parts.flatMap((part) => (typeof part !== "string" ? [part]
        : part.split(quoted).flatMap((one, at) => (at ? [what instanceof Blob ? { base64: what } : { text: what }, one] : [one]))));
    }
    return parts;
  }

  // What is sent: { type, parts } | { type, file } | { fields, files } | undefined.
  read() {
    const type = this.chosenType;
    if (type === FORM_TYPE) {
      const fields = Object.fromEntries(Object.entries(this.fields).map(([name, input]) => [name, input.value]).filter(([, value]) => value));
      return { fields, files: this.files };
    }
    if (this.isText) return this.text.value ? { type, parts: this.parts } : undefined;
    const [file] = this.files;
    return { type: type === "image/*" ? file?.type || "image/png" : type, file };
  }
}

// The body as `fetch` takes it.
export async function encoded(body) {
  if (!body) return {};
  if (body.files) {
    const form = new FormData();
    for (const [name, value] of Object.entries(body.fields)) form.set(name, value);
    for (const file of body.files) form.append("files", file);
    return { body: form };
  }
  const headers = { "Content-Type": body.type };
  if (!body.parts) return { headers, body: body.file ?? "" };
  const texts = await Promise.all(body.parts.map(async (part) => (typeof part === "string" ? part
    : JSON.stringify(part.text ?? (await base64(part.base64))))));
  return { headers, body: texts.join("") };
}
