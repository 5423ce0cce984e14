"""The family for rows of tables: what of its settings a model's file shows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

from backends.completion import OF_TABLES
from backends.model_config import has_operator
from clients.families.base.row_input import TEXT, is_label, is_row, read_plan
from clients.triton.server import Signature
from container.model_check.file import PLAIN_WORDS, PLAIN_WORDS_FIX, PLAIN_WORDS_LOST
from tool.scaffold.options import TABLE
from tool.scaffold.plan import CHECK, FamilyPlan, Misfit, quote, several
from tool.scaffold.source import ModelSource

EXAMPLES = {"BYTES": "a", "BOOL": True}


def table(source: ModelSource) -> Iterator[FamilyPlan]:
    """Yield how the model would answer rows: for sure with operators that only tables have."""
    try:
        plan = read_plan(Signature(0, source.inputs))
    except ValueError as error:
        raise Misfit(str(error)) from error
    if not all(len(one.shape) < 3 for one in source.outputs):
        raise Misfit(f"{several(source.outputs)} has more than a row for each row")
    plain = has_operator(source.file, PLAIN_WORDS)
    lines = [f"{CHECK}it {PLAIN_WORDS_LOST}: {PLAIN_WORDS_FIX}"] * plain
    names = [one.name for one in plan.columns]
    if not plan.is_named:
        what = "the file has no names of columns: write the model's own, in its order"
        lines.append(f"{CHECK}{what}")
        names = [f"f{number}" for number in range(len(names))]
    shown = ", ".join(map(quote, names))
    is_text = [one.datatype for one in plan.columns] == ["BYTES"]
    if names:
        lines.append(
            f"columns = {{ {shown} = {quote(TEXT)} }}" if is_text else f"columns = [{shown}]"
        )
        values = [json.dumps(EXAMPLES.get(one.datatype, 1)) for one in plan.columns]
        pairs = zip(map(quote, names), values, strict=True)
        row = ", ".join(f"{name} = {value}" for name, value in pairs)
        lines += [f"{CHECK}a row that callers may send", f"example = {{ {row} }}"]
    sure = has_operator(source.file, OF_TABLES)
    why = f"{several(source.inputs)} takes rows"
    why += ", and its operators are those of scikit-learn and of trees (ai.onnx.ml)" * sure
    found = FamilyPlan(TABLE, why, tuple(lines), proven=sure)
    scores = [one for one in source.outputs if is_row(one) and "FP" in one.datatype]
    labels = source.given or (source.classes if any(map(is_label, source.outputs)) else ())
    yield replace(found, labels=labels if scores or source.given else ())
