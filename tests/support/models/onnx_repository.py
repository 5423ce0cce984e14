"""A repository of the small ONNX models, with models that Triton refuses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.support.models.onnx_models import (
    batch_size,
    bfloat16,
    broken,
    columns,
    every_type,
    fixed_batch,
    lookup,
    nonzero,
    plus_one,
    reshaped,
    scalar,
    scalar_rows,
    shares,
    total,
    two_inputs,
    unknown_ranks,
    with_default,
    words,
    zipmap,
)


def tensor(kind: str, name: str, data_type: str, dims: str, more: str = "") -> str:
    return f'{kind} {{ name: "{name}" data_type: TYPE_{data_type} dims: [{dims}] {more} }}\n'


def parameter(key: str, value: str) -> str:
    return f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n'


def together(rows: int) -> str:
    """Dynamic batching that waits until that many rows are there, ten seconds at most."""
    return (
        f"dynamic_batching {{ preferred_batch_size: [{rows}] "
        "max_queue_delay_microseconds: 10000000 }\n"
    )


ONE = "instance_group { count: 1 kind: KIND_CPU }\n"


X, Y = tensor("input", "x", "FP32", "3"), tensor("output", "y", "FP32", "3")


_INDEX = tensor("input", "index", "INT64", "1")


_LOOKUP = tensor("output", "value", "FP32", "1") + tensor("output", "echo", "INT64", "1")


Writer = Callable[[Path], None]


SERVED: dict[str, tuple[Writer, str | None]] = {
    "bare": (plus_one, None),
    "free": (
        plus_one,
        tensor("input", "x", "FP32", "-1, 3") + tensor("output", "y", "FP32", "-1, 3"),
    ),
    "nonzero": (
        nonzero,
        tensor("input", "x", "FP32", "-1, 3") + tensor("output", "where", "INT64", "2, -1"),
    ),
    "shares_bare": (shares, None),
    "shares_configured": (shares, ONE),
    "shares_eight": (shares, "max_batch_size: 8\n"),
    "plus_zero": (plus_one, "max_batch_size: 0\n" + ONE),
    "scalar_rows": (scalar_rows, "max_batch_size: 2\n" + ONE),
    "scalar": (scalar, ONE),
    "unknown_ranks": (
        unknown_ranks,
        tensor("input", "x", "FP32", "-1, 2") + tensor("output", "y", "FP32", "-1, 2") + ONE,
    ),
    "unknown_rank_rows": (
        unknown_ranks,
        "max_batch_size: 4\n"
        + tensor("input", "x", "FP32", "2")
        + tensor("output", "y", "FP32", "2")
        + ONE,
    ),
    "unknown_rank_out": (unknown_ranks, tensor("input", "x", "FP32", "-1") + ONE),
    "reshaped": (reshaped, ONE),
    "half_given": (plus_one, "max_batch_size: 16\n" + X + ONE),
    "batch_size": (
        batch_size,
        "max_batch_size: 4\n"
        + tensor("input", "x", "FP32", "1")
        + tensor("output", "rows", "FP32", "1")
        + together(4)
        + ONE,
    ),
    "total": (
        total,
        "max_batch_size: 4\n"
        + tensor("input", "x", "FP32", "-1")
        + tensor("output", "total", "FP32", "1")
        + together(2)
        + ONE,
    ),
    "lookup": (lookup, "max_batch_size: 8\n" + _INDEX + _LOOKUP + together(3) + ONE),
    "lookup_beside": (
        lookup,
        "max_batch_size: 8\n" + _INDEX + _LOOKUP + "dynamic_batching { }\n" + ONE,
    ),
    "lookup_alone": (lookup, "max_batch_size: 8\n" + _INDEX + _LOOKUP + ONE),
    "columns_beside": (
        columns,
        "max_batch_size: 8\n"
        + tensor("input", "x", "FP32", "-1")
        + tensor("output", "same", "FP32", "-1")
        + tensor("output", "total", "FP32", "1")
        + tensor("output", "width", "FP32", "1")
        + "dynamic_batching { }\n"
        + ONE,
    ),
    "loose": (plus_one, "max_batch_size: 4\n" + tensor("input", "x", "FP32", "-1") + Y + ONE),
    "words": (
        words,
        tensor("input", "text", "STRING", "-1, -1")
        + tensor("output", "same", "STRING", "-1, -1")
        + ONE,
    ),
    "word_rows": (
        words,
        "max_batch_size: 4\n"
        + tensor("input", "text", "STRING", "-1")
        + tensor("output", "same", "STRING", "-1")
        + together(2)
        + ONE,
    ),
    "every_type": (every_type, "max_batch_size: 4\n" + ONE),
    "empty": (
        total,
        tensor("input", "x", "FP32", "-1, -1") + tensor("output", "total", "FP32", "-1, 1") + ONE,
    ),
    "with_default": (
        with_default,
        X + tensor("input", "bias", "FP32", "3", "optional: true") + Y + ONE,
    ),
    "sequence": (
        two_inputs,
        "max_batch_size: 2\n"
        + tensor("input", "x", "FP32", "1")
        + tensor("output", "y", "FP32", "1")
        + 'sequence_batching { control_input { name: "start" control { '
        "kind: CONTROL_SEQUENCE_START fp32_false_true: [0, 1] } } }\n" + ONE,
    ),
    "trio": (plus_one, "instance_group { count: 3 kind: KIND_CPU }\n"),
    "accelerated": (
        plus_one,
        X.replace("dims: [3]", "dims: [-1, 3]")
        + Y.replace("dims: [3]", "dims: [-1, 3]")
        + 'optimization { execution_accelerators { cpu_execution_accelerator { name: "openvino" '
        "} } }\n"
        + parameter("intra_op_thread_count", "2")
        + parameter("session.set_denormal_as_zero", "1")
        + ONE,
    ),
}


REFUSED: dict[str, tuple[Writer, str, list[str]]] = {
    "unknown_input": (
        plus_one,
        "max_batch_size: 2\n" + tensor("input", "z", "FP32", "3") + Y,
        ["the configuration has input 'z', but the file's inputs are 'x'."],
    ),
    "unknown_output": (
        plus_one,
        "max_batch_size: 2\n" + X + tensor("output", "z", "FP32", "3"),
        ["the configuration has output 'z', but the file's outputs are 'y'."],
    ),
    "wrong_type": (
        plus_one,
        "max_batch_size: 2\n" + tensor("input", "x", "INT64", "3") + Y,
        ["input 'x' is TYPE_INT64 in the configuration, but TYPE_FP32 in the file."],
    ),
    "wrong_dims": (
        plus_one,
        "max_batch_size: 2\n" + tensor("input", "x", "FP32", "4") + Y,
        ["input 'x' has dims [4] behind the batch dimension", "shape [-1, 3] in the file."],
    ),
    "inexact_output": (
        plus_one,
        "max_batch_size: 2\n" + X + tensor("output", "y", "FP32", "-1"),
        ["output 'y' has dims [-1] behind the batch dimension", "shape [-1, 3] in the file."],
    ),
    "fixed_batch": (
        fixed_batch,
        "max_batch_size: 2\n" + X + Y,
        ["max_batch_size is 2", "input 'x' has shape [1, 3] in the file", "dynamic (-1) first"],
    ),
    "missing_input": (
        two_inputs,
        "max_batch_size: 2\n"
        + tensor("input", "x", "FP32", "1")
        + tensor("output", "y", "FP32", "1"),
        ["input 'start' is missing from the configuration", "TYPE_FP32 with shape [-1, 1]."],
    ),
    "ragged": (
        plus_one,
        "max_batch_size: 2\n" + tensor("input", "x", "FP32", "3", "allow_ragged_batch: true") + Y,
        ["input 'x' has allow_ragged_batch, but ragged batches are expected only by the native"],
    ),
    "bad_threads": (
        plus_one,
        parameter("intra_op_thread_count", "two"),
        ["parameter 'intra_op_thread_count' is 'two', but expected is a whole number."],
    ),
    "bad_accelerator": (
        plus_one,
        'optimization { execution_accelerators { cpu_execution_accelerator { name: "abacus" } } }',
        ["the CPU execution accelerator 'abacus' is unknown, but expected is 'openvino'."],
    ),
    "broken": (broken, "", ["ONNX Runtime cannot open", "model.onnx", "fetch or export it again"]),
    "zipmap": (
        zipmap,
        "",
        ["'probabilities' is a sequence of maps (ZipMap)", "options={'zipmap': False}"],
    ),
    "bfloat16": (bfloat16, "", ["input 'x' is a tensor(bfloat16)", "a Cast node"]),
}


def write_repository(folder: Path) -> list[str]:
    """Write every model into the repository and return their names."""
    files = {name: (write, config) for name, (write, config, _) in REFUSED.items()}
    for name, (write, config) in {**SERVED, **files}.items():
        write(folder / name / "1" / "model.onnx")
        if config is not None:
            text = f'backend: "onnxruntime"\n{config}'
            if name != "accelerated":  # to try OpenVINO too takes seconds for each
                text += parameter("engine", "onnxruntime")
            (folder / name / "config.pbtxt").write_text(text)
    return [*SERVED, *files]
