"""Triton's `onnxruntime` backend in Python, for a Triton without the native one.

A model's configuration means here what it means to NVIDIA's native backend. On a CPU OpenVINO runs
the model where it is faster and its answers are the same; see `backends.engine_choice`. Triton
loads this file by its path and starts one process of it for each model instance.
"""

from __future__ import annotations

import json
import math
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path, PurePath
from threading import Event, Semaphore, Thread
from typing import TYPE_CHECKING, Any

import triton_python_backend_utils as pb_utils

# Triton finds this file, perhaps through a symbolic link, but not the package it belongs to. The
# package's home goes last, so that it hides nothing that is installed.
sys.path.append(str(Path(__file__).resolve().parents[2]))

from backends import config_check, model_config, triton_requests
from backends.completion import complete
from backends.engine_choice import (
    CACHE_VARIABLE,
    ONNXRUNTIME,
    EngineChoice,
    cached_file,
    choice_for_onnxruntime,
    hide,
    preference,
    show,
)
from backends.machine import allocator
from backends.machine.cpu_share import idle_cpu_seconds
from backends.machine.shared_folder import find_shared_folder, write_json
from backends.machine.shared_memory import Share
from backends.measure_runs import Busy
from backends.onnxruntime import session
from backends.onnxruntime.execution_providers import CPU, execution_providers
from backends.onnxruntime.gpu_session import GpuSession
from backends.onnxruntime.session_settings import session_settings, warn_of_unread
from backends.schedule import ScheduledSession, open_on_cpu, schedule_runs
from backends.sequence_state import SequenceStates
from clients.model_files.config_text import read_folder

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from backends.model_config import FileSignature
    from backends.triton_requests import Session, TritonRequest


IDLE_S, MOST_IDLE_S = 2.0, 300.0
"""How long nobody asks a model before it is measured, and how long after it could not be."""
IDLE_SHARE = 0.9  # of the machine


class TritonPythonModel:
    """One model instance: it takes Triton's requests and runs them."""

    _session: Session | None = None
    _threads: ThreadPoolExecutor | None = None
    _shown: Path | None = None
    _measuring: Thread | None = None

    model_file = staticmethod(session.model_file)

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
                read_folder(cls._folder()),
                session.OnnxFile(cls._file(config)),
                Path(cache) if cache else None,
            )
            config.update(completion.fields)
            if completion.info:
                pb_utils.Logger.log_info(f"model '{config['name']}': {completion.info}")
            if completion.warning:
                said = "; ".join(completion.warning)
                pb_utils.Logger.log_warn(f"model '{config['name']}': {said}")
        if model_config.DYNAMIC_BATCHING in config:
            config_check.take_every_shape(config)
        return auto_complete_model_config

    def initialize(self, args: Mapping[str, str]) -> None:
        """Open the model and compare its tensors with the configuration.

        Raises ModelConfigError: with one sentence on what does not fit.
        """
        config = json.loads(args["model_config"])
        config_check.refuse_unsupported(config)
        file = self._file(config)
        found, opened, signature = self._open(config, file, args)
        pb_utils.Logger.log_info(f"model '{config['name']}': {found.sentence()}")
        with ExitStack() as failing:
            failing.callback(opened.close)
            config_check.check(config, signature)
            share = Share.of(config, os.environ)
            states = SequenceStates(config, self._folder())
            failing.pop_all()
        self._answering = triton_requests.RequestHandler(config, signature, opened, share, states)
        self._closing = Event()
        if opened.at_once > 1 or not opened.joined:
            self._threads = ThreadPoolExecutor(opened.at_once)
        self._free = Semaphore(opened.at_once)
        self._session = opened
        shared = find_shared_folder(os.environ)
        self._shown = show(found, shared, config["name"], args["model_version"])
        if isinstance(opened, ScheduledSession) and opened.schedule.is_guessed and found.signature:
            kept = cached_file(self._folder(), file, preference(config, os.environ), os.environ)
            self._answering.keeps_item = True
            arguments = config, found, opened, kept
            self._measuring = Thread(target=self._measure, args=arguments, daemon=True)
            self._measuring.start()
        allocator.give_back()

    def _measure(
        self,
        config: Mapping[str, Any],
        found: EngineChoice,
        opened: ScheduledSession,
        kept: Path | None,
    ) -> None:
        """Measure how runs share the cores best, with a request that came, when nobody asks."""
        # Not all models at the same moment.
        wait_s, cpus = IDLE_S * (1 + os.getpid() % 5), opened.schedule.threads
        while True:
            idle, begun = idle_cpu_seconds(), opened.begun
            if self._closing.wait(wait_s):
                return
            is_idle = idle_cpu_seconds() - idle > IDLE_SHARE * wait_s * cpus
            item = self._answering.item
            if item is None or not is_idle or opened.begun > begun:
                continue
            try:
                runs = opened.measure(item, model_config.max_batch_size(config))
            except Exception as error:  # each engine has its own
                wait_s = min(2 * wait_s, MOST_IDLE_S)
                if not isinstance(error, Busy):
                    self._answering.item = None  # the next may be run
                continue
            self._answering.keeps_item, self._answering.item = False, None
            found = replace(found, runs=runs)
            if kept:
                write_json(kept, asdict(found))
            at_once = opened.at_once
            opened.follow(schedule_runs(config, runs, 0))
            for _ in range(at_once - opened.at_once):
                self._free.acquire()
            pb_utils.Logger.log_info(f"model '{config['name']}': {found.sentence()}")
            return

    def _open(
        self, config: Mapping[str, Any], file: Path, args: Mapping[str, str]
    ) -> tuple[EngineChoice, Session, FileSignature]:
        """Return which engine runs the model, the open model, and the file's tensors."""
        kind = model_config.read_kind(args["model_instance_kind"], self._folder())
        providers, warnings = execution_providers(
            config,
            kind,
            int(args["model_instance_device_id"]),
            [CPU] if kind == "CPU" else session.import_onnxruntime().get_available_providers(),
        )
        on_cpu = providers[0][0] == CPU
        if args["model_instance_kind"] == "GPU" and on_cpu:
            warnings.append("it runs on the CPU: there is a GPU, but no onnxruntime-gpu.")
        for warning in (*warnings, *warn_of_unread(config)):
            pb_utils.Logger.log_warn(f"model '{config['name']}': {warning}")
        settings = session_settings(config)
        if not on_cpu:
            threads = schedule_runs(config, None, 0).threads  # of what CUDA's provider lacks
            settings = replace(settings, intra_op_threads=threads)
            on_gpu = GpuSession(file, config, settings, providers)
            found = EngineChoice(ONNXRUNTIME, on_gpu.precision, reason="on a GPU")
            return found, on_gpu, on_gpu.signature
        found = choice_for_onnxruntime(config, self._folder(), file, os.environ)
        size = sum(one.stat().st_size for one in model_config.files_of(file))
        plan = schedule_runs(config, found.runs, size)
        scheduled = open_on_cpu(file, found, plan, settings, find_shared_folder(os.environ))
        return found, scheduled, found.signature or session.OnnxFile(file).signature

    def execute(self, requests: Sequence[Any]) -> list[Any] | None:
        """Answer the requests of one batch; return None if they are answered later."""
        if self._session is None:
            raise RuntimeError("the session was closed, but a request came after it.")
        asked = [self._answering.read(request) for request in requests]
        if self._threads is None:
            if self._session.joined:
                return self._answering.responses(asked)
            for one in asked:
                self._answering.send([one], self._answering.results([one]))
            return None
        # Those that are alike in length are run together.
        kept = sorted((one.kept() for one in asked), key=triton_requests.size_of)
        while kept:
            self._free.acquire()  # released by _answer; Triton's queue grows meanwhile, not ours
            free = 1
            while free < min(len(kept), self._session.at_once) and self._free.acquire(
                blocking=False
            ):
                free += 1
            most = math.ceil(len(kept) / free) if self._session.joined else 1
            for _ in range(free):
                if not kept:
                    self._free.release()
                    continue
                part, kept = kept[:most], kept[most:]
                try:
                    self._threads.submit(self._answer, part)
                except RuntimeError:  # no thread can be started
                    self._answer(part)
        return None

    def _answer(self, asked: Sequence[TritonRequest]) -> None:
        try:
            self._answering.send(asked, self._answering.results(asked))
        finally:
            self._free.release()

    def finalize(self) -> None:
        """Free the model and its memory, when everything is answered."""
        if self._session:
            self._closing.set()
            if self._measuring and isinstance(self._session, ScheduledSession):
                self._session.is_closing = True
                self._measuring.join()
            hide(self._shown)
            if self._threads:
                self._threads.shutdown()
            self._session.close()
        self._session = None

    @staticmethod
    def _folder() -> Path:
        return Path(pb_utils.get_model_dir()).parent

    @classmethod
    def _file(cls, config: Mapping[str, Any]) -> Path:
        # Triton's model folder is that of the file named in the configuration, if it names one.
        configured = PurePath(config.get("default_model_filename") or "").name
        return cls.model_file(Path(pb_utils.get_model_dir()), configured)
