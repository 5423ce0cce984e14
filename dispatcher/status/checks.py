"""Checks whether a model answers, the way that requests take.

Triton calls a model ready even if its process died or hangs; only a request shows the truth. That
request is the `example` of the model's class. A model that has just answered gets a cheap probe, a
knock: a request whose deadline has passed. It reaches the model's process, which refuses it without
running it.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace

from clients.base import Client, Payload
from clients.errors import (
    BadRequest,
    ClientDisabled,
    DeadlineExceeded,
    InferenceError,
    ModelBusy,
    ModelFailed,
    TensorsRefused,
    TooLargeAtOnce,
)
from clients.families.base.family import Family
from clients.plugins.registry import Registry, describe_error
from clients.request import Request, SequencePart
from clients.tensors.client import name_examples
from clients.tensors.nested import copy_deeply
from clients.tensors.signature import noise, zeros
from clients.triton.server import ModelServer
from dispatcher.codecs.responses import encode
from dispatcher.errors import NotJson
from dispatcher.status.instances import WORD_S
from dispatcher.status.status import Result

LOGGED = "; the log has the traceback"

log = logging.getLogger(__name__)


def failures(clients: Mapping[str, Client], timeout: float) -> dict[str, str]:
    """Return why clients fail an example of their own, by name; nothing of those that answer."""
    found = {name: failure(name, client, timeout) for name, client in clients.items()}
    return {name: reason for name, reason in found.items() if reason}


def failure(name: str, client: Client, timeout: float) -> str:
    """Return which example a client fails, and why; the empty text where it answers all."""
    asked: list[tuple[str, Payload | None]] = [*name_examples(client)] or [("example", None)]
    for its, example in asked:
        failed = fails_on(name, its)
        try:
            ask_example(client, example, timeout)
        except ClientDisabled as error:  # without its hint, which is to reload
            is_mistake = isinstance(client, Family)  # in its file, which the message names
            return error.message if is_mistake else f"{failed}: {error.message}"
        except InferenceError as error:
            return f"{failed}: {error}"
        except (Exception, SystemExit) as error:
            log.exception("%s", failed)
            return f"{failed}: {describe_error(error)}{LOGGED}"
    return ""


def fails_on(name: str, its: str) -> str:
    return f"the client of {name!r} fails on its own {its}"


def ask_example(client: Client, example: Payload | None, timeout: float) -> None:
    """Ask a client an example of its own; a client for plain tensors may have none.

    Raises InferenceError: it does not answer, or its answer is not JSON.
    Raises Exception: whatever a bug in it raises.
    """
    request = Request(
        parameters=client.read_parameters({}),
        deadline=time.monotonic() + timeout,
        sequence=own_sequence(),
    )
    with request.active():
        if example is not None:
            # The client may change its payload; the next probe and the docs need the example.
            result = client.run_inference(copy_deeply(dict(example)))
            if isinstance(result, Iterator):  # one shows that the model answers
                result = next(result, None)
                request.cancel()
            encode(result)
        elif isinstance(client, Family):
            client.fitted()
        else:
            client.signature()


def own_sequence() -> SequencePart:
    """Return a sequence of one request, for a model that keeps state: it keeps no slot.

    Its id suits every model, and is one that callers hardly choose.
    """
    return SequencePart(2**30 + secrets.randbelow(2**30), start=True, end=True)


@dataclass
class ProbedModel:
    """The probing of one model, or class, by this process."""

    result: Result  # of the last probe
    knocks: int = 0  # how many probes have only knocked since the last example
    well: bool = False  # whether it ever answered its example here
    began: float | None = None  # when the probe began that is under way
    thread: int = 0  # of that probe
    hung: int = 0  # how many probes have not come back, and were given up
    failed: int = 0  # how many probes have failed since the last good one
    # When the first of the last probes began that were all answered too late.
    late_since: float | None = None

    def is_kept_waiting(self, result: Result, now: float, patience: float) -> bool:
        """Whether a model that was well may be busy with a request that still has time."""
        was_well = not self.result.reason and self.result.answered_in == result.tried_in
        if not (result.late and (was_well or self.late_since)):
            self.late_since = None
            return False
        self.late_since = self.late_since or self.began or now
        return now < self.late_since + patience


@dataclass(frozen=True)
class ModelChecks:
    """Checks models by the names of models and classes."""

    registry: Registry  # the clients, whose `example` is asked
    server: ModelServer  # where the models run
    # Seconds that a model has for its answer. A model that answers other requests in that time is
    # busy, and does not hang.
    timeout: float
    classes: bool = True  # whether classes of other names than their models are asked too
    _logged: set[str] = field(default_factory=set)
    # By what is probed: how many requests the models that it asks had answered at the last look,
    # until it answers itself.
    _seen: dict[str, dict[str, int]] = field(default_factory=dict)
    _fail_on_zeros: set[str] = field(default_factory=set)

    def names(self, ready: Collection[str], listed: Collection[str]) -> Iterator[tuple[str, str]]:
        """Yield what can be probed by its example, and the model of each.

        A model that is ready by its own name; a class of another name by that, also where it asks
        no model of Triton.
        """
        for client in list(self.registry.clients.values()):
            model = client.served_by
            if model in ready:
                yield model, model
            alone = model not in listed or (model in ready and self.client(model) is not client)
            if alone and self.classes:
                yield client.modelname, model

    def check(
        self, name: str, result: Result, *, knock: bool, again: bool = False
    ) -> Result | None:
        """Return a result with what is found now; `reason` is empty where the model answers.

        What the given result says of the model is kept; it has no reason. None is for a part that
        was late at the first look at it: the second tells whether it answers others.
        """
        seen = self._seen.setdefault(name, {})
        seen.setdefault(result.model, self._answered(result.model))
        most = 1 if result.answered_in == result.tried_in else None
        try:
            signature = self.server.signature(result.model, timeout=self.timeout) if knock else None
            # Triton passes no knock to a decoupled model. One that decodes files fails on zeros,
            # and with it a batch of other callers.
            if signature and not (
                signature.decoupled or any(spec.is_file for spec in signature.inputs)
            ):
                # Triton's response cache must not answer in place of the model.
                inputs = noise(signature) if signature.cached else zeros(signature)
                self.server.knock(result.model, inputs, timeout=self.timeout)
                answers = False
            else:
                answers = self.ask(name, known=bool(result.answered_in), again=again, most=most)
        except InferenceError as error:
            return self._judge(error, result, seen)
        self._seen.pop(name, None)
        return replace(result, answered_in=result.tried_in) if answers else result

    def _judge(self, error: InferenceError, result: Result, seen: dict[str, int]) -> Result | None:
        """Return what an error says of a model; one that is late is well while it answers others.

        A full queue refuses at once: whether it moves shows at the next probe.
        """
        part = "" if error.model == result.model else error.model
        model = part or result.model
        late = isinstance(error, DeadlineExceeded | ModelBusy)
        if late and self._may_be_occupied(model):
            return result
        if late:
            before, seen[model] = seen.get(model), self._answered(model)
            if before is None:
                return None
            if seen[model] > before:
                return replace(result, answered_in=result.tried_in)
        failed = isinstance(error, ModelFailed | DeadlineExceeded)
        return replace(
            result,
            reason=f"the model {part!r}, which it asks too: " * bool(part) + error.message,
            model_failed=failed and not isinstance(error, TooLargeAtOnce),
            late=late,
            part=part,
        )

    def ask(self, name: str, *, known: bool, again: bool = False, most: int | None = None) -> bool:
        """Ask a model the examples of its client, or zeros where it has no client.

        Zeros may not be a valid input, so that only a model that is `known` to answer them has to.
        One that failed on them is not asked `again`: it would fail again, write that to the
        log, and might fail a batch of other callers. Of several examples `most` are asked.

        Raises InferenceError: it does not answer.
        """
        if reason := self.registry.broken.get(name):
            raise ClientDisabled(reason)
        client = self.client(name)
        if client and (examples := name_examples(client)[:most]):
            for its, example in examples:
                self._ask_named(client, its, example)
            return True
        model = self.model(name)
        if again and not known and model in self._fail_on_zeros:
            return False
        signature = self.server.signature(model, timeout=self.timeout)
        try:
            if signature.decoupled:
                answers = self.server.stream(
                    model, zeros(signature), sequence=own_sequence(), timeout=self.timeout
                )
                with Request().cancelling(answers):
                    next(answers, None)
            else:
                self.server.infer(
                    model, zeros(signature), sequence=own_sequence(), timeout=self.timeout
                )
        except (DeadlineExceeded, ModelFailed, TensorsRefused) as error:
            if known:
                raise
            if not isinstance(error, DeadlineExceeded):
                self._fail_on_zeros.add(model)
            return False
        return True

    def _ask_named(self, client: Client, its: str, example: Payload) -> None:
        """Ask a client an example; what is the client's fault is said as by `failure`."""
        failed = fails_on(client.modelname, its)
        try:
            self.ask_client(client, example)
        except InferenceError as error:
            if isinstance(error, TensorsRefused) or not isinstance(error, BadRequest | NotJson):
                raise  # by the model
            refusal = BadRequest(f"{failed}: {error}")
            refusal.model = error.model
            raise refusal from error
        except BaseException as error:  # whatever a client does, the probe comes to its end
            if failed not in self._logged:  # it is probed again and again
                log.exception("%s", failed)
            self._logged.add(failed)
            raise BadRequest(f"{failed}: {describe_error(error)}{LOGGED}") from error
        self._logged.discard(failed)

    def ask_client(self, client: Client, example: Payload) -> None:
        """Ask a client an example; once more if a run of a model that takes files failed.

        The run may have been shared with a caller's file that the model could not decode.
        """
        until = time.monotonic() + self.timeout
        try:
            ask_example(client, example, self.timeout)
        except ModelFailed as error:
            if not error.model:  # the client says so itself
                raise
            signature = self.server.signature(error.model, timeout=WORD_S)
            if not any(spec.is_file for spec in signature.inputs):
                raise
            ask_example(client, example, max(0.0, until - time.monotonic()))

    def client(self, name: str) -> Client | None:
        """Return the client of this name; else any client of the model of this name."""
        clients = dict(self.registry.clients)
        others = (one for one in clients.values() if one.served_by == name)
        return clients.get(self.registry.name(name)) or next(others, None)

    def model(self, name: str) -> str:
        """Return the model of a client of this name; the name itself where there is no client."""
        client = self.registry.clients.get(self.registry.name(name))
        return client.served_by if client else name

    def _may_be_occupied(self, model: str) -> bool:
        """Whether a model that is well may keep a probe waiting for longer than it waits.

        One long stream may occupy a decoupled model; sequences that nobody goes on with may keep
        all slots of one with state. Whether their processes live is seen without a probe.
        """
        try:
            signature = self.server.signature(model, timeout=WORD_S)
        except InferenceError:
            return False
        return signature.decoupled or signature.idle_s >= self.timeout

    def _answered(self, model: str) -> int:
        try:
            return self.server.answered(model, timeout=WORD_S)
        except InferenceError:
            return 0
