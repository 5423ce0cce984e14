"""Makes responses of the type that the caller accepts.

JSON is compact, with unescaped text, and without NaN and Infinity.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from contextvars import copy_context
from functools import lru_cache, partial
from typing import Any, Final, NamedTuple

from flask import Response
from werkzeug.datastructures import MIMEAccept
from werkzeug.http import parse_accept_header

from clients.base import Client
from clients.tensors.client import TensorClient
from clients.tensors.scores import NotFinite
from dispatcher.codecs.csv_rows import cells, write_rows
from dispatcher.errors import NotAcceptable, NotJson
from dispatcher.model_request import ModelRequest

JSON: Final = "application/json"
LINES: Final = "application/jsonlines"
EVENTS: Final = "text/event-stream"
NPY: Final = "application/x-npy"
CSV: Final = "text/csv"
IMAGE_TYPES: Final = ("image/jpeg", "image/png")

NON_FINITE_HEADER: Final = "X-Non-Finite-Values"

OK: Final = 200

POINT_ALONE = re.compile(r"q=\.", re.IGNORECASE)  # of a quality of Java's


def available_types(model_request: ModelRequest, client: Client) -> tuple[str, ...]:
    """Return the types that a request can be answered in, the default first."""
    if model_request.is_list:
        return (JSON, LINES, CSV)
    if isinstance(client, TensorClient):
        return (JSON, NPY, CSV)
    return (JSON, *client.drawn_as, CSV) if client.draws() else (JSON, CSV)


def negotiate(header: str, offered: tuple[str, ...]) -> str:
    """Return the offered type that the caller likes best.

    A picture beside text/html does not count where JSON is accepted too: such headers are the
    defaults of Java and of browsers' forms.
    """
    if not header.strip():
        return offered[0]
    wanted = media_ranges(header)
    chosen = wanted.best_match(offered)
    if chosen in IMAGE_TYPES and any(name == "text/html" and quality for name, quality in wanted):
        chosen = wanted.best_match([JSON], chosen)
    if chosen:
        return chosen
    raise NotAcceptable(
        f"the answer cannot be given as {header[:100]!r}", hint=f"accept {', '.join(offered)}"
    )


@lru_cache(100)
def media_ranges(header: str) -> MIMEAccept:
    """Parse an Accept header (RFC 9110, 12.5.1); what cannot be read is skipped.

    Java's default is `text/html, *; q=.2`.
    """
    found = parse_accept_header(POINT_ALONE.sub("q=0.", header), MIMEAccept)
    return MIMEAccept(
        [("*/*" if name == "*" else name.partition(";")[0], quality) for name, quality in found]
    )


def negotiate_lines(header: str) -> str:
    """Return the type of the response to JSON lines: lines, or JSON if preferred.

    A caller that needs JSON accepts JSON only; many others, such as axios, name it before `*/*`.

    Raises NotAcceptable: the caller accepts neither.
    """
    negotiate(header, (LINES, JSON))
    wanted = media_ranges(header)
    return LINES if wanted.quality(LINES) >= wanted.quality(JSON) else JSON


def json_response(document: Any) -> Response:
    return text_response(*encode(document))


class SentResult(NamedTuple):
    """One of several results, as it is sent."""

    text: str  # its JSON
    non_finite: int  # how many of its numbers are not finite
    modelname: str  # the model
    status: int  # the status that it would have alone


def results_response(items: Iterable[SentResult]) -> Response:
    items = list(items)
    text = ",".join(one.text for one in items)
    return text_response(f'{{"results":[{text}]}}', sum(one.non_finite for one in items))


def results_by_name(items: Sequence[SentResult]) -> Response:
    text = ",".join(f"{encode(one.modelname)[0]}:{one.text}" for one in items)
    return text_response(f'{{"results":{{{text}}}}}', sum(one.non_finite for one in items))


def csv_response(results: Iterable[Any]) -> Response:
    """Return a response with a row of CSV for each result."""
    non_finite: list[float] = []
    text = write_rows(replace_non_finite([*cells(one)], non_finite) for one in results)
    return text_response(text, len(non_finite), CSV)


def text_response(text: str, non_finite: int, form: str = JSON) -> Response:
    response = Response(text, mimetype=form)
    if non_finite:
        response.headers[NON_FINITE_HEADER] = str(non_finite)
    return response


def lines_response(texts: Iterable[str], form: str = LINES) -> Response:
    """Return a streamed response with a line for each text of JSON, or one document with them."""
    if form == JSON:
        made = join_document(texts)
    else:
        before, after = ("data: ", "\n\n") if form == EVENTS else ("", "\n")
        made = (f"{before}{text}{after}" for text in texts)
    # Flask leaves the request's context before the first line; errors and the log need it.
    run = copy_context().run
    response = Response(iter(partial(run, next, made, None), None), mimetype=form)
    response.headers["X-Accel-Buffering"] = "no"  # NGINX forwards each piece at once
    return response


def join_document(texts: Iterable[str]) -> Iterator[str]:
    """Yield the pieces of the document that `results_response` makes."""
    yield '{"results":['
    for place, text in enumerate(texts):
        yield f",{text}" if place else text
    yield "]}"


def encode(document: Any) -> tuple[str, int]:
    """Encode a document; return the text and how many numbers became null.

    Raises NotJson: JSON cannot represent something in it; the message says what.
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
        try:
            reason = str(error)[:300]
        except Exception:
            reason = type(error).__name__
        raise NotJson(
            f"the model's client answered what JSON cannot represent: {reason}",
            hint="a client returns dictionaries, lists, texts and numbers of Python's own: "
            "array.tolist(), float(number), data.decode()",
        ) from error


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
