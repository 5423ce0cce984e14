"""Hands each ask to its model's client, and says which models there are when there is none."""

from __future__ import annotations

import difflib
import operator
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, suppress
from contextvars import Context, copy_context
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from clients.base import Client, Environment, Payload
from clients.errors import (
    BadParameter,
    BadPayload,
    ClientDisabled,
    DeadlineExceeded,
    InferenceError,
    ModelUnavailable,
    TooLargeAtOnce,
    UnknownModel,
)
from clients.plugins.dispatch_toml import FILE, copied, remedy
from clients.plugins.family import Family
from clients.plugins.registry import Registry
from clients.request import Media, Once, Request, Timings
from clients.tensors.client import V2_FIELDS, TensorClient, TensorResult
from clients.tensors.nested import unshared
from clients.tensors.shown import brief
from clients.triton.server import ModelState
from dispatcher import errors
from dispatcher.codecs.content_types import detect_media
from dispatcher.codecs.metadata import Metadata
from dispatcher.errors import CallerGone, ClientBug
from dispatcher.execution.admission import TIME_USED_UP, TIME_USED_UP_HINT, Caller, Slot, Slots
from dispatcher.execution.deadline import TimeLimit
from dispatcher.execution.request import ModelRequest

MAX_BATCHES = (
    4  # of one request that are under way: two in the model, two that are decoded meanwhile
)
LOOKUP_S = 2.0  # what may be spent on finding out which models there are

T = TypeVar("T")
R = TypeVar("R")


class ClientErrors(AbstractContextManager[None]):
    """Tells what a client lets out from the server's own faults."""

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        # (All that is no answer of the contract, also what ends a process.)
        if error is not None and not is_contract_error(error):
            raise errors.client_bug() from error


client_errors = ClientErrors()


def is_contract_error(error: BaseException) -> bool:
    """Whether a caller can be told what a client let out; its author may have written into it."""
    try:
        return (
            isinstance(error, InferenceError)
            and isinstance(error.message, str)
            and isinstance(error.hint, str)
            and isinstance(error.position, int | None)
        )
    except Exception:  # of a property of his
        return False


def known_fields(payload: Payload | Media, client: Client) -> Payload | Media:
    """Return of a payload for several models what one of the families takes."""
    if isinstance(payload, Media) or not isinstance(client, Family) or not client.fields:
        return payload
    return {name: value for name, value in payload.items() if name in client.fields}


def check_results(results: Any, expected: int) -> list[Any]:
    """Return the results of a batch, which must be one for each payload.

    Raises:
        ClientBug: they are not; some callers would get the results of others.

    """
    if not isinstance(results, list) or len(results) != expected:
        came = len(results) if isinstance(results, list) else type(results).__name__
        raise ClientBug(
            f"the model's client answered {came} for a batch of {expected} payloads",
            hint="inference_batch returns a list with a result for each payload, in their order",
        )
    return results


def check_drawing(drawn: Any) -> bytes:
    """Return what a client has drawn, which must be a file's bytes, whatever holds them.

    Raises:
        ClientBug: it is not.

    """
    with suppress(TypeError, ValueError):  # it holds no bytes, or none that can be looked at
        view = memoryview(drawn)
        if view.ndim == 1 and view.format == "B" and view.nbytes:
            return bytes(view)
    empty = "an empty" if isinstance(drawn, bytes) else "a"
    raise ClientBug(
        f"the model's client has drawn {empty} value of the type {type(drawn).__name__}",
        hint='draw returns the bytes of a file: cv2.imencode(".png", picture)[1].tobytes()',
    )


@dataclass(frozen=True)
class Job:
    """What the calls of one request have in common.

    Args:
        budget: the time for them.
        caller: who wants the answer.
        context: of the request, for the threads that the calls run in.

    """

    time_limit: TimeLimit
    caller: Caller
    context: Context = field(default_factory=copy_context)


@dataclass(frozen=True)
class PreparedRequest:
    """An ask whose model, parameters and payloads are known to be right in themselves.

    Args:
        ask: what was asked.
        client: the model's client.
        request: what belongs to it besides the payloads.
        payloads: as the client takes them.

    """

    model_request: ModelRequest
    client: Client
    request: Request
    payloads: list[Payload]

    def result(self) -> Any:
        """Return the result; a list of results where the ask has a list of payloads.

        Raises:
            InferenceError: one of its subclasses.

        """
        if self.model_request.is_list:
            size = self.batch_size()
            starts = range(0, len(self.payloads), size)
            return [r for start in starts for r in self.batch(start, size, self.request.deadline)]
        with self.request.active():
            self.request.timings.begin()
            with client_errors:
                if isinstance(self.client, TensorClient):
                    result: Any = self.client.run(self.payloads[0])
                else:
                    result = self.client.inference(self.payloads[0])
            self.request.timings.lap()
            return result

    def batch_size(self) -> int:
        """Return how many payloads make a batch."""
        with self.request.active(), client_errors:
            size = operator.index(self.client.max_batch_size)
            if size < 1:
                raise ValueError(f"max_batch_size is {size}; expected a whole number from 1")
            return size

    def batch(self, start: int, size: int, deadline: float) -> list[Any]:
        """Return the results for the payloads of one batch; of its halves where it is too large.

        Raises:
            InferenceError: its message says which payload it was.

        """
        batch = self.payloads[start : start + size]
        # Others run beside it.
        request = replace(self.request, timings=Timings(), deadline=deadline)
        with request.active():
            request.timings.begin()
            # Of what is too large the halves are asked again, as they came.
            given = unshared(batch) if len(batch) > 1 else batch
            try:
                with client_errors:
                    return check_results(self.client.inference_batch(given), len(batch))
            except TooLargeAtOnce as error:
                if len(batch) == 1:
                    raise errors.with_position(error, start) from error
            except InferenceError as error:
                if error.position is None:
                    raise
                raise errors.with_position(error, start + error.position) from error
            finally:
                request.timings.lap()
                self.request.timings.add(request.timings)
        half = (len(batch) + 1) // 2
        done = self.batch(start, half, deadline)
        return done + self.batch(start + half, len(batch) - half, deadline)

    def drawn(self, result: Any, media_type: str) -> bytes:
        """Return the picture with the result on it.

        Raises:
            InferenceError: one of its subclasses.

        """
        with self.request.active(), client_errors:
            return check_drawing(self.client.draw(self.payloads[0], result, media_type))


class Executor:
    """Answers asks with the clients of `registry`, or by tensors where a model has none.

    Args:
        registry: the clients.
        environment: what clients are made with; its server runs the models.
        calls: whose turn it is to call a client.
        patience: seconds beyond its deadline that a call is waited for.
        refuse: raises ModelUnavailable for a model that nobody would answer for.
        wanted: whether a model is to be loaded, and was not unloaded.

    """

    def __init__(  # noqa: PLR0913, PLR0917  whom it asks, each by itself
        self,
        registry: Registry,
        environment: Environment,
        calls: Slots,
        patience: float,
        refuse: Callable[[str], None],
        wanted: Callable[[str], bool] = lambda _: False,
    ) -> None:
        self.registry = registry
        self.environment = environment
        self.calls = calls
        self.patience = patience
        self._refuse = refuse
        self._wanted = wanted
        # A call has its turn before it has its thread: there is one for each.
        self._pool = ThreadPoolExecutor(calls.total, thread_name_prefix="call")

    def prepare(
        self,
        model_request: ModelRequest,
        metadata: Metadata,
        deadline: float,
        *,
        timings: Timings | None = None,
        once: Once | None = None,
    ) -> PreparedRequest:
        """Find the client and check what can be checked before it is called.

        Raises:
            InferenceError: the model is not known, or a parameter is not right.

        """
        self.refuse(model_request.modelname)
        client = self.client(model_request)
        if model_request.tensors:
            client = TensorClient(self.environment, client.served_by, client.check_tensors)
        parameters = dict(model_request.parameters)
        if model_request.shared:  # each model takes those it knows
            parameters = {k: v for k, v in parameters.items() if k in client.parameters}
        request = Request(
            parameters=client.read_parameters(parameters, metadata.texts),
            version=model_request.modelversion,
            deadline=deadline,
            request_id=metadata.request_id,
            attributes=metadata.attributes,
            timings=timings or Timings(),
            once=once,
        )
        # A client may change what it is given, while another one reads it.
        given = (
            [known_fields(one, client) for one in unshared(model_request.payloads)]
            if model_request.shared
            else model_request.payloads
        )
        with client_errors:
            payloads = [
                client.payload_of(detect_media(payload, client.media))
                if isinstance(payload, Media)
                else payload
                for payload in given
            ]
        return PreparedRequest(model_request, client, request, payloads)

    def refuse(self, asked: str) -> None:
        """Say at once, without a turn, that nobody would answer for a model or its alias.

        Raises:
            ModelUnavailable: Triton is away, or the model is stuck.

        """
        name = self.registry.name(asked)
        client = self.registry.clients.get(name)
        self._refuse(client.served_by if client else name)

    def client(self, model_request: ModelRequest) -> Client:
        """Return the client of a model; one for plain tensors where it has none of its own.

        Raises:
            UnknownModel: there is no such model; the hint lists what is served, nearest first.
            ClientDisabled: its client could not be loaded.
            ModelUnavailable: it has no client, and Triton does not say whether there is a model.

        """
        name = self.registry.name(model_request.modelname)
        if client := self.registry.clients.get(name):
            return client
        if self.registry.disabled(name):
            raise self.disabled(name)
        states = self.states()
        served = self.served(states)
        if name in served or self.is_missing(name, states):  # then Triton says why
            return TensorClient(self.environment, name)
        if name in self.registry.broken:
            raise self.disabled(name)
        near = difflib.get_close_matches(name[:100], served, n=len(served) or 1, cutoff=0)
        hint = f"served are: {', '.join(near) or 'none'}"
        if (meant := name.replace(" ", "+")) != name and meant in served:
            hint = f'in a query "+" is read as a blank: write {meant.replace("+", "%2B")!r}'
        raise UnknownModel(f"there is no model {brief(name)}", hint=hint)

    def disabled(self, name: str) -> ClientDisabled:
        """Return the error for a model whose client is broken."""
        file = Path(self.registry.source(name))
        hint = remedy(file, name)
        with suppress(InferenceError):
            states = [state.state for state in self.states() if state.name == name]
            is_own = file.name == FILE and not copied(file)
            if is_own and states and "READY" not in states:  # which a reload passes over
                hint = f"mend it, then POST /load_model/{name}"
        return ClientDisabled(
            f"the client of {brief(name)} is disabled: {self.registry.broken.get(name)}", hint=hint
        )

    def is_missing(self, name: str, states: Iterable[ModelState]) -> bool:
        """Whether a model without a client is to be there, and is in the repository at least."""
        return name in {state.name for state in states} and self._wanted(name)

    def states(self) -> list[ModelState]:
        """Return what Triton says of its models.

        Raises:
            ModelUnavailable: it does not say which it has.

        """
        try:
            return self.environment.server.models(timeout=LOOKUP_S)
        except InferenceError as error:
            raise ModelUnavailable(
                f"Triton does not say which models it has: {error.message}",
                hint="try again after Retry-After seconds",
            ) from error

    def served(self, states: Iterable[ModelState]) -> list[str]:
        """Return what can be asked: models that are ready, and clients whose models are."""
        clients = self.registry.clients
        ready = {state.name for state in states if state.ready}
        named = {name for name, client in clients.items() if client.served_by in ready}
        aliases = {alias for alias, name in self.registry.aliases.items() if name in named}
        return sorted(named | aliases | (ready - clients.keys()))

    def is_served(self, asked: str) -> bool:
        """Whether there is a model of this name, or alias, to be asked.

        Raises:
            ModelUnavailable: nobody would answer, or Triton does not say what there is.

        """
        self.refuse(asked)
        try:
            return asked in self.served(self.states())
        except ModelUnavailable:
            # It lists no models while it loads one; those that it has answer all the same.
            if self.registry.name(asked) in self.registry.clients:
                return True
            raise

    def batches(self, prepared: PreparedRequest, job: Job) -> Iterator[list[Any]]:
        """Yield the results for a list of payloads, a batch of the model at a time.

        A few batches are under way together, so that one is decoded while others are in the model;
        no more pictures than theirs are decoded at once.

        Raises:
            InferenceError: its message says which payload it was.

        """
        size = prepared.batch_size()

        def failed(_: int, error: Exception) -> list[Any]:
            raise error

        return self.in_order(
            range(0, len(prepared.payloads), size),
            job,
            model=lambda _: self.registry.name(prepared.model_request.modelname),
            call=lambda start, deadline: prepared.batch(start, size, deadline),
            failed=failed,
            most=MAX_BATCHES,
        )

    def items(
        self,
        model_requests: Iterable[ModelRequest | Exception],
        metadata: Metadata,
        job: Job,
        once: Once | None = None,
    ) -> Iterator[dict[str, Any]]:
        """Yield an answer per ask, in order, several at a time; an error stands in its place."""

        def call(model_request: ModelRequest | Exception, deadline: float) -> dict[str, Any]:
            if isinstance(model_request, Exception):
                return errors.error_item(model_request)
            try:
                prepared = self.prepare(model_request, metadata, deadline, once=once)
                return {"status": 200, **self.answer(model_request, prepared.result())}
            except Exception as error:
                return failed(model_request, error)

        def failed(model_request: ModelRequest | Exception, error: Exception) -> dict[str, Any]:
            return errors.error_item(error, model(model_request))

        def model(model_request: ModelRequest | Exception) -> str:
            return (
                ""
                if isinstance(model_request, Exception)
                else self.registry.name(model_request.modelname)
            )

        return self.in_order(
            model_requests, job, model=model, call=call, failed=failed, most=self.calls.per_model
        )

    def by_name(
        self, model_requests: list[ModelRequest], metadata: Metadata, job: Job
    ) -> dict[str, Any]:
        """Return an answer per model for one payload, which is decoded once.

        Raises:
            BadParameter: a parameter is known to none of the models.
            BadPayload: a field of the payload is known to none of them.

        """
        self.refuse_unknown_parameters(model_requests)
        self.refuse_unknown_fields(model_requests)
        # A list is decoded a batch at a time, by each: kept for all it could be of any size.
        once = None if model_requests[0].is_list else Once()
        answers = self.items(model_requests, metadata, job, once)
        return {
            model_request.modelname: {
                name: value for name, value in answer.items() if name != "modelname"
            }
            for model_request, answer in zip(model_requests, answers, strict=True)
        }

    def refuse_unknown_parameters(self, model_requests: list[ModelRequest]) -> None:
        clients = self.registry.clients
        names = [self.registry.name(model_request.modelname) for model_request in model_requests]
        known = {p for name in names if name in clients for p in clients[name].parameters}
        if unknown := [name for name in model_requests[0].parameters if name not in known]:
            raise BadParameter(
                f"the parameter {brief(unknown[0])} is known to none of the models",
                hint=f"they take {', '.join(sorted(known)) or 'no parameters'}",
            )

    def refuse_unknown_fields(self, model_requests: list[ModelRequest]) -> None:
        """Refuse what none of the models takes, unless one is an author's own, or takes tensors."""
        clients = [
            self.registry.clients.get(self.registry.name(model_request.modelname))
            for model_request in model_requests
        ]
        families = [client for client in clients if isinstance(client, Family) and client.fields]
        if model_requests[0].tensors or len(families) < sum(
            client is not None for client in clients
        ):
            return
        known = {field for client in families for field in client.fields}
        if len(families) < len(clients):  # one without a client may be there all the same
            known.update(V2_FIELDS)
        for payload in model_requests[0].payloads:
            if isinstance(payload, Mapping) and (unknown := [n for n in payload if n not in known]):
                raise BadPayload(
                    f"the payload has a field {brief(unknown[0])} that none of the models knows",
                    hint=f"they take {', '.join(sorted(known))}; settings go into `parameters`",
                )

    def in_order(  # noqa: PLR0913  each by its name
        self,
        items: Iterable[T],
        job: Job,
        *,
        model: Callable[[T], str],
        call: Callable[[T, float], R],
        failed: Callable[[T, Exception], R],
        most: int,
    ) -> Iterator[R]:
        """Yield `call(item, deadline)` for each, in order; at most `most` are under way at a time.

        The first waits for its turn; more run beside it where there are turns to spare. Nothing is
        begun for a caller who has left.

        Args:
            items: what to call with.
            job: what the calls have in common.
            model: returns the model of an item.
            call: is run in a thread of its own.
            failed: returns what stands in the place of a call that was not made or did not end.
            most: how many calls may be under way.

        Raises:
            CallerGone: nobody wants the rest.

        """
        under_way: deque[tuple[T, float, Future[R]]] = deque()

        def first() -> R:
            item, deadline, future = under_way.popleft()
            left = deadline + self.patience - time.monotonic()
            if not wait([future], timeout=max(0.0, left)).done:
                return failed(item, DeadlineExceeded(TIME_USED_UP, hint=TIME_USED_UP_HINT))
            return future.result()

        for item in items:
            while under_way and (len(under_way) >= most or under_way[0][2].done()):
                yield first()
            if job.caller.disconnected():
                raise CallerGone("the caller has left before all was asked")
            deadline = job.time_limit.deadline()
            slot = self.calls.try_enter(model(item), deadline)
            while slot is None and under_way:
                yield first()
                slot = self.calls.try_enter(model(item), deadline)
            try:
                slot = slot or self.calls.enter(model(item), deadline, job.caller, in_job=True)
            except CallerGone:
                raise
            except InferenceError as error:
                yield failed(item, error)
                continue
            run = job.context.copy().run  # two threads cannot be inside the same context
            future = self._pool.submit(run, call_in_slot, slot, call, item, deadline)
            under_way.append((item, deadline, future))
            del future  # what it raises would hold this frame, and this frame it
        while under_way:
            yield first()

    @staticmethod
    def answer(model_request: ModelRequest, result: Any) -> dict[str, Any]:
        """Return the body of an answer."""
        if isinstance(result, TensorResult):
            result = result.body()
            if model_request.tensors:
                return dict(result)
        answer = {"modelname": model_request.modelname, "result": result}
        if model_request.modelversion:
            answer["modelversion"] = model_request.modelversion
        return answer


def call_in_slot(slot: Slot, call: Callable[[T, float], R], item: T, deadline: float) -> R:
    """Call in a turn that was waited for elsewhere."""
    slot.thread = threading.get_ident()
    with slot:
        return call(item, deadline)
