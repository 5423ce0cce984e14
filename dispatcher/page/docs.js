// The reference: Swagger UI shows openapi.json, and sends requests to this server.

import { at, headers, root, send, showBanner, showError, startWithKey } from "./api.js";

async function start() {
  showBanner("");
  let spec;
  try {
    spec = (await send("openapi.json")).body;
  } catch (error) {
    showError(at("banner"), error);
    return;
  }
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
startWithKey(start);
