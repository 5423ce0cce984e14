"""Write a DenseNet of two layers, which says how red, green and blue a picture is.

Each layer gets what all before it have made, as in DenseNet-121. The weights are not trained: those
of the layers are averages, and the last ones weigh the mean of each colour.
"""

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

COLOURS = 3
GROWTH = 2  # channels that each layer adds

nodes, weights, last, channels = [], {}, "data_0", COLOURS
for layer in ("1", "2"):
    weights[f"w{layer}"] = np.full((GROWTH, channels, 3, 3), 1 / (9 * channels))
    nodes += [
        helper.make_node("Conv", [last, f"w{layer}"], [f"conv{layer}"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", [f"conv{layer}"], [f"relu{layer}"]),
        helper.make_node("Concat", [last, f"relu{layer}"], [f"dense{layer}"], axis=1),
    ]
    last, channels = f"dense{layer}", channels + GROWTH
weights["fc6_w"] = 5 * np.eye(COLOURS, channels)[:, :, None, None]
nodes += [
    helper.make_node("GlobalAveragePool", [last], ["pool"]),
    helper.make_node("Conv", ["pool", "fc6_w"], ["fc6_1"]),
]
graph = helper.make_graph(
    nodes,
    "densenet",
    [helper.make_tensor_value_info("data_0", TensorProto.FLOAT, [1, COLOURS, 224, 224])],
    [helper.make_tensor_value_info("fc6_1", TensorProto.FLOAT, [1, COLOURS, 1, 1])],
    [numpy_helper.from_array(w.astype(np.float32), name) for name, w in weights.items()],
)
folder = Path(__file__).parent / "models" / "densenet_onnx" / "1"
folder.mkdir(exist_ok=True)
opset = helper.make_opsetid("", 17)
onnx.save(helper.make_model(graph, opset_imports=[opset], ir_version=8), folder / "model.onnx")
