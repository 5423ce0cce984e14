"""Small ONNX models, made here so that every answer can be worked out by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, ValueInfoProto, helper, numpy_helper

Tensor = tuple[str, int, Sequence[int | str | None] | None]
FLOAT, INT64, STRING = TensorProto.FLOAT, TensorProto.INT64, TensorProto.STRING
EVERY_TYPE = {
    "BOOL": TensorProto.BOOL,
    "UINT8": TensorProto.UINT8,
    "UINT16": TensorProto.UINT16,
    "UINT32": TensorProto.UINT32,
    "UINT64": TensorProto.UINT64,
    "INT8": TensorProto.INT8,
    "INT16": TensorProto.INT16,
    "INT32": TensorProto.INT32,
    "INT64": TensorProto.INT64,
    "FP16": TensorProto.FLOAT16,
    "FP32": TensorProto.FLOAT,
    "FP64": TensorProto.DOUBLE,
}


def make(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor | ValueInfoProto],
    noted: Mapping[str, str] | None = None,
    **initializers: np.ndarray[Any, Any],
) -> onnx.ModelProto:
    """Return a model of these nodes, with what an exporter has noted in it."""
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info(*tensor) for tensor in inputs],
        [
            one if isinstance(one, ValueInfoProto) else helper.make_tensor_value_info(*one)
            for one in outputs
        ],
        [numpy_helper.from_array(array, name) for name, array in initializers.items()],
    )
    domains = {"": 17, "ai.onnx.ml": 3, "com.microsoft": 1}
    used = {"", *(node.domain for node in nodes)}
    opsets = [helper.make_opsetid(name, domains[name]) for name in domains if name in used]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    helper.set_model_props(model, dict(noted or {}))
    return model


def save(file: Path, *parts: Any, **initializers: np.ndarray[Any, Any]) -> Path:
    """Write the model that `make` makes of the parts."""
    file.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(make(*parts, **initializers), file)
    return file


def plus_one(file: Path, shape: Sequence[int | str] | None = ("n", 3)) -> None:
    """x, float32 -> y = x + 1"""
    nodes = [helper.make_node("Add", ["x", "one"], ["y"])]
    save(file, nodes, [("x", FLOAT, shape)], [("y", FLOAT, shape)], one=np.float32(1)[...])


def shares(file: Path) -> None:
    """x [n, 2] float32 -> y, the softmax down the rows: a row of zeros alone has ones"""
    nodes = [helper.make_node("Softmax", ["x"], ["y"], axis=0)]
    save(file, nodes, [("x", FLOAT, ("n", 2))], [("y", FLOAT, ("n", 2))])


def nonzero(file: Path) -> None:
    """x, float32 -> where it is not 0, int64 of shape [2, so many]"""
    nodes = [helper.make_node("NonZero", ["x"], ["where"])]
    save(file, nodes, [("x", FLOAT, ("n", 3))], [("where", TensorProto.INT64, (2, "found"))])


def scalar_rows(file: Path) -> None:
    plus_one(file, ["n"])


def scalar(file: Path) -> None:
    plus_one(file, [])


def fixed_batch(file: Path) -> None:
    plus_one(file, [1, 3])


def batch_size(file: Path) -> None:
    """x [n, 1] float32 -> rows [n, 1] = n everywhere, the rows that were run together"""
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"], start=0, end=1),
        helper.make_node("Cast", ["shape"], ["size"], to=FLOAT),
        helper.make_node("Mul", ["x", "zero"], ["nothing"]),
        helper.make_node("Add", ["nothing", "size"], ["rows"]),
    ]
    x, rows = [("x", FLOAT, ["n", 1])], [("rows", FLOAT, ["n", 1])]
    save(file, nodes, x, rows, zero=np.float32(0)[...])


def total(file: Path) -> None:
    """x [n, m] float32 -> total [n, 1], the sum of each row"""
    nodes = [helper.make_node("ReduceSum", ["x", "axes"], ["total"], keepdims=1)]
    save(file, nodes, [("x", FLOAT, ["n", "m"])], [("total", FLOAT, ["n", 1])], axes=np.array([1]))


def columns(file: Path) -> None:
    """x [n, m] float32 -> same [n, m] = x, total [n, 1], width [n, 1] = m, as it was run"""
    nodes = [
        helper.make_node("Identity", ["x"], ["same"]),
        helper.make_node("ReduceSum", ["x", "axes"], ["total"], keepdims=1),
        helper.make_node("Shape", ["x"], ["shape"], start=1, end=2),
        helper.make_node("Cast", ["shape"], ["size"], to=FLOAT),
        helper.make_node("Mul", ["total", "zero"], ["nothing"]),
        helper.make_node("Add", ["nothing", "size"], ["width"]),
    ]
    x, same = (("x", FLOAT, ["n", "m"]), ("same", FLOAT, ["n", "m"]))
    others = [(name, FLOAT, ["n", 1]) for name in ("total", "width")]
    save(file, nodes, [x], [same, *others], axes=np.array([1]), zero=np.float32(0)[...])


def lookup(file: Path) -> None:
    """index [n, 1] int64 -> value [n, 1] = (10, 20, 30)[index], echo = index"""
    nodes = [
        helper.make_node("Gather", ["table", "index"], ["value"]),
        helper.make_node("Identity", ["index"], ["echo"]),
    ]
    outputs = [("value", FLOAT, ["n", 1]), ("echo", INT64, ["n", 1])]
    table = np.array([10, 20, 30], np.float32)
    save(file, nodes, [("index", INT64, ["n", 1])], outputs, table=table)


def words(file: Path) -> None:
    nodes = [helper.make_node("Identity", ["text"], ["same"])]
    save(file, nodes, [("text", STRING, ["n", "m"])], [("same", STRING, ["n", "m"])])


def every_type(file: Path) -> None:
    save(
        file,
        [helper.make_node("Identity", [f"in_{name}"], [f"out_{name}"]) for name in EVERY_TYPE],
        [(f"in_{name}", code, ["n", 2]) for name, code in EVERY_TYPE.items()],
        [(f"out_{name}", code, ["n", 2]) for name, code in EVERY_TYPE.items()],
    )


def in_every_type() -> dict[str, np.ndarray[Any, Any]]:
    """Return inputs of `every_type`, [1, 2], each with the greatest whole number of its type."""
    inputs = {}
    for name, code in EVERY_TYPE.items():
        dtype = helper.tensor_dtype_to_np_dtype(code)
        greatest = 7.25 if dtype.kind == "f" else np.iinfo(dtype).max if dtype.kind in "iu" else 1
        inputs[f"in_{name}"] = np.array([[1, greatest]], dtype)
    return inputs


def with_default(file: Path) -> None:
    """x [3], bias [3] (1, 2, 3 where it is not given) -> y = x + bias"""
    nodes = [helper.make_node("Add", ["x", "bias"], ["y"])]
    inputs = [("x", FLOAT, [3]), ("bias", FLOAT, [3])]
    save(file, nodes, inputs, [("y", FLOAT, [3])], bias=np.array([1, 2, 3], np.float32))


def two_inputs(file: Path) -> None:
    nodes = [helper.make_node("Add", ["x", "start"], ["y"])]
    x, start, y = ((name, FLOAT, ["n", 1]) for name in ("x", "start", "y"))
    save(file, nodes, [x, start], [y])


def running(file: Path) -> None:
    """x, sum [n, 1] -> y = x + sum, again as next; beside it the 10 that a sequence begins with"""
    nodes = [helper.make_node("Add", ["x", "sum"], ["y"])]
    nodes.append(helper.make_node("Identity", ["y"], ["next"]))
    x, total, y, following = ((name, FLOAT, ["n", 1]) for name in ("x", "sum", "y", "next"))
    save(file, nodes, [x, total], [y, following])
    ten = file.parent.parent / "initial_state" / "ten"
    ten.parent.mkdir()
    ten.write_bytes(np.array([10], np.float32).tobytes())


def unknown_ranks(file: Path) -> None:
    """x, of any number of dimensions -> y = x + x, of as many, as far as the file says"""
    nodes = [helper.make_node("Add", ["x", "x"], ["y"])]
    save(file, nodes, [("x", FLOAT, None)], [("y", FLOAT, None)])


def reshaped(file: Path) -> None:
    """x [n, m], dims [k] -> y = x with these dims"""
    nodes = [helper.make_node("Reshape", ["x", "dims"], ["y"])]
    inputs = [("x", FLOAT, ["n", "m"]), ("dims", INT64, ["k"])]
    save(file, nodes, inputs, [("y", FLOAT, None)])


def zipmap(file: Path) -> None:
    """x [n, 2] -> a map of both for each row, as of a classifier of scikit-learn"""
    node = helper.make_node(
        "ZipMap", ["x"], ["probabilities"], domain="ai.onnx.ml", classlabels_int64s=[0, 1]
    )
    save(file, [node], [("x", FLOAT, ["n", 2])], [maps_of("probabilities", INT64)])


def maps_of(name: str, keys: int) -> ValueInfoProto:
    """Return an output that is a map to numbers for each row."""
    row = helper.make_map_type_proto(keys, helper.make_tensor_type_proto(FLOAT, None))
    return helper.make_value_info(name, helper.make_sequence_type_proto(row))


def mapped_classes(file: Path) -> None:
    """x [n, 2] -> label [n], and a map of 3 probabilities for each row, as skl2onnx has it"""
    labels, domain = ["cup", "fork", "größe"], "ai.onnx.ml"
    nodes = [
        helper.make_node(
            "LinearClassifier",
            ["x"],
            ["label", "scores"],
            domain=domain,
            classlabels_strings=labels,
            coefficients=[1.0, -1.0, 0.5, 2.0, -3.0, 0.25],
            intercepts=[0.0, 0.5, -0.5],
            post_transform="LOGISTIC",
        ),
        helper.make_node("Normalizer", ["scores"], ["probabilities"], domain=domain, norm="L1"),
        helper.make_node(
            "ZipMap",
            ["probabilities"],
            ["output_probability"],
            domain=domain,
            classlabels_strings=labels,
        ),
    ]
    outputs = [("label", STRING, ["n"]), maps_of("output_probability", STRING)]
    save(file, nodes, [("x", FLOAT, ["n", 2])], outputs)


def bfloat16(file: Path) -> None:
    nodes = [helper.make_node("Cast", ["x"], ["y"], to=FLOAT)]
    save(file, nodes, [("x", TensorProto.BFLOAT16, ["n"])], [("y", FLOAT, ["n"])])


def split_words(file: Path, words: str) -> None:
    """text [n] -> words [n, most]"""
    node = helper.make_node(
        "Tokenizer", ["text"], ["words"], domain="com.microsoft", tokenexp=words, mark=0,
        mincharnum=1, pad_value="#",
    )  # fmt: skip
    save(file, [node], [("text", STRING, ["n"])], [("words", STRING, ["n", "most"])])


def small_letters(file: Path, **attributes: str) -> None:
    """text [n] -> small [n]"""
    node = helper.make_node(
        "StringNormalizer", ["text"], ["small"], case_change_action="LOWER", **attributes
    )
    save(file, [node], [("text", STRING, ["n"])], [("small", STRING, ["n"])])


def broken(file: Path) -> None:
    file.parent.mkdir(parents=True)
    file.write_bytes(b"not a model")


# With the tensors that exporters write


def tables(
    file: Path,
    images: Sequence[int | str],
    noted: Mapping[str, str] | None = None,
    **outputs: np.ndarray[Any, Any],
) -> Path:
    """A detector that answers the same tables to each picture."""
    nodes, arrays = [], {"none": np.zeros(1, np.float32)}
    nodes.append(helper.make_node("ReduceMean", ["images"], ["mean"], axes=[1, 2, 3], keepdims=0))
    nodes.append(helper.make_node("Mul", ["mean", "none"], ["nothing"]))
    for name, table in outputs.items():
        arrays |= {f"{name}_table": table[None], f"{name}_ones": np.array([-1, *[1] * table.ndim])}
        nodes.append(helper.make_node("Reshape", ["nothing", f"{name}_ones"], [f"{name}_gate"]))
        nodes.append(helper.make_node("Add", [f"{name}_table", f"{name}_gate"], [name]))
    shapes = [(name, FLOAT, [images[0], *table.shape]) for name, table in outputs.items()]
    return save(file, nodes, [("images", FLOAT, images)], shapes, noted, **arrays)


def letters(file: Path, images: Sequence[int | str], *, steps_first: bool = False) -> Path:
    """A recogniser of lines with a step for each column, and four classes that are equally likely.

    PaddleOCR's note has the letters a and b; a blank and a space are beside them.
    """
    order, shape = ([1, 0, 2], ("w", 1, 4)) if steps_first else ([0, 1, 2], ("n", "w", 4))
    nodes = [
        helper.make_node("ReduceMean", ["x"], ["columns"], axes=[1, 2], keepdims=0),
        helper.make_node("Unsqueeze", ["columns", "last"], ["each"]),
        helper.make_node("Mul", ["each", "none"], ["logits"]),
        helper.make_node("Softmax", ["logits"], ["likely"], axis=2),
        helper.make_node("Transpose", ["likely"], ["y"], perm=order),
    ]
    noted = {} if steps_first else {"character": "a\nb\n"}
    sides = [("x", FLOAT, images)], [("y", FLOAT, shape)]
    return save(file, nodes, *sides, noted, last=np.array([2]), none=np.zeros(4, np.float32))


def scores(
    file: Path,
    images: Sequence[int | str],
    classes: int,
    kind: int = FLOAT,
    noted: Mapping[str, str] | None = None,
    names: tuple[str, str] = ("images", "logits"),
) -> Path:
    """A classifier: the score of class i is i times the mean of all numbers of the picture."""
    return save(
        file,
        [
            helper.make_node("Cast", names[:1], ["numbers"], to=FLOAT),
            helper.make_node("ReduceMean", ["numbers"], ["mean"], axes=[1, 2, 3], keepdims=0),
            helper.make_node("Reshape", ["mean", "column"], ["rows"]),
            helper.make_node("Mul", ["rows", "weights"], names[1:]),
        ],
        [(names[0], kind, images)],
        [(names[1], FLOAT, [images[0], classes])],
        noted,
        column=np.array([-1, 1]),
        weights=np.arange(classes, dtype=np.float32)[None],
    )


def ends(file: Path) -> Path:
    """A model that answers questions: the answer starts and ends at the token of the largest id."""
    nodes = [
        helper.make_node("Cast", ["input_ids"], [f"{end}_logits"], to=FLOAT)
        for end in ("start", "end")
    ]
    batch: list[int | str] = ["n", "t"]
    outputs = [(f"{end}_logits", FLOAT, batch) for end in ("start", "end")]
    return save(file, nodes, [("input_ids", INT64, batch)], outputs)


def reader(file: Path, width: int, outputs: Sequence[str] = ("logits",), *, per: str) -> Path:
    """One layer of attention over random vectors, which heeds its mask, as a small BERT.

    `width` numbers `per` "token", or "text", those of its first token; or an output of "ends" each.
    """
    numbers = np.random.default_rng(width)
    inputs = ("input_ids", "attention_mask", "token_type_ids")
    nodes = [
        helper.make_node("Gather", ["words", "input_ids"], ["word"]),
        helper.make_node("Gather", ["types", "token_type_ids"], ["type"]),
        helper.make_node("Add", ["word", "type"], ["x"]),
        helper.make_node("Cast", ["attention_mask"], ["mask"], to=FLOAT),
        helper.make_node("Sub", ["mask", "one"], ["hidden"]),
        helper.make_node("Mul", ["hidden", "far"], ["below"]),
        helper.make_node("Unsqueeze", ["below", "axis"], ["bias"]),
        helper.make_node("Transpose", ["x"], ["turned"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["x", "turned"], ["near"]),
        helper.make_node("Add", ["near", "bias"], ["masked"]),
        helper.make_node("Softmax", ["masked"], ["shares"], axis=-1),
        helper.make_node("MatMul", ["shares", "x"], ["seen"]),
        helper.make_node("Add", ["seen", "x"], ["whole"]),
        helper.make_node("Gather", ["whole", "first"], ["begin"], axis=1),
        helper.make_node("MatMul", ["begin" if per == "text" else "whole", "head"], ["scores"]),
    ]
    batch: list[int | str] = ["n", "t"]
    if per == "ends":
        nodes.append(helper.make_node("Split", ["scores", "halves"], ["s", "e"], axis=2))
        nodes += [
            helper.make_node("Squeeze", [half, "last"], [name])
            for half, name in zip("se", outputs, strict=True)
        ]
        made = [(name, FLOAT, batch) for name in outputs]
    else:
        nodes.append(helper.make_node("Identity", ["scores"], [outputs[0]]))
        made = [(outputs[0], FLOAT, ["n", width] if per == "text" else [*batch, width])]
    return save(
        file,
        nodes,
        [(name, INT64, batch) for name in inputs],
        made,
        words=numbers.normal(0, 1, (30522, 8)).astype(np.float32),
        types=numbers.normal(0, 1, (2, 8)).astype(np.float32),
        head=numbers.normal(0, 2, (8, width)).astype(np.float32),
        one=np.ones(1, np.float32),
        far=np.full(1, 1e4, np.float32),
        axis=np.array([1]),
        last=np.array([2]),
        first=np.array(0),
        halves=np.array([1, 1]),
    )


def tokens(
    file: Path, width: int, *, pooled: str = "", each: str = "last_hidden_state", most: int = 0
) -> Path:
    """A text model: `width` numbers for each token, i times its id; or, `pooled`, their mean.

    With `most` a longer text fails, as with embeddings of so many positions.
    """
    batch: list[int | str] = ["n", "t"]
    nodes = [helper.make_node("Cast", ["input_ids"], ["ids"], to=FLOAT)]
    arrays: dict[str, np.ndarray[Any, Any]] = {"weights": np.arange(width, dtype=np.float32)}
    if most:
        nodes += [
            helper.make_node("Shape", ["input_ids"], ["length"], start=1, end=2),
            helper.make_node("Sub", ["length", "one"], ["last"]),
            helper.make_node("Gather", ["positions", "last"], ["position"]),
            helper.make_node("Add", ["ids", "position"], ["placed"]),
        ]
        arrays |= {"positions": np.zeros(most, np.float32), "one": np.array([1])}
    nodes += [
        helper.make_node("Unsqueeze", ["placed" if most else "ids", "last_axis"], ["column"]),
        helper.make_node("Mul", ["column", "weights"], [each]),
    ]
    arrays["last_axis"] = np.array([2])
    if pooled:
        nodes.append(helper.make_node("ReduceMean", [each], [pooled], axes=[1], keepdims=0))
    output = (pooled, FLOAT, ["n", width]) if pooled else (each, FLOAT, [*batch, width])
    return save(file, nodes, [("input_ids", INT64, batch)], [output], **arrays)
