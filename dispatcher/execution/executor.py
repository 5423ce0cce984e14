"""Runs the calls of requests: a batch at a time, several side by side, in order."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from typing import Any, TypeVar

from clients.errors import BadParameter, BadPayload, InferenceError
from clients.families.base.family import Family
from clients.request import Once, part_of_trace
from clients.tensors.client import V2_FIELDS
from clients.tensors.quoting import brief
from dispatcher.codecs.error_responses import current_record, error_item
from dispatcher.codecs.metadata import Metadata, TimeLimit, names_sequence
from dispatcher.errors import CallerGone, time_used_up
from dispatcher.execution.model_lookup import ModelLookup
from dispatcher.execution.prepared import PreparedRequest, prepare
from dispatcher.execution.slots import Caller, Slot, Slots
from dispatcher.model_request import ModelRequest
from dispatcher.s3.reading import find_stored, wait_for_each
from dispatcher.s3.step import Output

MAX_BATCHES = 4  # of one request at a time: two in the model, two being decoded

T = TypeVar("T")
R = TypeVar("R")
Answer = tuple[ModelRequest | Exception, dict[str, Any]]


@dataclass(frozen=True)
class Series:
    """The calls of one request: what they have in common."""

    time_limit: TimeLimit
    caller: Caller
    slot: Slot
    context: Context = field(default_factory=copy_context)


class Executor:
    """Answers requests with the clients of their models."""

    def __init__(self, lookup: ModelLookup, calls: Slots, patience: float) -> None:
        self.lookup = lookup
        self.registry = lookup.registry
        self.calls = calls
        self.patience = patience
        # A call gets its slot before its thread: there is a thread for each slot.
        self._pool = ThreadPoolExecutor(calls.total, thread_name_prefix="call")

    def batches(self, prepared: PreparedRequest, series: Series) -> Iterator[list[Any]]:
        """Yield the results for a list of payloads, a batch at a time.

        A few batches are under way together, so that one is decoded while another is in the model;
        no other pictures are decoded meanwhile.

        Raises InferenceError: its message says which payload failed.
        """
        size = prepared.batch_size()

        def failed(_: int, error: Exception) -> list[Any]:
            raise error

        return self.in_order(
            range(0, len(prepared.payloads), size),
            series,
            model=lambda _: self.registry.name(prepared.model_request.modelname),
            call=lambda start, deadline: prepared.batch(start, size, deadline),
            failed=failed,
            most=MAX_BATCHES,
        )

    def items(
        self,
        model_requests: Iterable[ModelRequest | Exception],
        metadata: Metadata,
        series: Series,
        once: Once | None = None,
    ) -> Iterator[dict[str, Any]]:
        """Yield a result or an error for each request, in order."""

        def call(one: ModelRequest | Exception, deadline: float) -> Answer:
            if isinstance(one, Exception):
                return one, error_item(one)
            try:
                if (record := current_record()) and record.may_ask:  # lines are checked here alone
                    record.may_ask.check(one.modelname)
                with part_of_trace("item", model(one)):
                    prepared = prepare(self.lookup, one, metadata, deadline, once=once)
                    return one, {"status": 200, **prepared.body(prepared.result())}
            except Exception as error:
                return failed(one, error)
            finally:
                if not one.shared and (stored := find_stored(one)):
                    stored[0].reads.free(stored)

        def failed(one: ModelRequest | Exception, error: Exception) -> Answer:
            return one, error_item(error, model(one))

        def model(one: ModelRequest | Exception) -> str:
            return "" if isinstance(one, Exception) else self.registry.name(one.modelname)

        def alone(one: ModelRequest | Exception) -> bool:
            return isinstance(one, ModelRequest) and names_sequence(one.parameters, metadata)

        for one, answer in self.in_order(
            wait_for_each(model_requests, series.time_limit.ends),
            series,
            model=model,
            call=call,
            failed=failed,
            most=self.calls.per_model,
            alone=alone,
        ):
            yield self.kept(one, answer, series) if isinstance(one, ModelRequest) else answer

    def kept(self, one: ModelRequest, answer: dict[str, Any], series: Series) -> dict[str, Any]:
        """Store one of several answers where its request asks for it; return it, or the error."""
        if "error" in answer:
            return answer
        try:
            return store_answer(one, answer, series.time_limit.deadline())
        except Exception as error:
            return error_item(error, self.registry.name(one.modelname))

    def by_name(
        self, model_requests: list[ModelRequest], metadata: Metadata, series: Series
    ) -> dict[str, Any]:
        """Return the results of several models for one payload, decoded once.

        Raises BadParameter: none of the models knows a parameter.
        Raises BadPayload: none of the models knows a field of the payload.
        """
        self.refuse_unknown_names(model_requests)
        # Not for a list: each model decodes it a batch at a time, and all of it may be large.
        once = None if model_requests[0].is_list else Once()
        answers = self.items(model_requests, metadata, series, once)
        return {
            one.modelname: {name: value for name, value in answer.items() if name != "modelname"}
            for one, answer in zip(model_requests, answers, strict=True)
        }

    def refuse_unknown_names(self, model_requests: list[ModelRequest]) -> None:
        """Refuse parameters that no model knows; fields too, where all have ready-made clients."""
        first = model_requests[0]
        names = [self.registry.name(one.modelname) for one in model_requests]
        clients = [client for name in names if (client := self.registry.clients.get(name))]
        taken = {name for client in clients for name in client.parameters}
        if unknown := [name for name in first.parameters if name not in taken]:
            raise BadParameter(
                f"the parameter {brief(unknown[0])} is known to none of the models",
                hint=f"they take {', '.join(sorted(taken)) or 'no parameters'}",
            )
        families = [client for client in clients if isinstance(client, Family) and client.fields]
        if first.tensors or len(families) < len(clients):
            return
        known = {field for client in families for field in client.fields}
        if len(clients) < len(names):  # a model without a client may be served all the same
            known.update(V2_FIELDS)
        for payload in first.payloads:
            if isinstance(payload, Mapping) and (unknown := [n for n in payload if n not in known]):
                raise BadPayload(
                    f"the payload has a field {brief(unknown[0])} that none of the models knows",
                    hint=f"they take {', '.join(sorted(known))}; settings go into `parameters`",
                )

    def in_order(  # noqa: C901  each by its name
        self,
        items: Iterable[T],
        series: Series,
        *,
        model: Callable[[T], str],
        call: Callable[[T, float], R],
        failed: Callable[[T, Exception], R],
        most: int,
        alone: Callable[[T], bool] = lambda _: False,
    ) -> Iterator[R]:
        """Yield `call(item, deadline)` for each item, in order.

        The first call waits for a slot; more run beside it where slots are free. No call is begun
        after the caller has left.

        `failed` returns the result for a call that was not made or did not end. At `most` so many
        are under way; one that is `alone`, as one of a sequence, waits for all earlier ones.
        """
        under_way: deque[tuple[T, float, Future[R]]] = deque()

        def first() -> R:
            item, deadline, future = under_way.popleft()
            left = deadline + self.patience - time.monotonic()
            if not wait([future], timeout=max(0.0, left)).done:
                return failed(item, time_used_up())
            return future.result()

        def run(slot: Slot, item: T, deadline: float) -> R:
            slot.thread = threading.get_ident()  # another thread has waited for it
            with slot:
                return call(item, deadline)

        for item in items:
            if alone(item):
                while under_way:
                    yield first()
            deadline = series.time_limit.deadline()
            if series.caller.disconnected():
                raise CallerGone("the caller closed the connection before all models were asked")
            slot = self.calls.try_enter(model(item), deadline)
            while slot is None and under_way:
                yield first()
                slot = self.calls.try_enter(model(item), deadline)
            try:
                slot = slot or self.calls.enter(
                    model(item), deadline, series.caller, in_series=True
                )
            except CallerGone:
                raise
            except InferenceError as error:
                yield failed(item, error)
                continue
            context = series.context.copy()  # two threads cannot be inside the same one
            future = self._pool.submit(context.run, run, slot, item, deadline)
            under_way.append((item, deadline, future))
            del future  # its exception would hold this frame, and this frame the future
            while under_way and (len(under_way) >= most or under_way[0][2].done()):
                yield first()
        while under_way:
            yield first()


def store_answer(asked: ModelRequest, answer: dict[str, Any], deadline: float) -> dict[str, Any]:
    """Store an answer where its request asks for it; return it with its place.

    Raises InferenceError: one of those of `S3`.
    """
    return asked.output.keep(answer, deadline) if isinstance(asked.output, Output) else answer
