"""Programs with one planted fault each: it is found, and no other check accuses them."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from tool.conformance.exchange import Request, Settings
from tool.conformance.report import FAIL, NOT_APPLICABLE, Result
from tool.conformance.run import Examination
from tool.emulate.host.limits import Limits

PROGRAM = Path(__file__).parent / "program.py"
JSON = "application/json"
FAULTS = {  # what is planted, and the check that finds it
    "": "",
    "constant ping": "ping.loading",
    "slow ping": "ping.time",
    "other port": "ports.bind",
    "further port": "ports.range",
    "unknown header": "headers.unknown",
    "short attributes": "headers.attributes",
    "dies of size": "sizes.largest",
    "long errors": "errors.length",
    "silent errors": "errors.answered",
    "buffered stream": "streaming.unbuffered",
    "strategy": "batch.parameters",
    "one at a time": "concurrency.ping",
    "deaf": "stop.sigterm",
    "drops requests": "stop.drain",
    "exit code": "stop.code",
    "silent": "logs.written",
    "buffered logs": "logs.unbuffered",
    "no 404": "multi-model.unknown",
    "no 409": "multi-model.twice",
    "no 507": "multi-model.load",
}
AT_ONCE = 6


def request(x: str) -> Request:
    return Request(b'{"x": "%s"}' % x.encode(), JSON)


def examine(folder: Path, fault: str, **environment: str) -> list[Result]:
    models = folder / "models"
    for number in range(3):
        (models / f"model-{number}").mkdir(parents=True)
    serve = folder / "serve"
    serve.write_text(f"#!/bin/sh\nexec {shlex.quote(sys.executable)} -I {PROGRAM}\n")
    serve.chmod(0o755)
    settings = Settings(
        models=models,
        environment={"FAULT": fault, **environment},
        request=request("good"),
        stream=request("stream"),
        slow=request("slow"),
        limits=Limits(start_s=30, ping_s=1, answer_s=8, stop_s=4),
    )
    return Examination(str(folder), settings, lambda _: None).run()


def accused(results: list[Result]) -> dict[str, str]:
    return {one.check.name: one.came for one in results if one.outcome == FAIL}


@pytest.fixture(scope="module")
def examined(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], list[Result]]]:
    """All programs, examined side by side: they mostly wait."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        work: dict[str, Future[list[Result]]] = {
            one: pool.submit(examine, tmp_path_factory.mktemp("program"), one) for one in FAULTS
        }
        yield lambda fault: work[fault].result()


@pytest.mark.parametrize("fault", FAULTS)
def test_the_fault_is_found_and_nothing_else_is_accused(
    fault: str, examined: Callable[[str], list[Result]]
) -> None:
    found = accused(examined(fault))
    assert list(found) == [FAULTS[fault]] * bool(fault), found


def test_few_checks_are_not_applicable_to_a_good_program(
    examined: Callable[[str], list[Result]],
) -> None:
    names = {one.check.name for one in examined("") if one.outcome == NOT_APPLICABLE}
    assert names == {
        *("start.exec-form", "start.read-only-model", "start.no-network"),
        *("image.labels", "image.size", "bidirectional.label"),
        "ping.broken",
    }


@pytest.mark.slow
@pytest.mark.parametrize(("fault", "expected"), [("", []), ("dead worker", ["ping.broken"])])
def test_a_worker_is_killed(tmp_path: Path, fault: str, expected: list[str]) -> None:
    results = examine(tmp_path, fault, WORKER="1")
    assert list(accused(results)) == expected
    assert next(one for one in results if one.check.name == "ping.broken").outcome != NOT_APPLICABLE
