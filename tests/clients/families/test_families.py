"""The families: what a `dispatch.toml` may say, and what is answered then."""

from __future__ import annotations

import math
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from clients.families.base import family
from clients.triton.server import Signature, Tensors
from tests.support.fake_triton import Arrays
from tests.support.family_bench import (
    BYTES,
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
        ('channels = "BGR"', BYTES, [0, 102, 255]),
        ('pixels = "0-255"', BYTES, [255, 102, 0]),
        ('fit = "top-left"\nchannels = "BGR"', PICTURES, [0.0, 0.4, 1.0]),
    ],
)
def test_channels(bench: Bench, toml: str, tensors: Signature, expected: list[float]) -> None:
    given = sent(bench, toml, tensors, plain(4, 4, [255, 102, 0]))
    assert given.shape == (1, 3, 8, 8)
    assert given.dtype == (np.uint8 if tensors is BYTES else np.float32)
    assert given[0, :, 3, 5].tolist() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    ("tensors", "toml", "shape", "dtype"),
    [
        (signature({"x": (8, 8, 3)}, {"y": (3,)}), 'layout = "NHWC"', (1, 8, 8, 3), np.float32),
        (signature({"x": (3, 8, 8)}, {"y": (3,)}, 0), "", (3, 8, 8), np.float32),
        (signature({"x": (1, 3, 8, 8)}, {"y": (1, 3)}, 0), "", (1, 3, 8, 8), np.float32),
        (signature({"x": (-1, 3, -1, -1)}, {"y": (-1, 3)}, 0), "crop = [4, 6]", (1, 3, 4, 6),
         np.float32),
        (signature({"x": (8, 8, 3)}, {"y": (3,)}, 4, "UINT8"), 'layout = "NHWC"', (1, 8, 8, 3),
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
        ("", signature({"x": (1, 8, 8)}, {"y": (3,)}, 4, "UINT8"), (1, 1, 8, 8), 142),
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


def test_a_picture_may_lie_beside_its_padding(bench: Bench) -> None:
    """32×16 becomes 8×4 in the upper left corner of 8×8."""
    toml = 'fit = "top-left"\npadding = [0, 51, 255]'
    given = sent(bench, toml, PICTURES, plain(16, 32, [255, 255, 255]))
    assert (given[0, :, :4] == 1).all()
    assert given[0, :, 4, 0].tolist() == pytest.approx([0, 0.2, 1])
    assert given[0, :, 7, 7].tolist() == pytest.approx([0, 0.2, 1])


def test_a_line_is_as_high_as_the_rectangle(bench: Bench) -> None:
    """Height and width of a picture, and how many of the 8 columns it fills, at most all."""
    toml = 'fit = "line"\npadding = [0, 51, 255]'
    for (height, width), filled in {(8, 16): 8, (8, 2): 2, (1, 32): 8, (16, 3): 2}.items():
        given = sent(bench, toml, PICTURES, plain(height, width, [255, 255, 255]))
        assert (given[0, :, :, :filled] == 1).all()
        beside = given[0, :, :, filled:].reshape(3, -1).T
        assert beside == pytest.approx(np.broadcast_to([0, 0.2, 1], beside.shape))


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


def test_a_label_may_hold_what_python_takes_for_the_end_of_a_line(bench: Bench) -> None:
    bench.set_up('family = "classification"', PICTURES, labels="a\u2028a\r\nb\x0cb\nc\n\n")
    bench.answers(lambda inputs: {"y": np.array([[3, 2, 1]], np.float32)})
    found = bench.ask(picture(plain(4, 4, [0, 0, 0])), format="objects")
    assert [one["label"] for one in found] == ["a\u2028a", "b\x0cb", "c"]


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
