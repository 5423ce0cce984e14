"""Loads new and changed clients without a restart; running requests are not affected.

The worker that is asked tests changed classes in a separate process (`sandbox`), which calls each
with its example. If all are right, it names them in a file that every worker looks at before each
request (`News`), and every worker makes them again. Clients of models that are loaded or unloaded
take the same way. Running requests keep their objects.
"""

from __future__ import annotations

import logging
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from clients.errors import InferenceError
from clients.families.base.dispatch_toml import authors
from clients.plugins.discovery import Source, model_source, sources
from clients.plugins.registry import Registry, load, owners, take
from clients.triton.client import TritonEnvironment
from clients.triton.server import ModelServer
from dispatcher.locks import alone, read_json, write_json
from dispatcher.models.sandbox import Tried, in_one, try_sources
from dispatcher.settings import Settings
from dispatcher.status.checks import failures
from dispatcher.status.status_file import News

log = logging.getLogger(__name__)

BUSY = "other reloads did not finish in time; the log says which sources they test"
STATES_S = 2.0  # for Triton to list its models
FOLDER = "reload"  # in RUN_DIR
TRIED = "tried.json"  # the code of each source that was tried, and why it is fatal, or nothing

Try = Callable[[Iterable[Source], Mapping[str, str], Settings], dict[str, Tried]]
try_at_start: Try = partial(try_sources, at_start=True)


def news_of(settings: Settings) -> News:
    """Return what names changes in this container; without RUN_DIR, in this process."""
    alone = Path(tempfile.gettempdir(), f"triton-dispatcher-{os.getpid()}")
    return News((settings.run_dir or alone) / "news")


def find_fatal(settings: Settings, trial: Try = try_at_start) -> dict[str, str]:
    """Return why sources must not be imported by a worker that starts, by their places.

    Foreign code may end the process during its import, or never return. So the first worker tests
    it for all workers, and what is new for those that start later.
    """
    found = [s for s in sources(settings.model_repository, settings.clients_path) if s.foreign]
    if not found:
        return {}
    folder = news_of(settings).path.with_name(FOLDER)
    with alone(folder, BUSY):
        known = read_json(folder / TRIED) or {}
        untried = [one for one in found if known.get(one.where, [None])[0] != code_of(one)]
        if untried:
            tried = trial(untried, {}, settings)
            for one in untried:
                end = tried.get(one.where, Tried())
                known[one.where] = code_of(one), end.reason if end.is_fatal else ""
            write_json(folder / TRIED, known)
    return {one.where: reason for one in found if (reason := known[one.where][1])}


def code_of(source: Source) -> dict[str, str]:
    """Return the state of a source's code: it may write other files while it is tried."""
    is_code = [path for path in source.mark if source.installed or path.endswith(".py")]
    return {path: source.mark[path] for path in is_code}


@dataclass
class Reloader:
    """Loads clients again, in one worker and by `news` in the others."""

    settings: Settings  # of the container
    registry: Registry  # this worker's clients
    environment: TritonEnvironment  # what they are made with
    news: News  # of the workers; made before the clients were
    server: ModelServer  # runs models for their trials, and loads none
    renewed: Callable[[], None] = lambda: None  # called after clients were replaced
    trial: Try = try_sources  # tests classes

    def __post_init__(self) -> None:
        self.news.followers.append(self._take_up)

    def _take_up(self, changed: set[str]) -> None:
        if not changed:
            return
        before = self.registry.clients
        take(self.registry, self.environment, self.sources(), changed)
        if before != self.registry.clients:
            self.renewed()

    def sources(self) -> list[Source]:
        """Return all sources of clients as they are now."""
        return list(sources(self.settings.model_repository, self.settings.clients_path))

    def load_model(self, file: Path) -> str:
        """Make the client that a loaded model's `dispatch.toml` describes, in every worker.

        Return why it does not work, and was not taken up; the empty text where it was.
        """
        source = model_source(file)
        others = {w: one for w, one in self.registry.loaded.items() if w != source.where}
        new = load(source, replace(self.environment, server=self.server), owners(others))
        if reason := in_one(new.broken or failures(new.clients, self.settings.client_timeout)):
            return reason
        self._publish([source.where])
        return ""

    def forget_model(self, file: Path) -> None:
        """Remove the client of a model whose folder is gone, in every worker."""
        if str(file) in self.registry.loaded and not file.is_file():
            self._publish([str(file)])

    def reload(self) -> tuple[dict[str, Any], dict[str, str]]:
        """Take up all changes in every worker; where a changed source does not work, take up none.

        Return what was done, and why new and changed sources do not work.

        Raises DeadlineExceeded: another reload did not end in time.
        """
        folder = self.news.path.with_name(FOLDER)
        with alone(folder, BUSY, time.monotonic() + self.settings.managing_wait):
            self.news.follow()
            before, loaded, found = self.registry.clients, self.registry.loaded, self.sources()
            changed = {
                s.where: s for s in found if s.where not in loaded or not loaded[s.where].is_all(s)
            }
            restart = {
                where: f"{where} has changed: an installed package needs a restart"
                for where, one in changed.items()
                if one.installed and where in loaded and loaded[where].clients
            }
            waiting = self.waiting(changed.values())
            asked = [s for w, s in changed.items() if w not in restart and w not in waiting]
            gone = loaded.keys() - {s.where for s in found}
            again = {*changed, *gone}
            kept = owners({where: one for where, one in loaded.items() if where not in again})
            tried = self.trial(asked, kept, self.settings) if asked else {}
            faults = restart | {w: one.reason for w, one in tried.items() if one.reason}
            broken = {
                where: why
                for where, why in faults.items()
                if where in loaded and loaded[where].mark == changed[where].mark
            }
            refused = {where: why for where, why in faults.items() if where not in broken}
            good = {s.where for s in asked} - faults.keys()
            if not refused and (good or gone):
                known = {where: (code_of(changed[where]), "") for where in good}
                write_json(folder / TRIED, (read_json(folder / TRIED) or {}) | known)
                self._publish([*good, *gone])
            after, now = self.registry.clients, self.registry.loaded
            absent = {
                name: str(folder)
                for where in tried
                if where in now
                for name, folder in now[where].absent.items()
            }
        report = {
            "taken": sorted(name for name, one in after.items() if before.get(name) is not one),
            "removed": sorted(before.keys() - after.keys()),
            # Why unchanged sources still do not work.
            "broken": {str(authors(where)): why for where, why in broken.items()},
            # The folders of clients whose models are absent or not loaded.
            "absent": absent | {s.model: str(authors(w).parent) for w, s in waiting.items()},
        }
        log.info("reload: %s", report | {"refused": refused})
        return report, refused

    def waiting(self, found: Iterable[Source]) -> dict[str, Source]:
        """Return the sources whose models are not loaded now, as far as Triton says so.

        Their examples would fail; loading such a model tries its client.
        """
        about = [source for source in found if source.model]
        try:
            states = self.server.models(timeout=STATES_S) if about else []
        except InferenceError:
            return {}
        missed = {s.name for s in states} - {s.name for s in states if s.state == "READY"}
        return {source.where: source for source in about if source.model in missed}

    def _publish(self, changed: Iterable[str]) -> None:
        self.news.add(changed)
        self.news.follow()
