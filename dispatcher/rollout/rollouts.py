"""The plans that are in force, the same in all web workers, and what changes them.

What routes have said is kept in a file of RUN_DIR, which is written in place, as a disk may be
full: all web workers take it up with their next request, one that is restarted when it starts. It
goes before what dispatch.toml says, which counts again after a restart of the container.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any

from clients.base import Client
from clients.errors import UnknownModel
from clients.plugins.registry import Registry
from clients.tensors.quoting import brief
from clients.triton.server import ModelServer
from dispatcher.errors import OutOfMemory
from dispatcher.locks import alone
from dispatcher.rollout.in_force import UNLOADED, VersionsInForce, plans_of_files
from dispatcher.rollout.plan import Plan, read_plans
from dispatcher.status.status import Status
from dispatcher.status.status_file import SIZE, News, StatusReader, StatusWriter

log = logging.getLogger(__name__)

FOLDER = "rollouts"  # in RUN_DIR
PLANS = "plans"  # in that folder
LOCK_S = 5.0  # for another change to end; each writes one small file


class Rollouts:
    """What is tried beside models, in one web worker.

    `status` returns what the prober has published: requests ask nobody whether a version is ready.
    By `news` the workers learn of changes; those of clients are taken up before.
    """

    def __init__(
        self,
        folder: Path,
        registry: Registry,
        server: ModelServer,
        status: Callable[[], Status],
        news: News,
    ) -> None:
        self.plans: Mapping[str, Plan] = {}
        """Those in force, by model: replaced and never changed, so that any thread may read it."""
        self.faults: Mapping[str, str] = {}
        """By model, what is wrong with `shadow` and `canary` in its dispatch.toml."""
        self.count: Callable[[str, Plan], dict[str, Any]] = lambda *_: {}
        """Returns how the last calls of a model ended."""
        self._folder, self._registry, self._server = folder, registry, server
        self._status = status
        self._read: Mapping[str, Client] | None = None  # of which are
        self._filed: Mapping[str, Plan] = {}  # what their files say
        # What the routes said.
        self._said = StatusReader[dict[str, Plan]](folder / PLANS, read_plans, {}, fresh=0.0)
        self._logged = set[tuple[str, str, str]]()  # why parts of plans wait
        self._found: VersionsInForce | None = None  # the last ones
        self._looking = threading.RLock()
        self.news = news
        news.followers.append(lambda _: self.look())
        self.look()

    def change(self, name: str, how: Callable[[Plan], Plan | None]) -> Plan:
        """Put what `how` makes of a model's plan in its place, in all web workers.

        With `None` its dispatch.toml counts again.

        Raises BadRequest: from `how`.
        Raises DeadlineExceeded: another change does not end.
        Raises OutOfMemory: there is no room for the file; nothing has changed.
        """
        busy = "another change of a rollout does not end"
        try:
            with alone(self._folder, busy, time.monotonic() + LOCK_S):
                self.look()
                said = {**self._said(), name: how(self.plans.get(name, Plan()))}
                self._writer.write({one: asdict(plan) for one, plan in said.items() if plan})
                with suppress(OSError):  # of a full disk: others find it within a second, by `look`
                    self.news.add()
                self.look()
        except OSError as error:
            why = f"the change of a rollout cannot be kept: {error}"
            raise OutOfMemory(why, hint="make room in RUN_DIR") from error
        return self.plans.get(name, Plan())

    def fall_back(self, name: str, why: str, since: float) -> bool:
        """Give a canary no further request; return whether this call did that.

        Nothing is done where the canary is not the one that began at `since`, as its plan says.
        """

        def back(plan: Plan) -> Plan:
            if plan.back or not plan.canary or plan.since != since:
                raise LookupError
            return plan.fallen_back(why)

        try:
            plan = self.change(name, back)
        except LookupError:  # another worker was first, or a person
            return False
        log.error(
            "the canary of %s (%s) fell back: %s; it stays back until a PUT /models/%s/rollout",
            name, plan.canary, why, name,
        )  # fmt: skip
        return True

    def refuse_reload(self, model: str) -> None:
        """Raise BadModel where a loaded model would be left with what is only tried."""
        self.news.follow()
        if self._found:
            self._found.refuse_reload(model)

    def name(self, asked: str) -> str:
        """Return the name of a model by that or by an alias.

        Raises UnknownModel: there is none.
        """
        name = self._registry.name(asked)
        known = {*self._registry.clients, *self.plans}
        if name not in known and name not in {one.name for one in self._status().models}:
            raise UnknownModel(f"there is no model {brief(name)}", hint="GET /models lists them")
        return name

    @cached_property
    def _writer(self) -> StatusWriter:
        self._folder.mkdir(parents=True, exist_ok=True)
        return StatusWriter(self._folder / PLANS)

    def look(self) -> None:
        """Bring the plans up to date with the files, the clients and the versions that are ready.

        Called about once a second beside what the news bring.
        """
        with self._looking:
            clients = self._registry.clients
            if clients is not self._read:  # they are replaced, and never changed
                self._read, known = clients, self.faults
                self._filed, self.faults = plans_of_files(clients)
                for name, fault in self.faults.items() - known.items():
                    log.error("nothing is tried beside %s: %s", name, fault)
                if self._filed:  # room for a fall back, before the disk may be full
                    with suppress(OSError, AttributeError):  # macOS has no such call
                        os.posix_fallocate(self._writer.file, 0, SIZE)
            said = {**self._filed, **self._said()}
            if not (said or self.plans):
                return
            states, pinned = self._status().models, self._server.pinned
            found = VersionsInForce(said, self._registry, states, pinned)
            if states and all(state.state != "LOADING" for state in states):
                waiting = {
                    (name, kind, why)
                    for name, plan in found.plans.items()
                    for kind, why in plan.waiting.items()
                    if why != UNLOADED
                }
                for which in waiting - self._logged:
                    log.warning("the rollout of %s, %s: %s", *which)
                self._logged = waiting
            # (First what keeps requests away from a version that is tried.)
            self._server.pinned, self.plans, self._found = found.pins, found.plans, found

    def document(self, name: str) -> dict[str, Any]:
        """Return what is said of a model, for people."""
        plan = self.plans.get(name, Plan())
        document = {"modelName": name, **asdict(plan), "counts": self.count(name, plan)}
        if fault := self.faults.get(name):
            document["fault"] = fault
        return document
