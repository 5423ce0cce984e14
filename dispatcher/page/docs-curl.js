// A request as a command for curl, to be pasted into a shell.

import { KEY, shell } from "./code.js";

const LONGEST = 100_000; // characters of an argument; Linux takes 128 kB
const NAMELESS = "FILE"; // until a file is chosen

// The name of a file in an option of curl's forms.
const named = (name) => `"${name.replace(/["\\]/g, "\\$&")}"`;

export function curl({ method, path, headers, body }, { root, key }) {
  const options = [];
  let before = "";
  if (method !== "GET" && !(method === "POST" && body)) options.push(`-X ${method}`);
  if (key) options.push(`-H ${shell(`x-api-key: ${KEY}`)}`);
  for (const [name, value] of Object.entries(headers)) options.push(`-H ${shell(`${name}: ${value}`)}`);
  if (body?.type) options.push(`-H ${shell(`Content-Type: ${body.type}`)}`);
  if (body?.files) {
    for (const [name, value] of Object.entries(body.fields)) options.push(`--form-string ${shell(`${name}=${value}`)}`);
    for (const { name, type } of body.files.length ? body.files : [{ name: NAMELESS }]) {
      options.push(`-F ${shell(`files=@${named(name)}${type ? `;type=${type}` : ""}`)}`);
    }
  } else if (body?.parts) {
    const text = body.parts.map((part) => (typeof part === "string" ? shell(part)
      : part.base64 ? `'"'"$(base64 < ${shell(part.base64.name)} | tr -d '\\n')"'"'` : shell(JSON.stringify(part.text)))).filter((one) => one !== "''").join("");
    if (text.length > LONGEST || body.parts.some((part) => part.base64)) {
      before = `printf %s ${text} |\n  `; // which may be as long as it likes, as it is no program
      options.push("--data-binary @-");
    } else {
      options.push(`--data-binary ${text}`);
    }
  } else if (body) {
    options.push(`--data-binary ${shell(`@${body.file?.name ?? NAMELESS}`)}`);
  }
  if (/^image\/|octet|npy|binary/.test(headers.Accept ?? "")) options.push("--output answer");
  return `${before}curl ${shell(`${root}/${path}`)}${options.map((one) => ` \\\n  ${one}`).join("")}`;
}
