"""Models with boxes in their output, served by a line in a file."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from clients.errors import ClientDisabled, ModelFailed
from clients.triton.server import Tensors
from tests.support.fake_triton import Arrays
from tests.support.family_bench import BOXES, Bench, bench, picture, plain, signature

__all__ = ["bench"]  # the fixture


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
    assert bench.server.calls[-1]["hints"].above == {"y": (4, 0.5)}
    bench.answers(lambda inputs: {"y": table[:, :0]})
    assert bench.ask(picture(plain(64, 64, [0, 0, 0])), confidence=0.95) == []
    assert bench.server.calls[-1]["hints"].above == {"y": (4, 0.95)}


def test_a_detector_of_bytes_is_sent_the_colours_as_they_are(bench: Bench) -> None:
    tensors = signature({"x": (3, 64, 64)}, {"y": (6, 10)}, datatype="UINT8")
    bench.set_up('family = "detection"\noutput_layout = "yolov8"', tensors, TWO)
    seen: list[np.ndarray] = []
    nothing = {"y": np.zeros((1, 6, 10), np.float32)}
    bench.answers(lambda inputs: seen.append(np.array(inputs["x"])) or nothing)
    assert bench.ask(picture(plain(64, 32, [255, 102, 3]))) == []
    assert seen[0].dtype == np.uint8
    assert seen[0][0, :, 0, 0].tolist() == [114, 114, 114]  # the grey beside the picture
    assert seen[0][0, :, 32, 32].tolist() == [255, 102, 3]


@pytest.mark.parametrize(
    ("toml", "datatype", "picture_at", "beside", "orange"),
    [
        # 64×32 in the square: half of it is free, to the right or on both sides.
        ("", "FP32", 32, 114 / 255, [1, 0.4, 0]),
        ('fit = "top-left"\npadding = [0, 0, 0]', "FP32", 0, 0, [1, 0.4, 0]),
        ('fit = "top-left"\npadding = [255, 0, 51]\npixels = "0-255"\nchannels = "BGR"', "FP32", 0,
         [51, 0, 255], [0, 102, 255]),
        ('fit = "top-left"\nchannels = "BGR"', "UINT8", 0, 114, [0, 102, 255]),
        ('fit = "stretch"\nmean = [0.5, 0.5, 0.5]\nstd = [0.5, 0.25, 0.5]', "FP32", 63,
         [1, -0.4, -1], [1, -0.4, -1]),
    ],
)  # fmt: skip
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_a_detector_is_sent_pictures_prepared_as_its_file_says(
    bench: Bench, layout: str, toml: str, datatype: str, picture_at: int, beside: Any, orange: Any
) -> None:
    sizes = (3, 64, 64) if layout == "NCHW" else (64, 64, 3)
    keys = f'family = "detection"\noutput_layout = "yolov8"\nlayout = "{layout}"\n{toml}'
    bench.set_up(keys, signature({"x": sizes}, {"y": (6, 10)}, datatype=datatype), TWO)
    seen: list[np.ndarray] = []
    table = rows(10, [16, 32, 16, 16, 0.9, 0.1]).T[None]
    bench.answers(lambda inputs: seen.append(np.array(inputs["x"][0])) or {"y": table})
    found = bench.ask(picture(plain(64, 32, [255, 102, 0])), format="objects")
    given = seen[0].transpose(1, 2, 0) if layout == "NCHW" else seen[0]
    assert given[5, picture_at].tolist() == pytest.approx(orange)
    assert given[5, 40 if picture_at == 0 else 0] == pytest.approx(beside)
    left = {"": -8, 'fit = "stretch"': 4}.get(toml.partition("\n")[0], 8)
    assert found[0]["box"]["x1"] == max(0, left)


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
        ("yolov8", TWO, COLUMNS, np.full((6, 100), -3, np.float32), "score of -3"),  # no sigmoid
        ("yolov8", TWO, COLUMNS, rows(100, [*AT, 0.1, math.nan]).T, "score of nan"),
        ("yolov8", TWO, COLUMNS, rows(100, [*AT[:3], math.inf, 0.1, 0.9]).T, "not finite"),
        ("yolov8", TWO, COLUMNS, rows(100, [32, 32, -16, 8, 0.1, 0.9]).T, "left of its left side"),
        ("yolov8", TWO, COLUMNS, rows(100, [*PARTS, 0.1, 0.9]).T, "parts of the picture's sides"),
        ("yolov5", "a\n", ROWS, rows(300, [*AT, 7, 0.5]), "score of 7"),
        ("yolov5", "a\n", ROWS, rows(300, [*AT, 0.9, 7]), "score of 7"),
        # Each read as another of the same shape.
        ("yolov5", "a\n", ROWS, rows(300, [24, 28, 40, 36, 0.9, 0]), "has a class"),
        ("yolov5", "a\n", ROWS, rows(300, [*PARTS, 0.9, 0.1]), "parts of the picture's sides"),
        ("rtdetr", TWO, ROWS, rows(300, [24, 28, 40, 36, 0.9, 1]), "the boxes are pixels"),
        ('yolov8"\nnormalised = true #"', TWO, COLUMNS, rows(100, [*AT, 0.1, 0.9]).T,
         "the boxes are pixels"),
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
    ("layout", "outputs", "table", "expected"),
    [
        # A box inside out, which is not answered: its score is less than `confidence`, 0.5.
        ("end2end", ROWS, rows(300, [24, 28, 40, 36, 0.9, 1], [30, 28, 20, 36, 0.4, 0]), THERE),
        # What half precision makes of a thin box.
        ("end2end", ROWS, rows(300, [32.5, 28, 32, 36, 0.9, 1]), [65, 24, 65, 40]),
        # A probability one step of eight bits above 1.
        ("yolov8", COLUMNS, rows(100, [*AT, -0.003, 1.003]).T, THERE),
    ],
)
def test_what_is_a_little_off_costs_no_object(
    bench: Bench,
    layout: str,
    outputs: dict[str, tuple[int, ...]],
    table: np.ndarray,
    expected: list[float],
) -> None:
    (found,) = boxes_of(bench, f'output_layout = "{layout}"', TWO, outputs, y=table)
    assert found == ["dog", 0.9 if layout == "end2end" else 1.0, *expected]


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
    with pytest.raises(ClientDisabled, match="6 numbers, as `labels` has 2 lines; but `y`"):
        boxes_of(bench, 'output_layout = "yolov8"', TWO, outputs, y=rows(100, [*AT, 0.9]).T)
