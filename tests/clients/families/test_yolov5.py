"""The arithmetic of detection, against hand calculations and a plain reference."""

from __future__ import annotations

import numpy as np
import pytest

from clients.images.boxes import YOLOV5, Head
from clients.images.resizing import Letterbox
from clients.images.suppression import find_objects


def best(
    rows: np.ndarray, confidence: float, iou: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    found = YOLOV5.decode([rows], confidence, Head())
    return find_objects(YOLOV5, found, confidence=confidence, iou=iou)[:3]


def row(x: float, y: float, w: float, h: float, objectness: float, **classes: float) -> list[float]:
    probabilities = [0.0] * 80
    for name, value in classes.items():
        probabilities[int(name[1:])] = value
    return [x, y, w, h, objectness, *probabilities]


@pytest.mark.parametrize(
    ("width", "height", "scale", "left", "top"),
    [
        (640, 640, 1.0, 0, 0),
        (1280, 640, 0.5, 0, 160),  # 640×320, 160 above
        (320, 640, 1.0, 160, 0),
        (768, 576, 640 / 768, 0, 80),  # 640×480
        (451, 300, 640 / 451, 0, 107),  # 640×426 (425.7), (640 - 426) // 2
        (1, 5000, 640 / 5000, 319, 0),  # 0.128 pixels wide: one is kept
    ],
)
def test_letterbox(width: int, height: int, scale: float, left: int, top: int) -> None:
    box = Letterbox.around(np.full((height, width, 3), 255, np.uint8))
    assert box.shades.shape == (3, 640, 640)
    assert (box.scale, box.left, box.top) == (pytest.approx(scale), left, top)
    assert box.shades[0, top, left] == 255  # the picture begins here
    if top:
        assert box.shades[0, top - 1, 320] == 114
    if left:
        assert box.shades[0, 320, left - 1] == 114


def test_the_way_back_is_pixels_of_the_picture() -> None:
    box = Letterbox.around(np.zeros((576, 768, 3), np.uint8))  # scale 5/6, 80 above
    corners = np.array([[0, 80, 320, 320], [-50, 0, 700, 639]], np.float32)
    expected = [[0, 0, 384, 288], [0, 0, 768, 576]]  # (320 - 80) * 6 / 5 = 288; the rest clipped
    assert box.back(corners).tolist() == [pytest.approx(e, abs=1e-9) for e in expected]


def test_scores_are_objectness_times_class_probability() -> None:
    rows = np.array([row(100, 100, 20, 10, 0.9, c3=0.8, c5=0.7)], np.float32)
    classes, scores, corners = best(rows, 0.5, 0.45)
    assert classes.tolist() == [3]
    assert scores.tolist() == [pytest.approx(0.72)]
    assert corners.tolist() == [[90, 95, 110, 105]]


def test_both_objectness_and_score_must_pass() -> None:
    rows = np.array(
        [row(100, 100, 20, 10, 0.45, c1=1.0), row(300, 100, 20, 10, 0.9, c1=0.5)], np.float32
    )
    assert len(best(rows, 0.5, 0.45)[0]) == 0


def test_overlap_is_judged_per_class() -> None:
    # Two squares of 100, moved by 20: 8000 of 12000 are shared, so the overlap is 2/3.
    squares = [row(100, 100, 100, 100, 1, c1=0.8), row(120, 100, 100, 100, 1, c1=0.9)]
    rows = np.array([*squares, row(100, 100, 100, 100, 1, c2=0.7)], np.float32)
    classes, scores, corners = best(rows, 0.5, 0.45)
    assert classes.tolist() == [1, 2]
    assert scores.tolist() == [pytest.approx(0.9), pytest.approx(0.7)]
    assert corners[0].tolist() == [70, 50, 170, 150]
    assert len(best(rows, 0.5, 0.66)[0]) == 2
    assert len(best(rows, 0.5, 0.67)[0]) == 3


def test_nothing_found_is_an_empty_answer() -> None:
    classes, scores, corners = best(np.zeros((10, 85), np.float32), 0.5, 0.45)
    assert (len(classes), len(scores), corners.shape) == (0, 0, (0, 4))


def plain_suppression(
    boxes: np.ndarray, scores: np.ndarray, classes: np.ndarray, iou: float
) -> list[int]:
    """The textbook's version, box by box."""
    order, kept = list(np.argsort(-scores, kind="stable")), []
    while order:
        i = order.pop(0)
        kept.append(int(i))
        left = []
        for j in order:
            width = min(boxes[i][2], boxes[j][2]) - max(boxes[i][0], boxes[j][0])
            height = min(boxes[i][3], boxes[j][3]) - max(boxes[i][1], boxes[j][1])
            both = max(width, 0) * max(height, 0)
            areas = [(b[2] - b[0]) * (b[3] - b[1]) for b in (boxes[i], boxes[j])]
            if classes[i] != classes[j] or both / (sum(areas) - both) <= iou:
                left.append(j)
        order = left
    return kept


@pytest.mark.parametrize("seed", range(10))
def test_suppression_equals_the_textbook_s(seed: int) -> None:
    random = np.random.default_rng(seed)
    count = 120
    rows = np.zeros((count, 85), np.float32)
    rows[:, :2] = random.uniform(100, 540, (count, 2))
    rows[:, 2:4] = random.uniform(40, 200, (count, 2))
    rows[:, 4] = 1
    kinds = random.integers(0, 3, count)
    rows[np.arange(count), 5 + kinds] = random.permutation(np.linspace(0.1, 0.99, count))
    boxes = np.concatenate([rows[:, :2] - rows[:, 2:4] / 2, rows[:, :2] + rows[:, 2:4] / 2], 1)
    scores = rows[np.arange(count), 5 + kinds]
    sure = np.flatnonzero(scores > 0.5)
    expected = sure[plain_suppression(boxes[sure], scores[sure], kinds[sure], 0.45)]
    classes, kept_scores, corners = best(rows, 0.5, 0.45)
    assert kept_scores.tolist() == scores[expected].tolist()
    assert classes.tolist() == kinds[expected].tolist()
    assert corners.tolist() == boxes[expected].tolist()
