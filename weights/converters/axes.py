"""Tensors that are stored in one axis order and mean another.

ONNX Runtime convolves fastest on NCHW, TensorFlow graphs are written for NHWC. A `Value` keeps
both: the tensor as it is stored, and `axes`, such that transposing the tensor by `axes` gives
what the TensorFlow graph means. Operations then work on the stored tensor, with axis numbers
looked up in `axes` and constants turned the other way round.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from weights.errors import ConversionError

if TYPE_CHECKING:
    from numpy.typing import NDArray

# What a tensor stored as NCHW has to be transposed by to be the NHWC that the graph means.
NHWC = (0, 2, 3, 1)


@dataclass(frozen=True)
class Value:
    """One tensor of the graph that is being built.

    `axes`: the transposition from the stored order to the meant one. `size`: height and width
    where it is a picture. `pads`: zeros still to be put around it (top, left, bottom, right); the
    convolution that reads the value applies them.
    """

    tensor: str
    axes: tuple[int, ...]
    size: tuple[int, int] | None = None
    pads: tuple[int, ...] = (0, 0, 0, 0)

    def like(self, tensor: str) -> Value:
        """Return another tensor of the same axes and size."""
        return replace(self, tensor=tensor)

    def require_same(self, reader: str, other: Value) -> Value:
        """Return `other` if it can be combined with this one as stored, else raise."""
        if other.axes != self.axes:
            raise ConversionError(f"{reader!r} combines tensors of different axis order")
        return other

    def stored(self, reader: str, constant: NDArray[Any]) -> NDArray[Any]:
        """Turn a constant that broadcasts against what is meant into the stored order.

        Raises ConversionError if the constant has more axes than the value.
        """
        missing = len(self.axes) - constant.ndim
        if missing < 0:
            raise ConversionError(f"{reader!r} combines with a constant of more axes")
        full = constant.reshape((1,) * missing + constant.shape)
        return full.transpose(np.argsort(self.axes))

    def split_channels(self, shape: list[int]) -> tuple[list[int], tuple[int, ...]] | None:
        """Reshape [N,H,W,A·B] to [N,H·W,A,B] without a transposition, where asked.

        Stored, the picture is [N,A·B,H,W]: it becomes [N,A,B,H·W], which a transposition by
        (0, 3, 1, 2) would turn into what is meant. Returns the stored shape (0 keeps the batch)
        and the axes, or None where `shape` asks for something else.
        """
        if self.axes != NHWC or self.size is None or len(shape) != 4:
            return None
        _, pixels, outer, inner = shape
        if pixels != self.size[0] * self.size[1]:
            return None
        return [0, outer, inner, pixels], (0, 3, 1, 2)
