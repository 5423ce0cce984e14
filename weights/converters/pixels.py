"""Pixels as bytes: a quarter of what floats of them are, on every way to the model."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def take_bytes(
    model: onnx.ModelProto,
    mean: Sequence[float] = (),
    std: Sequence[float] = (),
    layout: str = "NCHW",
) -> onnx.ModelProto:
    """Let a model take pixels as uint8, 0 to 255, in place of floats, and return it.

    The graph makes parts of 1 of them, takes `mean` off and divides by `std`, which have a number
    for each channel. Its one input keeps its name and its shape, in the `layout`.
    """
    graph = model.graph
    constants = {one.name for one in graph.initializer}  # older files have them as inputs, too
    (given,) = (one for one in graph.input if one.name not in constants)
    name, tensor = given.name, given.type.tensor_type
    dtype = helper.tensor_dtype_to_np_dtype(tensor.elem_type)
    each = (-1, 1, 1) if layout == "NCHW" else (-1,)
    factor = 1 / np.array(std or [1]).reshape(each)
    steps = {"Mul": factor / 255}
    if mean:
        steps["Add"] = -np.array(mean).reshape(each) * factor
    made = f"{name}.Cast"
    nodes = [helper.make_node("Cast", [name], [made], name=made, to=tensor.elem_type)]
    for op, numbers in steps.items():
        taken, made, constant = made, f"{name}.{op}", f"{name}.{op}.constant"
        graph.initializer.append(numpy_helper.from_array(numbers.astype(dtype), constant))
        nodes.append(helper.make_node(op, [taken, constant], [made], name=made))
    for node in graph.node:
        node.input[:] = [made if one == name else one for one in node.input]
    for place, node in enumerate(nodes):
        graph.node.insert(place, node)
    tensor.elem_type = TensorProto.UINT8
    return model
