"""A model file as ONNX Runtime would run it, kept for every session of this container.

ONNX Runtime optimizes a graph each time a session is opened, and each session keeps weights of its
own. Saved once, with the weights in a file beside the graph, the result is mapped instead of read:
sessions open at once, and all of them, in whichever process, have their weights in the same memory,
those of matrix products as they are packed for this processor. The file is for this processor and
this release, so it lives no longer than the instances that use it. Whoever saves it may change the
graph then: see `by_rows`.

https://onnxruntime.ai/docs/performance/model-optimizations/graph-optimizations.html
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

GRAPH = "model.onnx"
WEIGHTS = "weights.bin"

ALIGNED = 64
"""Bytes: packed weights are read with instructions that want it, and crash otherwise."""

OUTSIDE = 2**10
"""Bytes from which a tensor is kept outside of the graph."""

BEYOND_BIASES = 2**17 + 1
"""Bytes from which the tensors of a text model are multiples of `ALIGNED`, as a rule: the bias of
a vocabulary of 30,522 words, which is none, is smaller, and a matrix larger."""

ALIGNED_BY_ITSELF = 2**20 + 1
"""Bytes from which ONNX Runtime 1.31 puts a tensor that is outside at the beginning of a page;
smaller ones go where the last one ended. With all of them outside, MiniLM crashes."""

_PACKED = re.compile(rb"\|(\d+);\d+;\d+")
"""Where one packed tensor of the graph begins: `kernel+hash|offset;length;checksum`."""

# The optimized weights may be larger, and others need some room as well.
ROOM = 3
"""How many times a model's size must be free on the disk."""

LOOK_S = 0.01


def files_of(source: Path) -> list[Path]:
    """Return a model's files: weights may lie in some of their own."""
    return sorted(file for file in source.parent.rglob("*") if file.is_file())


def saving(outside: int, *, packed: bool) -> dict[str, str]:
    """Return the settings of a session that saves its graph.

    Args:
        outside: bytes from which a tensor is kept outside of the graph.
        packed: whether weights are saved as they are packed, too.

    """
    return {
        "session.optimized_model_external_initializers_file_name": WEIGHTS,
        "session.optimized_model_external_initializers_min_size_in_bytes": str(outside),
        "session.save_external_prepacked_constant_initializers": str(int(packed)),
    }


WAYS = (
    saving(OUTSIDE, packed=True),
    saving(BEYOND_BIASES, packed=True),
    saving(ALIGNED_BY_ITSELF, packed=True),
    saving(OUTSIDE, packed=False),
)
"""How a graph can be saved, the best first; the last one always is `usable`."""


def usable(graph: Path) -> bool:
    """Whether all packed weights of a saved graph lie where they can be read."""
    return all(int(found[1]) % ALIGNED == 0 for found in _PACKED.finditer(graph.read_bytes()))


class OptimizedFile:
    """One optimized model, there as long as some process has it open.

    Args:
        folder: where the optimized models of this container are.
        source: the model's file.
        settings: whatever else the result depends on.
        save: opens a session, writes its graph, or a better one, to a path, and sees that it can be
            opened.

    Raises:
        OSError: there is no room for it.

    """

    def __init__(
        self, folder: Path, source: Path, settings: object, save: Callable[[Path], Any]
    ) -> None:
        # Files may be replaced by others of their age.
        known = [
            (str(f), s.st_size, s.st_mtime_ns, s.st_ctime_ns, s.st_ino)
            for f in [source, *files_of(source)]
            if (s := f.stat())
        ]
        self._needed = ROOM * sum(size for _, size, *_ in known[1:])
        name = hashlib.sha256(json.dumps([known, repr(settings)]).encode()).hexdigest()[:16]
        folder.mkdir(parents=True, exist_ok=True)
        self._home = folder / name
        self.graph = self._home / GRAPH
        self._locked = folder / f"{name}.lock"
        self._lock = self._opened()
        try:
            self._lock_shared(save)
        except BaseException:
            self.close()
            raise

    def _lock_shared(self, save: Callable[[Path], Any]) -> None:
        """Return with a lock that others may have too, when the file is there."""
        while True:
            fcntl.lockf(self._lock, fcntl.LOCK_SH)  # waits for whoever makes it
            if not self._is_there():
                removed, self._lock = self._lock, self._opened()
                os.close(removed)
                continue
            if self.graph.exists():
                return
            fcntl.lockf(self._lock, fcntl.LOCK_UN)
            try:
                fcntl.lockf(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:  # another was faster
                time.sleep(LOOK_S)
                continue
            if not self._is_there():
                continue
            if not self.graph.exists():
                self._make(save)
            # Locks of POSIX's kind are exchanged without a gap in which the file could go.
            fcntl.lockf(self._lock, fcntl.LOCK_SH)
            return

    def _opened(self) -> int:
        return os.open(self._locked, os.O_RDWR | os.O_CREAT, 0o600)

    def _is_there(self) -> bool:
        """Whether what is locked is the file that others lock, not one that was removed."""
        try:
            return self._locked.stat().st_ino == os.fstat(self._lock).st_ino
        except FileNotFoundError:
            return False

    def _make(self, save: Callable[[Path], Any]) -> None:
        shutil.rmtree(self._home, ignore_errors=True)  # half done by one that was killed
        self._home.mkdir()
        if shutil.disk_usage(self._home).free < self._needed:
            raise OSError(f"the disk of {self._home} has less than {self._needed} bytes free")
        part = self._home / f"{GRAPH}.part"
        save(part)
        part.rename(self.graph)

    @property
    def size(self) -> int:
        """The bytes of graph and weights."""
        return sum(file.stat().st_size for file in self._home.iterdir())

    def close(self) -> None:
        """Remove it where no other process has it open; what is mapped stays usable."""
        try:
            fcntl.lockf(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            pass
        else:
            if self._is_there():
                shutil.rmtree(self._home, ignore_errors=True)
                self._locked.unlink()
        os.close(self._lock)
