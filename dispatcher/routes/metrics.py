"""`GET /metrics`: counters, the current state, and Triton's own metrics."""

from __future__ import annotations

import http.client
import json
import math
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from itertools import starmap
from pathlib import Path
from typing import Any, TypeVar

from flask import Blueprint, Response
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector

from backends.machine.cpu_share import cpu_limit
from dispatcher.auth.api_keys import KeyFile
from dispatcher.jobs.store import WAITING
from dispatcher.models.listing import ModelListing
from dispatcher.rollout.plan import Plan
from dispatcher.rollout.rollouts import Rollouts
from dispatcher.settings import JOBS, Settings
from dispatcher.status.instances import model_processes, process_cpu, process_memory
from dispatcher.status.status import Readiness
from dispatcher.telemetry.memory import GROUP, MACHINE, free_memory, total_memory
from dispatcher.telemetry.telemetry import Metrics
from dispatcher.version import VERSION, revision

TRITON_TIMEOUT_S = 1.0
OK = 200

BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)

HELP = {
    "dispatcher_build": "The version that runs, and the commit that its image was built from.",
    "dispatcher_ready": "Whether /ping is 200.",
    "dispatcher_triton_up": "Whether Triton gave its metrics, or with TRITON_URL its models.",
    "dispatcher_api_keys_ok": "Whether the file of API keys can be used; if not, those before are.",
    "dispatcher_tls_ok": "Whether the files of TLS can be used; if not, those before are.",
    "dispatcher_tls_certificate_end_timestamp_seconds": "When the certificate in force ends.",
    "dispatcher_probe_ok": "Whether a model answered its example when it was last probed.",
    "dispatcher_probe_age_seconds": "Seconds since a model was last probed.",
    "dispatcher_canary_back": "Whether a model's canary has fallen back.",
    "dispatcher_restarts": "How often `serve` has restarted a program.",
    "dispatcher_proxy_refusals": "Requests that NGINX answered by itself, or gave up.",
    "dispatcher_worker_resident_bytes": "Memory of each web worker.",
    "dispatcher_cpu_seconds": "CPU seconds of the processes of a program, or of one of its models.",
    "dispatcher_memory_bytes": "Memory of those processes; what they share counts once.",
    "dispatcher_batch_size": "Items in each run of a model, of all requests in a batch.",
    "dispatcher_cache_hits": "Requests to a model that Triton's response cache has answered.",
    "dispatcher_cache_misses": "Requests to a model that were not in Triton's response cache.",
    "dispatcher_model_engine": "Which engine runs a model, and in which precision.",
    "dispatcher_model_speedup_ratio": "Speed of a model relative to ONNX Runtime in f32.",
    "dispatcher_cpus": "CPUs that the container may use.",
    "dispatcher_memory_limit_bytes": "Memory that the container may use.",
    "dispatcher_memory_available_bytes": "Memory that it may still use; copies of files are free.",
    "dispatcher_run_dir_size_bytes": "Size of the file system of RUN_DIR.",
    "dispatcher_run_dir_free_bytes": "Free space of the file system of RUN_DIR.",
    "dispatcher_jobs_waiting": "Jobs that wait or run.",
    "dispatcher_jobs_limit": "How many jobs may wait or run.",
}

M = TypeVar("M", bound=Metric)


def family(kind: Callable[..., M], name: str, *labels: str) -> M:
    return kind(name, HELP[name], labels=labels)


def gauge(name: str, value: float) -> Metric:
    return GaugeMetricFamily(name, HELP[name], value)


@dataclass(eq=False)
class CurrentState(Collector):
    """The current state, as this worker knows it."""

    readiness: Readiness  # whether the container and its models are ready
    keys: KeyFile | None  # the API keys; `None` where none are needed
    listing: ModelListing  # knows which engine runs a model
    triton_up: bool  # whether Triton answers
    statistics: list[dict[str, Any]]  # Triton's, of each version of a model
    settings: Settings  # say where files are written, and how many jobs may wait
    plans: Mapping[str, Plan]  # of what is tried beside models

    def collect(self) -> Iterable[Metric]:
        build = family(InfoMetricFamily, "dispatcher_build")
        build.add_metric((), {"version": VERSION, "revision": revision()})
        yield build
        yield gauge("dispatcher_ready", float(not self.readiness.reasons()))
        yield gauge("dispatcher_triton_up", float(self.triton_up))
        if self.keys:
            yield gauge("dispatcher_api_keys_ok", float(not self.keys.fault))
        yield from starmap(gauge, self.readiness.supervisor().tls.items())
        ok = family(GaugeMetricFamily, "dispatcher_probe_ok", "model")
        age = family(GaugeMetricFamily, "dispatcher_probe_age_seconds", "model")
        for model in self.readiness.prober().results:
            report = self.readiness.report(model)
            if report and report["age_s"] is not None:
                ok.add_metric((model,), float(bool(report["ok"])))
                age.add_metric((model,), float(str(report["age_s"])))
        back = family(GaugeMetricFamily, "dispatcher_canary_back", "model")
        for model, plan in self.plans.items():
            if plan.canary:
                back.add_metric((model,), float(bool(plan.back)))
        yield from (ok, age, back, *self.engines())
        restarts = family(CounterMetricFamily, "dispatcher_restarts", "program")
        for program, count in self.readiness.supervisor().restarts().items():
            restarts.add_metric((program.lower(),), count)
        yield restarts
        if refusals := self.readiness.supervisor().refusals:
            refused = family(CounterMetricFamily, "dispatcher_proxy_refusals", "status")
            for status, number in refusals.items():
                refused.add_metric((status,), number)
            yield refused
        memory = family(GaugeMetricFamily, "dispatcher_worker_resident_bytes", "pid")
        for pid, size in worker_memory():
            memory.add_metric((pid,), size)
        yield from (memory, *limits(), *files_of(self.settings), *self.processes(), *self.runs())

    def processes(self) -> tuple[Metric, Metric]:
        """Return what the programs and the models use, by their living processes."""
        labels = ("program", "model")
        cpu = family(CounterMetricFamily, "dispatcher_cpu_seconds", *labels)
        memory = family(GaugeMetricFamily, "dispatcher_memory_bytes", *labels)
        triton = self.readiness.supervisor().triton_pid
        # gunicorn's own process has the CPU seconds of the workers that ended.
        workers = [int(pid) for pid, _ in worker_memory()]
        pids = {("gunicorn", ""): [os.getppid(), *workers]}
        if triton:
            pids["triton", ""] = [triton]
        for model, pid in model_processes(triton):
            pids.setdefault(("triton", model), []).append(pid)
        for key, found in pids.items():
            # Triton's ended children were models, whose seconds have been counted as theirs.
            children = key != ("triton", "")
            cpu.add_metric(key, sum(process_cpu(pid, children=children) for pid in found))
            memory.add_metric(key, sum(map(process_memory, found)))
        return cpu, memory

    def runs(self) -> Iterator[Metric]:
        """Yield how many items a model has run at a time, and what Triton's cache has answered."""
        batches = family(HistogramMetricFamily, "dispatcher_batch_size", "model")
        hits = family(CounterMetricFamily, "dispatcher_cache_hits", "model")
        misses = family(CounterMetricFamily, "dispatcher_cache_misses", "model")
        versions: dict[str, list[dict[str, Any]]] = {}
        for one in self.statistics:
            versions.setdefault(one["name"], []).append(one)
        for model, found in versions.items():
            runs: Counter[int] = Counter()
            for batch in (batch for one in found for batch in one.get("batch_stats", ())):
                runs[batch["batch_size"]] += batch["compute_infer"]["count"]
            if runs:
                batches.add_metric((model,), *histogram(runs))
            hit, missed = (
                sum(one["inference_stats"][kind]["count"] for one in found)
                for kind in ("cache_hit", "cache_miss")
            )
            if hit or missed:
                hits.add_metric((model,), hit)
                misses.add_metric((model,), missed)
        yield from (batches, hits, misses)

    def engines(self) -> tuple[Metric, Metric]:
        labels = ("model", "version")
        engine = family(InfoMetricFamily, "dispatcher_model_engine", *labels)
        speedup = family(GaugeMetricFamily, "dispatcher_model_speedup_ratio", *labels)
        for state in self.readiness.prober().models:
            found = self.listing.engine(state.name, state.version) if state.ready else {}
            if found:
                of = (state.name, state.version)
                engine.add_metric(of, {key: found[key] for key in ("engine", "precision")})
                if "speedup" in found:
                    speedup.add_metric(of, found["speedup"])
        return engine, speedup


def limits(machine: Path = MACHINE, group: Path = GROUP) -> Iterator[Metric]:
    """Yield what this container may use, and how much memory it still may."""
    yield gauge("dispatcher_cpus", cpu_limit(group))
    yield gauge("dispatcher_memory_limit_bytes", total_memory(machine, group))
    yield gauge("dispatcher_memory_available_bytes", free_memory(machine, group))


def files_of(settings: Settings) -> Iterator[Metric]:
    """Yield how much room RUN_DIR has, and how many jobs wait."""
    if settings.run_dir is None:
        return
    with suppress(OSError):
        room = shutil.disk_usage(settings.run_dir)
        yield gauge("dispatcher_run_dir_size_bytes", room.total)
        yield gauge("dispatcher_run_dir_free_bytes", room.free)
    with suppress(OSError):  # there is no folder of jobs where none are taken
        waiting = (settings.jobs_dir or settings.run_dir / JOBS) / WAITING
        yield gauge("dispatcher_jobs_waiting", len([*waiting.iterdir()]))
        yield gauge("dispatcher_jobs_limit", settings.jobs_queue)


def histogram(counts: Counter[int]) -> tuple[list[tuple[str, float]], float]:
    """Return the buckets of a histogram, each with all below it, and the sum of the values."""
    ends = [*BATCHES, math.inf]
    below = [float(sum(number for size, number in counts.items() if size <= end)) for end in ends]
    buckets = list(zip([*(f"{end}.0" for end in BATCHES), "+Inf"], below, strict=True))
    return buckets, sum(size * number for size, number in counts.items())


def worker_memory() -> Iterator[tuple[str, int]]:
    """Yield process id and resident bytes of this web worker and its siblings."""
    parent = os.getppid()
    try:
        pids = Path(f"/proc/{parent}/task/{parent}/children").read_text(encoding="utf-8").split()
    except OSError:
        pids = [str(os.getpid())]  # not every kernel lists them
    for pid in pids:
        try:
            pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="utf-8").split()[1])
        except (OSError, IndexError):
            continue  # it has ended meanwhile
        yield pid, pages * os.sysconf("SC_PAGE_SIZE")


def metrics_routes(
    settings: Settings,
    metrics: Metrics,
    readiness: Readiness,
    keys: KeyFile | None,
    listing: ModelListing,
    *,
    rollouts: Rollouts,
) -> Blueprint:
    routes = Blueprint("metrics", __name__)

    @routes.get("/metrics")
    def show() -> Response:
        """Show all metrics in Prometheus' text format."""
        # Those of a Triton elsewhere are scraped there.
        triton = b"" if settings.triton_url else read(settings.triton_ports["metrics"], "/metrics")
        statistics = triton and read(settings.triton_ports["http"], "/v2/models/stats")
        versions = json.loads(statistics)["model_stats"] if statistics else []
        up = not readiness.prober().fault if settings.triton_url else bool(triton)
        registry = CollectorRegistry()
        state = CurrentState(readiness, keys, listing, up, versions, settings, rollouts.plans)
        registry.register(state)
        page = metrics.page() + generate_latest(registry) + triton
        return Response(page, content_type=CONTENT_TYPE_PLAIN_0_0_4)

    return routes


def read(port: int, path: str) -> bytes:
    """Return what Triton answers; empty where it does not."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TRITON_TIMEOUT_S)
    with suppress(OSError, http.client.HTTPException), closing(connection):
        connection.request("GET", path)
        response = connection.getresponse()
        return response.read() if response.status == OK else b""
    return b""
