"""A Triton elsewhere: the readers of its settings, and what is sent along with every call."""

from __future__ import annotations

import logging
import re
import ssl
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from clients.model_files.files import file_mark
from dispatcher.settings.readers import ROW, accept, expects, port

if TYPE_CHECKING:
    from dispatcher.settings import Settings

log = logging.getLogger(__name__)

Pairs = tuple[tuple[str, str], ...]

HOST = r"(?:[A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.]+\])"
GRPC = re.compile(
    rf"(?:grpcs?://)?(?:(?:dns:///|dns:)?{HOST}:\d+|ipv[46]:{HOST}:\d+(?:,{HOST}:\d+)*)"
)
TLS = "grpcs://"

NAME = re.compile(r"(?!grpc-)[a-z0-9_.-]+(?<!-bin)")
VALUE = re.compile(r"[ -~]+")

# What only a Triton of this container can do.
REFUSED = ("public_grpc_port", "multi_model", "triton_options")

# Settings that belong to TRITON_URL, and those of TLS among them.
ITS_OWN = (
    *(TLS_FILES := ("triton_ca_file", "triton_certificate_file")),
    *("triton_http_url", "triton_metadata"),
)


@expects("HOST:PORT, dns:///NAME:PORT or ipv4:A:PORT,B:PORT, behind grpcs:// for TLS")
def grpc_url(text: str) -> str:
    accept(text, GRPC.fullmatch(text))
    for number in re.findall(r":(\d+)(?:,|$)", text):
        port(number)
    return text


@expects("http://HOST:PORT or https://HOST:PORT")
def http_url(text: str) -> str:
    accept(text, re.fullmatch(rf"https?://{HOST}(:\d+)?/?", text))
    if (number := urlsplit(text).port) is not None:
        port(str(number))
    return text.rstrip("/")


@expects("lines `name: value`, or `@` and the path of a file with such lines, or nothing")
def metadata(text: str) -> str:
    """Read headers for gRPC, or where they are; return the text as it is."""
    TritonMetadata(text)()
    return text


class TritonMetadata:
    """What is sent to Triton with every call. A file is read again when it has changed.

    While a changed file cannot be used, what was read before is sent.
    """

    def __init__(self, text: str) -> None:
        self._file = Path(text[1:]) if text.startswith("@") else None
        self._mark = ""
        self._pairs: Pairs | None = None if self._file else pairs(text)

    def __call__(self) -> Pairs:
        """Return names and values.

        Raises ValueError, OSError: the file cannot be used, the first time.
        """
        if self._file is None:
            return self._pairs or ()
        if (mark := file_mark(self._file)) != self._mark:
            try:
                self._pairs = pairs(self._file.read_text(encoding="utf-8"))
            except (OSError, ValueError) as error:
                if self._pairs is None:
                    raise
                log.warning("the file of TRITON_METADATA cannot be used: %s", type(error).__name__)
            self._mark = mark
        return self._pairs or ()


def pairs(text: str) -> Pairs:
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        name, _, value = (part.strip() for part in line.partition(":"))
        if not line.strip():
            continue
        if not (NAME.fullmatch(name.lower()) and VALUE.fullmatch(value)):
            raise ValueError(f"line {number} is no `name: value`") from None
        found.append((name.lower(), value))
    return tuple(found)


def find_misplaced(settings: Settings) -> list[str]:
    """Return a sentence for each setting that does not fit TRITON_URL, or lacks it."""
    its = {f.name: f.metadata[ROW].variable for f in fields(settings)}
    url = settings.triton_url
    if not url:
        return [
            f"{its[name]} is set, and TRITON_URL is not; expected: both, or neither"
            for name in ITS_OWN
            if getattr(settings, name)
        ]
    wrong = [
        f"{its[f.name]} is set, and a Triton elsewhere (TRITON_URL) does not take it; expected: "
        "nothing here, and the option at that Triton"
        for f in fields(settings)
        if f.name in REFUSED
        and getattr(settings, f.name) != f.metadata[ROW].read(f.metadata[ROW].default)
    ]
    if settings.load_on_demand:
        wrong.append(
            f"{its['load_on_demand']} is 'true', and TRITON_URL is set; expected: not both: the "
            "memory that models take elsewhere is not known here"
        )
    if len(settings.repositories) > 1 or not settings.folders:
        wrong.append(
            f"{its['repositories']} has several places or one in S3, and TRITON_URL is set; "
            "expected: one folder, for dispatch.toml, labels and tokenizers"
        )
    if not (url.startswith(TLS) or (settings.triton_http_url or "").startswith("https:")):
        wrong += [
            f"{its[name]} is set, and TRITON_URL is {url!r}; expected: {TLS}…"
            for name in TLS_FILES
            if getattr(settings, name)
        ]
    return wrong


def tls_context(settings: Settings) -> ssl.SSLContext:
    """Return the context for HTTPS to Triton; this reads and checks the files."""
    context = ssl.create_default_context(cafile=settings.triton_ca_file)
    if settings.triton_certificate_file:
        context.load_cert_chain(settings.triton_certificate_file)
    return context
