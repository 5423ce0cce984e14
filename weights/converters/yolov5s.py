"""YOLOv5s: a TensorFlow.js graph model becomes the classic ONNX export.

`images` [N,3,H,W] float32, RGB, 0 to 1 → `output` [N,rows,5+classes] float32: the box's centre x
and y, width and height in pixels of the input, objectness, and one score per class. H, W, rows
and classes are the stored model's own (640, 640, 25200, 80).

The stored graph computes on NHWC and gives boxes as parts of the input's sides. Here every tensor
keeps the axis order that is fastest for ONNX Runtime, and remembers how to turn it into the one
that the stored graph means; only the end of each detection head is really transposed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from weights.converters import graphdef, tfjs
from weights.converters.axes import NHWC, Value
from weights.converters.graph import GraphBuilder, same_padding
from weights.errors import ConversionError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    import onnx
    from numpy.typing import NDArray


def convert(folder: Path) -> onnx.ModelProto:
    """Convert the TensorFlow.js graph model in `folder` (`model.json` and its shards).

    Raises ConversionError naming the operation, and what about it is not mapped.
    """
    return _YoloConverter(tfjs.read(folder, "graph-model")).run()


class _YoloConverter:
    def __init__(self, model: tfjs.TfjsModel) -> None:
        self._weights = dict(model.weights)
        self._nodes: dict[str, dict[str, Any]] = {n["name"]: n for n in model.topology["node"]}
        self._input, (_, *self._sides, channels) = graphdef.only(model.signature, "inputs")
        self._output, (_, *self._rows) = graphdef.only(model.signature, "outputs")
        if channels != 3 or len(self._sides) != 2:
            raise ConversionError(f"the input {self._input!r} is not an RGB picture")
        if self._nodes[self._output]["op"] != "Identity":
            raise ConversionError(f"the output {self._output!r} is not an Identity")
        self._result = self._nodes[self._output]["input"][0]
        self._graph = GraphBuilder()
        self._values: dict[str, Value] = {}
        self._map: dict[str, Callable[..., Value]] = {
            "Placeholder": self._placeholder,
            "Identity": self._identity,
            "Pad": self._pad,
            "_FusedConv2D": self._convolution,
            "MaxPool": self._max_pool,
            "ResizeNearestNeighbor": self._resize,
            "Sigmoid": self._sigmoid,
            "Mul": self._elementwise,
            "Add": self._elementwise,
            "AddV2": self._elementwise,
            "Square": self._square,
            "ConcatV2": self._concatenate,
            "StridedSlice": self._slice,
            "Reshape": self._reshape,
            "Transpose": self._transpose,
        }

    def run(self) -> onnx.ModelProto:
        self._scale_boxes()
        for name in graphdef.in_order(self._nodes, self._output):
            node = self._nodes[name]
            if node["op"] == "Const":
                continue
            if node["op"] not in self._map:
                raise ConversionError(f"{name!r} is a {node['op']}, which is not mapped")
            try:
                self._values[name] = self._map[node["op"]](name, node, *node.get("input", []))
            except (KeyError, TypeError, ValueError) as error:
                raise ConversionError(
                    f"{name!r} is not laid out as a {node['op']} is: {error!r}"
                ) from error
        value = self._values[self._output]
        if value.tensor != "output" or value.axes != tuple(range(len(value.axes))):
            raise ConversionError(f"{self._result!r} is no result in the order that it is stored")
        return self._graph.finish("yolov5s", ("images", [3, *self._sides]), ("output", self._rows))

    def _scale_boxes(self) -> None:
        """Scale boxes to pixels through the constants of the last multiplications.

        Each head joins x-and-y, width-and-height and the scores along the last axis; the first
        two are products with a constant whose last axis is x, y. Changing these constants is
        exact to one rounding and costs nothing, where one more multiplication of the whole
        answer would.
        """
        joins = [
            node
            for node in self._nodes.values()
            if node["op"] == "ConcatV2" and self._weights[node["input"][-1]].item() == -1
        ]
        if not joins:
            raise ConversionError("no detection head was found: nothing is joined on the last axis")
        scaled: set[str] = set()
        for join in joins:
            for name in join["input"][:2]:
                product = self._nodes[name]
                factor = product["input"][-1]
                if product["op"] != "Mul" or factor not in self._weights or factor in scaled:
                    raise ConversionError(f"{name!r} is not a box times a constant of its own")
                height, width = self._sides
                self._weights[factor] = self._weights[factor] * np.array([width, height])
                scaled.add(factor)

    def _emit(self, op: str, inputs: Sequence[str], name: str, **attributes: Any) -> str:
        output = "output" if name == self._result else name
        return self._graph.node(op, inputs, output, **attributes)

    def _placeholder(self, name: str, _node: dict[str, Any]) -> Value:
        if name != self._input:
            raise ConversionError(f"{name!r} is a second input, which is not mapped")
        return Value("images", NHWC, size=(self._sides[0], self._sides[1]))

    def _identity(self, _name: str, _node: dict[str, Any], source: str) -> Value:
        return self._values[source]

    def _pad(self, name: str, _node: dict[str, Any], source: str, widths: str) -> Value:
        value, pads = self._picture(name, source), self._constant(name, widths)
        if pads[0].any() or pads[3].any():
            raise ConversionError(f"{name!r} pads the batch or the channels")
        (top, bottom), (left, right) = pads[1:3].tolist()
        return Value(value.tensor, NHWC, value.size, (top, left, bottom, right))

    def _convolution(
        self, name: str, node: dict[str, Any], source: str, weights: str, *rest: str
    ) -> Value:
        value = self._values[source]
        fused = graphdef.texts(node, "fused_ops")
        if fused != ["BiasAdd"] or len(rest) != 1:
            raise ConversionError(f"{name!r} fuses {fused}; only BiasAdd is mapped")
        if value.axes != NHWC or value.size is None:
            raise ConversionError(f"{name!r} convolves what is not a picture")
        if any(step != 1 for step in graphdef.integers(node, "dilations")):
            raise ConversionError(f"{name!r} is dilated, which is not mapped")
        kernel, bias = self._constant(name, weights), self._constant(name, rest[0])
        strides, sides = graphdef.spatial(node, "strides"), list(kernel.shape[:2])
        if graphdef.padding(node) == "VALID":
            pads = list(value.pads)
        elif graphdef.padding(node) == "SAME" and not any(value.pads):
            pads = same_padding(name, sides, strides)
        else:
            raise ConversionError(
                f"{name!r} pads {graphdef.padding(node)!r}, which is not mapped here"
            )
        tensor = self._emit(
            "Conv",
            [
                value.tensor,
                self._graph.constant(f"{name}.kernel", kernel.transpose(3, 2, 0, 1)),
                self._graph.constant(f"{name}.bias", bias),
            ],
            name,
            kernel_shape=sides,
            strides=strides,
            pads=pads,
        )
        height, width = (
            (value.size[i] + pads[i] + pads[i + 2] - sides[i]) // strides[i] + 1 for i in (0, 1)
        )
        return Value(tensor, NHWC, (height, width))

    def _max_pool(self, name: str, node: dict[str, Any], source: str) -> Value:
        value = self._picture(name, source)
        strides, sides = graphdef.spatial(node, "strides"), graphdef.spatial(node, "ksize")
        if graphdef.padding(node) != "SAME":
            raise ConversionError(
                f"{name!r} pads {graphdef.padding(node)!r}, which is not mapped here"
            )
        pads = same_padding(name, sides, strides)
        return value.like(
            self._emit(
                "MaxPool", [value.tensor], name, kernel_shape=sides, strides=strides, pads=pads
            )
        )

    def _resize(self, name: str, _node: dict[str, Any], source: str, size: str) -> Value:
        value = self._picture(name, source)
        height, width = self._constant(name, size).tolist()
        if value.size is None or height % value.size[0] or width % value.size[1]:
            raise ConversionError(f"{name!r} does not enlarge by a whole factor")
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
        return Value(tensor, NHWC, (height, width))

    def _sigmoid(self, name: str, _node: dict[str, Any], source: str) -> Value:
        value = self._unpadded(name, source)
        return value.like(self._emit("Sigmoid", [value.tensor], name))

    def _square(self, name: str, _node: dict[str, Any], source: str) -> Value:
        value = self._unpadded(name, source)
        return value.like(self._emit("Mul", [value.tensor, value.tensor], name))

    def _elementwise(self, name: str, node: dict[str, Any], left: str, right: str) -> Value:
        op = "Mul" if node["op"] == "Mul" else "Add"
        value = self._unpadded(name, left)
        if right in self._weights:
            stored = value.stored(name, self._weights[right])
            other = self._graph.constant(f"{name}.constant", stored)
        else:
            other = value.require_same(name, self._unpadded(name, right)).tensor
        return value.like(self._emit(op, [value.tensor, other], name))

    def _concatenate(self, name: str, _node: dict[str, Any], *sources: str) -> Value:
        axis = self._constant(name, sources[-1]).item()
        first, *rest = (self._unpadded(name, source) for source in sources[:-1])
        tensors = [first.tensor, *(first.require_same(name, value).tensor for value in rest)]
        return first.like(self._emit("Concat", tensors, name, axis=first.axes[axis]))

    def _slice(self, name: str, node: dict[str, Any], source: str, *bounds: str) -> Value:
        """Map `x[..., begin:end:step]`: one ellipsis, then the last axis."""
        value = self._unpadded(name, source)
        masks = {
            key: int(node["attr"][f"{key}_mask"]["i"])
            for key in ("ellipsis", "begin", "end", "new_axis", "shrink_axis")
        }
        arrays = [self._constant(name, bound) for bound in bounds]
        known = masks["ellipsis"] == 1 and not masks["new_axis"] and not masks["shrink_axis"]
        if not known or any(array.shape != (2,) for array in arrays):
            raise ConversionError(f"{name!r} slices otherwise than [..., begin:end]")
        begin, end, step = (int(array[1]) for array in arrays)
        # The second bit of a mask says that the second bound is open.
        begin = 0 if masks["begin"] & 2 else begin
        end = np.iinfo(np.int64).max if masks["end"] & 2 else end
        numbers = {"starts": begin, "ends": end, "axes": value.axes[-1], "steps": step}
        constants = [
            self._graph.constant(f"{name}.{key}", np.array([number], np.int64))
            for key, number in numbers.items()
        ]
        return value.like(self._emit("Slice", [value.tensor, *constants], name))

    def _reshape(self, name: str, _node: dict[str, Any], source: str, shape: str) -> Value:
        value = self._unpadded(name, source)
        wanted = self._constant(name, shape).tolist()
        if wanted[0] != -1 or any(side < 1 for side in wanted[1:]):
            raise ConversionError(f"{name!r} does not keep the batch axis")
        split = value.split_channels(wanted)
        if split is not None:
            stored, axes = split
            constant = self._graph.constant(f"{name}.shape", np.array(stored, np.int64))
            return Value(self._emit("Reshape", [value.tensor, constant], name), axes)
        tensor = value.tensor
        if value.axes != tuple(range(len(value.axes))):
            tensor = self._graph.node(
                "Transpose", [tensor], f"{name}.transposed", perm=list(value.axes)
            )
        constant = self._graph.constant(f"{name}.shape", np.array([0, *wanted[1:]], np.int64))
        tensor = self._emit("Reshape", [tensor, constant], name)
        return Value(tensor, tuple(range(len(wanted))))

    def _transpose(self, name: str, _node: dict[str, Any], source: str, order: str) -> Value:
        value = self._unpadded(name, source)
        axes = tuple(value.axes[axis] for axis in self._constant(name, order).tolist())
        return Value(value.tensor, axes)

    def _constant(self, reader: str, name: str) -> NDArray[Any]:
        if name not in self._weights:
            raise ConversionError(f"{reader!r} reads {name!r}, which has to be a constant")
        return self._weights[name]

    def _unpadded(self, reader: str, name: str) -> Value:
        if name not in self._values:
            raise ConversionError(f"{reader!r} reads the constant {name!r} first: not mapped")
        if any(self._values[name].pads):
            raise ConversionError(f"{reader!r} reads a padded tensor; only convolutions may")
        return self._values[name]

    def _picture(self, reader: str, name: str) -> Value:
        value = self._unpadded(reader, name)
        if value.axes != NHWC:
            raise ConversionError(f"{reader!r} works on what is not a picture")
        return value
