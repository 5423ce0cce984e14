"""JSON for responses: compact, with unescaped text, and without NaN and Infinity."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable
from typing import Any

from clients.tensors.scores import NotFinite
from dispatcher.errors import NotJson

MAX_DEPTH = 200  # lists in lists; the interpreter's own limit depends on the caller


def encode(document: Any) -> tuple[str, int]:
    """Encode a document; return the text and how many numbers became null.

    Raises:
        NotJson: JSON cannot represent something in it.

    """
    try:
        try:
            return dumps(document), 0
        except ValueError:  # a number that is not finite, or 10**5000, or a list that holds itself
            non_finite: list[float] = []
            return dumps(replace_non_finite(document, non_finite)), len(non_finite)
    except MemoryError:  # not the fault of the document
        raise
    except Exception as error:  # raised by an author's own kind of dictionary, too
        raise not_json_error(document) from error


def dumps(document: Any) -> str:
    text = json.dumps(document, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    # Half of a surrogate pair, from a caller's own \\ud800, is returned as it came.
    return text.encode(errors="backslashreplace").decode()


def replace_non_finite(value: Any, non_finite: list[float]) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        non_finite.append(value)
        return value.text if isinstance(value, NotFinite) else None
    if isinstance(value, dict):
        return {key: replace_non_finite(one, non_finite) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [replace_non_finite(one, non_finite) for one in value]
    return value


def not_json_error(document: Any) -> NotJson:
    """Return the error for the first value in a document that JSON cannot represent."""
    try:
        where, what = find_culprit(document)
    except Exception:  # raised by an author's own kind of dictionary
        where, what = "", "an object that fails when it is read"
    return NotJson(
        "the model's client answered what JSON cannot represent: "
        f"{what}, in {where or 'the answer'}",
        hint="a client returns dictionaries, lists, texts and numbers of Python's own: "
        "array.tolist(), float(number), data.decode()",
    )


def find_culprit(value: Any, where: str = "", depth: int = 0) -> tuple[str, str]:
    """Return path and kind of the first value that JSON cannot represent.

    A path looks like `result[0].box`. The kind is empty if there is no such value.
    """
    if depth > MAX_DEPTH:
        return "", "lists or objects that hold themselves, or are too deep"
    children: Iterable[tuple[str, Any]] = ()
    if isinstance(value, dict):
        for key in value:
            if isinstance(key, float) and not math.isfinite(key):
                return where, f"a key that is {float(key)}"
            if what := describe_fault(key):
                return where, f"a key of {what}"
        children = ((f"{where}.{key}" if where else str(key), one) for key, one in value.items())
    elif isinstance(value, list | tuple):
        children = ((f"{where}[{place}]", one) for place, one in enumerate(value))
    elif what := describe_fault(value):
        return where, f"a value of {what}"
    for place, one in children:
        if (found := find_culprit(one, place, depth + 1))[1]:
            return found
    return where, ""


def describe_fault(value: Any) -> str:
    """Return why JSON cannot represent a key or a value; empty where it can."""
    if value is not None and not isinstance(value, str | int | float):
        return f"the type {type(value).__name__}"
    if isinstance(value, int):
        try:
            int.__repr__(value)
        except ValueError:
            return f"more than {sys.get_int_max_str_digits()} digits"
    return ""
