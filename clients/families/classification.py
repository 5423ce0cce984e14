"""What is in the picture? For models that give a score per class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from clients.base import FORMAT, Environment, Parameter, Payload
from clients.families.base.dispatch_toml import FLAG, key, labels_key
from clients.families.base.family import show_spec
from clients.families.base.picture_input import CutKeys, PictureFamily, PictureInput, cut_sizes
from clients.images.pictures import Picture
from clients.tensors.scores import best, class_text, likeliest
from clients.triton.server import Signature


@dataclass(frozen=True, kw_only=True)
class ClassificationKeys(CutKeys):
    """The keys of this family."""

    labels: str = labels_key()
    softmax: bool = key(FLAG, "whether scores become probabilities", default=False)


@dataclass(frozen=True)
class ClassifierPlan:
    """How a model takes pictures."""

    input: PictureInput  # the input tensor
    resize: int | tuple[int, int]  # see `resized`
    crop: tuple[int, int]  # height and width, in pixels
    output: str  # the tensor with the scores


class Classification(PictureFamily[ClassificationKeys, ClassifierPlan]):
    """Answers the best classes as Triton writes them: "score:index:label", best first.

    Without labels it is "score:index".
    """

    keys_type = ClassificationKeys
    parameters = {
        "top_k": Parameter(3, 1, 1000, "how many classes to answer"),
        "format": FORMAT,
    }

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        self.labels = self.read_labels(numbers=True)

    def fit(self, signature: Signature) -> ClassifierPlan:
        taken = self.read_input(signature)
        resize, crop = cut_sizes(self, taken)
        output = self.tensor(signature.outputs, "output")
        sizes = taken.rest_of(output)
        if sum(size not in (1, -1) for size in sizes) > 1:
            raise self.misfit(f"{show_spec(output)} has no score per class")
        if max(sizes, default=-1) > 0:
            self.count_labels(self.labels, max(sizes), show_spec(output))
        return ClassifierPlan(taken, resize, crop, output.name)

    def inference_batch(self, payloads: Sequence[Payload]) -> list[Any]:
        plan = self.fitted()
        inputs = plan.input.tensor(
            self.each(payloads, lambda payload: self.cut(self.picture(payload), plan))
        )
        answer = self.infer(inputs, outputs=[plan.output])[plan.output]
        rows = answer.reshape(len(payloads), -1)
        self.count_labels(self.labels, rows.shape[1], f"`{plan.output}`")
        return [self.answer(row) for row in rows]

    def cut(self, picture: Picture, plan: ClassifierPlan) -> npt.NDArray[Any]:
        """Return a picture as the model takes it, without the batch axis."""
        return self.pixels(picture, plan.input, plan.resize, plan.crop, self.keys.interpolation)

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
