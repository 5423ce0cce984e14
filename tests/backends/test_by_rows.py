"""The last product of a model for the rows that are wanted alone, against numpy's own product."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from container.backends.batching import Rows
from container.backends.model_config import TensorSpec
from container.backends.onnxruntime.by_rows import by_rows
from container.backends.onnxruntime.session import OnnxSession
from container.backends.onnxruntime.session_settings import session_settings

PROJECT = Path(__file__).resolve().parents[2]
CPU = [("CPUExecutionProvider", {})]
CONFIG = {"name": "m", "instance_group": [{"count": 2, "kind": "KIND_CPU"}]}

GENERATOR = np.random.default_rng(7)
MATRIX = GENERATOR.normal(size=(4, 9)).astype(np.float32)
BIAS = GENERATOR.normal(size=9).astype(np.float32)
X = GENERATOR.normal(size=(2, 3, 4)).astype(np.float32)
NODE = helper.make_node

Nodes = list[Any]


def model(
    nodes: Nodes,
    shape: tuple[Any, ...] = ("n", "places", 9),
    x: tuple[Any, ...] = ("n", "places", 4),
    opset: int = 17,
    **weights: Any,
) -> onnx.ModelProto:
    """Return a model of y, from x."""
    weights = {"matrix": MATRIX, "bias": BIAS, **weights}
    used = {name for node in nodes for name in node.input}
    graph = helper.make_graph(
        nodes,
        "m",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, x)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
        [numpy_helper.from_array(array, name) for name, array in weights.items() if name in used],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


# -x is there so that the product is not the first node.
NEGATED = NODE("Neg", ["x"], ["h"])
BETWEEN_RESHAPES = [
    NEGATED,
    NODE("Shape", ["x"], ["dims"], end=2),
    NODE("Concat", ["dims", "nine"], ["shape"], axis=0),
    NODE("Reshape", ["h", "flat"], ["rows"]),
]
RESHAPES = {"flat": np.array([-1, 4]), "nine": np.array([9])}


def reshaped_to(first: str, second: str) -> onnx.ModelProto:
    """Return a model that ends in a shape of such parts, which nobody knows beforehand."""
    return model(
        [
            NEGATED,
            NODE("MatMul", ["h", "matrix"], ["p"]),
            NODE("Shape", ["x"], ["n"], end=1),
            NODE("Shape", ["x"], ["places"], start=1, end=2),
            # Multiplied by the number of rows, and divided by it.
            NODE("Mul", ["free", "n"], ["free_n"]),
            NODE("Div", ["free_n", "n"], ["rest"]),
            NODE("Mul", ["none", "n"], ["same"]),
            NODE("Concat", [first, second, "nine"], ["shape"], axis=0),
            NODE("Reshape", ["p", "shape"], ["y"]),
        ],
        free=np.array([-1]),
        none=np.array([0]),
        **RESHAPES,
    )


ENDS: dict[str, Callable[[], onnx.ModelProto]] = {
    "a product": lambda: model([NEGATED, NODE("MatMul", ["h", "matrix"], ["y"])]),
    "a bias": lambda: model(
        [NEGATED, NODE("MatMul", ["h", "matrix"], ["p"]), NODE("Add", ["p", "bias"], ["y"])]
    ),
    "a bias first": lambda: model(
        [NEGATED, NODE("MatMul", ["h", "matrix"], ["p"]), NODE("Add", ["bias", "p"], ["y"])]
    ),
    "between reshapes": lambda: model(
        [
            *BETWEEN_RESHAPES,
            NODE("Gemm", ["rows", "matrix", "bias"], ["p"]),
            NODE("Reshape", ["p", "shape"], ["y"]),
        ],
        **RESHAPES,
    ),
    "turned": lambda: model(
        [
            *BETWEEN_RESHAPES,
            NODE("Gemm", ["rows", "turned"], ["p"], transB=1),
            NODE("Reshape", ["p", "shape"], ["y"]),
        ],
        turned=np.ascontiguousarray(MATRIX.T),
        **RESHAPES,
    ),
    "any number of items": lambda: reshaped_to("rest", "places"),
    "any number of places": lambda: reshaped_to("n", "rest"),
    "as many items as there were": lambda: reshaped_to("same", "places"),
    "as many of both": lambda: reshaped_to("same", "same"),
}


def opened(made: onnx.ModelProto, folder: Path) -> OnnxSession:
    """Open a model as the backend does where there are two cores."""
    file = folder / "m" / "1" / "model.onnx"
    file.parent.mkdir(parents=True)
    onnx.save(made, file)
    (folder / "shared").mkdir()
    return OnnxSession(file, session_settings(CONFIG, cpus=2), CPU, {}, folder / "shared")


@pytest.mark.parametrize("end", ENDS)
def test_rows_are_those_of_the_whole(end: str, tmp_path: Path) -> None:
    session = opened(ENDS[end](), tmp_path)
    assert session.by_rows == ("y",)
    expected = -X @ MATRIX + (BIAS if end in {"a bias", "a bias first", "between reshapes"} else 0)
    for run in (session.run, session.run_beside_others):
        whole = run({"x": X}, ["y"])["y"]
        assert whole.shape == (2, 3, 9)
        np.testing.assert_allclose(whole, expected, atol=1e-5)
        few = run({"x": X}, ["y"], {"y": Rows((2, 3), [4, 0, 4])})["y"]
        np.testing.assert_allclose(few, expected.reshape(6, 9)[[4, 0, 4]], atol=1e-5)
    session.close()


@pytest.mark.parametrize("end", ENDS)
def test_a_model_looks_as_it_did(end: str, tmp_path: Path) -> None:
    """Its tensors are compared with the configuration, and told to who asks."""
    session = opened(ENDS[end](), tmp_path)
    assert session.signature.inputs == (TensorSpec("x", "TYPE_FP32", (-1, -1, 4)),)
    assert session.signature.outputs == (TensorSpec("y", "TYPE_FP32", (-1, -1, 9)),)
    session.close()


def test_rows_of_one_output_come_beside_all_of_another(tmp_path: Path) -> None:
    wide = GENERATOR.normal(size=(4, 5)).astype(np.float32)
    made = model([PRODUCT, NODE("MatMul", ["x", "wide"], ["z"])], wide=wide)
    z = helper.make_tensor_value_info("z", TensorProto.FLOAT, ["n", "places", 5])
    made.graph.output.append(z)
    session = opened(made, tmp_path)
    assert set(session.by_rows) == {"y", "z"}
    came = session.run({"x": X}, ["z", "y"], {"y": Rows((2, 3), [5])})
    np.testing.assert_allclose(came["y"], [X[1, 2] @ MATRIX], atol=1e-5)
    np.testing.assert_allclose(came["z"], X @ wide, atol=1e-5)
    assert [*session.run({"x": X}, ["z"])] == ["z"]
    session.close()


@pytest.mark.parametrize(
    ("end", "items", "places"), [("a bias", 0, 3), ("a bias", 2, 0), ("as many of both", 2, 0)]
)
def test_nothing_is_answered_with_nothing(
    end: str, items: int, places: int, tmp_path: Path
) -> None:
    session = opened(ENDS[end](), tmp_path)
    empty = session.run({"x": np.empty((items, places, 4), np.float32)}, ["y"])["y"]
    assert empty.shape == (items, places, 9)
    session.close()


def test_an_output_of_other_dimensions_is_none_of_whose_rows_are_counted(tmp_path: Path) -> None:
    session = opened(ENDS["a bias"](), tmp_path)
    with pytest.raises(ValueError, match=r"\[3, 2\], but there are \[2, 3\]"):
        session.run({"x": X}, ["y"], {"y": Rows((3, 2), [0])})
    session.close()


def test_the_models_own_head_is_one(tmp_path: Path) -> None:
    made = onnx.load(PROJECT / "model_repository" / "bert_base" / "1" / "model.onnx")
    session = opened(made, tmp_path)
    assert session.by_rows == ("output",)
    session.close()


IF = NODE(
    "If",
    ["yes"],
    ["z"],
    then_branch=helper.make_graph(
        [NODE("Neg", ["p"], ["a"])],
        "then",
        [],
        [helper.make_tensor_value_info("a", TensorProto.FLOAT, None)],
    ),
    else_branch=helper.make_graph(
        [NODE("Identity", ["x"], ["b"])],
        "else",
        [],
        [helper.make_tensor_value_info("b", TensorProto.FLOAT, None)],
    ),
)
PRODUCT = NODE("MatMul", ["x", "matrix"], ["y"])

OTHERS: dict[str, Callable[[], onnx.ModelProto]] = {
    "narrower than it was": lambda: model(
        [NODE("MatMul", ["x", "square"], ["y"])], ("n", "p", 4), square=np.eye(4, dtype=np.float32)
    ),
    "of a fixed length": lambda: model([PRODUCT], ("n", 3, 9), ("n", 3, 4)),
    "a row for each item": lambda: model([PRODUCT], ("n", 9), ("n", 4)),
    "of unknown size": lambda: model([PRODUCT], ("n", "places", "words")),
    "not the last": lambda: model(
        [NODE("MatMul", ["x", "matrix"], ["p"]), NODE("Softmax", ["p"], ["y"], axis=1)]
    ),
    "read by another": lambda: model(
        [
            NODE("MatMul", ["x", "matrix"], ["p"]),
            NODE("Add", ["p", "bias"], ["y"]),
            NODE("Neg", ["p"], ["z"]),
        ]
    ),
    "read in a graph inside": lambda: model(
        [NODE("MatMul", ["x", "matrix"], ["p"]), NODE("Add", ["p", "bias"], ["y"]), IF],
        yes=np.ones((), np.bool_),
    ),
    "a bias of each place": lambda: model(
        [NODE("MatMul", ["x", "matrix"], ["p"]), NODE("Add", ["p", "places"], ["y"])],
        places=np.zeros((3, 9), np.float32),
    ),
    "no matrix of the file": lambda: model(
        [NODE("Transpose", ["x"], ["t"], perm=[0, 2, 1]), NODE("MatMul", ["x", "t"], ["y"])]
    ),
}


@pytest.mark.parametrize("other", OTHERS)
def test_what_ends_otherwise_is_left_as_it_is(other: str) -> None:
    made = OTHERS[other]()
    assert by_rows(made.SerializeToString()) is None


def test_what_was_noted_of_a_size_is_not_believed_any_more(tmp_path: Path) -> None:
    """Both products are as large, by name: ONNX Runtime would use memory of one for the other."""
    made = model(
        [
            NODE("MatMul", ["x", "matrix"], ["p"]),
            NODE("Add", ["p", "bias"], ["y"]),
            NODE("MatMul", ["x", "twice"], ["q"]),
            NODE("Add", ["q", "bias"], ["z"]),
        ],
        twice=2 * MATRIX,
    )
    shape = ["n", "places", 9]
    made.graph.output.append(helper.make_tensor_value_info("z", TensorProto.FLOAT, shape))
    made.graph.value_info.extend(
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in ("p", "q")
    )
    session = opened(made, tmp_path)
    expected = {"y": X @ MATRIX + BIAS, "z": 2 * X @ MATRIX + BIAS}
    for name, other in (("y", "z"), ("z", "y")):
        for numbers in ([5], [0, 1, 2, 3, 4, 5]):
            came = session.run({"x": X}, ["y", "z"], {name: Rows((2, 3), numbers)})
            few = expected[name].reshape(6, 9)[numbers]
            np.testing.assert_allclose(came[name], few, atol=1e-5)
            np.testing.assert_allclose(came[other], expected[other], atol=1e-5)
    session.close()


def test_a_model_of_before_there_were_ranges_is_run_as_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    session = opened(model([PRODUCT], opset=10), tmp_path)
    assert session.by_rows == ()
    assert session.sessions[0].get_inputs()[0].name == "x"
    assert "is not run by rows" in capsys.readouterr().err
    np.testing.assert_allclose(session.run({"x": X}, ["y"])["y"], X @ MATRIX, atol=1e-5)
    session.close()


def test_a_changed_graph_is_one_of_onnx() -> None:
    """By ONNX's own checker, which wants all fields right, and nodes in their order."""
    for make in ENDS.values():
        changed = by_rows(make().SerializeToString())
        assert changed
        onnx.checker.check_model(onnx.load_from_string(changed), full_check=True)
