// The shell of the page: its tabs, the API key, and what each tab starts.

import { askForKey, banner, lacksKey, limits } from "./api.js";
import { start as startModels } from "./models.js";
import { start as startTry } from "./try.js";

const tabs = [...document.querySelectorAll("[role=tab]")];
const panels = tabs.map((tab) => document.getElementById(tab.getAttribute("aria-controls")));
const starts = { try: startTry, models: startModels };
const views = {}; // what `start` of each tab returned

let selected = 0;

// The first time that a tab is shown it starts; later it looks again.
function select(index, focus) {
  selected = index;
  tabs.forEach((tab, at) => {
    tab.setAttribute("aria-selected", String(at === index));
    tab.tabIndex = at === index ? 0 : -1;
    panels[at].hidden = at !== index || lacksKey();
  });
  if (focus) tabs[index].focus();
  const panel = panels[index];
  history.replaceState(null, "", index ? `#${panel.id}` : location.pathname + location.search);
  if (lacksKey()) {
    banner("This server needs an API key. Enter yours above.");
    return;
  }
  if (views[panel.id]) views[panel.id].refresh();
  else views[panel.id] = starts[panel.id](panel);
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

askForKey(() => {
  banner("");
  select(selected);
});
document.getElementById("version").textContent = limits.version;

select(Math.max(0, panels.findIndex((panel) => `#${panel.id}` === location.hash)));
