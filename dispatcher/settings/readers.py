"""Readers of settings: each turns the text of a variable into a value.

A reader raises ValueError for a text that it does not accept; its attribute `expected` says what it
accepts.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from clients.model_files.files import explain_denial
from clients.model_files.model_folders import can_be_read
from clients.parameters import NUMBER, WHOLE

AUTO = "auto"
ROW = "row"  # of a field of the settings
Reader = Callable[[str], Any]
T = TypeVar("T")
PORT = "TCP port, 1 to 65535"


def expects(expected: str) -> Callable[[Callable[[str], Any]], Callable[[str], Any]]:
    """Decorate a reader with a text that says what it accepts."""

    def mark(read: Callable[[str], Any]) -> Callable[[str], Any]:
        read.expected = expected  # type: ignore[attr-defined]
        return read

    return mark


def accept(value: T, fits: object) -> T:
    """Return a value that fits; raise ValueError for any other."""
    if not fits:
        raise ValueError
    return value


def or_nothing(read: Callable[[str], Any]) -> Callable[[str], Any]:
    """Return a reader that accepts an empty text too, as `None`."""
    expected = f"{read.expected}, or nothing"  # type: ignore[attr-defined]
    return expects(expected)(lambda text: read(text) if text else None)


@expects(PORT)
def port(text: str) -> int:
    return within(1, 65535)(text)


@expects("LOW-HIGH, two TCP ports")
def port_range(text: str) -> range:
    """Read `LOW-HIGH`, both inclusive."""
    low, dash, high = map(str.strip, text.partition("-"))
    ports = range(port(low), port(high) + 1)
    return accept(ports, dash and ports)


def read_integer(low: int, high: int) -> Callable[[str], int]:
    return expects(f"whole number, {low} to {high}")(within(low, high))


def within(low: int, high: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        number = int(accept(text, WHOLE.fullmatch(text)))
        return accept(number, low <= number <= high)

    return read


@expects(f"whole number, 1 to 64, or {AUTO}")
def workers(text: str) -> int:
    """Read the number of web workers; `serve` replaces "auto" by a number."""
    return 1 if text == AUTO else within(1, 64)(text)


def seconds(low: float, high: float) -> Callable[[str], float]:
    @expects(f"seconds, {low:g} to {high:g}")
    def read(text: str) -> float:
        number = float(accept(text, NUMBER.fullmatch(text)))
        return accept(number, low <= number <= high)

    return read


@expects("path of a folder that can be read")
def folder(text: str) -> Path:
    found: Path = path(text)
    return accept(found, can_be_read(found))


@expects("path of a file that can be read")
def file(text: str) -> Path:
    found: Path = path(text)
    effective = os.access in os.supports_effective_ids  # not on Windows
    readable = found.is_file() and os.access(found, os.R_OK, effective_ids=effective)
    return accept(found, readable)


@expects("path")
def path(text: str) -> Path:
    return Path(accept(text, text)).absolute()


@expects("path; if a folder is there, one that can be read")
def place(text: str) -> Path:
    found: Path = path(text)
    return accept(found, can_be_read(found) or not found.exists())


# NGINX's configuration and Triton's shell command contain the path of the container's own folder,
# and the path of "gunicorn.sock" in it may have 107 characters. The folder is RUN_DIR for the web
# workers, and "dispatch-run" in it for `serve`.
WORKABLE = re.compile(r"[A-Za-z0-9._/+-]{1,93}")
RUN_PATH = "absolute path of at most 80 letters, digits and ._/+-"


@expects(RUN_PATH)
def read_run_dir(text: str) -> Path:
    """Read the path of the container's own folder."""
    found: Path = path(text)
    accept(text, WORKABLE.fullmatch(str(found)))
    return accept(found, found.is_dir() or not found.exists())


@expects("paths of folders that can be read, separated by colons, or nothing")
def folders(text: str) -> tuple[Path, ...]:
    return tuple(folder(part) for part in text.split(os.pathsep) if part)


def unreadable(text: str) -> str:
    """Say why paths, separated by colons or commas, cannot be read; else return an empty text."""
    parts = [part.strip() for part in re.split("[:,]", text)]
    return next(
        filter(None, (explain_denial(Path(part)) for part in parts if part.startswith("/"))), ""
    )


BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")  # as AWS has it, for other makers too
# No URL: `?`, `#` and `%` are characters of a key as all others are. A bucket's name has none that
# could lead to another host.
S3_URI = re.compile(rf"s3://({BUCKET.pattern})(?:/(.*))?", re.DOTALL)


def s3_or(read: Reader, text: str) -> Any:
    """Return the address of objects in S3 as it is, and what `read` makes of any other text."""
    return accept(text, S3_URI.fullmatch(text)) if text.startswith("s3:") else read(text)


@expects("path of a folder that can be read, or s3://BUCKET/PREFIX; several with commas or colons")
def repositories(text: str) -> tuple[Path | str, ...]:
    if Path(text).is_dir():  # its name may have a comma or a colon
        return (folder(text),)
    parts = [part.strip() for part in re.split(r",|:(?!//)", text)]
    found = tuple(s3_or(folder, part) for part in parts if part)
    return accept(found, found)


@expects("path of a folder, or s3://BUCKET/PREFIX; or nothing")
def capture_place(text: str) -> Path | str:
    return s3_or(path, text) if text else text


@expects("share from 0 to 1, MODEL=SHARE for some models, or both, such as 0.01, resnet=1")
def shares(text: str) -> dict[str, float]:
    """Read shares by model; that of all others has the empty name."""
    found: dict[str, float] = {}
    for part in text.split(","):
        model, _, share = map(str.strip, part.rpartition("="))
        if not NUMBER.fullmatch(share) or not 0 <= float(share) <= 1 or model in found:
            raise ValueError(text)
        found[model] = float(share)
    return found


@expects("names of fields, NAME=hash for those to be hashed, separated by commas; or nothing")
def hidden_fields(text: str) -> dict[str, str]:
    """Read how fields are hidden: `hash`, or nothing where they are left out."""
    parts = [part.partition("=") for part in text.split(",") if part.strip()]
    found = {name.strip(): how.strip() for name, _, how in parts}
    hashed = all(how.strip() == "hash" for _, equals, how in parts if equals)
    return accept(found, hashed and "" not in found)


@expects("names, separated by commas, or nothing")
def names(text: str) -> tuple[str, ...]:
    found = tuple(part.strip() for part in text.split(",") if part.strip())
    return accept(found, not re.search(r"[\s;:]", "".join(found)))  # separated otherwise


@expects("words as in a shell, separated by spaces, or nothing")
def words(text: str) -> str:
    """Read words that `shlex.split` can split; return them as they are."""
    shlex.split(text)
    return text


def one_of(*words: str) -> Callable[[str], str]:
    @expects(f"one of {', '.join(words)}")
    def read(text: str) -> str:
        return accept(text.lower(), text.lower() in words)

    return read


@expects("media type, such as text/csv, or nothing")
def media_type(text: str) -> str:
    written = re.fullmatch(r"[\w.+-]+/[\w.+-]+ *(;[\x20-\x7e]*)?", text, re.ASCII)
    return accept(text, written or not text)


@expects("true or false")
def truth(text: str) -> bool:
    return accept(text.lower(), text.lower() in {"true", "false"}) == "true"


@dataclass(frozen=True)
class SettingRow:
    """What is said of one setting."""

    variable: str
    default: str
    read: Reader
    meaning: str
    secret: bool = False

    @property
    def expected(self) -> str:
        return str(self.read.expected)  # type: ignore[attr-defined]


def setting(
    variable: str, default: str, read: Reader, meaning: str, *, secret: bool = False
) -> Any:
    """Declare a field of `Settings` by its row."""
    row = SettingRow(variable, default, read, meaning, secret)
    return field(repr=not secret, metadata={ROW: row})


@expects("name of a bucket: 3 to 63 lower-case letters, digits, dots and hyphens")
def bucket(text: str) -> str:
    return accept(text, BUCKET.fullmatch(text))


ANY_ORIGIN = "*"
# As browsers write it in the header Origin: in lower case, and the usual ports left out.
ORIGIN = re.compile(
    r"(?!http://[^:]*:80$|https://[^:]*:443$)"
    r"https?://([a-z0-9_-]+(\.[a-z0-9_-]+)*|\[[0-9a-f:.]+\])(:[1-9][0-9]{0,4})?"
)


@expects(
    "origins as browsers write them, such as https://shop.example or http://localhost:3000, "
    "separated by commas; * alone for any; or nothing"
)
def origins(text: str) -> tuple[str, ...]:
    found = tuple(part.strip() for part in text.split(",") if part.strip())
    return accept(found, found == (ANY_ORIGIN,) or all(map(ORIGIN.fullmatch, found)))


@expects("BUCKET or BUCKET/PREFIX, separated by commas, or nothing")
def s3_places(text: str) -> tuple[str, ...]:
    found = tuple(part.strip().removeprefix("s3://") for part in text.split(",") if part.strip())
    for place in found:
        bucket(place.partition("/")[0])
    return found


# No number, in any of its forms: the last part begins with a letter.
HOST = r"([a-z0-9_-]{1,63}\.)+[a-z][a-z0-9-]{1,62}"
HOSTS = re.compile(rf"(\*\.)?{HOST}(:[1-9][0-9]{{0,4}})?")


@expects(
    "hosts such as images.example.com, *.example.com for all below it, or with a port such as "
    "images.example.com:8443, separated by commas, or nothing"
)
def hosts(text: str) -> tuple[str, ...]:
    found = tuple(part.strip().lower() for part in text.split(",") if part.strip())
    return accept(found, all(map(HOSTS.fullmatch, found)))


@expects("prefix of keys such as results/, or nothing")
def s3_prefix(text: str) -> str:
    """Read a prefix of keys; it ends with a slash."""
    accept(text, not text.startswith("/"))
    return text if not text or text.endswith("/") else f"{text}/"


@expects("name of a model, or nothing")
def name(text: str) -> str:
    return text


def write_value(value: object) -> str:
    if isinstance(value, range):
        return f"{value.start}-{value.stop - 1}"
    if isinstance(value, tuple):
        return (os.pathsep if value and isinstance(value[0], Path) else ",").join(map(str, value))
    if isinstance(value, dict):
        return ",".join("=".join(filter(None, map(str, pair))) for pair in value.items())
    return str(value).lower() if isinstance(value, bool) else str(value)
