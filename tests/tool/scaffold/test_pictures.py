"""What a file of a picture model shows is written; what it does not show is asked or marked."""

from __future__ import annotations

import base64
import io
import math
import re
import shutil
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper
from PIL import Image

from clients.testing import OnnxModels, answer, clients_in
from tests.support.models.onnx_models import letters, save, scores, tables, tokens
from tests.tool.scaffold.conftest import Write
from tool.__main__ import main

SIDE = 320
CELLS = 40 * 40 + 20 * 20 + 10 * 10  # of a YOLO's three grids on 320×320
IMAGES = ("n", 3, SIDE, SIDE)
MINE = Path("mine")
NAMES = {"names": "{0: 'bolt', 1: 'nut', 2: 'a  washer'}"}


def settings() -> dict[str, Any]:
    return tomllib.loads((MINE / "new" / "dispatch.toml").read_text())


def labels() -> list[str]:
    return (MINE / "new" / "labels.txt").read_text().splitlines()


def ask(**parameters: Any) -> Any:
    """Ask the written model for a white picture of 320×320."""
    out = io.BytesIO()
    Image.new("RGB", (SIDE, SIDE), "white").save(out, "PNG")
    (client,) = clients_in(MINE / "new" / "dispatch.toml")
    payload = {"img": base64.b64encode(out.getvalue()).decode()}
    return answer(client, payload, OnnxModels(MINE), parameters=parameters)


def no_mistakes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "mine"]) == 0
    assert capsys.readouterr().out == "1 models (new): 0 errors, 0 warnings\n"


# One box in each table: from (100, 60) to (140, 120), of class 1.
BOX = [120.0, 90.0, 40.0, 60.0]
ROW = [1, 0.9, 100.0, 140.0, 60.0, 120.0, SIDE, SIDE]


def rows(boxes: int, *box: float, scale: float = 1) -> NDArray[np.float32]:
    """Rows of which one holds a box, and the last is far away, without a score."""
    table = np.zeros((boxes, len(box)), np.float32)
    table[7] = box
    table[-1, :4] = np.array([300, 300, 10, 10]) * scale
    return table


SHARES = [one / SIDE for one in BOX]
TABLES: dict[str, tuple[NDArray[np.float32], dict[str, str], dict[str, Any]]] = {
    "yolov5": (rows(3 * CELLS, *BOX, 1, 0, 0.9, 0), {}, {"output_layout": "yolov5"}),
    "yolov6": (rows(CELLS, *BOX, 1, 0, 0.9, 0), NAMES, {"output_layout": "yolov5"}),
    "yolov8": (rows(CELLS, *BOX, 0, 0.9, 0).T, NAMES, {"output_layout": "yolov8"}),
    "turned": (rows(CELLS, *BOX, 0, 0.9, 0), NAMES, {"output_layout": "yolov8"}),
    "rtdetr": (rows(300, *SHARES, 0, 0.9, 0, scale=1 / SIDE), {}, {"output_layout": "rtdetr"}),
    "end2end": (rows(300, 100, 60, 140, 120, 0.9, 1), NAMES, {"output_layout": "end2end"}),
    "normalised": (
        rows(CELLS, *SHARES, 0, 0.9, 0, scale=1 / SIDE).T,
        NAMES,
        {"output_layout": "yolov8", "normalised": True},
    ),
    "pose": (
        rows(CELLS, *BOX, 0, 0.9, 0, *[5] * 6).T,
        {**NAMES, "task": "pose", "kpt_shape": "[2, 3]"},
        {"output_layout": "yolov8", "keypoints": [2, 3]},
    ),
    "obb": (
        rows(CELLS, *BOX, 0, 0.9, 0, 0).T,
        {**NAMES, "task": "obb"},
        {"output_layout": "yolov8", "rotated": True},
    ),
}


@pytest.mark.parametrize("name", TABLES)
def test_a_detector_is_known_by_its_table(
    write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    table, noted, expected = TABLES[name]
    chosen = () if noted else ("--family", "detection")  # by its sizes alone it is not sure
    said = write(tables(tmp_path / "a.onnx", IMAGES, noted, output0=table), *chosen)
    assert said.startswith("family: detection, because `images` FP32 [-1, 3, 320, 320] takes")
    assert settings() == {"family": "detection", **expected}
    assert labels() == (["bolt", "nut", "a washer"] if noted else ["class 0", "class 1", "class 2"])
    assert ("check mine/new/dispatch.toml" in said) == (noted.get("task") is None)
    assert ask() == [pytest.approx(ROW, abs=0.02)]
    no_mistakes(capsys)


def test_a_yolox_is_known_by_its_cells_and_undecoded_numbers(
    write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = np.random.default_rng(0).normal(0, 1, (CELLS, 6)).astype(np.float32)
    table[:, 4:] = 0.1
    # The place of 120 is in column 15 of the cells of 8, that of 90 in row 11.
    table[11 * 40 + 15] = [0, 0.25, math.log(5), math.log(7.5), 0.9, 1]
    said = write(tables(tmp_path / "a.onnx", IMAGES, output0=table))
    assert ": pictures are 0 to 255, in BGR" in said
    assert settings() == {"family": "detection", "output_layout": "yolox"}
    assert ask() == [pytest.approx([0, *ROW[1:]], abs=0.02)]
    no_mistakes(capsys)


def test_faces_with_landmarks_are_known_by_their_outputs(
    write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    places, scores, marks = (np.zeros((2 * CELLS, one), np.float32) for one in (4, 2, 10))
    scores[7, 1] = 0.9
    write(tables(tmp_path / "a.onnx", IMAGES, loc=places, conf=scores, landms=marks))
    assert settings() == {"family": "detection", "output_layout": "retinaface"}
    assert labels() == ["face"]
    (face,) = ask(format="objects")
    assert len(face["keypoints"]) == 5
    no_mistakes(capsys)


def test_a_centerface_is_known_by_its_four_maps(write: Write, tmp_path: Path) -> None:
    channels = {"heat": 1, "sizes": 2, "offsets": 2, "marks": 10}
    weights = {f"w_{name}": np.zeros((one, 3, 4, 4), np.float32) for name, one in channels.items()}
    nodes = [
        helper.make_node("Conv", ["x", f"w_{name}"], [name], strides=[4, 4]) for name in channels
    ]
    x = ("x", TensorProto.FLOAT, ("n", 3, "h", "w"))
    outputs = [(name, TensorProto.FLOAT, ("n", one, "a", "b")) for name, one in channels.items()]
    write(save(tmp_path / "a.onnx", nodes, [x], outputs, **weights))
    assert settings() == {"family": "detection", "output_layout": "centerface", "size": 640}
    assert ask() == []


def test_a_segmentation_model_is_served_by_its_boxes(write: Write, tmp_path: Path) -> None:
    table = rows(CELLS, *BOX, 0, 0.9, 0, *[0.5] * 32).T
    masks = np.zeros((32, 80, 80), np.float32)
    write(tables(tmp_path / "a.onnx", IMAGES, NAMES, output0=table, output1=masks))
    expected = {"family": "detection", "output_layout": "yolov8", "output": "output0"}
    assert settings() == expected
    assert ask() == [pytest.approx(ROW, abs=0.02)]


def test_labels_are_asked_for_where_classes_are_numbers_and_have_to_fit(
    write: Write, tmp_path: Path
) -> None:
    (tmp_path / "names").write_text("left\nright\n")
    labelled = ("--labels", "names")
    said = write(scores(tmp_path / "a.onnx", ("n", 3, 8, 8), 3), *labelled, code=2)
    assert "`logits` FP32 [-1, 3] has 3 scores; but names has 2 lines" in said
    file = tables(tmp_path / "b.onnx", IMAGES, output0=rows(3 * CELLS, *BOX, 1, 0, 0.9, 0))
    said = write(file, *labelled, "--family", "detection", code=2)
    assert "no table of boxes with a score for each of 2 labels" in said
    file = tables(tmp_path / "a.onnx", IMAGES, output0=rows(300, 100, 60, 140, 120, 0.9, 1))
    assert "name them, --labels FILE" in write(file, "--family", "detection", code=2)
    write(file, *labelled)
    assert labels() == ["left", "right"]
    assert ask(format="objects")[0]["label"] == "right"


@pytest.mark.parametrize(
    ("shape", "kind", "expected", "sizes"),
    [
        (("n", 3, 24, 16), TensorProto.FLOAT, {}, "max_batch_size: 8"),
        ((1, 3, 24, 16), TensorProto.FLOAT16, {}, "max_batch_size: 0"),
        (("n", 24, 16, 3), TensorProto.FLOAT, {"layout": "NHWC"}, "dims: [ 24, 16, 3 ]"),
        (("n", 3, "h", "w"), TensorProto.FLOAT, {"crop": 224}, "dims: [ 3, -1, -1 ]"),
        (("n", 3, 64, "w"), TensorProto.FLOAT, {"crop": [64, 224]}, "dims: [ 3, 64, -1 ]"),
        (("n", 1, 24, 16), TensorProto.UINT8, {}, "data_type: TYPE_UINT8"),
    ],
)
def test_a_classifier_s_pictures_are_those_of_its_input(
    write: Write,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    shape: tuple[int | str, ...],
    kind: int,
    expected: dict[str, Any],
    sizes: str,
) -> None:
    said = write(scores(tmp_path / "a.onnx", shape, 5, kind), "--family", "classification")
    assert settings() == {"family": "classification", **expected}
    config = (MINE / "new" / "config.pbtxt").read_text()
    assert sizes in config
    assert "label_filename" not in config
    assert ("dynamic_batching { }" in config) == (shape[0] == "n")
    # White is 1, or 255 where the model takes whole numbers.
    white = 255.0 if kind == TensorProto.UINT8 else 1.0
    assert ask(top_k=1) == [f"{4 * white:.6f}:4"]
    assert ask(top_k=1, format="objects") == [{"index": 4, "score": 4 * white}]
    assert "write the model's own into labels.txt" in said
    no_mistakes(capsys)


def test_the_arithmetic_on_bytes_is_put_into_the_graph(write: Write, tmp_path: Path) -> None:
    """White is (1 - mean) / std in each channel: 1, 3 and 1, of which the model takes the mean."""
    file = scores(tmp_path / "a.onnx", ("n", 3, 24, 16), 4)
    raw = scores(tmp_path / "raw.onnx", ("n", 3, 24, 16), 4, TensorProto.UINT8)
    mean, std = ("--mean", "0.5", "0.25", "0"), ("--std", "0.5", "0.25", "1")
    for source, options, reason in (
        (file, mean, "go with --uint8"),
        (file, ("--uint8", *mean[:-1]), "3 channels: --mean and --std take as many"),
        (raw, ("--uint8",), "`images` UINT8 [-1, 3, 24, 16] takes bytes already"),
        (tokens(tmp_path / "t.onnx", 3), ("--uint8",), "--uint8 is for models of pictures"),
    ):
        assert reason in write(source, *options, code=2)
    write(file, "--uint8", *mean, *std)
    assert settings() == {"family": "classification"}
    assert "data_type: TYPE_UINT8 dims: [ 3, 24, 16 ]" in (MINE / "new/config.pbtxt").read_text()
    assert ask(top_k=1) == [f"{3 * 5 / 3:.6f}:3"]


@pytest.mark.parametrize(
    ("family", "reason", "fits"),
    [
        ("detection", "`logits` FP32 [-1, 5] has no table of boxes", "classification"),
        ("fill-mask", "`images` FP32 [-1, 3, 24, 16] is none of input_ids", "classification"),
    ],
)
def test_a_wrong_family_is_refused_with_the_one_that_fits(
    write: Write, tmp_path: Path, family: str, reason: str, fits: str
) -> None:
    file = scores(tmp_path / "a.onnx", ("n", 3, 24, 16), 5)
    said = write(file, "--family", family, code=2)
    assert reason in said
    assert f"it fits {fits}: write `--family {fits}`" in said


VECTOR = "picture-embedding classification"


@pytest.mark.parametrize(
    ("make", "possible"),
    [
        (lambda file: tables(file, IMAGES, output0=TABLES["yolov5"][0]), "detection"),
        (lambda file: tables(file, IMAGES, output0=TABLES["rtdetr"][0]), "detection"),
        (lambda file: tables(file, IMAGES, output0=TABLES["end2end"][0]), "detection"),
        # A vector of a sound's spectrum, and one of a face.
        (lambda file: scores(file, ("n", 76, 32, 1), 96, names=("x", "y")), VECTOR),
        (lambda file: scores(file, ("n", 76, 32, 1), 96, names=("x", "embedding")), VECTOR),
        (lambda file: scores(file, ("n", 3, 112, 112), 512, names=("x", "y")), VECTOR),
        # Of any size, so that nothing says which one is right.
        (lambda file: scores(file, ("n", 3, "h", "w"), 2), "classification"),
        # A wake word's, of one channel.
        (lambda file: scores(file, ("n", 1, 16, 96), 2, names=("x", "probs")), "classification"),
    ],
)
def test_what_no_file_proves_is_served_as_tensors_and_named(
    write: Write, tmp_path: Path, make: Any, possible: str
) -> None:
    said = write(make(tmp_path / "a.onnx"))
    first = said.splitlines()[0]
    assert first.startswith("family: tensors, because no family is sure to suit")
    assert re.findall(r"`--family (\S+)` suits if", first) == possible.split()
    assert settings() == {"family": "tensors"}
    assert not (MINE / "new" / "labels.txt").exists()


# Lines of text


def test_a_recogniser_is_known_by_the_letters_in_its_file(write: Write, tmp_path: Path) -> None:
    assert "family: ctc" in write(letters(tmp_path / "a.onnx", ("n", 3, "h", "w")))
    half = [0.5, 0.5, 0.5]
    prepared = {"height": 48, "width": 320, "mean": half, "std": half, "channels": "BGR"}
    assert settings() == {"family": "ctc", **prepared}
    assert labels() == ["a", "b"]


def test_letters_that_are_not_in_the_file_are_asked_for(write: Write, tmp_path: Path) -> None:
    file = letters(tmp_path / "a.onnx", (1, 1, 64, "w"), steps_first=True)
    printed = write(file)
    assert printed.startswith("family: tensors")
    assert "`--family ctc` suits if" in printed
    assert "name them, --labels FILE" in printed
    shutil.rmtree(MINE)
    (tmp_path / "letters.txt").write_text("-\na\nb\nc\n")
    write(file, "--labels", "letters.txt")
    assert settings() == {"family": "ctc"}
    assert ask() == {"text": "", "score": 0.0}  # the blank, as the first of equals


def test_a_detector_of_lines_is_asked_for_by_its_family(write: Write, tmp_path: Path) -> None:
    mean = helper.make_node("ReduceMean", ["x"], ["mean"], axes=[1])
    nodes = [mean, helper.make_node("Sigmoid", ["mean"], ["y"])]
    sides = ("n", 3, "h", "w"), ("n", 1, "h", "w")
    tensors = ([(name, TensorProto.FLOAT, side)] for name, side in zip("xy", sides, strict=True))
    file = save(tmp_path / "a.onnx", nodes, *tensors)
    assert "served by --family ocr" in write(file)
    shutil.rmtree(MINE)
    write(file, "--family", "ocr")
    assert settings()["family"] == "ocr"
