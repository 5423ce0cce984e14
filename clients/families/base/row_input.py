"""The inputs of a model that takes rows of a table: a tensor of all columns, or one for each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from clients.base import Client, Environment, Payload, as_wide
from clients.errors import BadPayload, ModelFailed, UnsupportedMedia, place_error
from clients.request import Rows
from clients.tensors.elements import INFINITIES, convert, rows_of
from clients.tensors.quoting import brief
from clients.tensors.signature import DTYPES, Array
from clients.triton.server import Signature, TensorSpec

MISSING = ("", "nan", "na", "null")
"""How programs write a missing number into CSV, in lower case: pandas, NumPy, R and databases."""
WORDS = {
    **dict.fromkeys(("inf", "+inf", "infinity"), INFINITIES[0]),
    **dict.fromkeys(("-inf", "-infinity"), INFINITIES[1]),
}
MOST_COLUMNS = 16_384  # where the model takes any number; as many as Excel has
TEXT = "text"  # the type of a column
FLOATS = ("FP16", "FP32", "FP64")
TRUTHS = {"true": True, "1": True, "false": False, "0": False}


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

    @property
    def is_plain(self) -> bool:
        """Whether a value is given to the model as it is, and a missing one as NaN."""
        return "FP" in self.datatype and not self.categories and self.missing is None

    def read(self, cell: str) -> Any:
        """Return the value of a cell of CSV; `None` for an empty one.

        Raises ValueError: it is no number.
        """
        if self.is_text:
            return cell or None
        word = cell.strip().lower()
        if word in MISSING:
            return None
        if not word.isascii() or "_" in word:  # Python takes 1_000 for a number
            raise ValueError(cell)
        if self.datatype == "BOOL":
            if word not in TRUTHS:
                raise ValueError(cell)
            return TRUTHS[word]
        if "FP" in self.datatype:
            return WORDS[word] if word in WORDS else float(word)
        number = float(word)  # a program that knows missing values writes 30 as 30.0
        return int(number) if number.is_integer() and "." in word else int(word)

    def value(self, given: Any) -> Any:
        """Return what the model gets for a value of a caller.

        Raises BadPayload: it is missing, or none of the categories.
        """
        if given is None and (given := self.missing) is None:
            if "FP" in self.datatype:
                return None  # which becomes NaN
            raise BadPayload(
                f"`{self.name}` is missing, for which {self.datatype} has no value",
                hint=f"send one, or write one into dispatch.toml: missing = {{ {self.name} = … }}",
            )
        if not self.categories:
            return given
        if not isinstance(given, str) or given not in self.categories:
            known = ", ".join(self.categories)
            raise BadPayload(f"`{self.name}` is {brief(given)}", hint=f"expected one of {known}")
        return self.categories[given]


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
        special = [(at, one) for at, one in enumerate(self.columns) if not one.is_plain]
        if special:
            rows = each_row(rows, lambda row: with_values(row, special))
        found: dict[str, Array] = {}
        at = 0
        for spec, width in zip(self.inputs, self.widths, strict=True):
            flat = [value for row in rows for value in row[at : at + width]]
            try:
                array = convert(flat, spec.datatype, spec.name)
            except BadPayload:
                each_row(rows, lambda row: refuse_cells(row, self.columns))
                raise
            found[spec.name] = array.reshape((len(rows), width) if len(spec.shape) == 2 else -1)
            at += width
        return found


def read_plan(signature: Signature) -> RowPlan:
    """Return how a model takes rows, with the columns that its inputs name.

    Raises ValueError: it takes something else; the text says what.
    """
    inputs = [spec for spec in signature.inputs if not spec.optional]
    widths = []
    for spec in inputs:
        width = spec.shape[-1] if len(spec.shape) == 2 else 1
        if len(spec.shape) not in (1, 2) or spec.shape[0] not in (1, -1) or width == 0:
            raise ValueError(f"`{spec.name}` {list(spec.shape)} is no row of cells")
        if spec.datatype not in DTYPES or (width == -1 and len(inputs) > 1):
            raise ValueError(f"`{spec.name}` {spec.datatype} {list(spec.shape)} has no columns")
        widths.append(width)
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


def with_values(row: Sequence[Any], columns: Sequence[tuple[int, Column]]) -> Sequence[Any]:
    """Return a row as the model gets it; `columns` are those that change values."""
    changed = list(row)
    for at, column in columns:
        changed[at] = column.value(row[at])
    return changed


def refuse_cells(row: Sequence[Any], columns: Sequence[Column]) -> None:
    """Raise BadPayload for a value that does not suit its column."""
    for value, column in zip(row, columns, strict=True):
        try:
            convert([value], column.datatype, column.name)
        except BadPayload as error:
            raise BadPayload(f"`{column.name}` is {brief(value)}", hint=error.hint) from error


def each_row(rows: Sequence[Any], read: Callable[[Any], Any]) -> list[Any]:
    """Apply `read` to every row; an error gets the place of its row."""
    done = []
    for place, row in enumerate(rows):
        try:
            done.append(read(row))
        except BadPayload as error:
            raise place_error(error, place) from error
    return done


class RowClient(Client):
    """Answers rows of cells with the outputs of any model that takes them.

    It is made for a model without a client. A payload is a list with the values of a row, in the
    order of the columns, or an object with them by name.
    """

    modelname = ""
    needs_example = False
    example = {}

    def __init__(self, environment: Environment, model: str = "") -> None:
        self._model = model or self.modelname
        super().__init__(environment)

    def triton_model(self) -> str:
        return self._model

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
            raise UnsupportedMedia(
                f"rows of a table came, but {error}",
                hint="the model takes tensors: in JSON, or one as application/x-npy",
            ) from error

    def payloads_of_rows(self, table: Rows) -> list[Any]:
        plan = self.row_plan().for_width(max(1, len(table.rows[0])))
        columns = plan.columns
        known = [one.name for one in columns]
        if table.header is None:
            table = replace(table, header=has_header(table, columns))
        if table.header and not plan.is_named:  # the names in the header are as good as any
            known = [str(one).strip() for one in as_wide(table.rows[0], known)]
        names, rows = table.by_name(known)
        if not table.header:
            names = known
        places = {name: at for at, name in enumerate(names)}
        if lacking := [name for name in known if name not in places]:
            raise BadPayload(f"the header lacks {brief(lacking[0])}", hint="name every column")
        order = [places[name] for name in known]

        def read(row: Sequence[Any]) -> list[Any]:
            cells = [as_wide(row, names)[at] for at in order]
            return read_cells(cells, columns) if table.of_csv else cells

        return each_row(rows, read)

    def row(self, payload: Payload | Sequence[Any], columns: Sequence[Column]) -> Sequence[Any]:
        """Return the values of a payload, in the order of the columns."""
        names = [one.name for one in columns]
        if not isinstance(payload, Mapping):
            return as_wide(payload, names)
        if payload.keys() != {*names}:
            lacking = [f"lacks {brief(name)}" for name in names if name not in payload]
            unknown = [f"has an unknown field {brief(name)}" for name in payload.keys() - {*names}]
            raise BadPayload(
                f"the payload {(unknown or lacking)[0]}",
                hint=f"it has {', '.join(names)}; null is a missing value",
            )
        return [payload[name] for name in names]

    def inference(self, payload: Payload) -> Any:
        return self.inference_batch([payload])[0]

    def inference_batch(self, payloads: Sequence[Payload]) -> list[Any]:
        plan = self.row_plan().for_width(len(payloads[0]))
        rows = self.each(payloads, lambda payload: self.row(payload, plan.columns))
        outputs = self.infer(plan.tensors(rows))
        for name, array in outputs.items():
            if len(array) != len(rows):
                raise ModelFailed(
                    f"output `{name}` has shape {list(array.shape)} for {len(rows)} rows"
                )
        return self.answers(outputs)

    def answers(self, outputs: Mapping[str, Array]) -> list[Any]:
        """Return what is answered to each row: its part of the outputs."""
        return rows_of(outputs)


def has_header(table: Rows, columns: Sequence[Column]) -> bool:
    """Whether the first row of CSV has the names of columns, or no number where all are numbers."""
    first = [str(cell).strip() for cell in table.rows[0]]
    if not table.of_csv or {*first} <= {one.name for one in columns}:
        return table.of_csv
    if any(one.is_text for one in columns):
        return False
    return not any(is_value(cell) for cell in first)


def is_value(cell: str) -> bool:
    """Whether a cell may be a number, or a missing one."""
    try:
        Column("", "FP64").read(cell)
    except ValueError:
        return False
    return True


def read_cells(cells: Sequence[str], columns: Sequence[Column]) -> list[Any]:
    """Return the values of a row of CSV."""
    row = []
    for cell, column in zip(cells, columns, strict=True):
        try:
            row.append(column.read(cell))
        except ValueError as error:
            number = "a number with the digits 0 to 9 and a point, or an empty cell"
            expected = "true, false or an empty cell" if column.datatype == "BOOL" else number
            raise BadPayload(
                f"`{column.name}` is {brief(cell)}", hint=f"expected {expected}"
            ) from error
    return row


def is_label(spec: TensorSpec) -> bool:
    """Whether an output has the class of each row."""
    return spec.datatype not in FLOATS and (len(spec.shape) == 1 or spec.shape[1:] == (1,))


def is_row(spec: TensorSpec) -> bool:
    """Whether an output has several numbers for each row."""
    return len(spec.shape) == 2 and spec.shape[1] != 1
