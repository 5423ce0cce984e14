"""Write the ONNX file of a model that mixes eight numbers: each output is the sum of the others."""

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

graph = helper.make_graph(
    [helper.make_node("MatMul", ["X", "weights"], ["Y"])],
    "mix",
    [helper.make_tensor_value_info("X", TensorProto.FLOAT, ["batch", 8])],
    [helper.make_tensor_value_info("Y", TensorProto.FLOAT, ["batch", 8])],
    [numpy_helper.from_array((1 - np.eye(8)).astype(np.float32), "weights")],
)
opset = helper.make_opsetid("", 17)
model = helper.make_model(graph, opset_imports=[opset], ir_version=8)
onnx.save(model, Path(__file__).parent / "model.onnx")
