"""Requests whose pictures, texts or answers are in S3: the one place that knows both.

A client gets such a payload as if the picture or the text had been sent raw.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from clients.base import Client, Payload
from clients.errors import BadPayload, BadRequest, InferenceError, UnsupportedMedia
from clients.plugins.family import Family
from clients.request import Media
from clients.tensors.client import TensorClient
from clients.tensors.nested import unshared
from dispatcher.codecs.media import UNSPECIFIED_MEDIA, detect_media
from dispatcher.codecs.responses import encode
from dispatcher.errors import BadBody, contract_class
from dispatcher.execution.request import (
    InferenceRequest,
    ModelRequest,
    RequestList,
    SeveralModels,
)
from dispatcher.storage.objects import Objects, Reads, Stored
from dispatcher.storage.places import FIELDS, KEY_FIELD, URI_FIELD, Places
from dispatcher.storage.s3 import Location

# Where `Client.picture` and `Client.text` look, in a class that declares no fields of its own.
USUAL_FIELDS: Final[Mapping[str, str]] = {"picture": "img", "text": "text"}


@dataclass(frozen=True)
class Output:
    """Where the answer to a request is stored.

    Args:
        location: of the object.
        objects: writes it.
        asked: whether the request asked for it, not the settings.

    """

    location: Location
    objects: Objects
    asked: bool

    def keep(self, answer: Mapping[str, Any], deadline: float) -> dict[str, str]:
        """Store an answer; return its place, as the response names it.

        Raises:
            InferenceError: one of those of `S3`.

        """
        self.objects.put(self.location, encode(answer)[0], deadline).result(deadline)
        return {KEY_FIELD: self.location.key, URI_FIELD: str(self.location)}


class ByKey:
    """Reads the fields of requests that name objects.

    Args:
        places: the objects that may be named.
        objects: reads and writes them.
        store_all: whether the answer to every request by key is stored.

    """

    def __init__(self, places: Places, objects: Objects, *, store_all: bool) -> None:
        self.places, self.objects, self.store_all = places, objects, store_all

    def read(
        self, asked: InferenceRequest, reads: Reads, texts: Mapping[str, str]
    ) -> InferenceRequest:
        """Return a request with `Stored` in the place of payloads that name objects.

        Args:
            asked: as its body was read.
            reads: those of the request.
            texts: parameters outside of the body.

        Raises:
            BadRequest: an object is not named as expected.
            ObjectForbidden: the settings do not allow it.

        """
        if isinstance(asked, ModelRequest):
            return self.one(asked, reads, texts)
        if isinstance(asked, SeveralModels):
            if asked.model_requests[0].output:
                raise BadPayload(
                    "`output` names one object for the answers of several models",
                    hint='write "output": {}, which gives each a name of its own',
                )
            return SeveralModels([self.one(one, reads, texts) for one in asked.model_requests])
        return RequestList([self.item(one, reads, texts) for one in asked.model_requests])

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
        return replace(asked, payloads=payloads, output=self.output(asked, payloads, texts))

    def payload(self, payload: Payload | Media | Stored, reads: Reads) -> Payload | Media | Stored:
        if not isinstance(payload, Mapping) or not names_object(payload):
            return payload
        others = {name: value for name, value in payload.items() if name not in FIELDS}
        # (Several models may get it, and a client may change what it is given.)
        return Stored(self.places.input(payload), unshared(others), reads)

    def output(
        self,
        asked: ModelRequest,
        payloads: list[Payload | Media | Stored],
        texts: Mapping[str, str],
    ) -> Output | list[Output] | None:
        """Return where the answer goes; a place for each payload of a list by default."""
        if asked.output:
            return Output(self.places.output(asked.output), self.objects, asked=True)
        by_key = [one for one in payloads if isinstance(one, Stored)]
        wanted = asked.output is not None
        if wanted and len(by_key) < len(payloads):
            raise BadPayload(
                "`output` names no object, and a payload came without one",
                hint='write "output": {"s3_key": …}',
            )
        if not wanted and not (self.store_all and len(by_key) == len(payloads)):
            return None
        outputs = []
        for one in by_key:
            variant = [dict(more) for more in (asked.parameters, texts, one.others)]
            place = self.places.result(
                one.location, asked.modelname, asked.modelversion, variant if any(variant) else None
            )
            outputs.append(Output(place, self.objects, wanted))
        return outputs if asked.is_list else outputs[0]


def names_object(payload: Mapping[str, Any]) -> bool:
    return any(name in payload for name in FIELDS)


def first_stored(one: ModelRequest | Exception) -> list[Stored]:
    """Return the objects that a request waits for before it takes a slot."""
    if isinstance(one, Exception):
        return []
    stored = [payload for payload in one.payloads if isinstance(payload, Stored)]
    return stored[: stored[0].reads.objects.at_a_time] if stored else []


def error_of_s3(stored: list[Stored]) -> InferenceError | None:
    """Return why an object was not read; then no other error of its request matters."""
    return next(filter(None, (one.error for one in stored)), None)


def wait_for_objects(
    asked: Sequence[ModelRequest | Exception], deadline: float, *, alone: bool = False
) -> None:
    """Wait for the first objects of a request before it takes a slot.

    Args:
        asked: the request, or the first ones of several.
        deadline: for the objects.
        alone: whether the first object is the only one.

    Raises:
        InferenceError: too many requests wait for S3, the only object was not read, or none was
            until the deadline.

    """
    if not asked or not (stored := first_stored(asked[0])):
        return
    reads = stored[0].reads
    with reads.objects.place_to_wait():
        reads.wait(stored, deadline)
    if alone or time.monotonic() >= deadline:
        for one in stored:
            one.content(deadline)


def opened(stored: Stored, content: bytes, client: Client) -> dict[str, Any]:
    """Return a payload with the content of its object in the client's own field.

    Raises:
        InferenceError: the client takes no such file.

    """
    ready_made = isinstance(client, Family | TensorClient)
    fields = client.media or ({} if ready_made else USUAL_FIELDS)
    try:
        media = detect_media(Media(UNSPECIFIED_MEDIA, content), fields)
    except BadBody as error:
        raise BadPayload(error.message, hint="store texts in UTF-8") from error
    if media.kind not in client.media and media.kind in fields:
        return {**stored.others, fields[media.kind]: media.content}
    return {**stored.others, **client.payload_of(media)}


def with_object(error: InferenceError, asked: ModelRequest, position: int = 0) -> InferenceError:
    """Return the error of a client; where its payload is in S3, a copy that names the object."""
    is_there = 0 <= position < len(asked.payloads)  # an author's error may have any position
    payload = asked.payloads[position] if is_there else None
    if isinstance(payload, Stored) and isinstance(error, BadPayload | UnsupportedMedia):
        return contract_class(error)(f"{payload.location}: {error.message}", hint=error.hint)
    return error


def with_answer_kept(
    output: Output | list[Output], answer: dict[str, Any], deadline: float
) -> dict[str, Any]:
    """Store an answer where that is wanted; return it with the place of what was stored.

    Raises:
        InferenceError: one of those of `S3`.

    """
    document = {name: value for name, value in answer.items() if name != "status"}
    if isinstance(output, Output):
        return {**answer, "output": output.keep(document, deadline)}
    places = [
        one.keep({**document, "result": result}, deadline)
        for one, result in zip(output, document["result"], strict=True)
    ]
    return {**answer, "output": places}


def refuse_to_keep(asked: ModelRequest, form: str) -> None:
    """Refuse to store an answer that is sent in another form than one JSON document.

    Raises:
        BadRequest: the request asks for it. (What the settings alone want is not stored.)

    """
    outputs = asked.output if isinstance(asked.output, list) else [asked.output]
    if any(isinstance(one, Output) and one.asked for one in outputs):
        raise BadRequest(
            f"an answer of type {form} is not stored",
            hint="accept application/json, or leave out `output`",
        )


def refuse_without_bucket(asked: ModelRequest, client: Client) -> None:
    """Refuse a request with objects in S3 that nothing has read, as no bucket is configured.

    A class of an author may have fields of these names.

    Raises:
        BadBody: there is one.

    """
    by_key = isinstance(client, Family) and any(
        names_object(one) for one in asked.payloads if isinstance(one, dict)
    )
    if by_key or isinstance(asked.output, dict):
        raise BadBody(
            "the request names an object in S3, but the container has no bucket",
            hint="set S3_BUCKET_NAME, or S3_ALLOWED_INPUTS for s3_uri; else send the file itself",
        )
