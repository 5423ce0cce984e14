"""Write a classifier of pictures: how red, green and blue is it?"""

from pathlib import Path

import onnx
from onnx import TensorProto, helper

graph = helper.make_graph(
    [
        helper.make_node("ReduceMean", ["pixels"], ["means"], axes=[2, 3], keepdims=0),
        helper.make_node("Mul", ["means", "ten"], ["scores"]),
    ],
    "colours",
    [helper.make_tensor_value_info("pixels", TensorProto.FLOAT, ["batch", 3, 32, 32])],
    [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["batch", 3])],
    [helper.make_tensor("ten", TensorProto.FLOAT, [1], [10.0])],
)
folder = Path(__file__).parent / "models" / "colours" / "1"
folder.mkdir(exist_ok=True)
opset = helper.make_opsetid("", 17)
onnx.save(helper.make_model(graph, opset_imports=[opset], ir_version=8), folder / "model.onnx")
