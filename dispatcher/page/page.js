// The page on which models are tried: a model, what it is asked, and its answer.

import { at, el, maxBody, send, showBanner, showError, startWithKey } from "./api.js";
import { showAnswer } from "./answer.js";
import { listModels, readInputs } from "./models.js";
import { canRecord, startRecording } from "./sound.js";

let models = [];
let inputs = null; // of the chosen model
let picture = ""; // as a URL with its bytes in base64
let sample = ""; // the one that an example brought
let file = ""; // a sound or any other file, as such a URL
let endRecording = null;

const chosen = () => models.find((one) => one.modelName === at("model").value);

async function start() {
  showBanner("");
  try {
    models = await listModels();
  } catch (error) {
    showError(at("banner"), error);
    return;
  }
  if (!models.length) showBanner("No model is served yet.");
  at("ask").hidden = !models.length;
  at("model").replaceChildren(...models.map((one) => el("option", { value: one.modelName }, one.modelName)));
  const first = models.find((one) => one.state === "READY");
  if (first) at("model").value = first.modelName;
  await showFields();
}

async function showFields() {
  const model = chosen();
  if (!model) return;
  at("refusal").replaceChildren();
  at("submit").disabled = true;
  let read = { others: { payload: {} } };
  try {
    read = await readInputs(model);
  } catch (error) {
    showError(at("refusal"), error);
  }
  if (model !== chosen()) return; // another one was chosen meanwhile
  inputs = read;
  const { example = {} } = model, { payload = {} } = inputs.others;
  at("picture-field").hidden = !inputs.picture;
  at("text-field").hidden = !inputs.text;
  if (inputs.text) at("text").value = example[inputs.text] ?? "";
  if (inputs.picture && example[inputs.picture] && picture === sample) {
    picture = sample = `data:image/jpeg;base64,${example[inputs.picture]}`; // browsers look into it
    showPicture("The picture of its example. Choose, drop or paste another one.");
  }
  at("file-field").hidden = !inputs.file;
  at("record").hidden = !(inputs.isSound && canRecord);
  if (inputs.file) {
    file = `data:${inputs.isSound ? "audio/wav" : ""};base64,${example[inputs.file]}`;
    showFile("That of its example. Choose, drop or paste another one.");
  }
  const isEmpty = !inputs.others.inputs && !Object.keys(payload).length;
  at("others-field").hidden = isEmpty && Boolean(inputs.picture || inputs.text || inputs.file || inputs.row);
  showRow(inputs.row ?? {});
  at("others").value = JSON.stringify(inputs.others, null, 1);
  showParameters(model.parameters ?? {});
  at("submit").disabled = false;
}

// A value that is no text is shown, and read, as JSON.
function showRow(row) {
  at("row").replaceChildren(...Object.entries(row).map(([name, { type, choices, value, description }]) => {
    const input = choices
      ? el("select", { name }, ["", ...choices].map((one) => el("option", { value: one }, one)))
      : el("input", { name, type: ["number", "integer"].includes(type) ? "number" : "text", step: "any" });
    input.value = type === "string" ? value ?? "" : JSON.stringify(value) ?? "";
    return el("label", { title: description }, name, input);
  }));
  at("row-field").hidden = !inputs.row;
}

function readRow() {
  const read = ({ name, value }) => {
    const { type, empty } = inputs.row[name];
    const isNumber = type === "number" || type === "integer";
    return [name, value === "" ? empty : type === "string" ? value : isNumber ? Number(value) : JSON.parse(value)];
  };
  return Object.fromEntries([...at("row").querySelectorAll("[name]")].map(read)); // without what is undefined, in JSON
}

function showParameters(declared) {
  at("parameters").replaceChildren(...Object.entries(declared).map(([name, one]) => {
    const input = one.enum
      ? el("select", { name }, one.enum.map((choice) => el("option", { value: choice }, choice)))
      : el("input", { name, type: "number", step: one.type === "integer" ? "1" : "any", min: one.minimum, max: one.maximum });
    // Objects have the boxes that are drawn.
    input.value = name === "format" && one.enum?.includes("objects") ? "objects" : one.default;
    return el("label", { title: one.meaning }, name, input);
  }));
  at("parameters-field").hidden = !Object.keys(declared).length;
}

function readParameters(declared = {}) {
  const read = [...at("parameters").querySelectorAll("[name]")].map(({ name, value }) => [name, value]);
  const changed = read.filter(([name, value]) => value !== "" && value !== String(declared[name].default));
  return Object.fromEntries(changed.map(([name, value]) => [name, declared[name].enum ? value : Number(value)]));
}

function showPicture(note) {
  at("preview").hidden = false;
  at("preview").src = picture;
  at("picture-note").textContent = note;
}

function showFile(note) {
  at("player").hidden = !inputs.isSound;
  if (inputs.isSound) at("player").src = file;
  at("file-note").textContent = note;
}

// Takes a file, unless the server would refuse a body of its size: base64 makes four bytes of three.
function takeFile([given]) {
  const isPicture = !at("picture-field").hidden;
  if (!given || (!isPicture && at("file-field").hidden)) return;
  at("refusal").replaceChildren();
  const most = Math.floor((maxBody - 4096) * 3 / 4);
  if (given.size > most) {
    const inMiB = (bytes) => `${(bytes / 2 ** 20).toFixed(1)} MiB`;
    at("refusal").replaceChildren(`“${given.name}” has ${inMiB(given.size)}; the server takes ${isPicture ? "pictures" : "files"} of at most ${inMiB(most)} here.`);
    return;
  }
  const reader = new FileReader();
  reader.addEventListener("load", () => {
    if (isPicture) picture = reader.result;
    else file = reader.result;
    (isPicture ? showPicture : showFile)(given.name);
    ask();
  });
  reader.readAsDataURL(given);
}

// Begins a recording; its end takes it for the file.
async function record() {
  at("refusal").replaceChildren();
  try {
    const end = endRecording;
    endRecording = null;
    at("record").textContent = "Record";
    if (end) takeFile([await end()]);
    else {
      endRecording = await startRecording((seconds) => { at("file-note").textContent = `Recording, ${seconds} s …`; });
      at("record").textContent = "Stop";
    }
  } catch (error) {
    at("refusal").replaceChildren(`Nothing was recorded: ${error.message}`);
  }
}

// The body of the request; its fields in JSON are what a person has written.
function writeRequest() {
  const model = chosen();
  const { payload, ...others } = JSON.parse(at("others").value);
  const asked = { modelname: model.modelName, ...others, parameters: readParameters(model.parameters) };
  if (payload) asked.payload = inputs.row ? readRow() : payload;
  if (inputs.text) asked.payload[inputs.text] = at("text").value;
  if (inputs.picture) asked.payload[inputs.picture] = picture.slice(picture.indexOf(",") + 1);
  if (inputs.file) asked.payload[inputs.file] = file.slice(file.indexOf(",") + 1);
  return JSON.stringify(asked);
}

async function ask() {
  at("refusal").replaceChildren();
  let body;
  try {
    body = writeRequest();
  } catch (error) {
    at("refusal").replaceChildren(`The fields are not JSON: ${error.message}`);
    at("others").focus();
    return;
  }
  const shown = inputs.picture && picture, began = performance.now();
  at("submit").disabled = true;
  at("answer").replaceChildren("The model is at work …");
  try {
    const answer = await send("invocations", { method: "POST", body, headers: { "Content-Type": "application/json" } });
    showAnswer(at("answer"), answer, shown, (performance.now() - began) / 1000);
  } catch (error) {
    showError(at("answer"), error);
  }
  at("submit").disabled = false;
}

at("model").addEventListener("change", showFields);
for (const one of ["file", "any-file"]) at(one).addEventListener("change", () => takeFile(at(one).files));
at("record").addEventListener("click", record);
addEventListener("paste", (event) => takeFile(event.clipboardData.files));
addEventListener("dragover", (event) => event.preventDefault()); // else the file would replace the page
addEventListener("drop", (event) => {
  event.preventDefault();
  takeFile(event.dataTransfer.files);
});
at("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  ask();
});
startWithKey(start);
