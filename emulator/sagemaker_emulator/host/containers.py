"""A container as the service runs it: an image, a program here, or a server that runs already."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

from sagemaker_emulator.host.calls import Address, address_of
from sagemaker_emulator.trouble import Trouble

BIND_TO_PORT, SAFE_PORTS = "SAGEMAKER_BIND_TO_PORT", "SAGEMAKER_SAFE_PORT_RANGE"
MODEL_DIR = "/opt/ml/model"
MODELS_DIR = "/opt/ml/models"  # of a multi-model endpoint, with a folder for each
DEFAULT_PORT = 8080
NEEDED_PORTS = 8
PORTS = range(10_000, 20_000)  # Linux gives higher ones to outgoing connections
NO_SERVE = (
    "the service runs `docker run IMAGE serve`: the image needs a program `serve` on PATH, or an "
    'ENTRYPOINT in exec form (["program"]) that takes this word'
)
OTHERWISE = "give the URL of a running server, or `.` for this checkout"
ENGINE_S = 60.0  # for a command of Docker that is not a pull


@dataclass(frozen=True)
class Start:
    """How to start a container."""

    name: str  # the end of the container's name
    log: Callable[[str], None]  # takes each line that the container writes
    environment: Mapping[str, str] = field(default_factory=dict)  # as the model's `Environment`
    model: Path | None = None  # the folder that becomes /opt/ml/model
    models: Path | None = None  # the folder with the models of a multi-model endpoint
    stop_s: float = 30.0  # between SIGTERM and SIGKILL

    @property
    def variables(self) -> dict[str, str]:
        """The environment; a model is served without those of this project's image."""
        own = {"MODEL_DIR_USE": "instead"} if self.model else {}
        return {**own, **self.environment}


class Container:
    """One container of an endpoint."""

    address: Address

    def start(self) -> None:
        """Start it, and return before it is ready; raise Trouble where it cannot be started."""

    def ended(self) -> str:
        """Return how it ended; empty while it runs."""
        return ""

    def stop(self) -> str:
        """Stop it; return how, or nothing where there was nothing to stop."""
        return ""

    def path_of(self, folder: Path) -> str:
        """Return how the container sees a folder of the models."""
        return str(folder)


class Remote(Container):
    """A server that runs already, and is neither started nor stopped."""

    def __init__(self, url: str) -> None:
        self.address = address_of(url)


class Program(Container):
    """What runs as a child process of this one."""

    def __init__(self, how: Start) -> None:
        self.how = how
        self.process: subprocess.Popen[bytes] | None = None
        self.reader = threading.Thread(target=self.read, daemon=True)

    def launch(self, command: list[str], environment: Mapping[str, str]) -> None:
        self.process = subprocess.Popen(
            command,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C is for this program, which stops it in order
        )
        self.reader.start()

    def read(self) -> None:
        """Pass on its lines until it ends."""
        if self.process and self.process.stdout:
            with self.process.stdout as lines:
                for line in lines:
                    self.how.log(line.decode(errors="replace").rstrip())

    def ended(self) -> str:
        if self.process is None or self.process.poll() is None:
            return ""
        self.reader.join(1)  # its last lines come before the reason
        code = self.exit_code()
        in_words = f"exit code {code}" if code >= 0 else signal.Signals(-code).name
        reason = f"it ended with {in_words}"
        return f"{reason}; {NO_SERVE}" if code in (126, 127) else reason

    def exit_code(self) -> int:
        return self.process.returncode if self.process and self.process.returncode else 0

    def stopped(self, begin: float) -> str:
        """Return how it ended at SIGTERM."""
        took = time.monotonic() - begin
        if took >= self.how.stop_s:
            return (
                f"killed after {self.how.stop_s:.0f} s: it does not end at SIGTERM; exec the "
                "server in the entry point, so that it is process 1 and gets the signal"
            )
        return f"stopped within {took:.1f} s of SIGTERM"


class LocalProgram(Program):
    """`FOLDER/serve serve`, without Docker: the folder is a checkout such as this one."""

    def __init__(self, folder: Path, how: Start) -> None:
        super().__init__(how)
        self.folder = folder
        if not os.access(folder / "serve", os.X_OK) or (folder / "serve").is_dir():
            raise Trouble(
                f"{str(folder)!r} has no program `serve`; expected an image, a URL, or the folder "
                "of such a checkout"
            )

    def start(self) -> None:
        first = free_ports(NEEDED_PORTS)
        self.address = Address("127.0.0.1", first)
        own = {BIND_TO_PORT: str(first), SAFE_PORTS: f"{first + 1}-{first + NEEDED_PORTS - 1}"}
        if self.how.model:
            own["MODEL_DIR"] = str(self.how.model)
        command = [str(self.folder.resolve() / "serve"), "serve"]
        try:
            self.launch(command, {**os.environ, **own, **self.how.variables})
        except OSError as error:
            raise Trouble(f"{command[0]} cannot be started: {error.strerror}") from error

    def stop(self) -> str:
        if self.process is None:
            return ""
        begin = time.monotonic()
        running = self.process.poll() is None
        try:
            if running:
                self.process.terminate()
                self.process.wait(self.how.stop_s)
        except subprocess.TimeoutExpired:
            pass
        finally:
            with suppress(ProcessLookupError):  # what it started goes with it
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        return self.stopped(begin) if running else ""


class Image(Program):
    """An image, run by Docker."""

    def __init__(self, image: str, how: Start) -> None:
        super().__init__(how)
        self.image = image
        self.name = f"sagemaker-emulator-{os.getpid()}-{how.name}"
        self.created = False

    def start(self) -> None:
        environment = self.how.variables
        port = environment.get(BIND_TO_PORT, str(DEFAULT_PORT))
        options = ["--name", self.name, "--user", "0:0", "--publish", f"127.0.0.1::{port}"]
        for folder, place in ((self.how.model, MODEL_DIR), (self.how.models, MODELS_DIR)):
            if folder:
                options += ["--volume", f"{folder.resolve()}:{place}:ro"]
        for name, value in environment.items():
            options += ["--env", f"{name}={value}"]
        if not docker("image", "inspect", "--format", "{{.Id}}", self.image, may_fail=True):
            self.how.log("the image is not here; pulling it")
            docker("pull", self.image, seconds=None)
        self.created = True  # even if Ctrl-C comes before Docker's answer
        docker("create", *options, self.image, "serve", seconds=None)
        self.launch(["docker", "start", "--attach", self.name], os.environ)
        while not (address := self.found(port)) and not self.ended():
            time.sleep(0.1)
        # Where it ended at once, its end is found as any other.
        self.address = address or Address("127.0.0.1", 0)

    def found(self, port: str) -> Address | None:
        """Return where a port of the container is reached; None until it runs."""
        published = docker("port", self.name, port, may_fail=True).split()
        return Address("127.0.0.1", int(published[0].rpartition(":")[2])) if published else None

    def exit_code(self) -> int:
        """Return the container's own code: that of `docker start` is 1 where it cannot start."""
        state = docker("inspect", "--format", "{{.State.ExitCode}}", self.name, may_fail=True)
        return int(state.strip() or super().exit_code())

    def path_of(self, folder: Path) -> str:
        return f"{MODELS_DIR}/{folder.relative_to(self.how.models or folder)}"

    def stop(self) -> str:
        if not self.created:
            return ""
        begin = time.monotonic()
        running = self.process is not None and self.process.poll() is None
        try:
            if running:
                docker("stop", "--time", f"{self.how.stop_s:.0f}", self.name, seconds=None)
                return self.stopped(begin)
        finally:
            docker("rm", "--force", "--volumes", self.name, may_fail=True)
            if self.process:
                self.process.wait(ENGINE_S)
        return ""


def docker(*arguments: str, seconds: float | None = ENGINE_S, may_fail: bool = False) -> str:
    """Run a command of Docker; return what it prints, or raise Trouble with its last words."""
    try:
        done = subprocess.run(
            ["docker", *arguments],
            capture_output=True,
            encoding="utf-8",
            timeout=seconds,
            check=False,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
    except FileNotFoundError as error:
        raise Trouble(f"there is no `docker` here, which starts images; {OTHERWISE}") from error
    except subprocess.TimeoutExpired as error:
        raise Trouble(f"`docker {arguments[0]}` did not end within {seconds} s") from error
    if not done.returncode:
        return done.stdout
    if may_fail:
        return ""
    lines = [line for line in done.stderr.splitlines() if line.strip()] or ["it says nothing"]
    why = lines[-1].removeprefix("Error response from daemon: ")
    if "docker daemon" in done.stderr or "docker.sock" in done.stderr:
        raise Trouble(f"no Docker engine answers ({why}); start it, or {OTHERWISE}")
    raise Trouble(f"`docker {arguments[0]}` of {arguments[-1]!r} failed: {why}")


def free_ports(count: int) -> int:
    """Return the first of some neighbouring ports on which nobody listens."""
    while True:
        first = secrets.choice(PORTS)
        with ExitStack() as probes, suppress(OSError):
            for port in range(first, first + count):
                probes.enter_context(socket.socket()).bind(("", port))
            return first


def container_of(what: str, how: Start) -> Container:
    """Return what was named: a URL, a folder, or else an image; raise Trouble if it is none."""
    if "://" in what:
        return Remote(what)
    if Path(what).is_dir():
        return LocalProgram(Path(what), how)
    return Image(what, how)
