"""ResNet-50: what is in the picture?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from clients.base import FORMAT, Client, Parameter, Payload
from clients.pictures import EXAMPLE

SIDE = 224


class ResNet(Client):
    """Answers the best classes as Triton writes them: "score:index:label", best first."""

    modelname = "resnet"
    example = {"img": EXAMPLE}
    parameters = {
        "top_k": Parameter(3, 1, 1000, "how many classes to answer"),
        "format": FORMAT,
    }
    media = {"picture": "img"}

    def inference(self, payload: Payload) -> list[Any]:
        return self.inference_batch([payload])[0]

    def inference_batch(self, payloads: Sequence[Payload]) -> list[list[Any]]:
        pixels = np.stack(self.each(payloads, self.pixels))
        top_k = self.request.parameters["top_k"]
        best = self.infer({"input": pixels}, classes={"output": top_k})["output"]
        answers = [[text.decode() for text in row] for row in best]
        if self.request.parameters["format"] == "objects":
            return [[as_object(text) for text in row] for row in answers]
        return answers

    def pixels(self, payload: Payload) -> npt.NDArray[np.float32]:
        """Return the picture as the model takes it: float32 [3, 224, 224], RGB, 0 to 1."""
        return squashed(self.picture(payload)).transpose(2, 0, 1)


def as_object(text: str) -> dict[str, Any]:
    """Return the fields of one of Triton's classification strings, "score:index:label"."""
    score, index, label = text.split(":", 2)
    return {"label": label, "index": int(index), "score": float(score)}


def squashed(picture: npt.NDArray[np.uint8]) -> npt.NDArray[Any]:
    """Resize to 224×224, whatever the shape was, as Pillow does by itself: bicubic, antialiased.

    Other filters move the logits by up to 3.

    Args:
        picture: uint8 [height, width, 3].

    Returns:
        float32 [224, 224, 3], 0 to 1.

    """
    small = Image.fromarray(picture).resize((SIDE, SIDE), Image.Resampling.BICUBIC)
    return np.asarray(small, np.float32) / 255
