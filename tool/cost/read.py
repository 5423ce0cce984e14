"""The traffic of a container: from two pages of its metrics, or from its log."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime

from prometheus_client.parser import text_string_to_metric_families

from tool.trouble import Trouble

OK, UNKNOWN, MICRO = 200, 404, 1e-6
OTHER, SEVERAL = "other", "several"
ASKING = (  # how the routes end that ask a model
    *("/invocations", "/predict", "/invoke", "/infer/<model>"),
    *("/infer", "/generate", "/generate_stream"),
)
INFERENCE = "nv_inference_"
COUNTED = ("dispatcher_", INFERENCE)
BUSY = tuple(f"{INFERENCE}compute_{part}_duration_us" for part in ("input", "infer", "output"))
RUNS, ASKED = f"{INFERENCE}exec_count", f"{INFERENCE}request_success"
REQUESTS, CPU = "dispatcher_requests_total", "dispatcher_cpu_seconds_total"

SIGN = "dispatcher_ready"  # each page of ours has it

Labels = frozenset[tuple[str, str]]


@dataclass
class Use:
    """What a model did and used.

    Args:
        requests: that named it alone.
        failed: how many of those had no answer.
        answers: results with status 200; each of a list counts.
        seconds: in which its requests were being answered, without waiting in the queue.
        cpu_seconds: of its processes, and its part of those of the programs.
        gpu_seconds: in which it ran on a GPU.
        memory_bytes: of its own processes; 0 where that is not known.

    """

    requests: int = 0
    failed: int = 0
    answers: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    gpu_seconds: float = 0.0
    memory_bytes: float = 0.0

    @property
    def was_asked(self) -> bool:
        return bool(self.requests or self.answers)


@dataclass
class Traffic:
    """What the models of a container did within some time.

    Args:
        seconds: how long that was.
        models: by name; those that were not asked, too.
        memory: bytes that the programs take beside the models; 0 where that is not known.
        notes: what a reader has to know about the numbers.

    """

    seconds: float
    models: dict[str, Use]
    memory: float = 0.0
    notes: list[str] = field(default_factory=list)


class Page:
    """A page of `/metrics`.

    Args:
        text: in Prometheus' format.
        where: it comes from.

    Raises:
        Trouble: it is no such page of ours.

    """

    def __init__(self, text: str, where: str) -> None:
        self.values: defaultdict[str, dict[Labels, float]] = defaultdict(dict)
        try:
            for name, labels, value in samples(text):
                self.values[name][labels] = value
        except ValueError as error:
            raise Trouble(
                f"{where} is no page of metrics ({str(error)[:80]}); save one by "
                "`curl -s http://127.0.0.1:8080/metrics > FILE`"
            ) from error
        if SIGN not in self.values:
            raise Trouble(
                f"{where} has no metrics of this project's (no {SIGN}); use "
                "/metrics on NGINX's port, not Triton's own"
            )

    def by_model(self, *names: str, **labels: str) -> defaultdict[str, float]:
        """Return the sums of samples with these labels, by their label `model`."""
        found: defaultdict[str, float] = defaultdict(float)
        for name in names:
            for key, value in self.values.get(name, {}).items():
                if labels.items() <= key:
                    found[dict(key).get("model", "")] += value
        return found


def samples(text: str) -> Iterator[tuple[str, Labels, float]]:
    """Yield name, labels and value of each sample.

    Raises:
        ValueError: one cannot be what we or Triton have written.

    """
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            name = sample.name
            if name.startswith(INFERENCE):  # the parser adds an ending to counters
                name = name.removesuffix("_total")
            if name == REQUESTS and not {"model", "route", "status"} <= sample.labels.keys():
                raise ValueError(f"{name} lacks labels")
            if name.startswith(COUNTED) and not math.isfinite(sample.value):
                raise ValueError(f"{name} is {sample.value}")
            yield name, frozenset(sample.labels.items()), sample.value


def since(after: Page, before: Page) -> bool:
    """Turn the counts of a page into those since an earlier page; return if they began again."""
    again = False
    for name, samples in after.values.items():
        if not name.endswith(("_total", "_sum", "_us", "_count", "_success")):
            continue
        for key, value in samples.items():
            earlier = before.values.get(name, {}).get(key, 0.0)
            again |= value < earlier
            samples[key] = value if value < earlier else value - earlier
    return again


def read_metrics(after: Page, before: Page, seconds: float, cores: float) -> Traffic:
    """Return the traffic between two pages.

    Args:
        after: the later page; its counts become those since the earlier one.
        before: the earlier page.
        seconds: between them.
        cores: that an inference uses, where the pages have no CPU seconds.

    """
    models: defaultdict[str, Use] = defaultdict(Use)
    traffic = Traffic(seconds, models)
    ended = before.values.get(CPU, {}).keys() - after.values.get(CPU, {}).keys()
    if since(after, before):
        traffic.notes.append("some counts began again at 0: a program or a model was restarted")
    if gone := sorted({dict(key).get("model", "") for key in ended} - {""}):
        traffic.notes.append(
            f"unloaded meanwhile, so their CPU seconds are missing: {', '.join(gone)}"
        )
    for key, value in after.values.get(REQUESTS, {}).items():
        labels = dict(key)
        name = labels["model"]
        if value and asks(labels["route"]):
            ok = labels["status"] == str(OK)
            if name not in {"", SEVERAL} and (ok or name != OTHER):
                models[name].requests += int(value)
                models[name].failed += 0 if ok else int(value)
                models[name].answers += int(value) if ok else 0
    items = after.by_model("dispatcher_items_total", status=str(OK))
    for name, value in items.items():
        models[name].answers += int(value)
    if any(items.values()):
        traffic.notes.append("a request with lists of payloads counts as one more answer")
    queued = after.by_model("dispatcher_queue_seconds_sum")
    for name, value in after.by_model("dispatcher_request_seconds_sum").items():
        if name in models:
            models[name].seconds = max(0.0, value - queued[name])
    add_processors(traffic, after, cores)
    return traffic


def add_processors(traffic: Traffic, page: Page, cores: float) -> None:
    """Add CPU and GPU seconds and memory.

    Triton counts the time of a batch once for each request in it.
    """
    models = traffic.models
    runs, asked = page.by_model(RUNS), page.by_model(ASKED)
    alone = {name: min(1.0, runs[name] / count) for name, count in asked.items() if count}
    on_gpu: set[str] = set()
    for key, value in page.values.get(BUSY[1], {}).items():
        labels = dict(key)
        if "gpu_uuid" in labels:
            on_gpu.add(name := labels.get("model", ""))
            models[name].gpu_seconds += value * MICRO * alone.get(name, 0)
    for name, value in page.by_model("dispatcher_memory_bytes").items():
        if name:
            models[name].memory_bytes = value
        else:
            traffic.memory = value
    cpu = page.by_model(CPU)
    if cpu:
        if not any(("program", "triton") in key for key in page.values[CPU]):
            traffic.notes.append("Triton is elsewhere: its CPU seconds and its memory are missing")
        front = cpu.pop("", 0.0)  # it works for all of them, as long as each takes
        busy = sum(use.seconds for use in models.values())
        for name, use in models.items():
            use.cpu_seconds = cpu[name] + (front * use.seconds / busy if busy else 0)
        return
    traffic.notes.append(f"CPU seconds are estimated: Triton's compute time × {cores:g} (--cores)")
    for name, value in page.by_model(*BUSY).items():
        if name not in on_gpu:
            models[name].cpu_seconds = value * MICRO * alone.get(name, 0) * cores


def read_log(lines: Iterable[str], where: str, cores: float, seconds: float = 0.0) -> Traffic:
    """Return the traffic that a log has.

    Args:
        lines: of the log.
        where: it comes from.
        cores: that an inference uses.
        seconds: that it covers; 0 for those from its first request to its last.

    Raises:
        Trouble: a line is cut off, or has not the fields of this project.

    """
    models: defaultdict[str, Use] = defaultdict(Use)
    first, last = float("inf"), float("-inf")
    notes = [
        f"CPU seconds are estimated: a client's own time + inference × {cores:g} (--cores)",
        "a log has no memory: instances are chosen by load alone",
    ]
    for number, line in enumerate(lines, 1):
        if not line.startswith("{"):
            continue
        try:
            request = json.loads(line)
            if "lines of the log were dropped" in str(request.get("message", "")):
                notes.append(f"{request['message']} (line {number})")
            if not request.get("model") or not asks(request.get("route", "")):
                continue
            if request["status"] == UNKNOWN:
                continue  # the name may be made up
            add_request(models, request, cores)
            begin = datetime.fromisoformat(request["time"]).timestamp()
            first, last = min(first, begin), max(last, begin + request["total_s"])
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise Trouble(
                f"line {number} of {where} is cut off or no line of this log "
                f"({type(error).__name__}: {str(error)[:60]}); remove it, or save the whole log "
                "(`docker logs CONTAINER 2> FILE`)"
            ) from error
    return Traffic(seconds or max(0.0, last - first), models, notes=notes)


def asks(route: str) -> bool:
    return route.endswith(ASKING)


def add_request(models: defaultdict[str, Use], request: dict[str, object], cores: float) -> None:
    """Add a request to its models; one for several counts for each as an equal part."""

    def number(name: str) -> float:
        value = request.get(name, 0.0)
        if not isinstance(value, int | float) or not math.isfinite(value):
            raise ValueError(f"{name} is {value!r}")
        return float(value)

    names = str(request["model"]).split(",")
    ok = request["status"] == OK
    answers = number("items") - number("failed") if "items" in request else float(ok)
    taken = max(0.0, number("total_s") - number("queue_s"))
    inference = number("inference_s") if "inference_s" in request else taken
    own = number("decode_s") + number("postprocess_s")
    for name in names:
        use = models[name]
        use.requests += len(names) == 1
        use.failed += len(names) == 1 and not ok
        use.answers += round(answers / len(names)) if ok else 0
        use.seconds += taken / len(names)
        use.cpu_seconds += (own + inference * cores) / len(names)
