"""The file of verdicts on sources of clients, which the web workers share."""

from __future__ import annotations

import json
import logging
import math
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from clients.errors import DeadlineExceeded
from clients.model_files.files import locked
from clients.plugins.registry import Verdict
from dispatcher.settings import Settings

log = logging.getLogger(__name__)

LOOK_S = 0.05  # between two looks whether another worker is done


@dataclass(frozen=True)
class Noted:
    """The content of the file.

    Args:
        number: how many reloads there were.
        by_source: the verdicts.
        there: all sources, also those that cannot be found at this moment.

    """

    number: int = 0
    by_source: dict[str, Verdict] = field(default_factory=dict)
    there: tuple[str, ...] = ()


class Verdicts:
    """The file of verdicts, which the workers share.

    Args:
        folder: of the file, its lock and the workers' acknowledgements; made when it is needed.

    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = folder / "verdicts.json"
        self.lock = folder / "lock"
        self.workers = folder / "workers"
        self._read: tuple[tuple[int, int], Noted] = (0, 0), Noted()

    @contextmanager
    def alone(self, until: float = math.inf) -> Iterator[None]:
        """Exclude all other reloads, of this worker and of others.

        Args:
            until: the latest time to begin, on the clock of `time.monotonic()`.

        Raises:
            DeadlineExceeded: another reload went on until then.

        """
        self.workers.mkdir(parents=True, exist_ok=True)
        with self.lock.open("w", encoding="utf-8") as lock:
            while not locked(lock):
                if time.monotonic() >= until:
                    raise others_reload()
                time.sleep(LOOK_S)
            yield

    def read(self) -> Noted:
        """Return the newest content; the file is parsed only where it was replaced."""
        try:
            with self.file.open(encoding="utf-8") as file:
                status = os.fstat(file.fileno())
                state = status.st_ino, status.st_mtime_ns
                known, last = self._read
                if state == known:
                    return last
                noted = json.load(file)
        except FileNotFoundError:
            return Noted()
        by_source = {where: Verdict.of_json(one) for where, one in noted["by_source"].items()}
        last = Noted(noted["number"], by_source, tuple(noted["there"]))
        self._read = state, last
        return last

    def write(self, noted: Noted) -> None:
        """Replace the file."""
        part = self.file.with_suffix(".part")
        part.write_text(json.dumps(asdict(noted)), encoding="utf-8")
        part.replace(self.file)

    def acknowledge(self, number: int) -> None:
        """Record that this worker has taken up a reload."""
        try:
            self.workers.mkdir(parents=True, exist_ok=True)
            part = self.workers / f".{os.getpid()}"
            part.write_text(str(number), encoding="utf-8")
            part.replace(self.workers / str(os.getpid()))
        except OSError as error:
            # On a full disk the worker serves all the same.
            log.warning("a reload cannot be acknowledged: %s", error.strerror)

    def behind(self, number: int) -> list[Path]:
        """Return the files of the workers that have not taken up a reload yet."""
        self.forget_dead()
        return [
            path
            for path in self.workers.glob("[0-9]*")
            if int(path.read_text(encoding="utf-8")) < number
        ]

    def forget_dead(self) -> None:
        """Remove the files of dead workers: other processes may get their process ids."""
        for path in self.workers.glob("[0-9]*"):
            if not Path("/proc", path.name).exists():
                path.unlink(missing_ok=True)


def others_reload() -> DeadlineExceeded:
    return DeadlineExceeded(
        "other reloads did not finish in time",
        hint="try again later; the container's log says which sources they test",
    )


def verdicts_of(settings: Settings) -> Verdicts:
    """Return the file of this container; without RUN_DIR, one of this process alone."""
    alone = Path(tempfile.gettempdir(), f"triton-dispatcher-{os.getpid()}")
    return Verdicts((settings.run_dir or alone) / "reload")
