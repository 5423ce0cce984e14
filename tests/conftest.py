"""Where things are, and the real container, started once for all tests that need it."""

from __future__ import annotations

import base64
import gc
import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from werkzeug.routing import Rule
from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

from bench.servers import processes
from clients.plugins import discovery
from clients.text import tokenizer
from container.supervisor.supervisor import SAME_REQUEST_S

# Else each of some hundred processes compiles the project for itself.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# Else `jsonschema` compiles a grammar for three seconds, for internationalized addresses.
sys.modules["rfc3987_syntax"] = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from tests.support.s3 import S3Server

PROJECT = Path(__file__).resolve().parent.parent
PICTURES = PROJECT / "tests" / "pictures"
SHARED = PROJECT.parent / "shared" / "models"
# What a test waits for comes at once; on a machine that does much else it may take this long.
PATIENCE_S = 300

needs_shared = pytest.mark.skipif(
    not SHARED.is_dir(),
    reason="the larger collection of models and pictures is not beside the project",
)


def picture(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True)
class Endpoint:
    """A running container."""

    port: int
    process: subprocess.Popen[bytes]
    log: Path

    def call(
        self,
        path: str,
        body: bytes | str | None = None,
        method: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=400)
        try:
            connection.request(
                method or ("POST" if body is not None else "GET"), path, body, headers or {}
            )
            response = connection.getresponse()
            return Answer(response.status, dict(response.getheaders()), response.read())
        finally:
            connection.close()

    def ask(self, **body: Any) -> Answer:
        return self.call("/invocations", json.dumps(body))


def free_ports(count: int) -> range:
    """Return neighbouring ports that nobody listens on, and that no other run is given.

    They are leased by names in Linux's abstract namespace of sockets: each belongs to one process
    until it ends, and is known wherever the ports themselves are.
    """
    for low in range(20000, 32000, count):
        leases = [socket.socket(socket.AF_UNIX) for _ in range(count)]
        try:
            for port, lease in enumerate(leases, low):
                lease.bind(f"\0triton-dispatcher-test-{port}")
                with socket.socket() as probe:
                    probe.bind(("", port))
        except OSError:
            for lease in leases:
                lease.close()
            continue
        for lease in leases:
            lease.detach()  # it stays open as long as this process runs
        return range(low, low + count)
    raise RuntimeError("no free ports")


descendants = processes.descendants


def commands(pid: int, pattern: str = "") -> dict[int, str]:
    """Return the command lines of all that a process started and that has not ended meanwhile.

    With a pattern, those in which it is found.
    """
    found = {}
    for child in descendants(pid):
        with suppress(OSError):
            command = Path(f"/proc/{child}/cmdline").read_text().replace("\0", " ")
            if command and re.search(pattern, command):  # a zombie has none
                found[child] = command
    return found


def alive(pids: set[int]) -> set[int]:
    """Return which of some processes still run; a zombie does not."""
    running = set()
    for pid in pids:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if state != "Z":
            running.add(pid)
    return running


def start(folder: Path, **settings: str) -> Endpoint:
    """Start `./serve` on free ports; it may not be ready yet."""
    ports = free_ports(4)
    log = folder / "serve.log"
    environment = {
        **os.environ,
        "PYTHON": sys.executable,
        "SAGEMAKER_BIND_TO_PORT": str(ports[0]),
        "SAGEMAKER_SAFE_PORT_RANGE": f"{ports[1]}-{ports[-1]}",
        "MODEL_SERVER_WORKERS": "1",  # on every machine
        "MODEL_SERVER_TIMEOUT": "300",  # no answer fails because the machine is slow
        **settings,
    }
    # Where it is started there may be packages of the same name.
    (folder / "container").mkdir(exist_ok=True)
    (folder / "container" / "__init__.py").touch()
    with log.open("wb") as output:
        process = subprocess.Popen(
            [PROJECT / "serve", "serve"], env=environment, stdout=output, stderr=output, cwd=folder
        )
    return Endpoint(ports[0], process, log)


def wait_for(condition: Any, what: str | Callable[[], str]) -> None:
    """Wait until the condition holds; `what` says what was missing, looked up at the deadline."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail(f"not within {PATIENCE_S} s: {what() if callable(what) else what}")
        time.sleep(0.05)


def wait_until_announced(endpoint: Endpoint) -> None:
    """Wait until all three programs run and each model was asked, whether or not it is ready."""

    def is_announced() -> bool:
        said = re.findall("serve: (NOT ready|.*POST http)", endpoint.log.read_text())
        if said == ["NOT ready"]:  # as on a machine that does much else
            return b"not probed yet" not in endpoint.call("/ping").body
        return bool(said) or endpoint.process.poll() is not None

    wait_for(is_announced, lambda: f"the start:\n{endpoint.log.read_text()[-3000:]}")
    assert endpoint.process.poll() is None, endpoint.log.read_text()[-3000:]


def stop(
    endpoint: Endpoint, number: signal.Signals = signal.SIGTERM, *, at_once: bool = False
) -> int:
    """Stop a container, at once by a second signal, and see that nothing is left of it."""
    process = endpoint.process
    if process.poll() is not None:
        return process.returncode
    started = descendants(process.pid)
    process.send_signal(number)
    if at_once:
        with suppress(subprocess.TimeoutExpired):
            process.wait(SAME_REQUEST_S + 0.2)
        process.send_signal(number)
    try:
        code = process.wait(PATIENCE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        for pid in alive(started):
            os.kill(pid, signal.SIGKILL)
        raise
    if at_once:
        wait_for(lambda: not alive(started), "the end of all processes")
    assert not alive(started), "a process outlives the container"
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", endpoint.port)) != 0, "the port is still open"
    assert not list(Path("/dev/shm").glob(f"triton_dispatcher_{process.pid}_*"))
    return code


@contextmanager
def running(folder: Path, **settings: str) -> Iterator[Endpoint]:
    endpoint = start(folder, **settings)
    try:
        wait_until_announced(endpoint)
        yield endpoint
    finally:
        # Triton's own end, which takes seconds, is seen in tests/end_to_end/test_lifecycle.py.
        stop(endpoint, at_once=True)


@pytest.fixture
def shut() -> Iterator[Path]:
    """A folder in which `lost+found` must not be entered, as on a volume, nor `unlisted` listed."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    for name, mode in (("lost+found", 0), ("unlisted", 0o111)):
        (folder / name).mkdir()
        (folder / name).chmod(mode)
    was = os.geteuid()
    if was == 0:
        os.seteuid(65534)
    yield folder
    os.seteuid(was)
    for path in (*folder.iterdir(), folder):
        path.rmdir()


# A shell lets what it starts with `&` ignore Ctrl-C, and so would what the tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)


class ByServer(LoadFileScheduling):
    """Keeps a file's tests in one process, and those of all files that share a Triton or an S3."""

    def _split_scope(self, nodeid: str) -> str:
        file = super()._split_scope(nodeid)
        return file.rpartition("/")[0] if "/on_triton/" in file or "/s3/" in file else file

    def _assign_work_unit(self, node: WorkerController) -> None:
        """Begin with what starts servers and waits: short files fill the cores, and the end."""
        first = min(self.workqueue, key=lambda scope: not re.search("_triton|end_to_end", scope))
        self.workqueue.move_to_end(first, last=False)
        super()._assign_work_unit(node)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByServer | None:
    return ByServer(config, log) if config.getoption("dist") == "loadfile" else None


# Python's searches for garbage took a quarter of the collection and a sixth of small tests.
gc.disable()


def pytest_collection_finish() -> None:
    """Leave what is there until the end out of every search."""
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def _what_is_the_same_in_all_tests_is_made_once(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Tokenizers, which take a process, and what took most of the time of small tests.

    Werkzeug compiles the routes of each application, and Python reads of each distribution which
    entry points it has.
    """
    tokenizer.in_use = {}
    tokenizer.KEPT = tmp_path_factory.mktemp("tokenizers")
    compiled: dict[Any, Any] = {}
    compile_builder, entry_points = Rule._compile_builder, discovery.entry_points

    def compile_once(rule: Rule, append_unknown: bool = True) -> Any:  # noqa: FBT002  its own
        key = (rule.rule, repr(rule.defaults), append_unknown)
        if key not in compiled:
            compiled[key] = compile_builder(rule, append_unknown)
        return compiled[key]

    @cache
    def look_once(places: tuple[tuple[Path, int], ...], group: str) -> Any:
        return entry_points(group=group)

    def look(group: str) -> Any:
        there = [path for one in sys.path if (path := Path(one)).exists()]
        return look_once(tuple((path, path.stat().st_mtime_ns) for path in there), group)

    Rule._compile_builder = compile_once  # type: ignore[method-assign]
    discovery.entry_points = look


@pytest.fixture(scope="session")
def models() -> None:
    """Skip where the weights were not made."""
    for name in ("resnet", "yolov5", "bert_base"):
        if not (PROJECT / "model_repository" / name / "1" / "model.onnx").is_file():
            pytest.fail(f"{name} has no weights: run `make weights`")


@pytest.fixture(scope="session")
def repository(models: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project's models, with a second version of bert_base beside the first."""
    folder = tmp_path_factory.mktemp("repository")
    shutil.copytree(PROJECT / "model_repository", folder, dirs_exist_ok=True, symlinks=True)
    shutil.copytree(folder / "bert_base" / "1", folder / "bert_base" / "2")
    config = folder / "bert_base" / "config.pbtxt"
    config.write_text(config.read_text() + "version_policy: { all { } }\n")
    return folder


@pytest.fixture(scope="module")
def endpoint(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    """The container with the three models."""
    with running(tmp_path_factory.mktemp("run"), MODEL_REPOSITORY=str(repository)) as endpoint:
        yield endpoint


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """A real S3 server, which checks signatures."""
    from tests.support.s3 import s3_server  # noqa: PLC0415  boto3 takes half a second

    with s3_server(tmp_path_factory.mktemp("s3")) as server:
        yield server
