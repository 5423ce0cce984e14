"""`GET /metrics`: counters, the current state, and Triton's own metrics."""

from __future__ import annotations

import http.client
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from flask import Blueprint, Response, request
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, choose_encoder
from prometheus_client.registry import Collector

from dispatcher.auth.api_keys import KeyFile
from dispatcher.model_control.listing import ModelListing
from dispatcher.observability.exemplars import (
    END,
    OPENMETRICS,
    as_openmetrics,
    triton_as_openmetrics,
)
from dispatcher.observability.telemetry import Metrics
from dispatcher.readiness.instances import model_processes, process_cpu, process_memory
from dispatcher.readiness.status import Readiness
from dispatcher.settings import Settings
from dispatcher.version import VERSION, revision

TRITON_TIMEOUT_S = 1.0
OK = 200


class CurrentState(Collector):
    """The current state, as this worker knows it.

    Args:
        readiness: whether the container and its models are ready.
        keys: the API keys; `None` where none are needed.
        listing: knows which engine runs a model.
        triton_up: whether Triton answers.

    """

    def __init__(
        self, readiness: Readiness, keys: KeyFile | None, listing: ModelListing, *, triton_up: bool
    ) -> None:
        self.readiness = readiness
        self.keys = keys
        self.listing = listing
        self.triton_up = triton_up

    def collect(self) -> Iterable[Metric]:
        """Yield the families of metrics."""
        yield InfoMetricFamily(
            "dispatcher_build",
            "The version that runs, and the commit that its image was built from.",
            {"version": VERSION, "revision": revision()},
        )
        yield GaugeMetricFamily(
            "dispatcher_ready",
            "Whether /ping is 200.",
            float(not self.readiness.reasons()),
        )
        yield GaugeMetricFamily(
            "dispatcher_triton_up",
            "Whether Triton gave its own metrics; with TRITON_URL whether it listed its models.",
            float(self.triton_up),
        )
        if self.keys:
            yield GaugeMetricFamily(
                "dispatcher_api_keys_ok",
                "Whether the file of API keys can be used; if not, the previous keys stay valid.",
                float(not self.keys.fault),
            )
        ok = GaugeMetricFamily(
            "dispatcher_canary_ok",
            "Whether a model answered its example when it was last probed.",
            labels=("model",),
        )
        age = GaugeMetricFamily(
            "dispatcher_canary_age_seconds",
            "Seconds since a model was last probed.",
            labels=("model",),
        )
        for model in self.readiness.prober().results:
            report = self.readiness.report(model)
            if report and report["age_s"] is not None:
                ok.add_metric((model,), float(bool(report["ok"])))
                age.add_metric((model,), float(str(report["age_s"])))
        yield from (ok, age, *self.engines())
        restarts = CounterMetricFamily(
            "dispatcher_restarts",
            "How often `serve` has restarted a program.",
            labels=("program",),
        )
        for program, count in self.readiness.supervisor().restarts().items():
            restarts.add_metric((program.lower(),), count)
        yield restarts
        memory = GaugeMetricFamily(
            "dispatcher_worker_resident_bytes",
            "Memory of each web worker.",
            labels=("pid",),
        )
        for pid, size in worker_memory():
            memory.add_metric((pid,), size)
        yield from (memory, *self.processes())

    def processes(self) -> tuple[Metric, Metric]:
        """Return what the programs and the models use, by their living processes."""
        labels = ("program", "model")
        cpu = CounterMetricFamily(
            "dispatcher_cpu_seconds",
            "CPU seconds of the processes of a program, or of one of its models.",
            labels=labels,
        )
        memory = GaugeMetricFamily(
            "dispatcher_memory_bytes",
            "Memory of those processes; what they share counts once.",
            labels=labels,
        )
        triton = self.readiness.supervisor().triton_pid
        # gunicorn's own process has the CPU seconds of the workers that ended.
        workers = [int(pid) for pid, _ in worker_memory()]
        pids = {("gunicorn", ""): [os.getppid(), *workers]}
        if triton:
            pids["triton", ""] = [triton]
        for model, pid in model_processes(triton):
            pids.setdefault(("triton", model), []).append(pid)
        for key, found in pids.items():
            cpu.add_metric(key, sum(map(process_cpu, found)))
            memory.add_metric(key, sum(map(process_memory, found)))
        return cpu, memory

    def engines(self) -> tuple[Metric, Metric]:
        """Return the metrics about the engines of ready models."""
        engine = InfoMetricFamily(
            "dispatcher_model_engine",
            "Which engine runs a model on the CPU, and in which precision.",
            labels=("model", "version"),
        )
        speedup = GaugeMetricFamily(
            "dispatcher_model_speedup_ratio",
            "Speed of a model relative to ONNX Runtime in f32, as measured at its first load.",
            labels=("model", "version"),
        )
        for state in self.readiness.prober().models:
            found = self.listing.engine(state.name, state.version) if state.ready else {}
            if found:
                labels = (state.name, state.version)
                engine.add_metric(labels, {key: found[key] for key in ("engine", "precision")})
                if "speedup" in found:
                    speedup.add_metric(labels, found["speedup"])
        return engine, speedup


def worker_memory() -> Iterator[tuple[str, int]]:
    """Yield process id and resident bytes of this web worker and its siblings."""
    parent = os.getppid()
    try:
        pids = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    except OSError:
        pids = [str(os.getpid())]  # not every kernel lists them
    for pid in pids:
        try:
            pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        except (OSError, IndexError):
            continue  # it has ended meanwhile
        yield pid, pages * os.sysconf("SC_PAGE_SIZE")


def metrics_routes(
    settings: Settings,
    metrics: Metrics,
    readiness: Readiness,
    keys: KeyFile | None,
    listing: ModelListing,
) -> Blueprint:
    """Return `/metrics`."""
    routes = Blueprint("metrics", __name__)

    @routes.get("/metrics")
    def show() -> Response:
        """Show all metrics in Prometheus' text format."""
        # Those of a Triton elsewhere are scraped there.
        triton = b"" if settings.triton_url else triton_page(settings.triton_metrics_port)
        up = not readiness.prober().fault if settings.triton_url else bool(triton)
        registry = CollectorRegistry()
        registry.register(CurrentState(readiness, keys, listing, triton_up=up))
        # Exemplars are all that the other format has more.
        if settings.traces_url and asks_for_openmetrics(request.headers.get("Accept", "")):
            own = metrics.openmetrics() + as_openmetrics(registry)
            page = own + triton_as_openmetrics(triton) + END
            return Response(page, content_type=OPENMETRICS)
        page = metrics.page() + generate_latest(registry) + triton
        return Response(page, content_type=CONTENT_TYPE_PLAIN_0_0_4)

    return routes


def asks_for_openmetrics(accept: str) -> bool:
    """Check whether a scraper prefers OpenMetrics, as Prometheus does."""
    return choose_encoder(accept)[1].startswith("application/openmetrics-text")


def triton_page(port: int) -> bytes:
    """Return Triton's own metrics; empty where it does not answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TRITON_TIMEOUT_S)
    try:
        connection.request("GET", "/metrics")
        response = connection.getresponse()
        return response.read() if response.status == OK else b""
    except (OSError, http.client.HTTPException):
        return b""
    finally:
        connection.close()
