"""What is in the picture? For models that give a score per class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from clients.base import FORMAT, Environment, Parameter, Payload
from clients.families.base.dispatch_toml import (
    COLOUR,
    FLAG,
    SIZE,
    SPREAD,
    TENSOR,
    Keys,
    key,
    labels_key,
    one_of,
)
from clients.families.base.family import Family, show_spec
from clients.families.base.picture_input import PictureInput, both, picture_input
from clients.images.pictures import EXAMPLE, Picture
from clients.images.resizing import FILTERS, planes, resized
from clients.tensors.scores import best, class_text, likeliest
from clients.triton.server import Signature

Colour = tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class ClassificationKeys(Keys):
    """The keys of this family."""

    labels: str = labels_key()
    resize: int | tuple[int, int] | None = key(
        SIZE, "the new shorter side, or the whole size; else the crop's", None
    )
    crop: int | tuple[int, int] | None = key(
        SIZE, "the middle part that the model gets; else its input's size", None
    )
    interpolation: str = key(
        one_of(*FILTERS), "the filter, as in Pillow, with antialiasing", "bicubic"
    )
    pixels: str | None = key(
        one_of("0-1", "0-255"), "the range of a channel; else 0-1, or UINT8's 0-255", None
    )
    mean: Colour | None = key(COLOUR, "subtracted from the channels", None)
    std: Colour | None = key(SPREAD, "divides them afterwards", None)
    channels: str = key(one_of("RGB", "BGR"), "their order", "RGB")
    layout: str = key(one_of("NCHW", "NHWC"), "the axes of the model's input", "NCHW")
    softmax: bool = key(FLAG, "whether scores become probabilities", default=False)
    input: str = key(TENSOR, "the input, where there are several", "")
    output: str = key(TENSOR, "the output, where there are several", "")


@dataclass(frozen=True)
class ClassifierPlan:
    """How a model takes pictures."""

    input: PictureInput  # the input tensor
    resize: int | tuple[int, int]  # see `resized`
    crop: tuple[int, int]  # height and width, in pixels
    output: str  # the tensor with the scores


class Classification(Family[ClassificationKeys, ClassifierPlan]):
    """Answers the best classes as Triton writes them: "score:index:label", best first.

    Without labels it is "score:index".
    """

    keys_type = ClassificationKeys
    example = {"img": EXAMPLE}
    parameters = {
        "top_k": Parameter(3, 1, 1000, "how many classes to answer"),
        "format": FORMAT,
    }
    media = {"picture": "img"}

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        self.labels = self.read_labels(numbers=True)
        if self.keys.pixels != "0-255" and max(self.keys.mean or (0,)) > 1:
            raise self.mistake(
                "mean",
                f"is {list(self.keys.mean or ())}, but `pixels` is 0-1",
                'write "0-255" there',
            )

    def fit(self, signature: Signature) -> ClassifierPlan:
        taken = picture_input(self, signature, self.keys.layout, (3, 1))
        resize, crop = self.sizes(taken)
        output = self.tensor(signature.outputs, "output")
        sizes = taken.rest_of(output)
        if sum(size not in (1, -1) for size in sizes) > 1:
            raise self.misfit(f"{show_spec(output)} has no score per class")
        if max(sizes, default=-1) > 0:
            self.count_labels(self.labels, max(sizes), show_spec(output))
        return ClassifierPlan(taken, resize, crop, output.name)

    def sizes(self, taken: PictureInput) -> tuple[int | tuple[int, int], tuple[int, int]]:
        """Return the sizes that a picture is resized and cropped to."""
        for name in ("mean", "std"):
            came = len(getattr(self.keys, name) or ()) or taken.channels
            if came != taken.channels:
                raise self.mistake(
                    name,
                    f"has {came} numbers, but `{taken.name}` takes pictures of {taken.channels} "
                    "channels",
                    f"write {taken.channels}",
                )
        crop = taken.size(self, "crop")
        resize = crop if self.keys.resize is None else self.keys.resize
        if any(one < cut for one, cut in zip(both(resize) or (), crop, strict=True)):
            raise self.mistake(
                "resize", f"is {resize}, less than the crop of {crop}", "write a larger one"
            )
        keys = {"pixels": self.keys.pixels == "0-1", "mean": self.keys.mean, "std": self.keys.std}
        changing = next((name for name, is_set in keys.items() if is_set), "")
        if taken.dtype == np.uint8 and changing:
            raise self.mistake(
                changing,
                f"is set, but `{taken.name}` takes UINT8, 0 to 255, which the model scales itself",
                "leave it out, or export the model with an input of floats",
            )
        return resize, crop

    def inference_batch(self, payloads: Sequence[Payload]) -> list[Any]:
        plan = self.fitted()
        inputs = plan.input.tensor(
            self.each(payloads, lambda payload: self.pixels(self.picture(payload), plan))
        )
        answer = self.infer(inputs, outputs=[plan.output])[plan.output]
        rows = answer.reshape(len(payloads), -1)
        self.count_labels(self.labels, rows.shape[1], f"`{plan.output}`")
        return [self.answer(row) for row in rows]

    def pixels(self, picture: Picture, plan: ClassifierPlan) -> npt.NDArray[Any]:
        """Return a picture as the model takes it, without the batch axis."""
        taken = plan.input
        grey = taken.channels == 1
        if grey:  # before it is resized, as in training on grey pictures
            picture = np.asarray(Image.fromarray(picture).convert("L"))
            picture = np.repeat(picture[..., None], 3, 2)
        small = resized(picture, plan.resize, plan.crop, self.keys.interpolation)
        first = taken.layout == "NCHW"
        # Channels one after the other if the model takes them so: with interleaved channels NumPy
        # takes several times as long to subtract a mean of three numbers.
        whole = planes(small) if first else small
        if grey:
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

    def answer(self, scores: npt.NDArray[Any]) -> list[Any]:
        """Return the best classes of one picture; `scores` is [classes]."""
        ranked = likeliest if self.keys.softmax else best
        found = ranked(scores, self.request.parameters["top_k"])
        # Six digits, as Triton's own classification extension writes them.
        if self.request.parameters["format"] == "objects":
            return [self.named(index, score) for index, score in found]
        labels = [
            f"{index}:{self.labels[index]}" if self.labels else f"{index}" for index, _ in found
        ]
        return [class_text(score, label) for (_, score), label in zip(found, labels, strict=True)]
