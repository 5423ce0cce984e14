"""Unloads models that are not used, where others need their memory or their time is up.

The models in memory are those that Triton is to load when it is restarted, and those for which a
web worker has made room: until they are loaded it keeps a file locked for each. What a model takes
is what its processes take now (PSS, in which memory that processes share counts once); before its
first load, and where it has no process of its own, an estimate by its files.
"""

from __future__ import annotations

import fcntl
import logging
import math
import os
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from clients.errors import InferenceError, UnknownModel
from clients.model_files.config_text import read_folder
from clients.model_files.model_folders import CONFIG, authors_folder
from dispatcher.errors import OutOfMemory
from dispatcher.locks import Locked, hold_lock, is_locked
from dispatcher.models.load_unload import ModelLoader, estimate_memory
from dispatcher.status.instances import model_processes, process_memory

log = logging.getLogger(__name__)

LOCK, ROOMS = ".lock", ".rooms"  # no model's name begins with a dot
ROOM_LOOK_S = 0.25  # to measure ten models takes 10 ms
TIDY_S = 5.0
MIB = 2**20


@dataclass
class ModelMemory:
    """The models in memory."""

    # Of uses: a file for each model, whose time is that of its last request. Its content is what
    # the model took when it was last unloaded, in bytes.
    folder: Path
    loader: ModelLoader  # unloads models
    most: float = math.inf  # bytes that all models may take
    idle: float = math.inf  # seconds without a request after which a model is unloaded
    keep: float = 0.0  # seconds for which a model that was just loaded is not unloaded
    pinned: Callable[[], Collection[str]] = tuple  # the models that are never unloaded
    triton: Callable[[], int] = int  # returns Triton's process id; 0 where it is not known
    proc: Path = Path("/proc")

    @contextmanager
    def room(self, model: str, until: float, need: int | None = None) -> Iterator[None]:
        """Unload models until another one fits; its room is taken meanwhile.

        It needs `need` bytes, by default what it took last, else an estimate.
        """
        if math.isinf(self.most):
            yield
            return
        need = self.need(model) if need is None else need
        pinned = self.pinned()
        fixed = sum(size for name, size in self.sizes().items() if name in pinned)
        if need + fixed > self.most:
            raise OutOfMemory(
                f"the model {model} needs about {need // MIB} MiB; MODEL_MEMORY_MB is "
                f"{self.most // MIB:.0f}, of which REQUIRED_MODELS take {fixed // MIB}",
                hint="raise MODEL_MEMORY_MB, or require fewer models",
            )
        with ExitStack() as taken:
            try:
                # Others wait for the lock, so that a large model does not make room for small ones.
                with hold_lock(self.folder / LOCK, fcntl.LOCK_EX, until):
                    while not (fits := self.fits(need, model)) and time.monotonic() < until:
                        time.sleep(ROOM_LOOK_S)
                    (self.folder / ROOMS).mkdir(exist_ok=True)
                    taken.enter_context(
                        hold_lock(self.folder / ROOMS / model, fcntl.LOCK_EX, until)
                    )
            except Locked:
                fits = False
            if not fits:
                raise OutOfMemory(
                    f"there is no room for the model {model} of about {need // MIB} MiB: all other "
                    "models are in use, or were just loaded",
                    hint="try again later, or raise MODEL_MEMORY_MB",
                )
            yield

    def fits(self, need: int = 0, model: str = "") -> bool:
        """Unload models until there is room; return whether there is. The lock is held."""
        sizes = {name: size for name, size in self.sizes().items() if name != model}
        for name in (None, *self.unused(sizes)):
            if name and self.unload(name, sizes[name], f"to make room for {model or 'others'}"):
                del sizes[name]
            if sum(sizes.values()) + need <= self.most:
                return True
        return False

    def tidy(self) -> None:
        """Unload what was not used for long, and what exceeds the limit; one worker at a time."""
        with suppress(Locked), hold_lock(self.folder / LOCK, fcntl.LOCK_EX) as lock:
            now = time.time()
            if now < os.fstat(lock).st_mtime + min(TIDY_S, self.idle / 2):
                return  # another web worker has just done it
            os.utime(lock)
            sizes = self.sizes()
            for name in list(self.unused(sizes)):
                if (past := now - self.used_at(name)) > self.idle:
                    self.unload(name, sizes[name], f"for {past:.0f} s without a request")
            if sum(sizes.values()) > self.most:
                self.fits()

    def unused(self, sizes: Collection[str]) -> Iterator[str]:
        """Yield the models that may be unloaded, the least recently used first."""
        steps = {step for name in sizes for step in steps_of(self.loader.repository / name)}
        last = time.time() - self.keep
        for name in sorted(sizes, key=self.used_at):
            may_end = name not in steps and name not in self.pinned() and self.loader.is_own(name)
            if may_end and self.loader.loaded_at(name) <= last:
                yield name

    def unload(self, name: str, size: int, why: str) -> bool:
        """Unload a model that no request uses; return whether it was unloaded."""
        with suppress(Locked), hold_lock(self.folder / name, fcntl.LOCK_EX) as file:
            os.ftruncate(file, 0)
            os.write(file, str(size).encode())
            try:
                self.loader.unload(name)
            except UnknownModel:  # it has failed to load
                self.loader.want(name, yes=False)
            except InferenceError as error:
                log.warning("the model %s cannot be unloaded: %s", name, error.message)
                return False
            log.info("the model %s of %d MiB was unloaded %s", name, size // MIB, why)
            return True
        return False

    def used_at(self, name: str) -> float:
        """Return when a model was last used, in seconds since 1970; when loaded, if never."""
        with suppress(OSError):
            return max((self.folder / name).stat().st_mtime, self.loader.loaded_at(name))
        return self.loader.loaded_at(name)

    def sizes(self) -> dict[str, int]:
        """Return the bytes of each model in memory, or on its way there."""
        measured = self.measured()
        names = {path.name for path in (self.loader.wanted or Path("/nowhere")).iterdir()}
        for path in (self.folder / ROOMS).glob("*"):
            if path.name not in names and is_locked(path):
                names.add(path.name)
        return {name: measured.get(name) or self.need(name) for name in names}

    def need(self, name: str) -> int:
        """Return the bytes that a model took last, else an estimate."""
        if steps_of(self.loader.repository / name):  # an ensemble has no process and no weights
            return 0
        try:
            return int((self.folder / name).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return estimate_memory(authors_folder(self.loader.folder_of(name)))

    def measured(self) -> Counter[str]:
        found: Counter[str] = Counter()
        for model, pid in model_processes(self.triton(), self.proc):
            if size := process_memory(pid, self.proc):
                found[model] += size
        return found


def steps_of(folder: Path) -> tuple[str, ...]:
    """Return the models that an ensemble runs; none of another model."""
    config = f"{folder}/{CONFIG}"
    try:
        return _steps(config, os.stat(config).st_mtime_ns)  # noqa: PTH116  each request asks
    except OSError:
        return ()


@lru_cache(1024)
def _steps(config: str, _: int) -> tuple[str, ...]:
    found = read_folder(Path(config).parent).messages("ensemble_scheduling")
    return tuple(
        dict.fromkeys(step.text("model_name") for one in found for step in one.messages("step"))
    )
