"""The base of the families for pictures: pixels in batches, as a model takes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from PIL import Image

from clients.base import Environment
from clients.families.base.dispatch_toml import (
    COLOUR,
    SIZE,
    SPREAD,
    TENSOR,
    Keys,
    key,
    one_of,
)
from clients.families.base.family import Family, P, show_spec
from clients.images.pictures import EXAMPLE, Picture
from clients.images.resizing import FILTERS, planes, resized
from clients.triton.server import Signature, TensorSpec

Colour = tuple[float, ...]

DTYPES: Mapping[str, type[np.generic]] = {
    "FP32": np.float32,
    "FP16": np.float16,
    "UINT8": np.uint8,
}
CHANNELS_AT = {"NCHW": 0, "NHWC": 2}


def filter_key() -> Any:
    """Declare the key for how pictures are resized."""
    return key(one_of(*FILTERS), "the filter, as in Pillow, with antialiasing", "bicubic")


@dataclass(frozen=True, kw_only=True)
class PixelKeys(Keys):
    """The keys of families for pictures that say what the numbers of a pixel are."""

    pixels: str | None = key(
        one_of("0-1", "0-255"), "the range of a channel; else 0-1, or UINT8's 0-255", None
    )
    mean: Colour | None = key(COLOUR, "subtracted from the channels", None)
    std: Colour | None = key(SPREAD, "divides them afterwards", None)
    channels: str = key(one_of("RGB", "BGR"), "their order", "RGB")
    layout: str = key(one_of("NCHW", "NHWC"), "the axes of the model's input", "NCHW")
    input: str = key(TENSOR, "the input, where there are several", "")


@dataclass(frozen=True, kw_only=True)
class CutKeys(PixelKeys):
    """The keys of families that resize pictures and take their middle, as in ImageNet's tests."""

    resize: int | tuple[int, int] | None = key(
        SIZE, "the new shorter side, or the whole size; else the crop's", None
    )
    crop: int | tuple[int, int] | None = key(
        SIZE, "the middle part that the model gets; else its input's size", None
    )
    interpolation: str = filter_key()
    output: str = key(TENSOR, "the output, where there are several", "")


K = TypeVar("K", bound=PixelKeys)
C = TypeVar("C", bound=CutKeys)


@dataclass(frozen=True)
class PictureInput:
    """An input tensor that takes pictures."""

    name: str  # the tensor's
    height: int  # in pixels; -1 for any
    width: int  # in pixels; -1 for any
    dtype: type[np.generic]  # of the pixels
    layout: str  # "NCHW" or "NHWC"
    channels: int  # 3, or 1 for grey
    single: bool  # whether it takes one picture, without an axis for several

    def size(self, family: Family[Any, Any], name: str) -> tuple[int, int]:
        """Return height and width of the pictures: the model's, else the key's.

        Raises ClientDisabled: the key contradicts the model, or is missing for a model of any size.
        """
        wanted = both(getattr(family.keys, name)) or (self.height, self.width)
        if -1 in wanted:
            raise family.mistake(
                name, f"is missing, and `{self.name}` takes any size", "write one, such as 224"
            )
        for came, own in zip(wanted, (self.height, self.width), strict=True):
            if own not in (came, -1):
                takes = [
                    own if own != -1 else any_will_do
                    for own, any_will_do in zip((self.height, self.width), wanted, strict=True)
                ]
                out = "" if -1 in (self.height, self.width) else ", or leave it out"
                raise family.mistake(
                    name,
                    f"is {wanted[0]}×{wanted[1]}, but `{self.name}` takes "
                    f"{self.height}×{self.width} (height×width)",
                    f"write {takes}{out}",
                )
        return wanted

    def rest_of(self, output: TensorSpec) -> tuple[int, ...]:
        """Return the sizes of an output for one picture."""
        return output.shape if self.single else output.shape[1:]

    def tensor(self, pictures: Sequence[npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
        """Return the input tensor for pictures in the input's layout; only one if `single`."""
        if self.single:
            array = pictures[0]
        elif len(pictures) == 1:
            array = pictures[0][None]  # not copied: it is 1.2 MB for a YOLOv5
        else:
            array = np.stack(pictures)
        return {self.name: array.astype(self.dtype, copy=False)}


def picture_input(
    family: Family[Any, Any],
    signature: Signature,
    layout: str = "NCHW",
    taken: Sequence[int] = (3,),
) -> PictureInput:
    """Read a model's input from its signature.

    Raises ClientDisabled: it takes no pictures, or not in this layout.
    """
    spec = family.tensor(signature.inputs, "input")
    if spec.datatype not in DTYPES or not 3 <= len(spec.shape) <= 4:
        raise family.misfit(f"{show_spec(spec)} takes no pictures")
    if signature.max_batch_size == 0 and len(spec.shape) == 4 and spec.shape[0] not in (1, -1):
        raise family.misfit(f"{show_spec(spec)} takes {spec.shape[0]} pictures, never one")
    sizes = spec.shape[-3:]
    channels = sizes[CHANNELS_AT[layout]]
    if len(spec.shape) == 3 and (signature.max_batch_size or channels == -1):
        raise family.misfit(f"{show_spec(spec)} has no axis for the channels")
    if channels not in (*taken, -1):
        other = next((one for one, at in CHANNELS_AT.items() if sizes[at] in taken), "")
        if other and hasattr(family.keys, "layout"):
            raise family.mistake(
                "layout", f'is "{layout}", but it is {show_spec(spec)}', f'write "{other}"'
            )
        wanted = " or ".join("three channels" if one == 3 else "one" for one in taken)
        raise family.misfit(f"{show_spec(spec)} has not {wanted}, in the layout {layout}")
    height, width = sizes[1:] if layout == "NCHW" else sizes[:2]
    return PictureInput(
        spec.name,
        height,
        width,
        DTYPES[spec.datatype],
        layout,
        taken[0] if channels == -1 else channels,
        single=len(spec.shape) == 3,
    )


def both(size: int | tuple[int, int] | None) -> tuple[int, int] | None:
    """Return height and width of a size; one number means a square."""
    return (size, size) if isinstance(size, int) else size


class PictureFamily(Family[K, P]):
    """Serves a model that takes the pixels of pictures."""

    example = {"img": EXAMPLE}
    media = {"picture": "img"}

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        if self.keys.pixels != "0-255" and max(self.keys.mean or (0,)) > 1:
            raise self.mistake(
                "mean",
                f"is {list(self.keys.mean or ())}, but `pixels` is 0-1",
                'write "0-255" there',
            )

    def read_input(self, signature: Signature, taken: Sequence[int] = (3, 1)) -> PictureInput:
        """Read the model's input, and compare the keys with it; `taken` are counts of channels.

        Raises ClientDisabled: it takes no such pictures, or a key does not suit it.
        """
        found = picture_input(self, signature, self.keys.layout, taken)
        for name in ("mean", "std"):
            came = len(getattr(self.keys, name) or ()) or found.channels
            if came != found.channels:
                raise self.mistake(
                    name,
                    f"has {came} numbers, but `{found.name}` takes pictures of {found.channels} "
                    "channels",
                    f"write {found.channels}",
                )
        keys = {"pixels": self.keys.pixels == "0-1", "mean": self.keys.mean, "std": self.keys.std}
        changing = next((name for name, is_set in keys.items() if is_set), "")
        if found.dtype == np.uint8 and changing:
            raise self.mistake(
                changing,
                f"is set, but `{found.name}` takes UINT8, 0 to 255, which the model scales itself",
                "leave it out, or export the model with an input of floats",
            )
        return found

    def numbers_of(self, picture: Picture, taken: PictureInput) -> npt.NDArray[Any]:
        """Return a picture of the model's size as the model takes it, without the batch axis.

        It is uint8 [height, width, 3], RGB, of a model of one channel grey already.
        """
        first = taken.layout == "NCHW"
        # Channels one after the other if the model takes them so: with interleaved channels NumPy
        # takes several times as long to subtract a mean of three numbers.
        whole = planes(picture) if first else picture
        if taken.channels == 1:
            whole = whole[:1] if first else whole[..., :1]
        if self.keys.channels == "BGR":
            whole = np.flip(whole, 0 if first else 2)
        if taken.dtype == np.uint8:  # the model scales them itself
            return whole
        pixels: npt.NDArray[Any] = whole.astype(np.float32)
        each = (taken.channels, 1, 1) if first else (taken.channels,)
        if self.keys.pixels != "0-255":
            pixels /= 255
        if self.keys.mean:
            pixels -= np.array(self.keys.mean, np.float32).reshape(each)
        if self.keys.std:
            pixels /= np.array(self.keys.std, np.float32).reshape(each)
        return pixels

    def pixels(
        self,
        picture: Picture,
        taken: PictureInput,
        resize: int | tuple[int, int],
        crop: tuple[int, int],
        interpolation: str,
    ) -> npt.NDArray[Any]:
        """Return a picture of any size as `numbers_of` does; for the others see `resized`."""
        if taken.channels == 1:  # before it is resized, as in training on grey pictures
            picture = np.asarray(Image.fromarray(picture).convert("L"))
            picture = np.repeat(picture[..., None], 3, 2)
        return self.numbers_of(resized(picture, resize, crop, interpolation), taken)


def cut_sizes(
    family: PictureFamily[C, Any], taken: PictureInput
) -> tuple[int | tuple[int, int], tuple[int, int]]:
    """Return the sizes that a picture is resized and cropped to: the keys', else the model's."""
    crop = taken.size(family, "crop")
    resize = crop if family.keys.resize is None else family.keys.resize
    if any(one < cut for one, cut in zip(both(resize) or (), crop, strict=True)):
        raise family.mistake(
            "resize", f"is {resize}, less than the crop of {crop}", "write a larger one"
        )
    return resize, crop
