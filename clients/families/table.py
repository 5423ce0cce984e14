"""Which class is a row of a table, or which number belongs to it? For rows of named columns."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypedDict

import numpy as np

from clients.base import Environment
from clients.errors import BadPayload
from clients.families.base.dispatch_toml import (
    FLAG,
    TABLE,
    TENSOR,
    Keys,
    Kind,
    is_list,
    key,
    labels_key,
)
from clients.families.base.family import Family
from clients.families.base.row_input import (
    FLOATS,
    TEXT,
    Column,
    RowClient,
    RowPlan,
    is_label,
    is_row,
    read_plan,
)
from clients.tensors.elements import join_columns, row_values
from clients.tensors.scores import floats, softmax
from clients.tensors.signature import Array
from clients.triton.server import Signature

NUMBER = "number"


class Labelled(TypedDict, total=False):
    """What is answered of a class; scores that may be no probabilities have their output's name."""

    label: str
    probabilities: dict[str, float]


def is_type(value: object) -> bool:
    """Whether it is the type of a column: a word, or the texts whose places are the numbers."""
    return value in (NUMBER, TEXT) or (is_list(value, TENSOR.fits) and bool(value))


COLUMNS = Kind(
    'names, or a table of names and types: "number", "text", or the texts that are 0, 1, …',
    lambda value: (
        is_list(value, TENSOR.fits)
        or (isinstance(value, dict) and bool(value) and all(map(is_type, value.values())))
    ),
)


@dataclass(frozen=True, kw_only=True)
class RowKeys(Keys):
    """The keys of this family."""

    columns: Mapping[str, Any] | tuple[str, ...] = key(
        COLUMNS, "the columns in their order; else what the inputs are called", ()
    )
    missing: Mapping[str, Any] | None = key(
        TABLE, "values in the place of missing ones, by column; else NaN, or 400", None
    )
    labels: str = labels_key()
    softmax: bool = key(FLAG, "whether scores become probabilities", default=False)


@dataclass(frozen=True)
class AnswerPlan:
    """How a model takes rows, and what its outputs are."""

    rows: RowPlan
    label: str  # the output with a row's class; empty for none
    scores: str  # the one with a number for each class
    name: str  # what the scores are called in an answer


class Table(RowClient, Family[RowKeys, AnswerPlan]):
    """Answers `{"label": …, "probabilities": {label: …}}` of a class, a number, or what is there.

    A payload has a field for each column, or is a list of its values. Without labels probabilities
    are a list in the model's order.
    """

    keys_type = RowKeys

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        if len(set(self.labels)) < len(self.labels):
            raise self.mistake("labels", "names a file with a label twice", "write each once")
        columns = self.keys.columns
        if isinstance(columns, Mapping) and [*columns.values()] == [TEXT]:
            self.media = {"text": next(iter(columns))}

    @cached_property
    def payload_type(self) -> Any:
        if not isinstance(columns := self.keys.columns, Mapping):
            return Any
        types = {name: (float if kind == NUMBER else str) | None for name, kind in columns.items()}
        return TypedDict("Row", types) | list[Any]  # type: ignore[operator]

    @cached_property
    def result_type(self) -> Any:
        return Labelled if self.labels else Any

    @property
    def fields(self) -> Collection[str]:
        return [*self.keys.columns] or [
            one.name for one in (self._fitted[1].rows.columns if self._fitted else ())
        ]

    def row_plan(self) -> RowPlan:
        return self.fitted().rows

    def fit(self, signature: Signature) -> AnswerPlan:
        try:
            plan = read_plan(signature)
        except ValueError as error:
            raise self.misfit(str(error)) from error
        plan = self.named_columns(plan) if self.keys.columns else plan
        columns = [self.with_missing(one) for one in plan.columns]
        known = [one.name for one in columns]
        if unknown := [name for name in self.keys.missing or {} if name not in known]:
            there = ", ".join(known) or "none with names"
            raise self.mistake("missing", f'names "{unknown[0]}"', f"the columns are {there}")
        plan = replace(plan, columns=columns)
        outputs = signature.outputs
        label = next((one.name for one in outputs if is_label(one)), "")
        found = [one for one in outputs if one.datatype in FLOATS and is_row(one)]
        if not found or not (label or self.labels or self.keys.softmax):
            return AnswerPlan(plan, label, "", "")
        self.count_labels(found[0].shape[1], str(found[0]))
        sure = not label or self.keys.softmax or "prob" in found[0].name.lower()
        name = "probabilities" if sure else found[0].name
        return AnswerPlan(plan, label, found[0].name, name)

    def named_columns(self, plan: RowPlan) -> RowPlan:
        """Return the plan with the names, the order and the types of the key `columns`."""
        names = [*self.keys.columns]
        plan = plan.for_width(len(names))
        inputs = {one.name: one for one in plan.columns}
        are_inputs = plan.is_named and len(inputs) > 1  # a single one has any name
        if len({*names}) != len(inputs) or (are_inputs and inputs.keys() != {*names}):
            there = ", ".join(f'"{name}"' for name in inputs)
            fix = f"the inputs are {there}" if are_inputs else f"the model takes {len(inputs)}"
            raise self.mistake("columns", f"has {len(names)}: {', '.join(names)}", fix)
        if are_inputs:  # in the author's order
            by_name = {one.name: one for one in plan.inputs}
            plan = replace(plan, inputs=[by_name[name] for name in names])
            columns = [inputs[name] for name in names]
        else:
            pairs = zip(names, plan.columns, strict=True)
            columns = [replace(one, name=name) for name, one in pairs]
        if isinstance(self.keys.columns, Mapping):
            columns = [self.typed(one, self.keys.columns[one.name]) for one in columns]
        return replace(plan, columns=columns, is_named=True)

    def typed(self, column: Column, kind: Any) -> Column:
        """Return a column with its type of the key `columns`."""
        if (kind == TEXT) != (column.datatype == "BYTES"):
            what = f"says that {column.name} is {kind!r}, but the model takes {column.datatype}"
            fix = 'write "text"' if column.datatype == "BYTES" else 'write "number", or its texts'
            raise self.mistake("columns", what, fix)
        if kind in (TEXT, NUMBER):
            return column
        return replace(column, categories={name: at for at, name in enumerate(kind)})

    def with_missing(self, column: Column) -> Column:
        """Return a column with its value of the key `missing`."""
        if (value := (self.keys.missing or {}).get(column.name)) is None:
            return column
        column = replace(column, missing=value)
        try:
            column.check(None)
        except BadPayload as error:
            what = f"has {value!r} for {column.name}"
            fix = f"write {error.hint.removeprefix('expected ')}"
            raise self.mistake("missing", what, fix) from error
        return column

    def answers(self, outputs: Mapping[str, Array]) -> list[Any]:
        plan = self.fitted()
        columns = {name: row_values(array) for name, array in outputs.items()}
        best: Sequence[Any] = columns.get(plan.label, ())
        if plan.scores:
            scores = outputs[plan.scores]
            self.count_labels(scores.shape[1], f"`{plan.scores}`")
            best = np.argmax(scores, axis=1).tolist()
            del columns[plan.scores]
            if self.keys.softmax:
                scores = softmax(scores).astype(floats(scores).dtype)
            columns = {plan.name: [*map(self.by_label, row_values(scores))], **columns}
        if plan.label or plan.scores:
            own = columns.pop(plan.label, best)
            columns = {"label": [*map(self.label_of, own, best)], **columns}
        return join_columns(columns)

    def label_of(self, own: Any, best: Any) -> Any:
        """Return a row's class: the model's own word for it, unless its labels are others."""
        if str(own) in self.labels or best not in range(len(self.labels)):
            return own
        return self.labels[best]
