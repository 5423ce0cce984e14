"""Write a model of three small trees, as exporters of XGBoost and others write theirs."""

from pathlib import Path

import onnx
from onnx import TensorProto, helper

# Column, limit, whether a missing value counts as small, and what small and other values add.
STUMPS = [(0, 25.0, 1, -0.5, 0.25), (1, 20_000.0, 1, -1.0, 0.75), (3, 0.5, 0, -0.25, 0.5)]

nodes: dict[str, list] = {}
leaves: dict[str, list] = {}
for tree, (column, limit, small, low, high) in enumerate(STUMPS):
    for number, mode in enumerate(("BRANCH_LEQ", "LEAF", "LEAF")):
        for name, value in {
            "treeids": tree,
            "nodeids": number,
            "modes": mode,
            "featureids": column if number == 0 else 0,
            "values": limit if number == 0 else 0.0,
            "truenodeids": 1 if number == 0 else 0,
            "falsenodeids": 2 if number == 0 else 0,
            "missing_value_tracks_true": small if number == 0 else 0,
        }.items():
            nodes.setdefault(f"nodes_{name}", []).append(value)
    for number, added in ((1, low), (2, high)):
        leaf = {"treeids": tree, "nodeids": number, "ids": 0, "weights": added}
        for name, value in leaf.items():
            leaves.setdefault(f"class_{name}", []).append(value)
node = helper.make_node(
    "TreeEnsembleClassifier",
    ["input"],
    ["label", "probabilities"],
    domain="ai.onnx.ml",
    classlabels_int64s=[0, 1],
    post_transform="LOGISTIC",
    **nodes,
    **leaves,
)
graph = helper.make_graph(
    [node],
    "loan",
    [helper.make_tensor_value_info("input", TensorProto.FLOAT, [None, 4])],
    [
        helper.make_tensor_value_info("label", TensorProto.INT64, [None]),
        helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, [None, 2]),
    ],
)
folder = Path(__file__).parent / "models" / "loan" / "1"
folder.mkdir(exist_ok=True)
opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), folder / "model.onnx")
