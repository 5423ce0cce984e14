// The shell of the page: its tabs, the API key, and what each tab starts.

import { banner, el, limits, needsKey, setKey } from "./api.js";
import { start as startTry } from "./try.js";

const tabs = [...document.querySelectorAll("[role=tab]")];
const panels = tabs.map((tab) => document.getElementById(tab.getAttribute("aria-controls")));
const started = {};

// What a tab does when it is shown: the first time it starts, later it looks again.
async function show(panel) {
  if (!started[panel.id]) {
    started[panel.id] = panel.id === "try" ? { start: startTry } : await models(panel);
    started[panel.id].view = started[panel.id].start(panel);
  } else {
    (await started[panel.id].view)?.refresh?.();
  }
}

async function models(panel) {
  try {
    return await import("./models.js");
  } catch {
    started[panel.id] = null;
    return { start: () => panel.replaceChildren(el("p", { class: "trouble" },
      "This part of the page did not arrive. Load the page again.")) };
  }
}

function select(index, focus) {
  tabs.forEach((tab, at) => {
    tab.setAttribute("aria-selected", String(at === index));
    tab.tabIndex = at === index ? 0 : -1;
    panels[at].hidden = at !== index;
  });
  if (focus) tabs[index].focus();
  history.replaceState(null, "", index ? `#${panels[index].id}` : location.pathname + location.search);
  show(panels[index]);
}

tabs.forEach((tab, index) => {
  tab.addEventListener("click", () => select(index));
  tab.addEventListener("keydown", (event) => {
    const to = { ArrowRight: index + 1, ArrowLeft: index - 1, Home: 0, End: -1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    select((to + tabs.length) % tabs.length, true);
  });
});

// A file that misses its place must not replace the page.
for (const name of ["dragover", "drop"]) addEventListener(name, (event) => event.preventDefault());

const form = document.getElementById("key-form");
form.addEventListener("submit", (event) => {
  event.preventDefault();
  setKey(document.getElementById("key").value.trim());
  banner("");
  for (const panel of panels) if (!panel.hidden) show(panel);
});
addEventListener("key-needed", () => { form.hidden = false; });
form.hidden = !needsKey;
document.getElementById("reference").hidden = needsKey; // a link cannot send the key
document.getElementById("version").textContent = limits.version;

select(Math.max(0, panels.findIndex((panel) => `#${panel.id}` === location.hash)));
