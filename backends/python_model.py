"""What the backends have in common towards Triton."""

from __future__ import annotations

import json
import os
from abc import ABC, abstractmethod
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path, PurePath
from threading import Semaphore
from typing import TYPE_CHECKING, Any

import triton_python_backend_utils as pb_utils

from backends import config_check, model_config, triton_requests
from backends.completion import complete
from backends.engine_choice import CACHE_VARIABLE, hide, show
from backends.machine import allocator
from backends.machine.shared_folder import find_shared_folder
from backends.machine.shared_memory import Share
from clients.model_files.config_text import read_folder

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from backends.completion import ModelFile
    from backends.engine_choice import EngineChoice
    from backends.triton_requests import Session, TritonRequest


class PythonModel(ABC):
    """One model instance: it takes Triton's requests and runs them."""

    _session: Session | None = None
    _threads: ThreadPoolExecutor | None = None
    _shown: Path | None = None

    @staticmethod
    @abstractmethod
    def model_file(folder: Path, configured: str) -> Path:
        """Return the model's file in a version folder; raise ModelConfigError."""

    @staticmethod
    @abstractmethod
    def read(file: Path) -> ModelFile:
        """Return a file with its tensors; ModelConfigError if it cannot be read."""

    @abstractmethod
    def open(
        self, config: Mapping[str, Any], file: Path, args: Mapping[str, str]
    ) -> tuple[EngineChoice, Session]:
        """Return which engine was chosen, and the open model.

        Raises ModelConfigError: with one sentence on what does not fit.
        """

    @classmethod
    def auto_complete_config(cls, auto_complete_model_config: Any) -> Any:
        """Add inputs, outputs and batching from the file where the configuration has none.

        Requests share runs only if the configuration says so, or a test shows that it is harmless.
        Then Triton passes requests of all shapes together.

        Raises ModelConfigError: the file cannot be read or contradicts `max_batch_size`, a
        parameter is not what it should be, or ragged batches are wanted.
        """
        # The methods that add a tensor refuse `reshape`, which a scalar with a batch dimension
        # needs; Triton takes back the dictionary, whatever has changed it.
        config = auto_complete_model_config.as_dict()
        config_check.refuse_ragged(config)
        if model_config.needs_completion(config):
            cache = os.environ.get(CACHE_VARIABLE)
            completion = complete(
                config,
                read_folder(cls.folder()),
                cls.read(cls._file(config)),
                Path(cache) if cache else None,
            )
            config.update(completion.fields)
            triton_requests.log_completion(config["name"], completion)
        if model_config.DYNAMIC_BATCHING in config:
            config_check.take_every_shape(config)
        return auto_complete_model_config

    def initialize(self, args: Mapping[str, str]) -> None:
        """Open the model and compare its tensors with the configuration.

        Raises ModelConfigError: with one sentence on what does not fit.
        """
        config = json.loads(args["model_config"])
        config_check.refuse_unsupported(config)
        found, session = self.open(config, self._file(config), args)
        pb_utils.Logger.log_info(f"model '{config['name']}': {found.sentence()}")
        with ExitStack() as failing:
            failing.callback(session.close)
            config_check.check(config, session.signature)
            share = Share.of(config, os.environ)
            failing.pop_all()
        self._answering = triton_requests.RequestHandler(config, session, share)
        if session.at_once > 1:
            self._threads = ThreadPoolExecutor(session.at_once)
        self._free = Semaphore(session.at_once)
        self._session = session
        if session.on_cpu:
            shared = find_shared_folder(os.environ)
            self._shown = show(found, shared, config["name"], args["model_version"])
        allocator.give_back()

    def execute(self, requests: Sequence[Any]) -> list[Any] | None:
        """Answer the requests of one batch; return None if they are answered later."""
        if self._session is None:
            raise RuntimeError("the session was closed, but a request came after it.")
        asked = [self._answering.read(request) for request in requests]
        if self._threads is None:
            return self._answering.responses(asked)
        kept = [one.kept() for one in asked]
        self._free.acquire()  # released by _answer; Triton's queue grows meanwhile, not ours
        try:
            self._threads.submit(self._answer, kept)
        except RuntimeError:  # no thread can be started
            self._free.release()
            raise
        return None

    def _answer(self, asked: Sequence[TritonRequest]) -> None:
        try:
            self._answering.send(asked, self._answering.results(asked))
        finally:
            self._free.release()

    def finalize(self) -> None:
        """Free the model and its memory, when everything is answered."""
        if self._session:
            hide(self._shown)
            if self._threads:
                self._threads.shutdown()
            self._session.close()
        self._session = None

    @staticmethod
    def folder() -> Path:
        """Return the model's folder."""
        return Path(pb_utils.get_model_dir()).parent

    @classmethod
    def _file(cls, config: Mapping[str, Any]) -> Path:
        # Triton's model folder is that of the file named in the configuration, if it names one.
        configured = PurePath(config.get("default_model_filename") or "").name
        return cls.model_file(Path(pb_utils.get_model_dir()), configured)
