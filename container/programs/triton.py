"""Triton: how it is started, and how it is probed."""

from __future__ import annotations

import math
import os
import shutil
import time
from contextlib import suppress
from operator import itemgetter
from pathlib import Path
from urllib.parse import unquote

from backends import engine_choice
from backends.machine import shared_folder
from backends.machine.shared_memory import PREFIX
from container.programs import shared_memory
from container.programs.find_triton import TritonProgram
from container.programs.malloc import ALLOCATOR
from container.programs.model_loads import ModelLoads
from container.programs.triton_options import (
    SHM_PREFIX,
    cache_options,
    newer_options,
    triton_options,
)
from container.repository.shared_memory_plan import SharedMemoryPlan
from container.supervisor.http_probe import ask, has_children, listens, over_tcp
from container.supervisor.program import Program
from dispatcher.settings import INSTANCES, READINESS, WANTED, Settings
from dispatcher.settings.traces import standard
from dispatcher.status.status_file import STALE_S, StatusReader

TRITON_SHARE = 0.19  # of the time to stop; see `container.programs.nginx`

# Else ONNX Runtime reports its use to Microsoft, and keeps a database in the home folder for that.
SILENT = {"ORT_DISABLE_TELEMETRY": "1"}

UNPACKED = "environments"  # a folder in the run folder, see the file triton_python_backend_stub
UNPACKED_IN = Path("/tmp")  # noqa: S108  Triton's Python backend knows no other


def triton_program(
    settings: Settings,
    triton: TritonProgram,
    run_dir: Path,
    plan: SharedMemoryPlan,
    loads: ModelLoads,
) -> Program:
    """Return Triton, on loopback only; it loads every wanted model it can load."""
    wanted, ports = run_dir / WANTED, settings.triton_ports
    command = [
        str(triton.executable),
        f"--model-repository={settings.model_repository}",
        "--model-control-mode=explicit",
        "--exit-on-error=false",
        "--strict-readiness=false",
        f"--log-file=/proc/self/fd/{loads.lines}",
        # Where a model hangs it is killed before that, for it would exit with an error then.
        f"--exit-timeout-secs={math.ceil(settings.stop_timeout)}",
        *triton.options,
        *plan.options(),
        *cache_options(triton, settings),
        *newer_options(triton),
        *triton_options(settings),
    ]
    for front, port in ports.items():
        command += [f"--{front}-address=127.0.0.1", f"--{front}-port={port}"]
    command.append(f"--backend-config=python,{SHM_PREFIX}={shared_memory.OWN_PREFIX}")

    restart = StatusReader(run_dir / READINESS, itemgetter("at", "restart"), (0.0, ""))

    def fault() -> str:
        if ask(over_tcp(settings.triton_ports["http"]), "/v2/health/ready").status != 200:
            loading = loads.in_words()
            return f"it is loading {loading}" if loading else "it does not answer"
        at, reason = restart()  # of the web worker that probes the models
        return str(reason) if time.monotonic() < at + STALE_S else ""

    shm = shared_memory.place_of(settings, run_dir)

    def clean() -> None:
        for left in shm.glob(f"{shared_memory.OWN_PREFIX}*"):
            with suppress(OSError):  # it is gone, or of another user
                left.unlink()
        for note in unpacked.glob("python_env_*"):
            shutil.rmtree(UNPACKED_IN / note.name, ignore_errors=True)
            note.unlink(missing_ok=True)

    instances = run_dir / INSTANCES
    instances.mkdir(exist_ok=True)
    unpacked = run_dir / UNPACKED
    unpacked.mkdir(exist_ok=True)
    return Program(
        "Triton",
        # A restart loads the models that are wanted by then.
        lambda: [*command, *(f"--load-model={path.name}" for path in sorted(wanted.iterdir()))],
        {
            **os.environ,
            **ALLOCATOR,
            **SILENT,
            **plan.environment(),
            **shared_memory.environment(settings, run_dir),
            PREFIX: shared_memory.OWN_PREFIX,
            shared_folder.VARIABLE: str(instances),
            "UNPACKED_ENVIRONMENTS": str(unpacked),
            engine_choice.PRECISION_VARIABLE: settings.model_precision,
            engine_choice.CACHE_VARIABLE: str(settings.engine_cache),
            # Its SDK sends these as they are, without the percent signs.
            "OTEL_EXPORTER_OTLP_HEADERS": unquote(standard("OTEL_EXPORTER_OTLP_HEADERS")),
            **triton.environment,
        },
        fault,
        stop_within=max(1.0, settings.stop_timeout * TRITON_SHARE),
        # It closes its ports when all models are unloaded. After that its thread for metrics sleeps
        # for up to 2 s, and gRPC waits 20 s for a connection on which nothing was sent.
        is_done=lambda pid: (
            not (listens(ports["http"]) or listens(ports["grpc"]) or has_children(pid))
        ),
        files=(loads.lines,),
        clean=clean,
    )
