"""Each failure caused on the real chain, under load: the answers, and what is left of it."""

from __future__ import annotations

import http.client
import signal
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from tests.conftest import PATIENCE_S, Endpoint, running, wait_for
from tests.support.chaos import (
    CRASH,
    HOLD,
    KILL,
    RAISE,
    STOP,
    Load,
    find,
    hit,
    lay_out,
    ping,
    soak,
)


@pytest.fixture(scope="module")
def chaos(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    """A container with a model that is required and one that is not; stopping it leaves nothing."""
    folder = tmp_path_factory.mktemp("chaos")
    settings = lay_out(folder, "steady", "frail")
    settings |= {"REQUIRED_MODELS": "steady", "SERVE_RESTARTS": "100", "PROBE_INTERVAL": "2"}
    with running(folder, **settings) as endpoint:
        yield endpoint


def restarts(endpoint: Endpoint, program: str) -> int:
    """Return how often a program was restarted; -1 where nobody can tell just now."""
    try:
        return int(endpoint.call("/health").json["programs"][program]["restarts"])
    except (OSError, http.client.HTTPException, KeyError):
        return -1


KILLED_OR_STOPPED = [
    ("Triton", KILL, True),
    ("gunicorn's worker", KILL, False),
    ("Triton", STOP, True),
    ("a model's process", KILL, False),  # it alone is loaded again
    ("a model's process", STOP, False),  # and ended before
    ("gunicorn's worker", STOP, True),
    ("NGINX's master", KILL, True),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "number", "restarted"),
    KILLED_OR_STOPPED,
)
def test_what_is_killed_or_stopped_is_back_and_every_caller_was_told(
    chaos: Endpoint, name: str, number: signal.Signals, restarted: bool
) -> None:
    program = "Triton" if name == "a model's process" else name.split("'", maxsplit=1)[0]
    wait_for(lambda: ping(chaos) == 200, "the end of what was before")
    before, was = restarts(chaos, program), find(chaos, name)
    with Load(chaos).going_on() as load:
        wait_for(lambda: load.counts["right"] > 10, "answers before it")
        assert hit(chaos, name, number)
        if restarted and not name.endswith("master"):
            wait_for(lambda: ping(chaos) != 200, "a /ping that says so")
        wait_for(lambda: not {*was} & {*find(chaos, name)} and find(chaos, name), "a new process")
        wait_for(lambda: not restarted or restarts(chaos, program) > before, "a restart")
        wait_for(lambda: ping(chaos) == 200, "/ping turning 200")
        answered = load.counts["right"]
        wait_for(lambda: load.counts["right"] > answered, "answers after it")
    load.check(cut=program == "NGINX")
    assert Load(chaos).one("steady", [21.0]) == "right"
    assert Load(chaos).one("frail", [21.0]) == "right"


@pytest.mark.slow
def test_an_optional_model_that_dies_is_503_by_itself(chaos: Endpoint) -> None:
    wait_for(lambda: ping(chaos) == 200, "the end of what was before")
    before = restarts(chaos, "Triton")
    with Load(chaos).going_on() as load:
        assert Load(chaos).one("frail", [float(RAISE)]) == "502 model_failed"
        assert Load(chaos).one("frail", [1.0]) == "right", "one bad request is no reason"
        with ThreadPoolExecutor(1) as pool:
            in_hand = pool.submit(Load(chaos).one, "frail", [float(HOLD)])
            held = chaos.log.parent / "repository" / "frail" / "1" / "held"
            wait_for(held.exists, "the request that it holds")
            assert Load(chaos).one("frail", [float(CRASH)]) == "502 model_failed"
            assert in_hand.result(PATIENCE_S) == "502 model_failed"
        wait_for(
            lambda: Load(chaos).one("frail", [1.0]) == "503 model_unavailable", "the 503 of one"
        )
        assert chaos.call("/ping").status == 200
        answered = load.counts["right"]
        wait_for(lambda: load.counts["right"] > answered + 10, "answers of the other")
    assert set(load.counts) == {"right"}
    assert restarts(chaos, "Triton") == before
    # Mended together with the others, whenever Triton is restarted.
    hit(chaos, "Triton", KILL)
    wait_for(lambda: Load(chaos).one("frail", [1.0]) == "right", "the optional model")


# No room


@pytest.fixture
def little_room(tmp_path: Path) -> Iterator[Path]:
    """A file system of 16 MB."""
    folder = tmp_path / "room"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("no right to mount a small file system")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.slow
def test_no_room_for_temporary_files_is_said_and_nothing_dies(
    tmp_path: Path, little_room: Path
) -> None:
    settings = lay_out(tmp_path, "steady")
    with running(tmp_path, RUN_DIR=str(little_room), **settings) as endpoint:
        filler = little_room / "filler"
        with suppress(OSError), filler.open("wb") as file:
            while True:
                file.write(b"x" * 65536)
                file.flush()
        assert endpoint.call("/ping").status == 200
        answer = endpoint.call("/invocations", b"{" + b" " * 5_000_000 + b"}")
        assert answer.status in {500, 507}
        assert answer.json["error"]["code"]
        with Load(endpoint).going_on() as load:
            hit(endpoint, "Triton", KILL)
            wait_for(lambda: ping(endpoint) != 200, "a /ping that says so")
            wait_for(lambda: ping(endpoint) == 200, "/ping turning 200")
        load.check()
        hit(endpoint, "gunicorn's worker", KILL)
        wait_for(lambda: Load(endpoint).one("steady", [1.0]) == "right", "another worker")
        filler.unlink()
        answer = endpoint.call("/invocations", b"{" + b" " * 5_000_000 + b"}")
        assert answer.status == 400


@pytest.mark.slow
def test_faults_every_few_seconds(tmp_path: Path) -> None:
    """`make chaos` is the longer one."""
    settings = lay_out(tmp_path, "steady", "frail")
    with running(tmp_path, SERVE_RESTARTS="1000000", **settings) as endpoint:
        soak(endpoint, 25, 5)
