"""YOLOv5s: a TensorFlow.js graph model becomes the classic ONNX export.

`images` [N,3,H,W] uint8, RGB → `output` [N,rows,5+classes] float32: the box's centre x and y,
width and height in pixels of the input, objectness, and one score per class. H, W, rows and classes
are the stored model's own (640, 640, 25200, 80).

The stored graph computes on NHWC and gives boxes as parts of the input's sides. Here every tensor
keeps the axis order that is fastest for ONNX Runtime, and remembers how to turn it into the one
that the stored graph means; only the end of each detection head is really transposed.

The package is pinned by its checksum, so that its operations are known: what the export of a YOLOv5
has not is not mapped.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from weights.converters import tfjs
from weights.converters.graph import GraphBuilder
from weights.converters.pixels import take_bytes
from weights.errors import WeightsError

# What a tensor stored as NCHW has to be transposed by to be the NHWC that the graph means.
NHWC = (0, 2, 3, 1)


@dataclass(frozen=True)
class _Value:
    """One tensor of the graph that is being built.

    `axes`: the transposition from the stored order to the meant one. `size`: height and width
    where it is a picture. `pads`: zeros still to be put around it (top, left, bottom, right); the
    convolution that reads the value applies them.
    """

    tensor: str
    axes: tuple[int, ...]
    size: tuple[int, int] = (0, 0)
    pads: tuple[int, ...] = (0, 0, 0, 0)


def convert(folder: Path) -> onnx.ModelProto:
    """Convert the TensorFlow.js graph model in `folder` (`model.json` and its shards).

    Raises WeightsError for an operation that a YOLOv5 has not.
    """
    return take_bytes(_YoloConverter(*tfjs.read(folder)).run())


class _YoloConverter:
    def __init__(self, stored: dict[str, Any], weights: dict[str, NDArray[Any]]) -> None:
        self._weights = weights
        self._nodes = {one["name"]: one for one in stored["modelTopology"]["node"]}
        (_, [_, height, width, _]), (output, [_, *self._rows]) = (
            _find_tensor(stored["signature"][side]) for side in ("inputs", "outputs")
        )
        self._size = height, width
        self._output, self._result = output, self._nodes[output]["input"][0]
        self._graph = GraphBuilder()
        self._values: dict[str, _Value] = {}
        self._map: dict[str, Callable[..., _Value]] = {
            "Placeholder": lambda *_: _Value("images", NHWC, self._size),
            "Identity": lambda _, __, source: self._values[source],
            "Pad": self._pad,
            "_FusedConv2D": self._convolve,
            "MaxPool": self._max_pool,
            "ResizeNearestNeighbor": self._resize,
            "Sigmoid": lambda name, _, source: self._compute("Sigmoid", name, source),
            "Square": lambda name, _, source: self._compute("Mul", name, source, source),
            "Mul": lambda name, _, *sources: self._compute("Mul", name, *sources),
            "Add": lambda name, _, *sources: self._compute("Add", name, *sources),
            "AddV2": lambda name, _, *sources: self._compute("Add", name, *sources),
            "ConcatV2": self._concatenate,
            "StridedSlice": self._slice,
            "Reshape": self._reshape,
            "Transpose": self._transpose,
        }

    def run(self) -> onnx.ModelProto:
        self._scale_boxes()
        for name in self._in_order():
            node = self._nodes[name]
            if node["op"] == "Const":
                continue
            if node["op"] not in self._map:
                raise WeightsError(f"{name!r} is a {node['op']}, which is not mapped")
            self._values[name] = self._map[node["op"]](name, node, *node.get("input", []))
        return self._graph.finish("yolov5s", ("images", [3, *self._size]), ("output", self._rows))

    def _in_order(self) -> list[str]:
        """Return the nodes that the output needs, in topological order."""
        needed: dict[str, list[str]] = {}
        unread = [self._output]
        while unread:
            name = unread.pop()
            if name not in needed:
                needed[name] = self._nodes[name].get("input", [])
                unread.extend(needed[name])
        return list(TopologicalSorter(needed).static_order())

    def _scale_boxes(self) -> None:
        """Scale boxes to pixels through the constants of the last multiplications.

        Each head joins x-and-y, width-and-height and the scores along the last axis; the first
        two are products with a constant whose last axis is x, y. Changing these constants is
        exact to one rounding and costs nothing, where one more multiplication of the whole
        answer would.
        """
        height, width = self._size
        for node in self._nodes.values():
            if node["op"] == "ConcatV2" and self._weights[node["input"][-1]].item() == -1:
                for product in node["input"][:2]:
                    factor = self._nodes[product]["input"][-1]
                    self._weights[factor] = self._weights[factor] * np.array([width, height])

    def _emit(self, op: str, inputs: Sequence[str], name: str, **attributes: Any) -> str:
        return self._graph.node(op, inputs, self._name(name), **attributes)

    def _name(self, name: str) -> str:
        return "output" if name == self._result else name

    def _pad(self, _name: str, _node: dict[str, Any], source: str, widths: str) -> _Value:
        (top, bottom), (left, right) = self._weights[widths][1:3].tolist()
        return replace(self._values[source], pads=(top, left, bottom, right))

    def _convolve(
        self, name: str, node: dict[str, Any], source: str, weights: str, biases: str
    ) -> _Value:
        value, kernel = self._values[source], self._weights[weights]
        strides, sides = _sides(node, "strides"), kernel.shape
        pads = list(value.pads)
        if base64.b64decode(node["attr"]["padding"]["s"]) == b"SAME":
            pads = _pad_same(kernel.shape[:2])
        tensor = self._graph.convolution(
            name,
            value.tensor,
            kernel,
            self._weights[biases],
            self._name(name),
            strides=strides,
            pads=pads,
        )
        height, width = (
            (value.size[i] + pads[i] + pads[i + 2] - sides[i]) // strides[i] + 1 for i in (0, 1)
        )
        return _Value(tensor, NHWC, (height, width))

    def _max_pool(self, name: str, node: dict[str, Any], source: str) -> _Value:
        value, sides = self._values[source], _sides(node, "ksize")
        tensor = self._emit(
            "MaxPool",
            [value.tensor],
            name,
            kernel_shape=sides,
            strides=_sides(node, "strides"),
            pads=_pad_same(sides),
        )
        return replace(value, tensor=tensor)

    def _resize(self, name: str, _node: dict[str, Any], source: str, size: str) -> _Value:
        value = self._values[source]
        height, width = self._weights[size].tolist()
        # With a whole factor, every convention of "nearest" repeats each pixel that many times.
        scales = np.array([1, 1, height // value.size[0], width // value.size[1]], np.float32)
        tensor = self._emit(
            "Resize",
            [value.tensor, "", self._graph.constant(f"{name}.scales", scales)],
            name,
            mode="nearest",
            coordinate_transformation_mode="asymmetric",
            nearest_mode="floor",
        )
        return _Value(tensor, NHWC, (height, width))

    def _compute(self, op: str, name: str, *sources: str) -> _Value:
        """Map what is computed number by number, of tensors in one axis order and a constant."""
        value = self._values[sources[0]]
        tensors = []
        for source in sources:
            if source in self._weights:
                constant = self._weights[source]
                # One that broadcasts against what is meant, in the stored order.
                full = constant.reshape((1,) * (len(value.axes) - constant.ndim) + constant.shape)
                stored = full.transpose(np.argsort(value.axes))
                tensors.append(self._graph.constant(f"{name}.constant", stored))
            else:
                tensors.append(self._values[source].tensor)
        return replace(value, tensor=self._emit(op, tensors, name))

    def _concatenate(self, name: str, _node: dict[str, Any], *sources: str) -> _Value:
        axis = self._weights[sources[-1]].item()
        first, *rest = (self._values[source] for source in sources[:-1])
        tensors = [first.tensor, *(value.tensor for value in rest)]
        return replace(first, tensor=self._emit("Concat", tensors, name, axis=first.axes[axis]))

    def _slice(self, name: str, node: dict[str, Any], source: str, *bounds: str) -> _Value:
        """Map `x[..., begin:end:step]`: one ellipsis, then the last axis."""
        value = self._values[source]
        begin, end, step = (int(self._weights[bound][1]) for bound in bounds)
        # The second bit of a mask says that the second bound is open.
        begin = 0 if int(node["attr"]["begin_mask"]["i"]) & 2 else begin
        end = np.iinfo(np.int64).max if int(node["attr"]["end_mask"]["i"]) & 2 else end
        numbers = {"starts": begin, "ends": end, "axes": value.axes[-1], "steps": step}
        constants = [
            self._graph.constant(f"{name}.{key}", np.array([number], np.int64))
            for key, number in numbers.items()
        ]
        return replace(value, tensor=self._emit("Slice", [value.tensor, *constants], name))

    def _reshape(self, name: str, _node: dict[str, Any], source: str, shape: str) -> _Value:
        """Split or join axes behind the batch; 0 keeps that."""
        value, wanted = self._values[source], self._weights[shape].tolist()
        tensor, stored, axes = value.tensor, [0, *wanted[1:]], tuple(range(len(wanted)))
        if value.axes == NHWC and len(wanted) == 4:
            # [N,H,W,A·B] to [N,H·W,A,B], which is stored as [N,A·B,H,W]: it becomes [N,A,B,H·W].
            _, pixels, outer, inner = wanted
            stored, axes = [0, outer, inner, pixels], (0, 3, 1, 2)
        elif value.axes != tuple(range(len(value.axes))):
            tensor = self._graph.node(
                "Transpose", [tensor], f"{name}.transposed", perm=list(value.axes)
            )
        constant = self._graph.constant(f"{name}.shape", np.array(stored, np.int64))
        return _Value(self._emit("Reshape", [tensor, constant], name), axes)

    def _transpose(self, _name: str, _node: dict[str, Any], source: str, order: str) -> _Value:
        value = self._values[source]
        axes = tuple(value.axes[axis] for axis in self._weights[order].tolist())
        return _Value(value.tensor, axes)


def _find_tensor(side: dict[str, Any]) -> tuple[str, list[int]]:
    """Return node name and shape of the model's only input or output."""
    (tensor,) = side.values()
    shape = [int(dim["size"]) for dim in tensor["tensorShape"]["dim"]]
    return tensor["name"].removesuffix(":0"), shape


def _sides(node: dict[str, Any], attribute: str) -> list[int]:
    """Return height and width of an attribute that is given for N, H, W, C.

    Integers are text in the JSON of a GraphDef.
    """
    _, height, width, _ = map(int, node["attr"][attribute]["list"]["i"])
    return [height, width]


def _pad_same(sides: Sequence[int]) -> list[int]:
    """Return the `pads` of TensorFlow's SAME padding, for an odd kernel with stride 1."""
    return [side // 2 for side in sides] * 2
