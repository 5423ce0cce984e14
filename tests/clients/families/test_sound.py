"""The family `sound`: windows over a sound, the state between them, and what is answered."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from clients.errors import BadParameter, BadPayload, ClientDisabled, TooLargeAtOnce
from clients.request import Request
from clients.triton.server import Signature, Tensors, TensorSpec
from tests.support.fake_triton import Arrays
from tests.support.family_bench import Bench, bench, signature

__all__ = ["bench"]  # the fixture

TOML = 'family = "sound"\nrate = 10\n'
WINDOWS = signature({"x": (4,)}, {"y": (1,)}, batch=3)
CLASSES = signature({"x": (4,)}, {"y": (3,)}, batch=3)
CHUNKS = Signature(
    0,
    (TensorSpec("x", "FP32", (-1, 6)), TensorSpec("h", "FP32", (1, 1))),
    (TensorSpec("y", "FP32", (-1,)), TensorSpec("hn", "FP32", (1, 1))),
)
ONE = Signature(
    0,
    (
        TensorSpec("x", "FP32", (1, -1)),
        TensorSpec("h", "FP32", (1, -1)),
        TensorSpec("sr", "INT64", (1,)),
    ),
    (TensorSpec("y", "FP32", (1, 1)), TensorSpec("hn", "FP32", (1, -1))),
)
NINE = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9]


def sums(inputs: Tensors) -> Arrays:
    assert len(inputs["x"]) <= 3
    return {"y": inputs["x"].sum(1, keepdims=True)}


def running(inputs: Tensors) -> Arrays:
    """Add up the windows' sums from the state on."""
    if "sr" in inputs:
        assert (inputs["sr"].dtype, inputs["sr"].tolist()) == (np.int64, [8])
    totals = inputs["h"].ravel()[0] + np.cumsum(inputs["x"].sum(1))
    return {"y": totals.reshape(-1, 1), "hn": totals[-1:].reshape(1, 1)}


def scores(answer: Any) -> list[float]:
    return [one["score"] for one in answer["windows"]]


def test_windows_are_answered_with_their_times(bench: Bench) -> None:
    bench.set_up(TOML, WINDOWS, labels="it\n")
    bench.answers(sums)
    assert bench.ask({"audio": NINE}) == {
        "seconds": 0.9,
        "windows": [
            {"start": 0.0, "end": 0.4, "score": 1.0},
            {"start": 0.4, "end": 0.8, "score": 2.6},
            {"start": 0.8, "end": 0.9, "score": 0.9},  # the rest is silence
        ],
    }
    bench.set_up(TOML + "hop = 2\nbefore = 3\nscale = 10\n", WINDOWS, labels="it\n")
    answer = bench.ask({"audio": NINE})
    assert scores(answer) == pytest.approx([1, 6, 14, 22, 30])
    assert [one["end"] for one in answer["windows"]] == [0.1, 0.3, 0.5, 0.7, 0.9]


def test_windows_of_a_list_share_runs(bench: Bench) -> None:
    seen: list[int] = []

    def run(inputs: Tensors) -> Arrays:
        seen.append(len(inputs["x"]))
        return sums(inputs)

    bench.set_up(TOML, WINDOWS, labels="it\n")
    bench.answers(run)
    client = bench.client()
    with Request(parameters=client.read_parameters({})).active():
        answers = client.inference_batch([{"audio": NINE}, {"audio": [1.0]}, {"audio": NINE}])
    assert list(map(scores, answers)) == [[1.0, 2.6, 0.9], [1.0], [1.0, 2.6, 0.9]]
    assert seen == [3, 3, 1]


@pytest.mark.parametrize("more", ["", "windows = 2\n"])
def test_state_goes_from_window_to_window_and_begins_with_each_sound(
    bench: Bench, more: str
) -> None:
    """Chunks of two samples, with four before them: as silero's are of 512, with 64."""
    bench.set_up(f'{TOML}{more}hop = 2\nbefore = 4\nstate = {{ h = "hn" }}\n', CHUNKS, labels="it")
    bench.answers(running)
    client = bench.client()
    with Request(parameters=client.read_parameters({})).active():
        first, again = client.inference_batch([{"audio": NINE[:5]}, {"audio": NINE[:3]}])
    assert scores(first) == pytest.approx([0.3, 1.3, 2.8])
    assert scores(again) == pytest.approx([0.3, 0.9])
    assert first["windows"][1]["start"] == 0.2


def test_other_inputs_are_constants(bench: Bench) -> None:
    toml = f'{TOML}window = 4\nstate = {{ h = "hn" }}\nconstants = {{ sr = 8 }}\n'
    bench.set_up(toml, ONE, labels="it")
    bench.answers(running)
    assert scores(bench.ask({"audio": NINE})) == pytest.approx([1, 3.6, 4.5])


def test_classes_and_vectors(bench: Bench) -> None:
    bench.answers(lambda inputs: {"y": np.array([[1, 3, 2]] * len(inputs["x"]), np.float32)})
    bench.set_up(TOML, CLASSES)
    (one,) = bench.ask({"audio": [0.1]}, top_k=2)["windows"]
    first, second = ({"label": "b", "index": 1, "score": 3}, {"label": "c", "index": 2, "score": 2})
    assert one == {"start": 0.0, "end": 0.1, "classes": [first, second]}
    bench.set_up(f"{TOML}softmax = true\n", CLASSES)
    (one,) = bench.ask({"audio": [0.1]}, top_k=1)["windows"]
    assert one["classes"][0]["score"] == pytest.approx(0.665241)  # e^3 / (e + e^2 + e^3)
    bench.set_up(f"{TOML}vectors = true\n", CLASSES)
    (one,) = bench.ask({"audio": [0.1]})["windows"]
    assert one["vector"] == [1, 3, 2]
    with pytest.raises(BadParameter, match="has 3 numbers"):
        bench.ask({"audio": [0.1]}, answer="speech")


def test_parts_with_speech(bench: Bench) -> None:
    """By hand: windows of 0.4 s; a silence of one window is part of speech, one of two is not."""
    bench.answers(lambda inputs: {"y": inputs["x"][:, :1]})
    bench.set_up(TOML, WINDOWS, labels="it\n")
    loud = [0.0, 0.9, 0.4, 0.1, 0.9, 0.1, 0.1, 0.1, 0.6, 0.9]  # 0.4 is above 0.5 - 0.15
    asked: Any = {"answer": "speech", "min_silence_duration_ms": 800, "speech_pad_ms": 200}
    sound = {"audio": np.repeat(loud, 4).tolist()}
    parts = [{"start": 0.2, "end": 2.2}, {"start": 3.0, "end": 4.0}]
    assert bench.ask(sound, **asked) == {"seconds": 4.0, "speech": parts}
    longer = {**asked, "min_speech_duration_ms": 800}
    assert bench.ask(sound, **longer)["speech"] == [{"start": 0.2, "end": 2.2}]


@pytest.mark.parametrize(
    ("more", "tensors", "words"),
    [
        ("window = 5", WINDOWS, ["`window` is 5", "takes 4"]),
        ("", ONE, ["`input` is missing", '"x", "h"']),
        ('input = "x"', ONE, ["`input` leaves", "`h`", "constants"]),
        ('state = { h = "hn" }\nconstants = { sr = 8 }', ONE, ["`window` is missing"]),
        ('state = { h = "z" }', CHUNKS, ['has h = "z"', "answers y, hn"]),
        ('state = { h = "hn" }\nconstants = { sr = "8" }\nwindow = 4', ONE, ["sr = '8'", "number"]),
        (
            'state = { h = "hn" }\nconstants = { sr = 8 }\nwindow = 4\nwindows = 2',
            ONE,
            ["`windows` is 2", "takes one"],
        ),
        ("", signature({"x": (3, 8, 8)}, {"y": (3,)}, datatype="UINT8"), ["no windows"]),
    ],
)
def test_a_mistake_in_a_key_is_named(
    bench: Bench, more: str, tensors: Signature, words: list[str]
) -> None:
    bench.set_up(f"{TOML}{more}\n", tensors, labels="it")
    with pytest.raises(ClientDisabled) as caught:
        bench.ask({"audio": [0.1]})
    for word in words:
        assert word in str(caught.value)


def test_one_caller_can_ask_for_so_much(bench: Bench) -> None:
    bench.answers(sums)
    bench.set_up(f"{TOML}longest = 2\n", WINDOWS, labels="it")
    client = bench.client()
    with pytest.raises(BadPayload, match="at most 2"):
        bench.ask({"audio": [0.1] * 21})
    parameters = client.read_parameters({})
    with pytest.raises(TooLargeAtOnce), Request(parameters=parameters).active():
        client.inference_batch([{"audio": [0.1] * 11}] * 2)
    toml = f'{TOML}window = 4\nhop = 1\nstate = {{ h = "hn" }}\nconstants = {{ sr = 8 }}\n'
    bench.set_up(toml, ONE, labels="it")
    with pytest.raises(BadPayload, match="at most 500"):  # 5,000 runs
        bench.ask({"audio": [0.0] * 5001})
