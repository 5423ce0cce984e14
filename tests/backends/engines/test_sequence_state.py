"""States of sequences: what they begin with, how long they are kept, what is refused."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from backends.batching.item import NONE, RequestError
from backends.machine.shared_memory import Share, TooLarge
from backends.model_config import FileSignature, FileTensor, ModelConfigError
from backends.sequence_state import PartOfSequence, SequenceStates
from tests.backends.conftest import Process

ZERO = {"name": "zero", "data_type": "TYPE_FP32", "dims": ["2"], "zero_data": True}


def states(folder: Path, initial: Any = ZERO, slots: int = 1, **more: Any) -> SequenceStates:
    state = {"input_name": "s", "output_name": "t", "data_type": "TYPE_FP32", "dims": ["-1"]}
    state |= {"initial_state": [initial]} | more
    batching = {"state": [state], "oldest": {"max_candidate_sequences": slots}}
    return SequenceStates({"name": "m", "sequence_batching": batching}, folder)


def part(identity: int | str, *, start: bool = False, end: bool = False) -> PartOfSequence:
    return PartOfSequence(identity, start, end)


def state_of(kept: SequenceStates, one: PartOfSequence) -> list[float]:
    return kept.begin(one)["s"].tolist()


def run(kept: SequenceStates, one: PartOfSequence, number: float) -> None:
    kept.end(one, {"t": np.full(2, number, np.float32), "y": np.zeros(1)})


def test_a_state_lasts_from_the_start_to_the_end_of_its_sequence(tmp_path: Path) -> None:
    kept = states(tmp_path)
    assert state_of(kept, part(7, start=True)) == [0, 0]
    run(kept, part(7, start=True), 1)
    assert state_of(kept, part(7)) == [1, 1]
    kept.end(part(7), ValueError("the run failed"))
    assert state_of(kept, part(7, end=True)) == [1, 1]
    run(kept, part(7, end=True), 2)
    with pytest.raises(RequestError, match="begin it again"):
        kept.begin(part(7))
    kept.end(part(7), RequestError("so it was not run"))
    with pytest.raises(RequestError, match="begin it again"):
        kept.begin(part(7))


def test_a_caller_whose_answer_has_no_room_may_send_the_same_again(
    tmp_path: Path, process: Process
) -> None:
    """Two states and an answer have 24 bytes."""
    requests = process.module.triton_requests
    config = {"name": "m", "max_batch_size": 0, "output": [{"name": "y", "dims": ["2"]}]}
    signature = FileSignature((FileTensor("s", "TYPE_FP32", (2,)),), ())
    session = SimpleNamespace(on_cpu=True, by_rows=None)
    session.run = lambda inputs, _: {"t": inputs["s"] + 1, "y": inputs["s"]}
    for room, state in ((23, [0, 0]), (24, [1, 1])):
        kept = states(tmp_path)
        handler = requests.RequestHandler(config, signature, session, Share(tensors=room), kept)
        sequence = part(7, start=True)
        asked = requests.TritonRequest({}, {}, NONE, math.inf, ("y",), None, sequence)
        (answer,) = handler.results([asked])
        assert isinstance(answer, TooLarge) == (room == 23)
        assert state_of(kept, part(7)) == state


def test_a_sequence_that_begins_again_has_nothing_of_the_old_one(tmp_path: Path) -> None:
    kept = states(tmp_path)
    run(kept, part("a", start=True), 5)
    assert state_of(kept, part("a", start=True)) == [0, 0]
    kept.end(part("a", start=True), ValueError("the run failed"))
    assert state_of(kept, part("a")) == [0, 0]


def test_those_that_were_given_up_make_room(tmp_path: Path) -> None:
    """Triton says nothing of them: twice as many are kept as it goes on with at a time."""
    kept = states(tmp_path, slots=2)
    for identity in range(1, 5):
        run(kept, part(identity, start=True), identity)
    run(kept, part(1), 1)
    run(kept, part(5, start=True), 5)
    assert [state_of(kept, part(identity)) for identity in (1, 3)] == [[1, 1], [3, 3]]
    with pytest.raises(RequestError):
        kept.begin(part(2))


def test_what_triton_fills_a_batch_with_keeps_nothing(tmp_path: Path) -> None:
    kept = states(tmp_path)
    for empty in (0, ""):
        assert state_of(kept, part(empty)) == [0, 0]
        run(kept, part(empty), 1)
        assert state_of(kept, part(empty)) == [0, 0]


def test_a_state_may_begin_with_a_file(tmp_path: Path) -> None:
    (tmp_path / "initial_state").mkdir()
    (tmp_path / "initial_state" / "first").write_bytes(np.array([1, 2], np.float32).tobytes())
    first = {"name": "f", "data_type": "TYPE_FP32", "dims": ["2"], "data_file": "first"}
    assert state_of(states(tmp_path, first), part(7, start=True)) == [1, 2]


@pytest.mark.parametrize(
    ("initial", "words"),
    [
        ({**ZERO, "dims": ["-1"]}, ["'s' has dims [-1]", "zero_data: true"]),
        ({**ZERO, "data_type": "TYPE_INT64"}, ["an initial_state of TYPE_INT64", "TYPE_FP32"]),
        ({**ZERO, "data_file": "none"}, ["'none', which cannot be read", "put it into"]),
        ({**ZERO, "data_file": "long"}, ["of 9 bytes", "are 8"]),
    ],
)
def test_a_wrong_beginning_is_named(tmp_path: Path, initial: Any, words: list[str]) -> None:
    (tmp_path / "initial_state").mkdir()
    (tmp_path / "initial_state" / "long").write_bytes(bytes(9))
    with pytest.raises(ModelConfigError) as caught:
        states(tmp_path, initial)
    for word in words:
        assert word in str(caught.value)
