"""Loads new and changed clients without a restart; running requests are not affected.

One worker tests them in a separate process (`sandbox`), which calls each with its example, and
writes the verdicts to a file. Every worker sees that file change, and loads the clients that were
accepted. Running requests keep their objects.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from clients.errors import InferenceError
from clients.families.base.dispatch_toml import authors, copied
from clients.plugins.discovery import Source, changes, sources
from clients.plugins.registry import Registry, Verdict, owners, take, verdict_of
from clients.triton.client import TritonEnvironment
from dispatcher.models.sandbox import try_sources
from dispatcher.models.verdicts import Noted, Verdicts, others_reload
from dispatcher.settings import Settings

log = logging.getLogger(__name__)

LOOK_S = 0.5  # between two looks of a worker at the file
STATES_S = 2.0  # for Triton to list its models
OTHERS_S = 10.0  # for the other workers to take up a reload

Try = Callable[[Iterable[Source], Mapping[str, str], Settings], dict[str, Verdict]]
try_at_start: Try = partial(try_sources, at_start=True)


@dataclass(frozen=True)
class Report:
    """What a reload did.

    Args:
        taken: clients that are new or were replaced.
        removed: clients that are gone.
        refused: why new and changed sources were not taken up.
        broken: why unchanged sources still do not work.
        absent: the folders of clients whose models are absent or not loaded, by name.

    """

    taken: list[str]
    removed: list[str]
    refused: dict[str, str]
    broken: dict[str, str]
    absent: dict[str, str]


def tried_at_start(settings: Settings, verdicts: Verdicts, trial: Try = try_at_start) -> Noted:
    """Return the verdicts that a worker needs before it imports any client.

    Foreign code may end the process during its import, or never return. So the first worker tests
    it for all workers. These verdicts have a file of their own: no example was run, so a reload
    cannot use them.
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
        tried = dict(starts.read().by_source)  # a copy: `read` keeps its own
        if untried := [source for source in found if not verdict_of(source, tried)]:
            tried |= trial(untried, {}, settings)
            starts.write(Noted(by_source=tried))
    return replace(noted, by_source=noted.by_source | {s.where: tried[s.where] for s in found})


@dataclass
class Reloader:
    """Loads clients in one worker.

    Args:
        settings: of the container.
        registry: this worker's clients.
        environment: what they are made with.
        verdicts: the file that the workers share.
        renewed: called after clients were replaced.
        trial: tests sources.

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
        """Follow the other workers in a thread.

        Args:
            number: of the last reload before this worker's clients were loaded.

        """
        self._number = number
        self.verdicts.forget_dead()  # this worker may replace one
        self.verdicts.acknowledge(number)
        threading.Thread(target=self.follow, name="reload", daemon=True).start()

    def reload(self, only: Path | None = None) -> Report:
        """Take up all changes in every worker, then return.

        Args:
            only: the one file to try, or to remove; other changes wait for another reload.

        Raises:
            DeadlineExceeded: another reload did not end in time.

        """
        with self.verdicts.alone(time.monotonic() + self.settings.managing_wait):
            return self.renew(only)

    def renew(self, only: Path | None = None) -> Report:
        """Try what has changed, write the verdicts and take them up; the lock is held."""
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
        if only is not None:  # a folder may be away for a moment; its client works without it
            there |= {*loaded, *noted.there} - {str(only)}
        again = {source.where for source in changed}
        kept = owners({where: loaded[where] for where in (loaded.keys() & there) - again})
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
            s.where: f"{authors(s.where)} was changed while it was tested: POST /reload again"
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
        """Return the sources whose models are not loaded now, as far as Triton says so.

        Their examples would fail; loading such a model tries its client.
        """
        about = [source for source in found if source.model]
        try:
            states = self.environment.server.models(timeout=STATES_S) if about else []
        except InferenceError:
            return {}
        missed = {s.name for s in states} - {s.name for s in states if s.state == "READY"}
        return {source.where: source for source in about if source.model in missed}

    def replaced(self, failed: list[Source]) -> dict[str, Source]:
        """Return the sources whose models were unloaded or replaced while they were tried.

        `POST /models`, which they came by, tries them itself.
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
        """Return the models with a bad client that are served without one now."""
        now = self.registry
        had = now.clients.keys() | (now.broken.keys() - now.late)
        return tuple(name for name in verdict.bad if name not in had)

    def sources(self) -> list[Source]:
        """Return all sources of clients as they are now."""
        return list(sources(self.settings.model_repository, self.settings.clients_path))

    def take_up(self) -> None:
        """Take up the clients that the file accepts."""
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
        """Wait until every worker has taken up a reload; log those that do not."""
        deadline = time.monotonic() + OTHERS_S
        while behind := self.verdicts.behind(number):
            if time.monotonic() > deadline:
                log.error(
                    "web workers that have not finished the reload: %s", [p.name for p in behind]
                )
                return
            time.sleep(LOOK_S / 10)

    def follow(self) -> None:
        """Take up the reloads of others."""
        while True:
            time.sleep(LOOK_S)
            try:
                if self.verdicts.read().number != self._number:
                    self.take_up()
            except Exception:
                log.exception("cannot look for changed clients")
