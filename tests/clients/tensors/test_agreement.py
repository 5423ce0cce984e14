"""Two answers agree where a caller sees the same; expected values are worked out by hand."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from PIL import Image

from clients.images.drawing import as_base64
from clients.tensors.agreement import KINDS, Agreement, compare, says_nothing, tensors, worst_of

DOG = [16, 0.9, 100, 200, 50, 150, 640, 480]  # class, score, x1, x2, y1, y2, width, height
CAT = [15, 0.6, 300, 400, 50, 150, 640, 480]


def moved(one: list[float], right: float = 0, score: float = 0) -> list[float]:
    kind, was, x1, x2, *rest = one
    return [kind, was + score, x1 + right, x2 + right, *rest]


def named(one: list[float]) -> dict[str, Any]:
    kind, score, x1, x2, y1, y2, *_ = one
    box = {"x1": x1, "y1": y1, "x2": x2, "y2": y2}
    return {"label": "dog", "index": kind, "score": score, "box": box}


@pytest.mark.parametrize(
    ("expected", "got", "passes", "gap"),
    [
        (["0.9:1:cat", "0.1:0:dog"], ["0.88:1:cat", "0.12:0:dog"], True, 0.02),
        (["0.9:1:cat", "0.1:0:dog"], ["0.86:1:cat", "0.14:0:dog"], False, 0.04),
        (["0.51:1:cat", "0.49:0:dog"], ["0.51:0:dog", "0.49:1:cat"], False, 0.02),
        # Of two as probable a caller takes the first.
        (["0.51:1:cat", "0.5:0:dog"], ["0.5:0:dog", "0.5:1:cat"], False, 0.01),
        (["0.51:1:cat", "0.5:0:dog"], ["0.5:1:cat", "0.5:0:dog"], True, 0.01),
        # The class that is not among the best has at most the least score of them.
        (["0.8:1:cat", "0.1:0:dog"], ["0.8:1:cat", "0.09:7:cow"], True, 0.01),
        (["0.6:1:cat", "0.3:0:dog"], ["0.6:1:cat", "0.09:7:cow"], False, 0.21),
        # Logits: e^2 / (e^2 + 1) = 0.8808, e^1.8 / (e^1.8 + 1) = 0.8581; e^1.7 makes 0.8455.
        (["2:1:cat", "0:0:dog"], ["1.8:1:cat", "0:0:dog"], True, 0.0227),
        (["2:1:cat", "0:0:dog"], ["1.7:1:cat", "0:0:dog"], False, 0.0353),
        (["0.9:1:cat", "0.8:0:dog"], ["0.9:1:cat", "0.78:0:dog"], True, 0.02),  # no shares of 1
        # The logit of one class alone: 1 / (1 + e^-2) = 0.8808, as above.
        (["2:0"], ["1.8:0"], True, 0.0227),
        (["2:0"], ["1.7:0"], False, 0.0353),
    ],
)
def test_classes_agree_by_the_first_and_by_probability(
    expected: Any, got: Any, passes: bool, gap: float
) -> None:
    found = compare("classes", expected, got)
    assert found.passes == passes
    assert found.difference == pytest.approx(gap / 0.03, abs=0.01)


def test_the_formats_of_an_answer_are_compared_alike() -> None:
    one = [{"label": "cat", "index": 1, "score": 0.9}, {"label": "cat", "index": 2, "score": 0.1}]
    other = [{"label": "cat", "index": 2, "score": 0.6}, {"label": "cat", "index": 1, "score": 0.4}]
    assert compare("classes", one, one).passes
    swapped = compare("classes", one, other)
    assert (swapped.passes, swapped.worst) == (False, "the first is 2:cat, not 1:cat")


def test_names_agree_by_place_and_by_probability() -> None:
    one = {"label": "PER", "word": "Ada", "start": 3, "end": 6, "score": 0.9}
    assert compare("names", [one], [{**one, "score": 0.88}]).passes
    assert not compare("names", [one], [{**one, "score": 0.86}]).passes
    assert not compare("names", [one], [{**one, "score": None}]).passes
    found = compare("names", [one], [{**one, "start": 4}])
    assert (found.passes, found.worst) == (False, "PER at 3-6 is missing")
    assert says_nothing([compare("names", [], [])]) != ""


def test_answers_agree_by_the_first_and_by_probability() -> None:
    one = [{"answer": "Ada", "score": 0.6}, {"answer": "", "score": 0.2}]
    other = [{"answer": "", "score": 0.6}, {"answer": "Ada", "score": 0.2}]
    assert compare("words", one, [{"answer": "Ada", "score": 0.61}, one[1]]).passes
    assert not compare("words", one, other).passes


def test_texts_of_a_line_agree_by_their_letters_and_their_score() -> None:
    one = {"text": "Total", "score": 0.9}
    assert compare("texts", one, {"text": "Total", "score": 0.88}).passes
    assert not compare("texts", one, {"text": "Total", "score": 0.86}).passes
    found = compare("texts", one, {"text": "Tota1", "score": 0.9})
    assert (found.passes, found.difference) == (False, math.inf)
    assert found.worst == "the text is 'Tota1', not 'Total'"


def test_words_agree_in_every_blank() -> None:
    one = [{"token": "a dog", "score": 0.5}, {"token": "a cat", "score": 0.2}]
    near = [{"token": "a dog", "score": 0.48}, {"token": "a cat", "score": 0.2}]
    far = [{"token": "a cow", "score": 0.48}, {"token": "a dog", "score": 0.47}]
    assert compare("words", one, near).difference == pytest.approx(0.02 / 0.03)
    assert not compare("words", one, far).passes
    assert compare("words", [one, one], [one, near]).passes
    assert not compare("words", [one, one], [far, one]).passes


@pytest.mark.parametrize("got", [["null:1:cat"], [math.nan], []])
def test_classes_that_are_no_numbers_do_not_agree(got: Any) -> None:
    found = compare("classes", ["0.9:1:cat"], got)
    assert (found.passes, found.difference) == (False, math.inf)
    assert found.worst in {"a score is no number", "one of them has no class"}


# A square of 100 moved by 2 shares 98 of 102: 0.961; by 3 it is 97/103 = 0.942.
@pytest.mark.parametrize(
    ("got", "passes", "words"),
    [
        ([CAT, DOG], True, "the same"),
        ([moved(DOG, 2), CAT], True, "IoU is 0.961"),
        ([moved(DOG, 3), CAT], False, "IoU is 0.942"),
        ([moved(DOG, score=-0.02), CAT], True, "0.880, not 0.900"),
        ([moved(DOG, score=-0.04), CAT], False, "0.860, not 0.900"),
        ([DOG], False, "class 15 with the score 0.600 is missing"),
        ([DOG, CAT, moved(CAT, 150)], False, "is new"),
        ([DOG, CAT, CAT], False, "is new"),
        ([[15, *DOG[1:]], CAT], False, "class 16 with the score 0.900 is missing"),
        ([], False, "is missing"),
    ],
)
def test_objects_agree_by_class_place_and_score(got: Any, passes: bool, words: str) -> None:
    for one, other in (([DOG, CAT], got), ([named(DOG), named(CAT)], [named(o) for o in got])):
        found = compare("objects", one, other)
        assert found.passes == passes
        assert words in found.worst
        assert (found.difference <= 1) == passes


# Masks and pictures


def png(array: Any) -> str:
    return as_base64(Image.fromarray(np.array(array, np.uint8)))


# Of 100×100 pixels the upper half is class 1; the last one of class 2 is too small to count.
HALF = np.array([[1] * 100] * 50 + [[0] * 100] * 50)
HALF[-1, -1] = 2


@pytest.mark.parametrize(
    ("moved_by", "passes", "words"),
    [(0, True, "IoU of 1.000"), (2, True, "class 0 have an IoU of 0.960"), (6, False, "0.880")],
)
def test_masks_agree_by_their_classes(moved_by: int, passes: bool, words: str) -> None:
    """Moved by 2 rows, class 1 has 50 of 52 rows in common, and class 0 has 48 of 50."""
    other = HALF.copy()
    other[50 : 50 + moved_by] = 1
    other[-1, -1] = 0
    one, two = ({"classes": [], "mask": png(mask)} for mask in (HALF, other))
    found = compare("pictures", one, two)
    assert found.passes == passes
    assert words in found.worst
    assert (found.difference <= 1) == passes


@pytest.mark.parametrize(("off", "passes"), [(0, True), (2, True), (3, False)])
def test_pictures_agree_by_their_mean_difference(off: int, passes: bool) -> None:
    one = np.full((4, 4), 100)
    for name in ("mask", "picture"):
        found = compare("pictures", {name: png(one)}, {name: png(one + off)})
        assert found.passes == passes
    smaller = compare("pictures", {"picture": png(one)}, {"picture": png(one[:2])})
    assert not smaller.passes


@pytest.mark.parametrize(
    ("kind", "answers", "said"),
    [
        ("objects", [[], []], "no compared sample has an object"),
        ("objects", [[], [DOG]], ""),
        ("classes", [["0.9:0:a"], ["0.8:0:a"]], "the first is 0:a in all compared samples"),
        ("classes", [["0.9:0:a"]], ""),
        ("classes", [["0.9:0:a"], ["0.8:1:b"]], ""),
        ("vectors", [[1.0, 0.0], [1.0, 0.0]], ""),
    ],
)
def test_answers_that_would_agree_by_themselves(kind: str, answers: list[Any], said: str) -> None:
    assert says_nothing([compare(kind, one, one) for one in answers]) == said


def test_an_object_that_is_hardly_answered_may_be_missing() -> None:
    assert not compare("objects", [CAT], []).passes
    assert compare("objects", [CAT], [], confidence=0.58).passes
    assert compare("objects", [], [CAT], confidence=0.58).passes
    assert not compare("objects", [CAT], [], confidence=0.5).passes


def test_embeddings_agree_by_the_cosine_of_their_angle() -> None:
    def vector(angle: float) -> list[float]:
        return [math.cos(angle), math.sin(angle)]

    assert compare("vectors", vector(0), vector(0.04)).passes  # its cosine is 0.9992
    assert not compare("vectors", vector(0), vector(0.05)).passes  # 0.99875
    assert compare("vectors", [0.0, 0.0], [0.0, 0.0]).passes
    assert not compare("vectors", [0.0, 0.0], [0.0, 1.0]).passes
    assert not compare("vectors", [1.0, 0.0], [math.nan, 0.0]).passes
    assert not compare("vectors", [1.0, 0.0], [1.0]).passes


def test_tensors_agree_by_their_spread() -> None:
    one = {"a": np.array([-5.0, 5.0]), "b": np.array([1, 2])}
    near = {"a": np.array([-5.0, 5.09], np.float32), "b": np.array([1, 2])}
    found = tensors(one, near)
    assert (found.passes, found.worst) == (True, "`a` differs by 0.009 of its range")
    assert found.difference == pytest.approx(0.9, rel=1e-4)
    assert not tensors(one, near, limit=1e-3).passes
    assert tensors({"a": one["a"]}, {"a": one["a"]}).worst == "`a` differs by 0 of its range"
    assert not tensors(one["a"], np.array([-5.0, 5.2])).passes
    places = tensors({"a": one["a"]}, {"a": np.array([-5.0, math.nan])})
    assert places.worst == "`a` has what is no number in other places"
    shape = tensors({"a": one["a"]}, {"a": np.array([-5.0])})
    assert shape.worst == "`a` has the shape [1], not [2]"
    constant = np.array([200.0, 200.0])
    assert tensors(constant, constant + 1).difference == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("expected", "got", "passes"),
    [
        (np.array([1.0, math.nan]), np.array([1.0, math.nan]), True),
        (np.array([1.0, 2.0]), np.array([1.0, math.nan]), False),
        (np.array([1.0, 2.0]), np.array([[1.0, 2.0]]), False),
        (np.array([math.inf]), np.array([math.inf]), True),
        (np.array([1.0, -math.inf]), np.array([1.0, math.inf]), False),
        (np.array([1.0, -math.inf]), np.array([1.0, math.nan]), False),
        (np.array([b"a"], object), np.array([b"a"], object), True),
        (np.array([b"a"], object), np.array([b"b"], object), False),
        ({"a": np.zeros(1)}, {"b": np.zeros(1)}, False),
        ({}, {}, True),
    ],
)
def test_tensors_that_hold_no_numbers_are_compared_too(
    expected: Any, got: Any, passes: bool
) -> None:
    assert tensors(expected, got).passes == passes


def test_what_does_not_pass_is_the_worst() -> None:
    tie = Agreement(passes=False, worst="another first", difference=0.1)
    same, near = (Agreement(passes=True, worst="", difference=gap) for gap in (0.0, 0.9))
    assert worst_of([near, tie, same]) is tie
    assert worst_of([same, near, same]) is near


def body(data: Any, version: str, kind: str = "FP32") -> dict[str, Any]:
    output = {"name": "y", "shape": [1, 2], "datatype": kind, "data": data}
    return {"model_name": "m", "model_version": version, "outputs": [output]}


# A real number may differ by a hundredth of the largest beside it, all else not at all.
ROW = {"label": "a", "at": {"x": 300.0, "y": 200.0}, "count": 7, "score": 0.5}


@pytest.mark.parametrize(
    ("expected", "got", "verdict", "words"),
    [
        (ROW, ROW, "same", "the values are the same"),
        (ROW, {**ROW, "score": 0.504}, "close", "`score` of the result differs by 0.008"),
        (ROW, {**ROW, "score": 0.506}, "different", "`score` of the result differs by 0.012"),
        (ROW, {**ROW, "at": {"x": 300.0, "y": 202.9}}, "close", "`at` of the result differs"),
        (ROW, {**ROW, "at": {"x": 300.0, "y": 203.1}}, "different", "`at` of the result differs"),
        (ROW, {**ROW, "count": 8}, "different", "`count` of the result is 8, not 7"),
        (ROW, {**ROW, "label": None}, "different", "`label` of the result is null, not 'a'"),
        (ROW, {**ROW, "more": 1}, "different", "the result has `more`"),
        (ROW, {"label": "a"}, "different", "the result lacks `at`"),
        ([ROW, {**ROW, "score": 9.0}], [ROW, {**ROW, "score": 9.08}], "close", "`score`"),
        ([1, True], [1, 1], "different", "the result is 1, not true"),
        ([1.0, 2.0], [1, 2], "same", "the values are the same"),
        ([1.0], [1.0, 2.0], "different", "the result has 2 values, not 1"),
        ([math.nan], [1.0], "different", "no number in other places"),
        ("a text", "a text", "same", "the values are the same"),
        (body([0.5, 1], "1"), body([0.509, 1.0], "2"), "different", "`y` differs by 0.018"),
        (body([0.0, 1], "1"), body([0.009, 1.0], "2"), "close", "`y` differs by 0.009"),
        (body([None, 1], "1"), body([None, 1], "2"), "same", "`y` differs by 0"),
        (body(["a", "b"], "1", "BYTES"), body(["a", "c"], "2", "BYTES"), "different", "`y` is"),
    ],
)
def test_any_result_agrees_by_value(expected: Any, got: Any, verdict: str, words: str) -> None:
    found = compare("values", expected, got)
    assert words in found.worst
    assert found.verdict == verdict


@pytest.mark.parametrize(
    ("kind", "got"),
    [("vectors", [10**400]), ("values", json.loads("[" * 900 + "1.5" + "]" * 900))],
)
def test_what_cannot_be_compared_is_different(kind: str, got: Any) -> None:
    expected = [1.0] if kind == "vectors" else got
    assert compare(kind, expected, got).verdict == "different"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("other", [{"a": 1}, [[1], "x"], "text", 5, [{"score": "?"}]])
def test_a_result_in_another_form_is_compared_by_value(kind: str, other: Any) -> None:
    assert compare(kind, other, other).verdict == "same"
    assert compare(kind, {"own": [1]}, other).verdict == "different"
