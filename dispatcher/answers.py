"""Writes an answer in the type that the caller accepts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any, Final

from flask import Response
from werkzeug.datastructures import MIMEAccept
from werkzeug.http import parse_accept_header

from clients.base import Client
from clients.errors import InferenceError
from clients.tensors import TensorClient
from dispatcher import errors
from dispatcher.ask import Ask
from dispatcher.encoding import encoded
from dispatcher.errors import CallerGone, NotAcceptable

JSON: Final = "application/json"
LINES: Final = "application/jsonlines"
NPY: Final = "application/x-npy"
DRAWN: Final = ("image/jpeg", "image/png")

NON_FINITE: Final = "X-Non-Finite-Values"


def offers(ask: Ask, client: Client) -> tuple[str, ...]:
    """Return the types in which one ask can be answered, the usual one first."""
    if ask.is_list:
        return (JSON, LINES)
    if isinstance(client, TensorClient):
        return (JSON, NPY)
    return (JSON, *DRAWN) if client.draws() else (JSON,)


@lru_cache(maxsize=64)  # programs send few different ones
def accepted(header: str, offered: tuple[str, ...]) -> str:
    """Return the best of the types offered.

    Raises:
        NotAcceptable: the caller takes none of them.

    """
    if not header.strip():
        return offered[0]
    # Parameters such as charset or verbose do not make another type of these.
    plain = re.sub(r";(?!\s*q\s*=)[^;,]*", "", header)
    wanted = parse_accept_header(plain, MIMEAccept)
    if chosen := wanted.best_match(offered):
        return str(chosen)
    raise NotAcceptable(
        f"the answer cannot be given as {header[:100]!r}", hint=f"accept {', '.join(offered)}"
    )


def json_answer(document: Any) -> Response:
    """Return an answer in JSON."""
    return written(*encoded(document))


def results_answer(results: Iterable[Any] | Mapping[str, Any]) -> Response:
    """Return several answers, in a list or by name: one that JSON cannot hold fails alone."""
    if isinstance(results, Mapping):
        made = {name: in_place(one) for name, one in results.items()}
        text = ",".join(f"{encoded(name)[0]}:{one}" for name, (one, _) in made.items())
        return written(f'{{"results":{{{text}}}}}', sum(lost for _, lost in made.values()))
    each = [in_place(one) for one in results]
    text = ",".join(one for one, _ in each)
    return written(f'{{"results":[{text}]}}', sum(lost for _, lost in each))


def written(text: str, lost: int) -> Response:
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
    try:
        for document in documents:
            yield in_place(document)[0] + "\n"
    except CallerGone:
        pass  # nobody reads the rest


def in_place(document: Any) -> tuple[str, int]:
    """Return one of several documents as JSON; an error where JSON cannot hold it."""
    try:
        return encoded(document)
    except (InferenceError, ValueError) as error:
        name = document.get("modelname", "") if isinstance(document, dict) else ""
        return encoded({"modelname": name, **errors.item(error, name)})
