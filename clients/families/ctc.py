"""What does the line of text say? For recognisers that answer letters step by step (CTC)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, TypedDict

import numpy as np
import numpy.typing as npt

from clients.base import Environment, Parameter, Payload
from clients.families.base.dispatch_toml import COUNT, FLAG, INSIDE, key, one_of
from clients.families.base.picture_input import (
    PictureFamily,
    PictureInput,
    PictureKeys,
    TensorPlan,
    in_grey,
)
from clients.images.pictures import EXAMPLE_LINE, Picture
from clients.tensors.scores import softmax
from clients.triton.server import Signature

ReadLine = TypedDict("ReadLine", {"text": str, "score": float})
SPACE = " "


@dataclass(frozen=True, kw_only=True)
class CtcKeys(PictureKeys):
    """The keys of this family."""

    labels: str = key(
        INSIDE,
        "a letter per line; the blank, and a space as the last, may be missing",
        "labels.txt",
    )
    blank: str = key(one_of("first", "last"), "which class says that there is no letter", "first")
    height: int | None = key(COUNT, "of a line, in pixels; else that of the model's input", None)
    width: int = key(COUNT, "shorter ones are padded to it on the right", 1)
    max_width: int = key(COUNT, "longer lines are squeezed to it", 4800)
    softmax: bool = key(FLAG, "whether scores become probabilities", default=False)


class Ctc(PictureFamily[CtcKeys, TensorPlan]):
    """Answers the text of a line, and the mean of its letters' scores.

    CTC is connectionist temporal classification: of neighbouring steps with the same class one
    counts, and those of the blank none (https://www.cs.toronto.edu/~graves/icml_2006.pdf).
    """

    keys_type = CtcKeys
    result_type = ReadLine
    compared_as = "texts"
    example = {"img": EXAMPLE_LINE}
    taken = (3, 1)
    usual = {"fit": "line"}
    parameters = {
        "proportion": Parameter(
            0.0, 0, 1000, "a line is padded until it is so many times as wide as high"
        )
    }

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        self.blank = 0 if self.keys.blank == "first" else -1

    def fit(self, signature: Signature) -> TensorPlan:
        taken = self.read_input(signature)
        output = self.tensor(signature.outputs, "output")
        if output.datatype not in ("FP32", "FP16", "FP64"):
            raise self.misfit(f"{output} has no scores")
        height, own = self.keys.height or taken.height, taken.height
        if height == -1:
            what = f"is missing, and `{taken.name}` takes any height"
            raise self.mistake("height", what, "write that of the training, such as 48")
        if own not in (-1, height):
            what = f"is {height}, but `{taken.name}` takes {own}"
            raise self.mistake("height", what, "leave it out")
        if (classes := output.shape[-1]) > 0 and len(output.shape) > 2:
            self.letters(classes)
        return TensorPlan(taken, output.name)

    def letters(self, classes: int) -> list[str]:
        """Return what each class adds to a text, of the blank nothing.

        Raises ClientDisabled: the file has other letters than the model.
        """
        found = [*self.labels]
        if len(found) == classes - 2:
            found.append(SPACE)  # as PaddleOCR's use_space_char does
        if len(found) == classes - 1:
            found.insert(0 if self.blank == 0 else classes, "")
        if len(found) != classes:
            raise self.mistake(
                "labels",
                f"names a file of {len(self.labels)} lines, but the model has {classes} classes",
                f"give it {classes} lines, or {classes - 1} without the blank",
            )
        found[self.blank] = ""
        return found

    def inference_batch(self, payloads: Sequence[Payload]) -> list[Any]:
        """Return the texts; lines of one width share a run."""
        plan = self.fitted()
        lines = self.each(payloads, lambda payload: self.line(self.picture(payload), plan.input))
        found: dict[int, Any] = {}
        order = sorted(range(len(lines)), key=lambda at: lines[at].shape)
        for _, group in groupby(order, key=lambda at: lines[at].shape):
            places = list(group)
            inputs = plan.input.tensor([lines[at] for at in places])
            answer = self.infer(inputs, outputs=[plan.output])[plan.output]
            # [steps, 1, classes] of a model that takes one line
            rows = answer.reshape(len(places), -1, answer.shape[-1])
            letters = self.letters(answer.shape[-1])
            found.update(
                (at, self.read(row, letters)) for at, row in zip(places, rows, strict=True)
            )
        return [found[at] for at in range(len(lines))]

    def line(self, picture: Picture, taken: PictureInput) -> npt.NDArray[Any]:
        """Return a picture of a line as the model takes it, without the batch axis."""
        if taken.channels == 1:
            picture = in_grey(picture)
        keys, height, width = self.keys, self.keys.height or taken.height, taken.width
        if width == -1:  # the line's, with what is padded
            own, least = picture.shape[1] / picture.shape[0], self.request.parameters["proportion"]
            width = min(max(keys.width, int(height * max(own, least))), keys.max_width)
        box = taken.fitted(picture, (height, width))
        pixels = taken.scaled_planes(box.shades)
        if self.prepared.fit == "line" and not keys.padding:
            columns = pixels.swapaxes(0, 2 if taken.layout == "NCHW" else 1)
            columns[round(box.width * box.scale * box.wider) :] = 0
        return pixels

    def read(self, steps: npt.NDArray[Any], letters: Sequence[str]) -> dict[str, Any]:
        """Return the text of [steps, classes], with what each class adds to it, and its score."""
        steps = softmax(steps) if self.keys.softmax else steps
        classes, scores = steps.argmax(1), steps.max(1)
        kept = (classes != self.blank % len(letters)) & (np.diff(classes, prepend=-1) != 0)
        score = float(scores[kept].mean()) if kept.any() else 0.0
        return {"text": "".join(letters[at] for at in classes[kept]), "score": round(score, 6)}
