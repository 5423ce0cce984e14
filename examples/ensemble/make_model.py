"""Write a classifier of pictures: how red, green and blue is it?"""

from pathlib import Path

import onnx
from onnx import TensorProto, helper

graph = helper.make_graph(
    [helper.make_node("ReduceMean", ["PIXELS"], ["SCORES"], axes=[2, 3], keepdims=0)],
    "classify",
    [helper.make_tensor_value_info("PIXELS", TensorProto.FLOAT, ["batch", 3, 32, 32])],
    [helper.make_tensor_value_info("SCORES", TensorProto.FLOAT, ["batch", 3])],
)
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
onnx.save(model, Path(__file__).parent / "models" / "classify" / "1" / "model.onnx")
