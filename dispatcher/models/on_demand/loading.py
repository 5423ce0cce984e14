"""Loads models when they are asked for, once for all requests of all web workers.

While a request uses a model it holds a shared lock on the model's file in the folder of uses. Who
loads or unloads the model holds it alone. So no model is unloaded under a request, and a process
that is killed leaves nothing locked.
"""

from __future__ import annotations

import copy
import fcntl
import logging
import math
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from typing import Any

from clients.errors import BadRequest, InferenceError, ModelUnavailable
from clients.families.base.dispatch_toml import FILE as CLIENT_FILE
from clients.model_files.model_folders import NAME
from clients.request import Stream
from clients.triton.server import Inference, ModelServer, Signature, Tensors
from dispatcher.background import start_rounds
from dispatcher.errors import client_bug
from dispatcher.locks import Locked, hold_lock
from dispatcher.models.control import ModelControl
from dispatcher.models.on_demand.memory import TIDY_S, ModelMemory, steps_of
from dispatcher.models.repository import no_such_folder

log = logging.getLogger(__name__)

TOUCH_S = 1.0  # how exactly the last use of a model is known
MARGIN_S = 0.5  # before the deadline, for the answer that the model is not loaded yet
FORGIVEN_S = 5.0  # after which a model that failed to load is tried again


class OnDemand(ModelControl):
    """Loads models at their first request."""

    def __init__(self, memory: ModelMemory, *base: Any) -> None:
        super().__init__(*base)
        self.memory = memory
        self._touched: dict[str, float] = {}
        self._loads: dict[str, Future[None]] = {}
        self._lock = threading.Lock()

    def start(self) -> None:
        """Unload what is not used, in a thread."""
        start_rounds(self.memory.tidy, "model memory", min(TIDY_S, self.memory.idle / 2))

    @contextmanager
    def using(self, model: str, until: float) -> Iterator[None]:
        """Keep a model loaded meanwhile, and the steps of an ensemble; load what is not.

        Nothing is done for one that the repository does not have.

        Raises ModelUnavailable: it cannot be loaded, or not in time; its load goes on.
        Raises OutOfMemory, InferenceError: there is no room for it, or S3 does not give it.
        """
        with ExitStack() as used:
            for name in self._with_steps(model):
                used.enter_context(self._used(name, until))
            yield

    def _with_steps(self, model: str) -> list[str]:
        """Return the models that a model needs, itself last."""
        needed = [model]
        for name in needed if NAME.fullmatch(model) else ():  # it grows
            steps = steps_of(self.loader.repository / name)
            needed += [step for step in steps if step not in needed]
        return needed[::-1]

    @contextmanager
    def _used(self, model: str, until: float) -> Iterator[None]:
        is_name = NAME.fullmatch(model)
        while is_name and (self.loader.is_wanted(model) or model in self.available()):
            try:
                with hold_lock(self.memory.folder / model, fcntl.LOCK_SH, until - MARGIN_S) as file:
                    if self.loader.is_wanted(model):
                        self._touch(model, file)
                        yield
                        return
            except Locked:
                raise still_loading(model) from None
            self.await_load(model, until)
        yield

    def _touch(self, model: str, file: int) -> None:
        now = time.monotonic()
        if now >= self._touched.get(model, -math.inf) + TOUCH_S:
            self._touched[model] = now
            with suppress(OSError):
                os.utime(file)

    def load_on_demand(self, asked: str, until: float | None) -> bool:
        """Load a model that no client is for, by its name or alias; return True.

        Raises UnknownModel: there is none; the hint lists those that can be loaded.
        Raises InferenceError: as `using`.
        """
        name = asked
        if not (NAME.fullmatch(name) and self.loader.is_wanted(name)):  # else nothing is listed
            name = self.available_name(asked)
        if not name:
            raise no_such_folder(asked, self.available())
        if until is None:
            if self.loader.is_wanted(name):
                return True
            raise ModelUnavailable(
                f"the model {name!r} is not loaded", hint="its first request loads it"
            )
        with self.using(name, until):
            self.reloader.news.follow()  # another worker may have loaded it
            return True

    def await_load(self, model: str, until: float) -> None:
        """Wait until a model is loaded, by this request or by another one."""
        future = self._begun(model)
        try:
            future.result(max(0.0, until - MARGIN_S - time.monotonic()))
        except TimeoutError:
            raise still_loading(model) from None
        except BadRequest as error:  # of the model, not of this request
            raise ModelUnavailable(
                f"the model {model!r} cannot be loaded: {error.message}", hint=error.hint
            ) from error
        except InferenceError as error:
            raise copy.copy(error) from error  # each request has its own

    def load(self, name: str, url: str) -> None:
        """Load a model from elsewhere; others are unloaded where it needs their memory.

        Raises OutOfMemory: there is no room for it.
        Raises InferenceError: as `ModelControl.load`.
        """
        with ExitStack() as room:
            if NAME.fullmatch(name) and not self.loader.is_wanted(name):  # else it is refused
                until = time.monotonic() + self.memory.keep + MARGIN_S
                need = self.loader.needed_memory(url)
                room.enter_context(self.memory.room(name, until, need))
            super().load(name, url)

    def load_own(self, name: str) -> None:
        """Load or reload a model of the repository, its newest version in S3."""
        if self.loader.is_wanted(name):
            super().load_own(name)
        else:
            self._begun(name, newest=True).result()

    def _begun(self, model: str, *, newest: bool = False) -> Future[None]:
        """Return the load of a model that is under way, or begin one."""
        with self._lock:
            future = self._loads.get(model)
            if future is None or (newest and future.done()):
                future = self._loads[model] = Future()
                arguments = model, future, newest
                threading.Thread(target=self._load, args=arguments, daemon=True).start()
            return future

    def _load(self, model: str, future: Future[None], newest: bool) -> None:
        until = time.monotonic() + self.loader.timeout
        try:
            with hold_lock(self.memory.folder / model, fcntl.LOCK_EX, until):
                if not self.loader.is_wanted(model):
                    self._load_alone(model, until, newest=newest)
        except Locked:
            future.set_exception(still_loading(model))
        except InferenceError as error:
            log.warning("the model %s cannot be loaded: %s", model, error.message)
            future.set_exception(error)
            time.sleep(FORGIVEN_S)  # those who ask meanwhile get the same answer
        except Exception:
            log.exception("the model %s cannot be loaded", model)
            future.set_exception(client_bug())
        with self._lock:
            if self._loads.get(model) is future:
                del self._loads[model]
        if not future.done():
            future.set_result(None)

    def _load_alone(self, model: str, until: float, *, newest: bool) -> None:
        began = time.monotonic()
        self.fetch(model, until, newest=newest)
        file = self.loader.repository / model / CLIENT_FILE
        with self.memory.room(model, until):
            if str(file) in self.reloader.registry.loaded:
                self.loader.load_own(model)
            else:
                self.load_fetched(model)
        log.info("the model %s was loaded in %.1f s", model, time.monotonic() - began)


class LoadingServer(Inference):
    """Runs models as the server does, and has them loaded."""

    def __init__(self, server: ModelServer) -> None:
        self.server = server
        self.using: Callable[[str, float], AbstractContextManager[None]] = lambda _model, _until: (
            nullcontext()
        )

    def infer(self, model: str, inputs: Tensors, *, timeout: float, **how: Any) -> Any:
        until = time.monotonic() + timeout
        with self.using(model, until):
            left = until - time.monotonic()
            return self.server.infer(model, inputs, timeout=left, **how)

    def stream(self, model: str, inputs: Tensors, *, timeout: float, **how: Any) -> Any:
        until = time.monotonic() + timeout
        with ExitStack() as kept:
            kept.enter_context(self.using(model, until))
            left = until - time.monotonic()
            answers = self.server.stream(model, inputs, timeout=left, **how)
            return KeptStream(answers, kept.pop_all().close)

    def signature(self, model: str, version: str = "", *, timeout: float) -> Signature:
        until = time.monotonic() + timeout
        with self.using(model, until):
            return self.server.signature(model, version, timeout=until - time.monotonic())

    def __getattr__(self, name: str) -> Any:
        return getattr(self.server, name)


class KeptStream(Stream[Any]):
    """Answers of a model that is kept loaded until the last one."""

    def __init__(self, answers: Iterator[Any], done: Callable[[], None]) -> None:
        self._answers, self._done = answers, done

    def __next__(self) -> Any:
        return next(self._answers)

    def close(self) -> None:
        if isinstance(self._answers, Stream):
            self._answers.close()
        self._done()


def still_loading(model: str) -> ModelUnavailable:
    return ModelUnavailable(
        f"the model {model!r} is still being loaded", hint="try again after Retry-After seconds"
    )
