"""The base of the families for pictures: the keys for their pixels, and the input tensor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypedDict, TypeVar

import numpy as np
import numpy.typing as npt
from PIL import Image

from clients.base import Environment, Payload
from clients.families.base.dispatch_toml import (
    COLOUR,
    SHADES,
    SIZE,
    SPREAD,
    TENSOR,
    Keys,
    key,
    one_of,
)
from clients.families.base.family import Family
from clients.images.pictures import EXAMPLE, Picture
from clients.images.resizing import FILTERS, FITS, Letterbox, planes, resized
from clients.triton.server import Signature, TensorSpec

Colour = tuple[float, ...]
PicturePayload = TypedDict("PicturePayload", {"img": str})

DTYPES: Mapping[str, type[np.generic]] = {
    "FP32": np.float32,
    "FP16": np.float16,
    "UINT8": np.uint8,
}
CHANNELS_AT = {"NCHW": 0, "NHWC": 2}


@dataclass(frozen=True, kw_only=True)
class PictureKeys(Keys):
    """The keys of the families that take pictures."""

    fit: str | None = key(
        one_of(*FITS), "where a picture lies in the model's rectangle; else the family's way", None
    )
    padding: tuple[int, int, int] | None = key(
        SHADES, "the colour beside it there, in RGB; else the grey of 114", None
    )
    pixels: str | None = key(
        one_of("0-1", "0-255"), "the range of a channel; else 0-1, or UINT8's 0-255", None
    )
    mean: Colour | None = key(COLOUR, "subtracted from the channels, in the model's order", None)
    std: Colour | None = key(SPREAD, "divides them afterwards", None)
    channels: str | None = key(one_of("RGB", "BGR"), "their order; else RGB", None)
    layout: str = key(one_of(*CHANNELS_AT), "the axes of the model's input", "NCHW")
    input: str = key(TENSOR, "the input, where there are several", "")
    output: str = key(TENSOR, "the output, where there are several", "")


@dataclass(frozen=True, kw_only=True)
class ResizedKeys(PictureKeys):
    """The keys of the families that resize pictures, and read one output."""

    interpolation: str = key(
        one_of(*FILTERS), "the filter, as in Pillow, with antialiasing", "bicubic"
    )


@dataclass(frozen=True, kw_only=True)
class CutKeys(ResizedKeys):
    """The keys of those that take a picture's middle, as in ImageNet's tests."""

    resize: int | tuple[int, int] | None = key(
        SIZE, "the new shorter side, or the whole size; else the crop's", None
    )
    crop: int | tuple[int, int] | None = key(
        SIZE, "the middle part that the model gets; else its input's size", None
    )


Sizes = tuple[int, int]  # height and width, in pixels
R = TypeVar("R", bound=ResizedKeys)
C = TypeVar("C", bound=CutKeys)
Q = TypeVar("Q", bound=PictureKeys)
P = TypeVar("P")


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
    keys: PictureKeys  # how pictures are prepared

    def size(self, family: Family[Any, Any], name: str) -> tuple[int, int]:
        """Return height and width of the pictures: the model's, else the key's.

        Raises ClientDisabled: the key contradicts the model, or is missing for a model of any size.
        """
        wanted = both(getattr(family.keys, name)) or (self.height, self.width)
        if -1 in wanted:
            raise family.mistake(
                name, f"is missing, and `{self.name}` takes any size", "write one, such as 224"
            )
        own = self.height, self.width
        takes = [came if its == -1 else its for came, its in zip(wanted, own, strict=True)]
        if takes != [*wanted]:
            out = "" if -1 in own else ", or leave it out"
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

    def fitted(self, picture: Picture, size: tuple[int, int]) -> Letterbox:
        """Return a picture in a rectangle of height and width, as the keys say."""
        return Letterbox.around(picture, size, self.keys.padding, self.keys.fit or "centre")

    def scaled_planes(self, planes: Picture) -> npt.NDArray[Any]:
        """Return [3, height, width], as of a `Letterbox`, as the model takes it."""
        return self.scaled(planes if self.layout == "NCHW" else np.moveaxis(planes, 0, 2))

    def scaled(self, shades: Picture) -> npt.NDArray[Any]:
        """Return a picture's shades, in the layout of the input, as the model takes them.

        A model of one channel gets the first one.
        """
        keys, axis = self.keys, CHANNELS_AT[self.layout]
        if self.channels == 1:
            shades = shades.take([0], axis)
        if keys.channels == "BGR":
            shades = np.flip(shades, axis)
        if self.dtype == np.uint8:  # the model scales them itself
            return shades
        whole = keys.pixels == "0-255"
        pixels: npt.NDArray[Any] = shades.astype(np.float32) if whole else shades / np.float32(255)
        each = (self.channels, 1, 1) if self.layout == "NCHW" else (self.channels,)
        if keys.mean:
            pixels -= np.array(keys.mean, np.float32).reshape(each)
        if keys.std:
            pixels /= np.array(keys.std, np.float32).reshape(each)
        return pixels

    def tensor(self, pictures: Sequence[npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
        """Return the input tensor for pictures in the input's layout; only one if `single`."""
        if self.single:
            array = pictures[0]
        elif len(pictures) == 1:
            array = pictures[0][None]  # not copied: it is 1.2 MB for a YOLOv5
        else:
            array = np.stack(pictures)
        return {self.name: array.astype(self.dtype, copy=False)}


def in_grey(picture: Picture) -> Picture:
    """Return a picture in grey, as Pillow makes it, in three equal channels."""
    grey = np.asarray(Image.fromarray(picture).convert("L"))
    return np.repeat(grey[..., None], 3, 2)


def both(size: int | tuple[int, int] | None) -> tuple[int, int] | None:
    """Return height and width of a size; one number means a square."""
    return (size, size) if isinstance(size, int) else size


class PictureFamily(Family[Q, P]):
    """Serves a model that takes pictures."""

    payload_type = PicturePayload
    example = {"img": EXAMPLE}
    media = {"picture": "img"}
    taken: tuple[int, ...] = (3,)  # the counts of channels that the family can send
    fills = False  # whether pictures fill the model's rectangle, whose answer is of all of it

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        own = self.keys
        unset = {name: one for name, one in self.usual.items() if getattr(own, name) is None}
        self.prepared = keys = replace(own, **unset)
        if self.fills and keys.fit not in (None, "stretch"):
            what = f'is "{keys.fit}", but the answer is of the whole rectangle'
            raise self.mistake("fit", what, 'write "stretch", or leave it out')
        if keys.padding and keys.fit in (None, "stretch"):
            what = "is set, but pictures fill the model's rectangle, with nothing beside them"
            raise self.mistake("padding", what, 'write `fit = "centre"`, or leave it out')
        if keys.pixels != "0-255" and max(keys.mean or (0,)) > 1:
            what = f"is {list(keys.mean or ())}, but `pixels` is 0-1"
            raise self.mistake("mean", what, 'write "0-255" there')

    @property
    def usual(self) -> Mapping[str, Any]:
        """The keys for how pictures are prepared, where the file leaves them out."""
        return {}

    def read_input(self, signature: Signature) -> PictureInput:
        """Read the model's input.

        Raises ClientDisabled: it takes no pictures, not in this layout, or not prepared so.
        """
        # Old files list their weights as inputs that may be left out.
        specs = [one for one in signature.inputs if not one.optional]
        spec, layout, taken = self.tensor(specs, "input"), self.keys.layout, self.taken
        if spec.datatype not in DTYPES or not 3 <= len(spec.shape) <= 4:
            raise self.misfit(f"{spec} takes no pictures")
        if signature.max_batch_size == 0 and len(spec.shape) == 4 and spec.shape[0] not in (1, -1):
            raise self.misfit(f"{spec} takes {spec.shape[0]} pictures, never one")
        sizes = spec.shape[-3:]
        channels = sizes[CHANNELS_AT[layout]]
        if len(spec.shape) == 3 and (signature.max_batch_size or channels == -1):
            raise self.misfit(f"{spec} has no axis for the channels")
        if channels not in (*taken, -1):
            other = next((one for one, at in CHANNELS_AT.items() if sizes[at] in taken), "")
            if other:
                raise self.mistake("layout", f'is "{layout}", but it is {spec}', f'write "{other}"')
            wanted = " or ".join("three channels" if one == 3 else "one" for one in taken)
            raise self.misfit(f"{spec} has not {wanted}, in the layout {layout}")
        height, width = sizes[1:] if layout == "NCHW" else sizes[:2]
        found = PictureInput(
            spec.name,
            height,
            width,
            DTYPES[spec.datatype],
            layout,
            taken[0] if channels == -1 else channels,
            single=len(spec.shape) == 3,
            keys=self.prepared,
        )
        self.check_colours(found)
        return found

    def check_colours(self, taken: PictureInput) -> None:
        """Raise ClientDisabled where the keys for colours contradict the model."""
        keys = self.keys  # what is usual is left out for a model of bytes
        for name in ("mean", "std"):
            came = len(getattr(keys, name) or ()) or taken.channels
            if came != taken.channels:
                raise self.mistake(
                    name,
                    f"has {came} numbers, but `{taken.name}` takes pictures of {taken.channels} "
                    "channels",
                    f"write {taken.channels}",
                )
        named = {"pixels": keys.pixels == "0-1", "mean": keys.mean, "std": keys.std}
        changing = next((name for name, is_set in named.items() if is_set), "")
        if taken.dtype == np.uint8 and changing:
            raise self.mistake(
                changing,
                f"is set, but `{taken.name}` takes UINT8, 0 to 255, which the model scales itself",
                "leave it out, or export the model with an input of floats",
            )


@dataclass(frozen=True)
class TensorPlan:
    """Which tensors of a model take pictures, and are read."""

    input: PictureInput
    output: str


@dataclass(frozen=True)
class PicturePlan(TensorPlan):
    """How a model takes pictures; the sizes are those of `resized`."""

    resize: int | tuple[int, int]
    crop: tuple[int, int]  # height and width, in pixels


class ResizingFamily(PictureFamily[R, PicturePlan]):
    """Serves a model that takes resized pictures, in colour or in grey."""

    taken = (3, 1)

    def outputs(self, payloads: Sequence[Payload]) -> list[tuple[npt.NDArray[Any], Sizes]]:
        """Return the model's output for each picture, and the picture's height and width."""
        plan = self.fitted()

        def read(payload: Payload) -> tuple[npt.NDArray[Any], Sizes]:
            picture = self.picture(payload)
            return self.pixels(picture, plan), (picture.shape[0], picture.shape[1])

        pixels, sizes = zip(*self.each(payloads, read), strict=True)
        answer = self.infer(plan.input.tensor(pixels), outputs=[plan.output])[plan.output]
        return list(zip(answer[None] if plan.input.single else answer, sizes, strict=True))

    def pixels(self, picture: Picture, plan: PicturePlan) -> npt.NDArray[Any]:
        """Return a picture as the model takes it, without the batch axis."""
        taken = plan.input
        if taken.channels == 1:  # before it is resized, as in training on grey pictures
            picture = in_grey(picture)
        if taken.keys.fit:
            return taken.scaled_planes(taken.fitted(picture, plan.crop).shades)
        small = resized(picture, plan.resize, plan.crop, self.keys.interpolation)
        # Channels one after the other if the model takes them so: with interleaved channels NumPy
        # takes several times as long to subtract a mean of three numbers.
        return taken.scaled(planes(small) if taken.layout == "NCHW" else small)


def cut_plan(
    family: ResizingFamily[C], signature: Signature
) -> tuple[PicturePlan, TensorSpec, tuple[int, ...]]:
    """Return the plan to resize and crop as the keys say, the output, and its sizes for a picture.

    Raises ClientDisabled: they contradict each other, or the model.
    """
    taken, output = family.read_input(signature), family.tensor(signature.outputs, "output")
    keys, crop = family.keys, taken.size(family, "crop")
    if keys.fit and keys.resize is not None:
        raise family.mistake("resize", "is there beside `fit`", "write one of the two")
    resize = crop if keys.resize is None else keys.resize
    if any(one < cut for one, cut in zip(both(resize) or (), crop, strict=True)):
        raise family.mistake(
            "resize", f"is {resize}, less than the crop of {crop}", "write a larger one"
        )
    return PicturePlan(taken, output.name, resize, crop), output, taken.rest_of(output)
