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
    FLAG,
    SIZE,
    TENSOR,
    key,
    labels_key,
    one_of,
)
from clients.families.base.family import Family, show_spec
from clients.families.base.picture_input import (
    PictureInput,
    PictureKeys,
    both,
    complete_keys,
    picture_input,
)
from clients.images.pictures import EXAMPLE, Picture
from clients.images.resizing import FILTERS, planes, resized
from clients.tensors.scores import best, class_text, likeliest
from clients.triton.server import Signature


@dataclass(frozen=True, kw_only=True)
class ClassificationKeys(PictureKeys):
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
    softmax: bool = key(FLAG, "whether scores become probabilities", default=False)
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
        self.prepared = complete_keys(self)

    def fit(self, signature: Signature) -> ClassifierPlan:
        taken = picture_input(self, signature, self.prepared, (3, 1))
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
        crop = taken.size(self, "crop")
        if self.keys.fit and self.keys.resize is not None:
            raise self.mistake("resize", "is there beside `fit`", "write one of the two")
        resize = crop if self.keys.resize is None else self.keys.resize
        if any(one < cut for one, cut in zip(both(resize) or (), crop, strict=True)):
            raise self.mistake(
                "resize", f"is {resize}, less than the crop of {crop}", "write a larger one"
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
        if taken.channels == 1:  # before it is resized, as in training on grey pictures
            picture = np.asarray(Image.fromarray(picture).convert("L"))
            picture = np.repeat(picture[..., None], 3, 2)
        if taken.keys.fit:
            return taken.scaled_planes(taken.fitted(picture, plan.crop).shades)
        small = resized(picture, plan.resize, plan.crop, self.keys.interpolation)
        # Channels one after the other if the model takes them so: with interleaved channels NumPy
        # takes several times as long to subtract a mean of three numbers.
        return taken.scaled(planes(small) if taken.layout == "NCHW" else small)

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
