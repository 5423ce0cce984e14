"""Write a model that doubles numbers."""

from pathlib import Path

import onnx
from onnx import TensorProto, helper

graph = helper.make_graph(
    [helper.make_node("Add", ["X", "X"], ["Y"])],
    "double",
    [helper.make_tensor_value_info("X", TensorProto.FLOAT, ["batch", 1])],
    [helper.make_tensor_value_info("Y", TensorProto.FLOAT, ["batch", 1])],
)
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
onnx.save(model, Path(__file__).parent / "models" / "double" / "1" / "model.onnx")
