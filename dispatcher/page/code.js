// The same request for curl, Python, boto3 and JavaScript, ready to copy.

import { el, needsKey, root } from "./api.js";

const INLINE = 4000; // characters of a body that are shown; longer ones are a file to save
const KEY = "YOUR_KEY";

const text = JSON.stringify; // what it writes is a text of Python and JavaScript too
const shell = (value) => `'${value.replaceAll("'", `'\\''`)}'`;

// A value as Python writes it.
function python(value, indent = "") {
  if (value === null || value === undefined) return "None";
  if (value === true) return "True";
  if (value === false) return "False";
  if (typeof value !== "object") return text(value);
  const inner = `${indent}    `;
  const parts = Array.isArray(value)
    ? value.map((one) => python(one, inner))
    : Object.entries(value).map(([name, one]) => `${text(name)}: ${python(one, inner)}`);
  const [open, close] = Array.isArray(value) ? "[]" : "{}";
  const line = `${open}${parts.join(", ")}${close}`;
  return line.length < 70 ? line : `${open}\n${inner}${parts.join(`,\n${inner}`)},\n${indent}${close}`;
}

// How a request is written: `raw` sends the picture itself, `json` has the whole body in the code,
// and `file` sends a file with the body.
function formOf(request) {
  const { entry, document_, picture } = request;
  const fields = Object.keys(document_.payload ?? {});
  if (picture && fields.length === 1 && fields[0] === entry.media?.picture && attributes(request)) return "raw";
  return picture || text(document_).length > INLINE ? "file" : "json";
}

const url = (path) => `${root}/${path}`;
const infer = (request) => url(`infer/${encodeURIComponent(request.entry.modelName)}`);

function query(request) {
  const pairs = new URLSearchParams(request.document_.parameters).toString();
  return pairs && `?${pairs}`;
}

// The custom attributes of SageMaker's clients; undefined where they cannot hold the names and values.
function attributes(request) {
  const pairs = Object.entries({ modelname: request.entry.modelName, ...request.document_.parameters });
  const line = pairs.map(([name, value]) => `${name}=${value}`).join(";");
  const plain = pairs.every(([name, value]) => /^[!-~]+$/.test(`${name}${value}`) && !/[;,=]/.test(`${name}${value}`));
  return plain && line.length <= 1024 ? line : undefined;
}

const WRITERS = {
  curl(request, form) {
    const raw = form === "raw";
    const body = raw ? `@${request.picture.name}` : form === "json" ? text(request.document_) : "@request.json";
    return [
      `curl ${shell(raw ? infer(request) + query(request) : url("invocations"))}`,
      `-H ${shell(`Content-Type: ${raw ? request.picture.type : "application/json"}`)}`,
      ...(needsKey ? [`-H 'x-api-key: ${KEY}'`] : []),
      `--data-binary ${shell(body)}`,
    ].join(" \\\n  ");
  },

  "Python"(request, form) {
    const headers = (type) => python({ ...(type && { "Content-Type": type }), ...(needsKey && { "x-api-key": KEY }) }, "    ");
    const lines = ["import requests", ""];
    if (form === "raw") {
      lines.push(
        `with open(${text(request.picture.name)}, "rb") as picture:`,
        "    answer = requests.post(",
        `        ${text(infer(request))},`,
        `        params=${python(request.document_.parameters ?? {}, "        ")},`,
        `        headers=${headers(request.picture.type)},`,
        "        data=picture,",
        "        timeout=60,",
        "    )");
    } else if (form === "json") {
      lines.push(
        "answer = requests.post(",
        `    ${text(url("invocations"))},`,
        `    json=${python(request.document_, "    ")},`,
        ...(needsKey ? [`    headers=${headers()},`] : []),
        "    timeout=60,",
        ")");
    } else {
      lines.push(
        'with open("request.json", "rb") as body:',
        "    answer = requests.post(",
        `        ${text(url("invocations"))},`,
        `        headers=${headers("application/json")},`,
        "        data=body,",
        "        timeout=60,",
        "    )");
    }
    return [...lines, "if not answer.ok:", "    raise SystemExit(answer.text)", "print(answer.json())"].join("\n");
  },

  "boto3"(request, form) {
    const body = form === "json" ? `json.dumps(${python(request.document_, "    ")})`
      : `open(${text(form === "raw" ? request.picture.name : "request.json")}, "rb")`;
    return [
      "import json",
      "",
      "import boto3",
      "",
      "# On SageMaker: without endpoint_url and the keys, and with the endpoint's own name.",
      "runtime = boto3.client(",
      '    "sagemaker-runtime",',
      `    endpoint_url=${text(root)},`,
      '    region_name="eu-central-1",',
      '    aws_access_key_id="none",',
      '    aws_secret_access_key="none",',
      ")",
      ...(needsKey ? [
        "runtime.meta.events.register(",
        `    "before-call", lambda params, **_: params["headers"].update({"x-api-key": ${text(KEY)}})`,
        ")",
      ] : []),
      "answer = runtime.invoke_endpoint(",
      '    EndpointName="local",',
      `    ContentType=${text(form === "raw" ? request.picture.type : "application/json")},`,
      ...(form === "raw" ? [`    CustomAttributes=${text(attributes(request))},`] : []),
      `    Body=${body},`,
      ")",
      'print(json.load(answer["Body"]))',
    ].join("\n");
  },

  "JavaScript"(request, form) {
    const type = form === "raw" ? request.picture.type : "application/json";
    const address = form === "raw" ? infer(request) + query(request) : url("invocations");
    const body = form === "json"
      ? `JSON.stringify(${JSON.stringify(request.document_, null, 2).replaceAll("\n", "\n  ")})`
      : `await readFile(${text(form === "raw" ? request.picture.name : "request.json")})`;
    return [
      ...(form === "json" ? [] : ['import { readFile } from "node:fs/promises"; // in a browser: the File of an <input>', ""]),
      `const answer = await fetch(${text(address)}, {`,
      '  method: "POST",',
      `  headers: ${text({ "Content-Type": type, ...(needsKey && { "x-api-key": KEY }) })},`,
      `  body: ${body},`,
      "});",
      "if (!answer.ok) throw new Error(await answer.text());",
      "console.log(await answer.json());",
    ].join("\n");
  },
};

let last = "curl"; // what was chosen for one request is shown first for the next
let blocks = 0;

// The view of a request: { entry, document_: the body, picture }.
export function codeView(request) {
  const form = formOf(request);
  const code = el("code");
  const pre = el("pre", { tabindex: "0", id: `code-${++blocks}`, role: "tabpanel" }, code);
  const { button: copy, copied } = copier(code);
  const buttons = Object.keys(WRITERS).map((name, at, names) => el("button", {
    type: "button", role: "tab", "aria-controls": pre.id,
    onclick: () => choose(name),
    onkeydown: (event) => {
      const to = { ArrowRight: at + 1, ArrowLeft: at - 1 }[event.key];
      if (to === undefined) return;
      const next = (to + names.length) % names.length;
      choose(names[next]);
      buttons[next].focus();
    },
  }, name));
  function choose(name) {
    last = name;
    for (const one of buttons) {
      const on = one.textContent === name;
      one.setAttribute("aria-selected", String(on));
      one.tabIndex = on ? 0 : -1;
    }
    pre.setAttribute("aria-label", `The request for ${name}`);
    code.textContent = WRITERS[name](request, form);
    copied.textContent = "";
  }
  choose(last);
  const needed = form === "raw" ? [request.picture.blob, request.picture.name]
    : form === "file" ? [new Blob([text(request.document_)]), "request.json"] : null;
  return el("div", { class: "code" },
    el("div", { class: "code-head" },
      el("div", { role: "tablist", "aria-label": "Language" }, buttons),
      copy, copied),
    pre,
    needed && el("p", { class: "note" }, "It reads ", saved(...needed), " from the folder in which it runs."));
}

// A button that copies what an element shows, and the place that says so.
function copier(code) {
  const copied = el("span", { class: "note", role: "status" });
  const button = el("button", { type: "button", onclick: async () => {
    try {
      await navigator.clipboard.writeText(code.textContent);
    } catch { // without https a page may not use it
      getSelection().selectAllChildren(code);
      document.execCommand("copy");
    }
    copied.textContent = "Copied";
  } }, "Copy");
  return { button, copied };
}

// A link that saves a file.
function saved(blob, name) {
  return el("a", { href: "#", download: name, onclick: (event) => {
    const link = event.currentTarget;
    if (link.href.startsWith("blob:")) return;
    link.href = URL.createObjectURL(blob); // made when it is wanted
  } }, name);
}
