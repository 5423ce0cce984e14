"""The models of the benchmark: the served ones, a full BERT, and nothing."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from bench.load.work import FEW, PROJECT, WANTED

LAYERS = 12
WIDTH = 768
HEADS = 12
INNER = 3072
LONGEST = 512
VOCABULARY = 30522
SPREAD = 0.02  # of the random weights, as BERT's own before training

NOTHING = """\
name: "{name}"
backend: "onnxruntime"
max_batch_size: 16
input [ {{ name: "INPUT" data_type: TYPE_FP32 dims: [ 1 ] }} ]
output [ {{ name: "OUTPUT" data_type: TYPE_FP32 dims: [ 1 ] }} ]
instance_group [ {{ count: 1 kind: KIND_AUTO }} ]
"""


def lay_out(folder: Path, *, nothings: int = 1) -> Path:
    """Make a model repository: the served models, full BERT, and nothing.

    The configurations are the project's own. The random BERT (450 MB) is made once, and once more
    for the in-process limit, with the scores of some places alone.
    """
    repository = folder / "repository"
    shutil.rmtree(repository, ignore_errors=True)
    for model in sorted((PROJECT / "model_repository").iterdir()):
        if model.is_dir():
            shutil.copytree(model, repository / model.name, copy_function=link)
    bert = folder / f"bert_{LAYERS}x{WIDTH}.onnx"
    for file, few in ((bert, False), (bert.with_suffix(FEW), True)):
        if not file.exists():
            part = file.with_suffix(".part")
            onnx.save(bert_base(few=few), part)
            part.rename(file)
    served = repository / "bert_base" / "1" / "model.onnx"
    served.unlink()
    served.symlink_to(bert)
    for number in range(nothings):
        add_nothing(repository, "nothing" + (str(number) if number else ""))
    return repository


def link(source: str, target: str) -> None:
    """Link weights, copy what is small."""
    if source.endswith(".onnx"):
        Path(target).symlink_to(Path(source).resolve())
    else:
        shutil.copy(source, target)


def add_nothing(repository: Path, name: str) -> None:
    model = repository / name
    (model / "1").mkdir(parents=True)
    (model / "config.pbtxt").write_text(NOTHING.format(name=name))
    onnx.save(nothing(), model / "1" / "model.onnx")


def nothing() -> onnx.ModelProto:
    """Return a model whose output is its input, one float."""
    shape: list[str | int | None] = ["batch", 1]
    return model_of(
        [helper.make_node("Identity", ["INPUT"], ["OUTPUT"])],
        [helper.make_tensor_value_info("INPUT", TensorProto.FLOAT, shape)],
        helper.make_tensor_value_info("OUTPUT", TensorProto.FLOAT, shape),
        [],
    )


def model_of(
    nodes: list[Any], inputs: list[Any], output: Any, weights: list[Any]
) -> onnx.ModelProto:
    graph = helper.make_graph(nodes, "bench", inputs, [output], weights)
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8, producer_name="bench"
    )


def bert_base(*, few: bool = False) -> onnx.ModelProto:
    """Return BERT-base with a fill-mask head and random weights.

    Args:
        few: whether it gives the scores of some places alone, [places, words]; their numbers are
            one more input, int64 [places], counted through all texts of the batch.

    """
    graph = Bert()
    nodes = graph.nodes
    ids, attention, kinds = "input_ids", "attention_mask", "token_type_ids"
    words = graph.weight("words", VOCABULARY, WIDTH)
    nodes("Shape", [ids], "shape")
    nodes("Gather", ["shape", graph.constant("one", 1)], "tokens")
    nodes(
        "Range",
        [graph.constant("zero", 0), "tokens", graph.constant("step", 1)],
        "places",
    )
    nodes("Gather", [words, ids], "of_words")
    nodes("Gather", [graph.weight("kinds", 2, WIDTH), kinds], "of_kinds")
    nodes("Gather", [graph.weight("places", LONGEST, WIDTH), "places"], "of_places")
    nodes("Add", ["of_words", "of_kinds"], "words_kinds")
    nodes("Add", ["words_kinds", "of_places"], "embedded")
    hidden = graph.normalized("embedded", "embedded")
    # What is padding gets so little attention that its softmax is 0.
    nodes("Cast", [attention], "seen", to=TensorProto.FLOAT)
    nodes("Unsqueeze", ["seen", graph.constant("axes", [1, 2])], "seen_4d")
    nodes("Sub", [graph.constant("all", np.float32(1)), "seen_4d"], "unseen")
    nodes("Mul", ["unseen", graph.constant("least", np.float32(-3.4e38))], "mask")
    for number in range(LAYERS):
        hidden = graph.layer(f"layer{number}", hidden)
    head = graph.gelu("head", graph.dense("head", hidden, WIDTH, WIDTH))
    head = graph.normalized("head", head)
    # The word embeddings once more, as the real head has them.
    nodes("Reshape", [head, graph.constant("flat", [-1, WIDTH])], "rows")
    bias = graph.weight("head.bias", VOCABULARY)
    shape: list[str | int | None] = ["batch", "tokens"]
    places: list[str | int | None] = ["places"]
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.INT64, shape)
        for name in (ids, attention, kinds)
    ]
    if few:
        inputs.append(helper.make_tensor_value_info(WANTED, TensorProto.INT64, places))
        nodes("Gather", ["rows", WANTED], "few", axis=0)
        nodes("Gemm", ["few", words, bias], "output", transB=1)
    else:
        nodes("Gemm", ["rows", words, bias], "logits", transB=1)
        vocabulary = graph.constant("vocabulary", [VOCABULARY])
        nodes("Concat", ["shape", vocabulary], "logits_shape", axis=0)
        nodes("Reshape", ["logits", "logits_shape"], "output")
    sizes = [*(places if few else shape), VOCABULARY]
    output = helper.make_tensor_value_info("output", TensorProto.FLOAT, sizes)
    return model_of(graph.made, inputs, output, graph.weights)


class Bert:
    """A graph that grows; names of tensors are handed on."""

    def __init__(self) -> None:
        self.made: list[Any] = []
        self.weights: list[Any] = []
        self._random = np.random.default_rng(5)

    def nodes(self, kind: str, inputs: list[str], output: str, **attributes: Any) -> str:
        self.made.append(helper.make_node(kind, inputs, [output], **attributes))
        return output

    def weight(self, name: str, *shape: int) -> str:
        values = self._random.standard_normal(shape, np.float32) * np.float32(SPREAD)
        return self.constant(name, values)

    def constant(self, name: str, value: Any) -> str:
        name = f"{name}.{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def normalized(self, name: str, hidden: str) -> str:
        ones, zeros = np.ones(WIDTH, np.float32), np.zeros(WIDTH, np.float32)
        return self.nodes(
            "LayerNormalization",
            [hidden, self.constant(f"{name}.scale", ones), self.constant(f"{name}.shift", zeros)],
            f"{name}.normalized",
            axis=-1,
            epsilon=1e-12,
        )

    def dense(self, name: str, hidden: str, width: int, wanted: int) -> str:
        product = self.nodes(
            "MatMul", [hidden, self.weight(name, width, wanted)], f"{name}.product"
        )
        return self.nodes("Add", [product, self.weight(f"{name}.bias", wanted)], f"{name}.dense")

    def gelu(self, name: str, hidden: str) -> str:
        root = self.constant(f"{name}.root", np.float32(2**0.5))
        one, half = np.float32(1), np.float32(0.5)
        self.nodes("Div", [hidden, root], f"{name}.divided")
        self.nodes("Erf", [f"{name}.divided"], f"{name}.erf")
        self.nodes("Add", [f"{name}.erf", self.constant(f"{name}.one", one)], f"{name}.gate")
        self.nodes("Mul", [hidden, f"{name}.gate"], f"{name}.gated")
        return self.nodes(
            "Mul", [f"{name}.gated", self.constant(f"{name}.half", half)], f"{name}.gelu"
        )

    def heads(self, name: str, hidden: str, order: list[int]) -> str:
        dense = self.dense(name, hidden, WIDTH, WIDTH)
        shape = self.constant(f"{name}.heads", [0, 0, HEADS, WIDTH // HEADS])
        split = self.nodes("Reshape", [dense, shape], f"{name}.split")
        return self.nodes("Transpose", [split], f"{name}.turned", perm=order)

    def layer(self, name: str, hidden: str) -> str:
        query = self.heads(f"{name}.query", hidden, [0, 2, 1, 3])
        key = self.heads(f"{name}.key", hidden, [0, 2, 3, 1])
        value = self.heads(f"{name}.value", hidden, [0, 2, 1, 3])
        scores = self.nodes("MatMul", [query, key], f"{name}.scores")
        scale = self.constant(f"{name}.scale", np.float32((WIDTH / HEADS) ** 0.5))
        scaled = self.nodes("Div", [scores, scale], f"{name}.scaled")
        masked = self.nodes("Add", [scaled, "mask"], f"{name}.masked")
        shares = self.nodes("Softmax", [masked], f"{name}.shares", axis=-1)
        mixed = self.nodes("MatMul", [shares, value], f"{name}.mixed")
        back = self.nodes("Transpose", [mixed], f"{name}.back", perm=[0, 2, 1, 3])
        flat = self.constant(f"{name}.flat", [0, 0, WIDTH])
        merged = self.nodes("Reshape", [back, flat], f"{name}.merged")
        out = self.dense(f"{name}.out", merged, WIDTH, WIDTH)
        seen = self.normalized(f"{name}.seen", self.nodes("Add", [out, hidden], f"{name}.residual"))
        wide = self.gelu(f"{name}.wide", self.dense(f"{name}.wide", seen, WIDTH, INNER))
        narrow = self.dense(f"{name}.narrow", wide, INNER, WIDTH)
        return self.normalized(name, self.nodes("Add", [narrow, seen], f"{name}.sum"))
