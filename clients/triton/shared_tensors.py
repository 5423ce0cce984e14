"""Where in a region of shared memory the large tensors of one call lie."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from clients.triton.server import Tensors
from clients.triton.shared_memory import Region

Arrays = dict[str, npt.NDArray[np.generic]]

LEAST = 256 * 1024
"""Bytes from which on a tensor is worth it."""

ALIGNED = 64  # a cache line, and what vector instructions want


@dataclass(frozen=True)
class Layout:
    """The places of one call's tensors.

    Args:
        size: bytes of the region that are needed; 0 where no tensor is large.
        inputs: the place of each large input, in bytes from the start.
        outputs: place and room of each output that is foreseen to be large.
        region: where all this is.

    """

    size: int
    inputs: Mapping[str, int]
    outputs: Mapping[str, tuple[int, int]]
    region: Region | None = field(default=None, repr=False)

    @property
    def region_name(self) -> str:
        """The region's name."""
        return self._region.name

    @property
    def _region(self) -> Region:
        if self.region is None:
            raise ValueError("the layout has no region yet")
        return self.region

    def write(self, name: str, array: npt.NDArray[np.generic]) -> None:
        """Put an input into its place, in the order of C."""
        place = np.frombuffer(self._region.memory, array.dtype, array.size, self.inputs[name])
        np.copyto(place.reshape(array.shape), array)

    def read(
        self, name: str, dtype: npt.DTypeLike, shape: Sequence[int]
    ) -> npt.NDArray[np.generic]:
        """Return a copy of an output: the region is another call's soon.

        Raises:
            ValueError: it is of a type that does not lie in memory as it is, such as texts.

        """
        offset, _ = self.outputs[name]
        flat = np.frombuffer(self._region.memory, dtype, math.prod(shape), offset)
        return flat.reshape(shape).copy()


def large(array: npt.NDArray[np.generic]) -> int:
    """Return the bytes of an array that is better handed over in shared memory, else 0."""
    return (
        array.nbytes
        if array.nbytes >= LEAST and array.dtype.kind in "biuf" and array.dtype.isnative
        else 0
    )


def layout_of(inputs: Tensors, sizes: Mapping[str, tuple[int, int]]) -> Layout:
    """Return the places for a call.

    Args:
        inputs: its tensors.
        sizes: of each output of an earlier call, the bytes and those of all inputs then. More
            input is taken to give as much more output, unless these are 0. 0 bytes stand for an
            output that goes through gRPC.

    """
    end = 0

    def place(size: int) -> int:
        nonlocal end
        start, end = end, end + -(-size // ALIGNED) * ALIGNED
        return start

    places = {name: place(size) for name, array in inputs.items() if (size := large(array))}
    sent = sum(array.nbytes for array in inputs.values())
    rooms = {
        name: -(-size * sent // before) if before else size
        for name, (size, before) in sizes.items()
    }
    outputs = {name: (place(size), size) for name, size in rooms.items() if size >= LEAST}
    return Layout(end, places, outputs)
