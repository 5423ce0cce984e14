// The tab that shows the models, and loads, unloads and reloads them.

import { call, el, errorView, Failure, passes, servedModels } from "./api.js";

const EVERY = 2000; // milliseconds between two reads of /health
const LIST_EVERY = 10_000; // GET /models asks Triton, so more seldom
const LATE = 15_000;
const MANY = 12; // models from which on they can be filtered

const ENGINES = { openvino: "OpenVINO", onnxruntime: "ONNX Runtime" };

const NO = "–";

function ago(seconds) {
  if (seconds < 90) return `${Math.round(seconds)} s ago`;
  return seconds < 5400 ? `${Math.round(seconds / 60)} min ago` : `${Math.round(seconds / 3600)} h ago`;
}

const term = (name, place) => el("div", {}, el("dt", {}, name), place);

function setText(place, text) {
  if (place.textContent !== text) place.textContent = text; // a selection in it survives
}

// ---- One loaded model, or a class that answers with a model of another name

class Row {
  constructor({ modelName: name, served_by: model }, act) {
    this.name = name;
    this.model = model;
    this.state = el("span", { class: "badge state" });
    this.version = el("span", { class: "note" });
    this.facts = {};
    const fact = (title, key) => term(title, (this.facts[key] = el("dd")));
    this.said = el("div", { class: "said" });
    this.more = el("dl", { class: "facts-more" });
    this.reload = el("button", { type: "button", "aria-label": `Reload ${name}`, onclick: () => act.reload(this) }, "Reload");
    this.unload = el("button", { type: "button", "aria-label": `Unload ${name}`, onclick: () => this.ask(true) }, "Unload");
    this.sure = el("button", { type: "button", class: "danger", hidden: true, "aria-label": `Yes, unload ${name}`, onclick: () => act.unload(this) }, "Yes, unload");
    this.keep = el("button", { type: "button", hidden: true, "aria-label": `Keep ${name}`, onclick: () => this.ask(false) }, "Keep");
    this.element = el("li", { class: "card model", "data-name": name },
      el("div", { class: "model-head" },
        el("h3", {}, name), this.state, this.version,
        model === name ? el("div", { class: "buttons" }, this.reload, this.unload, this.sure, this.keep)
          : el("span", { class: "note" }, `a class on the model ${model}, which has the buttons`)),
      el("dl", { class: "facts-of-model" }, fact("Engine", "engine"), fact("Last probe", "probe")),
      this.said,
      el("details", {}, el("summary", {}, "More"), this.more));
  }

  // Asks whether the model is really to be unloaded: its callers get 404 from then on.
  ask(on) {
    this.unload.hidden = this.reload.hidden = on;
    this.sure.hidden = this.keep.hidden = !on;
    (on ? this.sure : this.unload).focus();
  }

  busy(on) {
    for (const one of [this.reload, this.unload, this.sure, this.keep]) one.disabled = on;
    this.element.setAttribute("aria-busy", String(on));
  }

  describe(entry) {
    this.entry = entry;
    this.status(entry.state);
    setText(this.version, entry.version ? `version ${entry.version}` : "");
    const engine = ENGINES[entry.engine] ?? entry.engine;
    setText(this.facts.engine, engine ? [
      engine, entry.precision, entry.speedup && entry.engine !== "onnxruntime" && `${entry.speedup.toFixed(1)}× as fast as ONNX Runtime`,
    ].filter(Boolean).join(", ") : NO);
    const { batching } = entry;
    const more = {
      Folder: entry.modelUrl, Class: entry.client ?? "none: it takes and returns tensors", Weights: entry.weights,
      "Also called": entry.aliases?.join(", "), "Why this engine": entry.engine_reason,
      "Largest difference": entry.difference,
      Batches: batching && (batching.max_batch_size
        ? `up to ${batching.max_batch_size}; requests ${batching.requests_share_runs ? "share" : "do not share"} runs` : "none"),
      Parameters: Object.keys(entry.parameters ?? {}).join(", "),
    };
    const shown = Object.entries(more).filter(([, text]) => text);
    const key = JSON.stringify(shown);
    if (key === this.shown) return;
    this.shown = key;
    this.more.replaceChildren(...shown.map(([name, text]) => term(name, el("dd", {}, text))));
  }

  status(state) {
    setText(this.state, state || "NOT LOADED");
    this.state.dataset.state = state;
  }

  // What /health says of it: { state, reason, required, canary: { ok, reason, age_s } }.
  health(one) {
    if (one?.state) this.status(one.state);
    const probe = one?.canary, place = this.facts.probe;
    place.className = probe && !probe.ok && probe.age_s !== null ? "bad" : "";
    if (!probe || probe.age_s === null) setText(place, one?.reason || "not probed yet");
    else setText(place, probe.ok ? `answered ${ago(probe.age_s)}` : `failed ${ago(probe.age_s)}: ${probe.reason}`);
  }
}

// ---- The tab

class Models {
  constructor(panel) {
    this.panel = panel;
    this.rows = new Map(); // of the loaded models, by name
    this.listed = -Infinity;
    this.build();
    setInterval(() => this.tick(), EVERY);
    document.addEventListener("visibilitychange", () => this.tick());
  }

  build() {
    this.notice = el("div", { class: "notice", role: "alert" });
    this.said = el("p", { class: "note", role: "status" });
    this.ready = el("p", { class: "ready" }, "Looking …");
    this.list = el("ul", { class: "loaded" });
    this.filter = el("input", { type: "search", placeholder: "Filter by name", "aria-label": "Filter models by name", hidden: true, oninput: () => this.sift() });
    this.availableList = el("ul", { class: "available" });
    this.availablePart = el("div", { hidden: true }, el("h2", {}, "Not loaded"), this.availableList);
    this.disabledPart = el("div", { class: "trouble", hidden: true });
    this.panel.replaceChildren(
      el("div", { class: "live-head" }, this.ready, this.said), this.notice,
      el("h2", {}, "Loaded ", el("span", { class: "note" }, "unloading and loading need a key for management, where keys are needed")),
      this.filter, this.list, this.availablePart, this.disabledPart, this.manage());
  }

  manage() {
    const name = el("input", { id: "load-name", required: true, autocomplete: "off", spellcheck: "false" });
    const url = el("input", { id: "load-url", required: true, autocomplete: "off", spellcheck: "false", placeholder: "/models/mine", "aria-describedby": "load-note" });
    const button = el("button", { type: "submit" }, "Load");
    const said = el("div", { class: "said", role: "status" });
    const form = el("form", { class: "row", "aria-label": "Load a model from a folder", onsubmit: (event) => {
      event.preventDefault();
      this.act(said, button, `Loading ${name.value} …`, `${name.value} is loaded.`, () => this.post("models", { model_name: name.value.trim(), url: url.value.trim() }));
    } },
    el("div", { class: "field" }, el("label", { for: "load-name" }, "Name"), name),
    el("div", { class: "field" }, el("label", { for: "load-url" }, "Folder in the container"), url), button);
    const classes = el("div", { class: "said", role: "status" });
    const reload = el("button", { type: "button", onclick: () => this.act(classes, reload, "Loading new and changed classes …", reported, () => this.post("reload")) }, "Reload classes");
    return el("div", { class: "manage" },
      el("div", { class: "card" }, el("h2", {}, "Load a model from a folder"), form,
        el("p", { class: "note", id: "load-note" }, "An absolute path, with config.pbtxt and a version in it."), said),
      el("div", { class: "card" }, el("h2", {}, "Client classes"),
        el("p", { class: "note" }, "Takes up new and changed classes in every web worker, without a restart."),
        el("div", { class: "buttons" }, reload), classes));
  }

  post(path, body) {
    return call(path, { method: "POST", ...(body && { body: JSON.stringify(body), headers: { "Content-Type": "application/json" } }) });
  }

  // Does what a button is for, and shows how it went, in the server's own words where it did not.
  async act(place, button, during, after, work) {
    button.disabled = true;
    place.replaceChildren(el("p", { class: "note" }, during));
    const began = performance.now();
    try {
      const answer = await work();
      const seconds = ((performance.now() - began) / 1000).toFixed(1);
      const text = typeof after === "function" ? after(answer) : `${after} It took ${seconds} s.`;
      place.replaceChildren(el("p", {}, text));
      setText(this.said, text);
      return true;
    } catch (error) {
      place.replaceChildren(errorView(error));
      setText(this.said, "");
      return false;
    } finally {
      button.disabled = false;
      await this.look().catch((error) => this.away(error));
    }
  }

  async reload(row) {
    row.busy(true);
    await this.act(row.said, row.reload, "Loading it again …", `${row.name} was loaded again.`,
      () => this.post(`load_model/${encodeURIComponent(row.name)}`));
    row.busy(false);
  }

  async unload(row) {
    row.busy(true);
    const done = await this.act(row.said, row.sure, "Unloading; requests that it is answering are waited for …",
      `${row.name} was unloaded.`, () => call(`models/${encodeURIComponent(row.name)}`, { method: "DELETE" }));
    row.busy(false);
    if (row.element.isConnected) row.ask(false);
    else if (done) this.focusOn(row.name);
  }

  // The button that was pressed is gone with its row.
  focusOn(name) {
    const next = this.panel.querySelector(`li[data-name="${CSS.escape(name)}"] button`) ?? this.panel.querySelector(".loaded button");
    next?.focus();
  }

  // ---- What is shown

  async tick() {
    if (this.running || this.panel.hidden || document.hidden) return;
    this.running = true;
    try {
      const health = await this.health();
      this.showHealth(health);
      const states = JSON.stringify(health.models.map(({ model, version, state }) => [model, version, state]));
      if (states !== this.states || performance.now() - this.listed > LIST_EVERY) {
        await this.look();
        this.states = states;
      }
      this.back();
    } catch (error) {
      this.away(error);
    } finally {
      this.running = false;
    }
  }

  // 503 is an answer too: the container is not ready, and says why.
  async health() {
    try {
      return await call("health", { signal: AbortSignal.timeout(LATE) });
    } catch (error) {
      if (error.body?.models) return error.body;
      throw error;
    }
  }

  away(error) {
    if (!(error instanceof Failure)) throw error;
    if (this.error === error.message) return;
    this.error = error.message;
    this.panel.classList.add("stale");
    this.notice.replaceChildren(errorView(error, true));
    setText(this.ready, passes(error) ? "What is shown is old." : "Nothing can be shown yet.");
    this.ready.className = "ready bad";
  }

  back() {
    if (!this.error) return;
    this.error = "";
    this.panel.classList.remove("stale");
    this.notice.replaceChildren();
    setText(this.said, "The server answers again.");
  }

  showHealth(health) {
    this.ready.className = health.ready ? "ready" : "ready bad";
    const programs = Object.entries(health.programs ?? {}).map(([name, { state, restarts }]) =>
      `${name} ${state}${restarts ? `, restarted ${restarts}×` : ""}`);
    setText(this.ready, [health.ready ? "Ready." : `Not ready: ${health.reasons.join("; ")}.`, programs.join(" · ")].join(" "));
    const models = new Map(health.models.map((one) => [one.model, one]));
    for (const row of this.rows.values()) row.health(models.get(row.model));
    const disabled = Object.entries(health.disabled ?? {});
    this.disabledPart.hidden = !disabled.length;
    this.disabledPart.replaceChildren(el("p", {}, el("strong", {}, "Disabled classes")),
      el("ul", {}, disabled.map(([name, why]) => el("li", {}, el("code", {}, name), `: ${why}`))));
    this.lastHealth = models;
  }

  // Reads the list of models, once at a time.
  look() {
    this.looking ??= this.readList().finally(() => { this.looking = null; });
    return this.looking;
  }

  async readList() {
    const { models, available } = await servedModels();
    this.listed = performance.now();
    this.showModels(models, available);
  }

  showModels(models, available) {
    const act = { reload: (row) => this.reload(row), unload: (row) => this.unload(row) };
    const names = new Set(models.map((one) => one.modelName));
    for (const [name, row] of this.rows) {
      if (names.has(name)) continue;
      row.element.remove();
      this.rows.delete(name);
    }
    models.forEach((entry, at) => {
      let row = this.rows.get(entry.modelName);
      if (!row) {
        row = new Row(entry, act);
        this.rows.set(entry.modelName, row);
        this.list.insertBefore(row.element, this.list.children[at] ?? null);
        row.health(this.lastHealth?.get(row.model));
      }
      row.describe(entry);
    });
    this.filter.hidden = models.length <= MANY;
    this.showAvailable(available);
    this.sift();
  }

  showAvailable(available) {
    this.availablePart.hidden = !available.length;
    const shown = JSON.stringify(available);
    if (shown === this.shownAvailable) return;
    this.shownAvailable = shown;
    const kept = new Map([...this.availableList.children].map((one) => [one.dataset.name, one]));
    this.availableList.replaceChildren(...available.map(({ modelName: name, modelUrl, aliases }) =>
      kept.get(name) ?? this.availableRow(name, modelUrl, aliases)));
  }

  availableRow(name, modelUrl, aliases) {
    const said = el("div", { class: "said" });
    const button = el("button", { type: "button", "aria-label": `Load ${name}`, onclick: async () => {
      const done = await this.act(said, button, "Loading …", `${name} is loaded.`, () => this.post(`load_model/${encodeURIComponent(name)}`));
      if (done && !button.isConnected) this.focusOn(name);
    } }, "Load");
    return el("li", { class: "card", "data-name": name },
      el("div", { class: "model-head" }, el("h3", {}, name), el("span", { class: "note" }, [modelUrl, ...aliases].join(", also called ")),
        el("div", { class: "buttons" }, button)), said);
  }

  sift() {
    const wanted = this.filter.hidden ? "" : this.filter.value.toLowerCase();
    for (const one of [...this.list.children, ...this.availableList.children]) one.hidden = !one.dataset.name.toLowerCase().includes(wanted);
  }
}

// What POST /reload answers, as a sentence.
function reported({ taken, removed, broken, absent }) {
  const parts = [
    taken.length ? `Loaded: ${taken.join(", ")}.` : "No class is new or changed.",
    removed.length && `Removed: ${removed.join(", ")}.`,
    ...Object.entries(broken).map(([name, why]) => `${name}: ${why}.`),
    ...Object.entries(absent).map(([name, why]) => `${name}: ${why}.`),
  ];
  return parts.filter(Boolean).join(" ");
}

// Starts the tab in a panel; the shell calls `refresh` when it is shown again.
export function start(panel) {
  const view = new Models(panel);
  view.tick();
  return { refresh: () => view.tick() };
}
