"""The base of the families that answer something for each pixel of the picture."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from clients.base import Payload
from clients.families.base.dispatch_toml import SIZE, key
from clients.families.base.picture_input import (
    CHANNELS_AT,
    PictureInput,
    PicturePlan,
    ResizedKeys,
    ResizingFamily,
    Sizes,
)
from clients.triton.server import Signature


@dataclass(frozen=True, kw_only=True)
class MaskKeys(ResizedKeys):
    """The keys of those that answer something for each place of the picture."""

    size: int | tuple[int, int] | None = key(
        SIZE, "that pictures are squeezed to; else that of the model's input", None
    )


M = TypeVar("M", bound=MaskKeys)


class MaskFamily(ResizingFamily[M]):
    """Serves a model that answers something for each place of the picture."""

    drawn_as = ("image/png", "image/jpeg")
    fills = True

    def fit(self, signature: Signature) -> PicturePlan:
        taken, output = self.read_input(signature), self.tensor(signature.outputs, "output")
        sizes = taken.rest_of(output)
        if len(sizes) not in (2, 3):
            raise self.misfit(f"{output} has no number for each pixel")
        channels = sizes[CHANNELS_AT[taken.layout]] if len(sizes) == 3 else 1
        self.check_channels(channels, str(output))
        size = self.size_of(taken)
        return PicturePlan(taken, output.name, size, size)

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
