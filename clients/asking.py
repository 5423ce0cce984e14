"""Asks the client of another model, for a class: `Client.ask`.

The other client runs in the thread and the slot of the request that asks it. So a chain of models
cannot wait for itself, however many requests there are.
"""

from __future__ import annotations

import itertools
import logging
import operator
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from clients.errors import (
    AskFailed,
    BadParameter,
    BadRequest,
    InferenceError,
    TooLargeAtOnce,
    place_error,
)
from clients.request import Request, join_results
from clients.tensors.nested import copy_deeply

if TYPE_CHECKING:
    from clients.base import Client, Others, Payload

DEEPEST = 5  # models in a chain, the caller's own included

log = logging.getLogger(__name__)


def ask(
    client: Client,
    others: Others,
    name: str,
    payload: Payload | Sequence[Payload],
    parameters: Mapping[str, Any],
    *,
    version: str,
) -> Any:
    """Ask another client for one; `Client.ask` says how."""
    request, by = client.request, client.modelname
    chain = (*request.chain, by)
    payloads = payloads_of(payload)
    refuse_endless(chain, name)
    request.timings.lap()
    asked = name
    try:
        request.time_left()
        other = others.find(name, request.deadline)
        asked = other.modelname or other.served_by
        refuse_endless(chain, asked)  # it may have been an alias
        one = isinstance(payload, Mapping)
        inner = replace(
            request,
            parameters=other.read_parameters(parameters),
            version=version,
            timings=request.timings.of_asked(asked),
            sequence=request.sequence if one else None,
            chain=chain,
            draws=False,
        )
        inner.timings.begin(in_class=other.is_authors)
        try:
            if one:
                return run_batch(other, inner, payloads, one=True)[0]
            with inner.active():
                size = operator.index(other.max_batch_size)
            starts = range(0, len(payloads), size)
            batches = (run_batch(other, inner, payloads[at : at + size], at) for at in starts)
            return list(itertools.chain.from_iterable(batches))
        except InferenceError:
            raise
        except (Exception, SystemExit) as error:
            log.exception(
                "the client of %s, which %s asks, failed in request %s",
                ascii(asked),
                ascii(by),
                request.request_id,
            )
            raise AskFailed(
                "its client raised an unexpected exception",
                hint="the container's log has the traceback, with the request's id",
            ) from error
        finally:
            inner.timings.lap()
            request.timings.asked(inner.timings)
    except InferenceError as error:
        raise blame(error, asked, by, payloads, request.payloads) from error


def payloads_of(payload: Payload | Sequence[Payload]) -> list[Payload]:
    """Return one payload or several in a list."""
    found: list[Any] = list(payload) if isinstance(payload, list | tuple) else [payload]
    for one in found:
        if not isinstance(one, Mapping):
            raise TypeError(
                f"ask() takes a payload, which is a dictionary, or a list of them, not "
                f"{type(one).__name__}"
            )
    return found


def refuse_endless(chain: Sequence[str], name: str) -> None:
    """Refuse a chain that comes back to one of its models, or is too long."""
    shown = " → ".join([*chain, name])
    if name in chain:
        raise AskFailed(
            f"models ask one another in a circle: {shown}",
            hint="change one of these classes; each model can be in a chain once",
        )
    if len(chain) >= DEEPEST:
        raise AskFailed(
            f"a chain has too many models: {shown}",
            hint=f"at most {DEEPEST} models may ask one another; let the first ask more of them",
        )


def run_batch(
    client: Client,
    request: Request,
    payloads: Sequence[Payload],
    start: int = 0,
    *,
    one: bool = False,
) -> list[Any]:
    """Return the results of one batch, run in halves where it is too large."""
    given = copy_deeply([dict(each) for each in payloads])  # which the asked client may change
    try:
        with replace(request, payloads=given).active():
            results = [client.run_inference(given[0])] if one else client.run_inference_batch(given)
            if not isinstance(results, list) or len(results) != len(payloads):
                raise TypeError(
                    f"inference_batch returned {type(results).__name__}; expected a list with a "
                    f"result for each of {len(payloads)} payloads"
                )
            return [join_results(each) for each in results]
    except TooLargeAtOnce:
        if len(payloads) == 1:
            raise
    except InferenceError as error:
        if error.position is None:
            raise
        raise place_error(error, start + error.position) from error
    half = (len(payloads) + 1) // 2
    first = run_batch(client, request, payloads[:half], start)
    return first + run_batch(client, request, payloads[half:], start + half)


def blame(
    error: InferenceError, asked: str, by: str, payloads: Sequence[Payload], given: Sequence[Any]
) -> InferenceError:
    """Return an asked client's error for the caller.

    A refused payload is the caller's mistake if that sent it, else the class's.
    """
    position = error.position if len(payloads) > 1 else None
    where = None
    if isinstance(position, int):
        payloads = payloads[position : position + 1]
    if isinstance(error, BadRequest) and not isinstance(error, BadParameter):
        senders = [find_sender(one, given) for one in payloads]
        where = senders[0] if senders and None not in senders else None
    if where is not None or not isinstance(error, BadRequest):
        message = f"{asked!r:.100}, which {by!r:.100} asks: {error.message}"
        return with_message(error, message, where)
    what = "parameters" if isinstance(error, BadParameter) else "payload"
    place = "" if position is None else f"payload[{position}]: "
    return AskFailed(
        f"{by!r:.100} asked {asked!r:.100}, which refuses the {what} that the class made",
        hint="change the class, or the model that dispatch.toml names, not the request: "
        f"{place}{error}",
    )


def find_sender(payload: Payload, given: Sequence[Any]) -> int | None:
    """Return which of the given payloads has all fields of a payload, as they came.

    The values are compared by identity: a text of 20 MB is the caller's own if it was passed on.
    """
    for position, one in enumerate(given):
        if isinstance(one, Mapping) and (payload or not one):
            own = (name in one and one[name] is value for name, value in payload.items())
            if all(own):
                return position
    return None


def with_message(error: InferenceError, message: str, position: int | None) -> InferenceError:
    """Return a copy of an error with another message, of another payload or none."""
    copied = place_error(error, position)
    try:
        copied.message, copied.args = message, (message,)
    except AttributeError:  # the author's class computes it
        kinds = (one for one in type(error).__mro__ if one.__module__ == place_error.__module__)
        copied = place_error(next(kinds)(message, hint=error.hint), position)
    return copied
