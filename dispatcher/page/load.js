// The load as GET /metrics shows it: Prometheus' text, what happened between two reads, quantiles.

const TAKEN = new Set([
  "dispatcher_request_seconds_bucket", "dispatcher_request_seconds_count", "dispatcher_queue_seconds_bucket",
  "dispatcher_requests_in_flight", "dispatcher_memory_bytes", "nv_inference_pending_request_count",
]);
const REFUSED = new Set(["429", "503"]); // the queue is full, or the model or Triton is not ready
const SAMPLE = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})?[ \t]+(\S+)(?:[ \t]+-?\d+)?$/;
const LABEL = /(\w+)="((?:[^"\\]|\\.)*)"/gs;
const ESCAPED = { n: "\n" };

const number = (text) => (/^[+-]?Inf$/.test(text) ? (text[0] === "-" ? -Infinity : Infinity) : Number(text));

// The samples of Prometheus' text format: [{ name, labels, value }].
export function parse(text, taken = () => true) {
  const samples = [];
  for (const line of text.split("\n")) {
    const match = line[0] === "#" ? null : SAMPLE.exec(line);
    if (!match || !taken(match[1])) continue;
    const labels = new Map();
    for (const [, name, value] of (match[2] ?? "").matchAll(LABEL)) {
      labels.set(name, value.replace(/\\(.)/gs, (_, one) => ESCAPED[one] ?? one));
    }
    samples.push({ name: match[1], labels, value: number(match[3]) });
  }
  return samples;
}

// The value below which a share of all observations is, as Prometheus' histogram_quantile estimates it.
// `buckets` has the upper limits and how many observations are below each: [[0.1, 3], …, [Infinity, 9]].
export function quantile(share, buckets) {
  const sorted = [...buckets].sort(([a], [b]) => a - b);
  const total = sorted.at(-1)?.[1];
  if (!total) return null;
  const rank = share * total;
  const at = sorted.findIndex(([, count]) => count >= rank);
  const [limit, count] = sorted[at];
  const [low, below] = at > 0 ? sorted[at - 1] : [0, 0];
  return limit === Infinity ? low : low + ((limit - low) * (rank - below)) / (count - below);
}

// One read: by model what is counted, and what is so at the moment.
function read(text, at) {
  const counts = new Map(), memory = new Map(), pending = new Map();
  let inFlight = 0;
  const add = (map, key, value) => map.set(key, (map.get(key) ?? 0) + value);
  for (const { name, labels, value } of parse(text, (one) => TAKEN.has(one))) {
    const model = labels.get("model") ?? "", status = labels.get("status") ?? "";
    if (name === "dispatcher_requests_in_flight") inFlight += value;
    else if (name === "dispatcher_memory_bytes") add(memory, model, value);
    else if (name === "nv_inference_pending_request_count") add(pending, model, value);
    else {
      const kind = name.endsWith("_count") ? "count" : name.includes("queue") ? "queue" : "seconds";
      add(counts, JSON.stringify([model, status, kind, labels.get("le") ?? ""]), value);
    }
  }
  return { at, counts, memory, pending, inFlight };
}

const nothing = () => ({ answers: 0, refused: 0, failed: 0, seconds: new Map(), queue: new Map() });

// What happened between two reads, of all models and of each; null where the counts began again.
function between(first, last) {
  const all = nothing(), models = new Map();
  for (const [key, value] of last.counts) {
    const more = value - (first.counts.get(key) ?? 0);
    if (more < 0) return null;
    const [model, status, kind, limit] = JSON.parse(key);
    if (!models.has(model)) models.set(model, nothing());
    for (const one of [all, models.get(model)]) {
      if (kind === "count") {
        one.answers += more;
        if (REFUSED.has(status)) one.refused += more;
        else if (status >= "400") one.failed += more;
      } else if (status < "300") { // refusals are quick, and would hide how long answers take
        one[kind].set(number(limit), (one[kind].get(number(limit)) ?? 0) + more);
      }
    }
  }
  const seconds = (last.at - first.at) / 1000;
  return { all: figures(all, seconds), models: new Map([...models].map(([name, one]) => [name, figures(one, seconds)])) };
}

// Per second, and in milliseconds; null where there was nothing to measure.
function figures({ answers, refused, failed, seconds: took, queue }, seconds) {
  const ms = (share, buckets) => {
    const found = quantile(share, buckets);
    return found === null ? null : 1000 * found;
  };
  return {
    rate: answers / seconds, refused: refused / seconds, failed: failed / seconds,
    p50: ms(0.5, took), p99: ms(0.99, took), queue: ms(0.99, queue),
  };
}

export const NONE = figures(nothing(), 1);

// The last reads of /metrics. `every` is the time between two in milliseconds, `over` the time that
// the current figures are about, `kept` how many steps the history has.
export class Load {
  constructor({ every, over, kept }) {
    Object.assign(this, { every, over, kept });
    this.forget();
  }

  forget() {
    this.reads = [];
    this.steps = []; // what happened between each two successive reads; null for a gap
  }

  add(text, at = performance.now()) {
    const last = this.reads.at(-1), next = read(text, at);
    // After a gap, such as a tab that was not shown, or a restart, nothing before is comparable.
    const step = last && at - last.at < 3 * this.every ? between(last, next) : null;
    if (!step) this.reads = [];
    if (last) this.steps.push(step);
    this.reads.push(next);
    while (this.reads.length > 1 && at - this.reads[0].at > this.over) this.reads.shift();
    this.steps.splice(0, this.steps.length - this.kept);
  }

  gap() {
    this.reads = [];
    if (this.steps.at(-1)) this.steps.push(null);
  }

  get latest() {
    return this.reads.at(-1);
  }

  // What happened in the last seconds; null until there are two reads.
  current() {
    return this.reads.length > 1 ? between(this.reads[0], this.latest) : null;
  }

  // The history of a figure, of all models or of one; null for a gap.
  history(figure, model) {
    return this.steps.map((step) => step && ((model === undefined ? step.all : step.models.get(model)) ?? NONE)[figure]);
  }
}

const SVG = "http://www.w3.org/2000/svg";
const WIDE = 120, HIGH = 26;

// A line of the last values, newest at the right; the numbers beside it say the same.
export class Sparkline {
  constructor(points) {
    this.points = points;
    this.element = document.createElementNS(SVG, "svg");
    for (const [name, value] of Object.entries({
      class: "sparkline", viewBox: `0 0 ${WIDE} ${HIGH}`, preserveAspectRatio: "none", "aria-hidden": "true",
    })) this.element.setAttribute(name, value);
    [this.area, this.line] = ["area", "line"].map((name) => {
      const path = document.createElementNS(SVG, "path");
      path.setAttribute("class", name);
      this.element.append(path);
      return path;
    });
  }

  show(values) {
    const most = values.reduce((one, value) => Math.max(one, value ?? 0), 0) || 1;
    const x = (at) => (WIDE * (this.points - values.length + at)) / (this.points - 1);
    const y = (value) => HIGH - 2 - ((HIGH - 4) * value) / most;
    const runs = [];
    values.forEach((value, at) => {
      if (value === null || value === undefined) return;
      const before = values[at - 1];
      if (before === null || before === undefined) runs.push([]);
      runs.at(-1).push([x(at).toFixed(1), y(value).toFixed(1)]);
    });
    const line = (run) => run.map((point, at) => `${at ? "L" : "M"}${point}`).join("") + (run.length < 2 ? "h1" : "");
    this.line.setAttribute("d", runs.map(line).join(""));
    this.area.setAttribute("d", runs.map((run) => `${line(run)}L${run.at(-1)[0]},${HIGH}L${run[0][0]},${HIGH}Z`).join(""));
  }
}
