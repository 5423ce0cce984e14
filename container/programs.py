"""The three programs: how each is started, and how one sees that it works."""

from __future__ import annotations

import os
import resource
import signal
import string
import sys
from pathlib import Path

from container.probes import UnixConnection, ask, listens, over_tcp
from container.shared_memory import Plan
from container.supervisor import Program
from container.triton import Triton
from dispatcher.settings import PROJECT, Settings

TRITON_EXIT_SHARE = 0.2  # by then nobody asks it any more

THREADS_FOR_HEALTH = 4  # besides those that answer and those that wait
IDLE_CONNECTIONS = 1000  # from NGINX to gunicorn, besides as many as there are threads

MOST_CONNECTIONS = 4096

# glibc gives back every array over 128 kB to the kernel and maps the next one anew, page by page.
# Kept instead, a 640×640 picture costs a quarter less time. Larger arrays than those of one run of
# a model are given back all the same, and so is what lies unused beyond 128 MiB: else a few
# pictures of 49 megapixels at once leave 6 GB with an idle worker.
ALLOCATOR = {
    "MALLOC_MMAP_THRESHOLD_": str(32 * 2**20),
    "MALLOC_TRIM_THRESHOLD_": str(128 * 2**20),
    "MALLOC_TOP_PAD_": str(16 * 2**20),
}

# Of the time to stop, what each part may take: a caller who sends slowly must not keep the others
# from finishing their work.
NGINX_SHARE = 0.5
GUNICORN_SHARE = 0.7


# ONNX Runtime would report its use to Microsoft, and keep a database in the home folder for that.
SILENT = {"ORT_DISABLE_TELEMETRY": "1"}


def triton_program(settings: Settings, triton: Triton, shm_prefix: str, plan: Plan) -> Program:
    """Return Triton: loopback only, every model of the repository loaded, a bad one by itself."""
    command = [
        str(triton.executable),
        f"--model-repository={settings.model_repository}",
        "--model-control-mode=explicit",
        *([] if settings.multi_model else ["--load-model=*"]),
        "--exit-on-error=false",
        "--strict-readiness=false",
        f"--exit-timeout-secs={max(1, int(settings.stop_timeout * TRITON_EXIT_SHARE))}",
        *triton.options,
        *plan.options(),
    ]
    for front, port in (
        ("http", settings.triton_http_port),
        ("grpc", settings.triton_grpc_port),
        ("metrics", settings.triton_metrics_port),
    ):
        command += [f"--{front}-address=127.0.0.1", f"--{front}-port={port}"]
    command.append(f"--backend-config=python,shm-region-prefix-name={shm_prefix}")
    return Program(
        "Triton",
        command,
        {**os.environ, **ALLOCATOR, **SILENT, **plan.environment(), **triton.environment},
        ready=lambda: ask(over_tcp(settings.triton_http_port), "/v2/health/ready").status == 200,
    )


def gunicorn_program(settings: Settings, run_dir: Path) -> Program:
    """Return gunicorn: threads, on a Unix socket, each worker making its own application."""
    socket_path = run_dir / "gunicorn.sock"
    command = [
        *(sys.executable, "-m", "gunicorn", "dispatcher.wsgi:build()"),
        "--worker-class=gthread",
        f"--workers={settings.workers}",
        f"--threads={settings.web_threads + THREADS_FOR_HEALTH}",
        f"--worker-connections={settings.web_threads + IDLE_CONNECTIONS}",
        f"--bind=unix:{socket_path}",
        f"--timeout={settings.worker_timeout}",
        f"--graceful-timeout={max(1, int(settings.stop_timeout * GUNICORN_SHARE))}",
        f"--chdir={PROJECT}",  # else the caller's folder comes first where modules are looked for
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
        **settings.environment(),
        "PYTHONPATH": os.pathsep.join(
            part for part in (str(PROJECT), os.environ.get("PYTHONPATH", "")) if part
        ),
        # Models and tokenizers are files on this machine; nothing is looked up outside.
        "HF_HUB_OFFLINE": "1",
        # transformers says at import that it finds no torch: it is not meant to.
        "TRANSFORMERS_VERBOSITY": "error",
        "TOKENIZERS_PARALLELISM": "false",
    }
    return Program(
        "gunicorn",
        command,
        environment,
        ready=lambda: ask(UnixConnection(socket_path), "/ping").status != 0,
    )


def nginx_program(settings: Settings, run_dir: Path, executable: str) -> Program:
    """Return NGINX, with its configuration written to `run_dir`."""
    configuration = run_dir / "nginx.conf"
    template = ConfigurationTemplate((PROJECT / "nginx.conf").read_text())
    configuration.write_text(
        template.substitute(
            run_dir=run_dir,
            port=settings.port,
            connections=min(MOST_CONNECTIONS, resource.getrlimit(resource.RLIMIT_NOFILE)[0]),
            max_body_mb=settings.max_body // 2**20,
            shutdown_ms=round(settings.stop_timeout * NGINX_SHARE * 1000),
            proxy_timeout_ms=round(settings.proxy_timeout * 1000),
            access_log="off" if settings.access_log == "off" else "/dev/stderr own if=$own",
            # Started by root NGINX would serve as another user, who has no right to `run_dir`,
            # and cannot become one where the container's capabilities are dropped.
            user="user root root;" if os.geteuid() == 0 else "",
        )
    )
    return Program(
        "NGINX",
        [executable, "-e", "stderr", "-c", str(configuration), "-p", str(run_dir)],
        dict(os.environ),
        ready=lambda: listens(settings.port),
        stop_signal=signal.SIGQUIT,
    )


class ConfigurationTemplate(string.Template):
    """`@{name}` is a setting; `$name` is NGINX's, and `@name` its locations."""

    delimiter = "@"
    pattern = r"@(?:\{(?P<braced>[a-z_]+)\}|(?P<named>(?!))|(?P<escaped>(?!))|(?P<invalid>\{))"  # type: ignore[assignment]
