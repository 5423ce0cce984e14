"""Answers in several parts."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from typing import Any

from flask import Response, g, request

from clients.errors import DeadlineExceeded
from dispatcher.codecs.content_types import BodyFile, LargeBodies
from dispatcher.codecs.error_responses import encode_results
from dispatcher.codecs.json_request import CHUNK
from dispatcher.codecs.responses import encode, lines_response
from dispatcher.errors import CallerGone
from dispatcher.execution.executor import Series
from dispatcher.execution.prepared import PreparedRequest
from dispatcher.execution.slots import Slot
from dispatcher.execution.watchdog import shut_down
from dispatcher.telemetry.telemetry import Telemetry


def spool(bodies: LargeBodies, until_sent: ExitStack) -> BodyFile:
    """Return the current request's body as a file that is closed when the response was sent.

    It is read to its end before the response begins: NGINX does not send and receive at once.
    """
    unpacked: BodyFile | None = g.pop("unpacked", None)
    file = unpacked or BodyFile(bodies)
    until_sent.callback(file.close)
    if unpacked:
        request.environ["wsgi.input"] = io.BytesIO()  # else app.py would read it to its end
    else:
        while piece := request.stream.read(CHUNK):
            file.write(piece)
        file.seek(0)
    return file


def stream_response(
    prepared: PreparedRequest, series: Series, form: str, telemetry: Telemetry
) -> Response:
    """Answer with the results of one payload as they come, in lines or events."""
    result = prepared.result(stream=True)
    several = result if isinstance(result, Iterator) else iter([result])
    steps = prepared.steps(several)
    results = ([prepared.body(one)] for one in each_in_time(steps, prepared, series))
    response = results_in_lines(results, prepared, form, telemetry)
    response.call_on_close(prepared.request.cancel)
    return response


def results_in_lines(
    batches: Iterator[list[Any]], prepared: PreparedRequest, form: str, telemetry: Telemetry
) -> Response:
    """Answer with the results of some batches as they come, each on a line."""
    # The first batch before the first byte, so that an error in it has its own status.
    first = next(batches, [])
    encode(first)
    made = encode_results(first, batches, prepared.model_request.modelname)
    return lines_response((one.text for one in telemetry.items(made, g.record)), form)


def each_in_time(steps: Iterator[Any], prepared: PreparedRequest, series: Series) -> Iterator[Any]:
    """Yield results; end the model's run where the next one is late, or the caller gone."""

    def stop() -> None:
        if not prepared.request.cancel() and series.caller.connection:
            shut_down(series.caller.connection)

    slot = series.slot
    slot.deadline, slot.on_timeout, slot.until_gone = series.time_limit.deadline(), stop, True
    try:
        for one in steps:
            yield one
            slot.deadline = series.time_limit.deadline()
    except DeadlineExceeded as error:
        if series.caller.disconnected():
            raise CallerGone("the caller closed the connection before all results") from error
        raise


def release_slot(slot: Slot) -> None:
    """Release the slot of a series whose response was sent, or broke off."""
    with suppress(DeadlineExceeded):
        slot.release()
