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
  for (const [name, one] of models) {
    const content = body.paths[`/infer/${encodeURIComponent(name)}`]?.post.requestBody.content["application/json"];
    if (content) one.declared = follow(body, follow(body, content.schema).properties.payload);
  }
  return [...models.values()];
}

// A schema, or the one that it refers to in the document.
const follow = (document, schema) => schema.$ref?.slice(2).split("/").reduce((part, name) => part[name], document) ?? schema;

// The fields of a model's payload for its picture, its text, and a sound or any other file, and its
// other fields with their examples; or these as a row, where its client declares them or all are numbers and texts.
// A model without a payload takes tensors, in `inputs`.
export async function readInputs({ modelName, example, media = {}, declared }) {
  if (!example || Array.isArray(example) || typeof example !== "object") {
    const { body } = await send(`v2/models/${encodeURIComponent(modelName)}`);
    return { others: { inputs: body.inputs.map(describeTensor) } };
  }
  const { text, audio, file = audio } = media;
  // A WAV begins as a WebP does.
  const picture = media.picture ?? Object.keys(example).find((name) => name !== file && isPicture(example[name]));
  const isOther = ([name]) => ![picture, text, file].includes(name);
  const others = Object.entries(example).filter(isOther);
  const fields = Object.entries(declared?.properties ?? {}).filter(isOther);
  const found = { picture, text, file, isSound: Boolean(audio), others: { payload: {} } };
  if (fields.length) return { ...found, row: Object.fromEntries(fields.map(([name, schema]) => [name, asField(schema, example[name])])) };
  const isRow = !(picture || text || file) && others.length > 1
    && others.every(([, value]) => typeof value === "number" || typeof value === "string");
  // An empty cell is a missing value, which a payload of declared fields does not have.
  if (isRow) return { ...found, row: Object.fromEntries(others.map(([name, value]) => [name, { type: typeof value, value, empty: null }])) };
  return { ...found, others: { payload: Object.fromEntries(others) } };
}

function asField(schema, value = schema.default) {
  const { type, enum: choices, description } = schema.anyOf?.find((one) => one.type !== "null") ?? schema;
  return { type: type ?? typeof choices?.[0], choices, value, description: schema.description ?? description };
}

function describeTensor({ name, datatype, shape }) {
  const sizes = shape.map((size) => Math.max(1, size));
  const element = datatype === "BYTES" ? "a text" : 0;
  const length = sizes.reduce((product, size) => product * size, 1);
  return { name, datatype, shape: sizes, data: length > 1000 ? [] : Array(length).fill(element) };
}
