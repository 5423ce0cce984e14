"""Takes up clients that are new or have changed, without a restart and without losing a request.

One worker tries them in a process of its own, which asks each its example, and notes the verdicts
in a file; every worker sees that file change and takes up what was accepted. Requests that are
under way keep the objects that they have.
"""

from __future__ import annotations

import json
import logging
import math
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import IO

from clients.errors import DeadlineExceeded, InferenceError
from clients.plugins.discovery import Mark, Source, changes, sources
from clients.plugins.dispatch_toml import authors, copied
from clients.plugins.registry import Registry, Verdict, owners, take, verdict_of
from clients.repository.files import locked
from clients.triton.client import TritonEnvironment
from dispatcher.model_control.sandbox import try_sources
from dispatcher.settings import Settings

log = logging.getLogger(__name__)

LOOK_S = 0.5  # how often a worker looks whether another has noted something
STATES_S = 2.0  # for Triton's word on which models are loaded
OTHERS_S = 10.0  # what the other workers are given to take it up

Try = Callable[[Iterable[Source], Mapping[str, str], Settings], dict[str, Verdict]]
try_at_start: Try = partial(try_sources, at_start=True)


@dataclass(frozen=True)
class Noted:
    """What the file holds.

    Args:
        number: how many reloads there were.
        by_source: what is thought of each source.
        there: the sources that count, also where one cannot be found at this moment.

    """

    number: int = 0
    by_source: dict[str, Verdict] = field(default_factory=dict)
    there: tuple[str, ...] = ()


@dataclass(frozen=True)
class Report:
    """What a reload did.

    Args:
        taken: clients that are new, or made anew.
        removed: clients that are gone.
        refused: why what is new or has changed is not taken, by source.
        broken: why what has not changed still does not work, by source.
        absent: clients whose models are not there, or not loaded: the folders, by name.

    """

    taken: list[str]
    removed: list[str]
    refused: dict[str, str]
    broken: dict[str, str]
    absent: dict[str, str]


class Verdicts:
    """The file that the workers share.

    Args:
        folder: for it and what belongs to it; made where it is needed.

    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = folder / "verdicts.json"
        self.lock = folder / "lock"
        self.workers = folder / "workers"
        self._read: tuple[tuple[int, int], Noted] = (0, 0), Noted()

    @contextmanager
    def alone(self, until: float = math.inf) -> Iterator[None]:
        """Keep other threads and workers from trying at the same time.

        Args:
            until: when it is too late, on the clock of `time.monotonic()`.

        Raises:
            DeadlineExceeded: others were at it until then.

        """
        with self.lock_file() as lock:
            while not locked(lock):
                if time.monotonic() >= until:
                    raise others_reload()
                time.sleep(LOOK_S / 10)
            yield

    @contextmanager
    def alone_or_not(self) -> Iterator[bool]:
        """Do so where nobody else does at this moment; give whether it is so."""
        with self.lock_file() as lock:
            yield locked(lock)

    def lock_file(self) -> IO[str]:
        self.workers.mkdir(parents=True, exist_ok=True)
        return self.lock.open("w")

    def read(self) -> Noted:
        """Return what was noted last; read only where it is another file than the last time."""
        try:
            with self.file.open() as file:
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
        """Note it, at once for all who read."""
        part = self.file.with_suffix(".part")
        part.write_text(json.dumps(asdict(noted)))
        part.replace(self.file)

    def acknowledge(self, number: int) -> None:
        """Say that this process has taken up what was noted."""
        try:
            self.workers.mkdir(parents=True, exist_ok=True)
            part = self.workers / f".{os.getpid()}"
            part.write_text(str(number))
            part.replace(self.workers / str(os.getpid()))
        except OSError as error:
            # A worker serves all the same where there is no room on the disk.
            log.warning("a reload cannot be acknowledged: %s", error.strerror)

    def behind(self, number: int) -> list[Path]:
        """Return the workers that have not taken it up yet."""
        self.forget_dead()
        return [path for path in self.workers.glob("[0-9]*") if int(path.read_text()) < number]

    def forget_dead(self) -> None:
        """Remove what workers that are gone left: another process may be given their number."""
        for path in self.workers.glob("[0-9]*"):
            if not Path("/proc", path.name).exists():
                path.unlink(missing_ok=True)


def others_reload() -> DeadlineExceeded:
    return DeadlineExceeded(
        "others reload clients, and did not end in time",
        hint="try again later; the log of the container says what they try",
    )


def verdicts_of(settings: Settings) -> Verdicts:
    """Return the file of a container; one of this process alone where there is no container."""
    alone = Path(tempfile.gettempdir(), f"triton-dispatcher-{os.getpid()}")
    return Verdicts((settings.run_dir or alone) / "reload")


def tried_at_start(settings: Settings, verdicts: Verdicts, trial: Try = try_at_start) -> Noted:
    """Return what a worker that starts should know before it imports any client.

    Code that is not this project's may end the process at its import, or never come back from it.
    So it is tried before, by the first worker for all. What is noted of it stands apart: no example
    was asked, so that it tells a reload nothing.
    """
    noted, starts = verdicts.read(), Verdicts(verdicts.folder / "start")
    found = [
        source
        for source in sources(settings.model_repository, settings.clients_path)
        if source.foreign and not verdict_of(source, noted.by_source)
    ]
    if not found:
        return noted
    with starts.alone():
        tried = dict(starts.read().by_source)  # what was read is kept
        if untried := [source for source in found if not verdict_of(source, tried)]:
            tried |= trial(untried, {}, settings)
            starts.write(Noted(by_source=tried))
    return replace(noted, by_source=noted.by_source | {s.where: tried[s.where] for s in found})


@dataclass
class Reloader:
    """Takes up clients in one worker.

    Args:
        settings: of the container.
        registry: this worker's clients.
        environment: what they are made with.
        verdicts: the file that the workers share.
        renewed: called when some clients are others than before.
        trial: tries sources.

    """

    settings: Settings
    registry: Registry
    environment: TritonEnvironment
    verdicts: Verdicts
    renewed: Callable[[], None] = lambda: None
    trial: Try = try_sources
    _number: int = 0
    _taking: threading.Lock = field(default_factory=threading.Lock)

    def start(self, number: int) -> None:
        """Follow the other workers, and where it is set look for changes, in a thread.

        Args:
            number: of the reload after which this worker's clients were loaded.

        """
        self._number = number
        self.verdicts.forget_dead()  # where one has died, this one comes for it
        self.verdicts.acknowledge(number)
        threading.Thread(target=self.follow, name="reload", daemon=True).start()

    def reload(self, only: Path | None = None) -> Report:
        """Take up what has changed; when this returns, every worker has.

        Args:
            only: the file that is tried, or gone; what else has changed, come or gone waits for
                another reload.

        Raises:
            DeadlineExceeded: others reload, and do not come to an end.

        """
        with self.verdicts.alone(time.monotonic() + self.settings.managing_wait):
            return self.renew(only)

    def renew(self, only: Path | None = None) -> Report:
        """Try what has changed and note what comes of it; nobody else does so meanwhile."""
        before, loaded = dict(self.registry.clients), self.registry.loaded
        found = self.sources()
        changed = [
            source
            for source in found
            if (only is None or source.where == str(only))
            and (source.where not in loaded or not loaded[source.where].is_all(source))
        ]
        restart = {
            s.where: f"{s.where} has changed: an installed package needs a restart"
            for s in changed
            if s.installed and s.where in loaded and loaded[s.where].clients
        }
        changed = [source for source in changed if source.where not in restart]
        waiting = self.waiting(changed) if only is None else {}
        changed = [source for source in changed if source.where not in waiting]
        noted = self.verdicts.read()
        there = {source.where for source in found}
        if only is not None:  # a folder may be missed for a moment; its client needs it no more
            there |= {*loaded, *noted.there} - {str(only)}
        anew = {source.where for source in changed}
        kept = owners({where: loaded[where] for where in (loaded.keys() & there) - anew})
        tried = self.trial(changed, kept, self.settings) if changed else {}
        if only is None:
            failed = [s for s in changed if s.where in tried and tried[s.where].bad]
            waiting |= self.waiting(failed) | self.replaced(failed)
            tried = {where: one for where, one in tried.items() if where not in waiting}
        tried = {where: replace(one, late=self.late(one)) for where, one in tried.items()}
        judged = {w: v for w, v in {**noted.by_source, **tried}.items() if w in there}
        noted = Noted(noted.number + 1, judged, tuple(sorted(there)))
        self.verdicts.write(noted)
        self.take_up()
        self.wait_for_others(noted.number)
        faults = {where: one.reason for where, one in tried.items() if one.reason}
        as_before = {
            s.where
            for s in changed
            if s.where in loaded and not changes(loaded[s.where].mark, s.mark)
        }
        late = {
            s.where: f"{authors(s.where)} was changed while it was tried: POST /reload again"
            for s in self.sources()
            if s.where in tried and s.where not in faults and not verdict_of(s, tried)
        }
        after, now = self.registry.clients, self.registry.loaded
        report = Report(
            taken=sorted(name for name, one in after.items() if before.get(name) is not one),
            removed=sorted(before.keys() - after.keys()),
            refused=restart | late | {w: why for w, why in faults.items() if w not in as_before},
            broken={w: why for w, why in faults.items() if w in as_before},
            absent={
                name: str(folder)
                for where in tried
                if where in now
                for name, folder in now[where].absent.items()
            }
            | {s.model: str(authors(where).parent) for where, s in waiting.items()},
        )
        log.info("reload: %s", report)
        return report

    def waiting(self, found: Iterable[Source]) -> dict[str, Source]:
        """Return the sources whose models are not loaded at this moment, as far as Triton says so.

        Their examples would fail; when such a model is loaded its client is tried.
        """
        about = [source for source in found if source.model]
        try:
            states = self.environment.server.models(timeout=STATES_S) if about else []
        except InferenceError:
            return {}
        missed = {s.name for s in states} - {s.name for s in states if s.state == "READY"}
        return {source.where: source for source in about if source.model in missed}

    def replaced(self, failed: list[Source]) -> dict[str, Source]:
        """Return the sources whose models were unloaded, and perhaps loaded again, during a trial.

        Those have come by `POST /models`, which tries the client of what it loads.
        """
        now = {source.where: source for source in self.sources()} if failed else {}
        return {
            s.where: s
            for s in failed
            if s.model
            and (
                s.where not in now or (copied(Path(s.where)) and changes(s.mark, now[s.where].mark))
            )
        }

    def late(self, verdict: Verdict) -> tuple[str, ...]:
        """Return which of the models with a bad client have none now, and are served without."""
        now = self.registry
        had = now.clients.keys() | (now.broken.keys() - now.late)
        return tuple(name for name in verdict.bad if name not in had)

    def sources(self) -> list[Source]:
        """Return where clients may be, as things are now."""
        return list(sources(self.settings.model_repository, self.settings.clients_path))

    def take_up(self) -> None:
        """Take up what was noted."""
        if not self._taking.acquire(timeout=self.settings.managing_wait):
            raise others_reload()
        try:
            noted, before = self.verdicts.read(), self.registry.clients
            found = self.sources()
            take(self.registry, self.environment, found, noted.by_source, noted.there)
            if before != self.registry.clients:
                self.renewed()
            self._number = noted.number
            self.verdicts.acknowledge(noted.number)
        finally:
            self._taking.release()

    def wait_for_others(self, number: int) -> None:
        """Wait until every worker has taken it up; one that does not is named in the log."""
        deadline = time.monotonic() + OTHERS_S
        while behind := self.verdicts.behind(number):
            if time.monotonic() > deadline:
                log.error("workers that have not taken it up: %s", [p.name for p in behind])
                return
            time.sleep(LOOK_S / 10)

    def follow(self) -> None:
        """Take up what others note; where a watch is set, note what has changed."""
        interval = self.settings.clients_watch
        due, before = time.monotonic(), self.news()
        while True:
            time.sleep(LOOK_S)
            try:
                if self.verdicts.read().number != self._number:
                    self.take_up()
                if interval is not None and time.monotonic() >= due + interval:
                    due, now = time.monotonic(), self.news()
                    # Twice the same: whoever writes there is done.
                    if now and now == before:
                        self.renew_if_alone()
                    before = now
            except Exception:
                log.exception("clients could not be looked at")

    def renew_if_alone(self) -> None:
        """Try what has changed, unless another worker does: that one waits for this thread."""
        with self.verdicts.alone_or_not() as mine:
            if not mine:
                return
            if self.verdicts.read().number != self._number:
                self.take_up()  # another worker has just been done with it
            if self.news():
                self.renew()

    def news(self) -> dict[str, Mark]:
        """Return what is neither loaded nor tried as it is now, by source, and what is gone."""
        loaded, noted = self.registry.loaded, self.verdicts.read().by_source
        found = self.sources()
        now = {source.where: source.mark for source in found}
        news: dict[str, Mark] = {where: {} for where in loaded.keys() - now.keys()}
        for where, mark in now.items():
            known = [one[where].mark for one in (loaded, noted) if where in one]
            differ = [changes(one, mark) for one in known] or [mark]
            if all(differ):
                news[where] = differ[0]
        waiting = self.waiting(source for source in found if source.where in news)
        return {where: mark for where, mark in news.items() if where not in waiting}
