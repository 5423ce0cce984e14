"""Write two versions of a model: the first doubles numbers, the second triples them."""

from pathlib import Path

import onnx
from onnx import TensorProto, helper

MODEL = Path(__file__).parent / "models" / "scale"

for version, factor in ((1, 2.0), (2, 3.0)):
    graph = helper.make_graph(
        [helper.make_node("Mul", ["X", "factor"], ["Y"])],
        "scale",
        [helper.make_tensor_value_info("X", TensorProto.FLOAT, ["batch", 3])],
        [helper.make_tensor_value_info("Y", TensorProto.FLOAT, ["batch", 3])],
        [helper.make_tensor("factor", TensorProto.FLOAT, [1], [factor])],
    )
    folder = MODEL / str(version)
    folder.mkdir(exist_ok=True)
    opset = helper.make_opsetid("", 17)
    onnx.save(helper.make_model(graph, opset_imports=[opset], ir_version=8), folder / "model.onnx")
