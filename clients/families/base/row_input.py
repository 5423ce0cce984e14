"""The inputs of a model that takes rows of a table: a tensor of all columns, or one for each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from clients.annotations import Declared
from clients.base import Client, Environment, Payload, as_wide
from clients.errors import BadPayload, ModelFailed, UnsupportedMedia
from clients.request import SentRows
from clients.tensors.elements import INFINITIES, convert, rows_of
from clients.tensors.quoting import brief, unexpected
from clients.tensors.signature import DTYPES, Array
from clients.triton.server import Signature, TensorSpec

MISSING = ("", "nan", "na", "null")
"""How programs write a missing number into CSV, in lower case: pandas, NumPy, R and databases."""
TRUTHS = {"true": True, "1": True, "false": False, "0": False}
MOST_COLUMNS = 16_384  # where the model takes any number; as many as Excel has
TEXT = "text"  # the type of a column
FLOATS = ("FP16", "FP32", "FP64")


@dataclass(frozen=True)
class Column:
    """A column of a table."""

    name: str
    datatype: str  # of the input, as the V2 protocol spells it
    categories: Mapping[str, int] = field(default_factory=dict)  # the numbers of texts
    missing: Any = None  # what the model gets in the place of a missing value

    @property
    def is_text(self) -> bool:
        return self.datatype == "BYTES" or bool(self.categories)

    def read(self, cell: str) -> Any:
        """Return the value of a cell of CSV, `None` for a missing one.

        Raises BadPayload: it is no number.
        """
        if self.is_text:
            return cell or None
        word = cell.strip().lower()
        if word in MISSING:
            return None
        if self.datatype == "BOOL" and word in TRUTHS:
            return TRUTHS[word]
        try:
            number = float(word.replace("_", "?"))  # Python takes 1_000 for a number
        except ValueError as error:
            expected = "a number with the digits 0 to 9 and a point, or an empty cell"
            raise unexpected(self.name, cell, expected) from error
        if self.datatype in FLOATS:
            return INFINITIES[number < 0] if word.endswith(("inf", "infinity")) else number
        # A program that knows missing values writes 30 as 30.0.
        return (
            int(word) if word.lstrip("+-").isdigit() else int(number) if number % 1 == 0 else number
        )

    def value(self, given: Any) -> Any:
        """Return what the model gets for a value of a caller.

        Raises BadPayload: it is missing, or none of the categories.
        """
        given = self.missing if given is None else given
        if given is None and self.datatype not in FLOATS:
            raise BadPayload(
                f"`{self.name}` is missing, for which {self.datatype} has no value",
                hint=f"send one, or write one into dispatch.toml: missing = {{ {self.name} = … }}",
            )
        if given is None or not self.categories:
            return given
        if not isinstance(given, str) or given not in self.categories:
            raise unexpected(self.name, given, f"one of {', '.join(self.categories)}")
        return self.categories[given]

    def check(self, given: Any) -> None:
        """Raise BadPayload for a value that the model does not take."""
        try:
            convert([self.value(given)], self.datatype, self.name)
        except BadPayload as error:
            message = error.message.replace("[0]` is", "` is", 1)
            raise BadPayload(message, hint=error.hint) from error


@dataclass(frozen=True)
class RowPlan:
    """How a model takes rows."""

    inputs: Sequence[TensorSpec]
    widths: Sequence[int]  # how many columns each of them has
    columns: Sequence[Column]  # of all inputs, in order; none if their number is open
    is_named: bool = False  # whether the columns have names of their own

    def for_width(self, width: int) -> RowPlan:
        """Return the plan for rows of so many cells; raise BadPayload for too many."""
        if self.columns:
            return self
        if width > MOST_COLUMNS:
            raise BadPayload(f"the row has {width} cells", hint=f"send at most {MOST_COLUMNS:,}")
        (spec,) = self.inputs
        return RowPlan(self.inputs, [width], columns_of(spec, width))

    def tensors(self, rows: Sequence[Sequence[Any]]) -> dict[str, Array]:
        """Return the inputs for some rows: [rows, columns], or [rows].

        Raises BadPayload: a value does not suit its column.
        """
        filled = [[*map(Column.value, self.columns, row)] for row in rows]
        found: dict[str, Array] = {}
        at = 0
        for spec, width in zip(self.inputs, self.widths, strict=True):
            flat = [value for row in filled for value in row[at : at + width]]
            shape = (len(rows), width) if len(spec.shape) == 2 else (len(rows),)
            found[spec.name] = convert(flat, spec.datatype, spec.name).reshape(shape)
            at += width
        return found


def read_plan(signature: Signature) -> RowPlan:
    """Return how a model takes rows, with the columns that its inputs name.

    Raises ValueError: it takes something else; the text says what.
    """
    inputs = [spec for spec in signature.inputs if not spec.optional]
    widths = [spec.shape[-1] if len(spec.shape) == 2 else 1 for spec in inputs]
    for spec, width in zip(inputs, widths, strict=True):
        is_row = len(spec.shape) in (1, 2) and spec.shape[0] in (1, -1) and width
        if not is_row or spec.datatype not in DTYPES or (width == -1 and len(inputs) > 1):
            raise ValueError(f"`{spec.name}` {list(spec.shape)} is no row of cells")
    if not inputs:
        raise ValueError("it has no inputs")
    if -1 in widths:
        return RowPlan(inputs, widths, [])
    columns = [one for pair in zip(inputs, widths, strict=True) for one in columns_of(*pair)]
    return RowPlan(inputs, widths, columns, is_named={*widths} == {1})


def columns_of(spec: TensorSpec, width: int) -> list[Column]:
    """Return the columns of an input: by its own name, or where it has several by numbers."""
    names = [spec.name] if width == 1 else [f"{spec.name}_{at}" for at in range(width)]
    return [Column(name, spec.datatype) for name in names]


class RowClient(Client):
    """Answers rows of cells with the outputs of any model that takes them.

    It is made for a model without a client. A payload is a list with the values of a row, in the
    order of the columns, or an object with them by name.
    """

    modelname = ""
    declares = Declared()  # one is made for a request, too
    needs_example = False
    example = {}
    _without = "JSON, or CSV as text/csv"

    def __init__(self, environment: Environment, model: str = "") -> None:
        self.model = model  # type: ignore[misc]  # of an author's class it is fixed
        super().__init__(environment)

    @property
    def max_batch_size(self) -> int:
        return super().max_batch_size if self.signature().shares_runs else 1

    def row_plan(self) -> RowPlan:
        """Return how the model takes rows.

        Raises UnsupportedMedia: it takes none.
        """
        try:
            return read_plan(self.signature())
        except ValueError as error:
            hint = "the model takes tensors: in JSON, or one as application/x-npy"
            raise UnsupportedMedia(f"rows of a table came, but {error}", hint=hint) from error

    def payloads_of_rows(self, table: SentRows) -> list[Any]:
        plan = self.row_plan().for_width(max(1, len(table.rows[0])))
        known = [one.name for one in plan.columns]
        if table.header is None:
            table = replace(table, header=has_header(table.rows[0], plan.columns))
        if table.header and not plan.is_named:
            first = [str(one).strip() for one in as_wide(table.rows[0], known)]
            known = known if {*first} == {*known} else first  # other names are as good as any
        names, rows = table.by_name(known)
        places = {name: at for at, name in enumerate(names if table.header else known)}
        if lacking := [name for name in known if name not in places]:
            raise BadPayload(
                f"the header lacks {brief(lacking[0])}", hint=f"columns: {', '.join(known)}"
            )
        order = [(places[name], one) for name, one in zip(known, plan.columns, strict=True)]

        def read(row: Sequence[Any]) -> list[Any]:
            cells = as_wide(row, [*places])
            return [one.read(cells[at]) if table.of_csv else cells[at] for at, one in order]

        return self.each(rows, read)

    def row(self, payload: Payload | Sequence[Any], columns: Sequence[Column]) -> Sequence[Any]:
        """Return the values of a payload, in the order of the columns."""
        names = [one.name for one in columns]
        if not isinstance(payload, Mapping):
            return as_wide(payload, names)
        if payload.keys() != {*names}:
            unknown, lacking = payload.keys() - {*names}, {*names} - payload.keys()
            what = "has an unknown field" if unknown else "lacks"
            raise BadPayload(
                f"the payload {what} {brief(min(unknown or lacking))}",
                hint=f"it has {', '.join(names)}; null is a missing value",
            )
        return [payload[name] for name in names]

    def inference(self, payload: Payload) -> Any:
        return self.inference_batch([payload])[0]

    def inference_batch(self, payloads: Sequence[Payload]) -> list[Any]:
        plan = self.row_plan().for_width(max(1, len(payloads[0])))
        rows = self.each(payloads, lambda payload: self.row(payload, plan.columns))
        try:
            tensors = plan.tensors(rows)
        except BadPayload:  # say which value of which row
            self.each(rows, lambda row: [*map(Column.check, plan.columns, row)])
            raise
        outputs = self.infer(tensors)
        if wrong := [name for name, array in outputs.items() if len(array) != len(rows)]:
            raise ModelFailed(f"output `{wrong[0]}` has not a row for each of {len(rows)} rows")
        return self.answers(outputs)

    def answers(self, outputs: Mapping[str, Array]) -> list[Any]:
        """Return what is answered to each row: its part of the outputs."""
        return rows_of(outputs)


def has_header(first: Sequence[str], columns: Sequence[Column]) -> bool:
    """Whether a row of CSV has the names of columns, or no number where all are numbers.

    Most of them are enough, in any case: the others are the caller's mistakes, and named as such.
    """
    fold = str.lower if len(first) > 1 else str  # one cell may be a text of the caller's
    names = {fold(one.name) for one in columns}
    if 2 * sum(fold(cell.strip()) in names for cell in first) > len(first):
        return True
    return not any(one.is_text for one in columns) and not any(map(is_value, first))


def is_value(cell: str) -> bool:
    """Whether a cell may be a number, or a missing one."""
    try:
        Column("", "FP64").read(cell)
    except BadPayload:
        return False
    return True


def is_label(spec: TensorSpec) -> bool:
    """Whether an output has the class of each row."""
    return spec.datatype not in FLOATS and (len(spec.shape) == 1 or spec.shape[1:] == (1,))


def is_row(spec: TensorSpec) -> bool:
    """Whether an output has several numbers for each row."""
    return len(spec.shape) == 2 and spec.shape[1] != 1
