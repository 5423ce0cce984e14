// The models, and what each takes, as far as its description and its example show.

import { send } from "./api.js";

const BEGINNINGS = ["/9j/", "iVBORw0KGgo", "R0lGOD", "UklGR", "Qk"]; // of pictures in base64

const isPicture = (value) => typeof value === "string" && value.length >= 60
  && BEGINNINGS.some((one) => value.startsWith(one));

// All models that can be asked: loaded ones, those that are loaded at their first request, and
// classes that ask no model of their own name, of which openapi.json has the examples.
export async function listModels() {
  const models = new Map();
  let token = "";
  do {
    const { body } = await send(`models?next_page_token=${encodeURIComponent(token)}`);
    for (const one of [...body.models, ...body.available]) {
      if (!models.has(one.modelName)) models.set(one.modelName, one);
    }
    token = body.nextPageToken;
  } while (token);
  const { body } = await send("openapi.json");
  for (const { value } of Object.values(body.components.examples)) {
    const { modelname, payload } = value;
    if (!models.has(modelname)) models.set(modelname, { modelName: modelname });
    models.get(modelname).example ??= payload;
  }
  return [...models.values()];
}

// The fields of a model's payload for its picture, its text, and a sound or any other file, and its
// other fields with their examples; or its fields as those of a row, all numbers and texts. A model without a payload takes tensors, in `inputs`.
export async function readInputs({ modelName, example, media = {} }) {
  if (!example || Array.isArray(example) || typeof example !== "object") {
    const { body } = await send(`v2/models/${encodeURIComponent(modelName)}`);
    return { others: { inputs: body.inputs.map(describeTensor) } };
  }
  const { text, audio, file = audio } = media;
  // A WAV begins as a WebP does.
  const picture = media.picture ?? Object.keys(example).find((name) => name !== file && isPicture(example[name]));
  const others = Object.entries(example).filter(([name]) => ![picture, text, file].includes(name));
  const isRow = !(picture || text || file) && others.length > 1
    && others.every(([, value]) => typeof value === "number" || typeof value === "string");
  if (isRow) return { row: example, others: { payload: {} } };
  return { picture, text, file, isSound: Boolean(audio), others: { payload: Object.fromEntries(others) } };
}

function describeTensor({ name, datatype, shape }) {
  const sizes = shape.map((size) => Math.max(1, size));
  const element = datatype === "BYTES" ? "a text" : 0;
  const length = sizes.reduce((product, size) => product * size, 1);
  return { name, datatype, shape: sizes, data: length > 1000 ? [] : Array(length).fill(element) };
}
