"""Pictures made smaller, compared with Pillow's own resize."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from PIL import Image

from clients.images import resizing
from clients.images.resizing import BAND, FILTERS, Picture, resized
from tests.conftest import PICTURES


@pytest.fixture(autouse=True, params=["as installed", "without the resampler"])
def _resampler(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Resize by Pillow too, as on Linux on Arm, for which the resampler has no wheel."""
    if request.param != "as installed":
        monkeypatch.setattr(resizing, "fast", None)


def photograph(name: str, turns: int = 0) -> Picture:
    return np.rot90(np.asarray(Image.open(PICTURES / name).convert("RGB")), turns).copy()


def noise(*size: int) -> Picture:
    return np.random.default_rng(2).integers(0, 255, (*size, 3), np.uint8)


def pillow(pixels: Picture, size: tuple[int, int], name: str) -> Picture:
    """Return what Pillow makes of it; `size` is width and height."""
    return np.asarray(Image.fromarray(pixels).resize(size, Image.Resampling[name.upper()]))


def apart(one: Picture, other: Picture) -> np.ndarray:
    return np.abs(one.astype(int) - other)


LARGE = noise(900, 1500)
assert LARGE.nbytes > 3 * BAND


@pytest.mark.parametrize("name", FILTERS)
@pytest.mark.parametrize(
    "pixels",
    [
        photograph("chelsea.png"),
        photograph("coffee.png"),
        noise(100, 130),
        noise(50, 300),
        LARGE,
        noise(40, 20_000),
    ],
    ids=["chelsea", "coffee", "upwards", "up and down", "bands", "wide"],
)
def test_squashing_is_pillow_s_own_resize(pixels: Picture, name: str) -> None:
    expected = pillow(pixels, (224, 224), name)
    difference = apart(resized(pixels, (224, 224), (224, 224), name), expected)
    assert difference.max() <= (0 if name == "nearest" else 2)
    assert difference.mean() < 0.03


@pytest.mark.parametrize("name", FILTERS)
@pytest.mark.parametrize("file", ["chelsea.png", "coffee.png"])
@pytest.mark.parametrize("turns", [0, 1])
def test_the_middle_is_what_pillow_resizes_and_crops(name: str, file: str, turns: int) -> None:
    """But for a quarter of a shade in portraits: Pillow 13 makes columns first where it is less."""
    pixels = photograph(file, turns)
    height, width = pixels.shape[:2]
    size = (256 * width // min(height, width), 256 * height // min(height, width))
    left, top = round((size[0] - 224) / 2), round((size[1] - 224) / 2)
    expected = pillow(pixels, size, name)[top : top + 224, left : left + 224]
    assert apart(resized(pixels, 256, (224, 224), name), expected).mean() < 0.3


def test_what_is_cut_off_does_not_matter() -> None:
    tower = noise(4000, 256)
    middle = tower.copy()
    middle[:1800] = middle[2200:] = 0
    assert np.array_equal(resized(tower, 256, (224, 224)), resized(middle, 256, (224, 224)))


def test_a_crop_that_is_larger_is_refused() -> None:
    with pytest.raises(ValueError, match=r"the crop is \(224, 224\).*resized to \(223, 300\)"):
        resized(noise(10, 10), (223, 300), (224, 224))


@pytest.mark.parametrize("size", [(1, 5_000_000), (5_000_000, 1), (40, 200_000)])
@pytest.mark.parametrize("resize", [256, (224, 224)])
def test_a_line_of_pixels_does_not_become_gigabytes(
    size: tuple[int, int], resize: int | tuple[int, int]
) -> None:
    line = np.full((*size, 3), 7, np.uint8)
    tracemalloc.start()
    try:
        small = resized(line, resize, (224, 224))
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert small.shape == (224, 224, 3)
    assert (small == 7).all()
    assert most < 4 * line.nbytes
