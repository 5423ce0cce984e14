"""The converted models against answers that were computed apart from the project.

Skipped where the models were not made (`make weights`) or the reference answers are not there.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import onnx
import onnxruntime
import pytest
from PIL import Image

PROJECT = Path(__file__).resolve().parents[2]
REPOSITORY = PROJECT / "model_repository"
SHARED = PROJECT.parent / "shared" / "models"
# The larger collection where it is there, else the pictures that come with the project.
PICTURES, REFERENCE = (
    (SHARED / "pictures", SHARED / "reference")
    if SHARED.is_dir()
    else (PROJECT / "tests" / "pictures", PROJECT / "tests" / "reference")
)
SIZE = 640


def answers(name: str) -> dict[str, Any]:
    path = REFERENCE / name
    return json.loads(path.read_text()) if path.is_file() else {}


def session(model: str) -> Any:
    path = REPOSITORY / model / "1" / "model.onnx"
    if not path.is_file():
        pytest.skip(f"{path.relative_to(PROJECT)} is not there: run `make weights`")
    return onnxruntime.InferenceSession(path)


@pytest.fixture(scope="module")
def resnet() -> Any:
    return session("resnet")


@pytest.fixture(scope="module")
def yolov5() -> Any:
    return session("yolov5")


def letterbox(path: Path) -> tuple[Any, float, int, int]:
    """Return the 640 x 640 picture as a tensor, its scale, and the borders left and above."""
    picture = cv2.imread(str(path))[:, :, ::-1]
    height, width = picture.shape[:2]
    scale = min(SIZE / height, SIZE / width)
    w, h = round(width * scale), round(height * scale)
    left, top = (SIZE - w) // 2, (SIZE - h) // 2
    canvas = np.full((SIZE, SIZE, 3), 114, np.uint8)
    canvas[top : top + h, left : left + w] = cv2.resize(picture, (w, h))
    return (canvas / np.float32(255)).transpose(2, 0, 1)[None], scale, left, top


def detect(rows: Any) -> list[tuple[int, float, Any]]:
    """Return class, score and corners above 0.5, after suppression per class at IoU 0.45."""
    scores = rows[:, 4:5] * rows[:, 5:]
    kinds, best = scores.argmax(1), scores.max(1)
    good = (rows[:, 4] > 0.5) & (best > 0.5)
    corners = np.hstack([rows[:, :2] - rows[:, 2:4] / 2, rows[:, :2] + rows[:, 2:4] / 2])
    found: list[tuple[int, float, Any]] = []
    for i in sorted(np.flatnonzero(good), key=lambda row: -best[row]):
        if all(kind != kinds[i] or iou(box, corners[i]) <= 0.45 for kind, _, box in found):
            found.append((int(kinds[i]), float(best[i]), corners[i]))
    return found


def iou(a: Any, b: Any) -> float:
    both = np.clip(np.minimum(a[2:], b[2:]) - np.maximum(a[:2], b[:2]), 0, None).prod()
    return float(both / (np.prod(a[2:] - a[:2]) + np.prod(b[2:] - b[:2]) - both))


@pytest.mark.parametrize("name", answers("resnet.json") or ["no reference answers"])
def test_resnet_gives_the_five_reference_labels(resnet: Any, name: str) -> None:
    if not (PICTURES / name).is_file():
        pytest.skip(f"{name} is not beside the reference answers")
    picture = Image.open(PICTURES / name).convert("RGB").resize((224, 224))
    pixels = (np.asarray(picture) / np.float32(255)).transpose(2, 0, 1)[None]
    (logits,) = resnet.run(["output"], {"input": pixels})
    expected = answers("resnet.json")[name]
    best = np.argsort(-logits[0])[:5]
    assert best.tolist() == [entry["index"] for entry in expected]
    np.testing.assert_allclose(logits[0][best], [entry["logit"] for entry in expected], atol=0.1)


@pytest.mark.parametrize("name", answers("yolov5.json") or ["no reference answers"])
def test_yolov5_finds_the_reference_objects(yolov5: Any, name: str) -> None:
    if not (PICTURES / name).is_file():
        pytest.skip(f"{name} is not beside the reference answers")
    pixels, scale, left, top = letterbox(PICTURES / name)
    (rows,) = yolov5.run(["output"], {"images": pixels})
    expected = answers("yolov5.json")[name]
    found = detect(rows[0])
    limits = [expected["width"], expected["height"]] * 2
    assert [kind for kind, _, _ in found] == [entry["class_id"] for entry in expected["objects"]]
    for (_, score, box), entry in zip(found, expected["objects"], strict=True):
        assert score == pytest.approx(entry["score"], abs=0.02)
        corners = np.clip((box - [left, top, left, top]) / scale, 0, limits)
        np.testing.assert_allclose(corners, entry["x1_y1_x2_y2"], atol=3)


@pytest.mark.parametrize(
    ("model", "reference", "tolerance"),
    [("resnet", "resnet50", 0.1), ("yolov5", "yolov5s", 0.01)],
)
def test_every_number_agrees_with_the_reference_model(
    model: str, reference: str, tolerance: float
) -> None:
    """Logits within 0.1; boxes within 0.01 pixels. A batch of two holds the batch axis too."""
    other = SHARED / reference / "model.onnx"
    if not other.is_file():
        pytest.skip("the reference models are not beside the project")
    ours, theirs = session(model), onnxruntime.InferenceSession(other)
    (value,) = ours.get_inputs()
    images = np.random.default_rng(3).random((2, *value.shape[1:]), np.float32)
    (got,), (wanted,) = (one.run(None, {value.name: images}) for one in (ours, theirs))
    np.testing.assert_allclose(got, wanted, rtol=0, atol=tolerance)


@pytest.mark.parametrize(
    ("model", "value_in", "value_out"),
    [
        ("resnet", ("input", [3, 224, 224]), ("output", [1000])),
        ("yolov5", ("images", [3, 640, 640]), ("output", [25200, 85])),
    ],
)
def test_names_and_shapes_are_the_promised_ones(
    model: str, value_in: tuple[str, list[int]], value_out: tuple[str, list[int]]
) -> None:
    opened = session(model)
    for values, (name, shape) in (
        (opened.get_inputs(), value_in),
        (opened.get_outputs(), value_out),
    ):
        (value,) = values
        assert (value.name, value.shape[1:], value.type) == (name, shape, "tensor(float)")
        assert isinstance(value.shape[0], str), "the batch axis is dynamic"
    onnx.checker.check_model(REPOSITORY / model / "1" / "model.onnx", full_check=True)


@pytest.mark.parametrize(
    ("model", "others", "known"),
    [
        # Fields of a row that are no class: four of the box, and the objectness.
        ("yolov5", 5, {0: "person", 15: "cat", 16: "dog", 41: "cup", 79: "toothbrush"}),
        ("resnet", 0, {0: "tench, Tinca tinca", 249: "malamute, malemute, Alaskan malamute"}),
    ],
)
def test_there_is_one_label_per_class(model: str, others: int, known: dict[int, str]) -> None:
    text = (REPOSITORY / model / "labels.txt").read_text(encoding="utf-8")
    labels = text.splitlines()
    assert text.endswith("\n")
    assert all(label == label.strip() != "" for label in labels)
    assert {index: labels[index] for index in known} == known
    (value,) = session(model).get_outputs()
    assert len(labels) == value.shape[-1] - others
