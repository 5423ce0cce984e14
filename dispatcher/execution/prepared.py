"""One checked request to one model, and the calls of the model's client for it."""

from __future__ import annotations

import inspect
import math
import operator
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from contextvars import copy_context
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, TypeVar

from clients.base import Client, Payload
from clients.errors import (
    BadParameter,
    BadPayload,
    BadRequest,
    InferenceError,
    TooLargeAtOnce,
    UnknownModel,
    UnsupportedMedia,
)
from clients.families.base.family import Family
from clients.families.base.row_input import RowClient
from clients.request import (
    SEQUENCE_NAMES,
    Media,
    Once,
    Request,
    SentRows,
    SequencePart,
    Timings,
    current,
    join_results,
)
from clients.tensors.client import GenerateClient, TensorClient, TensorResult, only_result
from clients.tensors.nested import copy_deeply
from dispatcher.codecs.media import UNSPECIFIED_MEDIA, detect_media
from dispatcher.codecs.metadata import MAX_SEQUENCE_ID, Metadata, names_sequence, read_sequence
from dispatcher.errors import (
    BadBody,
    ClientBug,
    client_bug,
    contract_class,
    status_and_code,
    with_place,
)
from dispatcher.execution.model_lookup import ModelLookup
from dispatcher.model_request import ModelRequest
from dispatcher.rollout.outcomes import Outcome, Trial
from dispatcher.rollout.plan import CANARY, NO_CHOICE, SHADOW, Choice, Variant
from dispatcher.rollout.shadow import ShadowCall, Shadows, measure
from dispatcher.s3.places import FIELDS
from dispatcher.s3.reading import Stored
from dispatcher.s3.web_pictures import URL_FIELD
from dispatcher.telemetry.request_log import RequestRecord

T = TypeVar("T")


class ClientErrors(AbstractContextManager[None]):
    """Turns an unexpected exception from a client into ClientBug."""

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        # (Whatever is not of the contract, SystemExit included.)
        if error is not None and not is_contract_error(error):
            raise client_bug() from error


client_errors = ClientErrors()

END = object()  # of an iterator
ONE_BY_ONE = "take them one by one: Accept: application/jsonlines or text/event-stream"
# Where `Client.picture` and `Client.text` look, in a class that declares no fields of its own.
USUAL_FIELDS: Final[Mapping[str, str]] = {"picture": "img", "text": "text"}


def is_contract_error(error: BaseException) -> bool:
    """Check whether an exception is a well-formed error of the contract."""
    try:
        return (
            isinstance(error, InferenceError)
            and isinstance(error.message, str)
            and isinstance(error.hint, str)
            and isinstance(error.position, int | None)
        )
    except Exception:  # raised by a property of an author's class
        return False


def check_results(results: Any, expected: int) -> list[Any]:
    """Check that a batch has a result for each payload; return the results."""
    if not isinstance(results, list) or len(results) != expected:
        came = len(results) if isinstance(results, list) else type(results).__name__
        raise ClientBug(
            f"the model's client returned {came} for a batch of {expected} payloads",
            hint="inference_batch returns a list with a result for each payload, in their order",
        )
    return results


def check_drawing(drawn: Any) -> bytes:
    """Check that a client has drawn a file; return its bytes."""
    with suppress(TypeError, ValueError):  # no buffer, or one that cannot be viewed
        view = memoryview(drawn)
        if view.ndim == 1 and view.format == "B" and view.nbytes:
            return bytes(view)
    empty = "an empty" if isinstance(drawn, bytes) else "a"
    raise ClientBug(
        f"the client's draw() returned {empty} value of the type {type(drawn).__name__}",
        hint='draw returns the bytes of a file: cv2.imencode(".png", picture)[1].tobytes()',
    )


@dataclass(frozen=True)
class PreparedRequest:
    """A request whose model, parameters and payloads have been checked."""

    model_request: ModelRequest  # as it was read
    client: Client  # the model's client
    request: Request  # what the client's calls know of the request, besides the payloads
    # As the client takes them, or `Stored`: of a list they are read with their batch.
    payloads: list[Any]
    choice: Choice = NO_CHOICE  # which version, or other model, answers
    trial: Trial | None = None  # notes how its calls end, where something is tried

    def streams(self) -> bool:
        """Whether the client may give any number of results to one payload."""
        if self.model_request.is_list:
            return False
        client = self.client
        with self.request.active(), client_errors, suppress(UnknownModel):
            several = inspect.isgeneratorfunction(client.inference) or self.model_request.fields
            return several or client.signature().decoupled
        return False  # it has no model of its own

    def result(self, *, stream: bool = False) -> Any:
        """Return the result; a list of results for a list of payloads.

        The iterator of a client is returned as it is for a stream, which `steps` goes through.
        """
        if self.model_request.is_list:
            size = self.batch_size()
            starts = range(0, len(self.payloads), size)
            return [r for start in starts for r in self.batch(start, size, self.request.deadline)]
        ask = partial(self.ask, stream=stream)
        if not self.trial:
            return ask()
        trial = replace(self.trial, instead=None) if stream else self.trial
        return trial.run(self.payloads, ask, self.request.deadline)

    def ask(self, *, stream: bool) -> Any:
        """Return what the client answers to the only payload, as `result`."""
        with replace(self.request, payloads=self.payloads).active():
            self.request.timings.begin(in_class=self.client.is_authors)
            with client_errors:
                try:
                    if isinstance(self.client, TensorClient):
                        result: Any = self.client.run(self.payloads[0])
                    else:
                        result = self.client.run_inference(self.payloads[0])
                    if not stream and self.model_request.fields:
                        result = only_result(result)
                    elif not stream:
                        result = join_results(result, BadRequest, ONE_BY_ONE)
                except (BadPayload, UnsupportedMedia) as error:
                    raise self.named(error, 0) from error
                finally:
                    self.request.timings.lap()
            return result

    def steps(self, results: Iterator[Any]) -> Iterator[Any]:
        """Yield the results of a client's iterator, which finds its request in each step."""
        context = copy_context()
        context.run(current.set, replace(self.request, payloads=self.payloads))

        def step() -> Any:
            with client_errors:
                return next(results, END)

        try:
            with self.trial.call(self.request.deadline) if self.trial else nullcontext() as call:
                while (result := context.run(step)) is not END:
                    with call.waiting_for_reader() if call else nullcontext():
                        yield result
        finally:
            if close := getattr(results, "close", None):
                context.run(close)
            self.request.cancel()

    def batch_size(self) -> int:
        with self.request.active(), client_errors:
            size = operator.index(self.client.max_batch_size)
            if size < 1:
                raise ValueError(f"max_batch_size is {size}; expected a whole number from 1")
        return size

    def batch(self, start: int, size: int, deadline: float) -> list[Any]:
        """Return the results of one batch, run in halves where it is too large.

        Raises InferenceError: its message says which payload failed.
        """
        batch = self.opened(self.payloads[start : start + size], start, deadline)
        run = partial(self.run, batch, start, deadline)
        try:
            return self.trial.run(batch, run, deadline) if self.trial else run()
        except TooLargeAtOnce as error:
            if len(batch) == 1:
                raise with_place(error, self.model_request.place(start)) from error
        half = (len(batch) + 1) // 2
        done = self.batch(start, half, deadline)
        return done + self.batch(start + half, len(batch) - half, deadline)

    def run(self, batch: list[Payload], start: int, deadline: float) -> list[Any]:
        """Return what the client answers to a batch, as `batch`."""
        # A client may change what it is given, and the halves are given again.
        given = copy_deeply(batch) if len(batch) > 1 else batch
        # Other batches run at the same time.
        request = replace(self.request, timings=Timings(), deadline=deadline, payloads=given)
        with request.active():
            request.timings.begin(in_class=self.client.is_authors)
            try:
                with client_errors:
                    results = check_results(self.client.run_inference_batch(given), len(batch))
                    return [join_results(one, BadRequest, ONE_BY_ONE) for one in results]
            except TooLargeAtOnce:
                raise
            except InferenceError as error:
                if error.position is None:
                    raise
                raise self.named(error, start + error.position) from error
            finally:
                request.timings.lap()
                self.request.timings.add(request.timings)

    def opened(self, payloads: list[Any], start: int, deadline: float) -> list[Payload]:
        """Return payloads as the client takes them, with the contents of the objects they name.

        Raises InferenceError: its message says which payload failed.
        """
        taken = []
        for position, one in enumerate(payloads, start):
            try:
                if isinstance(one, Stored):
                    content = one.content(deadline)
                    with client_errors:
                        taken.append(self.with_object(one, content))
                else:
                    taken.append(one)
            except InferenceError as error:
                raise self.named(error, position) from error
        return taken

    def with_object(self, stored: Stored, content: bytes) -> Payload:
        """Return a payload with the content of its object in the client's own field.

        Raises InferenceError: the client takes no such file.
        """
        # Several models may get it, and a client may change what it is given.
        client, others = self.client, copy_deeply(dict(stored.others))
        ready_made = isinstance(client, Family | TensorClient)
        fields = client.media or ({} if ready_made else USUAL_FIELDS)
        try:
            media = detect_media(Media(UNSPECIFIED_MEDIA, content), fields)
        except BadBody as error:
            raise BadPayload(error.message, hint="store texts in UTF-8") from error
        if media.kind not in client.media and media.kind in fields:
            payload = {**others, fields[media.kind]: media.content}
        else:
            payload = {**others, **client.payload_of(media)}
        if self.model_request.shared:
            return keep_known_fields(payload, client)
        if isinstance(client, Family):  # one that gets bytes does not look
            client.refuse_unknown(payload)
        return payload

    def named(self, error: InferenceError, position: int) -> InferenceError:
        """Return the error of a payload with its object in S3, and its place in a list."""
        asked, is_list = self.model_request.payloads, self.model_request.is_list
        # (An author's error may have any position.)
        payload = asked[position] if 0 <= position < len(asked) else None
        if isinstance(payload, Stored) and isinstance(error, BadPayload | UnsupportedMedia):
            place = str(payload.location)
            text = error.message if place in error.message else f"{place}: {error.message}"
            error = contract_class(error)(text, hint=error.hint)
        rows = is_list and isinstance(asked[0], SentRows)
        place = f"row[{position}]" if rows else self.model_request.place(position)
        return with_place(error, place) if is_list else error

    def drawn(self, result: Any, media_type: str) -> bytes:
        with self.request.active(), client_errors:
            payload = self.client.read_payload(self.payloads[0])
            return check_drawing(self.client.draw(payload, result, media_type))

    def body(self, result: Any) -> dict[str, Any]:
        model_request = self.model_request
        if isinstance(result, TensorResult):
            result = result.body()
            if model_request.tensors:
                return dict(result)
        elif isinstance(result, list) and result and isinstance(result[0], TensorResult):
            result = [one.body() for one in result]  # of a decoupled model
        answer = {"modelname": model_request.modelname, "result": result}
        if model_request.modelversion:
            answer["modelversion"] = model_request.modelversion
        return answer


def prepare(
    lookup: ModelLookup,
    model_request: ModelRequest,
    metadata: Metadata,
    deadline: float,
    *,
    record: RequestRecord | None = None,
    once: Once | None = None,
    chosen: Choice | None = None,
) -> PreparedRequest:
    """Find the client and check what can be checked before it is called.

    Where something is tried beside the model, it is decided here what answers, unless that was
    `chosen`. A record is given the choice, and its timings are used.

    Raises InferenceError: the model is unknown or known not to answer, or a parameter is wrong.
    """
    client = find_client(lookup, model_request.modelname, model_request, deadline)
    table = model_request.payloads[0] if model_request.is_list else None
    parameters = dict(model_request.parameters)
    sequence = None
    if model_request.is_list and (named := [n for n in SEQUENCE_NAMES if n in parameters]):
        raise BadParameter(
            f"`{named[0]}` came with a list of payloads, which may run side by side",
            hint="send one payload in each request of a sequence",
        )
    alone = not model_request.is_list and not model_request.shared
    if alone and (metadata.session or names_sequence(parameters, metadata)):
        sequence = take_sequence(lookup, client, parameters, metadata, deadline)
    choice = chosen or choose(lookup, model_request, metadata, sequence)
    if choice.model and choice.of == CANARY and not chosen:
        again = partial(
            prepare, lookup, model_request, metadata, deadline, record=record, once=once
        )
        return prepare_canary(lookup, lookup.registry.name(model_request.modelname), choice, again)
    if record:
        record.choice = choice
    if choice.model:
        client = find_client(lookup, choice.model, model_request, deadline)
    payloads = model_request.payloads
    if model_request.shared:  # each model takes the parameters and fields that it knows
        parameters = {k: v for k, v in parameters.items() if k in client.parameters}
        # A client may change what it is given, while another one reads it.
        payloads = [keep_known_fields(one, client) for one in copy_deeply(payloads)]
    request = Request(
        parameters=client.read_parameters(parameters, metadata.texts),
        version=model_request.modelversion or choice.version,
        deadline=deadline,
        request_id=metadata.request_id,
        attributes=metadata.attributes,
        timings=(record and record.timings) or Timings(),
        once=once,
        sequence=sequence,
    )
    refuse_unread(model_request, client)
    with request.active(), client_errors:
        given: list[Any]
        if isinstance(table, SentRows):
            given = payloads_of_rows(table, client)
        else:
            given = [
                client.payload_of(detect_media(payload, client.media))
                if isinstance(payload, Media)
                else payload
                for payload in payloads
            ]
    prepared = PreparedRequest(model_request, client, request, given, choice)
    if choice.of and lookup.shadows:
        trial = begin_trial(lookup, lookup.shadows, prepared, metadata, record)
        prepared = replace(prepared, trial=trial)
    if model_request.is_list:  # which is opened a batch at a time
        return prepared
    return replace(prepared, payloads=prepared.opened(given, 0, deadline))


def choose(
    lookup: ModelLookup,
    model_request: ModelRequest,
    metadata: Metadata,
    sequence: SequencePart | None,
) -> Choice:
    """Return what answers a request where something is tried beside its model."""
    name = lookup.registry.name(model_request.modelname)
    # (Not by `plan`: each request asks.)
    plan = lookup.rollouts and lookup.rollouts.plans.get(name)
    if not plan or model_request.modelversion:
        return NO_CHOICE
    # A list is of the session, and no part of a sequence.
    session = metadata.session and f"{metadata.owner} {metadata.session[:MAX_SEQUENCE_ID]}"
    if sequence:
        session = f"{sequence.owner} {sequence.identity}"
    return plan.choose(name, session, metadata.owner, metadata.request_id)


def prepare_canary(
    lookup: ModelLookup, name: str, choice: Choice, again: Callable[..., PreparedRequest]
) -> PreparedRequest:
    """Prepare for another model, which may refuse what the stable version of `name` takes.

    Raises InferenceError: both refuse it.
    """
    plan = lookup.rollouts and lookup.rollouts.plans.get(name)
    try:
        return again(chosen=choice)
    except InferenceError as error:
        if not plan or not lookup.shadows:
            raise
        prepared = again(chosen=plan.stable)
        outcome = Outcome(CANARY, str(choice), time.time(), status=status_and_code(error)[0])
        lookup.shadows.outcomes.note(name, outcome._replace(failed=True))
        return prepared


def begin_trial(
    lookup: ModelLookup,
    shadows: Shadows,
    prepared: PreparedRequest,
    metadata: Metadata,
    record: RequestRecord | None,
) -> Trial:
    """Return what notes how a request ends, and has a shadow asked about some.

    Where a canary fails, the stable version is asked about the same.
    """
    asked, client, choice = prepared.model_request, prepared.client, prepared.choice
    name, request_id = lookup.registry.name(asked.modelname), metadata.request_id
    plan = lookup.rollouts and lookup.rollouts.plans.get(name)
    shadow = plan and plan.live(SHADOW)
    hurried = metadata.timeout < math.inf
    trial = Trial(shadows.outcomes, name, choice, request_id, asked.tensors, hurried)
    # A sequence is kept by the version that began it.
    if not plan or prepared.request.sequence or isinstance(client, RowClient):
        return trial

    def ask(other: Choice | Variant, payloads: list[Any], deadline: float) -> Any:
        again = replace(
            asked,
            modelname=other.model or name,
            modelversion=other.version,
            payloads=payloads,
            output=None,
        )
        return prepare(replace(lookup, rollouts=None), again, metadata, deadline).result()

    def instead(payloads: list[Any]) -> Any:
        result = ask(plan.stable, payloads, prepared.request.deadline)
        if record:
            record.choice = plan.stable
        return result

    if choice.of == CANARY:
        return replace(trial, instead=instead)
    if not shadow or not shadow.takes(name, request_id):
        return trial

    def offer(payloads: list[Any], answer: Any) -> None:
        call = ShadowCall(
            name,
            str(shadow),
            request_id,
            client.compared_as,
            prepared.request.parameters.get("confidence", 0.0),
            asked.is_list,
            answer,
            partial(ask, shadow, payloads),
            metadata.sent,
            measure(payloads, answer),
        )
        shadows.put(call)

    return replace(trial, offer=offer)


def find_client(
    lookup: ModelLookup, asked: str, model_request: ModelRequest, deadline: float
) -> Client:
    """Return the client of a model, in the form that suits the request.

    Raises InferenceError: as `ModelLookup.client`.
    """
    client = lookup.client(asked, deadline)
    if model_request.tensors:
        kind = GenerateClient if model_request.fields else TensorClient
        return kind(lookup.environment, client.served_by, client.check_tensors)
    table = model_request.payloads[0] if model_request.is_list else None
    if isinstance(table, SentRows) and isinstance(client, TensorClient):
        return RowClient(lookup.environment, client.served_by)
    return client


def payloads_of_rows(table: SentRows, client: Client) -> list[Payload]:
    """Return the payload of each row; an error in one names its place."""
    try:
        return client.payloads_of_rows(table)
    except InferenceError as error:
        if error.position is None:
            raise
        raise with_place(error, f"row[{error.position}]") from error


def take_sequence(
    lookup: ModelLookup,
    client: Client,
    parameters: dict[str, Any],
    metadata: Metadata,
    deadline: float,
) -> SequencePart | None:
    """Return the sequence that a request belongs to; take its names out of the parameters."""
    if not client.parameters.keys().isdisjoint(SEQUENCE_NAMES):  # the author's own
        return None
    sequence = read_sequence(parameters, metadata)
    named = names_sequence(parameters, metadata)
    for name in SEQUENCE_NAMES:
        parameters.pop(name, None)
    if named and isinstance(client, TensorClient | Family):  # a class may ask other models
        left = max(0.001, deadline - time.monotonic())
        signature = lookup.environment.server.signature(client.served_by, timeout=left)
        if not signature.sequence:
            raise BadParameter(
                f"`sequence_id` came, but the model {client.served_by!r} keeps no state",
                hint="leave it out, or give the model `sequence_batching` in config.pbtxt",
            )
    return sequence


def refuse_unread(asked: ModelRequest, client: Client) -> None:
    """Refuse a request that names what nothing has read, as no bucket or host is configured.

    A class of an author may have fields of these names.
    """
    payloads = [one for one in asked.payloads if isinstance(one, dict)]
    payloads = payloads if isinstance(client, Family) else []
    if any(URL_FIELD in one for one in payloads):
        raise BadBody(
            f"the request has `{URL_FIELD}`, but the container fetches no pictures",
            hint="set IMAGE_URL_HOSTS to the hosts that are allowed; else send the file itself",
        )
    by_key = any(not FIELDS.isdisjoint(one) for one in payloads)
    if by_key or isinstance(asked.output, dict):
        raise BadBody(
            "the request names an object in S3, but the container has no bucket",
            hint="set S3_BUCKET_NAME, or S3_ALLOWED_INPUTS for s3_uri; else send the file itself",
        )


def keep_known_fields(payload: T, client: Client) -> T | Payload:
    """Return the fields of a shared payload that a client takes, where it is known which."""
    fields = client.fields if isinstance(client, Family) else client.declares.fields
    if not isinstance(payload, Mapping) or not fields:
        return payload
    return {name: value for name, value in payload.items() if name in fields}
