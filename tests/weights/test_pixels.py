"""A model of one step stands in for one of pictures: it answers what reaches it, doubled."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper

from weights.converters.pixels import take_bytes

MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
COLOUR = np.array([255, 128, 3])


@pytest.mark.parametrize(
    ("shape", "layout", "mean", "std", "kind"),
    [
        (["n", 3, 4, 5], "NCHW", [], [], "FLOAT"),
        (["n", 3, 4, 5], "NCHW", MEAN, STD, "FLOAT"),
        (["n", 3, 4, 5], "NCHW", [], STD, "FLOAT16"),
        (["n", 4, 5, 3], "NHWC", MEAN, STD, "FLOAT"),
        ([3, 4, 5], "NCHW", MEAN, [], "FLOAT"),
    ],
)
def test_a_model_gets_of_bytes_what_it_got_of_floats(
    shape: list[Any], layout: str, mean: list[float], std: list[float], kind: str
) -> None:
    x, y = (
        helper.make_tensor_value_info(one, TensorProto.DataType.Value(kind), shape) for one in "xy"
    )
    nodes = [helper.make_node("Neg", ["x"], ["z"]), helper.make_node("Sub", ["x", "z"], ["y"])]
    model = helper.make_model(
        helper.make_graph(nodes, "twice", [x], [y]),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )
    session = onnxruntime.InferenceSession(take_bytes(model, mean, std, layout).SerializeToString())
    (given,) = session.get_inputs()
    assert (given.name, given.shape, given.type) == ("x", shape, "tensor(uint8)")
    axis = -1 if layout == "NHWC" else -3
    picture = np.zeros([2 if one == "n" else one for one in shape], np.uint8)
    np.moveaxis(picture, axis, -1)[:] = COLOUR
    (came,) = session.run(None, {"x": picture})
    assert came.dtype == (np.float16 if kind == "FLOAT16" else np.float32)
    floats, most = (COLOUR / 255 - (mean or 0)) / (std or 1), 0.02 if kind == "FLOAT16" else 1e-5
    assert np.abs(np.moveaxis(came, axis, -1) - 2 * floats).max() < most
