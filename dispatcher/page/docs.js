// The reference: Swagger UI shows openapi.json, and sends requests to this server.

import { askForKey, banner, call, headers, insist, lacksKey, root } from "./api.js";

let shown = false;

async function start() {
  if (shown) return;
  if (lacksKey()) {
    banner("The reference needs the API key. Enter yours above.");
    return;
  }
  const spec = await insist(() => call("openapi.json"), banner);
  if (!spec) return;
  shown = true;
  const ui = SwaggerUIBundle({
    spec: { ...spec, servers: [{ url: root }] }, // also behind a proxy that adds a path
    dom_id: "#swagger-ui",
    deepLinking: true,
    defaultModelsExpandDepth: 0,
    displayRequestDuration: true,
    tryItOutEnabled: true,
    validatorUrl: null, // would send the document to another server
    onComplete: () => Object.values(headers()).forEach((key) => ui.preauthorizeApiKey("key", key)),
  });
}

const dark = matchMedia("(prefers-color-scheme: dark)");
const paint = () => document.documentElement.classList.toggle("dark-mode", dark.matches);
dark.addEventListener("change", paint);
paint();
askForKey(start);
start();
