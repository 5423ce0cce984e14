"""The families whose answers are vectors of pictures, masks and other pictures."""

from __future__ import annotations

import base64
import io
from typing import Any

import numpy as np
import pytest
from PIL import Image

from clients.errors import BadPayload, ClientDisabled, ModelFailed
from clients.request import Request
from clients.triton.server import Signature, TensorSpec
from dispatcher.codecs.responses import available_types, negotiate
from dispatcher.model_request import ModelRequest
from tests.support.family_bench import Bench, bench, picture, plain, signature

__all__ = ["bench"]  # the fixture

NHWC = signature({"x": (4, 4, 3)}, {"y": (4, 4, 5)})
ANY_SIZE = signature({"x": (3, -1, -1)}, {"y": (3, -1, -1)})


def opened(text: str) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(text))))


def masks(*shape: int, datatype: str = "FP32") -> Signature:
    return Signature(
        4,
        (TensorSpec("x", "FP32", (-1, 3, 4, 4)),),
        (TensorSpec("y", datatype, (-1, *shape)),),
        shares_runs=True,
    )


def drawn(bench: Bench, payload: dict[str, Any], media_type: str, **parameters: Any) -> Image.Image:
    client = bench.client()
    with Request(parameters=client.read_parameters(parameters)).active():
        file = client.draw(payload, client.inference(payload), media_type)
    return Image.open(io.BytesIO(file))


# Vectors


@pytest.mark.parametrize(
    ("toml", "output", "expected"),
    [
        ("normalised = false", [3, 4], [3, 4]),
        ("", [3, 4], [0.6, 0.8]),
        ("", [[[3]], [[4]]], [0.6, 0.8]),  # [2, 1, 1], of a network of convolutions
        ('pooling = "first"\nnormalised = false', [[3, 4], [1, 2], [2, 3]], [3, 4]),
        ('pooling = "mean"\nnormalised = false', [[3, 4], [1, 2], [2, 3]], [2, 3]),
        # Two numbers at each of four places
        ('pooling = "mean"\nnormalised = false', [[[1, 2], [3, 4]], [[0, 0], [0, 4]]], [2.5, 1]),
    ],
)
def test_a_picture_has_a_vector(
    bench: Bench, toml: str, output: list[Any], expected: list[float]
) -> None:
    shape = np.shape(output)
    bench.set_up(f'family = "picture-embedding"\n{toml}', signature({"x": (3, 8, 8)}, {"y": shape}))
    bench.answers(lambda inputs: {"y": np.array([output] * len(inputs["x"]), np.float32)})
    assert bench.ask(picture(plain(4, 4, [0, 0, 0]))) == pytest.approx(expected)


def test_pooling_is_compared_with_the_model(bench: Bench) -> None:
    tensors = signature({"x": (3, 8, 8)}, {"y": (50, 2)})
    bench.set_up('family = "picture-embedding"', tensors)
    with pytest.raises(ClientDisabled, match=r"`pooling` is .*, but .* write .first"):
        bench.ask(picture(plain(4, 4, [0, 0, 0])))


# Classes of pixels

# Four columns: the left one is class 0, the right ones are class 2; class 1 is second everywhere.
SCORES = np.zeros((3, 4, 4), np.float32)
SCORES[0, :, :1], SCORES[2, :, 1:], SCORES[1] = 9, 9, 6


def test_the_class_of_each_pixel_in_the_size_sent(bench: Bench) -> None:
    """Scores are enlarged before the best is taken: the edge is between the columns' middles.

    Of 16 columns the middles of the model's first two are at 2 and 6; the scores of class 0 and 2
    cross at 4, where those of class 1, which is best nowhere in the model's answer, are left out.
    """
    bench.set_up('family = "segmentation"\nlabels = "labels.txt"', masks(3, 4, 4))
    bench.answers(lambda inputs: {"y": np.stack([SCORES] * len(inputs["x"]))})
    found = bench.ask(picture(plain(8, 16, [200, 100, 0])))
    assert (found["width"], found["height"]) == (16, 8)
    assert found["classes"] == [
        {"label": "c", "index": 2, "share": 0.75},
        {"label": "a", "index": 0, "share": 0.25},
    ]
    assert opened(found["mask"]).tolist() == [[0] * 4 + [2] * 12] * 8


def test_scores_are_enlarged_as_pillow_enlarges_them(bench: Bench) -> None:
    scores = np.random.default_rng(0).normal(size=(5, 4, 4)).astype(np.float32)
    bench.set_up('family = "segmentation"\nlayout = "NHWC"\nlabels = "none.txt"', NHWC)
    (bench.folder / "none.txt").write_text("a\nb\nc\nd\ne\n")
    bench.answers(lambda inputs: {"y": np.moveaxis(scores, 0, 2)[None]})
    found = opened(bench.ask(picture(plain(70, 100, [0, 0, 0])))["mask"])
    bilinear = Image.Resampling.BILINEAR
    wide = [np.asarray(Image.fromarray(one).resize((100, 70), bilinear)) for one in scores]
    seen = np.unique(scores.argmax(0))
    expected = seen[np.array(wide)[seen].argmax(0)]
    assert (found == expected).mean() > 0.999  # two scores may be equal but for rounding
    # Classes that are the best nowhere in the model's answer are left out; there are few.
    assert (found == np.array(wide).argmax(0)).mean() > 0.97


def test_classes_may_be_numbered_by_the_model(bench: Bench) -> None:
    classes = np.array([[[0, 0, 1, 1]] * 4], np.int64)
    bench.set_up('family = "segmentation"', masks(1, 4, 4, datatype="INT64"))
    bench.answers(lambda inputs: {"y": classes[None]})
    found = bench.ask(picture(plain(2, 8, [0, 0, 0])))
    assert [one["share"] for one in found["classes"]] == [0.5, 0.5]
    assert opened(found["mask"]).tolist() == [[0] * 4 + [1] * 4] * 2
    bench.answers(lambda inputs: {"y": classes[None] + 2})
    with pytest.raises(ModelFailed, match="classes from 2 to 3"):
        bench.ask(picture(plain(2, 8, [0, 0, 0])))


def test_a_mask_of_classes_is_drawn_alone_or_over_the_picture(bench: Bench) -> None:
    bench.set_up('family = "segmentation"', masks(3, 4, 4))
    bench.answers(lambda inputs: {"y": SCORES[None]})
    payload = picture(plain(8, 16, [200, 100, 0]))
    mask = drawn(bench, payload, "image/png")
    assert (mask.mode, mask.size) == ("P", (16, 8))
    over = np.asarray(drawn(bench, payload, "image/png", drawn="over"))
    assert over[0, 0].tolist() == [200, 100, 0]  # class 0 is not tinted
    palette = np.array(mask.getpalette()).reshape(-1, 3)
    assert np.abs(over[0, 15] - (palette[2] + [200, 100, 0]) / 2).max() <= 1
    offered = available_types(ModelRequest("m", [payload]), bench.client())
    assert negotiate("image/*", offered) == "image/png"
    assert negotiate("image/jpeg", offered) == "image/jpeg"


# Opacities


@pytest.mark.parametrize(
    ("toml", "numbers"),
    [
        ("", [0, 1, 0.2, 1]),
        ('range = "logits"', [-90, 90, -1.3862944, 90]),  # the logit of 0.2
        ('range = "relative"', [-5, 5, -3, 5]),
    ],
)
def test_an_opacity_of_each_pixel(bench: Bench, toml: str, numbers: list[float]) -> None:
    bench.set_up(f'family = "segmentation"\n{toml}', masks(1, 4, 4))
    bench.answers(lambda inputs: {"y": np.array([[[numbers] * 4]], np.float32)})
    found = bench.ask(picture(plain(4, 4, [200, 100, 0])))
    assert opened(found["mask"]).tolist() == [[0, 255, 51, 255]] * 4
    assert found["share"] == pytest.approx(0.55)
    assert "classes" not in found


def test_other_numbers_are_no_opacities(bench: Bench) -> None:
    bench.set_up('family = "segmentation"', masks(4, 4))
    bench.answers(lambda inputs: {"y": np.full((1, 4, 4), -7, np.float32)})
    with pytest.raises(ModelFailed) as caught:
        bench.ask(picture(plain(4, 4, [0, 0, 0])))
    assert 'write `range = "logits"` or "relative"' in caught.value.hint


def test_the_picture_is_cut_out(bench: Bench) -> None:
    bench.set_up('family = "segmentation"', masks(1, 4, 4))
    bench.answers(lambda inputs: {"y": np.array([[[[0, 0, 1, 1]] * 4]], np.float32)})
    payload = picture(plain(4, 4, [200, 100, 0]))
    cut = np.asarray(drawn(bench, payload, "image/png"))
    assert cut[:, [0, 3]].tolist() == [[[200, 100, 0, 0], [200, 100, 0, 255]]] * 4
    jpeg = drawn(bench, picture(plain(64, 64, [200, 100, 0])), "image/jpeg")
    assert jpeg.getpixel((0, 0)) == (255, 255, 255)
    assert drawn(bench, payload, "image/png", drawn="mask").mode == "L"


# Pictures


def enlarged(inputs: Any) -> Any:
    return {"y": inputs["x"].repeat(2, 2).repeat(2, 3)}


def test_a_picture_becomes_a_larger_one(bench: Bench) -> None:
    """Of 5×3 pixels the model makes 10×6."""
    seen = []
    bench.answers(lambda inputs: (seen.append(inputs["x"].shape), enlarged(inputs))[1])
    bench.set_up('family = "picture-to-picture"\nchannels = "BGR"', ANY_SIZE)
    pixels = np.arange(45).reshape(3, 5, 3) * 5
    found = bench.ask(picture(pixels))
    assert seen == [(1, 3, 3, 5)]
    assert (found["width"], found["height"]) == (10, 6)
    assert opened(found["picture"]).tolist() == pixels.repeat(2, 0).repeat(2, 1).tolist()
    assert drawn(bench, picture(pixels), "image/jpeg").size == (10, 6)


def test_sizes_are_limited(bench: Bench) -> None:
    bench.answers(lambda inputs: {"y": np.broadcast_to(np.float32(0), (1, 3, 10**4, 10**4))})
    bench.set_up('family = "picture-to-picture"\nmax_side = 200', ANY_SIZE)
    with pytest.raises(BadPayload, match="the answer would be a picture of 10000×10000 pixels"):
        bench.ask(picture(plain(200, 200, [0, 0, 0])))
    with pytest.raises(BadPayload) as caught:
        bench.ask(picture(plain(2, 201, [0, 0, 0])))
    assert "expected at most 200 on either side (`max_side`" in caught.value.hint


@pytest.mark.parametrize(
    ("toml", "numbers", "expected"),
    [
        ("", 0.4, 102),
        ('range = "-1-1"', -0.2, 102),
        ('pixels = "0-255"', 102, 102),
        ('range = "0-255"', 102, 102),
    ],
)
def test_a_model_of_one_size_answers_in_that_of_the_picture(
    bench: Bench, toml: str, numbers: float, expected: int
) -> None:
    bench.set_up(f'family = "picture-to-picture"\n{toml}', masks(3, 2, 2))
    bench.answers(lambda inputs: {"y": np.full((len(inputs["x"]), 3, 2, 2), numbers, np.float32)})
    assert opened(bench.ask(picture(plain(5, 9, [0, 0, 0])))["picture"]).tolist() == (
        plain(5, 9, [expected] * 3).tolist()
    )


def test_depths_are_spread_over_sixteen_bits(bench: Bench) -> None:
    depths = np.linspace(3, 11, 16, dtype=np.float32).reshape(4, 4)
    bench.set_up('family = "picture-to-picture"\nrange = "relative"', masks(4, 4))
    bench.answers(lambda inputs: {"y": depths[None]})
    found = bench.ask(picture(plain(4, 4, [0, 0, 0])))
    assert (found["least"], found["greatest"]) == (3, 11)
    grey = opened(found["picture"])
    assert grey.dtype == np.uint16
    assert np.abs(found["least"] + grey / 65535 * 8 - depths).max() < 1e-4
    assert drawn(bench, picture(plain(4, 4, [0, 0, 0])), "image/jpeg").getextrema() == (
        ((0, 255),) * 3
    )


def test_numbers_of_another_range_are_no_picture(bench: Bench) -> None:
    bench.set_up('family = "picture-to-picture"', masks(3, 4, 4))
    bench.answers(lambda inputs: {"y": np.full((1, 3, 4, 4), 128, np.float32)})
    with pytest.raises(ModelFailed, match="numbers from 128 to 128, not 0-1"):
        bench.ask(picture(plain(4, 4, [0, 0, 0])))


def test_a_mask_of_a_letterboxed_picture_is_refused(bench: Bench) -> None:
    bench.set_up('family = "segmentation"\nfit = "centre"', masks(1, 4, 4))
    assert "the answer is of the whole rectangle" in bench.registry().broken["m"]
