"""When a canary falls back, and when it does not."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from clients.errors import BadParameter, BadPayload, DeadlineExceeded, ModelFailed, TensorsRefused
from dispatcher.rollout.guard import find_reason
from dispatcher.rollout.outcomes import Outcome
from dispatcher.rollout.plan import CANARY, SHADOW, STABLE, Canary, Plan, Variant
from tests.support.rollouts import Doubles, Side, times

SINCE = 100.0
NUMBERS = itertools.count()


def some(count: int, of: str, version: str, at: float = SINCE, **fields: Any) -> list[Outcome]:
    given = {"status": 200, "ms": 10, "request_id": str(next(NUMBERS)), **fields}
    return [Outcome(of, f"version={version}", at + n / 1e6, **given) for n in range(count)]


def stable(count: int, **fields: Any) -> list[Outcome]:
    return some(count, STABLE, "1", **fields)


def canary(count: int, **fields: Any) -> list[Outcome]:
    return some(count, CANARY, "2", **fields)


def shadow(count: int, found: str, version: str = "2", **fields: Any) -> list[Outcome]:
    return some(count, SHADOW, version, found=found, **fields)


FAILED: Any = {"status": 502, "failed": True}


@pytest.mark.parametrize(
    ("outcomes", "limits", "reason"),
    [
        ([], {}, ""),
        (stable(50) + canary(50), {}, ""),
        # Errors: three at least, and a larger share than the stable version's and the limit.
        (stable(50) + canary(9) + canary(2, **FAILED), {}, ""),
        (stable(50) + canary(9) + canary(3, **FAILED), {}, "3 of its 12 answers failed"),
        (stable(50) + canary(200) + canary(4, **FAILED), {}, ""),
        (stable(50) + canary(200) + canary(5, **FAILED), {}, "5 of its 205 answers failed"),
        (stable(40) + stable(10, **FAILED) + canary(9) + canary(2, **FAILED), {}, ""),
        (stable(40) + stable(10, **FAILED) + canary(8) + canary(3, **FAILED), {}, "3 of its 11"),
        (canary(9) + canary(3, **FAILED), {"errors": 0.5}, ""),
        # Time: more than a 99th percentile leaves, of twice the stable version's or as it is set.
        (stable(50) + canary(100, ms=20) + canary(4, ms=21), {}, ""),
        (stable(50) + canary(100, ms=20) + canary(5, ms=21), {}, "5 of its 105 answers took"),
        (stable(50) + canary(900, ms=20) + canary(8, ms=21), {}, ""),
        (stable(19) + canary(50, ms=900), {}, ""),
        (canary(50, ms=900), {"p99_ms": 899}, "50 of its 50 answers took more"),
        (stable(50, ms=500) + canary(50, ms=400), {"p99_ms": 500}, ""),
        # A stall of the machine slows both down.
        (stable(970) + stable(6, ms=300) + canary(95) + canary(2, ms=300), {}, ""),
        # It hangs: its callers wait for as long as they may.
        (stable(50) + canary(3, ms=2001, status=0), {}, "3 of its 3 answers took"),
        (stable(50) + canary(3, ms=1999, status=0), {}, ""),
        (stable(50, ms=150) + canary(3, ms=2999, status=0), {}, ""),
        # Comparisons, of this version as a shadow.
        (canary(9) + shadow(90, "same") + shadow(4, "different"), {}, ""),
        (canary(9) + shadow(50, "close") + shadow(3, "different"), {}, "3 of 53 answers that were"),
        (canary(9) + shadow(2, "different") + shadow(1, "error"), {}, "3 of 3 answers that were"),
        (canary(9) + shadow(2, "different") + shadow(99, "dropped"), {}, ""),
        (canary(9) + shadow(50, "different", version="3"), {}, ""),
        (shadow(50, "different", at=SINCE - 1) + canary(9), {}, ""),
        # What was before this canary began, or is of another, says nothing of it.
        (stable(50) + canary(9, at=SINCE - 1, **FAILED), {}, ""),
        (stable(50) + some(9, CANARY, "3", **FAILED), {}, ""),
    ],
)  # fmt: skip
def test_a_canary_falls_back_beyond_a_limit_and_not_by_chance(
    outcomes: list[Outcome], limits: Any, reason: str
) -> None:
    tried = Canary(version="2", share=0.1, **limits)
    plan = Plan(Variant(version="1"), Variant(version="2", share=0.1), tried, since=SINCE)
    found = find_reason(plan, outcomes)
    assert found.startswith(reason)
    assert bool(found) == bool(reason)


@pytest.mark.parametrize(
    "error", [ModelFailed("no"), DeadlineExceeded("late"), TensorsRefused("299 pixels, not 224")]
)
def test_a_canary_that_fails_falls_back_in_all_workers_and_stays_back(
    tmp_path: Path, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    """Each of three workers sees one failure, which none would act on alone."""
    sides = [Side(tmp_path, error) for _ in range(3)]
    sides[0].put(canary={"version": 2, "share": 0.5})
    tried = Canary(version="2", share=0.5)
    its = next(one for one in map(str, itertools.count()) if tried.takes("doubles", one))
    for side in sides:
        answer = side.ask(its)
        if isinstance(error, DeadlineExceeded):
            assert answer.headers["X-Canary"] == "version=2"
        else:  # the stable version answers in its place
            assert answer.json == {"modelname": "doubles", "result": [2.0]}
            assert "X-Canary" not in answer.headers
    for side in sides[1:]:
        side.outcomes.write()
    sides[0].guard.look()
    assert caplog.text.count("fell back: 3 of its 3 answers failed") == 1
    for side in sides:
        assert {side.ask(f"request-{number}").status_code for number in range(20)} == {200}
        side.guard.look()
    assert "the canary of doubles (version=2) fell back" in caplog.text
    plan = Side(tmp_path, error).rollouts.plans["doubles"]
    assert plan.back.startswith("3 of its 3")
    assert caplog.text.count("fell back") == 1


def test_what_callers_do_wrong_is_no_fault_of_a_canary(tmp_path: Path) -> None:
    side = Side(tmp_path, times(2))
    side.put(canary={"version": 2, "share": 1})
    for _ in range(9):
        assert side.ask(payload={"numbers": "none"}).status_code == 400
    assert side.counts()["canary"] == {"answers": 9, "failed": 0}, "nor quick"
    assert not side.rollouts.plans["doubles"].back


def test_the_stable_version_answers_for_a_canary_that_fails_unless_it_fails_too(
    tmp_path: Path,
) -> None:
    """A payload that ends any version must not send a good canary back."""
    side = Side(tmp_path, ModelFailed("no"))
    side.put(canary={"version": 2, "share": 1})
    answer = side.ask(payload=[{"numbers": [1.0]}, {"numbers": [2.0]}])
    assert answer.json == {"modelname": "doubles", "result": [[2.0], [4.0]]}
    assert side.counts()["canary"]["failed"] == 1
    side.server.models_run["doubles"] = ModelFailed("nor here")
    for _ in range(9):
        answer = side.ask()
        assert answer.status_code == 502
        assert answer.headers["X-Canary"] == "version=2"
    assert side.counts()["canary"] == {"answers": 10, "failed": 1}
    # That it had no time left after the canary says nothing of the payload.
    side.server.models_run["doubles"] = DeadlineExceeded("late")
    assert side.ask().status_code == 502
    assert side.counts()["canary"] == {"answers": 11, "failed": 2}


def test_another_model_that_refuses_what_the_stable_version_takes_falls_back(
    tmp_path: Path,
) -> None:
    class Picky(Doubles):
        modelname = "picky"
        model = "doubles"

        def inference(self, payload: Any) -> Any:
            raise BadPayload("the field `text` is missing", hint="send it")

    class Eager(Picky):
        modelname = "eager"

        def read_parameters(self, *_: Any) -> Any:
            raise BadParameter("a parameter is missing")

    side = Side(tmp_path, times(2))
    clients = side.rollouts._registry.clients
    for kind in (Picky, Eager):
        clients[kind.modelname] = kind(clients["doubles"]._environment)
    for name in ("picky", "eager"):
        side.put(canary={"model": name, "share": 1})
        for _ in range(3):
            answer = side.ask()
            assert answer.json == {"modelname": "doubles", "result": [2.0]}
            assert "X-Canary" not in answer.headers
        side.guard.look()
        assert side.rollouts.plans["doubles"].back.startswith("3 of its 3 answers failed")


def test_a_caller_in_a_hurry_cannot_send_a_good_canary_back(tmp_path: Path) -> None:
    side = Side(tmp_path, DeadlineExceeded("late"))
    side.put(canary={"version": 2, "share": 1})
    for _ in range(9):
        body = {"payload": {"numbers": [1.0]}}
        answer = side.client.post("/infer/doubles?timeout_ms=50000", json=body)
        assert answer.status_code == 504
    counts = side.counts()["canary"]
    assert (counts["answers"], counts["failed"], "p99_ms" in counts) == (9, 0, True), "but late"
    assert not side.rollouts.plans["doubles"].back


def test_a_slow_canary_falls_back_by_the_time_that_its_calls_took(tmp_path: Path) -> None:
    side = Side(tmp_path, times(2))
    side.put(canary={"version": 2, "share": 1, "p99_ms": 0.001})
    for _ in range(4):
        side.ask()
    assert side.counts()["canary"]["answers"] == 4
    assert not side.rollouts.plans["doubles"].back
    side.ask()
    side.guard.look()
    back = side.rollouts.plans["doubles"].back
    assert back == "5 of its 5 answers took more than 0.001 ms (p99_ms)"
    assert side.ask().headers.get("X-Canary") is None
    page = side.client.get("/metrics").text
    assert 'dispatcher_canary_back{model="doubles"} 1.0' in page
