"""Rename the tensors of an exported fill-mask BERT to those of `bert_base`.

`input_ids`, `attention_mask`, `token_type_ids` [N,S] int64 → `output` [N,S,vocabulary] float32
logits. Exports of the Hugging Face tools have these inputs and call their answer `logits`; only
the name changes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx
from google.protobuf.message import DecodeError

from weights.converters.graph import check
from weights.errors import WeightsError

if TYPE_CHECKING:
    from pathlib import Path

INPUTS = {"input_ids", "attention_mask", "token_type_ids"}
EXPORTED, SERVED = "logits", "output"


def convert(folder: Path) -> onnx.ModelProto:
    """Return the model of `folder/model.onnx` with its answer named `output`.

    Raises WeightsError if it is no such model, or cannot take texts of any number and length.
    """
    try:
        model = onnx.load(folder / "model.onnx")
    except (OSError, DecodeError) as error:
        raise WeightsError(f"model.onnx cannot be read: {error}") from error
    graph = model.graph
    inputs = {value.name for value in graph.input} - {value.name for value in graph.initializer}
    if inputs != INPUTS:
        raise WeightsError(f"its inputs are {sorted(inputs)}, not {sorted(INPUTS)}")
    for value in graph.input:
        tensor = value.type.tensor_type
        if value.name in INPUTS and (
            tensor.elem_type != onnx.TensorProto.INT64 or _fix_length(value) != [None, None]
        ):
            raise WeightsError(f"its input {value.name!r} is not int64 with two free axes")
    outputs = {value.name: value for value in graph.output}
    if EXPORTED not in outputs or len(_fix_length(outputs[EXPORTED])) != 3:
        raise WeightsError(f"its outputs are {sorted(outputs)}; {EXPORTED!r} is not among them")
    outputs[EXPORTED].name = SERVED
    for node in graph.node:
        node.input[:] = [SERVED if name == EXPORTED else name for name in node.input]
        node.output[:] = [SERVED if name == EXPORTED else name for name in node.output]
    check(model)
    return model


def _fix_length(value: onnx.ValueInfoProto) -> list[int | None]:
    """Return the fixed length of each axis, None for a free one."""
    return [
        dim.dim_value if dim.HasField("dim_value") else None
        for dim in value.type.tensor_type.shape.dim
    ]
