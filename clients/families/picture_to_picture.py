"""Another picture from a picture: larger, in another style, without noise, or of its depth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypedDict

import cv2
import numpy as np
import numpy.typing as npt
from PIL import Image

from clients.base import Payload
from clients.errors import BadPayload, ModelFailed
from clients.families.base.dispatch_toml import COUNT, key, one_of
from clients.families.base.mask_output import MaskFamily, MaskKeys
from clients.families.base.picture_input import PictureInput, PicturePlan, Sizes
from clients.images.drawing import as_base64, as_file
from clients.images.pictures import Picture, room

BYTES_PER_PIXEL = 12  # of an answer while it is made: three channels, its file and that as base64
WITH_FLOATS = 36  # where the model's numbers are as many: these, their shares, and whole ones
BEYOND = 1.0  # by how much of its range a model may miss it, as one that sharpens does

RANGES = {"0-1": (0.0, 1.0), "0-255": (0.0, 255.0), "-1-1": (-1.0, 1.0)}
RELATIVE = "relative"
ANY_SIZE = (-1, -1)
MadePicture = TypedDict("MadePicture", {"width": int, "height": int, "picture": str})


@dataclass(frozen=True, kw_only=True)
class PictureToPictureKeys(MaskKeys):
    """The keys of this family."""

    max_side: int = key(COUNT, "the longest side of a picture that keeps its own size", 1024)
    range: str | None = key(
        one_of(*RANGES, RELATIVE),
        "of the answer's numbers; relative is from their least to their greatest; else `pixels`",
        None,
    )


class PictureToPicture(MaskFamily[PictureToPictureKeys]):
    """Answers a picture, a PNG in base64: of the size sent, or larger where the model enlarges.

    With the key `range = "relative"` a grey one has 16 bits, and `least` and `greatest` are what
    black and white stand for.
    """

    keys_type = PictureToPictureKeys
    result_type = MadePicture
    compared_as = "pictures"

    def check_channels(self, count: int, where: str) -> None:
        if count not in (1, 3, -1):
            raise self.misfit(f"{where} is no picture of three channels, or one")

    def size_of(self, taken: PictureInput) -> Sizes:
        """Return the size that pictures are squeezed to; `ANY_SIZE` if they keep their own."""
        if self.keys.size is None and (taken.height, taken.width) == ANY_SIZE:
            return ANY_SIZE
        return super().size_of(taken)

    @property
    def max_batch_size(self) -> int:
        """The most payloads of a list in one run; 1 if pictures keep their own sizes."""
        return 1 if self.fitted().crop == ANY_SIZE else super().max_batch_size

    def inference_batch(self, payloads: Sequence[Payload]) -> list[Any]:
        return [
            self.answer(output, size, position)
            for position, (output, size) in enumerate(self.outputs(payloads))
        ]

    def pixels(self, picture: Picture, plan: PicturePlan) -> npt.NDArray[Any]:
        if plan.crop == ANY_SIZE:
            high, wide = picture.shape[:2]
            if max(high, wide) > (most := self.keys.max_side):
                raise BadPayload(
                    f"`img` is a picture of {wide}×{high} pixels",
                    hint=f"expected at most {most} on either side (`max_side` in dispatch.toml): "
                    "make it smaller before sending it",
                )
            plan = replace(plan, resize=(high, wide), crop=(high, wide))
        return super().pixels(picture, plan)

    def answer(self, planes: npt.NDArray[Any], sent: Sizes, position: int) -> dict[str, Any]:
        """Return the answer for a picture of this size, from [channels, height, width].

        Raises:
            BadPayload: the answer would be too large.
            ModelFailed: the numbers are not those of a picture, in this range.

        """
        plan = self.fitted()
        keeps = plan.crop == ANY_SIZE
        scale = planes.shape[1] / (sent if keeps else plan.crop)[0]
        height, width = (round(side * max(1.0, scale)) for side in sent)
        if height * width > (most := self._environment.max_pixels):
            raise BadPayload(
                f"the answer would be a picture of {width}×{height} pixels",
                hint=f"it may have at most {most:,}: send a smaller picture",
                position=position,
            )
        with room.taken(height * width, most, WITH_FLOATS if keeps else BYTES_PER_PIXEL):
            least, greatest = self.limits(planes, plan)
            is_relative = self.keys.range == RELATIVE
            deep = is_relative and len(planes) == 1
            most_shade = 65_535 if deep else 255
            shares = (planes.astype(np.float32) - least) / ((greatest - least) or 1.0)
            shades = np.clip(np.rint(shares * most_shade), 0, most_shade)
            made = shades.astype(np.uint16 if deep else np.uint8).transpose(1, 2, 0)
            if plan.input.keys.channels == "BGR":
                made = made[..., ::-1]
            made = np.ascontiguousarray(made[..., 0] if len(planes) == 1 else made)
            if made.shape[:2] != (height, width):
                made = cv2.resize(made, (width, height), interpolation=cv2.INTER_CUBIC)
            found: dict[str, Any] = {"width": width, "height": height}
            if is_relative:
                found |= {"least": round(least, 6), "greatest": round(greatest, 6)}
            found["picture"] = as_base64(Image.fromarray(made))
        return found

    def limits(self, planes: npt.NDArray[Any], plan: PicturePlan) -> tuple[float, float]:
        """Return the numbers that stand for black and white.

        Raises ModelFailed: those of the model are in another range, or no numbers.
        """
        least, greatest = float(planes.min()), float(planes.max())
        as_bytes = np.uint8 in (plan.input.dtype, planes.dtype)
        usual = "0-255" if as_bytes or plan.input.keys.pixels == "0-255" else "0-1"
        named = self.keys.range or usual
        low, high = RANGES.get(named, (least, greatest))
        over = BEYOND * (high - low)
        fits = np.isfinite(over) and low - over <= least and greatest <= high + over
        if len(planes) not in (1, 3) or not fits:
            raise ModelFailed(
                f"the picture has {len(planes)} channels of numbers from {least:g} to "
                f"{greatest:g}, not {named}",
                hint="write another `range` in dispatch.toml",
            )
        return low, high

    def draw(self, _: Payload, result: Any, media_type: str) -> bytes:
        return as_file(result["picture"], media_type)
