// The shell of the page: its tabs, the API key, and what each tab starts.

import { banner, el, limits, needsKey, setKey } from "./api.js";
import { start as startTry } from "./try.js";

const tabs = [...document.querySelectorAll("[role=tab]")];
const panels = tabs.map((tab) => document.getElementById(tab.getAttribute("aria-controls")));
const views = {}; // what `start` of each tab returned, a promise

// The first time that a tab is shown it starts; later it looks again, if it has a `refresh`.
function show(panel) {
  if (views[panel.id]) views[panel.id].then((view) => view?.refresh?.());
  else views[panel.id] = begin(panel);
}

async function begin(panel) {
  try {
    const start = panel.id === "try" ? startTry : (await import("./models.js")).start;
    return await start(panel);
  } catch (error) {
    views[panel.id] = undefined;
    panel.append(el("p", { class: "trouble" }, `This part of the page does not work: ${error.message}. Load the page again.`));
    return undefined;
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
