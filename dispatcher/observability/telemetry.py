"""Follows each request until its response was sent, then counts and logs it once."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from functools import partial

from flask import Request, Response

from dispatcher.codecs.responses import OK, Item
from dispatcher.errors import ANSWERS, CallerGone
from dispatcher.observability.metrics import Metrics
from dispatcher.observability.record import RequestRecord
from dispatcher.observability.request_log import AccessLog


class Telemetry:
    """Counts and logs requests.

    Args:
        metrics: counts every request.
        access_log: logs a line for each; `None` for no log.

    """

    def __init__(self, metrics: Metrics, access_log: AccessLog | None = None) -> None:
        self.metrics = metrics
        self.access_log = access_log

    def begin(
        self, request: Request, request_id: str, queue: float, *, counts: bool
    ) -> RequestRecord:
        """Return the record of a new request.

        Args:
            request: as Flask has it.
            request_id: its id in the log and the response.
            queue: seconds since NGINX had all of it.
            counts: whether it is counted and logged.

        """
        if counts:
            self.metrics.in_flight.inc()
        return RequestRecord(
            reported=not counts,
            since=time.monotonic() - queue,
            request_id=request_id,
            method=request.method,
            route=request.url_rule.rule if request.url_rule else "",
            path=request.path,
            bytes_in=request.content_length or 0,
            queue=queue,
        )

    def finish(self, record: RequestRecord, response: Response) -> None:
        """Note the response; report the request when it was sent."""
        record.status = response.status_code
        if not record.models:
            record.name(record.modelname)
        if response.is_sequence:
            record.bytes_out = response.content_length or 0
        else:  # asking for its length would collect all of it before the first line is sent
            response.response = count_bytes(response.iter_encoded(), record)
        response.call_on_close(partial(self.report, record))

    def timed_out(self, record: RequestRecord, status: int, code: str) -> None:
        """Report a request that was answered in the place of its own thread."""
        record.status, record.code = status, code
        record.timings = None  # of unfinished phases
        self.report(record)

    def report(self, record: RequestRecord) -> None:
        """Count and log a request whose response was sent, once."""
        if record.reported:
            return
        record.reported = True
        record.total = time.monotonic() - record.since
        record.at = time.time() - record.total
        self.metrics.request(record)
        if self.access_log:
            self.access_log.put(record)

    def items(self, items: Iterable[Item], record: RequestRecord) -> Iterator[Item]:
        """Yield the results of a response that holds several, and count them."""
        for item in items:
            record.name(item.modelname)
            record.items += 1
            record.failed += item.status != OK
            self.metrics.item(item.modelname, item.status)
            yield item


def count_bytes(pieces: Iterator[bytes], record: RequestRecord) -> Iterator[bytes]:
    """Yield the pieces of a streamed response, and count their bytes.

    It ends early where the caller is gone, and the record says so.
    """
    try:
        for piece in pieces:
            record.bytes_out += len(piece)
            yield piece
    except (CallerGone, GeneratorExit):
        record.status, record.code = ANSWERS[CallerGone]
