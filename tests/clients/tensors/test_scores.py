"""The best of many scores, their probabilities, and the classes that they are of."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from clients.errors import ModelFailed, TensorsRefused
from clients.tensors.classes import classify, labels_at
from clients.tensors.scores import best, likeliest


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, np.int8, np.uint8])
@pytest.mark.parametrize("spread", [1, 5, 60])
def test_probabilities_are_those_of_the_whole_vocabulary(dtype: type, spread: float) -> None:
    drawn = np.random.default_rng(3).normal(size=30522) * spread
    logits = (np.abs(drawn) if dtype is np.uint8 else drawn).clip(-120, 250).astype(dtype)
    # Python's own: exactly summed, in double precision.
    exact = [float(logit) for logit in logits]
    greatest = max(exact)
    weights = [math.exp(logit - greatest) for logit in exact]
    total = math.fsum(weights)
    expected = sorted(range(len(exact)), key=lambda place: (-exact[place], place))[:7]
    found = likeliest(logits, 7)
    assert [place for place, _ in found] == expected
    for place, probability in found:
        assert probability == pytest.approx(weights[place] / total, rel=1e-6)


@pytest.mark.parametrize("size", [1, 63, 64, 65, 640, 641, 30_522])
@pytest.mark.parametrize("kinds", [2, 1000, 1_000_000])
def test_the_best_of_many_are_those_of_a_sorted_list(size: int, kinds: int) -> None:
    scores = np.random.default_rng(size + kinds).integers(0, kinds, size).astype(np.float32)
    falling = sorted(range(size), key=lambda place: (-scores[place], place))
    for count in (1, 5, 10, 500):
        assert best(scores, count) == [(place, scores[place]) for place in falling[:count]]
    scores[falling[0]] = np.nan
    assert [place for place, _ in best(scores, 5)] == [*falling[1:], falling[0]][:5]
    assert [place for place, _ in best(scores * np.nan, 2)] == [0, 1][:size]


def test_of_equal_scores_the_first_are_best_and_what_is_no_number_comes_last() -> None:
    scores = np.array([[2, np.nan, 3, 2], [np.inf, 0, 0, -np.inf]], np.float32)
    assert classify(scores, 4, [b"a"], batched=True).tolist() == [
        [b"3.000000:2", b"2.000000:0:a", b"2.000000:3", b"null:1"],
        [b"null:0:a", b"0.000000:1", b"0.000000:2", b"null:3"],
    ]
    assert classify(np.array([[1], [2]], np.int8), 1, [], batched=False).tolist() == [b"2:1"]
    assert classify(np.zeros((0, 3), np.float32), 2, [], batched=True).shape == (0, 2)
    assert classify(np.zeros((2, 0), np.float32), 2, [], batched=True).shape == (2, 0)
    with pytest.raises(ModelFailed, match="bool"):
        classify(np.array([True]), 1, [], batched=False)
    with pytest.raises(ModelFailed, match=r"float32 \[\]"):
        classify(np.float32(1)[...], 1, [], batched=True)
    with pytest.raises(TensorsRefused, match="100,002 classes"):
        classify(np.zeros((2, 50_001), np.float32), 2**31 - 1, [], batched=True)


def test_labels_that_cannot_be_read_are_none(tmp_path: Path) -> None:
    assert list(labels_at(tmp_path / "labels.txt")) == []
    (tmp_path / "labels.txt").write_text("a\nb")
    assert list(labels_at(tmp_path / "labels.txt")) == [b"a", b"b"]


@pytest.mark.parametrize("coding", ["utf-8-sig", "utf-16"])
def test_labels_may_begin_with_a_byte_order_mark(tmp_path: Path, coding: str) -> None:
    (tmp_path / "labels.txt").write_bytes("a\r\nö\r\n".encode(coding))
    assert list(labels_at(tmp_path / "labels.txt")) == [b"a", b"\xc3\xb6"]
