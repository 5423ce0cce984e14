"""The three programs: how each is started, and how one sees that it works."""

from __future__ import annotations

import math
import os
import resource
import signal
import string
import subprocess
import sys
import time
from contextlib import suppress
from operator import itemgetter
from pathlib import Path

from container.programs.find_triton import Triton
from container.programs.listening_socket import Door
from container.repository.shared_memory_plan import Plan
from container.supervisor.http_probe import UnixConnection, ask, has_children, listens, over_tcp
from container.supervisor.program import Program
from container.triton_backends import engine_choice as verdict
from container.triton_backends.machine import shared_folder
from container.triton_backends.machine.shared_memory import FOLDER, PREFIX
from dispatcher.readiness.status_file import STALE_S, reader
from dispatcher.settings import INSTANCES, PROJECT, READINESS, SCARCE, WANTED, Settings

THREADS_FOR_HEALTH = 4  # besides those that answer and those that wait
IDLE_CONNECTIONS = 1000  # from NGINX to gunicorn, besides as many as there are threads

MOST_CONNECTIONS = 8192  # of NGINX, each with a file beside it where a body or an answer is large
# Each request has one from its caller and one to gunicorn; a quarter of all stays free.
REQUESTS_SHARE = 3 / 8

# glibc gives back every array over 128 kB to the kernel and maps the next one anew, page by page.
# Kept instead, a 640×640 picture costs a quarter less time. Larger arrays than those of one run of
# a model are given back all the same, and so is what lies unused beyond 128 MiB: else a few
# pictures of 49 megapixels at once leave 6 GB with an idle worker.
ALLOCATOR = {
    "MALLOC_MMAP_THRESHOLD_": str(32 * 2**20),
    "MALLOC_TRIM_THRESHOLD_": str(128 * 2**20),
    "MALLOC_TOP_PAD_": str(16 * 2**20),
}

# Else glibc keeps memory for each of the web worker's threads apart: 527 instead of 401 MB (PSS,
# its part of the tensors in shared memory included) after 16 callers of YOLOv5s, at the same speed.
FEW_ARENAS = {"MALLOC_ARENA_MAX": "2"}

# Of the time to stop, what each may take in its turn; together less than the whole. While NGINX
# waits for its last callers the other two do their work, and have next to nothing left after it.
# What gunicorn has not answered then is answered 503 by NGINX, as soon as gunicorn is gone; who
# does not read that is cut off.
ANSWERS_SHARE = 0.7
NGINX_SHARE = 0.75
GUNICORN_SHARE = 0.08
TRITON_SHARE = 0.19

# A gunicorn worker that gives no sign of life is replaced after this. Its signs do not depend on
# requests, however long they take.
WORKER_SILENT_S = 15

SOCKET = "gunicorn.sock"
ALIVE = "/.alive"  # answered by NGINX itself
WATCHED = "/ping"  # answered from memory


# ONNX Runtime would report its use to Microsoft, and keep a database in the home folder for that.
SILENT = {"ORT_DISABLE_TELEMETRY": "1"}


def triton_program(
    settings: Settings, triton: Triton, run_dir: Path, shm_prefix: str, plan: Plan
) -> Program:
    """Return Triton: loopback only, every wanted model loaded, a bad one by itself."""
    wanted = run_dir / WANTED
    ports = {
        "http": settings.triton_http_port,
        "grpc": settings.triton_grpc_port,
        "metrics": settings.triton_metrics_port,
    }
    command = [
        str(triton.executable),
        f"--model-repository={settings.model_repository}",
        "--model-control-mode=explicit",
        "--exit-on-error=false",
        "--strict-readiness=false",
        # It is killed before that, where a model hangs: then it would end with an error.
        f"--exit-timeout-secs={math.ceil(settings.stop_timeout)}",
        *triton.options,
        *plan.options(),
    ]
    for front, port in ports.items():
        command += [f"--{front}-address=127.0.0.1", f"--{front}-port={port}"]
    command.append(f"--backend-config=python,shm-region-prefix-name={shm_prefix}")

    restart = reader(run_dir / READINESS, itemgetter("at", "restart"), (0.0, ""))

    def fault() -> str:
        if ask(over_tcp(settings.triton_http_port), "/v2/health/ready").status != 200:
            return "it does not answer"
        at, reason = restart()  # of the web worker that probes the models
        return str(reason) if time.monotonic() < at + STALE_S else ""

    def clean() -> None:
        for left in FOLDER.glob(f"{shm_prefix}*"):
            with suppress(OSError):  # it is gone, or of another user
                left.unlink()

    instances = run_dir / INSTANCES
    instances.mkdir(exist_ok=True)
    return Program(
        "Triton",
        # What was loaded and unloaded meanwhile counts at a later start.
        lambda: [*command, *(f"--load-model={path.name}" for path in sorted(wanted.iterdir()))],
        {
            **os.environ,
            **ALLOCATOR,
            **SILENT,
            **plan.environment(),
            PREFIX: shm_prefix,
            shared_folder.VARIABLE: str(instances),
            verdict.PRECISION_VARIABLE: settings.model_precision,
            verdict.CACHE_VARIABLE: str(settings.engine_cache),
            **triton.environment,
        },
        fault,
        stop_within=max(1.0, settings.stop_timeout * TRITON_SHARE),
        # It closes the second port when all models are unloaded. Then its thread for metrics sleeps
        # for up to 2 s; and where somebody has connected to that port and said nothing, gRPC waits
        # for 20 s.
        is_done=lambda pid: (
            not (listens(ports["http"]) or listens(ports["grpc"]) or has_children(pid))
        ),
        work=lambda: sorted(path.name for path in wanted.iterdir()),
        clean=clean,
    )


def gunicorn_program(settings: Settings, run_dir: Path, shm_prefix: str, plan: Plan) -> Program:
    """Return gunicorn: threads, on a Unix socket, each worker making its own application."""
    socket_path = run_dir / SOCKET
    command = [
        *(sys.executable, "-m", "gunicorn", "dispatcher.wsgi:build()"),
        "--worker-class=dispatcher.gunicorn.worker.WebWorker",
        f"--workers={settings.workers}",
        f"--threads={settings.web_threads + THREADS_FOR_HEALTH}",
        f"--worker-connections={settings.web_threads + IDLE_CONNECTIONS}",
        f"--bind=unix:{socket_path}",
        f"--timeout={WORKER_SILENT_S}",
        "--config=python:dispatcher.gunicorn.hooks",
        # For workers that are replaced while requests go on; at the end there are none any more.
        f"--graceful-timeout={math.ceil(settings.proxy_timeout)}",
        # NGINX judges the size of requests and headers, and says so in JSON.
        "--limit-request-line=0",
        "--limit-request-fields=32768",
        "--limit-request-field_size=0",
        # Longer than NGINX keeps a connection, so that it is never this side that closes it.
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
        # The library reads it when it is imported.
        "PROMETHEUS_MULTIPROC_DIR": str(run_dir / "metrics"),
        PREFIX: shm_prefix,
        **({SCARCE: "1"} if plan.is_scarce else {}),
        # Models and tokenizers are files on this machine; nothing is looked up outside.
        "HF_HUB_OFFLINE": "1",
        # transformers says at import that it finds no torch: it is not meant to.
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
    )


def nginx_program(settings: Settings, run_dir: Path, executable: str, door: Door) -> Program:
    """Return NGINX, listening at `door`, with its configuration written to `run_dir`."""
    configuration = run_dir / "nginx.conf"
    files = min(2 * MOST_CONNECTIONS, open_files())
    connections = min(MOST_CONNECTIONS, files // 2)
    template = ConfigurationTemplate((PROJECT / "nginx.conf").read_text())
    configuration.write_text(
        template.substitute(
            run_dir=run_dir,
            port=settings.port,
            connections=connections,
            requests=round(connections * REQUESTS_SHARE),
            count="" if counts_requests(executable) else "# ",
            files=files,
            max_body_mb=settings.max_body // 2**20,
            shutdown_ms=round(settings.stop_timeout * NGINX_SHARE * 1000),
            proxy_timeout_ms=round(settings.proxy_timeout * 1000),
            managing_timeout_ms=round(settings.managing_timeout * 1000),
            access_log="off" if settings.access_log == "off" else "/dev/stderr own if=$own",
            # Started by root NGINX would serve as another user, who has no right to `run_dir`,
            # and cannot become one where the container's capabilities are dropped.
            user="user root root;" if os.geteuid() == 0 else "",
        )
    )
    command = [executable, "-e", "stderr", "-c", str(configuration), "-p", str(run_dir)]

    def fault() -> str:
        answers = ask(over_tcp(settings.port), ALIVE).status != 0
        return "" if answers else "it does not answer"

    return Program(
        "NGINX",
        lambda: command,
        # In this variable NGINX hands its sockets on to the NGINX that takes its place.
        {**os.environ, "NGINX": f"{door.fileno()};"},
        fault,
        files=(door.fileno(),),
        before_stop=lambda runs: door.shut(accepts=runs),
        stop_signal=signal.SIGQUIT,
        stop_within=settings.stop_timeout * ANSWERS_SHARE,
        instead="gunicorn",
    )


def counts_requests(executable: str) -> bool:
    """Whether NGINX was built with what limits the number of requests at a time."""
    built = subprocess.run([executable, "-V"], capture_output=True, text=True, check=False)
    return "--without-http_limit_conn_module" not in built.stderr


def open_files() -> int:
    """Return how many files a process may have open: what it may raise its own limit to."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return 2 * MOST_CONNECTIONS if hard == resource.RLIM_INFINITY else hard


class ConfigurationTemplate(string.Template):
    """`@{name}` is a setting; `$name` is NGINX's, and `@name` its locations."""

    delimiter = "@"
    pattern = r"@(?:\{(?P<braced>[a-z_]+)\}|(?P<named>(?!))|(?P<escaped>(?!))|(?P<invalid>\{))"  # type: ignore[assignment]
