"""Follows each request from its beginning until its answer was sent, and tells of it once."""

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
    """Tells the metrics and the log.

    Args:
        metrics: counts every request.
        access_log: has a line for each; `None` where there is to be none.

    """

    def __init__(self, metrics: Metrics, access_log: AccessLog | None = None) -> None:
        self.metrics = metrics
        self.access_log = access_log

    def begin(
        self, request: Request, request_id: str, queue: float, *, counts: bool
    ) -> RequestRecord:
        """Begin with a request.

        Args:
            request: as Flask has it.
            request_id: what the log and the answer call it.
            queue: seconds since NGINX had all of it.
            counts: whether it is to be told of.

        """
        if counts:
            self.metrics.in_flight.inc()
        return RequestRecord(
            told=not counts,
            since=time.monotonic() - queue,
            request_id=request_id,
            method=request.method,
            route=request.url_rule.rule if request.url_rule else "",
            path=request.path,
            bytes_in=request.content_length or 0,
            queue=queue,
        )

    def finish(self, record: RequestRecord, response: Response) -> None:
        """Take in what the answer will be; it is told when it was sent."""
        record.status = response.status_code
        if not record.models:
            record.name(record.modelname)
        if response.is_sequence:
            record.bytes_out = response.content_length or 0
        else:  # asked for its length it would be made whole before its first line is sent
            response.response = count_bytes(response.iter_encoded(), record)
        response.call_on_close(partial(self.tell, record))

    def timed_out(self, record: RequestRecord, status: int, code: str) -> None:
        """Tell of a request that was answered in the place of the thread that has it."""
        record.status, record.code = status, code
        record.timings = None  # of phases that are not over
        self.tell(record)

    def tell(self, record: RequestRecord) -> None:
        """Tell of a request whose answer was sent; only the first time."""
        if record.told:
            return
        record.told = True
        record.total = time.monotonic() - record.since
        record.at = time.time() - record.total
        self.metrics.request(record)
        if self.access_log:
            self.access_log.put(record)

    def items(self, items: Iterable[Item], record: RequestRecord) -> Iterator[Item]:
        """Yield the answers that stand in one answer, and count them."""
        for item in items:
            record.name(item.modelname)
            record.items += 1
            record.failed += item.status != OK
            self.metrics.item(item.modelname, item.status)
            yield item


def count_bytes(pieces: Iterator[bytes], record: RequestRecord) -> Iterator[bytes]:
    """Yield the pieces of an answer that is sent as it is made, and count their bytes.

    Where nobody reads the rest it ends, and the record says so.
    """
    try:
        for piece in pieces:
            record.bytes_out += len(piece)
            yield piece
    except (CallerGone, GeneratorExit):
        record.status, record.code = ANSWERS[CallerGone]
