"""Compare two answers of a model: a faster engine, or a new version, must not change them.

The limits are far above the effect of rounding, and below what would change the best class, the
objects or the first word for a caller.
"""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from clients.tensors.quoting import brief
from clients.tensors.scores import sigmoid, softmax

PROBABILITY = 0.03  # the largest difference of a probability, or of an object's score
LEAST_IOU = 0.95  # of an object's two boxes
LEAST_COSINE = 0.999  # of two embeddings
LEAST_MASK_IOU = 0.9  # of a class in two masks
LEAST_SHARE = 0.01  # of a mask's pixels, below which the edge of a class is most of it
SHADE = 0.01  # the mean difference of two pictures, divided by their range
SPREAD = 1e-2  # of plain tensors: the difference divided by the range of the expected numbers
ROUNDING = 1e-6  # the share of a limit up to which answers are the same

TOO_LARGE = (ArithmeticError, RecursionError, Image.DecompressionBombError)

SAME_PLACE = 0.5  # from this IoU on, two boxes of a class are the same object, moved


@dataclass(frozen=True)
class Agreement:
    """The difference between two answers."""

    passes: bool  # whether a caller sees the same answer
    worst: str  # the worst difference, in words
    # The worst difference divided by its limit: above 1 it does not pass; infinite where something
    # is missing or is not a number
    difference: float
    # The first class or word that was expected; empty where there is no object in either answer;
    # None of other answers
    shows: str | None = None

    @property
    def verdict(self) -> str:
        """Whether the answers are "same" but for rounding, "close" or "different"."""
        if not self.passes:
            return "different"
        return "same" if self.difference <= ROUNDING else "close"


def compare(kind: str, expected: Any, got: Any, *, confidence: float = 0.0) -> Agreement:
    """Compare two answers to the same payload; one in no form of its kind is compared by value.

    Args:
        kind: one of `KINDS`: what the client declares in `compared_as`.
        expected: the client's result, in any of its formats.
        got: the result compared with it, in the same form.
        confidence: the least score of an object: an object may be missing if its score is as near
            to this as scores may differ.

    """
    try:
        if kind == "objects":
            return objects(expected, got, confidence)
        return MEASURES[kind](expected, got)
    except (AttributeError, LookupError, OSError, TypeError, ValueError, *TOO_LARGE):
        with suppress(*TOO_LARGE):
            return values(expected, got)
        return different("they are too large, or nested too deeply, to be compared")


def worst_of(found: Sequence[Agreement]) -> Agreement:
    """Return the worst of at least one; not passing is worse than any difference."""
    return max(found, key=lambda one: (not one.passes, one.difference))


def says_nothing(found: Sequence[Agreement]) -> str:
    """Return why several comparisons show nothing, however well they pass; empty if they do."""
    shown = {one.shows for one in found}
    if shown == {""}:
        return "no compared sample has an object"
    if len(found) > 1 and len(shown) == 1 and None not in shown:
        return f"the first is {shown.pop()} in all compared samples"
    return ""


def different(what: str) -> Agreement:
    return Agreement(passes=False, worst=what, difference=math.inf)


# Classes and words


def classes(expected: Any, got: Any) -> Agreement:
    """Compare the best classes, or words of each mask, and their probabilities."""
    blanks = bool(expected) and isinstance(expected[0], list)
    sides = (expected, got) if blanks else ([expected], [got])
    return worst_of([same_first(*map(by_class, pair)) for pair in zip(*sides, strict=True)])


def lines(expected: Mapping[str, Any], got: Mapping[str, Any]) -> Agreement:
    """Compare the texts of a line: letter by letter, whatever their scores are."""
    if expected["text"] != got["text"]:
        return different(f"the text is {got['text']!r}, not {expected['text']!r}")
    return classes([expected], [got])


def by_class(result: Sequence[Any]) -> dict[Any, float]:
    """Return the scores of a result by class, in either of its formats."""
    scores: dict[Any, float] = {}
    for one in result:
        if isinstance(one, str):
            score, _, name = one.partition(":")
            scores.setdefault(name, number(score))
        elif isinstance(one, Mapping):
            words = one.get("token") or one.get("answer") or one.get("text")
            name = words or f"{one.get('index')}:{one.get('label')}"
            scores.setdefault(name, number(one["score"]))
        else:
            scores[one] = math.nan
    return scores


def number(score: Any) -> float:
    """Return a score of an answer in JSON, where `null` is not a number."""
    return math.nan if score in (None, "null") else float(score)


def same_first(expected: Mapping[Any, float], got: Mapping[Any, float]) -> Agreement:
    """Compare scores by class; a class that one side lacks gets its least score."""
    if not all(map(math.isfinite, (*expected.values(), *got.values()))):
        return different("a score is no number")
    names = list(dict.fromkeys((*expected, *got)))
    if not names:
        return Agreement(passes=True, worst="there is no class", difference=0.0)
    if not (expected and got):
        return different("one of them has no class")
    sides = []
    for side in (expected, got):
        least = min(side.values())
        scores = np.array([side.get(name, least) for name in names])
        inside = min(least, *side.values()) >= 0 and max(side.values()) <= 1
        if not inside:  # logits
            scores = softmax(scores) if len(names) > 1 else sigmoid(scores)
        sides.append(scores)
    gaps = np.abs(sides[0] - sides[1])
    at, gap = int(gaps.argmax()), float(gaps.max())
    # Of classes with equal scores the first in the answer, as a caller sees it.
    first, second = (max(side, key=side.__getitem__) for side in (expected, got))
    if first != second:
        what = f"the first is {second}, not {first}"
        return Agreement(passes=False, worst=what, difference=gap / PROBABILITY, shows=str(first))
    probabilities = f"{sides[1][at]:.4f}, not {sides[0][at]:.4f}"
    worst = f"the probability of {names[at]!r} differs by {gap:.2g} ({probabilities})"
    return Agreement(gap <= PROBABILITY, worst, gap / PROBABILITY, str(first))


def entities(expected: Sequence[Mapping[str, Any]], got: Sequence[Mapping[str, Any]]) -> Agreement:
    """Compare what was found in a text by class, place and score."""
    one, other = (
        {f"{found['label']} at {found['start']}-{found['end']}": found["score"] for found in side}
        for side in (expected, got)
    )
    if strange := sorted(one.keys() ^ other.keys()):
        return different(f"{strange[0]} is {'missing' if strange[0] in one else 'new'}")
    gaps = [abs(number(one[name]) - number(other[name])) for name in one]
    worst = max(gaps, default=0.0)
    words = f"the names are the same, their probabilities differ by at most {worst:.2g}"
    passes = all(gap <= PROBABILITY for gap in gaps)
    return Agreement(passes, words, worst / PROBABILITY, shows=None if one else "")


# Objects

Placed = tuple[int, float, tuple[float, ...]]  # class, score, (x1, y1, x2, y2)


def objects(expected: Sequence[Any], got: Sequence[Any], confidence: float = 0.0) -> Agreement:
    """Compare found objects by class, place and score."""
    left = [place_object(one) for one in got]
    if not (expected or left):
        return Agreement(passes=True, worst="there is no object", difference=0.0, shows="")
    found = [Agreement(passes=True, worst="the objects are the same", difference=0.0)]
    for one in map(place_object, expected):
        kind, score, box = one
        match = max(left, key=lambda other: iou(box, other[2]) * (other[0] == kind), default=None)
        overlap = iou(box, match[2]) if match and match[0] == kind else 0.0
        if match is None or overlap < SAME_PLACE:
            found.append(missing(one, "is missing", confidence))
            continue
        left.remove(match)
        gap = abs(score - match[1])
        by_score, by_box = gap / PROBABILITY, (1 - overlap) / (1 - LEAST_IOU)
        name = f"an object of class {kind}"
        worst = f"{name} has the score {match[1]:.3f}, not {score:.3f}"
        if by_box > by_score:
            worst = f"{name} has a box whose IoU is {overlap:.3f}"
        passes = gap <= PROBABILITY and overlap >= LEAST_IOU
        found.append(Agreement(passes, worst, max(by_score, by_box)))
    found += [missing(one, "is new", confidence) for one in left]
    return worst_of(found)


def place_object(one: Any) -> Placed:
    """Return an object of an answer, in either of its formats."""
    if isinstance(one, Mapping):
        box = one["box"]
        return one["index"], number(one["score"]), (box["x1"], box["y1"], box["x2"], box["y2"])
    kind, score, x1, x2, y1, y2, *_ = one
    return kind, number(score), (x1, y1, x2, y2)


def missing(one: Placed, what: str, confidence: float) -> Agreement:
    """Return the agreement for an object that only one side has."""
    kind, score, _ = one
    words = f"an object of class {kind} with the score {score:.3f} {what}"
    if confidence > 0 and score - confidence <= PROBABILITY:
        return Agreement(passes=True, worst=words, difference=(score - confidence) / PROBABILITY)
    return different(words)


def iou(one: Sequence[float], other: Sequence[float]) -> float:
    """Return the intersection over union of two boxes; 0 if they do not overlap."""
    width = min(one[2], other[2]) - max(one[0], other[0])
    height = min(one[3], other[3]) - max(one[1], other[1])
    shared = max(0.0, width) * max(0.0, height)
    areas = sum((box[2] - box[0]) * (box[3] - box[1]) for box in (one, other))
    return shared / (areas - shared) if shared else 0.0


# Masks and pictures


def pictures(expected: Mapping[str, Any], got: Mapping[str, Any]) -> Agreement:
    """Compare two masks, or pictures, which are PNG in base64."""
    name = "mask" if "mask" in expected else "picture"
    files = (io.BytesIO(base64.b64decode(one[name])) for one in (expected, got))
    one, other = (np.asarray(Image.open(file)) for file in files)
    if one.shape != other.shape:
        return different(f"the {name} has the shape {list(other.shape)}, not {list(one.shape)}")
    if "classes" not in expected:
        most = np.iinfo(one.dtype).max
        gap = float(np.abs(one.astype(np.float32) - other).mean()) / most
        return Agreement(gap <= SHADE, f"the {name} differs by {gap:.2g} in the mean", gap / SHADE)
    found = [Agreement(passes=True, worst="the masks are the same", difference=0.0)]
    for index in np.union1d(one, other):
        sides = one == index, other == index
        union = np.count_nonzero(sides[0] | sides[1])
        if union >= LEAST_SHARE * one.size:
            shared = np.count_nonzero(sides[0] & sides[1]) / union
            share = (1 - shared) / (1 - LEAST_MASK_IOU)
            words = f"the pixels of class {index} have an IoU of {shared:.3f}"
            found.append(Agreement(shared >= LEAST_MASK_IOU, words, share))
    return worst_of(found)


# Vectors and tensors


def embeddings(expected: Sequence[float], got: Sequence[float]) -> Agreement:
    """Compare two vectors by the cosine of their angle."""
    one, other = np.asarray(expected, np.float64), np.asarray(got, np.float64)
    if one.shape != other.shape:
        return different(f"the vector has the shape {list(other.shape)}, not {list(one.shape)}")
    lengths = float(np.linalg.norm(one) * np.linalg.norm(other))
    if not math.isfinite(lengths):
        return different("the vector has what is no number")
    cosine = float((one * other).sum()) / lengths if lengths else float(np.array_equal(one, other))
    share = max(0.0, 1 - cosine) / (1 - LEAST_COSINE)
    return Agreement(cosine >= LEAST_COSINE, f"the cosine is {cosine:.5f}", share)


def tensors(expected: Any, got: Any, limit: float = SPREAD) -> Agreement:
    """Compare an array, or arrays by name, relative to the range of the numbers."""
    if not isinstance(expected, Mapping):
        return same_array("the tensor", np.asarray(expected), np.asarray(got), limit)
    if set(expected) != set(got):
        return different(f"there are {', '.join(sorted(got))}, not {', '.join(sorted(expected))}")
    none = Agreement(passes=True, worst="there is no tensor", difference=0.0)
    pairs = ((f"`{name}`", expected[name], got[name]) for name in expected)
    return worst_of([same_array(*pair, limit) for pair in pairs] or [none])


def same_array(
    name: str, expected: npt.NDArray[Any], got: npt.NDArray[Any], limit: float
) -> Agreement:
    if expected.shape != got.shape:
        return different(f"{name} has the shape {list(got.shape)}, not {list(expected.shape)}")
    if expected.dtype.kind not in "biuf" or got.dtype.kind not in "biuf":
        same = np.array_equal(expected, got)
        return Agreement(same, f"{name} is the same" if same else f"{name} is another", 0.0)
    one, other = expected.astype(np.float64), got.astype(np.float64)
    finite = np.isfinite(one)
    infinite = [np.where(np.isfinite(side), 0.0, side) for side in (one, other)]
    if not np.array_equal(infinite[0], infinite[1], equal_nan=True):
        return different(f"{name} has what is no number in other places")
    if not finite.any():
        return Agreement(passes=True, worst=f"{name} has no numbers", difference=0.0)
    numbers = one[finite]
    spread = float(numbers.max() - numbers.min()) or float(np.abs(numbers).max()) or 1.0
    gap = float(np.abs(numbers - other[finite]).max()) / spread
    return Agreement(gap <= limit, f"{name} differs by {gap:.2g} of its range", gap / limit)


# Any result


def values(expected: Any, got: Any) -> Agreement:
    """Compare two results in JSON, or the tensors of two V2 bodies.

    Texts, whole numbers, names and lengths must be equal. A real number may differ by `SPREAD` of
    the largest beside it: those of its list, or of the same field in each item of a list.
    """
    with suppress(LookupError, TypeError, ValueError):  # they are no V2 bodies
        return tensors(outputs_of(expected), outputs_of(got))
    numbers: dict[str, list[tuple[float, float]]] = {}
    if what := find_other(expected, got, "the result", numbers):
        return different(what)
    found = [Agreement(passes=True, worst="the values are the same", difference=0.0)]
    for place, pairs in numbers.items():
        # With 0 among them their range is at least the largest.
        sides = np.array([(0.0, 0.0), *pairs]).T
        found.append(same_array(place, sides[0], sides[1], SPREAD))
    return worst_of(found)


def outputs_of(body: Any) -> dict[str, npt.NDArray[Any]]:
    """Return the tensors of a V2 body by name."""
    return {
        one["name"]: np.array(
            one["data"], object if one["datatype"] == "BYTES" else np.float64
        ).reshape(one["shape"])
        for one in body["outputs"]
    }


def find_other(
    expected: Any, got: Any, place: str, numbers: dict[str, list[tuple[float, float]]]
) -> str:
    """Return the first part that is not equal, in words; collect real numbers by their place."""
    if isinstance(expected, Mapping) and isinstance(got, Mapping):
        if strange := sorted(map(str, expected.keys() ^ got.keys())):
            return f"{place} {'lacks' if strange[0] in expected else 'has'} `{strange[0]}`"
        shared = all(isinstance(one, float) for one in expected.values())
        parts = [
            (place if shared else f"`{name}` of {place}", one, got[name])
            for name, one in expected.items()
        ]
    elif isinstance(expected, list | tuple) and isinstance(got, list | tuple):
        if len(expected) != len(got):
            return f"{place} has {len(got)} values, not {len(expected)}"
        parts = [(place, *pair) for pair in zip(expected, got, strict=True)]
    elif {type(expected), type(got)} in ({float}, {float, int}):
        numbers.setdefault(place, []).append((expected, got))
        return ""
    else:
        same = type(expected) is type(got) and expected == got
        return "" if same else f"{place} is {brief(got)}, not {brief(expected)}"
    return next(filter(None, (find_other(one, two, at, numbers) for at, one, two in parts)), "")


MEASURES: Mapping[str, Callable[[Any, Any], Agreement]] = {
    "classes": classes,
    "words": classes,
    "objects": objects,
    "vectors": embeddings,
    "names": entities,
    "pictures": pictures,
    "texts": lines,
    "values": values,
}
KINDS = tuple(MEASURES)
