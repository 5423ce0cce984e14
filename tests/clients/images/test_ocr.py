"""Lines of text: where they are in a picture, and what they say."""

from __future__ import annotations

import base64
import io
import json
import random
import re
import runpy
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from onnx import helper
from PIL import Image, ImageDraw, ImageFont

from clients.images.text_boxes import grown
from clients.request import Request
from clients.testing import OnnxModels, answer, clients_in
from clients.triton.server import Tensors
from tests.conftest import PROJECT
from tests.support.fake_triton import Arrays
from tests.support.family_bench import Bench, bench, picture, plain, signature
from tests.support.models.onnx_models import FLOAT, save
from tests.support.packages import python_with, unpacked
from tool.__main__ import main

__all__ = ["bench"]  # the fixture

RECOGNISER = signature({"x": (3, 8, -1)}, {"y": (-1, 4)})
# The classes of eight steps: blank, a, a, blank, a, b, b, blank. The scores of those that count are
# 0.8, 0.7 and 0.6, and their mean 0.7.
STEPS = [(0, 0.9), (1, 0.8), (1, 0.5), (0, 0.9), (1, 0.7), (2, 0.6), (2, 0.9), (0, 0.9)]


def scores(*steps: tuple[int, float], classes: int = 4) -> np.ndarray:
    table = np.zeros((len(steps), classes), np.float32)
    for row, (kind, score) in zip(table, steps, strict=True):
        row[kind] = score
    return table


@pytest.mark.parametrize(
    ("toml", "labels", "moved"),
    [
        ("", "-\na\nb\n \n", 0),
        ("", "a\nb\nc\n", 0),  # the blank is missing
        ("", "a\nb\n", 0),  # the space too
        ('blank = "last"', "a\nb\nc\n", -1),
        ('blank = "last"', "a\nb\nc\n\n", -1),
    ],
)
@pytest.mark.parametrize("batch", [4, 0])
def test_letters_that_are_repeated_or_blank_are_left_out(
    bench: Bench, toml: str, labels: str, moved: int, batch: int
) -> None:
    tensors = signature({"x": (3, 8, -1)}, {"y": (-1, 4)})
    if not batch:  # [steps, 1, letters], of one line
        tensors = signature({"x": (1, 3, 8, -1)}, {"y": (-1, 1, 4)}, 0)
    bench.set_up(f'family = "ctc"\n{toml}', tensors, labels)
    table = scores(*((kind + moved, score) for kind, score in STEPS))
    bench.answers(lambda _: {"y": table[None] if batch else table[:, None]})
    assert bench.ask(picture(plain(8, 40, [9, 9, 9]))) == {"text": "aab", "score": 0.7}


def test_scores_become_probabilities(bench: Bench) -> None:
    bench.set_up('family = "ctc"\nsoftmax = true', RECOGNISER)
    bench.answers(lambda _: {"y": np.log([[[0.2, 0.7, 0.05, 0.05], [0.9, 0.1, 0.0, 0.0]]]) + 3})
    with np.errstate(divide="ignore"):
        found = bench.ask(picture(plain(8, 40, [9, 9, 9])))
    assert found == {"text": "a", "score": 0.7}


def test_no_letter_is_an_empty_text(bench: Bench) -> None:
    bench.set_up('family = "ctc"', RECOGNISER)
    bench.answers(lambda _: {"y": scores((0, 0.9), (0, 0.8))[None]})
    assert bench.ask(picture(plain(8, 40, [9, 9, 9]))) == {"text": "", "score": 0.0}


@pytest.mark.parametrize(
    ("toml", "proportion", "size", "filled", "beside"),
    [
        ("", 0, (8, 21), 21, 0),  # 16×43 pixels
        ("width = 30", 0, (8, 30), 22, 0),
        ("width = 30", 5, (8, 40), 22, 0),
        ("max_width = 20", 5, (8, 20), 20, 0),
        ("width = 30\npadding = [0, 51, 255]", 0, (8, 30), 22, [1.0, 0.2, 0.0]),
    ],
)
def test_lines_are_padded_on_the_right(
    bench: Bench, toml: str, proportion: float, size: Any, filled: int, beside: Any
) -> None:
    seen: list[np.ndarray] = []

    def run(inputs: Tensors) -> Arrays:
        seen.append(np.array(inputs["x"]))
        return {"y": np.zeros((1, 2, 4), np.float32)}

    bench.set_up(f'family = "ctc"\nchannels = "BGR"\n{toml}', RECOGNISER)
    bench.answers(run)
    bench.ask(picture(plain(16, 43, [255, 102, 0])), proportion=proportion)
    (pixels,) = seen[0]
    assert pixels.shape == (3, *size)
    row = pixels[:, 4].T  # of each column its three channels
    assert row[:filled] == pytest.approx(np.tile([0, 0.4, 1], (filled, 1)))
    assert row[filled:] == pytest.approx(np.broadcast_to(beside, row[filled:].shape))


@pytest.mark.parametrize(
    ("toml", "tensors", "labels", "words"),
    [
        ("", RECOGNISER, "a\n", "names a file of 1 lines, but the model has 4 classes"),
        ("", signature({"x": (3, -1, -1)}, {"y": (-1, 4)}), "a\nb\nc\n", "such as 48"),
        ("height = 9", RECOGNISER, "a\nb\nc\n", "`height` is 9, but `x` takes 8; leave it out"),
    ],
)
def test_what_does_not_suit_a_recogniser_is_said(
    bench: Bench, toml: str, tensors: Any, labels: str, words: str
) -> None:
    bench.set_up(f'family = "ctc"\n{toml}', tensors, labels)
    with pytest.raises(Exception, match=re.escape(words)):
        bench.ask(picture(plain(8, 8, [9, 9, 9])))


@pytest.mark.parametrize(
    ("box", "outline"),
    [
        (
            [(10.6, 20), (90.2, 20), (90.2, 40.9), (10.6, 40.9)],
            (
                "-3,20 -3,40 -2,15 -2,45 1,11 1,49 5,8 5,52 10,7 10,53 "
                "90,7 90,53 95,8 95,52 99,11 99,49 102,15 102,45 103,20 103,40"
            ),
        ),
        (
            [(20, 60.5), (80.3, 10.2), (90.7, 22.9), (30.4, 73.1)],
            (
                "9,58 9,62 11,54 11,67 13,52 21,80 24,82 28,84 33,83 37,81 "
                "73,2 77,0 82,-1 86,1 88,3 97,30 98,15 99,28 100,19 101,24"
            ),
        ),
    ],
)
def test_a_box_grows_as_pyclipper_does(box: list[tuple[float, float]], outline: str) -> None:
    """The outlines are those of pyclipper 1.4 with shapely, as RapidOCR calls them."""
    hull = cv2.convexHull(grown(np.array(box, np.float32), 1.6)).reshape(-1, 2).tolist()
    assert sorted(map(tuple, hull)) == [tuple(map(int, at.split(","))) for at in outline.split()]


@pytest.fixture
def detector(tmp_path: Path) -> Path:
    """A detector to which what is dark is a text."""
    one = np.array(1, np.float32)
    nodes = [
        helper.make_node("ReduceMean", ["x"], ["light"], axes=[1]),
        helper.make_node("Sub", ["one", "light"], ["y"]),
    ]
    sides = ("n", 3, "h", "w"), ("n", 1, "h", "w")
    tensors = ([(name, FLOAT, side)] for name, side in zip("xy", sides, strict=True))
    save(tmp_path / "page" / "1" / "model.onnx", nodes, *tensors, one=one)
    return tmp_path / "page"


def ask(folder: Path, pixels: np.ndarray, toml: str = "", **more: Any) -> Any:
    (folder / "dispatch.toml").write_text(f'family = "ocr"\n{toml}')
    (client,) = clients_in(folder / "dispatch.toml")
    return answer(client, picture(pixels), OnnxModels(folder.parent), **more)


def dark(pixels: np.ndarray, *boxes: tuple[int, int, int, int]) -> np.ndarray:
    for left, top, right, bottom in boxes:
        pixels[top:bottom, left:right] = 0
    return pixels


def places(found: Any) -> np.ndarray:
    return np.array([[(corner["x"], corner["y"]) for corner in one["corners"]] for one in found])


# A box of 160×20 grows by 160·20·1.6/360 = 14.2 pixels on each side, that of 200×20 by 14.5.
def test_lines_are_found_in_reading_order(detector: Path) -> None:
    white = plain(300, 500, [255, 255, 255])
    found = places(
        ask(detector, dark(white, (260, 50, 420, 70), (40, 53, 200, 73), (60, 200, 260, 220)))
    )
    expected = [
        [(25.8, 38.8), (214.2, 38.8), (214.2, 87.2), (25.8, 87.2)],
        [(245.8, 35.8), (434.2, 35.8), (434.2, 84.2), (245.8, 84.2)],
        [(45.5, 185.5), (274.5, 185.5), (274.5, 234.5), (45.5, 234.5)],
    ]
    assert found == pytest.approx(np.array(expected), abs=1.6)
    assert ask(detector, plain(300, 500, [255, 255, 255])) == []


@pytest.mark.parametrize(("height", "width"), [(20, 900), (3000, 60), (8, 8), (1, 5000)])
def test_pictures_of_any_shape_are_limited(detector: Path, height: int, width: int) -> None:
    """What is found lies in the picture that was sent."""
    seen: list[tuple[int, ...]] = []

    class Seeing(OnnxModels):
        def infer(self, model: str, inputs: Tensors, **more: Any) -> Any:
            seen.append(inputs["x"].shape)
            return super().infer(model, inputs, **more)

    (detector / "dispatch.toml").write_text('family = "ocr"')
    (client,) = clients_in(detector / "dispatch.toml")
    pixels = dark(
        plain(height, width, [255, 255, 255]), (2, height // 3, width // 2, height // 2 + 1)
    )
    found = answer(client, picture(pixels), Seeing(detector.parent))
    assert np.prod(seen[0]) / 3 <= 8 * 736 * 736
    assert (places(found).reshape(-1, 2) <= (width, height)).all()


def test_lines_are_turned_and_read_together(detector: Path) -> None:
    """Each has a grey end, which is at the right of a line that is upside down."""
    white = dark(plain(300, 400, [255, 255, 255]), (40, 50, 240, 70), (60, 200, 220, 220))
    white[50:70, 40:60] = white[200:220, 200:220] = 90
    asked: list[tuple[str, Any]] = []

    def is_grey(payload: Mapping[str, Any], side: slice) -> bool:
        middle = payload["img"].shape[0] // 2
        return bool((payload["img"][middle, side] == 90).any())

    def angle(payload: Mapping[str, Any], parameters: Mapping[str, Any]) -> Any:
        asked.append(("angle", parameters))
        turned = is_grey(payload, slice(-60, None))
        return [{"index": int(turned), "score": 0.95}]

    def line(payload: Mapping[str, Any], parameters: Mapping[str, Any]) -> Any:
        asked.append(("line", parameters["proportion"]))
        assert is_grey(payload, slice(0, 60))
        assert not is_grey(payload, slice(-60, None))
        wide = payload["img"].shape[1] / payload["img"].shape[0]
        return {"text": "long" if wide > 4.3 else "short", "score": 0.8}

    others = {"angle": angle, "line": line}
    toml = 'recogniser = "line"\nangle = "angle"'
    found = ask(detector, white, toml, others=others)
    assert [(one["text"], one["score"]) for one in found] == [("long", 0.8), ("short", 0.8)]
    best = {"top_k": 1, "format": "objects"}
    assert asked[:2] == [("angle", best)] * 2
    # 229 by 49 pixels, as above, is the longest, to which both are padded.
    assert asked[2:] == [("line", pytest.approx(229 / 49, abs=0.2))] * 2
    assert asked[2] == asked[3]
    sure = {"confidence": 0.9}
    assert ask(detector, white, toml, others=others, parameters=sure) == []


def test_a_model_that_answers_no_likelihoods_is_said(bench: Bench) -> None:
    bench.set_up('family = "ocr"', signature({"x": (3, -1, -1)}, {"y": (1, -1, -1)}))
    bench.answers(lambda given: {"y": given["x"][:, :1] * 5})
    with pytest.raises(Exception, match="is not 0 to 1"):
        bench.ask(picture(plain(8, 8, [200, 9, 9])))


def test_texts_are_drawn(bench: Bench) -> None:
    bench.set_up('family = "ocr"', signature({"x": (3, -1, -1)}, {"y": (1, -1, -1)}))
    corners = [{"x": x, "y": y} for x, y in ((20, 30), (90, 40), (88, 60), (18, 50))]
    client = bench.client()
    result = [{"text": "word", "score": 0.9, "corners": corners}]
    with Request(parameters=client.read_parameters({})).active():
        drawn = client.draw(picture(plain(100, 100, [255, 255, 255])), result, "image/png")
    pixels = np.asarray(Image.open(io.BytesIO(drawn)))
    assert (pixels[50, 18] != 255).any()
    assert (pixels[80, 18] == 255).all()


# What the packages themselves answer to the same pictures

RAPID, DDDD = "rapidocr-onnxruntime==1.4.4", "ddddocr==1.6.1"
ITS_OPENCV = ("opencv-python==4.11.0.86", "numpy==1.26.4")  # resizes as ours does, to a shade
READ = """
import json, sys
from rapidocr_onnxruntime import RapidOCR
ocr = RapidOCR()
print(json.dumps([ocr(one)[0] or [] for one in sys.argv[1:]]))
"""
CLASSIFY = """
import json, sys
from ddddocr import DdddOcr
ocr = DdddOcr(show_ad=False, old=True)
print(json.dumps([ocr.classification(open(one, "rb").read()) for one in sys.argv[1:]]))
"""


def drawn(size: tuple[int, int], *lines: tuple[int, int, int, str], turn: float = 0) -> Image.Image:
    """Return a white page with lines: left, top, height and text; then turned."""
    page = Image.new("RGB", size, "white")
    for left, top, height, text in lines:
        face = ImageFont.load_default(height)
        ImageDraw.Draw(page).text((left, top), text, fill=(20, 20, 30), font=face)
    return page.rotate(turn, Image.Resampling.BICUBIC, expand=turn % 90 > 0, fillcolor="white")


def pages() -> dict[str, Image.Image]:
    note = (
        "Invoice No. 2026-1187|Total amount due: 1,284.50 EUR|Please pay before 14 March|Thank you!"
    )
    lines = [(60, 40 + 60 * at, 32, text) for at, text in enumerate(note.split("|"))]
    coffee = Image.open(PROJECT / "tests" / "pictures" / "coffee.png").convert("RGB")
    face = ImageFont.load_default(44)
    ImageDraw.Draw(coffee).text((40, 20), "Cafe Central 1920", fill="white", font=face)
    return {
        "turned": drawn((900, 400), *lines, turn=12),
        "down": drawn((700, 300), (60, 40, 36, "Upside down text"), turn=180),
        "strip": drawn(
            (1500, 60), (10, 8, 36, "A line that is much wider than it is high, by far")
        ),
        "coffee": coffee,
        "blank": drawn((640, 480)),
    }


def asked_of(package: tuple[str, ...], script: str, files: list[Path]) -> Any:
    done = subprocess.run(
        [python_with(*package), "-c", script, *map(str, files)],
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


@pytest.mark.slow
def test_texts_and_places_are_rapidocr_s(tmp_path: Path) -> None:
    shutil.copytree(PROJECT / "examples" / "ocr", tmp_path / "ocr")
    package = unpacked(RAPID) / "rapidocr_onnxruntime"
    subprocess.run([sys.executable, tmp_path / "ocr" / "make_models.py", package], check=True)
    models = OnnxModels(tmp_path / "ocr" / "models")
    (client,) = clients_in(models.folder / "page" / "dispatch.toml")
    files = [tmp_path / f"{name}.png" for name in pages()]
    for file, page in zip(files, pages().values(), strict=True):
        page.save(file)
    expected = asked_of((RAPID, *ITS_OPENCV), READ, files)
    for file, wanted in zip(files, expected, strict=True):
        found = answer(client, {"img": base64.b64encode(file.read_bytes()).decode()}, models)
        assert [one["text"] for one in found] == [text for _, text, _ in wanted], file.stem
        assert [one["score"] for one in found] == pytest.approx([s for *_, s in wanted], abs=0.01)
        assert places(found) == pytest.approx(np.array([box for box, *_ in wanted]), abs=0.01)


@pytest.mark.slow
def test_texts_of_captchas_are_ddddocr_s(tmp_path: Path) -> None:
    """`new-model` needs the letters, which are not in the file, and writes the rest."""
    package = unpacked(DDDD) / "ddddocr"
    letters = runpy.run_path(str(package / "charsets.py"))["CHARSET_OLD"]
    (tmp_path / "letters.txt").write_text("\n".join(letters) + "\n")
    options = ("--labels", tmp_path / "letters.txt", "--into", tmp_path / "mine")
    made = ("new-model", "captcha", "--from", package / "common_old.onnx", *options)
    assert main([str(word) for word in made]) == 0
    chance, files = random.Random(3), []
    for at in range(12):
        text = "".join(chance.choices("abcdefghkmnpqrstuvwxyz23456789", k=4 + at % 2))
        letters = [
            (8 + 22 * place, chance.randint(2, 8), 26, one) for place, one in enumerate(text)
        ]
        captcha = drawn((120 + 10 * (at % 4), 40 + 4 * (at % 4)), *letters)
        pencil = ImageDraw.Draw(captcha)
        for _ in range(2):
            pencil.line([(chance.randint(0, 100), chance.randint(0, 40)) for _ in "ab"], "grey")
        files.append(tmp_path / f"{at}.png")
        captcha.save(files[-1])
    (client,) = clients_in(tmp_path / "mine" / "captcha" / "dispatch.toml")
    models = OnnxModels(tmp_path / "mine")
    found = [
        answer(client, {"img": base64.b64encode(file.read_bytes()).decode()}, models)["text"]
        for file in files
    ]
    assert found == asked_of((DDDD,), CLASSIFY, files)
