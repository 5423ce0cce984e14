"""Start Triton, gunicorn and NGINX for `./serve`, and wait until they end."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from backends.machine.cpu_share import usable_cpus
from clients.model_files.files import explain_denial
from clients.model_files.gpu_config import has_gpu
from container.announcement import Announcement
from container.certificates import Certificates
from container.checks import check_files, has_classes, raise_file_limit
from container.programs.find_triton import NVIDIAS, TritonProgram, find_triton
from container.programs.gunicorn import gunicorn_program, warn_of_lost_jobs
from container.programs.listening import listen_to_all
from container.programs.model_loads import model_loads
from container.programs.nginx import RequestLines, find_nginx, nginx_program
from container.programs.shared_memory import plan_shared_memory
from container.programs.triton import triton_program
from container.programs.triton_options import has_cache, refuse_unknown, triton_options
from container.repository.compose import compose, without_backend
from container.repository.fetch import repository_folders
from container.repository.shared_memory_plan import lower
from container.supervisor.log import ERROR, WARNING, Finish, Log, Say
from container.supervisor.posix import Machine
from container.supervisor.program import Policy
from container.supervisor.supervisor import Supervisor
from container.trouble import Trouble
from dispatcher.settings import (
    ASIDE,
    AUTO,
    FAILING,
    RUN_PATH,
    SUPERVISOR,
    USED,
    WANTED,
    WORKABLE,
    SettingError,
    Settings,
    find_gone,
    read_settings,
    rows,
)
from dispatcher.status.status_file import StatusWriter
from dispatcher.version import describe_version

USAGE = """usage: serve [serve | --help | --version]

Starts Triton, gunicorn and NGINX in the foreground. SIGTERM or SIGINT finishes what is in flight
and stops them. Settings are environment variables:
"""

# With 16 CPUs four web workers answered as much as eight: with a model that does nothing 3.7 times
# as much as one (`wrk`), with models on a GPU up to 4 times. Each takes some 60 MB. `python -m
# bench.compare --settings` and MODEL_SERVER_WORKERS=1, =4 and =8. Where a GPU runs the models the
# CPUs are theirs: of 16 beside an H200, 12 of them answered 1.1 times as many pictures as 8, and
# texts, which take little of a CPU, are answered best by 4 to 8.
WORKERS = "MODEL_SERVER_WORKERS"
CPUS_PER_WORKER, MOST_WORKERS = 4, 4
BESIDE_GPU = 1.6, 12

OTHERS = "boto3's and OpenTelemetry's own variables; see docs/s3.md and docs/traces.md"

OWN = "dispatch-run"  # the folder in RUN_DIR that is emptied at the start

NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
ROOM = "RUN_DIR, or the temporary folder where it is not set, needs some 4 MB"

MISUSED = 2  # the exit code for wrong arguments or settings
EXPECTED = "expected none, or `serve`: it starts Triton itself; `serve --help` has the settings"


def main(arguments: list[str]) -> int:
    """Run the container; return the exit code."""
    if arguments in (["--help"], ["-h"], ["--version"]):
        sys.stdout.write(f"{describe_version() if arguments == ['--version'] else usage()}\n")
        return 0
    if arguments not in ([], ["serve"]):
        sys.stderr.write(f"serve: unknown arguments: {' '.join(arguments)}; {EXPECTED}\n")
        return MISUSED
    try:
        settings = read_settings(with_workers(os.environ, usable_cpus()))
        triton_options(settings)
    except SettingError as error:
        for line in str(error).splitlines():
            sys.stderr.write(f"serve: {line}\n")
        return MISUSED
    with Log(sys.stderr.fileno(), as_json=settings.log_format == "json") as log:
        try:
            check_files(settings)
            with make_run_folder(settings.run_dir) as run_dir:
                return run(settings, run_dir, log)
        except (SettingError, Trouble) as error:
            log.say(str(error), ERROR)
            return MISUSED if isinstance(error, SettingError) else 1
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            place = error.filename2 or error.filename or "RUN_DIR"
            log.say(f"'{place}': {error.strerror}; {ROOM}", ERROR)
            return 1


def run(settings: Settings, run_dir: Path, log: Log) -> int:
    """Start the three programs and watch them; return the exit code.

    Raises Trouble, SettingError: they cannot be started.
    """
    say = log.say
    if taken := list(find_taken_ports(settings)):
        raise Trouble("\n".join(taken))
    raise_file_limit(say)
    certificates = Certificates(settings, run_dir, say)
    for line in find_gone(os.environ):
        say(line, WARNING)
    settings = with_repository(settings, run_dir, say)
    optional = settings.multi_model or settings.load_on_demand or settings.triton_url
    if not (settings.required_models or optional or has_classes(settings)):
        raise Trouble(
            "MODEL_REPOSITORY and MODEL_DIR hold no models; expected: a folder per model, or "
            "classes in CLIENTS_PATH"
        )
    nginx = find_nginx(settings)
    triton = None if settings.triton_url else prepare_triton(settings, run_dir, say)
    plan = plan_shared_memory(settings, triton, run_dir, say)
    where = triton.kind if triton else f"at {settings.triton_url}; none is started here"
    say(f"Triton: {where}; required models: {', '.join(settings.required_models) or 'none'}")
    for line in plan.changes():
        say(line, WARNING)
    if triton:
        lower(settings.model_repository, plan)
    requests = RequestLines(logged=settings.access_log != "off")
    loads = model_loads(settings, run_dir, log)
    finish: dict[str, Finish] = {"NGINX": requests}
    programs = [
        replace(program, output=log.sink(program.name.lower(), finish.get(program.name)))
        for program in (
            *([triton_program(settings, triton, run_dir, plan, loads)] if triton else []),
            gunicorn_program(settings, run_dir, plan, lines=log.finished()),
            nginx_program(settings, run_dir, nginx, certificates.follow),
        )
    ]
    try:
        return Supervisor(
            programs,
            Machine(),
            Policy(
                start_timeout=settings.start_timeout,
                stop_timeout=settings.stop_timeout,
                restarts=settings.restarts,
            ),
            say,
            StatusWriter(run_dir / SUPERVISOR).write,
            Announcement(
                settings.port, say, page=settings.shows_page, tls=settings.tls_certificate
            ),
            lambda: {
                "refusals": dict(requests.counts),
                "tls": certificates.metrics(),
                "hung": sorted(loads.hung),
            },
        ).run()
    finally:
        warn_of_lost_jobs(run_dir, say)
        for program in programs:
            program.clean()


def prepare_triton(settings: Settings, run_dir: Path, say: Say) -> TritonProgram:
    """Find Triton, and make what it needs for the settings.

    Raises Trouble: there is none. Raises SettingError: it lacks one of TRITON_OPTIONS.
    """
    triton = find_triton(NVIDIAS, os.environ.get("PATH", os.defpath), run_dir)
    refuse_unknown(triton, settings)
    if not has_cache(triton):
        say("this Triton has no response cache: `response_cache` has no effect", WARNING)
    for line in without_backend(settings.model_repository) if triton.has_our_backends else ():
        say(line, WARNING)
    if settings.public_grpc_port:
        say(
            f"TRITON_PUBLIC_GRPC_PORT={settings.public_grpc_port} is for trusted networks alone: "
            "Triton itself checks what comes there, and one request can end it; see SECURITY.md",
            WARNING,
        )
    return triton


def with_workers(environment: Mapping[str, str], cpus: int) -> dict[str, str]:
    """Return the environment with the number of web workers, where it is `auto`."""
    if environment.get(WORKERS, AUTO).strip() != AUTO:
        return dict(environment)
    each, most = BESIDE_GPU if has_gpu() else (CPUS_PER_WORKER, MOST_WORKERS)
    return {**environment, WORKERS: str(min(most, max(1, int(cpus / each))))}


def find_taken_ports(settings: Settings) -> Iterator[str]:
    """Yield a sentence for every port that another program uses.

    It is checked before anything starts, for the other program would answer the probes.
    """
    public = {
        settings.port: "SAGEMAKER_BIND_TO_PORT",
        settings.public_grpc_port: "TRITON_PUBLIC_GRPC_PORT",
    }
    inner = () if settings.triton_url else settings.triton_ports.values()
    for number in (*filter(None, public), *inner):
        try:
            if number in public:
                listen_to_all(number).close()
            else:
                socket.create_server(("127.0.0.1", number)).close()
        except OSError as error:
            variable = public.get(number, "SAGEMAKER_SAFE_PORT_RANGE")
            other = "8081" if number in public else "9000-9009"
            yield (
                f"port {number} cannot be used: {error.strerror}; stop the server that runs there, "
                f"or set {variable} to another, such as {other}"
            )


def with_repository(settings: Settings, run_dir: Path, say: Say) -> Settings:
    """Link the models into one repository; return the settings with it."""
    if settings.missing:
        say(settings.missing, WARNING)
    (run_dir / FAILING).mkdir()
    (run_dir / WANTED).mkdir()
    if settings.triton_url:  # the folder is read for clients alone
        mounted = settings.mounted
        if mounted and mounted.is_dir() and any(path.is_dir() for path in mounted.iterdir()):
            settings = replace(settings, repositories=(mounted,))
        return replace(settings, run_dir=run_dir, clients_path=settings.client_folders)
    repository = run_dir / "repository"
    models = compose(
        repository,
        settings.mounted,
        *repository_folders(settings, run_dir, say),
        instead=settings.model_dir_use == "instead",
        say=lambda line: say(line, WARNING),
    )
    first: tuple[str, ...] = () if settings.multi_model else models
    if settings.load_on_demand:
        first = tuple(name for name in models if name in settings.required_models)
    for name in first:
        (run_dir / WANTED / name).touch()
    for folder in (ASIDE, USED):
        (run_dir / folder).mkdir(exist_ok=True)
    return replace(
        settings,
        run_dir=run_dir,
        repositories=(repository,),
        clients_path=settings.client_folders,
        required_models=settings.required_models or first,
    )


@contextmanager
def make_run_folder(wanted: Path | None) -> Iterator[Path]:
    """Make an empty folder for sockets and temporary files.

    It is a folder of its own in `wanted`, whose other files are left alone; or a temporary one,
    which is removed at the end.

    Raises SettingError: it cannot be made, or another process of this machine uses it.
    """
    if wanted is not None:
        own = wanted / OWN
        if not WORKABLE.fullmatch(str(own)):
            raise SettingError(f"RUN_DIR is '{wanted}'; expected: {RUN_PATH}")
        with ExitStack() as held:
            try:
                wanted.mkdir(mode=0o700, parents=True, exist_ok=True)
                # The programs do not inherit it.
                lock = held.enter_context((wanted / f"{OWN}.lock").open("a", encoding="utf-8"))
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(own, ignore_errors=True)  # another version may have been here before
                own.mkdir(mode=0o700)  # its socket bypasses NGINX and the API keys
            except BlockingIOError as error:
                used = f"RUN_DIR is '{wanted}', which another `serve` uses; name another folder"
                raise SettingError(used) from error
            except OSError as error:
                why = explain_denial(wanted, os.W_OK) if isinstance(error, PermissionError) else ""
                raise SettingError(
                    f"RUN_DIR is '{wanted}': {error.strerror}; name a folder that can be written "
                    f"to{why}"
                ) from error
            yield own
        return
    try:
        made = tempfile.TemporaryDirectory(prefix="triton-dispatcher-", ignore_cleanup_errors=True)
    except OSError as error:
        raise SettingError(
            f"no temporary folder can be made: {error.strerror}; "
            "set RUN_DIR to a folder that can be written to"
        ) from error
    with made as folder:
        if not WORKABLE.fullmatch(folder):
            raise SettingError(f"the temporary folder is '{folder}'; set RUN_DIR to an {RUN_PATH}")
        yield Path(folder)


def usage() -> str:
    lines = [USAGE]
    for row in rows():
        lines += [f"  {row.variable}={row.default}", f"      {row.meaning} ({row.expected})"]
    return "\n".join([*lines, "  AWS_*, OTEL_*", f"      {OTHERS}"])
