"""The last product of a model for the rows that are wanted alone, against numpy's own product."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from backends.batching.item import RunRows
from backends.onnx_files.rows import take_rows
from backends.onnxruntime.session import OnnxSession
from backends.onnxruntime.session_settings import SessionSettings
from backends.openvino.session import OpenVinoSession
from tests.support.models import onnx_models
from tests.support.models.onnx_models import FLOAT

PROJECT = Path(__file__).resolve().parents[3]
PROPERTIES = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1}

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
    **weights: Any,
) -> onnx.ModelProto:
    """Return a model of y, from x."""
    weights = {"matrix": MATRIX, "bias": BIAS, **weights}
    used = {name for node in nodes for name in node.input}
    known = {name: array for name, array in weights.items() if name in used}
    return onnx_models.make(nodes, [("x", FLOAT, x)], [("y", FLOAT, shape)], **known)


# -x is there so that the product is not the first node.
NEGATED = NODE("Neg", ["x"], ["h"])
BETWEEN_RESHAPES = [
    NEGATED,
    NODE("Shape", ["x"], ["dims"], end=2),
    NODE("Concat", ["dims", "nine"], ["shape"], axis=0),
    NODE("Reshape", ["h", "flat"], ["rows"]),
]
RESHAPES = {"flat": np.array([-1, 4]), "nine": np.array([9])}
PRODUCT = NODE("MatMul", ["x", "matrix"], ["y"])

BACK = NODE("Reshape", ["p", "shape"], ["y"])

ENDS: dict[str, Callable[[], onnx.ModelProto]] = {
    "a product": lambda: model([NEGATED, NODE("MatMul", ["h", "matrix"], ["y"])]),
    "a bias": lambda: model(
        [NEGATED, NODE("MatMul", ["h", "matrix"], ["p"]), NODE("Add", ["p", "bias"], ["y"])]
    ),
    "a bias between reshapes": lambda: model(
        [*BETWEEN_RESHAPES, NODE("Gemm", ["rows", "matrix", "bias"], ["p"]), BACK], **RESHAPES
    ),
    "turned, between reshapes": lambda: model(
        [*BETWEEN_RESHAPES, NODE("Gemm", ["rows", "turned"], ["p"], transB=1), BACK],
        turned=np.ascontiguousarray(MATRIX.T),
        **RESHAPES,
    ),
}


Open = Callable[[onnx.ModelProto], Any]


def with_openvino(file: Path) -> OpenVinoSession:
    return OpenVinoSession(file, PROPERTIES)


def with_onnxruntime(file: Path) -> OnnxSession:
    return OnnxSession(file, SessionSettings(intra_op_threads=1))


@pytest.fixture(params=[with_openvino, with_onnxruntime])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    """Opens a model, whose weights are in a file of their own, with each engine."""

    def open_it(made: onnx.ModelProto) -> Any:
        file = tmp_path / "model.onnx"
        onnx.save(made, file, save_as_external_data=True, location="outside", size_threshold=100)
        return request.param(file)

    return open_it


@pytest.mark.parametrize("end", ENDS)
def test_rows_are_those_of_the_whole(end: str, opened: Open) -> None:
    session = opened(ENDS[end]())
    assert session.by_rows.outputs == ("y",)
    expected = -X @ MATRIX + (BIAS if "bias" in end else 0)
    for _ in range(2):  # a run leaves nothing behind for the next
        whole = session.run({"x": X}, ["y"])["y"]
        assert whole.shape == (2, 3, 9)
        np.testing.assert_allclose(whole, expected, atol=1e-5)
        for rows in ([4], [0, 5], [4, 0, 4], [0, 1, 2, 3]):
            few = session.run({"x": X}, ["y"], {"y": RunRows((2, 3), rows)})["y"]
            np.testing.assert_allclose(few, expected.reshape(6, 9)[rows], atol=1e-5)
    for shape in ((0, 3), (2, 0)) if "reshapes" not in end else ():
        nothing = np.empty((*shape, 4), np.float32)
        assert session.run({"x": nothing}, ["y"])["y"].shape == (*shape, 9)


@pytest.mark.parametrize(
    ("places", "back", "dims"), [((2, 3), [-1, 6, 9], (2, 6)), ((6,), [3, -1, 9], (3, 4))]
)
def test_rows_are_counted_in_the_dimensions_of_the_output(
    opened: Open, places: tuple[int, ...], back: list[int], dims: tuple[int, int]
) -> None:
    nodes = [
        NODE("Reshape", ["x", "flat"], ["rows"]),
        NODE("MatMul", ["rows", "matrix"], ["p"]),
        NODE("Reshape", ["p", "back"], ["y"]),
    ]
    flat = np.array([-1, 4])
    session = opened(model(nodes, x=("n", *places, 4), flat=flat, back=np.array(back)))
    x = GENERATOR.normal(size=(2, *places, 4)).astype(np.float32)
    expected = (x @ MATRIX).reshape(*dims, 9)
    np.testing.assert_allclose(session.run({"x": x}, ["y"])["y"], expected, atol=1e-5)
    few = session.run({"x": x}, ["y"], {"y": RunRows(dims, [7, 2])})["y"]
    np.testing.assert_allclose(few, expected.reshape(-1, 9)[[7, 2]], atol=1e-5)


@pytest.mark.parametrize("height", [3, 2**20])
def test_a_damaged_file_is_left_to_its_engine(tmp_path: Path, height: int) -> None:
    file = tmp_path / "model.onnx"
    file.write_bytes(bytes(height))
    assert take_rows(file, inlined=True) == (b"", ())
    file.write_bytes(b"\xff" * height)
    assert take_rows(file, inlined=True) == (b"", ())


def test_weights_outside_of_the_folder_are_not_read(tmp_path: Path) -> None:
    file = tmp_path / "in" / "model.onnx"
    file.parent.mkdir()
    options = {"location": "data", "size_threshold": 100}
    onnx.save(model([PRODUCT]), file, save_as_external_data=True, **options)
    assert take_rows(file, inlined=True)[1] == ("y",)
    (file.parent / "data").rename(tmp_path / "data")
    assert take_rows(file, inlined=True) == (b"", ())
    (file.parent / "data").symlink_to(tmp_path / "data")
    assert take_rows(file, inlined=True) == (b"", ())


def test_rows_of_one_output_come_beside_all_of_another(opened: Open) -> None:
    wide = GENERATOR.normal(size=(4, 5)).astype(np.float32)
    made = model([PRODUCT, NODE("MatMul", ["x", "wide"], ["z"])], wide=wide)
    z = helper.make_tensor_value_info("z", FLOAT, ["n", "places", 5])
    made.graph.output.append(z)
    session = opened(made)
    assert set(session.by_rows.outputs) == {"y", "z"}
    came = session.run({"x": X}, ["z", "y"], {"y": RunRows((2, 3), [5])})
    np.testing.assert_allclose(came["y"], [X[1, 2] @ MATRIX], atol=1e-5)
    np.testing.assert_allclose(came["z"], X @ wide, atol=1e-5)
    assert [*session.run({"x": X}, ["z"])] == ["z"]


def test_rows_counted_in_other_dimensions_are_refused(opened: Open) -> None:
    session = opened(ENDS["a bias"]())
    with pytest.raises(ValueError, match=r"\[3, 2\], but there are \[2, 3\]"):
        session.run({"x": X}, ["y"], {"y": RunRows((3, 2), [0])})


def test_an_input_is_found_by_its_own_name(opened: Open) -> None:
    dropped = [NODE("Identity", ["x"], ["h"]), NODE("MatMul", ["h", "matrix"], ["y"])]
    came = opened(model(dropped)).run({"x": X}, ["y"])["y"]
    np.testing.assert_allclose(came, X @ MATRIX, atol=1e-5)


def test_the_models_own_head_is_one() -> None:
    file = PROJECT / "model_repository" / "bert_base" / "1" / "model.onnx"
    by_rows = OpenVinoSession(file, PROPERTIES).by_rows
    assert by_rows.outputs == ("output",)


def test_all_is_computed_where_the_rows_are_of_no_product(opened: Open) -> None:
    """What a softmax over the places gives is not a row's own."""
    session = opened(OTHERS["not the last"]())
    product = np.exp(X @ MATRIX - (X @ MATRIX).max(1, keepdims=True))
    np.testing.assert_allclose(
        session.run({"x": X}, ["y"])["y"], product / product.sum(1, keepdims=True), atol=1e-5
    )


OTHERS: dict[str, Callable[[], onnx.ModelProto]] = {
    "narrower than it was": lambda: model(
        [NODE("MatMul", ["x", "square"], ["y"])], ("n", "p", 4), square=np.eye(4, dtype=np.float32)
    ),
    "of a fixed length": lambda: model([PRODUCT], ("n", 3, 9), ("n", 3, 4)),
    "a row for each item": lambda: model([PRODUCT], ("n", 9), ("n", 4)),
    "not the last": lambda: model(
        [NODE("MatMul", ["x", "matrix"], ["p"]), NODE("Softmax", ["p"], ["y"], axis=1)]
    ),
    "a bias of each place": lambda: model(
        [NODE("MatMul", ["x", "matrix"], ["p"]), NODE("Add", ["p", "places"], ["y"])],
        places=np.zeros((3, 9), np.float32),
    ),
    "a bias by an input": lambda: model(
        [
            NODE("MatMul", ["x", "matrix"], ["p"]),
            NODE("ReduceSum", ["x", "all"], ["sum"], keepdims=0),
            NODE("Mul", ["bias", "sum"], ["own"]),
            NODE("Add", ["p", "own"], ["y"]),
        ],
        all=np.array([0, 1, 2]),
    ),
    "turned hidden": lambda: model(
        [
            *BETWEEN_RESHAPES[:3],
            NODE("Reshape", ["h", "flat"], ["rows"]),
            NODE("Gemm", ["rows", "matrix"], ["p"], transA=1),
            BACK,
        ],
        **{**RESHAPES, "flat": np.array([4, -1])},
    ),
    "a scale for each row of the matrix": lambda: model(
        [NODE("Mul", ["matrix", "scales"], ["m"]), NODE("MatMul", ["x", "m"], ["y"])],
        scales=np.ones((4, 1), np.float32),
    ),
    "no matrix of the file": lambda: model(
        [NODE("Transpose", ["x"], ["t"], perm=[0, 2, 1]), NODE("MatMul", ["x", "t"], ["y"])]
    ),
}


@pytest.mark.parametrize("other", OTHERS)
def test_what_ends_otherwise_is_left_as_it_is(other: str, opened: Open) -> None:
    assert opened(OTHERS[other]()).by_rows is None


def test_the_weights_are_there_once(tmp_path: Path) -> None:
    onnx.save(model([PRODUCT]), tmp_path / "model.onnx")
    session = with_onnxruntime(tmp_path / "model.onnx")
    assert session.by_rows
    assert not any(isinstance(one, bytes) for one in vars(session._session).values())


def test_a_model_whose_operators_are_too_old_is_left_as_it_is(opened: Open) -> None:
    made = model([PRODUCT])
    made.opset_import[0].version = 9
    assert opened(made).run({"x": X}, ["y"])["y"] == pytest.approx(X @ MATRIX, abs=1e-5)


def test_a_product_that_is_read_twice_is_left_as_it_is(opened: Open) -> None:
    made = model(
        [
            NODE("MatMul", ["x", "matrix"], ["p"]),
            NODE("Add", ["p", "bias"], ["y"]),
            NODE("ReduceMax", ["p"], ["z"], axes=[1, 2], keepdims=0),
        ]
    )
    made.graph.output.append(helper.make_tensor_value_info("z", FLOAT, ["n"]))
    session = opened(made)
    assert session.by_rows is None
    came = session.run({"x": X}, ["y", "z"])
    np.testing.assert_allclose(came["y"], X @ MATRIX + BIAS, atol=1e-5)
    np.testing.assert_allclose(came["z"], (X @ MATRIX).max((1, 2)), atol=1e-5)
