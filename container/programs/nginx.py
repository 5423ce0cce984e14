"""NGINX: how it is started, and whether it answers."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import signal
import string
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from container.programs.listening import has_ipv6
from container.supervisor.http_probe import ask, over_tcp
from container.supervisor.program import Program
from container.trouble import Trouble
from dispatcher.log_lines import MAX_TEXT, json_line, level_of_status, timestamp
from dispatcher.settings import PROJECT, Settings
from dispatcher.settings.readers import ANY_ORIGIN
from dispatcher.telemetry.memory import RECEIVED_SHARE, lies_in_memory, total_memory

MOST_CONNECTIONS = 8192  # each with a second open file where a body or an answer is large

# Each request has a connection from its caller and one to gunicorn; a quarter of all stays free.
REQUESTS_SHARE = 3 / 8

# The part of the free disk that bodies may take. NGINX keeps BUFFER bytes of each in memory
# (client_body_buffer_size), and counts bodies of each of SIZES by themselves.
DISK_SHARE = 1 / 2
BUFFER = 2**20
SIZES = {"small": 10**5, "medium": 10**6, "large": 10**7}

# The share of SERVE_STOP_TIMEOUT that each program may take in its turn; together less than 1.
# While NGINX waits for its last callers the other two work, and have almost nothing left to do
# after it. Requests that gunicorn has not answered by then are answered 503 by NGINX once gunicorn
# is gone; callers that do not read this are disconnected.
ANSWERS_SHARE = 0.7
NGINX_SHARE = 0.75
ALIVE = "/.alive"  # answered by NGINX itself


# The statuses of its answers without a web worker: those of `$code` in nginx.conf.
REFUSALS = (400, 401, 403, 404, 405, 408, 413, 414, 429, 499, 500, 501, 503, 504)

# How a line of its log of requests begins, and none of its other lines.
REQUEST = b'{"ended":'


class RequestLines:
    """Makes lines of NGINX's requests, where they are `logged`, and counts those it refused."""

    def __init__(self, *, logged: bool) -> None:
        self.counts = {str(status): 0 for status in REFUSALS}
        self._logged = logged

    def __call__(self, line: bytes) -> bytes | None:
        """Return the line of the log; empty where none is wanted, `None` for any other text."""
        if not line.startswith(REQUEST):
            return None
        fields = json.loads(line.decode(errors="replace"))
        status, came, code = fields["status"], fields["bytes_in"], fields.get("code")
        if code is not None and status in self.counts:  # not on Triton's own ports
            self.counts[status] += 1
        if not self._logged:
            return b""
        fields |= {"status": int(status), "bytes_in": int(came) if came.isdecimal() else 0}
        record: dict[str, object] = {
            "time": timestamp(fields.pop("ended") - fields["total_s"]),
            "program": "nginx",
            "level": level_of_status(fields["status"]),
        }
        for name, value in fields.items():
            if value != "":
                record[name] = value[:MAX_TEXT] if isinstance(value, str) else value
        return json_line(record)


def find_nginx(settings: Settings) -> str:
    """Return the path of NGINX.

    Raises Trouble: there is none, or it cannot pass gRPC on and a setting wants that.
    """
    path = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin"
    if (found := shutil.which("nginx", path=path)) is None:
        raise Trouble("no nginx found; `apt-get install nginx-light`, or `make serve`, brings it")
    options = build_options(found) if settings.public_grpc_port else []
    if options and (
        "--with-http_v2_module" not in options or "--without-http_grpc_module" in options
    ):
        raise Trouble(
            f"TRITON_PUBLIC_GRPC_PORT is {settings.public_grpc_port}, and {found} was built "
            "without HTTP/2 or gRPC; `apt-get install nginx-light` brings one with both"
        )
    return found


def nginx_program(
    settings: Settings,
    run_dir: Path,
    executable: str,
    has_changed: Callable[[], bool] = lambda: False,
) -> Program:
    """Return NGINX, which reads its files again when `has_changed`; write its configuration."""
    configuration = run_dir / "nginx.conf"
    files = min(2 * MOST_CONNECTIONS, open_files())
    connections = min(MOST_CONNECTIONS, files // 2)
    requests = round(connections * REQUESTS_SHARE)
    bodies = bodies_at_a_time(run_dir, settings.max_body, requests)
    options = build_options(executable)
    counts = "--without-http_limit_conn_module" not in options
    asks_first = settings.api_keys_file and "--with-http_auth_request_module" in options
    limits = {"requests": requests, **bodies} if counts else {}
    last = settings.stop_timeout * NGINX_SHARE
    longest = max(settings.stream_timeout, settings.managing_timeout)
    template = ConfigurationTemplate((PROJECT / "nginx.conf").read_text(encoding="utf-8"))
    configuration.write_text(
        template.substitute(
            run_dir=run_dir,
            port=listen_address(settings.port),
            connections=connections,
            requests=requests,
            **bodies,
            count="" if limits else "# ",
            limits=" ".join(f"limit_conn {zone} {most};" for zone, most in limits.items()),
            auth="" if asks_first else "# ",
            grpc="" if (grpc := settings.public_grpc_port) else "# ",
            grpc_keys="" if grpc and settings.api_keys_file else "# ",
            grpc_client="" if grpc and settings.tls_client_ca else "# ",
            client="" if settings.tls_client_ca else "# ",
            tls="" if settings.tls_certificate else "# ",
            ssl=" ssl" if settings.tls_certificate else "",
            public_grpc_port=listen_address(settings.public_grpc_port),
            triton_grpc_port=settings.triton_ports["grpc"],
            files=files,
            max_body_mb=settings.max_body // 2**20,
            **cors(settings.cors_origins),
            # Workers with earlier certificates answer all that they have.
            shutdown_ms=round((longest if settings.tls_certificate else last) * 1000),
            proxy_timeout_ms=round(settings.proxy_timeout * 1000),
            managing_timeout_ms=round(settings.managing_timeout * 1000),
            # Started by root, NGINX would switch to another user, who may not enter `run_dir`; and
            # it cannot switch where the container's capabilities are dropped.
            user="user root root;" if os.geteuid() == 0 else "",
        ),
        encoding="utf-8",
    )
    command = [executable, "-e", "stderr", "-c", str(configuration), "-p", str(run_dir)]

    asked_to_end: list[float] = []

    def is_late(_: int) -> bool:
        asked_to_end.append(time.monotonic())
        return asked_to_end[-1] > asked_to_end[0] + last - 1  # it is killed a second later

    def fault() -> str:
        if has_changed():
            with suppress(OSError, ValueError):  # one that starts reads them by itself
                os.kill(int((run_dir / "nginx.pid").read_text(encoding="ascii")), signal.SIGHUP)
        answers = ask(over_tcp(settings.port, tls=settings.tls_certificate), ALIVE).status != 0
        return "" if answers else "it does not answer"

    return Program(
        "NGINX",
        lambda: command,
        os.environ,
        fault,
        stop_signal=signal.SIGQUIT,
        stop_within=settings.stop_timeout * ANSWERS_SHARE,
        instead="gunicorn",
        is_done=is_late if settings.tls_certificate else lambda _: False,
    )


def listen_address(port: int | None) -> str:
    """Return what `listen` says of a port that is open to all."""
    return f"[::]:{port} ipv6only=off" if has_ipv6() else f"{port}"


def bodies_at_a_time(run_dir: Path, max_body: int, requests: int) -> dict[str, int]:
    """Return how many requests with bodies of each size may be received or answered at a time.

    A body is kept until its answer: in a file where it is larger than BUFFER, and files of
    `run_dir` may lie in memory too. Each size gets a quarter of the memory and of the disk.
    """
    memory = total_memory() * RECEIVED_SHARE / 4
    disk = shutil.disk_usage(run_dir).free * DISK_SHARE / 4
    in_memory = lies_in_memory(run_dir)
    most = {}
    for name, size in {**SIZES, "largest": max_body}.items():
        held = size if in_memory else min(size, BUFFER)
        most[name] = max(1, min(requests, int(disk / size), int(memory / held)))
    return most


def cors(origins: tuple[str, ...]) -> dict[str, str]:
    """Return the places of the configuration that say which pages may read the answers."""
    if origins == (ANY_ORIGIN,):
        return {"any_origin": ANY_ORIGIN, "origins": "", "vary": ""}
    # Expressions, as NGINX has a limit for the length of what it compares as a whole.
    lines = [f'"~^{re.escape(origin)}$" $http_origin;' for origin in origins]
    return {"any_origin": "", "origins": "\n".join(lines), "vary": "Origin" if origins else ""}


def build_options(executable: str) -> list[str]:
    built = subprocess.run([executable, "-V"], capture_output=True, encoding="utf-8", check=False)
    return built.stderr.split()


def open_files() -> int:
    """Return how many files a process may have open: the hard limit."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return 2 * MOST_CONNECTIONS if hard == resource.RLIM_INFINITY else hard


class ConfigurationTemplate(string.Template):
    """`@{name}` is a setting; `$name` is NGINX's, and `@name` its locations."""

    delimiter = "@"
    pattern = r"@(?:\{(?P<braced>[a-z_]+)\}|(?P<named>(?!))|(?P<escaped>(?!))|(?P<invalid>\{))"  # type: ignore[assignment]
