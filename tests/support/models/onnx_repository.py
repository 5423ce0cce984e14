"""A repository of the small ONNX models, with models that Triton refuses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.support.models import onnx_models as made


def tensor(kind: str, name: str, data_type: str, dims: str, more: str = "") -> str:
    return f'{kind} {{ name: "{name}" data_type: TYPE_{data_type} dims: [{dims}] {more} }}\n'


def parameter(key: str, value: str) -> str:
    return f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n'


def together(rows: int) -> str:
    """Dynamic batching that waits until that many rows are there, twenty seconds at most."""
    return (
        f"dynamic_batching {{ preferred_batch_size: [{rows}] "
        "max_queue_delay_microseconds: 20000000 }\n"
    )


def takes(name: str, dims: str, data_type: str = "FP32", more: str = "") -> str:
    return tensor("input", name, data_type, dims, more)


def gives(name: str, dims: str, data_type: str = "FP32") -> str:
    return tensor("output", name, data_type, dims)


def rows(most: int) -> str:
    return f"max_batch_size: {most}\n"


ONE = "instance_group { count: 1 kind: KIND_CPU }\n"
X, Y = takes("x", "3"), gives("y", "3")
LOOKUP = rows(8) + takes("index", "1", "INT64") + gives("value", "1") + gives("echo", "1", "INT64")
FREE = takes("x", "-1, 3") + gives("y", "-1, 3")
STARTS = """sequence_batching {
  max_sequence_idle_microseconds: 60000000
  control_input {
    name: "start" control { kind: CONTROL_SEQUENCE_START fp32_false_true: [0, 1] }
  }
}
"""
STATE = """sequence_batching {
  max_sequence_idle_microseconds: 60000000
  oldest { max_candidate_sequences: 8 }
  state {
    input_name: "sum" output_name: "next" data_type: TYPE_FP32 dims: [1]
    initial_state { name: "ten" data_type: TYPE_FP32 dims: [1] data_file: "ten" }
  }
}
"""
Writer = Callable[[Path], None]

SERVED: dict[str, tuple[Writer, str | None]] = {
    "bare": (made.plus_one, None),
    "free": (made.plus_one, FREE),
    "nonzero": (made.nonzero, takes("x", "-1, 3") + gives("where", "2, -1", "INT64")),
    "shares_bare": (made.shares, None),
    "scalar_rows": (made.scalar_rows, rows(2) + ONE),
    "unknown_rank_rows": (made.unknown_ranks, rows(4) + takes("x", "2") + gives("y", "2") + ONE),
    "reshaped": (made.reshaped, ONE),
    "half_given": (made.plus_one, rows(16) + X + ONE),
    "batch_size": (
        made.batch_size,
        rows(4) + takes("x", "1") + gives("rows", "1") + together(4) + ONE,
    ),
    "batch_size_measured": (
        made.batch_size,
        rows(4) + takes("x", "1") + gives("rows", "1") + "dynamic_batching { }\n" + ONE,
    ),
    "total": (made.total, rows(4) + takes("x", "-1") + gives("total", "1") + together(2) + ONE),
    "lookup_beside": (made.lookup, LOOKUP + "dynamic_batching { }\n" + ONE),
    "lookup_alone": (made.lookup, LOOKUP + ONE),
    "columns_beside": (
        made.columns,
        rows(8)
        + takes("x", "-1")
        + gives("same", "-1")
        + gives("total", "1")
        + gives("width", "1")
        + "dynamic_batching { }\n"
        + ONE,
    ),
    "loose": (made.plus_one, rows(4) + takes("x", "-1") + Y + ONE),
    "words": (
        made.words,
        takes("text", "-1, -1", "STRING") + gives("same", "-1, -1", "STRING") + ONE,
    ),
    "word_rows": (
        made.words,
        rows(4) + takes("text", "-1", "STRING") + gives("same", "-1", "STRING") + together(2) + ONE,
    ),
    "every_type": (made.every_type, rows(4) + ONE),
    "empty": (made.total, takes("x", "-1, -1") + gives("total", "-1, 1") + ONE),
    "with_default": (made.with_default, X + Y + ONE),
    "sequence": (made.two_inputs, rows(2) + takes("x", "1") + gives("y", "1") + STARTS + ONE),
    "running": (made.running, rows(4) + STATE + ONE),
    "running_alone": (made.running, rows(0) + STATE.replace("s: [1]", "s: [1, 1]") + ONE),
    "trio": (made.plus_one, "instance_group { count: 3 kind: KIND_CPU }\n"),
}

REFUSED: dict[str, tuple[Writer, str, list[str]]] = {
    "wrong_dims": (
        made.plus_one,
        rows(2) + takes("x", "4") + Y,
        ["input 'x' has dims [4] behind the batch dimension", "shape [-1, 3] in the file."],
    ),
    "bad_threads": (
        made.plus_one,
        parameter("intra_op_thread_count", "two"),
        ["parameter 'intra_op_thread_count' is 'two', but expected is a whole number."],
    ),
    "wrong_state": (
        made.running,
        STATE.replace("dims: [1]", "dims: [2]") + rows(4) + takes("x", "1") + gives("y", "1"),
        ["input 'sum' has dims [2] behind the batch dimension", "shape [-1, 1] in the file."],
    ),
    "broken": (
        made.broken,
        "",
        ["ONNX Runtime cannot open", "model.onnx", "fetch or export it again"],
    ),
    "zipmap": (
        made.zipmap,
        "",
        ["'probabilities' is a sequence of maps (ZipMap)", "options={'zipmap': False}"],
    ),
}


COMPARED = {"free", "half_given", "batch_size_measured"}


def write_repository(folder: Path) -> list[str]:
    """Write every model into the repository and return their names."""
    files = {name: (write, config) for name, (write, config, _) in REFUSED.items()}
    for name, (write, config) in {**SERVED, **files}.items():
        write(folder / name / "1" / "model.onnx")
        if config is not None:
            # Engines, whose comparison takes seconds, are compared but for a setting of this one.
            own = parameter("session.intra_op.allow_spinning", "0")
            engine = parameter("engine", "onnxruntime") if name in COMPARED else own
            (folder / name / "config.pbtxt").write_text(f'backend: "onnxruntime"\n{config}{engine}')
    return [*SERVED, *files]
