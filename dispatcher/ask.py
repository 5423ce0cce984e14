"""Reads what a request asks for: which model, what payload, which parameters."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from clients.base import Payload, brief
from dispatcher.errors import BadBody

EXPECTED = 'expected {"modelname": "resnet", "payload": {"img": "<base64 of a picture>"}}'
FIELDS = ("modelname", "modelversion", "parameters", "payload")


@dataclass(frozen=True)
class Ask:
    """One request, its shape checked.

    Args:
        modelname: the client's name.
        payloads: one payload, or as many as the list held.
        is_list: whether the payload came as a list, so that the result is one too.
        parameters: as the caller gave them; the client checks them.
        modelversion: the version asked for; the empty text means the latest.

    """

    modelname: str
    payloads: list[Payload]
    is_list: bool
    parameters: Mapping[str, Any] = field(default_factory=dict)
    modelversion: str = ""


def read_ask(body: bytes, max_batch: int) -> Ask:
    """Read the body of `POST /invocations`.

    Raises:
        BadBody: it is not JSON, or a field is missing, unknown or of the wrong type.

    """
    try:
        document = json.loads(body)
    except (ValueError, RecursionError) as error:
        came = f"{len(body)} bytes that begin with {body[:16]!r}" if body else "nothing"
        raise BadBody(f"the body is not JSON ({error}); it is {came}", hint=EXPECTED) from error
    if not isinstance(document, dict):
        raise BadBody(f"the body is {brief(document)}, not a JSON object", hint=EXPECTED)
    if unknown := [name for name in document if name not in FIELDS]:
        raise BadBody(
            f"the body has an unknown field `{brief(unknown[0]).strip(chr(39))}`",
            hint=f"it may have {', '.join(FIELDS)}; settings of the model go into parameters",
        )
    payload = present(document, "payload", dict | list, "an object, or a list of objects")
    is_list = isinstance(payload, list)
    return Ask(
        modelname=present(document, "modelname", str, "the name of a model"),
        payloads=payload_list(payload, max_batch) if is_list else [payload],
        is_list=is_list,
        parameters=optional(document, "parameters", dict, "an object"),
        modelversion=version(document),
    )


def present(document: dict[str, Any], name: str, kind: Any, expected: str) -> Any:
    if name not in document:
        raise BadBody(f"`{name}` is missing", hint=EXPECTED)
    return of_kind(document[name], name, kind, expected)


def optional(document: dict[str, Any], name: str, kind: type[Any], expected: str) -> Any:
    value = document.get(name)
    return kind() if value is None else of_kind(value, name, kind, expected)


def of_kind(value: object, name: str, kind: Any, expected: str) -> object:
    if not isinstance(value, kind) or value == "":
        raise BadBody(f"`{name}` is {brief(value)}; expected {expected}", hint=EXPECTED)
    return value


def payload_list(payloads: list[Any], max_batch: int) -> list[Payload]:
    if not payloads or len(payloads) > max_batch:
        raise BadBody(
            f"`payload` is a list of {len(payloads)}",
            hint=f"expected 1 to {max_batch} payloads in one request",
        )
    for position, payload in enumerate(payloads):
        of_kind(payload, f"payload[{position}]", dict, "an object")
    return payloads


def version(document: dict[str, Any]) -> str:
    """Return the version as Triton spells it: 2 and "2" are the same."""
    value = document.get("modelversion")
    if value is None:
        return ""
    text = str(value)
    if isinstance(value, bool) or not isinstance(value, int | str) or not is_version(text):
        raise BadBody(
            f"`modelversion` is {brief(value)}", hint="expected a whole number from 1, such as 2"
        )
    return text


def is_version(text: str) -> bool:
    # Triton keeps a version as a signed 64-bit number.
    return text.isascii() and text.isdigit() and text[0] != "0" and int(text[:20]) < 2**63
