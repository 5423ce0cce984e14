// The tab on which models are tried: what is asked, of which models, and their answers.

import { ask, banner, el, insist, limits, listModels, passes, size } from "./api.js";
import { badges, Card } from "./answers.js";
import { FieldError, ModelForm } from "./forms.js";
import { blobOf, examplesOf, groupOf, maskOf, pictureType, takes } from "./kinds.js";
import { base64, PictureField } from "./picture.js";

const at = (id) => document.getElementById(id);
const GROUPS = ["A picture", "A text", "A picture and a text", "Other", "Tensors"];
const MANY = 8; // models from which on they can be filtered

const state = {
  entries: [], // what GET /models says of each model
  shown: "", // the same as a text
  forms: new Map(), // of the chosen models, by name
  running: null, // what ends the requests that are being answered
  looking: null, // the request for the models, while it lasts
  away: false, // whether the server did not answer
  textTouched: false,
};
let picture;

const say = (text) => { at("said").textContent = text; };

function refuse(message, hint = "") {
  at("refusal").hidden = !message;
  at("refusal").replaceChildren(el("strong", {}, message), hint && ` ${hint}`);
}

// ---- Models

function refresh() {
  state.looking ??= insist(look, away).finally(() => { state.looking = null; });
  return state.looking;
}

async function look() {
  const entries = await listModels();
  const shown = JSON.stringify(entries);
  if (shown === state.shown) return;
  state.shown = shown;
  state.entries = entries.map((one) => ({ ...one, mark: JSON.stringify(one), taken: takes(one) }));
  showModels();
}

function away(error) {
  banner(error);
  if (error && !state.entries.length) at("choices").replaceChildren(el("p", { class: "note" }, "No list of models yet."));
  if (!error && state.away) say("The server answers again.");
  state.away = Boolean(error);
}

function showModels() {
  const chosen = new Set([...state.forms.keys()]);
  const groups = GROUPS.map((name) => [name, state.entries.filter((one) => groupOf(one.taken) === name)]);
  at("choices").replaceChildren(...groups.filter(([, list]) => list.length).map(([name, list]) =>
    el("div", { class: "group", role: "group", "aria-label": `Models that take: ${name.toLowerCase()}` },
      el("p", { class: "group-name" }, name),
      list.map((entry) => el("label", { class: "choice", "data-name": entry.modelName },
        el("input", { type: "checkbox", checked: chosen.has(entry.modelName), onchange: (event) => choose(entry, event.target.checked) }),
        el("span", { class: "name" }, entry.modelName), badges(entry))))));
  if (!state.entries.length) at("choices").replaceChildren(el("p", { class: "note" }, "No model is served yet."));
  at("filter").hidden = state.entries.length <= MANY;
  const inOrder = groups.flatMap(([, list]) => list);
  const first = inOrder.find((one) => one.state === "READY") ?? inOrder[0];
  const again = state.entries.filter((one) => chosen.has(one.modelName));
  const wanted = again.length ? again : first ? [first] : [];
  for (const name of chosen) if (!wanted.some((one) => one.modelName === name)) state.forms.delete(name);
  for (const entry of wanted) {
    box(entry.modelName).checked = true;
    if (state.forms.get(entry.modelName)?.entry.mark !== entry.mark) state.forms.set(entry.modelName, new ModelForm(entry, entry.taken));
  }
  showFields();
}

const box = (name) => at("choices").querySelector(`[data-name="${CSS.escape(name)}"] input`);

function choose(entry, on) {
  if (on) state.forms.set(entry.modelName, new ModelForm(entry, entry.taken));
  else state.forms.delete(entry.modelName);
  showFields();
}

function chosen() {
  return state.entries.filter((one) => state.forms.has(one.modelName));
}

// ---- What is asked

function showFields() {
  const list = chosen();
  at("picture-field").hidden = !list.some((one) => one.taken.picture);
  at("text-field").hidden = !list.some((one) => one.taken.text);
  at("forms").replaceChildren(...list.flatMap((one) => state.forms.get(one.modelName).elements));
  showSamples(list);
  at("submit").disabled = !list.length;
  at("submit").textContent = list.length > 1 ? `Ask ${list.length} models` : "Ask";
}

function samplesOf(list) {
  const pictures = new Map(), texts = new Map();
  for (const entry of list) {
    const { picture: pictureField, text: textField } = entry.taken;
    examplesOf(entry).forEach((example, index) => {
      const shown = pictureField && example[pictureField];
      const type = pictureType(shown);
      if (type && !pictures.has(shown)) pictures.set(shown, { entry, example, type, index });
      const text = textField && example[textField];
      if (text && !texts.has(text)) texts.set(text, { entry, example, text });
    });
  }
  return { pictures: [...pictures.values()], texts: [...texts.values()] };
}

const previews = new Map(); // of sample pictures, by their base64

function preview(encoded, type) {
  if (!previews.has(encoded)) {
    const blob = blobOf(encoded, type);
    previews.set(encoded, { blob, url: URL.createObjectURL(blob) });
  }
  return previews.get(encoded);
}

function showSamples(list) {
  const { pictures, texts } = samplesOf(list);
  const usable = pictures.flatMap(({ entry, example, type, index }) => {
    try {
      return [{ entry, example, index, type, ...preview(example[entry.taken.picture], type) }];
    } catch { // damaged base64
      return [];
    }
  });
  const name = ({ entry, index, type }) => `${entry.modelName}-sample${index ? `-${index + 1}` : ""}.${type.slice(6).replace("jpeg", "jpg")}`;
  at("picture-samples").replaceChildren(...usable.map((one, number) => el("button", {
    type: "button", class: "thumb", title: `Sample picture ${number + 1}`,
    onclick: () => { fill(one); picture.set(one.blob, name(one)); },
  }, el("img", { src: one.url, alt: `Sample picture ${number + 1}` }))));
  at("text-samples").replaceChildren(...texts.map((one) => el("button", {
    type: "button", class: "text-sample", onclick: () => {
      fill(one);
      state.textTouched = false;
      at("text").value = one.text;
      submit();
    },
  }, one.text.length > 80 ? `${one.text.slice(0, 80)}…` : one.text)));
  const masks = new Set(list.map((one) => maskOf(one, one.taken)).filter(Boolean));
  at("text-samples").append(...[...masks].map((mask) => el("button", { type: "button", onclick: () => insert(mask) }, `Insert ${mask}`)));
  if (usable.length && !picture.value && !at("picture-field").hidden) picture.set(usable[0].blob, name(usable[0]), "", true);
  const [first] = texts;
  if (first && !state.textTouched && !texts.some((one) => one.text === at("text").value)) at("text").value = first.text;
}

function fill({ entry, example }) {
  state.forms.get(entry.modelName)?.fill(example);
}

function insert(mask) {
  const text = at("text");
  text.setRangeText(mask, text.selectionStart, text.selectionEnd, "end");
  state.textTouched = true;
  text.focus();
}

// ---- Asking

// What is sent to one model: { entry, request, document_, json, picture, text, textField, mask }.
function prepared(entry, encoded) {
  const { taken } = entry;
  const request = state.forms.get(entry.modelName).read();
  const given = { entry, request, mask: maskOf(entry, taken), document_: { modelname: entry.modelName } };
  if (request.inputs) {
    given.document_.inputs = request.inputs;
  } else {
    if (taken.text) {
      given.textField = taken.text;
      given.text = request.payload[taken.text] = at("text").value;
    }
    given.document_.payload = request.payload;
    if (taken.picture) {
      if (!picture.value) throw new FieldError("There is no picture yet.", at("file"));
      given.picture = picture.value;
      request.payload[taken.picture] = encoded;
    }
  }
  if (Object.keys(request.parameters).length) given.document_.parameters = request.parameters;
  given.json = JSON.stringify(given.document_);
  const { size: bytes } = new Blob([given.json]);
  if (bytes > limits.maxBody) {
    throw new FieldError(`The request to ${entry.modelName} has ${size(bytes)}; the server takes at most `
      + `${size(limits.maxBody)}. Nothing was sent.`);
  }
  return given;
}

async function submit() {
  const list = chosen();
  if (!list.length) return;
  state.running?.abort();
  refuse("");
  const running = (state.running = new AbortController());
  let all;
  try {
    const encoded = list.some((one) => one.taken.picture) && picture.value ? await base64(picture.value.blob) : "";
    all = list.map((entry) => prepared(entry, encoded));
  } catch (error) {
    refuse(error.message);
    error.field?.focus();
    return;
  }
  if (running.signal.aborted) return; // a later request has begun
  const cards = all.map((given) => new Card(given));
  at("answers").replaceChildren(...cards.map((card) => card.element));
  at("cancel").hidden = false;
  if (at("answers").getBoundingClientRect().top > innerHeight / 2) at("answers").scrollIntoView();
  say(`Asking ${list.map((one) => one.modelName).join(", ")}`);
  await Promise.all(cards.map(async (card, index) => {
    try {
      await card.fill(await ask(all[index].json, { signal: running.signal, onProgress: (share) => card.sent(share) }));
    } catch (error) {
      card.fail(error);
      if (passes(error)) refresh();
    }
    const longest = Math.max(...cards.map((one) => one.total ?? 0), 0.1);
    for (const one of cards) one.draw(longest);
  }));
  if (state.running !== running) return;
  at("cancel").hidden = true;
  const failed = cards.filter((card) => card.failed).length;
  say(failed ? `${failed} of ${cards.length} requests failed` : `${cards.length > 1 ? "All answers are" : "The answer is"} there`);
}

export function start() {
  picture = new PictureField((quiet) => {
    refuse("");
    if (!quiet) submit();
  }, refuse);
  at("ask").addEventListener("submit", (event) => {
    event.preventDefault();
    submit();
  });
  at("ask").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) submit();
  });
  at("text").addEventListener("input", () => { state.textTouched = true; });
  at("cancel").addEventListener("click", () => state.running?.abort());
  at("filter").addEventListener("input", () => {
    const wanted = at("filter").value.toLowerCase();
    for (const one of at("choices").querySelectorAll(".choice")) {
      one.hidden = !one.dataset.name.toLowerCase().includes(wanted);
    }
    for (const group of at("choices").querySelectorAll(".group")) {
      group.hidden = !group.querySelector(".choice:not([hidden])");
    }
  });
  refresh();
  return { refresh };
}
