"""The models of the benchmark: the served ones, and a full BERT."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from backends.onnx_files.rows import take_rows
from bench.load.work import FEW, PROJECT

LAYERS = 12
WIDTH = 768
HEADS = 12
INNER = 3072
LONGEST = 512
VOCABULARY = 30522
SPREAD = 0.02  # of the random weights, as BERT's own before training


def lay_out(folder: Path) -> Path:
    """Make a model repository: the served models, and full BERT.

    The configurations are the project's own. The random BERT (450 MB) is made once, and once more
    for the in-process limit, with the scores of some places alone, as the server makes it.
    """
    repository = folder / "repository"
    shutil.rmtree(repository, ignore_errors=True)
    for model in sorted((PROJECT / "model_repository").iterdir()):
        if model.is_dir():
            shutil.copytree(model, repository / model.name, copy_function=link)
    bert = folder / f"bert_{LAYERS}x{WIDTH}.onnx"
    if not bert.with_suffix(FEW).exists():
        onnx.save(bert_base(), bert)
        made, _ = take_rows(bert, inlined=True)
        part = bert.with_suffix(".part")
        part.write_bytes(made)
        part.rename(bert.with_suffix(FEW))
    served = repository / "bert_base" / "1" / "model.onnx"
    served.unlink()
    served.symlink_to(bert)
    return repository


def link(source: str, target: str) -> None:
    """Link weights, copy what is small."""
    if source.endswith(".onnx"):
        Path(target).symlink_to(Path(source).resolve())
    else:
        shutil.copy(source, target)


def bert_base() -> onnx.ModelProto:
    """Return BERT-base with a fill-mask head and random weights."""
    graph = Bert()
    node, weight, constant = graph.node, graph.weight, graph.constant
    ids, attention, kinds = "input_ids", "attention_mask", "token_type_ids"
    words = weight(VOCABULARY, WIDTH)
    shape = node("Shape", ids)
    tokens = node("Range", constant(0), node("Gather", shape, constant(1)), constant(1))
    embedded = node("Gather", words, ids)
    for table, which in ((weight(2, WIDTH), kinds), (weight(LONGEST, WIDTH), tokens)):
        embedded = node("Add", embedded, node("Gather", table, which))
    hidden = graph.normalized(embedded)
    # What is padding gets so little attention that its softmax is 0.
    seen = node("Cast", attention, to=TensorProto.FLOAT)
    unseen = node("Sub", constant(np.float32(1)), node("Unsqueeze", seen, constant([1, 2])))
    mask = node("Mul", unseen, constant(np.float32(-3.4e38)))
    for _ in range(LAYERS):
        hidden = graph.layer(hidden, mask)
    head = graph.normalized(graph.gelu(graph.dense(hidden, WIDTH, WIDTH)))
    # The word embeddings once more, as the real head has them.
    rows = node("Reshape", head, constant([-1, WIDTH]))
    logits = node("Gemm", rows, words, weight(VOCABULARY), transB=1)
    node("Reshape", logits, node("Concat", shape, constant([VOCABULARY]), axis=0), name="output")
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "tokens"])
        for name in (ids, attention, kinds)
    ]
    sizes: list[str | int | None] = ["batch", "tokens", VOCABULARY]
    output = helper.make_tensor_value_info("output", TensorProto.FLOAT, sizes)
    made = helper.make_graph(graph.made, "bench", inputs, [output], graph.weights)
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


class Bert:
    """A graph that grows; its methods return the names of tensors."""

    def __init__(self) -> None:
        self.made: list[Any] = []
        self.weights: list[Any] = []
        self._random = np.random.default_rng(5)

    def node(self, kind: str, *inputs: str, name: str = "", **attributes: Any) -> str:
        name = name or f"tensor{len(self.made)}"
        self.made.append(helper.make_node(kind, inputs, [name], **attributes))
        return name

    def weight(self, *shape: int) -> str:
        return self.constant(self._random.standard_normal(shape, np.float32) * np.float32(SPREAD))

    def constant(self, value: Any) -> str:
        name = f"constant{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def normalized(self, hidden: str) -> str:
        scale, shift = (self.constant(fill(WIDTH, np.float32)) for fill in (np.ones, np.zeros))
        return self.node("LayerNormalization", hidden, scale, shift, axis=-1, epsilon=1e-12)

    def dense(self, hidden: str, width: int, wanted: int) -> str:
        product = self.node("MatMul", hidden, self.weight(width, wanted))
        return self.node("Add", product, self.weight(wanted))

    def gelu(self, hidden: str) -> str:
        root, one, half = (self.constant(np.float32(number)) for number in (2**0.5, 1, 0.5))
        gate = self.node("Add", self.node("Erf", self.node("Div", hidden, root)), one)
        return self.node("Mul", self.node("Mul", hidden, gate), half)

    def heads(self, hidden: str, order: list[int]) -> str:
        shape = self.constant([0, 0, HEADS, WIDTH // HEADS])
        split = self.node("Reshape", self.dense(hidden, WIDTH, WIDTH), shape)
        return self.node("Transpose", split, perm=order)

    def layer(self, hidden: str, mask: str) -> str:
        orders = ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3])
        query, key, value = (self.heads(hidden, order) for order in orders)
        scale = self.constant(np.float32((WIDTH / HEADS) ** 0.5))
        scores = self.node("Add", self.node("Div", self.node("MatMul", query, key), scale), mask)
        mixed = self.node("MatMul", self.node("Softmax", scores, axis=-1), value)
        back = self.node("Transpose", mixed, perm=[0, 2, 1, 3])
        merged = self.node("Reshape", back, self.constant([0, 0, WIDTH]))
        out = self.dense(merged, WIDTH, WIDTH)
        seen = self.normalized(self.node("Add", out, hidden))
        narrow = self.dense(self.gelu(self.dense(seen, WIDTH, INNER)), INNER, WIDTH)
        return self.normalized(self.node("Add", narrow, seen))
