"""Which part of the picture is what? For models with classes, or an opacity, of each pixel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NotRequired, TypedDict

import cv2
import numpy as np
import numpy.typing as npt
from PIL import Image

from clients.base import Parameter, Payload
from clients.errors import ModelFailed
from clients.families.base.dispatch_toml import key, labels_key, one_of
from clients.families.base.mask_output import MaskFamily, MaskKeys
from clients.families.base.picture_input import Sizes
from clients.images.drawing import as_base64, as_file, as_mask, from_base64, lay_over, save_picture
from clients.images.pictures import room

MOST_CLASSES = 256  # that the pixels of a PNG with a palette can tell apart
BYTES_PER_PIXEL = 16  # of a mask while it is made: floats of two classes, and the mask twice
BEYOND = 0.5  # by how much opacities may miss 0 to 1, as those in int8 do a little
LARGEST_LOGIT = 80.0  # beyond which the exponential is infinite in single precision

Mask = npt.NDArray[np.uint8]  # [height, width]
ShownClass = TypedDict("ShownClass", {"label": NotRequired[str], "index": int, "share": float})
MaskFile = TypedDict(
    "MaskFile", {"width": int, "height": int, "mask": str, "classes": NotRequired[list[ShownClass]]}
)


@dataclass(frozen=True, kw_only=True)
class SegmentationKeys(MaskKeys):
    """The keys of this family."""

    labels: str = labels_key()
    range: str = key(
        one_of("0-1", "logits", "relative"),
        "the numbers of an opacity; relative ones are spread over 0 to 1",
        "0-1",
    )


class Segmentation(MaskFamily[SegmentationKeys]):
    """Answers the picture's mask, a PNG of its size in base64.

    Of classes the PNG has a palette, and its pixels are their numbers; `classes` has the share of
    each that is there, the largest first. A model with one number for each pixel gives opacities:
    the PNG is grey, and `share` is their mean.
    """

    keys_type = SegmentationKeys
    result_type = MaskFile
    compared_as = "pictures"
    parameters = {
        "drawn": Parameter(
            "auto",
            meaning="a picture as the answer is the mask, or the picture sent below it; auto is "
            "the mask of classes, and the picture cut out by opacities",
            choices=("auto", "mask", "over"),
        )
    }

    def check_channels(self, count: int, where: str) -> None:
        if count > MOST_CLASSES:
            raise self.misfit(f"{where} has more than {MOST_CLASSES} classes")
        if count > 1:
            self.count_labels(count, where)

    def inference_batch(self, payloads: Sequence[Payload]) -> list[Any]:
        return [self.answer(output, size) for output, size in self.outputs(payloads)]

    def answer(self, output: npt.NDArray[Any], size: Sizes) -> dict[str, Any]:
        """Return the answer for a picture of this size, from [channels, height, width]."""
        found: dict[str, Any] = {"width": size[1], "height": size[0]}
        with room.taken(size[0] * size[1], self._environment.max_pixels, BYTES_PER_PIXEL):
            if len(output) == 1 and output.dtype.kind == "f":
                alpha = enlarged(self.opacities(output[0]), size)
                found["share"] = round(float(alpha.mean()) / 255, 6)
                mask = Image.fromarray(alpha)
            else:
                one_each = self.numbered if len(output) == 1 else self.best
                classes = one_each(output, size)
                found["classes"] = self.shares(classes)
                mask = as_mask(classes)
            found["mask"] = as_base64(mask)
        return found

    def opacities(self, numbers: npt.NDArray[Any]) -> Mask:
        """Return the opacity of each pixel: 0 to 255, in the model's size.

        Raises ModelFailed: the numbers are not what the key `range` says.
        """
        numbers = numbers.astype(np.float32)
        if self.keys.range == "logits":
            numbers = 1 / (1 + np.exp(-np.clip(numbers, -LARGEST_LOGIT, LARGEST_LOGIT)))
        elif self.keys.range == "relative":
            numbers = (numbers - numbers.min()) / (np.ptp(numbers) or 1)
        least, greatest = numbers.min(), numbers.max()
        if not (least >= -BEYOND and greatest <= 1 + BEYOND):  # not a number is neither
            raise ModelFailed(
                f"the mask has numbers from {least:g} to {greatest:g}, not from 0 to 1",
                hint='write `range = "logits"` or "relative" in dispatch.toml',
            )
        return np.asarray(np.clip(np.rint(numbers * 255), 0, 255), np.uint8)

    def numbered(self, output: npt.NDArray[Any], size: Sizes) -> Mask:
        """Return the class of each pixel, from the numbers of classes: [1, height, width].

        Raises ModelFailed: one is no class.
        """
        least, greatest = output.min(), output.max()
        if not 0 <= least <= greatest < (len(self.labels) or MOST_CLASSES):
            raise ModelFailed(
                f"the mask has classes from {least} to {greatest}",
                hint="give `labels` a line for each class, from that of class 0 on",
            )
        return enlarged(output[0].astype(np.uint8), size, cv2.INTER_NEAREST)

    def best(self, scores: npt.NDArray[Any], size: Sizes) -> Mask:
        """Return the class of each pixel, from their scores: [classes, height, width].

        The scores are enlarged before the best is taken, as in transformers and torchvision; only
        those of classes that are the best somewhere, of mostly ten in a hundred.

        Raises ModelFailed: a score is not a number.
        """
        self.count_labels(len(scores), "the output")
        if len(scores) > MOST_CLASSES or np.isnan(scores).any():
            raise ModelFailed("the mask has scores that are no numbers, or too many classes")
        classes, most = np.zeros(size, np.uint8), np.full(size, -np.inf, np.float32)
        for index in np.unique(scores.argmax(0)).tolist():
            self.request.time_left()
            its = enlarged(scores[index].astype(np.float32), size)
            classes[its > most] = index
            np.maximum(most, its, out=most)
        return classes

    def shares(self, classes: Mask) -> list[dict[str, Any]]:
        """Return the share of each class that is there, the largest first."""
        found, counts = (one.tolist() for one in np.unique(classes, return_counts=True))
        ranked = sorted(zip(found, counts, strict=True), key=lambda one: -one[1])
        return [self.named(index, count / classes.size, field="share") for index, count in ranked]

    def draw(self, payload: Payload, result: Any, media_type: str) -> bytes:
        how = self.request.parameters["drawn"]
        if how == "mask" or (how == "auto" and "classes" in result):
            return as_file(result["mask"], media_type)
        with room.kept():
            whole = lay_over(self.picture(payload), from_base64(result["mask"]))
            return save_picture(whole, media_type)


def enlarged(array: npt.NDArray[Any], size: Sizes, way: int = cv2.INTER_LINEAR) -> npt.NDArray[Any]:
    """Return [height, width] in the size of the picture."""
    return np.asarray(cv2.resize(array, size[::-1], interpolation=way))
