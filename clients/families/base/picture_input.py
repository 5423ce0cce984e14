"""The input tensor of a model that takes pictures: their pixels, or their files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from clients.families.base.family import Family, show_spec
from clients.images.picture_file import PictureFile
from clients.triton.server import Signature, TensorSpec

DTYPES: Mapping[str, type[np.generic]] = {
    "FP32": np.float32,
    "FP16": np.float16,
    "UINT8": np.uint8,
}
CHANNELS_AT = {"NCHW": 0, "NHWC": 2}
# Keys of families that have no effect on a file.
PIXEL_KEYS = ("resize", "crop", "interpolation", "pixels", "mean", "std", "channels", "layout")


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

    @classmethod
    def of(
        cls,
        family: Family[Any, Any],
        spec: TensorSpec,
        signature: Signature,
        layout: str,
        taken: Sequence[int],
    ) -> PictureInput:
        """Read it; the arguments and errors are those of `picture_input`."""
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
        return cls(
            spec.name,
            height,
            width,
            DTYPES[spec.datatype],
            layout,
            taken[0] if channels == -1 else channels,
            single=len(spec.shape) == 3,
        )

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
        """Return the input tensor for some pictures.

        Args:
            pictures: [channels, height, width] or [height, width, channels] each, as the layout
                says; only one if `single`.

        """
        if self.single:
            array = pictures[0]
        elif len(pictures) == 1:
            array = pictures[0][None]  # not copied: it is 4.9 MB for a YOLOv5
        else:
            array = np.stack(pictures)
        return {self.name: array.astype(self.dtype, copy=False)}


@dataclass(frozen=True)
class FileInput:
    """An input tensor that takes pictures as files: the model decodes them."""

    name: str  # the tensor's
    axes: int  # how many it has
    # Uint8 for the bytes of one file; object for BYTES, with an element for each file
    dtype: type[np.generic]
    single: bool  # whether it takes one picture, without an axis for several

    @classmethod
    def of(cls, family: Family[Any, Any], spec: TensorSpec, signature: Signature) -> FileInput:
        """Read it; the arguments and errors are those of `picture_input`."""
        single = signature.max_batch_size == 0
        sizes = spec.shape if single else spec.shape[1:]
        is_text = spec.datatype == "BYTES"
        if not set(sizes) <= {1, -1} or not (is_text or sizes.count(-1) == 1):
            raise family.misfit(f"{show_spec(spec)} takes no pictures")
        for name in PIXEL_KEYS:
            if getattr(family.keys, name, None) != getattr(family.keys_type, name, None):
                raise family.mistake(
                    name,
                    f"has no effect: `{spec.name}` takes files, and the model decodes them",
                    "leave it out",
                )
        return cls(spec.name, len(spec.shape), np.object_ if is_text else np.uint8, single)

    def size(self, family: Family[Any, Any], name: str) -> tuple[int, int]:
        """Return height and width that the key says; zeros for those of each picture."""
        return both(getattr(family.keys, name)) or (0, 0)

    def rest_of(self, output: TensorSpec) -> tuple[int, ...]:
        """Return the sizes of an output for one picture.

        Without batches an output may have a first axis of size 1 nevertheless.
        """
        has_first = len(output.shape) > 2 and output.shape[0] in (1, -1)
        return output.shape[1:] if has_first or not self.single else output.shape

    def tensor(self, files: Sequence[PictureFile]) -> dict[str, npt.NDArray[Any]]:
        """Return the input tensor for some pictures; only one if `single`, or for uint8."""
        ones = (1,) * (self.axes - 1)
        array: npt.NDArray[Any]
        if self.dtype is np.uint8:
            array = np.frombuffer(files[0].data, np.uint8).reshape(*ones, -1)
        else:
            array = np.array([one.data for one in files], np.object_).reshape(-1, *ones)
        return {self.name: array}


def picture_input(
    family: Family[Any, Any],
    signature: Signature,
    layout: str = "NCHW",
    taken: Sequence[int] = (3,),
) -> PictureInput | FileInput:
    """Read a model's input from its signature.

    Raises ClientDisabled: it takes no pictures, or not in this layout.
    """
    spec = family.tensor(signature.inputs, "input", may_be_text=True)
    if spec.is_file:
        return FileInput.of(family, spec, signature)
    return PictureInput.of(family, spec, signature, layout, taken)


def both(size: int | tuple[int, int] | None) -> tuple[int, int] | None:
    """Return height and width of a size; one number means a square."""
    return (size, size) if isinstance(size, int) else size
