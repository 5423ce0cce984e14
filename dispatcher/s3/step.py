"""The step before the slot and the one after: what requests name, and where answers go in S3.

A client gets such a payload as if the picture or the text had been sent raw.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from clients.base import Payload
from clients.errors import BadPayload, BadRequest, InferenceError
from clients.request import Media, SentRows
from dispatcher.codecs.content_types import LargeBodies
from dispatcher.codecs.responses import encode
from dispatcher.model_request import InferenceRequest, ModelRequest, RequestList, SeveralModels
from dispatcher.s3.client import Location
from dispatcher.s3.places import KEY_FIELD, URI_FIELD, Places
from dispatcher.s3.reading import Objects, Reads, Stored
from dispatcher.settings import Settings
from dispatcher.telemetry.request_log import RequestRecord


@dataclass(frozen=True)
class Output:
    """Where the answer to a request is stored."""

    locations: list[Location]  # of the object, or of one for each payload of a list
    each: bool  # whether each payload has its own
    asked: bool  # whether the request asked for it, not the settings
    reads: Reads  # of the request

    def keep(self, answer: dict[str, Any], deadline: float) -> dict[str, Any]:
        """Store an answer; return it with the place of what was stored.

        Raises InferenceError: one of those of `S3`.
        """
        document = {name: value for name, value in answer.items() if name != "status"}
        parts = [document]
        if self.each:
            parts = [{**document, "result": result} for result in document["result"]]
        since = time.monotonic()
        try:
            for location, part in zip(self.locations, parts, strict=True):
                self.reads.objects.put(location, encode(part)[0], deadline).result(deadline)
        finally:
            self.reads.record.s3 += time.monotonic() - since
        places = [{KEY_FIELD: one.key, URI_FIELD: str(one)} for one in self.locations]
        return {**answer, "output": places if self.each else places[0]}

    def refuse(self, form: str) -> None:
        """Refuse to store an answer that is sent in another form than one JSON document."""
        if self.asked:
            raise BadRequest(
                f"an answer of type {form} is not stored",
                hint="accept application/json, or leave out `output`",
            )


class Step:
    """Finds out what requests name in S3, or by a URL."""

    def __init__(self, settings: Settings, bodies: LargeBodies) -> None:
        self.places, self.objects = Places(settings), Objects(settings, bodies)
        self.store_all = bool(settings.s3_results_prefix)

    def reads(self, record: RequestRecord) -> Reads:
        """Return what a request is to read, which is closed when its response was sent."""
        return Reads(self.objects, record)

    def resolve(
        self, asked: InferenceRequest, reads: Reads, texts: Mapping[str, str]
    ) -> InferenceRequest:
        """Return a request with `Stored` in the place of payloads that name objects.

        Raises BadRequest: an object is not named as expected.
        Raises ObjectForbidden: the settings do not allow it.
        """
        if isinstance(asked, ModelRequest):
            return self.one(asked, reads, texts)
        if isinstance(asked, SeveralModels):
            if asked.model_requests[0].output:
                raise BadPayload(
                    "`output` names one object for the answers of several models",
                    hint='write "output": {}, which gives each a name of its own',
                )
            payloads = self.one(asked.model_requests[0], reads, texts).payloads
            return SeveralModels(
                [
                    replace(one, payloads=payloads, output=self.output(one, payloads, reads, texts))
                    for one in asked.model_requests
                ]
            )
        return RequestList(self.item(one, reads, texts) for one in asked.model_requests)

    def item(
        self, one: ModelRequest | InferenceError, reads: Reads, texts: Mapping[str, str]
    ) -> ModelRequest | InferenceError:
        """Return one of several requests, or the error in it."""
        try:
            return self.one(one, reads, texts) if isinstance(one, ModelRequest) else one
        except InferenceError as error:
            return error

    def one(self, asked: ModelRequest, reads: Reads, texts: Mapping[str, str]) -> ModelRequest:
        payloads = asked.payloads
        if not asked.tensors:
            payloads = [self.payload(one, reads) for one in payloads]
        return replace(asked, payloads=payloads, output=self.output(asked, payloads, reads, texts))

    def payload(
        self, payload: Payload | Media | SentRows | Stored, reads: Reads
    ) -> Payload | Media | SentRows | Stored:
        if not isinstance(payload, Mapping) or self.places.fields.isdisjoint(payload):
            return payload
        others = {name: value for name, value in payload.items() if name not in self.places.fields}
        return Stored(self.places.input(payload), others, reads)

    def output(
        self,
        asked: ModelRequest,
        payloads: list[Payload | Media | SentRows | Stored],
        reads: Reads,
        texts: Mapping[str, str],
    ) -> Output | None:
        """Return where the answer goes; a place for each payload of a list by default."""
        if isinstance(asked.output, Mapping) and asked.output:
            place = self.places.output(asked.output)
            return Output([place], each=False, asked=True, reads=reads)
        by_key = [
            (one.location, one.others)
            for one in payloads
            if isinstance(one, Stored) and isinstance(one.location, Location)
        ]
        wanted = asked.output is not None
        if wanted and len(by_key) < len(payloads):
            raise BadPayload(
                "`output` names no object, and a payload came without one in S3",
                hint='write "output": {"s3_key": …}',
            )
        if not wanted and not (self.store_all and len(by_key) == len(payloads)):
            return None
        places = []
        for location, others in by_key:
            variant = [dict(more) for more in (asked.parameters, texts, others)]
            place = self.places.result(
                location, asked.modelname, asked.modelversion, variant if any(variant) else None
            )
            places.append(place)
        return Output(places, each=asked.is_list, asked=wanted, reads=reads)
