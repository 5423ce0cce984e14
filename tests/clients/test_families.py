"""The families: what a `dispatch.toml` may say, and what is answered then."""

from __future__ import annotations

import json
import math
import re
import shutil
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clients.errors import BadPayload, ClientDisabled, ModelFailed, ModelUnavailable
from clients.plugins import family
from clients.request import Request
from clients.tensors.scores import best, likeliest
from clients.triton.server import Padding, Signature, Tensors
from dispatcher.codecs.json_encoding import encode
from tests.conftest import PROJECT
from tests.support.fake_triton import Arrays
from tests.support.family_bench import (
    BOXES,
    PICTURES,
    TEXTS,
    Bench,
    bench,
    picture,
    plain,
    signature,
    tokenizer_at,
)

__all__ = ["bench"]  # the fixture


def sent(bench: Bench, toml: str, tensors: Signature, pixels: np.ndarray) -> np.ndarray:
    """What a classifier is given for a picture."""
    seen: list[np.ndarray] = []

    def run(inputs: Tensors) -> Arrays:
        seen.append(np.array(inputs["x"]))
        return {"y": np.zeros((1, 3), np.float32)}

    bench.set_up(f'family = "classification"\n{toml}', tensors)
    bench.answers(run)
    bench.ask(picture(pixels))
    return seen[0]


@pytest.mark.parametrize(
    ("toml", "tensors", "expected"),
    [
        ("", PICTURES, [1.0, 0.4, 0.0]),
        ('channels = "BGR"', PICTURES, [0.0, 0.4, 1.0]),
        ('pixels = "0-255"', PICTURES, [255, 102, 0]),
        ("mean = [0.5, 0.5, 0.5]\nstd = [0.5, 0.25, 0.5]", PICTURES, [1.0, -0.4, -1.0]),
        ('pixels = "0-255"\nchannels = "BGR"\nmean = [104, 117, 123]', PICTURES, [-104, -15, 132]),
    ],
)
def test_channels(bench: Bench, toml: str, tensors: Signature, expected: list[float]) -> None:
    given = sent(bench, toml, tensors, plain(4, 4, [255, 102, 0]))
    assert given.shape == (1, 3, 8, 8)
    assert given.dtype == np.float32
    assert given[0, :, 3, 5].tolist() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    ("tensors", "toml", "shape", "dtype"),
    [
        (signature({"x": (8, 8, 3)}, {"y": (3,)}), 'layout = "NHWC"', (1, 8, 8, 3), np.float32),
        (signature({"x": (3, 8, 8)}, {"y": (3,)}, 0), "", (3, 8, 8), np.float32),
        (signature({"x": (1, 3, 8, 8)}, {"y": (1, 3)}, 0), "", (1, 3, 8, 8), np.float32),
        (signature({"x": (-1, 3, -1, -1)}, {"y": (-1, 3)}, 0), "crop = [4, 6]", (1, 3, 4, 6),
         np.float32),
        (signature({"x": (3, 8, 8)}, {"y": (3,)}, 4, "UINT8"), 'pixels = "0-255"', (1, 3, 8, 8),
         np.uint8),
        (signature({"x": (3, 8, 8)}, {"y": (3,)}, 4, "FP16"), "", (1, 3, 8, 8), np.float16),
    ],
)  # fmt: skip
def test_the_tensor_is_the_model_s(
    bench: Bench, tensors: Signature, toml: str, shape: tuple[int, ...], dtype: type
) -> None:
    given = sent(bench, toml, tensors, plain(4, 4, [255, 102, 0]))
    assert given.shape == shape
    assert given.dtype == dtype


GREY = signature({"x": (1, 8, 8)}, {"y": (3,)})


@pytest.mark.parametrize(
    ("toml", "tensors", "shape", "expected"),
    [
        # ITU-R BT.601, as Pillow has it: 0.299 × 255 + 0.587 × 102 + 0.114 × 51 = 141.9
        ("", GREY, (1, 1, 8, 8), 142 / 255),
        ('pixels = "0-255"', signature({"x": (1, 8, 8)}, {"y": (3,)}, 4, "UINT8"),
         (1, 1, 8, 8), 142),
        ('layout = "NHWC"', signature({"x": (8, 8, 1)}, {"y": (3,)}), (1, 8, 8, 1), 142 / 255),
        ("mean = [0.5]\nstd = [0.25]", GREY, (1, 1, 8, 8), (142 / 255 - 0.5) / 0.25),
        ('channels = "BGR"', GREY, (1, 1, 8, 8), 142 / 255),
        ("", signature({"x": (1, 1, 8, 8)}, {"y": (1, 3)}, 0), (1, 1, 8, 8), 142 / 255),
        ("", signature({"x": (1, 8, 8)}, {"y": (3,)}, 0), (1, 8, 8), 142 / 255),
    ],
)  # fmt: skip
def test_a_model_of_one_channel_is_sent_grey(
    bench: Bench, toml: str, tensors: Signature, shape: tuple[int, ...], expected: float
) -> None:
    given = sent(bench, toml, tensors, plain(4, 4, [255, 102, 51]))
    assert given.shape == shape
    assert given.ravel() == pytest.approx(expected, abs=1e-6)


def test_resize_and_crop_take_the_middle(bench: Bench) -> None:
    """32×16 becomes 16×8, whose middle 8 columns are columns 8 to 24 of the picture."""
    pixels = plain(16, 32, [0, 0, 0])
    pixels[:, 8:24] = 255
    given = sent(bench, 'resize = 8\ninterpolation = "nearest"', PICTURES, pixels)
    assert (given == 1).all()
    pixels[:, 8:10] = 0
    assert (
        sent(bench, 'resize = 8\ninterpolation = "nearest"', PICTURES, pixels)[..., 0] == 0
    ).all()
    squashed = sent(bench, 'interpolation = "nearest"', PICTURES, pixels)
    assert squashed[0, 0, 0].tolist() == [0, 0, 1, 1, 1, 1, 0, 0]


def test_scores_are_logits_or_probabilities(bench: Bench) -> None:
    bench.answers(lambda inputs: {"y": np.log(np.array([[1, 6, 3]], np.float32))})
    bench.set_up('family = "classification"\n[parameters]\ntop_k = 2', PICTURES)
    img = picture(plain(4, 4, [0, 0, 0]))
    assert bench.ask(img) == [f"{math.log(6):f}:1:b", f"{math.log(3):f}:2:c"]
    bench.set_up('family = "classification"\nsoftmax = true', PICTURES)
    assert bench.ask(img) == ["0.600000:1:b", "0.300000:2:c", "0.100000:0:a"]
    assert bench.ask(img, top_k=1, format="objects") == [
        {"label": "b", "index": 1, "score": pytest.approx(0.6)}
    ]


def test_yolov8_rows_have_no_objectness(bench: Bench) -> None:
    """A 128×64 picture lies in a 64×64 square at half its size, 16 pixels below the top."""
    table = np.zeros((1, 6, 10), np.float32)
    table[0, :, 3] = [32, 32, 16, 8, 0.9, 0.1]  # x 24…40, y 28…36 in the square
    table[0, :, 4] = [33, 32, 16, 8, 0.8, 0.1]  # the same object, less sure
    table[0, :, 5] = [33, 32, 16, 8, 0.1, 0.7]  # another class
    table[0, :, 6] = [10, 32, 4, 4, 0.4, 0.4]  # not sure enough
    bench.set_up('family = "detection"\noutput_layout = "yolov8"', BOXES, labels="cat\ndog\n")
    bench.answers(lambda inputs: {"y": table})
    found = bench.ask(picture(plain(64, 128, [0, 0, 0])), format="objects")
    assert found == [
        {"label": "cat", "index": 0, "score": 0.9,
         "box": {"x1": 48, "y1": 24, "x2": 80, "y2": 40}},
        {"label": "dog", "index": 1, "score": 0.7,
         "box": {"x1": 50, "y1": 24, "x2": 82, "y2": 40}},
    ]  # fmt: skip
    bench.set_up(
        'family = "detection"\noutput_layout = "yolov8"\n[parameters]\nconfidence = 0.85',
        BOXES,
        labels="cat\ndog\n",
    )
    assert bench.ask(picture(plain(64, 128, [0, 0, 0]))) == [[0, 0.9, 48, 80, 24, 40, 128, 64]]


def test_of_yolov5_only_boxes_that_hold_something_are_asked_for(bench: Bench) -> None:
    """A 64×64 picture fills the square; the server may leave out all boxes but these."""
    table = np.zeros((1, 10, 7), np.float32)
    table[0, 3] = [32, 32, 16, 8, 0.9, 1, 0]  # sure
    table[0, 4] = [10, 10, 4, 4, 0.2, 1, 0]
    tensors = signature({"x": (3, 64, 64)}, {"y": (10, 7)})
    bench.set_up('family = "detection"\noutput_layout = "yolov5"', tensors, labels="cat\ndog\n")
    found = []
    for answer in (table, table[:, 3:4], np.pad(table[:, 3:4], ((0, 0), (0, 2), (0, 0)))):
        bench.answers(lambda inputs, answer=answer: {"y": answer})
        found.append(bench.ask(picture(plain(64, 64, [0, 0, 0]))))
    assert found == [[[0, 0.9, 24, 40, 28, 36, 64, 64]]] * 3
    assert bench.server.calls[-1]["above"] == {"y": (4, 0.5)}
    bench.answers(lambda inputs: {"y": table[:, :0]})
    assert bench.ask(picture(plain(64, 64, [0, 0, 0])), confidence=0.95) == []
    assert bench.server.calls[-1]["above"] == {"y": (4, 0.95)}


def test_a_detector_of_whole_numbers_is_sent_them(bench: Bench) -> None:
    seen: list[np.ndarray] = []

    def run(inputs: Tensors) -> Arrays:
        seen.append(np.array(inputs["x"]))
        return {"y": np.zeros((1, 6, 10), np.float32)}

    tensors = signature({"x": (3, 64, 64)}, {"y": (6, 10)}, datatype="UINT8")
    bench.set_up('family = "detection"\noutput_layout = "yolov8"', tensors, labels="cat\ndog\n")
    bench.answers(run)
    assert bench.ask(picture(plain(64, 32, [255, 102, 3]))) == []
    (sent_pixels,) = seen
    assert sent_pixels.dtype == np.uint8
    assert sent_pixels[0, :, 0, 0].tolist() == [114, 114, 114]  # the grey beside the picture
    assert sent_pixels[0, :, 32, 32].tolist() == [255, 102, 3]


def boxes_of(
    bench: Bench, toml: str, labels: str, outputs: dict[str, tuple[int, ...]], **tables: np.ndarray
) -> list[list[object]]:
    """Return label, score and corners of what a detector of 64×64 finds in a picture of 128×64.

    There the picture is 64×32, 16 pixels below the top of the square.
    """
    bench.set_up(f'family = "detection"\n{toml}', signature({"x": (3, 64, 64)}, outputs), labels)
    bench.answers(lambda inputs: {name: table[None] for name, table in tables.items()})
    found = bench.ask(picture(plain(64, 128, [0, 0, 0])), format="objects")
    return [[one["label"], one["score"], *one["box"].values()] for one in found]


def rows(count: int, *first: list[float]) -> np.ndarray:
    table = np.zeros((count, len(first[0])), np.float32)
    table[: len(first)] = first
    return table


TWO = "cat\ndog\n"
# Centre, width and height in the square; corners ×2 in the picture, less 16 from the top.
AT, AT_TOO = [32, 32, 16, 8], [33, 32, 16, 8]
THERE, THERE_TOO = [48, 24, 80, 40], [50, 24, 82, 40]
PARTS = [32 / 64, 32 / 64, 16 / 64, 8 / 64]
KEYPOINTS = [33.0, 21, 0.99] * 17


@pytest.mark.parametrize(
    ("toml", "labels", "outputs", "table", "expected"),
    [
        # What overlaps is two objects where the model itself says so.
        ('output_layout = "end2end"', TWO, {"y": (300, 6)},
         rows(300, [24, 28, 40, 36, 0.8, 1], [25, 28, 41, 36, 0.9, 1], [0, 20, 4, 24, 0.4, 0]),
         [["dog", 0.9, *THERE_TOO], ["dog", 0.8, *THERE]]),
        ('output_layout = "end2end"\nextra_columns = 51', "person\n", {"y": (300, 57)},
         rows(300, [24, 28, 40, 36, 0.9, 0, *KEYPOINTS]), [["person", 0.9, *THERE]]),
        ('output_layout = "end2end"', TWO, {"z": (32, 16, 16), "y": (300, 38)},
         rows(300, [24, 28, 40, 36, 0.9, 1, *[2.5] * 32]), [["dog", 0.9, *THERE]]),
        ('output_layout = "yolov8"\nextra_columns = 51', "person\n", {"y": (56, 100)},
         rows(100, [*AT, 0.9, *KEYPOINTS], [*AT_TOO, 0.8, *KEYPOINTS]).T,
         [["person", 0.9, *THERE]]),
        ('output_layout = "yolov8"', TWO, {"y": (38, 100), "z": (32, 16, 16)},
         rows(100, [*AT, 0.1, 0.9, *[2.5] * 32]).T, [["dog", 0.9, *THERE]]),
        ('output_layout = "yolov8"\noutput = "y"\nextra_columns = 32', TWO,
         {"y": (38, 100), "z": (32, 16, 16)}, rows(100, [*AT, 0.1, 0.9, *[2.5] * 32]).T,
         [["dog", 0.9, *THERE]]),
        ('output_layout = "yolov8"', TWO, {"y": (-1, -1), "z": (32, 16, 16)},  # as only it shows
         rows(100, [*AT, 0.1, 0.9, *[-2.5] * 32]).T, [["dog", 0.9, *THERE]]),
        ('output_layout = "yolov5"', TWO, {"y": (100, 39), "z": (32, 16, 16)},
         rows(100, [*AT, 1, 0.1, 0.9, *[2.5] * 32]), [["dog", 0.9, *THERE]]),
        ('output_layout = "yolov8"\nnormalised = true', TWO, {"y": (6, 100)},
         rows(100, [*PARTS, 0.1, 0.9], [*PARTS, 0.1, 0.8]).T, [["dog", 0.9, *THERE]]),
        ('output_layout = "end2end"\nnormalised = true', TWO, {"y": (300, 6)},
         rows(300, [24 / 64, 28 / 64, 40 / 64, 36 / 64, 0.9, 0]), [["cat", 0.9, *THERE]]),
        # Thousands of boxes along the other axis.
        ('output_layout = "yolov8"', TWO, {"y": (8400, 6)}, rows(8400, [*AT, 0.1, 0.9]),
         [["dog", 0.9, *THERE]]),
    ],
)  # fmt: skip
def test_boxes_of_all_kinds_of_heads(
    bench: Bench,
    toml: str,
    labels: str,
    outputs: dict[str, tuple[int, ...]],
    table: np.ndarray,
    expected: list[list[object]],
) -> None:
    others = {name: np.ones(sizes, np.float32) for name, sizes in outputs.items() if name != "y"}
    found = boxes_of(bench, toml, labels, outputs, y=table, **others)
    assert [one[0] for one in found] == [one[0] for one in expected]
    for came, right in zip(found, expected, strict=True):
        assert came[1:] == pytest.approx(right[1:], abs=1e-3)


def test_rt_detr_is_sent_a_stretched_picture_and_says_each_object_once(bench: Bench) -> None:
    """The left half of 128×64 is red: 32 of 64 columns of the square, in each of its rows."""
    seen: list[np.ndarray] = []
    table = rows(300, [0.25, 0.5, 0.25, 0.5, 0.9, 0.1], [0.25, 0.5, 0.25, 0.5, 0.3, 0.8])

    def run(inputs: Tensors) -> Arrays:
        seen.append(np.array(inputs["x"]))
        return {"y": table[None]}

    tensors = signature({"x": (3, 64, 64)}, {"y": (300, 6)})
    bench.set_up('family = "detection"\noutput_layout = "rtdetr"', tensors, TWO)
    bench.answers(run)
    half = plain(64, 128, [255, 0, 0])
    half[:, 64:] = [0, 0, 255]
    # x 0.125 to 0.375 of 128, y 0.25 to 0.75 of 64
    box = [16, 48, 16, 48, 128, 64]
    assert bench.ask(picture(half)) == [[0, 0.9, *box], [1, 0.8, *box]]
    assert (seen[0][0, 0, :, :30] == 1).all()
    assert (seen[0][0, 0, :, 34:] == 0).all()


ROWS = {"y": (300, 6)}
COLUMNS = {"y": (6, 100)}


@pytest.mark.parametrize(
    ("layout", "labels", "outputs", "table", "words"),
    [
        ("yolov8", TWO, COLUMNS, rows(100, [*AT, 0.1, 33]).T, "score of 33"),
        ("yolov8", TWO, COLUMNS, rows(100, [*AT, 0.1, 1.2]).T, "score of 1.2"),
        ("yolov8", TWO, COLUMNS, rows(100, [*AT, -3, -5], [*AT, -3, -5]).T, "score of -3"),
        ("yolov8", TWO, COLUMNS, np.full((6, 100), -3, np.float32), "score of -3"),  # no sigmoid
        ("yolov8", TWO, COLUMNS, rows(100, [*AT, 0.1, math.nan]).T, "score of nan"),
        ("yolov8", TWO, COLUMNS, rows(100, [*AT[:3], math.inf, 0.1, 0.9]).T, "not finite"),
        ("yolov8", TWO, COLUMNS, rows(100, [math.nan, *AT[1:], 0.1, 0.9]).T, "not finite"),
        ("yolov8", TWO, COLUMNS, rows(100, [32, 32, -16, 8, 0.1, 0.9]).T, "left of its left side"),
        ("yolov8", TWO, COLUMNS, rows(100, [*PARTS, 0.1, 0.9]).T, "parts of the picture's sides"),
        ("yolov5", "a\n", ROWS, rows(300, [*AT, 7, 0.5]), "score of 7"),
        ("yolov5", "a\n", ROWS, rows(300, [*AT, 0.9, 7]), "score of 7"),
        # Each read as another of the same shape.
        ("yolov5", "a\n", ROWS, rows(300, [24, 28, 40, 36, 0.9, 0]), "has a class"),
        ("yolov5", "a\n", ROWS, rows(300, [*PARTS, 0.9, 0.1]), "parts of the picture's sides"),
        ("rtdetr", TWO, ROWS, rows(300, [24, 28, 40, 36, 0.9, 1]), "the boxes are pixels"),
        ("end2end", TWO, ROWS, rows(300, [*PARTS, 0.9, 0.1]), "of the class 0.1"),
        ("end2end", TWO, ROWS, rows(300, [60, 28, 16, 8, 0.9, 1]), "left of its left side"),
        # Some of several, that are answered themselves.
        ("end2end", TWO, ROWS,
         rows(300, [10, 12, 30, 40, 0.9, 0], [40, 20, 60, 50, 0.8, 1], [60, 50, 40, 20, 0.7, 1]),
         "left of its left side"),
        ("end2end", TWO, ROWS, rows(300, [24, 28, 40, 36, 0.9, 1], [24, 36, 40, 28, 0.6, 0]),
         "its lower above"),
        ('end2end"\nnormalised = true #"', TWO, ROWS,
         rows(300, [0.2, 0.2, 0.4, 0.4, 0.9, 1], [0.4, 0.2, 0.2, 0.4, 0.6, 0]),
         "left of its left side"),
        ("yolov8", TWO, COLUMNS,
         rows(100, [32, 32, -16, 8, 0.1, 0.9], [*AT, 0.1, 0.8], [*AT, 0.7, 0.1]).T,
         "left of its left side"),
        ("yolov5", TWO, {"y": (100, 7)},
         rows(100, [32, 32, 40, 30, 1, 0.1, 0.9], [32, 32, 8, -16, 1, 0.9, 0.1]),
         "its lower above"),
        ("rtdetr", TWO, ROWS,
         rows(300, [0.5, 0.5, 0.2, 0.2, 0.1, 0.9], [0.5, 0.5, -0.2, 0.2, 0.1, 0.8]),
         "left of its left side"),
        ("end2end", TWO, ROWS, rows(300, [24, 28, 40, 36, 0.9, 2]), "class 2, but `labels` has 2"),
        ("end2end", TWO, ROWS, rows(300, [24, 28, 40, 36, 0.9, -1]), "of the class -1"),
        ("end2end", TWO, ROWS, rows(300, [24, 28, 40, 36, 0.9, 1], [24, 28, 40, 36, 0.8, 0.5]),
         "of the class 0.5"),
        ("end2end", TWO, ROWS, rows(300, [24, 28, 40, 36, 0.9, 1], [24, 28, 40, 36, 0.8, -1]),
         "of the class -1"),
        ("end2end", TWO, ROWS, rows(300, [24, 28, 40, 36, 12, 1]), "score of 12"),
    ],
)  # fmt: skip
def test_what_no_detector_gives_is_an_error_of_the_model(
    bench: Bench,
    layout: str,
    labels: str,
    outputs: dict[str, tuple[int, ...]],
    table: np.ndarray,
    words: str,
) -> None:
    with pytest.raises(ModelFailed, match=words) as caught:
        boxes_of(bench, f'output_layout = "{layout}"', labels, outputs, y=table)
    assert "dispatch.toml" in caught.value.hint


@pytest.mark.parametrize(
    ("layout", "outputs", "table", "hint"),
    [
        ("yolov8", COLUMNS, rows(100, [*PARTS, 0.1, 0.9]).T, "`normalised = true`"),
        ("yolov5", {"y": (300, 7)}, rows(300, [*PARTS, 0.9, 0.9, 0.1]), 'output_layout = "rtdetr"'),
        ("yolov5", {"y": (25200, 7)}, rows(300, [*PARTS, 0.9, 0.9, 0.1]), "`normalised = true`"),
        ("rtdetr", ROWS, rows(300, [24, 28, 40, 36, 0.9, 1]), "another `output_layout`"),
        (
            'yolov8"\nnormalised = true #"',
            COLUMNS,
            rows(100, [*AT, 0.1, 0.9]).T,
            "`normalised` out",
        ),
    ],
)
def test_boxes_in_another_unit_are_named(
    bench: Bench, layout: str, outputs: dict[str, tuple[int, ...]], table: np.ndarray, hint: str
) -> None:
    with pytest.raises(ModelFailed) as caught:
        boxes_of(bench, f'output_layout = "{layout}"', TWO, outputs, y=table)
    assert hint in caught.value.hint


def test_a_box_inside_out_that_is_not_answered_does_not_cost_the_others(bench: Bench) -> None:
    """Its score is less than the 0.5 of `confidence`."""
    table = rows(300, [24, 28, 40, 36, 0.9, 1], [30, 28, 20, 36, 0.4, 0], [24, 28, 40, 36, 0.7, 0])
    found = boxes_of(bench, 'output_layout = "end2end"', TWO, ROWS, y=table)
    assert [one[:2] for one in found] == [["dog", 0.9], ["cat", 0.7]]


def test_what_half_precision_makes_of_a_thin_box_is_no_box_inside_out(bench: Bench) -> None:
    table = rows(300, [32.5, 28, 32, 36, 0.9, 1])
    assert boxes_of(bench, 'output_layout = "end2end"', TWO, ROWS, y=table) == [
        ["dog", 0.9, 65, 24, 65, 40]
    ]


def test_a_class_beyond_the_labels_may_lack_its_line(bench: Bench) -> None:
    table = rows(300, [24, 28, 40, 36, 0.9, 2])
    with pytest.raises(ModelFailed) as caught:
        boxes_of(bench, 'output_layout = "end2end"', TWO, ROWS, y=table)
    assert "give `labels` a line for each class" in caught.value.hint
    found = boxes_of(bench, 'output_layout = "end2end"', f"{TWO}cow\n", ROWS, y=table)
    assert found == [["cow", 0.9, *THERE]]


@pytest.mark.parametrize("outputs", [{"y": (300, 6), "z": (300, 4)}, {"y": (-1, -1), "z": (-1, 4)}])
def test_a_table_of_boxes_may_have_their_places_beside_it(
    bench: Bench, outputs: dict[str, tuple[int, ...]]
) -> None:
    table = rows(300, [24, 28, 40, 36, 0.9, 1])
    toml = 'output_layout = "end2end"\noutput = "y"'
    found = boxes_of(bench, toml, TWO, outputs, y=table, z=table[:, :4])
    assert found == [["dog", 0.9, *THERE]]


def test_an_output_of_unknown_channels_is_no_output_of_masks(bench: Bench) -> None:
    outputs = {"y": (5, 100), "z": (-1, 16, 16)}
    with pytest.raises(ClientDisabled, match="give it 1 lines"):
        boxes_of(bench, 'output_layout = "yolov8"', TWO, outputs, y=rows(100, [*AT, 0.9]).T)


def test_a_probability_may_be_one_step_of_eight_bits_above_1(bench: Bench) -> None:
    table = rows(100, [*AT, -0.003, 1.003]).T
    assert boxes_of(bench, 'output_layout = "yolov8"', TWO, COLUMNS, y=table) == [
        ["dog", 1.0, *THERE]
    ]


def test_scores_that_are_unsigned_are_sorted_too() -> None:
    assert best(np.array([0, 200, 7, 255], np.uint8), 3) == [(3, 255), (1, 200), (2, 7)]


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


def test_of_equal_scores_the_first_are_best() -> None:
    scores = np.array([1, 3, 0, 3, 2, 3, 2], np.float32)
    assert best(scores, 2) == [(1, 3), (3, 3)]
    assert best(scores, 4) == [(1, 3), (3, 3), (5, 3), (4, 2)]
    assert best(scores, 99) == [(1, 3), (3, 3), (5, 3), (4, 2), (6, 2), (0, 1), (2, 0)]
    assert [place for place, _ in best(scores * np.nan, 2)] == [0, 1]


@pytest.mark.parametrize("size", [1, 63, 64, 65, 640, 641, 30_522])
@pytest.mark.parametrize("kinds", [2, 1000, 1_000_000])
def test_the_best_of_many_are_those_of_a_sorted_list(size: int, kinds: int) -> None:
    scores = np.random.default_rng(size + kinds).integers(0, kinds, size).astype(np.float32)
    falling = sorted(range(size), key=lambda place: (-scores[place], place))
    for count in (1, 5, 10, 500):
        assert best(scores, count) == [(place, scores[place]) for place in falling[:count]]
    scores[falling[0]] = np.nan
    assert [place for place, _ in best(scores, 5)] == [*falling[1:], falling[0]][:5]


def test_a_label_may_hold_what_python_takes_for_the_end_of_a_line(bench: Bench) -> None:
    bench.set_up('family = "classification"', PICTURES, labels="a\u2028a\r\nb\x0cb\nc\n\n")
    bench.answers(lambda inputs: {"y": np.array([[3, 2, 1]], np.float32)})
    found = bench.ask(picture(plain(4, 4, [0, 0, 0])), format="objects")
    assert [one["label"] for one in found] == ["a\u2028a", "b\x0cb", "c"]


def test_a_mask_of_its_own_and_the_inputs_that_the_model_has(bench: Bench) -> None:
    seen: list[Tensors] = []

    def run(inputs: Tensors) -> Arrays:
        seen.append(inputs)
        logits = np.full((*inputs["input_ids"].shape, 8), -50, np.float32)
        logits[..., 4] = np.log(3)  # "cat"
        logits[..., 6] = 0  # "here"
        return {"y": logits}

    bench.set_up('family = "fill-mask"\n[parameters]\ntop_k = 2', TEXTS)
    tokenizer_at(bench.folder / "tokenizer")
    bench.answers(run)
    assert bench.ask({"text": "the <mask> sat"}) == [
        {"token": "the cat sat", "score": 0.75},
        {"token": "the here sat", "score": 0.25},
    ]
    assert {name: array.tolist() for name, array in seen[-1].items()} == {
        "input_ids": [[3, 2, 5]],
        "attention_mask": [[1, 1, 1]],
    }
    assert bench.server.calls[-1]["rows"] == {"y": [1]}
    bench.answers(lambda inputs: {"y": run(inputs)["y"][:, -1]})  # by a backend that picks the rows
    assert bench.ask({"text": "the <mask> sat"})[0] == {"token": "the cat sat", "score": 0.75}
    assert bench.client().example == {"text": "The world has <mask> people."}
    with pytest.raises(BadPayload, match="`text` has no <mask>"):
        bench.ask({"text": "the [MASK]"})
    with pytest.raises(BadPayload, match="6 tokens"):
        bench.ask({"text": "the cat sat here the <mask>"})


def test_each_mask_in_a_text_is_one_for_the_tokenizer(bench: Bench) -> None:
    """Else answers would stand in other blanks than those that they are for."""
    bench.set_up('family = "fill-mask"', TEXTS)
    shutil.copytree(PROJECT / "model_repository/bert_base/tokenizer", bench.folder / "tokenizer")
    path = bench.folder / "tokenizer" / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"split_special_tokens": True}))
    assert "leave `split_special_tokens` out" in bench.registry().broken["m"]
    shutil.rmtree(bench.folder / "tokenizer")
    alone = {"content": "<mask>", "single_word": True, "special": True, "normalized": False}
    tokenizer_at(bench.folder / "tokenizer", mask_token={"__type": "AddedToken", **alone})
    path = bench.folder / "tokenizer" / "tokenizer.json"
    whole = json.loads(path.read_text())
    whole["added_tokens"][2]["single_word"] = True
    path.write_text(json.dumps(whole))
    bench.answers(lambda inputs: {"y": np.eye(8, dtype=np.float32)[inputs["input_ids"]]})
    with pytest.raises(BadPayload, match="has 2 <mask>, but 1 masks among") as caught:
        bench.ask({"text": "the<mask> <mask> sat"})
    assert caught.value.hint == "put a blank before and behind each of them"
    assert len(bench.ask({"text": "the <mask> <mask> sat"})) == 2


def test_a_word_that_the_tokenizer_has_not_is_none(bench: Bench) -> None:
    """Vocabularies of models are made longer, up to a round number."""
    bench.set_up('family = "fill-mask"\n[parameters]\ntop_k = 1', TEXTS)
    tokenizer_at(bench.folder / "tokenizer")
    last = np.eye(8, dtype=np.float32)[7]
    bench.answers(lambda inputs: {"y": np.tile(last, (*inputs["input_ids"].shape, 1))})
    assert bench.ask({"text": "the<mask> sat"})[0]["token"] == "the sat"


def test_vectors_are_means_over_the_tokens_and_of_length_1(bench: Bench) -> None:
    """Token 3 is at (3, 0), 4 at (0, 4), padding far away; (1.5, 2) has the length 2.5."""
    places = np.zeros((8, 8), np.float32)
    places[0], places[3, 0], places[4, 1] = 99, 3, 4
    bench.answers(lambda inputs: {"y": places[inputs["input_ids"]]})
    bench.set_up('family = "embedding"', TEXTS)
    tokenizer_at(bench.folder / "tokenizer")
    client = bench.client()
    with Request().active():
        short, long = client.inference_batch([{"text": "the cat"}, {"text": "the cat the cat"}])
    assert short == pytest.approx([0.6, 0.8, 0, 0, 0, 0, 0, 0])
    assert long == short
    bench.set_up('family = "embedding"\nnormalised = false', TEXTS)
    assert bench.ask({"text": "the cat"})[:2] == [1.5, 2]
    bench.set_up('family = "embedding"\nnormalised = false\npooling = "first"', TEXTS)
    assert bench.ask({"text": "the cat"})[:2] == [3, 0]
    bench.set_up(
        'family = "embedding"\npooling = "none"',
        signature({"input_ids": (-1,)}, {"y": (2,)}, datatype="INT64"),
    )
    bench.answers(lambda inputs: {"y": np.array([[0, 2]], np.float32)})
    assert bench.ask({"text": "the cat"}) == [0, 1]


@pytest.mark.parametrize(
    ("batch", "sizes", "shape"), [(4, (4,), (1, 4)), (0, (-1,), (2,)), (0, (1, 4), (1, 4))]
)
def test_texts_are_filled_up_to_the_model_s_length(
    bench: Bench, batch: int, sizes: tuple[int, ...], shape: tuple[int, ...]
) -> None:
    seen: list[np.ndarray] = []

    def run(inputs: Tensors) -> Arrays:
        seen.append(np.array(inputs["input_ids"]))
        return {"y": np.zeros((*inputs["input_ids"].shape, 8), np.float32) + 1}

    outputs = {"y": (*sizes, 8)}
    bench.set_up('family = "embedding"', signature({"input_ids": sizes}, outputs, batch, "INT32"))
    tokenizer_at(bench.folder / "tokenizer")
    bench.answers(run)
    assert bench.ask({"text": "the cat"}) == pytest.approx([8**-0.5] * 8)
    assert seen[0].shape == shape
    assert seen[0].dtype == np.int32
    assert seen[0].ravel()[:2].tolist() == [3, 4]
    if 4 in sizes:
        with pytest.raises(BadPayload, match="5 tokens"):
            bench.ask({"text": "the cat sat here the"})


def test_a_tokenizer_that_pads_on_the_left_does_so_here(bench: Bench) -> None:
    """The model takes three tokens; 3 is at (3, 0), 4 at (0, 4); `seen` is written by hand."""
    seen: list[Tensors] = []
    places = np.zeros((8, 8), np.float32)
    places[6], places[3, 0], places[4, 1] = 99, 3, 4

    def run(inputs: Tensors) -> Arrays:
        seen.append(inputs)
        return {"y": places[inputs["input_ids"]]}

    names = ("input_ids", "attention_mask", "token_type_ids")
    tensors = signature(dict.fromkeys(names, (3,)), {"y": (3, 8)}, datatype="INT64")
    tokenizer_at(bench.folder / "tokenizer", padding_side="left", pad_token="here")
    bench.answers(run)
    for pooling, expected in (("mean", [[3, 0], [2, 4 / 3]]), ("first", [[3, 0], [0, 4]])):
        bench.set_up(f'family = "embedding"\nnormalised = false\npooling = "{pooling}"', tensors)
        client: Any = bench.client()
        client.tokenizer = replace(client.tokenizer, type_padding=3)  # as XLNet's
        with Request().active():
            vectors = client.inference_batch([{"text": "the"}, {"text": "cat the the"}])
        assert [vector[:2] for vector in vectors] == [pytest.approx(one) for one in expected]
    assert {name: seen[0][name].tolist() for name in names} == {
        "input_ids": [[6, 6, 3], [4, 3, 3]],
        "attention_mask": [[0, 0, 1], [1, 1, 1]],
        "token_type_ids": [[3, 3, 0], [0, 0, 0]],
    }
    places[2, 4] = 9  # "cat" for the mask
    bench.set_up('family = "fill-mask"', tensors)
    client = bench.client()
    with Request(parameters=client.read_parameters({"top_k": 1})).active():
        answers = client.inference_batch([{"text": "<mask>"}, {"text": "the <mask> sat"}])
    assert [one[0]["token"] for one in answers] == ["cat", "the cat sat"]


def test_texts_that_are_filled_up_on_the_left_share_runs_of_one_length(bench: Bench) -> None:
    """A run of the container's own backend fills up behind its texts."""
    words = signature(WITH_MASK, {"y": (1,)}, datatype="INT64")
    bench.set_up('family = "embedding"\npooling = "none"\nnormalised = false', words)
    tokenizer_at(bench.folder / "tokenizer", padding_side="left", pad_token="here")
    bench.answers(heeds)
    client = bench.client()
    with Request().active():
        vectors = client.inference_batch([{"text": "the"}, {"text": "cat the"}, {"text": "cat"}])
    assert vectors == [[3], [3.5], [4]]
    rows = [call["inputs"]["input_ids"].tolist() for call in bench.server.calls]
    assert rows == [[[3], [4]], [[4, 3]]]
    assert all(call["padding"] is None for call in bench.server.calls)


def test_a_model_of_one_length_needs_a_token_that_fills_up(bench: Bench) -> None:
    """Where nothing else tells the model where a text ends."""
    shapes = {"input_ids": (4,)}
    bench.set_up('family = "embedding"', signature(shapes, {"y": (4, 8)}, datatype="INT64"))
    tokenizer_at(bench.folder / "tokenizer", pad_token=None)
    with pytest.raises(ClientDisabled, match=r'no padding token.*"pad_token": "<pad>"'):
        bench.ask({"text": "the cat"})
    shapes["attention_mask"] = (4,)
    bench.set_up('family = "embedding"', signature(shapes, {"y": (4, 8)}, datatype="INT64"))
    bench.answers(lambda inputs: {"y": np.ones((*inputs["input_ids"].shape, 8), np.float32)})
    assert len(bench.ask({"text": "the cat"})) == 8


WITH_MASK = {"input_ids": (-1,), "attention_mask": (-1,)}


@pytest.mark.parametrize(
    ("toml", "tensors", "expected"),
    [
        ('family = "fill-mask"', TEXTS, ["y"]),
        ('family = "embedding"', TEXTS, ["y"]),
        ('family = "embedding"\npadding = false', TEXTS, None),
        ('family = "embedding"\npooling = "none"',
         signature(WITH_MASK, {"y": (8,)}, datatype="INT64"), []),
        ('family = "embedding"\npooling = "first"',  # one vector, whatever the text's length
         signature(WITH_MASK, {"y": (1, 8)}, datatype="INT64"), []),
        ('family = "text-classification"',
         signature(WITH_MASK, {"y": (3,)}, datatype="INT64"), []),
        ('family = "embedding"',  # nothing tells the model where a text ends
         signature({"input_ids": (-1,)}, {"y": (-1, 8)}, datatype="INT64"), None),
        ('family = "embedding"',  # all are of one length
         signature({"input_ids": (4,), "attention_mask": (4,)}, {"y": (4, 8)}, datatype="INT64"),
         None),
        ('family = "embedding"', signature(WITH_MASK, {"y": (-1, 8)}, 0, "INT64"), None),
    ],
)  # fmt: skip
def test_texts_may_be_made_as_long_as_others_where_a_mask_tells_their_end(
    bench: Bench, toml: str, tensors: Signature, expected: list[str] | None
) -> None:
    def run(inputs: Tensors) -> Arrays:
        sizes = [size if size > 0 else 3 for size in tensors.outputs[0].shape]
        return {"y": np.ones(sizes if tensors.max_batch_size == 0 else [1, *sizes[1:]], np.float32)}

    bench.set_up(toml, tensors)
    tokenizer_at(bench.folder / "tokenizer", pad_token="here")
    bench.answers(run)
    bench.ask({"text": "the <mask> sat"})
    padding = bench.server.calls[-1]["padding"]
    if expected is None:
        assert padding is None
    else:
        assert padding == Padding({"input_ids": 6, "attention_mask": 0}, expected)


def heeds(inputs: Tensors) -> Arrays:
    """The mean of a text's own ids."""
    ids, mask = inputs["input_ids"], inputs["attention_mask"]
    return {"y": ((ids * mask).sum(1, keepdims=True) / mask.sum(1, keepdims=True)).astype("f")}


def passes_over(inputs: Tensors) -> Arrays:
    """The mean of all ids that come, those that only fill up included."""
    return {"y": inputs["input_ids"].mean(1, keepdims=True).astype("f")}


def has_one_scale(inputs: Tensors) -> Arrays:
    """The same as `heeds`, in so many steps of a row's largest number, as if quantized."""
    scale = inputs["input_ids"].max(1, keepdims=True) / 43
    return {"y": (np.round(heeds(inputs)["y"] / scale) * scale).astype("f")}


def has_a_bias(inputs: Tensors) -> Arrays:
    """The largest of its own ids, or what is left of one that is filled up, which is 3.5."""
    own = np.where(inputs["attention_mask"] == 1, inputs["input_ids"], 3.5)
    return {"y": own.max(1, keepdims=True).astype("f")}


@pytest.mark.parametrize(
    ("run", "together"),
    [(heeds, True), (passes_over, False), (has_one_scale, False), (has_a_bias, False)],
)
def test_texts_are_filled_up_only_where_that_is_found_to_change_nothing(
    bench: Bench, run: Callable[[Tensors], Arrays], together: bool
) -> None:
    """The tokens are 3 to 5, and 6 fills up."""
    words = signature(WITH_MASK, {"y": (1,)}, datatype="INT64")
    bench.set_up('family = "embedding"\npooling = "none"\nnormalised = false', words)
    tokenizer_at(bench.folder / "tokenizer", pad_token="here")
    bench.answers(run)
    client, texts = bench.client(), ["the cat sat", "cat", "the", "sat cat"]
    with Request().active():
        alone = [client.inference({"text": text}) for text in texts]
        bench.server.calls.clear()
        assert client.inference_batch([{"text": text} for text in texts]) == alone
    rows = [call["inputs"]["input_ids"].shape for call in bench.server.calls]
    assert rows == ([(4, 3)] if together else [(1, 3), (2, 1), (1, 2)])
    allowed = [call["padding"] is not None for call in bench.server.calls]
    assert allowed == [together] * len(rows)
    if together:
        assert [number for (number,) in alone] == [4, 4, 3, 4.5]


def test_a_model_that_cannot_be_asked_is_tried_again(bench: Bench) -> None:
    bench.set_up(
        'family = "embedding"\npooling = "none"\nnormalised = false',
        signature(WITH_MASK, {"y": (1,)}, datatype="INT64"),
    )
    tokenizer_at(bench.folder / "tokenizer")
    client = bench.client()
    bench.server.models_run["m"] = ModelUnavailable("it is away")
    with Request().active(), pytest.raises(ModelUnavailable, match="it is away"):
        client.inference({"text": "the cat"})
    bench.answers(heeds)
    with Request().active():
        client.inference({"text": "the cat"})
    assert bench.server.calls[-1]["padding"] is not None


def test_a_text_without_tokens_is_refused_and_a_vector_of_zeros_stays_one(bench: Bench) -> None:
    bench.answers(lambda inputs: {"y": np.zeros((*inputs["input_ids"].shape, 8), np.float32)})
    bench.set_up('family = "embedding"', TEXTS)
    tokenizer_at(bench.folder / "tokenizer")
    with pytest.raises(BadPayload, match="no tokens"):
        bench.ask({"text": " "})
    assert bench.ask({"text": "the cat"}) == [0] * 8


def test_texts_are_classified(bench: Bench) -> None:
    bench.set_up(
        'family = "text-classification"',
        signature({"input_ids": (-1,)}, {"y": (2,)}, datatype="INT64"),
        labels="bad\ngood\n",
    )
    tokenizer_at(bench.folder / "tokenizer")
    bench.answers(lambda inputs: {"y": np.array([[0, np.log(4)]], np.float32)})
    assert bench.ask({"text": "the cat"}) == [
        {"label": "good", "index": 1, "score": 0.8},
        {"label": "bad", "index": 0, "score": 0.2},
    ]


def test_one_score_alone_is_no_probability(bench: Bench) -> None:
    """Of a model that ranks: over one class a softmax is 1 whatever the text."""
    toml = 'family = "text-classification"'
    tensors = signature({"input_ids": (-1,)}, {"y": (1,)}, datatype="INT64")
    bench.set_up(toml, tensors, labels="relevant\n")
    tokenizer_at(bench.folder / "tokenizer")
    bench.answers(lambda inputs: {"y": np.array([[-2.5]], np.float32)})
    with pytest.raises(ClientDisabled, match="one class, which would always be 1; write false"):
        bench.ask({"text": "the cat"})
    bench.set_up(f"{toml}\nsoftmax = false", tensors, labels="relevant\n")
    assert bench.ask({"text": "the cat"}) == [{"label": "relevant", "index": 0, "score": -2.5}]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize(
    ("toml", "shape", "expected"),
    [
        ('family = "embedding"\npooling = "none"\nnormalised = false', (2,), [None, 0]),
        ('family = "embedding"\npooling = "none"', (2,), None),
        ('family = "text-classification"\nsoftmax = false', (2,), None),
        ('family = "text-classification"', (2,), None),
        ('family = "fill-mask"', (-1, 8), None),
    ],
)
def test_numbers_that_are_not_finite_are_null_in_every_family_of_texts(
    bench: Bench, toml: str, shape: tuple[int, ...], expected: Any, bad: float
) -> None:
    inputs = {"input_ids": (-1,), "attention_mask": (-1,)}
    tensors = signature(inputs, {"y": shape}, datatype="INT64")
    bench.set_up(toml, tensors, labels="bad\ngood\n")
    tokenizer_at(bench.folder / "tokenizer")
    numbers = np.zeros((1, *(4 if size < 0 else size for size in shape)), np.float32)
    numbers[..., 0] = bad
    bench.answers(lambda inputs: {"y": numbers})
    text, count = encode(bench.ask({"text": "the <mask> cat sat"}))
    assert not {"NaN", "Infinity"} & set(re.findall("[A-Za-z]+", text))
    assert count == text.count("null") > 0
    assert expected is None or json.loads(text) == expected


def test_an_example_of_one_s_own_is_tried_and_shown(bench: Bench) -> None:
    bench.set_up('family = "embedding"\nexample = { text = "the cat" }', TEXTS)
    tokenizer_at(bench.folder / "tokenizer")
    assert bench.client().example == {"text": "the cat"}


def test_every_key_is_documented() -> None:
    """Each family has a declaration with a meaning; the file of a family is all there is to it."""
    for name in family.names():
        for key in fields(family.family(name, Path()).keys_type):
            assert key.metadata["meaning"]
            assert key.metadata["kind"].expected
