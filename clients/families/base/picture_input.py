"""The input tensor of a model that takes pictures: their pixels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from clients.families.base.family import Family, show_spec
from clients.triton.server import Signature, TensorSpec

DTYPES: Mapping[str, type[np.generic]] = {
    "FP32": np.float32,
    "FP16": np.float16,
    "UINT8": np.uint8,
}
CHANNELS_AT = {"NCHW": 0, "NHWC": 2}


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

    def size(self, family: Family[Any, Any], name: str) -> tuple[int, int]:
        """Return height and width of the pictures: the model's, else the key's.

        Raises ClientDisabled: the key contradicts the model, or is missing for a model of any size.
        """
        wanted = both(getattr(family.keys, name)) or (self.height, self.width)
        if -1 in wanted:
            raise family.mistake(
                name, f"is missing, and `{self.name}` takes any size", "write one, such as 224"
            )
        for came, own in zip(wanted, (self.height, self.width), strict=True):
            if own not in (came, -1):
                takes = [
                    own if own != -1 else any_will_do
                    for own, any_will_do in zip((self.height, self.width), wanted, strict=True)
                ]
                out = "" if -1 in (self.height, self.width) else ", or leave it out"
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

    def tensor(self, pictures: Sequence[npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
        """Return the input tensor for pictures in the input's layout; only one if `single`."""
        if self.single:
            array = pictures[0]
        elif len(pictures) == 1:
            array = pictures[0][None]  # not copied: it is 1.2 MB for a YOLOv5
        else:
            array = np.stack(pictures)
        return {self.name: array.astype(self.dtype, copy=False)}


def picture_input(
    family: Family[Any, Any],
    signature: Signature,
    layout: str = "NCHW",
    taken: Sequence[int] = (3,),
) -> PictureInput:
    """Read a model's input from its signature.

    Raises ClientDisabled: it takes no pictures, or not in this layout.
    """
    spec = family.tensor(signature.inputs, "input")
    if spec.datatype not in DTYPES or not 3 <= len(spec.shape) <= 4:
        raise family.misfit(f"{show_spec(spec)} takes no pictures")
    if signature.max_batch_size == 0 and len(spec.shape) == 4 and spec.shape[0] not in (1, -1):
        raise family.misfit(f"{show_spec(spec)} takes {spec.shape[0]} pictures, never one")
    sizes = spec.shape[-3:]
    channels = sizes[CHANNELS_AT[layout]]
    if len(spec.shape) == 3 and (signature.max_batch_size or channels == -1):
        raise family.misfit(f"{show_spec(spec)} has no axis for the channels")
    if channels not in (*taken, -1):
        other = next((one for one, at in CHANNELS_AT.items() if sizes[at] in taken), "")
        if other and hasattr(family.keys, "layout"):
            raise family.mistake(
                "layout", f'is "{layout}", but it is {show_spec(spec)}', f'write "{other}"'
            )
        wanted = " or ".join("three channels" if one == 3 else "one" for one in taken)
        raise family.misfit(f"{show_spec(spec)} has not {wanted}, in the layout {layout}")
    height, width = sizes[1:] if layout == "NCHW" else sizes[:2]
    return PictureInput(
        spec.name,
        height,
        width,
        DTYPES[spec.datatype],
        layout,
        taken[0] if channels == -1 else channels,
        single=len(spec.shape) == 3,
    )


def both(size: int | tuple[int, int] | None) -> tuple[int, int] | None:
    """Return height and width of a size; one number means a square."""
    return (size, size) if isinstance(size, int) else size
