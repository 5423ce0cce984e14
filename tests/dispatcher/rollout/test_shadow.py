"""Shadows: after the answer, while nobody waits, and never in a caller's way."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clients.errors import BadPayload, ModelFailed
from clients.tensors.client import TensorResult
from dispatcher.rollout import shadow as module
from dispatcher.rollout.outcomes import FOUND
from dispatcher.rollout.shadow import ShadowCall, Shadows, measure
from tests.support.rollouts import Doubles, Side, times

SHADOW: Any = {"version": 2, "share": 1}


def asked(side: Side) -> list[str]:
    return [call["version"] for call in side.server.calls]


@pytest.mark.parametrize(
    ("second", "found", "words"),
    [
        (times(2), "same", ""),
        (times(2.01), "close", ""),
        (times(3), "different", "the result differs by 0.5 of its range"),
        (lambda _: {"OUT": [[1]]}, "error", "unexpected exception"),
        (ModelFailed("out of order"), "error", "out of order"),
        (BadPayload("quotes the caller"), "error", "bad_payload"),
    ],
)
def test_a_shadow_is_compared_with_what_the_caller_got(
    tmp_path: Path, second: Any, found: str, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    side = Side(tmp_path, second)
    side.put(shadow=SHADOW)
    answer = side.ask("mine", payload={"numbers": [1.0, 2.0]})
    assert answer.json == {"modelname": "doubles", "result": [2.0, 4.0]}
    assert asked(side) == ["1"], "nothing but the answer while the caller waits"
    caplog.set_level(logging.DEBUG)
    assert side.shadows.step()
    assert not caplog.messages
    assert asked(side) == ["1", "2"]
    inputs = [call["inputs"]["IN"].tolist() for call in side.server.calls]
    assert inputs == [[[1.0, 2.0]]] * 2, "though the class has spoilt its payload"
    counts = side.counts()
    shadow = counts["shadow"]
    assert {one: shadow[one] for one in FOUND} == {**dict.fromkeys(FOUND, 0), found: 1}
    assert counts["stable"]["answers"] == shadow["answers"] == 1
    assert shadow["failed"] == (found == "error")
    if words:
        assert shadow["last_difference"]["request_id"] == "mine"
        assert words in shadow["last_difference"]["what"]
    else:
        assert "last_difference" not in shadow
    page = side.metrics.page().decode()
    assert f'shadow_comparisons_total{{found="{found}",model="doubles"}} 1.0' in page


def test_a_list_is_compared_payload_by_payload(tmp_path: Path) -> None:
    def second_is_other(inputs: Any) -> Any:
        return {"OUT": inputs["IN"] * (2 if inputs["IN"][0, 0] == 1 else 3)}

    side = Side(tmp_path, second_is_other)
    side.put(shadow=SHADOW)
    side.ask(payload=[{"numbers": [1.0]}, {"numbers": [5.0]}])
    while side.shadows.step():
        pass
    assert side.counts()["shadow"]["different"] == 1


def test_another_model_is_asked_by_its_own_client_and_not_shadowed_itself(tmp_path: Path) -> None:
    """Two models that shadow each other would go on for ever."""

    class Other(Doubles):
        modelname = "other"
        model = "doubles"

    side = Side(tmp_path, times(2))
    clients = side.rollouts._registry.clients
    clients["other"] = Other(clients["doubles"]._environment)
    side.put(shadow={"model": "other", "share": 1})
    side.put("other", shadow={"model": "doubles", "share": 1})
    side.ask()
    assert side.shadows.step()
    assert not side.shadows.step()
    assert side.counts()["shadow"]["same"] == 1


def test_a_share_of_nothing_copies_and_asks_nothing(tmp_path: Path) -> None:
    side = Side(tmp_path, times(3))
    side.put(shadow={"version": 2, "share": 0})
    side.ask()
    assert not side.shadows.step()
    assert "shadow" not in side.counts()


def test_a_canary_s_answer_and_a_sequence_have_no_shadow(tmp_path: Path) -> None:
    side = Side(tmp_path, times(3))
    side.put(canary={"version": 2, "share": 1}, shadow=SHADOW)
    side.ask()
    side.put(canary=None)
    session = {"X-Amzn-SageMaker-Session-Id": "s"}
    side.client.post("/infer/doubles", json={"payload": {"numbers": [1.0]}}, headers=session)
    assert not side.shadows.step()


def call(
    name: str = "m", size: int = 1, answer: Any = 1, got: Any = 1, ran: list[str] | None = None
) -> ShadowCall:
    def ask(_: float) -> Any:
        if ran is not None:
            ran.append(name)
        return got

    is_list = isinstance(answer, tuple)
    by = "version=2", "id", "values", 0.0
    return ShadowCall(name, *by, is_list, answer, ask, lambda: True, size)


@pytest.fixture
def side(tmp_path: Path) -> Side:
    return Side(tmp_path, times(2))


def found(side: Side, name: str = "m") -> list[str]:
    side.outcomes.write()
    return [one.found for one in side.outcomes.last(name)]


def test_it_runs_only_while_nobody_waits_and_is_dropped_after_some_seconds(side: Side) -> None:
    now = [0.0]
    shadows = Shadows(side.outcomes, side.admission, 2, 10, clock=lambda: now[0])
    ran: list[str] = []
    calls = side.admission.calls
    slots = [calls.enter("busy", 1e9), calls.enter("busy", 1e9)]
    shadows.put(call("m", ran=ran))
    assert not shadows.step(), "each core of this worker has a call"
    slots.pop().release()
    side.admission.waiting.count = 1
    assert not shadows.step(), "a caller waits"
    side.admission.waiting.count = 0
    now[0] = module.PATIENCE_S
    assert shadows.step()
    assert ran == ["m"]
    assert len(calls.running) == 1, "its slot is free again"
    shadows.put(call("m", ran=ran))
    now[0] += module.PATIENCE_S + 0.1
    assert not shadows.step()
    assert found(side) == ["same", "dropped"]
    assert ran == ["m"]


def test_it_waits_until_the_answer_was_sent_and_lets_others_go_first(side: Side) -> None:
    sent: list[bool] = []
    ran: list[str] = []
    late = call("late", ran=ran)
    late.sent = lambda: bool(sent)
    side.shadows.put(late)
    side.shadows.put(call("m", ran=ran))
    assert side.shadows.step()
    assert not side.shadows.step()
    sent.append(True)
    assert side.shadows.step()
    assert ran == ["m", "late"]


def test_what_waits_is_bounded_by_count_and_bytes(side: Side) -> None:
    for _ in range(module.MOST_WAITING + 3):
        side.shadows.put(call())
    assert found(side) == ["dropped"] * 3
    while side.shadows.step():
        pass
    side.shadows.put(call(size=module.MOST_BYTES))
    side.shadows.put(call())
    assert found(side).count("dropped") == 4


def out(*numbers: float, **fields: Any) -> TensorResult:
    return TensorResult("m", "1", {"OUT": np.array(numbers, np.float32)}, **fields)


@pytest.mark.parametrize(
    ("answer", "got", "found", "words"),
    [
        # What an answer says is shown to no other caller.
        ("my secret", "another", "different", "the result is …"),
        # Tensors, also those that are sent in binary, and several of a decoupled model.
        (out(1, 2), out(1, 2), "same", "`OUT` differs by 0 of its range"),
        (out(1, 2, binary={"OUT": b"x"}), out(1, 9, binary={"OUT": b"x"}), "different", "7 of its"),
        ([out(1, 2), out(1, 2)], [out(1, 2), out(1, 3)], "different", "1 of its range"),
        ([out(1)], [out(1), out(1)], "error", "what JSON cannot represent"),
        (out(1), {"OUT": 1}, "error", "what JSON cannot represent"),
        ([1.0, float("nan")], [1.0, float("nan")], "same", ""),
        ((1, "a"), (1, "b"), "different", "the result is …"),
    ],
)
def test_answers_of_each_form_are_compared(
    side: Side, answer: Any, got: Any, found: str, words: str
) -> None:
    side.shadows.put(call(answer=answer, got=got))
    assert side.shadows.step()
    side.outcomes.write()
    (noted,) = side.outcomes.last("m")
    assert noted.found == found
    assert words in noted.words


def test_the_size_counts_texts_files_numbers_and_tensors() -> None:
    payloads = [{"img": "x" * 100, "file": b"y" * 50, "n": [1, 2.0]}]
    assert measure(payloads, out(*range(10))) == 206
