"""Hands each ask to its model's client, and says which models there are when there is none."""

from __future__ import annotations

import difflib
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from clients.base import Client, Environment, Payload
from clients.errors import BadParameter, InferenceError, TooLargeAtOnce, UnknownModel
from clients.registry import Registry
from clients.request import Media, Once, Request, Timings
from clients.shown import brief
from clients.tensors import TensorClient, TensorResult
from dispatcher import errors
from dispatcher.ask import Ask
from dispatcher.encoding import encoded
from dispatcher.envelope import Envelope
from dispatcher.errors import ClientBug, ClientDisabled

BATCHES = 4  # of one request that are under way: two in the model, two that are decoded meanwhile
LOOKUP_S = 2.0  # what may be spent on finding out which models there are

T = TypeVar("T")
R = TypeVar("R")


@contextmanager
def client_at_fault() -> Iterator[None]:
    """Tell what a client lets out from the server's own faults."""
    try:
        yield
    except InferenceError:
        raise
    except (Exception, SystemExit) as error:
        raise errors.client_bug() from error


def as_many(results: Any, expected: int) -> list[Any]:
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


@dataclass(frozen=True)
class Prepared:
    """An ask whose model, parameters and payloads are known to be right in themselves.

    Args:
        ask: what was asked.
        client: the model's client.
        request: what belongs to it besides the payloads.
        payloads: as the client takes them.
        in_order: see `Dispatcher.in_order`.

    """

    ask: Ask
    client: Client
    request: Request
    payloads: list[Payload]
    in_order: Callable[[Callable[[int], list[Any]], Iterable[int], int], Iterator[list[Any]]]

    def result(self) -> Any:
        """Return the result; a list of results where the ask has a list of payloads.

        Raises:
            InferenceError: one of its subclasses.

        """
        if self.ask.is_list:
            return [result for batch in self.batches() for result in batch]
        with self.request.active():
            self.request.timings.begin()
            with client_at_fault():
                if isinstance(self.client, TensorClient):
                    result: Any = self.client.run(self.payloads[0])
                else:
                    result = self.client.inference(self.payloads[0])
            self.request.timings.lap()
            return result

    def batches(self) -> Iterator[list[Any]]:
        """Yield the results for a list of payloads, a batch of the model at a time.

        A few batches are under way together, so that one is decoded while others are in the model;
        no more pictures than theirs are decoded at once.

        Raises:
            InferenceError: its message says which payload it was.

        """
        with self.request.active(), client_at_fault():
            size = self.client.max_batch_size
        starts = range(0, len(self.payloads), size)
        return self.in_order(lambda start: self.batch(start, size), starts, BATCHES)

    def batch(self, start: int, size: int) -> list[Any]:
        """Return the results for the payloads of one batch; of its halves where it is too large."""
        batch = self.payloads[start : start + size]
        request = replace(self.request, timings=Timings())  # others run beside it
        with request.active():
            request.timings.begin()
            try:
                with client_at_fault():
                    return as_many(self.client.inference_batch(batch), len(batch))
            except TooLargeAtOnce as error:
                if len(batch) == 1:
                    error.message = f"payload[{start}]: {error.message}"
                    raise
            except InferenceError as error:
                if error.position is not None:
                    error.message = f"payload[{start + error.position}]: {error.message}"
                raise
            finally:
                request.timings.lap()
                self.request.timings.add(request.timings)
        half = (len(batch) + 1) // 2
        return self.batch(start, half) + self.batch(start + half, len(batch) - half)

    def drawn(self, result: Any, media_type: str) -> bytes:
        """Return the picture with the result on it."""
        with self.request.active(), client_at_fault():
            return self.client.draw(self.payloads[0], result, media_type)


class Dispatcher:
    """Answers asks with the clients of `registry`, or by tensors where a model has none.

    Args:
        registry: the clients.
        environment: what clients are made with; its server runs the models.
        timeout: seconds that one ask may take.
        threads: how many asks of one request may be answered at a time.

    """

    def __init__(
        self, registry: Registry, environment: Environment, timeout: float, threads: int
    ) -> None:
        self.registry = registry
        self.environment = environment
        self.timeout = timeout
        self.threads = threads
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="ask")
        # Asks in the one pool wait for batches in the other: in the same they would wait for ever.
        self._batch_pool = ThreadPoolExecutor(threads, thread_name_prefix="batch")

    def prepare(
        self,
        ask: Ask,
        envelope: Envelope,
        *,
        timings: Timings | None = None,
        once: Once | None = None,
    ) -> Prepared:
        """Find the client and check what can be checked before it is called.

        Raises:
            InferenceError: the model is not known, or a parameter is not right.

        """
        client = (
            TensorClient(self.environment, self.model(ask)) if ask.tensors else self.client(ask)
        )
        parameters = dict(ask.parameters)
        if ask.shared:  # each model takes those it knows
            parameters = {k: v for k, v in parameters.items() if k in client.parameters}
        request = Request(
            parameters=client.read_parameters(parameters, envelope.texts),
            version=ask.modelversion,
            deadline=envelope.deadline or time.monotonic() + self.timeout,
            request_id=envelope.request_id,
            attributes=envelope.attributes,
            timings=timings or Timings(),
            once=once,
        )
        with client_at_fault():
            payloads = [
                client.payload_of(payload) if isinstance(payload, Media) else payload
                for payload in ask.payloads
            ]
        return Prepared(ask, client, request, payloads, self.in_order)

    def client(self, ask: Ask) -> Client:
        """Return the client of a model; one for plain tensors where it has none of its own.

        Raises:
            UnknownModel: there is no such model; the hint lists what is served, nearest first.
            ClientDisabled: its client could not be loaded.

        """
        name = ask.modelname
        if client := self.registry.clients.get(name):
            return client
        if reason := self.registry.broken.get(name):
            raise ClientDisabled(
                f"the client of {brief(name)} is disabled: {reason}",
                hint="mend the class, then POST /reload",
            )
        served = self.served()
        if name in served:
            return TensorClient(self.environment, name)
        near = difflib.get_close_matches(name, served, n=len(served) or 1, cutoff=0)
        raise UnknownModel(
            f"there is no model {brief(name)}", hint=f"served are: {', '.join(near) or 'none'}"
        )

    def model(self, ask: Ask) -> str:
        """Return the model's name in the repository.

        Raises:
            UnknownModel: there is no such model.

        """
        return self.client(ask).triton_model()

    def served(self) -> list[str]:
        """Return what can be asked: clients whose models are ready, and models without a client.

        Where Triton is silent, all clients.
        """
        clients = self.registry.clients
        try:
            states = self.environment.server.models(timeout=LOOKUP_S)
        except InferenceError:
            return sorted(clients)
        ready = {state.name for state in states if state.ready}
        models = {client.triton_model() for client in clients.values()}
        return sorted(
            {name for name, client in clients.items() if client.triton_model() in ready}
            | (ready - models)
        )

    def items(
        self, asks: Iterable[Ask | Exception], envelope: Envelope
    ) -> Iterator[dict[str, Any]]:
        """Yield an answer per ask, in order, several at a time; an error stands in its place."""

        def one(ask: Ask | Exception) -> dict[str, Any]:
            return self.item(ask, envelope)

        return self.in_order(one, asks)

    def item(
        self, ask: Ask | Exception, envelope: Envelope, once: Once | None = None
    ) -> dict[str, Any]:
        """Return one answer among several, with its own status."""
        if isinstance(ask, Exception):
            return errors.item(ask)
        try:
            result = self.prepare(ask, envelope, once=once).result()
            if not isinstance(result, TensorResult):
                encoded(result)  # what JSON cannot hold must not spoil the others' answers
        except Exception as error:
            return errors.item(error, ask.modelname)
        return {"status": 200, **self.answer(ask, result)}

    def by_name(self, asks: list[Ask], envelope: Envelope) -> dict[str, Any]:
        """Return an answer per model for one payload, which is decoded once.

        Raises:
            BadParameter: a parameter is known to none of the models.

        """
        self.refuse_unknown_parameters(asks)
        # A list is decoded a batch at a time, by each: kept for all it could be of any size.
        once = None if asks[0].is_list else Once()
        answers = self.in_order(lambda ask: self.item(ask, envelope, once), asks)
        return {
            ask.modelname: {name: value for name, value in answer.items() if name != "modelname"}
            for ask, answer in zip(asks, answers, strict=True)
        }

    def refuse_unknown_parameters(self, asks: list[Ask]) -> None:
        clients = self.registry.clients
        known = {p for a in asks if a.modelname in clients for p in clients[a.modelname].parameters}
        if unknown := [name for name in asks[0].parameters if name not in known]:
            raise BadParameter(
                f"the parameter {brief(unknown[0])} is known to none of the models",
                hint=f"they take {', '.join(sorted(known)) or 'no parameters'}",
            )

    def in_order(self, call: Callable[[T], R], items: Iterable[T], most: int = 0) -> Iterator[R]:
        """Yield `call(item)` for each, in order; at most `most` are under way at a time.

        `most` is for the batches of one ask; 0 is for asks. What has not begun when nobody wants
        the rest is not begun.
        """
        under_way: deque[Future[R]] = deque()
        pool = self._batch_pool if most else self._pool
        try:
            for item in items:
                # A copy each: two threads cannot be inside the same context.
                under_way.append(pool.submit(copy_context().run, call, item))
                if len(under_way) >= (most or self.threads):
                    yield under_way.popleft().result()
            while under_way:
                yield under_way.popleft().result()
        finally:
            for future in under_way:
                future.cancel()

    @staticmethod
    def answer(ask: Ask, result: Any) -> dict[str, Any]:
        """Return the body of an answer."""
        if isinstance(result, TensorResult):
            result = result.body()
            if ask.tensors:
                return dict(result)
        answer = {"modelname": ask.modelname, "result": result}
        if ask.modelversion:
            answer["modelversion"] = ask.modelversion
        return answer
