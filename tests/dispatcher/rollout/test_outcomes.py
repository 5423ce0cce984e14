"""How calls end is known in all web workers, in a file that stays small."""

from __future__ import annotations

import itertools
import json
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clients.errors import TooLargeAtOnce
from dispatcher.rollout import outcomes as module
from dispatcher.rollout.outcomes import Outcome, Outcomes
from dispatcher.rollout.plan import CANARY, STABLE
from dispatcher.telemetry.telemetry import Metrics
from tests.conftest import PATIENCE_S
from tests.support.rollouts import Doubles, Side, times

CANARY_ALONE: Any = {"version": 2, "share": 1}


def outcome(identity: str = "a", **fields: Any) -> Outcome:
    return Outcome(STABLE, "version=1", 1.0, 2.5, 200, request_id=identity, **fields)


def test_workers_read_what_others_wrote_whatever_stands_between(tmp_path: Path) -> None:
    """Half a line is of a disk that was full; a line of another form is of another release."""
    one, other = (Outcomes(tmp_path, Metrics()) for _ in range(2))
    one.note("a/b", outcome("first"))
    one.write()
    (file,) = tmp_path.iterdir()
    assert json.loads(file.read_bytes())["request_id"] == "first"
    assert other.last("a/b") == [outcome("first")]
    with file.open("ab") as broken:
        broken.write(b'{"of": "canary", "new": 1}\n{"of": "can')
    assert other.last("a/b") == [outcome("first")]
    for identity in ("lost with the half line", "second"):
        one.note("a/b", outcome(identity))
        one.write()
    assert other.last("a/b") == one.last("a/b") == [outcome("first"), outcome("second")]
    assert other.last("c") == []


def test_a_long_file_is_put_aside_and_that_of_another_model_deleted(tmp_path: Path) -> None:
    one, other, late = (Outcomes(tmp_path, Metrics()) for _ in range(3))
    (tmp_path / "m.json").write_text("a plan")
    one.note("gone", outcome())
    numbers = itertools.count()
    seen: list[str] = []
    for _ in range(3):  # each makes a file of more than half of what is kept
        for number in itertools.islice(numbers, 1000):
            one.note("m", outcome(f"{number:04d}", words="e" * 500))
        one.write()
        seen = [last.request_id for last in other.last("m")]
        one.tidy(["m"])
    assert seen == [f"{number:04d}" for number in range(1000, 3000)]
    one.note("m", outcome("next"))
    one.write()
    assert [last.request_id for last in other.last("m")] == [*seen[1000:], "next"]
    assert other.last("m") == late.last("m")
    names = sorted(file.name for file in tmp_path.iterdir())
    assert names == ["m.json", "m.outcomes", "m.outcomes.1"]
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) < 2**21
    one.tidy([])
    assert [file.name for file in tmp_path.iterdir()] == ["m.json"]


def test_what_cannot_be_written_is_said_once_and_known_to_its_worker(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A guard that is blind where a disk is full would let a bad canary go on."""
    one, other = (Outcomes(tmp_path / "folder", Metrics()) for _ in range(2))
    (tmp_path / "folder").write_bytes(b"")
    for number in range(3):
        one.note("m", outcome(str(number)))
        one.write()
    assert caplog.text.count("the guard of 'm' misses some of its answers") == 1
    assert [last.request_id for last in one.last("m")] == ["0", "1", "2"]
    assert other.last("m") == []
    (tmp_path / "folder").unlink()
    one.note("m", outcome("there"))
    one.write()
    assert other.last("m") == one.last("m") == [outcome("there")]


def test_every_form_of_request_is_noted_and_one_that_names_a_version_is_not(tmp_path: Path) -> None:
    side = Side(tmp_path, times(2))
    side.put(canary=CANARY_ALONE)
    payload = {"numbers": [1.0]}
    side.ask()
    side.ask(payload=[payload] * 3)  # a batch
    one = {"modelname": "doubles", "payload": payload}
    side.client.post("/invocations", json={"requests": [one, one]})
    lines = "\n".join([json.dumps(one)] * 2)
    answer = side.client.post("/invocations", data=lines, content_type="application/jsonlines")
    assert answer.text.count("result") == 2, "what is not read may not be computed yet"
    answer = side.client.post("/infer/doubles?modelversion=1", json={"payload": payload})
    assert "X-Canary" not in answer.headers
    side.outcomes.write()
    seen = side.outcomes.last("doubles")
    assert [(one.of, one.status) for one in seen] == [(CANARY, 200)] * (1 + 1 + 2 + 2)
    assert all(one.by == "version=2" and one.ms > 0 for one in seen)
    page = side.metrics.page().decode()
    assert 'rollout_seconds_count{model="doubles",of="canary",status="200"} 6.0' in page


def test_a_stream_is_one_call_unless_its_reader_leaves(tmp_path: Path) -> None:
    class Counts(Doubles):
        modelname = "counts"
        model = "doubles"

        def inference(self, payload: Any) -> Any:
            for number in payload["numbers"]:
                yield self.infer({"IN": np.array([number])})["OUT"].tolist()

    side = Side(tmp_path, times(2))
    clients = side.rollouts._registry.clients
    clients["counts"] = Counts(clients["doubles"]._environment)
    side.put("counts", canary=CANARY_ALONE)
    lines = {"Accept": "application/jsonlines"}
    body = {"payload": {"numbers": [1, 2, 3]}}
    answer = side.client.post("/infer/counts", json=body, headers=lines)
    assert len(answer.text.splitlines()) == 3
    side.client.post("/infer/counts", json=body, headers=lines, buffered=False).close()
    side.outcomes.write()
    (noted,) = side.outcomes.last("counts")
    assert (noted.of, noted.status) == (CANARY, 200)
    assert not side.outcomes.running


def test_a_batch_that_is_run_in_halves_has_not_failed(tmp_path: Path) -> None:
    def two_at_most(inputs: Any) -> Any:
        raise TooLargeAtOnce("no memory")

    side = Side(tmp_path, two_at_most)
    side.put(canary=CANARY_ALONE)
    assert side.ask(payload=[{"numbers": [1.0]}] * 4).status_code == 507
    side.outcomes.write()
    assert {one.status for one in side.outcomes.last("doubles")} == {507}
    assert len(side.outcomes.last("doubles")) == 1


def test_a_call_that_hangs_is_known_before_it_returns(tmp_path: Path) -> None:
    """A thread cannot be ended, and a guard that waits for it would wait for ever."""
    free = threading.Event()

    def hang(inputs: Any) -> Any:
        free.wait(PATIENCE_S)
        return times(2)(inputs)

    side = Side(tmp_path, hang)
    side.put(canary=CANARY_ALONE)
    thread = threading.Thread(target=side.ask)
    thread.start()
    try:
        while not side.outcomes.running:
            time.sleep(0.001)
        (call,) = side.outcomes.running
        side.outcomes.look(call.began + module.LONG_S)
        assert side.counts() == {}
        for after in (1, 1.5, 2.1, 3):
            side.outcomes.look(call.began + after * module.LONG_S + 0.01)
        assert side.counts()["canary"]["answers"] == 1
        assert [one.status for one in side.outcomes.last("doubles")] == [0, 0]
        side.outcomes.look(call.deadline + module.GRACE_S + 0.1)
    finally:
        free.set()
        thread.join()
    counts = side.counts()["canary"]
    assert (counts["answers"], counts["failed"]) == (1, 1)
    assert side.outcomes.last("doubles")[-1].status == 504
