"""Make an ONNX model compute in int8, with ONNX Runtime's quantizer.

It writes QuantizeLinear and DequantizeLinear around what is to be computed in int8: the file stays
plain ONNX, which OpenVINO, ONNX Runtime and TensorRT all read.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import onnx
from google.protobuf.message import DecodeError
from onnx import TensorProto, version_converter
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process

from backends import engine_choice
from backends.engines.runs import Arrays
from container.trouble import Trouble

WEIGHTED = ("Conv", "MatMul", "Gemm")
"""What is computed in int8: nearly all of a model's time goes there. Its inputs are quantized, and
not its outputs, so that engines fuse what comes next, such as an activation, and lose less."""

BETWEEN = ("Relu", "Clip", "MaxPool", "Add")
"""What passes int8 on. Of Add only those that end a residual block behind a Conv: ONNX Runtime
needs 1.6 times as long for the Conv otherwise. Others, as in transformers, would lose accuracy."""

PER_CHANNEL = 13  # the first opset whose DequantizeLinear has an axis
LARGEST = 1_500_000_000  # bytes of a model from which on weights go to a file of their own


class Feeds(CalibrationDataReader):  # type: ignore[misc]  # it has no types
    """Hands inputs to the quantizer one by one, to save memory."""

    def __init__(self, inputs: Iterator[Arrays]) -> None:
        self.inputs = inputs

    def get_next(self) -> Arrays | None:
        return next(self.inputs, None)


def quantize(source: Path, target: Path, inputs: Iterator[Arrays], exclude: Sequence[str]) -> None:
    """Write a model that computes in int8, but for the nodes whose names have one of the patterns.

    The ranges of its activations are read from `inputs`; `target` is in a folder of its own.
    """
    prepared = target.with_name("prepared.onnx")
    is_large = sum(one.stat().st_size for one in source.parent.iterdir()) > LARGEST
    try:
        taken: Any = source
        opsets = onnx.load(source, load_external_data=False).opset_import
        if any(one.version < PER_CHANNEL for one in opsets if one.domain in {"", "ai.onnx"}):
            sys.stderr.write(f"{source}: raised to opset {PER_CHANNEL} for int8\n")
            taken = version_converter.convert_version(onnx.load(source), PER_CHANNEL)
        # Constants are folded and shapes written down, of which the quantizer makes use.
        quant_pre_process(taken, prepared, skip_symbolic_shape=True, save_as_external_data=is_large)
        model = onnx.load(prepared, load_external_data=False)
        with_strides_apart(model.graph)
        for number, node in enumerate(model.graph.node):
            node.name = node.name or f"{node.op_type}_{number}"
        left = list_excluded(model.graph, exclude)
        onnx.save(model, prepared)
        quantize_static(
            prepared,
            target,
            Feeds(inputs),
            quant_format=QuantFormat.QDQ,
            op_types_to_quantize=[*WEIGHTED, *BETWEEN],
            per_channel=True,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            # Without VNNI two products of 8 bits overflow the 16 that their sum is given.
            reduce_range="vnni" not in engine_choice.processor(),
            nodes_to_exclude=left,
            use_external_data_format=is_large,
            extra_options={
                "OpTypesToExcludeOutputQuantization": [*WEIGHTED, "Add"],
                "QuantizeBias": False,
                "QDQDisableWeightAdjustForInt32Bias": True,  # of which it has none
            },
        )
    except Trouble:  # of a sample, or of a name
        raise
    except Exception as error:  # what a model may have that the quantizer does not know
        raise Trouble(
            f"ONNX Runtime cannot quantize {source}: {type(error).__name__}: {error}; an export "
            f"with opset_version={PER_CHANNEL} or later may help"
        ) from error
    for path in target.parent.glob("prepared.onnx*"):
        path.unlink()


def list_excluded(graph: Any, exclude: Sequence[str]) -> list[str]:
    """Return the names of the nodes that stay as they are."""
    names = [node.name for node in graph.node if node.op_type in WEIGHTED]
    for pattern in exclude:
        if not any(fnmatchcase(name, pattern) for name in names):
            shown = ", ".join(names[:3])
            raise Trouble(
                f"--exclude is {pattern!r}, which fits none of the {len(names)} nodes that can be "
                f"computed in int8, such as {shown or 'none'}"
            )
    excluded = [name for name in names if any(fnmatchcase(name, one) for one in exclude)]
    if len(excluded) == len(names):
        rest = " that --exclude leaves" if exclude else ""
        raise Trouble(
            f"the model has nothing to be computed in int8: no {', '.join(WEIGHTED)}{rest}"
        )
    convolved = {node.output[0] for node in graph.node if node.op_type == "Conv"}
    return excluded + [
        node.name
        for node in graph.node
        if node.op_type == "Add" and convolved.isdisjoint(node.input)
    ]


def with_strides_apart(graph: Any) -> None:
    """Move strides of 1×1 convolutions into a MaxPool of one place before them.

    It skips the same places, so that nothing changes in single precision.
    OpenVINO 2026.4 does so by itself, but behind the change to int8, and computes the convolution
    in single precision then: six of ResNet-50's, a quarter of its time.
    """
    nodes: list[Any] = []
    skipped = set()
    for node in graph.node:
        given = {one.name: one.ints for one in node.attribute}
        sizes, strides = (list(given.get(name, [])) for name in ("kernel_shape", "strides"))
        is_plain = node.op_type == "Conv" and set(sizes) == {1} and not any(given.get("pads", []))
        if is_plain and max(strides, default=1) > 1:
            taken = node.input[0]
            node.input[0] = name = f"{taken}_by_{'_'.join(map(str, strides))}"
            if name not in skipped:
                skipped.add(name)
                skips: dict[str, Any] = {"kernel_shape": sizes, "strides": strides}
                nodes.append(onnx.helper.make_node("MaxPool", [taken], [name], **skips))
            given["strides"][:] = [1] * len(strides)
        nodes.append(node)
    del graph.node[:]
    graph.node.extend(nodes)


def is_int8(file: Path) -> bool:
    """Whether a model has integer weights or operators already."""
    try:
        graph = onnx.load(file, load_external_data=False).graph
    except (OSError, ValueError, DecodeError) as error:
        raise Trouble(f"{file} is no ONNX file that can be read: {error}") from error
    byte = (TensorProto.INT8, TensorProto.UINT8)
    sizes = [
        (1 if one.data_type in byte else -1) * math.prod(one.dims) for one in graph.initializer
    ]
    return sum(sizes) > 0 or any(
        "Linear" in n.op_type or "Integer" in n.op_type for n in graph.node
    )
