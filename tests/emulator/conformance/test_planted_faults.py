"""Programs with one planted fault each: it is found, and no other check accuses them."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
from sagemaker_emulator.conformance.exchange import NotApplicable, Request, Settings
from sagemaker_emulator.conformance.load import slow_request_ends
from sagemaker_emulator.conformance.report import FAIL, NOT_APPLICABLE, Result
from sagemaker_emulator.conformance.run import Examination
from sagemaker_emulator.host.limits import MB, Limits

from tests.emulator.conftest import PROGRAM

JSON = "application/json"
FAULTS = {  # what is planted, and the check that finds it
    "": "",
    "constant ping": "ping.loading",
    "other port": "start.ready",
    "dies of size": "sizes.largest",
    "long errors": "errors.answered",
    "deaf": "stop.sigterm",
}
MORE_FAULTS = {
    "slow ping": "ping.time",
    "unknown header": "headers.taken",
    "buffered stream": "streaming.unbuffered",
    "one at a time": "concurrency.ping",
    "drops requests": "stop.drain",
    "no 409": "multi-model.twice",
    "short attributes": "headers.taken",
    "silent errors": "errors.answered",
    "exit code": "stop.sigterm",
    "no 404": "multi-model.unknown",
    "no 507": "multi-model.load",
}
# What is shorter than for the others, for a shorter test; and how long a model loads.
PING_S = {"slow ping": 0.5, "one at a time": 2.0}
START_S, STOP_S, LOADING_S = {"other port": 3}, {"deaf": 5}, {"constant ping": "6"}
AT_ONCE = 12


def request(x: str) -> Request:
    return Request(b'{"x": "%s"}' % x.encode(), JSON)


def made(folder: Path) -> Path:
    """Return the folder, with the program and its models."""
    for number in range(3):
        (folder / "models" / f"model-{number}").mkdir(parents=True)
    serve = folder / "serve"
    serve.write_text(f"#!/bin/sh\nexec {shlex.quote(sys.executable)} -I {PROGRAM}\n")
    serve.chmod(0o755)
    return folder


def examine(folder: Path, fault: str) -> list[Result]:
    settings = Settings(
        models=folder / "models",
        environment={"FAULT": fault, "CAPACITY": "2", "MOST_MB": "6"}
        | {"LOADING_S": LOADING_S.get(fault, "0.5")},
        request=request("good"),
        stream=request("stream"),
        slow=request("slow"),
        limits=Limits(
            start_s=START_S.get(fault, 120),
            ping_s=PING_S.get(fault, 10.0),
            answer_s=20,
            stop_s=STOP_S.get(fault, 20),
            max_body=5 * MB,
        ),
    )
    return Examination(str(folder), settings, lambda _: None).run()


@pytest.fixture(scope="module")
def examined(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], list[Result]]]:
    """The programs of the tests that run, examined side by side: they mostly wait."""
    wanted = {""} | {
        one.callspec.params["fault"]
        for one in request.session.items
        if isinstance(one, pytest.Function) and "examined" in one.fixturenames
        if hasattr(one, "callspec")
    }
    # First all files: a process that another thread starts meanwhile would hold one open to write.
    folders = {one: made(tmp_path_factory.mktemp("program")) for one in wanted}
    with ThreadPoolExecutor(AT_ONCE) as pool:
        work = {one: pool.submit(examine, folder, one) for one, folder in folders.items()}
        yield lambda fault: work[fault].result()


@pytest.mark.parametrize(
    ("fault", "finder"),
    [*FAULTS.items(), *(pytest.param(*one, marks=pytest.mark.slow) for one in MORE_FAULTS.items())],
)
def test_the_fault_is_found_and_nothing_else_is_accused(
    fault: str, finder: str, examined: Callable[[str], list[Result]]
) -> None:
    found = {one.check.name: one.came for one in examined(fault) if one.outcome == FAIL}
    assert list(found) == [finder] * bool(finder), found


def test_every_check_applies_to_a_good_program(
    examined: Callable[[str], list[Result]],
) -> None:
    names = {one.check.name for one in examined("") if one.outcome == NOT_APPLICABLE}
    assert not names


@pytest.mark.parametrize("status", [400, 500])
def test_a_slow_request_that_is_refused_at_once_shows_nothing(status: int) -> None:
    """Of the examined server only what this check asks is there."""
    refusing = SimpleNamespace(
        settings=Settings(slow=request("slow")),
        limits=Limits(),
        invoke=lambda _request, seconds: SimpleNamespace(status=status),
    )
    with pytest.raises(NotApplicable, match=f"refused at once, with {status}"):
        slow_request_ends.look(refusing)  # type: ignore[arg-type]
