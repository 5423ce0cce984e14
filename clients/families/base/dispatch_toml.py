"""Reads `dispatch.toml`: the family that serves a model, and its settings.

The keys of a file are the fields of a dataclass, which each family extends. An error is one
sentence with the file, the key and the fix.
"""

from __future__ import annotations

import difflib
import math
import tomllib
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

from clients.errors import ClientDisabled
from clients.model_files.files import text_of
from clients.model_files.model_folders import NAME
from clients.tensors.quoting import brief, encodable

FILE = "dispatch.toml"
COPIED = "dispatch.toml.original"  # beside a copy: the original


@dataclass(frozen=True)
class Kind:
    """The values that a key may have."""

    expected: str  # in words
    fits: Callable[[Any], bool]  # whether a value is one of them


def one_of(*choices: str) -> Kind:
    *others, last = (f'"{one}"' for one in choices)
    return Kind(
        f"{', '.join(others)} or {last}",
        lambda value: isinstance(value, str) and value in choices,
    )


def is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= 100_000


def is_list(value: object, fits: Callable[[Any], bool], count: int = 0) -> bool:
    """Whether it is a list of such values: `count` of them, or any number for 0."""
    return (
        isinstance(value, list | tuple)
        and len(value) == (count or len(value))
        and all(map(fits, value))
    )


def is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def is_text(value: object) -> bool:
    """Whether it is a text with more than blanks in it, which can be written as UTF-8."""
    return isinstance(value, str) and bool(value.strip()) and encodable(value)


def is_inside(value: object) -> bool:
    """Whether it is a path inside the model's own folder."""
    return isinstance(value, str) and bool(value) and not {"..", "/"} & set(Path(value).parts)


FLAG = Kind("true or false", lambda value: isinstance(value, bool))
COUNT = Kind("a whole number from 1", is_whole)
COUNTS = Kind(
    "a list of whole numbers from 1, such as [256, 512]",
    lambda value: is_list(value, is_whole) and bool(value),
)
TENSOR = Kind("the name of a tensor", lambda value: isinstance(value, str) and bool(value))
TENSORS = Kind(
    'a list of names of tensors, such as ["loc", "conf"]',
    lambda value: is_list(value, TENSOR.fits) and bool(value),
)
FAMILY = Kind("the name of a family", TENSOR.fits)
MODEL = Kind("the name of a model", TENSOR.fits)
INSIDE = Kind("a name in the model's folder", is_inside)
SIZE = Kind(
    "pixels, such as 224, or [height, width]",
    lambda value: is_whole(value) or is_list(value, is_whole, 2),
)
POINTS = Kind(
    "a count of points, and 2 or 3, such as [17, 3]",
    lambda value: is_list(value, is_whole, 2) and value[1] in (2, 3),
)
COLOUR = Kind(
    "three numbers, such as [0.5, 0.5, 0.5], or one for grey, such as [0.5]",
    lambda value: is_list(value, is_number, 3) or is_list(value, is_number, 1),
)
SHADES = Kind(
    "three whole numbers of 0 to 255, such as [114, 114, 114]",
    lambda value: is_list(value, lambda one: one == 0 or (is_whole(one) and one <= 255), 3),
)
SPREAD = Kind(
    "three numbers above 0, such as [0.5, 0.5, 0.5], or one for grey, such as [0.5]",
    lambda value: COLOUR.fits(value) and min(value) > 0,
)
NAMES = Kind(
    'a list of names, such as ["other"], of letters, digits, "_", ".", "+" and "-"',
    lambda value: is_list(value, lambda one: isinstance(one, str) and bool(NAME.fullmatch(one))),
)
TABLE = Kind("a table", lambda value: isinstance(value, dict))
# What is wrong with one must not keep its model from being served: dispatcher/rollout reads it.
TRIED = Kind("a table such as {version = 2, share = 0.05}", lambda _: True)
PAYLOADS = Kind(
    "a list of payloads, of texts or of names of files",
    lambda value: is_list(value, lambda one: TABLE.fits(one) or TENSOR.fits(one)) and bool(value),
)


def key(kind: Kind, meaning: str, default: Any = MISSING) -> Any:
    """Declare a key; a key without a default is required."""
    return field(default=default, metadata={"kind": kind, "meaning": meaning})


def labels_key() -> Any:
    """Declare the key for the file of labels, of families that answer classes."""
    meaning = "a class name per line; else config.pbtxt's `label_filename`, or labels.txt"
    return key(INSIDE, meaning, "")


@dataclass(frozen=True, kw_only=True)
class Keys:
    """The keys of every `dispatch.toml`."""

    family: str = key(FAMILY, "the family that serves the model", "tensors")
    aliases: tuple[str, ...] = key(NAMES, "other names", ())
    example: Mapping[str, Any] | None = key(
        TABLE, "a payload that works, in place of the family's own", None
    )
    examples: tuple[Mapping[str, Any] | str, ...] = key(
        PAYLOADS, "several; pictures and sounds are files in the folder", ()
    )
    parameters: Mapping[str, Any] | None = key(
        TABLE, "defaults for what callers may set in `parameters`", None
    )
    shadow: Any = key(TRIED, "what is compared with the model, after the answer", None)
    canary: Any = key(TRIED, "what a share of the callers gets", None)


K = TypeVar("K", bound=Keys)


def find_original(path: Path) -> Path | None:
    """Return the original of a copied file; `None` for an author's own file.

    A model that was loaded at run time has a copy. It has no aliases: other models may have them.
    """
    try:
        return Path(path.with_name(COPIED).read_text(encoding="utf-8"))
    except (OSError, ValueError):  # there is none, or another program wrote it
        return None


def authors(where: str | Path) -> Path:
    """Return the author's own file for a `dispatch.toml` that is a link or a copy.

    Anything else is returned unchanged, even if it is no path.
    """
    path = Path(where)
    if path.name != FILE:
        return path
    return find_original(path) or path.resolve()


def remedy(path: Path, name: str) -> str:
    """Return how to mend a model whose file, or class, has a mistake."""
    if not path.is_absolute():  # an installed package, which Python imports only once
        return "install a mended version, then start the container again"
    if find_original(path):
        return f"mend it, DELETE /models/{name}, then POST /models again: its file was copied then"
    return "mend it, then POST /reload"


def aliases(folder: Path) -> tuple[str, ...]:
    """Return the aliases in the `dispatch.toml` of a model's folder, if any."""
    if find_original(folder / FILE):
        return ()
    with suppress(ClientDisabled):
        found = read_table(folder / FILE).get("aliases", ())
        if NAMES.fits(found):
            return tuple(found)
    return ()


def read_table(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(text_of(path))
    except (OSError, ValueError, RecursionError) as error:
        raise ClientDisabled(
            f"{authors(path)} cannot be read: {error}", hint=remedy(path, path.parent.name)
        ) from error


def read_keys(kind: type[K], table: Mapping[str, Any], path: Path) -> K:
    """Return the keys of a file, checked; lists become tuples.

    Raises ClientDisabled: a key is unknown or missing, or has a wrong value.
    """
    known = {one.name: one for one in fields(kind)}
    values: dict[str, Any] = {}
    for name, value in table.items():
        if name not in known:
            raise mistake(
                path,
                name,
                f"is no key of the family {table.get('family', Keys.family)}",
                nearest(name, known),
            )
        if not known[name].metadata["kind"].fits(value):
            raise mistake(
                path, name, f"is {brief(value)}", f"write {known[name].metadata['kind'].expected}"
            )
        values[name] = tuple(value) if isinstance(value, list) else value
    for name, one in known.items():
        if name not in values and one.default is MISSING:
            raise mistake(path, name, "is missing", f"write {one.metadata['kind'].expected}")
    return kind(**values)


def mistake(path: Path, name: str, what: str, fix: str) -> ClientDisabled:
    """Return the error for a mistake in a file, with the file, the key and the fix."""
    return ClientDisabled(
        f"{authors(path)}: `{name}` {what}; {fix}", hint=remedy(path, path.parent.name)
    )


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the name that was probably meant, or all names."""
    near = difflib.get_close_matches(name, known, n=1)
    return f"did you mean `{near[0]}`?" if near else f"there are {', '.join(sorted(known))}"
