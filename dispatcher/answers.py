"""Writes an answer in the type that the caller accepts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from flask import Response
from werkzeug.datastructures import MIMEAccept
from werkzeug.http import parse_accept_header

from clients.base import Client
from clients.tensors import TensorClient
from dispatcher.ask import Ask
from dispatcher.encoding import encoded
from dispatcher.errors import NotAcceptable

JSON: Final = "application/json"
LINES: Final = "application/jsonlines"
NPY: Final = "application/x-npy"
DRAWN: Final = ("image/jpeg", "image/png")

NON_FINITE: Final = "X-Non-Finite-Values"


def offers(ask: Ask, client: Client) -> Sequence[str]:
    """Return the types in which one ask can be answered, the usual one first."""
    if ask.is_list:
        return (JSON, LINES)
    if isinstance(client, TensorClient):
        return (JSON, NPY)
    return (JSON, *DRAWN) if client.draws() else (JSON,)


def accepted(header: str, offered: Sequence[str]) -> str:
    """Return the best of the types offered.

    Raises:
        NotAcceptable: the caller takes none of them.

    """
    if not header.strip():
        return offered[0]
    # Parameters such as charset or verbose do not make another type of these.
    plain = re.sub(r";\s*(?!q\s*=)[^;,]*", "", header)
    wanted = parse_accept_header(plain, MIMEAccept)
    if chosen := wanted.best_match(offered):
        return str(chosen)
    raise NotAcceptable(
        f"the answer cannot be given as {header[:100]!r}", hint=f"accept {', '.join(offered)}"
    )


def json_answer(document: Any) -> Response:
    """Return an answer in JSON."""
    text, lost = encoded(document)
    response = Response(text, mimetype=JSON)
    if lost:
        response.headers[NON_FINITE] = str(lost)
    return response


def lines_answer(documents: Iterable[Any]) -> Response:
    """Return an answer with a line per document, sent as they are made."""
    response = Response(lines(documents), mimetype=LINES)
    response.headers["X-Accel-Buffering"] = "no"  # NGINX passes each piece on at once
    return response


def lines(documents: Iterable[Any]) -> Iterator[str]:
    for document in documents:
        yield encoded(document)[0] + "\n"
