"""One model instance: it takes Triton's requests and runs them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Semaphore
from typing import TYPE_CHECKING, Any, Protocol

from container.triton_backends import config_check, model_config, triton_requests
from container.triton_backends.batching.item import ByRows
from container.triton_backends.machine.shared_memory import Share

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from container.triton_backends.batching.item import Rows, Tensors
    from container.triton_backends.triton_requests import TritonRequest


class Session(Protocol):
    """An open model of any engine."""

    signature: model_config.Signature
    by_rows: tuple[str, ...]
    """The outputs of which rows can be computed alone."""
    on_cpu: bool
    at_once: int
    """Runs that are best on their way at a time; 1 where each has all cores."""

    def prepare(self, inputs: Tensors) -> Tensors:
        """Return a request's tensors as the file has them; raise RequestError."""

    def run(
        self, inputs: Tensors, outputs: Sequence[str], rows: Mapping[str, Rows] = ...
    ) -> dict[str, NDArray[Any]]:
        """Return the named outputs; raise what the engine raises."""

    def close(self) -> None:
        """Free the model."""


class Instance:
    """Runs the requests of one model instance.

    Args:
        config: the model's, complete.
        session: the open model; closed with the instance, and where this raises.
        environment: of the process.

    Raises:
        ModelConfigError: the configuration does not fit the file.

    """

    def __init__(
        self, config: Mapping[str, Any], session: Session, environment: Mapping[str, str]
    ) -> None:
        self._session = session
        try:
            config_check.check(config, session.signature)
            share = Share.of(config, environment)
        except BaseException:
            session.close()
            raise
        self._answering = triton_requests.RequestHandler(
            config["name"],
            [tensor["name"] for tensor in config["output"]],
            session.prepare,
            session.run,
            model_config.max_batch_size(config),
            share,
            session.on_cpu,
            ByRows(session.by_rows, session.run) if session.by_rows else None,
            model_config.is_cached(config),
        )
        several = session.at_once > 1
        self._threads = ThreadPoolExecutor(session.at_once) if several else None
        self._free = Semaphore(session.at_once)

    def execute(self, requests: Sequence[Any]) -> list[Any] | None:
        """Answer the requests of one batch; return None if they are answered later."""
        asked = self._answering.asked(requests)
        if self._threads is None:
            return self._answering.responses(asked)
        kept = [one.kept() for one in asked]
        self._free.acquire()  # released by _answer; Triton's queue grows meanwhile, not ours
        try:
            self._threads.submit(self._answer, kept)
        except BaseException:  # no thread can be started
            self._free.release()
            raise
        return None

    def _answer(self, asked: Sequence[TritonRequest]) -> None:
        try:
            self._answering.send(asked, self._answering.results(asked))
        finally:
            self._free.release()

    def close(self) -> None:
        """Free the model and its memory, when everything is answered."""
        if self._threads:
            self._threads.shutdown()
        self._session.close()
