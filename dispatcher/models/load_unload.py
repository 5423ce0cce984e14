"""Loads and unloads models at run time."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from clients.errors import DeadlineExceeded, InferenceError, ModelFailed, UnknownModel
from clients.model_files.crash_causes import crash_causes
from clients.model_files.gpu_config import TENSORRT, gpu_settings_of, has_gpu
from clients.model_files.model_folders import CONFIG, NAME, NAMED, authors_folder
from clients.model_files.response_cache import cache_warning
from clients.triton.server import ModelServer
from dispatcher.errors import AlreadyLoaded, BadModel, OutOfMemory
from dispatcher.models.model_files import (
    MEND,
    find_model,
    load_error,
    read_config,
    refusals,
    refuse_other_name,
    refuse_wrong_client_file,
)
from dispatcher.models.repository import URL_FILE, RepositoryFolder, no_such_folder
from dispatcher.settings import UNLOAD_S
from dispatcher.telemetry.memory import free_memory

log = logging.getLogger(__name__)

IN_USE_STATES = frozenset({"LOADING", "READY", "UNLOADING"})
STATE_TIMEOUT_S = 2.0  # for Triton's answer about a model, at the end of a long wait

# What a loaded model takes besides its file, measured with `make bench`: a process with ONNX
# Runtime, and its own copy of the weights while they are packed for the processor.
PROCESS_BYTES = 150 * 2**20
COPIES = 2


@dataclass
class ModelLoader(RepositoryFolder):
    """Loads and unloads models."""

    server: ModelServer  # where they run
    timeout: float  # seconds that a load may take
    # The folder with a file for each model that Triton loads when it is restarted.
    wanted: Path | None = None
    unload_timeout: float = UNLOAD_S  # seconds that an unload may take
    elsewhere: bool = False  # whether Triton reads a repository of its own, elsewhere
    # Returns what is wrong with a folder that Triton could not load.
    findings: Callable[[Path], Iterable[str]] = lambda _: ()

    def load(self, name: str, url: str, fault: Callable[[], str] = str) -> None:
        """Load the model in the folder `url` under `name`.

        `fault` returns why the loaded model is to be unloaded again; empty where it is kept. The
        model is locked until then.

        Raises OutOfMemory: it does not fit into memory, or there is no room on the disk.
        Raises DeadlineExceeded: it takes too long; Triton goes on loading it.
        """
        if not NAME.fullmatch(name):
            raise BadModel(f"`model_name` is {name[:100]!r}", hint=NAMED)
        with ExitStack() as until_loaded:
            with refusals(url, self.findings):
                source = find_model(self.allowed(url))
                refuse_wrong_client_file(source)
                self.refuse_too_large(source)
                placed = until_loaded.enter_context(self.placed(source, name, url))
            if placed:
                self._load_placed(name, url, source, fault)
                return
        if self.is_loaded(name):
            raise AlreadyLoaded(f"there is a model {name!r}")
        if self.was_lost(name):
            self.load(name, url, fault)
            return
        if self.is_own(name):
            raise BadModel(
                f"the repository has a model {name!r} of its own that is not loaded",
                hint=f"POST /load_model/{name} loads it; or choose another name",
            )
        raise AlreadyLoaded(f"the model {name!r} is being loaded, or unloaded")

    def _load_placed(self, name: str, url: str, source: Path, fault: Callable[[], str]) -> None:
        with ExitStack() as undo:
            undo.callback(self.remove, name)
            try:
                with refusals(url, self.findings, {self.repository / name: source}):
                    self._load(name)
            except DeadlineExceeded:  # Triton goes on loading it
                undo.pop_all()
                raise
            undo.pop_all()
            undo.callback(self._give_back, name)
            if reason := fault():
                reason = reason.replace(str(self.repository / name), str(source))
                raise BadModel(reason, hint=MEND.format(url))
            undo.pop_all()

    def _give_back(self, name: str) -> None:
        with suppress(DeadlineExceeded):  # testing its client may have left a request in it
            self._unload(name, self.unload_timeout)
            self.remove(name)

    def load_own(self, name: str) -> None:
        """Load or reload a model of the repository.

        Raises UnknownModel: there is none of this name.
        Raises OutOfMemory: it does not fit into memory.
        Raises DeadlineExceeded: it takes too long; Triton goes on loading it.
        """
        if self.elsewhere:
            self._load_elsewhere(name)
            return
        if name not in (there := self.own_folders()):
            raise no_such_folder(name, there)
        if (self.repository / name / URL_FILE).exists():
            raise BadModel(
                f"the model {name!r} came by POST /models, which copied its configuration",
                hint=f"DELETE /models/{name}, then POST /models again",
            )
        is_new = self.take_in(name)
        place = self.repository / name
        folder = authors_folder(place)
        try:
            if (place / CONFIG).is_file():
                # Triton's own message does not say what is wrong.
                text = read_config(place)
                self.renamed_config(text, name)
                refuse_other_name(text, name)
            self._load(name)
        except InferenceError as error:
            if is_new and not isinstance(error, DeadlineExceeded):
                self.remove(name)
            if isinstance(error, ModelFailed):
                found = self.findings(folder)
                raise load_error(f"the model {name!r}", error, {place: folder}, found) from error
            raise

    def _load_elsewhere(self, name: str) -> None:
        there = sorted({state.name for state in self.server.models(timeout=self.timeout)})
        if name not in there:
            raise UnknownModel(
                f"Triton's repository has no model {name[:100]!r}",
                hint=f"it has {', '.join(there) or 'none'}",
            )
        try:
            self.server.load(name, timeout=self.timeout)
        except ModelFailed as error:
            raise load_error(f"the model {name!r}", error) from error
        self.want(name)

    def _load(self, name: str) -> None:
        if faults := crash_causes(self.repository / name):
            raise ModelFailed("; ".join(map(str, faults)))
        place = self.repository / name
        # With a GPU engines of TensorRT may lack their backend.
        wanted = [one for one in gpu_settings_of(place) if not has_gpu() or one.rule is TENSORRT]
        try:
            self.server.load(name, timeout=self.timeout)
        except DeadlineExceeded:
            self.want(name)  # it will be loaded later
            raise
        except ModelFailed as error:
            if wanted:
                raise type(error)(error.message, hint="; ".join(map(str, wanted))) from error
            raise
        self.want(name)
        if said := cache_warning(authors_folder(place)):
            log.warning("%s: %s", name, said)

    def want(self, name: str, *, yes: bool = True) -> None:
        """Note whether Triton is to load a model again when it is restarted."""
        if self.wanted is None:
            return
        if yes:
            (self.wanted / name).touch()
        else:
            (self.wanted / name).unlink(missing_ok=True)

    def is_wanted(self, name: str) -> bool:
        """Check whether Triton is to load a model when it is restarted."""
        return self.wanted is not None and (self.wanted / name).exists()

    def loaded_at(self, name: str) -> float:
        """Return when a model was loaded, in seconds since 1970; 0 where it is not."""
        try:
            return (self.wanted / name).stat().st_mtime if self.wanted else 0.0
        except OSError:
            return 0.0

    def folder_of(self, name: str) -> Path:
        """Return the folder with a model's files, linked into the repository or not yet."""
        place = self.repository / name
        return place if place.exists() else self.folders().get(name, place)

    def unwanted(self) -> list[str]:
        """Return the models from elsewhere that a restarted Triton would not load."""
        names = [address.parent.name for address in self.repository.glob(f"*/{URL_FILE}")]
        return [name for name in names if not self.is_wanted(name)]

    def was_lost(self, name: str) -> bool:
        """Remove a model from elsewhere that is not loaded; return whether it was one.

        It failed to load late or after a restart, or the process that loaded it was killed.
        """
        if not NAME.fullmatch(name):  # it might be a path to any folder
            return False
        with self.held(name) as is_held:
            if not is_held or not IN_USE_STATES.isdisjoint(self.states(name)):
                return False
            self.want(name, yes=False)
            self.remove(name)
            return True

    def unload(self, name: str) -> None:
        """Unload a model; its memory is free when this returns."""
        if {"READY", "UNLOADING"}.isdisjoint(self.states(name)):
            if self.was_lost(name):
                return
            raise UnknownModel(f"the model {name[:100]!r} is not loaded")
        is_from_elsewhere = (self.repository / name / URL_FILE).exists()
        until = time.monotonic() + self.unload_timeout
        with self.held(name, until) as is_held:
            left = until - time.monotonic()
            if is_from_elsewhere and left <= 0:
                raise DeadlineExceeded(f"another caller is loading or unloading the model {name!r}")
            if is_from_elsewhere and not is_held:
                raise UnknownModel(f"the model {name!r} has just been unloaded")
            self._unload(name, left)
            if is_held:
                self.remove(name)

    def _unload(self, name: str, timeout: float) -> None:
        self.want(name, yes=False)
        try:
            self.server.unload(name, timeout=timeout)
        except InferenceError as error:
            # After a timeout Triton still unloads it; after any other error it stays loaded.
            if not (isinstance(error, DeadlineExceeded) and self.is_ending(name)):
                self.want(name)
            raise

    def is_loaded(self, name: str) -> bool:
        """Check whether a version of a model is ready."""
        return "READY" in self.states(name)

    def is_ending(self, name: str) -> bool:
        """Check whether a model is being unloaded; False where Triton does not answer."""
        try:
            return "READY" not in self.states(name, timeout=STATE_TIMEOUT_S)
        except InferenceError:
            return False

    def states(self, name: str, timeout: float | None = None) -> list[str]:
        """Return the state of each version of a model, in Triton's words."""
        states = self.server.models(timeout=timeout or self.timeout)
        return [state.state for state in states if state.name == name]

    def needed_memory(self, url: str) -> int:
        """Return about how many bytes a model from elsewhere takes; 0 where it cannot be read."""
        try:
            return estimate_memory(find_model(self.allowed(url)))
        except (OSError, InferenceError):  # loading it says why
            return 0

    def refuse_too_large(self, source: Path) -> None:
        """Raise OutOfMemory where a model does not fit into the free memory."""
        needed, free = estimate_memory(source), free_memory()
        if needed > free:
            raise OutOfMemory(
                f"the model needs about {needed // 2**20} MiB; {free // 2**20} MiB are free",
                hint="unload another model first",
            )


def estimate_memory(folder: Path) -> int:
    """Return about how many bytes a model takes when it is loaded, by its files."""
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    return COPIES * size + PROCESS_BYTES
