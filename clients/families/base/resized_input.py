"""The base of the families that resize pictures with a filter, as most models were trained."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from clients.base import Environment, Payload
from clients.families.base.dispatch_toml import SIZE, TENSOR, key, one_of
from clients.families.base.family import show_spec
from clients.families.base.picture_input import (
    CHANNELS_AT,
    PictureFamily,
    PictureInput,
    PictureKeys,
    both,
    in_grey,
)
from clients.images.pictures import Picture
from clients.images.resizing import FILTERS, planes, resized
from clients.triton.server import Signature


@dataclass(frozen=True, kw_only=True)
class ResizedKeys(PictureKeys):
    """The keys of the families that resize pictures, and read one output."""

    interpolation: str = key(
        one_of(*FILTERS), "the filter, as in Pillow, with antialiasing", "bicubic"
    )
    output: str = key(TENSOR, "the output, where there are several", "")


@dataclass(frozen=True, kw_only=True)
class MaskKeys(ResizedKeys):
    """The keys of those that answer something for each place of the picture."""

    size: int | tuple[int, int] | None = key(
        SIZE, "that pictures are squeezed to; else that of the model's input", None
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
M = TypeVar("M", bound=MaskKeys)
C = TypeVar("C", bound=CutKeys)


@dataclass(frozen=True)
class PicturePlan:
    """How a model takes pictures; the sizes are those of `resized`."""

    input: PictureInput  # the input tensor
    resize: int | tuple[int, int]
    crop: tuple[int, int]  # height and width, in pixels
    output: str  # the tensor that is read


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


def cut_plan(family: ResizingFamily[C], taken: PictureInput, output: str) -> PicturePlan:
    """Return the plan for pictures that are resized and cropped as the keys say.

    Raises ClientDisabled: they contradict each other, or the model.
    """
    keys, crop = family.keys, taken.size(family, "crop")
    if keys.fit and keys.resize is not None:
        raise family.mistake("resize", "is there beside `fit`", "write one of the two")
    resize = crop if keys.resize is None else keys.resize
    if any(one < cut for one, cut in zip(both(resize) or (), crop, strict=True)):
        raise family.mistake(
            "resize", f"is {resize}, less than the crop of {crop}", "write a larger one"
        )
    return PicturePlan(taken, resize, crop, output)


class MaskFamily(ResizingFamily[M]):
    """Serves a model that answers something for each place of the picture."""

    drawn_as = ("image/png", "image/jpeg")

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        if self.keys.fit not in (None, "stretch"):
            what = f'is "{self.keys.fit}", but the answer is of the whole rectangle'
            raise self.mistake("fit", what, 'write "stretch", or leave it out')

    def fit(self, signature: Signature) -> PicturePlan:
        taken, output = self.read_input(signature), self.tensor(signature.outputs, "output")
        sizes = taken.rest_of(output)
        if len(sizes) not in (2, 3):
            raise self.misfit(f"{show_spec(output)} has no number for each pixel")
        channels = sizes[CHANNELS_AT[taken.layout]] if len(sizes) == 3 else 1
        self.check_channels(channels, show_spec(output))
        size = self.size_of(taken)
        return PicturePlan(taken, size, size, output.name)

    @abstractmethod
    def check_channels(self, count: int, where: str) -> None:
        """Raise ClientDisabled for an output with so many numbers for each pixel; -1 is any."""

    def size_of(self, taken: PictureInput) -> Sizes:
        """Return the height and width that pictures are squeezed to."""
        return taken.size(self, "size")

    def outputs(self, payloads: Sequence[Payload]) -> list[tuple[npt.NDArray[Any], Sizes]]:
        """Return each output as [channels, height, width]."""
        axis = CHANNELS_AT[self.keys.layout]
        return [
            (one[None] if one.ndim == 2 else np.moveaxis(one, axis, 0), size)
            for one, size in super().outputs(payloads)
        ]
