"""gunicorn: how it is started, and whether it answers."""

from __future__ import annotations

import math
import os
import sys
from pathlib import Path

from backends.machine.shared_memory import PREFIX, is_scarce
from container.programs.listening import has_ipv6
from container.programs.malloc import ALLOCATOR, FEW_ARENAS
from container.programs.shared_memory import OWN_PREFIX
from container.repository.shared_memory_plan import SharedMemoryPlan
from container.supervisor.http_probe import UnixConnection, ask
from container.supervisor.log import WARNING, Say
from container.supervisor.program import Program
from dispatcher.log_lines import FINISHED
from dispatcher.settings import JOBS, PROJECT, SCARCE, Settings

THREADS_FOR_HEALTH = 4  # for health routes, besides the threads for models
IDLE_CONNECTIONS = 1000  # from NGINX to gunicorn, besides as many as there are threads
GUNICORN_SHARE = 0.08  # of the time to stop; see `container.programs.nginx`

# gunicorn replaces a worker whose heartbeat is this old. The heartbeat does not depend on requests,
# however long they take.
WORKER_SILENT_S = 15
SOCKET = "gunicorn.sock"
WATCHED = "/ping"  # answered from memory


# Behind NGINX, which checks requests, limits their size and headers, and refuses in JSON.
BEHIND_NGINX = (
    *("dispatcher.wsgi:build()", "--worker-class=dispatcher.gunicorn.worker.WebWorker"),
    *("--limit-request-line=0", "--limit-request-fields=32768", "--limit-request-field_size=0"),
)
ALONE = ("dispatcher.wsgi:build_alone()", "--worker-class=gthread")


def gunicorn_program(
    settings: Settings, run_dir: Path, plan: SharedMemoryPlan, *, lines: int | None = None
) -> Program:
    """Return gunicorn: threads, and an application per worker.

    It listens on a Unix socket in `run_dir`, and writes finished lines of the log to `lines`. Where
    that is `None` it is alone, without NGINX: it listens on the port of the settings.
    """
    alone = lines is None
    socket_path = run_dir / SOCKET
    command = [
        *(sys.executable, "-m", "gunicorn", *(ALONE if alone else BEHIND_NGINX)),
        f"--workers={settings.workers}",
        f"--threads={settings.web_threads + THREADS_FOR_HEALTH}",
        f"--worker-connections={settings.web_threads + IDLE_CONNECTIONS}",
        f"--bind={'[::]' if has_ipv6() else '0.0.0.0'}:{settings.port}"
        if alone
        else f"--bind=unix:{socket_path}",
        f"--timeout={WORKER_SILENT_S}",
        "--config=python:dispatcher.gunicorn.hooks",
        # For workers that are replaced while they answer, or load a model; at a stop no request
        # is left.
        f"--graceful-timeout={math.ceil(max(settings.stream_timeout, settings.managing_timeout))}",
        # Longer than NGINX keeps a connection, so that this side never closes it first.
        "--keep-alive=75",
        f"--worker-tmp-dir={run_dir}",
        f"--log-level={'warning' if settings.log_level == 'info' else settings.log_level}",
        "--no-control-socket",
    ]
    environment = {
        **os.environ,
        **ALLOCATOR,
        **FEW_ARENAS,
        **settings.environment(),
        "PYTHONPATH": os.pathsep.join(
            part for part in (str(PROJECT), os.environ.get("PYTHONPATH", "")) if part
        ),
        # prometheus_client reads it when it is imported.
        "PROMETHEUS_MULTIPROC_DIR": str(run_dir / "metrics"),
        PREFIX: OWN_PREFIX,
        **({} if lines is None else {FINISHED: str(lines)}),
        **({SCARCE: "1"} if is_scarce(plan.size) else {}),
        # Models and tokenizers are local files; nothing is fetched.
        "HF_HUB_OFFLINE": "1",
        # Without it transformers warns at import that there is no torch.
        "TRANSFORMERS_VERBOSITY": "error",
        "TOKENIZERS_PARALLELISM": "false",
    }

    def fault() -> str:
        answers = ask(UnixConnection(socket_path), WATCHED).status != 0
        return "" if answers else "it does not answer"

    return Program(
        "gunicorn",
        lambda: command,
        environment,
        fault,
        stop_within=max(1.0, settings.stop_timeout * GUNICORN_SHARE),
        files=() if lines is None else (lines,),
    )


def warn_of_lost_jobs(run_dir: Path, say: Say) -> None:
    """Log how many asynchronous requests end with RUN_DIR; see `dispatcher/jobs/store.py`."""
    if lost := len(list((run_dir / JOBS / "waiting").glob("*"))):
        say(f"{lost} asynchronous requests are lost; JOBS_DIR would have kept them", WARNING)
