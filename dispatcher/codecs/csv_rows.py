"""Reads rows of CSV and writes answers as rows (RFC 4180), by Python's own module."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator
from typing import Any

from dispatcher.codecs.json_request import check_memory
from dispatcher.errors import BadBody, NotAcceptable

# Bytes that a cell and a row take while they are read and answered, at least their true size.
CELL, ROW = 100, 1000
MOST_COMMAS = 10**6  # of a line: all other threads wait while it is read
MOST_NESTED = 20


def parse_rows(text: str) -> list[list[str]]:
    """Return the rows of CSV, without empty lines.

    Raises BadBody: it is no CSV, has no row, or takes more memory than there is for one body.
    Raises TooManyRequests: it takes more memory than there is now.
    """
    lines = max(text.count("\n"), text.count("\r"))
    check_memory(2 * len(text) + (text.count(",") + lines) * CELL + lines * ROW)
    reader = csv.reader(lines_of(text), strict=True)
    rows: list[list[str]] = []
    try:
        rows.extend(row for row in reader if row)  # `list` would keep other threads waiting
    except csv.Error as error:
        raise BadBody(
            f"line {reader.line_num} of the body is no CSV: {error}",
            hint="a quote inside of a quoted cell is written twice; a cell has at most "
            f"{csv.field_size_limit():,} characters",
        ) from error
    if not rows:
        raise BadBody("the body has no row", hint="expected a row of CSV on each line")
    return rows


def lines_of(text: str) -> Iterator[str]:
    """Yield the lines of a text; raise BadBody for one with too many cells."""
    for number, line in enumerate(io.StringIO(text, newline=""), 1):
        if line.count(",") > MOST_COMMAS:
            raise BadBody(
                f"line {number} of the body has more than {MOST_COMMAS:,} cells",
                hint="expected the cells of one row on each line",
            )
        yield line


def write_rows(rows: Iterable[list[Any]]) -> str:
    """Return CSV; `None` is an empty cell."""
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(rows)
    return out.getvalue()


def cells(value: Any) -> Iterator[Any]:
    """Yield the texts and numbers in a result, in their order; `null` is an empty cell."""
    nested = [iter([value])]
    while nested:
        if len(nested) > MOST_NESTED:  # a list may hold itself
            raise NotAcceptable(
                "the answer is nested too deeply for a row of CSV", hint="accept application/json"
            )
        for one in nested[-1]:
            if isinstance(one, dict | list | tuple):
                nested.append(iter(one.values() if isinstance(one, dict) else one))
                break
            yield str(one).lower() if isinstance(one, bool) else one
        else:
            nested.pop()
