"""Make an ONNX model compute in int8, and run both to compare them.

ONNX Runtime's quantizer writes QuantizeLinear and DequantizeLinear around what is to be computed in
int8: the file stays plain ONNX, which OpenVINO, ONNX Runtime and TensorRT all read.
"""

from __future__ import annotations

import logging
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import version_converter
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process

from container.triton_backends import engine_choice
from tool.engines.runs import Arrays, Run, onnxruntime_run, opened, openvino_run
from tool.interrupts import interrupts_held
from tool.trouble import Trouble

WEIGHTED = ("Conv", "MatMul", "Gemm")
"""What is computed in int8: nearly all of a model's time goes there. Its inputs are quantized, and
not its outputs, so that engines fuse what comes next, such as an activation, and lose less."""

BETWEEN = ("Relu", "Clip", "MaxPool", "Add")
"""What passes int8 on. Of Add only those that end a residual block behind a Conv: ONNX Runtime
needs 1.6 times as long for the Conv otherwise. Others, as in transformers, would lose accuracy."""

INT8_OPERATORS = frozenset(
    {
        "QuantizeLinear",
        "DequantizeLinear",
        "DynamicQuantizeLinear",
        "QLinearConv",
        "QLinearMatMul",
        "ConvInteger",
        "MatMulInteger",
    }
)
PER_CHANNEL = 13  # the first opset whose DequantizeLinear has an axis
LARGEST = 1_500_000_000  # bytes of a model from which on weights go to a file of their own

ROUNDS = 30
MEASURED_S = 20.0
LEAST_ROUNDS = 3


def engine(before: Path, after: Path, example: Arrays) -> tuple[str, Run, Run]:
    """Return a runner for both files, and its name: OpenVINO or ONNX Runtime."""
    with interrupts_held(), suppress(ImportError):
        import_module("openvino")
    try:
        runs = openvino_run(before), openvino_run(after)
        for run in runs:
            run(example)
    except Exception as error:  # such as a missing operator, or it is not installed
        logging.getLogger(__name__).debug("OpenVINO does not run it: %s", error)
        return "ONNX Runtime", onnxruntime_run(opened(before)), onnxruntime_run(opened(after))
    return "OpenVINO", runs[0], runs[1]


def medians(runs: Sequence[Run], given: Sequence[Arrays]) -> list[float]:
    """Return the median milliseconds of each, run in turn on the same inputs."""
    times: list[list[float]] = [[] for _ in runs]
    end = time.monotonic() + MEASURED_S
    for number in range(1 + ROUNDS):
        for run, mine in zip(runs, times, strict=True):
            begun = time.perf_counter()
            run(given[number % len(given)])
            mine.append(1000 * (time.perf_counter() - begun))
        if number >= LEAST_ROUNDS and time.monotonic() > end:
            break
    return [statistics.median(mine[1:]) for mine in times]  # the first one makes its buffers


class Feeds(CalibrationDataReader):  # type: ignore[misc]  # it has no types
    """Hands inputs to the quantizer one by one, to save memory."""

    def __init__(self, inputs: Iterator[Arrays]) -> None:
        self._inputs = inputs

    def get_next(self) -> Arrays | None:
        return next(self._inputs, None)


def quantize(
    source: Path, folder: Path, target: Path, inputs: Iterator[Arrays], exclude: Sequence[str]
) -> None:
    """Write a model in int8.

    `folder` is a temporary one, `exclude` has patterns for names of nodes that stay as they are.

    Raises:
        Trouble: a pattern fits no node, or the model has nothing to be computed in int8.

    """
    prepared = folder / "prepared" / "model.onnx"
    prepared.parent.mkdir()
    is_large = sum(one.stat().st_size for one in source.parent.iterdir()) > LARGEST
    # Constants are folded and shapes written down, of which the quantizer makes use.
    source = with_axes(source, folder)
    quant_pre_process(source, prepared, skip_symbolic_shape=True, save_as_external_data=is_large)
    model = onnx.load(prepared, load_external_data=False)
    with_strides_apart(model.graph)
    for number, node in enumerate(model.graph.node):
        node.name = node.name or f"{node.op_type}_{number}"
    left = left_out(model.graph, exclude)
    onnx.save(model, prepared)
    try:
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
    except Trouble:  # of a sample
        raise
    except Exception as error:  # what a model may have that the quantizer does not know
        reason = f"{type(error).__name__}: {error}"
        raise Trouble(f"ONNX Runtime cannot quantize {source}: {reason}") from error


def with_axes(source: Path, folder: Path) -> Path:
    """Return a file in whose opset a weight may have a scale for each channel.

    Raises:
        Trouble: it is older, and cannot be converted.

    """
    model = onnx.load(source, load_external_data=False)
    opset = next((one.version for one in model.opset_import if one.domain in {"", "ai.onnx"}), 0)
    if opset >= PER_CHANNEL:
        return source
    newer = folder / "newer" / "model.onnx"
    newer.parent.mkdir()
    try:
        onnx.save(version_converter.convert_version(onnx.load(source), PER_CHANNEL), newer)
    except Exception as error:  # what the converter does not know
        raise Trouble(
            f"{source} has opset {opset}, int8 needs {PER_CHANNEL}, and it cannot be converted: "
            f"{error}; export it with opset_version={PER_CHANNEL} or later"
        ) from error
    return newer


def left_out(graph: Any, exclude: Sequence[str]) -> list[str]:
    """Return the names of the nodes that stay as they are.

    Raises:
        Trouble: a pattern fits no node, or none is left to be computed in int8.

    """
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
        raise Trouble(
            f"the model has nothing to be computed in int8: no {', '.join(WEIGHTED)}"
            + " that --exclude leaves" * bool(exclude)
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
    skipped: dict[tuple[str, tuple[int, ...]], str] = {}
    for node in graph.node:
        given = {one.name: one.ints for one in node.attribute}
        sizes, strides = (list(given.get(name, [])) for name in ("kernel_shape", "strides"))
        is_plain = node.op_type == "Conv" and set(sizes) == {1} and not any(given.get("pads", []))
        if is_plain and max(strides, default=1) > 1:
            taken = node.input[0]
            place = taken, tuple(strides)
            if place not in skipped:
                skipped[place] = name = f"{taken}_by_{'_'.join(map(str, strides))}"
                skips: dict[str, Any] = {"kernel_shape": sizes, "strides": strides}
                nodes.append(onnx.helper.make_node("MaxPool", [taken], [name], **skips))
            node.input[0] = skipped[place]
            given["strides"][:] = [1] * len(strides)
        nodes.append(node)
    del graph.node[:]
    graph.node.extend(nodes)


def is_int8(file: Path) -> bool:
    """Whether a model has integer weights or operators already.

    Raises:
        Trouble: it is no ONNX file.

    """
    try:
        graph = onnx.load(file, load_external_data=False).graph
    except Exception as error:  # protobuf's own, which has no base that is documented
        raise Trouble(f"{file} is no ONNX file that can be read: {error}") from error
    sizes = {False: 0, True: 0}
    for weight in graph.initializer:
        is_byte = weight.data_type in {onnx.TensorProto.INT8, onnx.TensorProto.UINT8}
        sizes[is_byte] += int(np.prod(weight.dims, dtype=np.int64))
    return sizes[True] > sizes[False] or any(n.op_type in INT8_OPERATORS for n in graph.node)
