"""The plans that are in force, the same in all web workers, and what changes them.

What a route has said of a model is kept in a file of RUN_DIR: all web workers take it up with their
next request, one that is restarted when it starts. It goes before what dispatch.toml says, which
counts again after a restart of the container.
"""

from __future__ import annotations

import fcntl
import json
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from clients.base import Client
from clients.errors import DeadlineExceeded, UnknownModel
from clients.plugins.registry import Registry
from clients.tensors.quoting import brief
from clients.triton.server import ModelServer
from dispatcher.errors import OutOfMemory
from dispatcher.locks import Locked, hold_lock, write_json
from dispatcher.rollout.in_force import VersionsInForce, plans_of_files
from dispatcher.rollout.plan import Plan, read_plan
from dispatcher.status.status import Status
from dispatcher.status.status_file import News

log = logging.getLogger(__name__)

FOLDER = "rollouts"  # in RUN_DIR
SUFFIX = ".json"
LOCK_S = 5.0  # for another change to end; each writes one small file


class Rollouts:
    """What is tried beside models, in one web worker.

    `status` returns what the prober has published: requests ask nobody whether a version is ready.
    """

    def __init__(
        self,
        folder: Path,
        registry: Registry,
        server: ModelServer,
        status: Callable[[], Status],
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
        self._unwritten: dict[str, Plan] = {}
        self._looking = threading.RLock()
        self.news = News(folder / "news")
        self.news.take_up = lambda _: self.look()
        self.look()

    # What requests ask

    def plan(self, name: str) -> Plan | None:
        """Return what is tried beside a model; `None` for nothing."""
        return self.plans.get(name)

    # What changes them

    def change(self, name: str, how: Callable[[Plan], Plan]) -> Plan:
        """Put what `how` makes of a model's plan in its place, in all web workers.

        Raises BadRequest: from `how`.
        Raises DeadlineExceeded: another change does not end.
        Raises OutOfMemory: there is no room for the file; nothing has changed.
        """
        try:
            with self._alone():
                self.look()
                self._write(name, how(self.plans.get(name, Plan())))
                self.look()
        except OSError as error:
            raise OutOfMemory(
                f"the rollout of {name} cannot be kept: {error}", hint="make room in RUN_DIR"
            ) from error
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
        except OutOfMemory as error:  # each worker then does it for itself
            log.warning("%s", error.message)
            plan = self._unwritten[name] = replace(self.plans[name], back=why)
            self.look()
        except LookupError:  # another worker was first, or a person
            return False
        log.error(
            "the canary of %s (%s) fell back: %s; it stays back until a PUT /models/%s/rollout",
            name, plan.canary, why, name,
        )  # fmt: skip
        return True

    def forget(self, name: str) -> None:
        """Have dispatch.toml count again, in all web workers."""
        with self._alone():
            self._file(name).unlink(missing_ok=True)
            self._unwritten.pop(name, None)
            self.news.add([name])
            self.look()

    def name(self, asked: str) -> str:
        """Return the name of a model by that or by an alias.

        Raises UnknownModel: there is none.
        """
        name = self._registry.name(asked)
        known = {*self._registry.clients, *self.plans}
        if name not in known and name not in {one.name for one in self._status().models}:
            raise UnknownModel(f"there is no model {brief(name)}", hint="GET /models lists them")
        return name

    @contextmanager
    def _alone(self) -> Iterator[None]:
        self._folder.mkdir(parents=True, exist_ok=True)
        try:
            with hold_lock(self._folder / "lock", fcntl.LOCK_EX, time.monotonic() + LOCK_S):
                yield
        except Locked:
            raise DeadlineExceeded(
                "another change of a rollout does not end", hint="try again in a few seconds"
            ) from None

    def _file(self, name: str) -> Path:
        return self._folder / f"{quote(name, safe='')}{SUFFIX}"

    def _write(self, name: str, plan: Plan) -> None:
        write_json(self._file(name), plan.as_json())
        self._unwritten.pop(name, None)
        self.news.add([name])

    # What is in force

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
            said = {**self._filed, **self._kept(), **self._unwritten}
            if not (said or self.plans):
                return
            states, pinned = self._status().models, self._server.pinned
            found = VersionsInForce(said, self._registry, states, pinned)
            for name, plan in found.plans.items():
                known = self.plans[name].waiting if name in self.plans else {}
                for kind, why in plan.waiting.items() - known.items():
                    log.warning("the rollout of %s, %s: %s", name, kind, why)
            # (First what keeps requests away from a version that is tried.)
            self._server.pinned, self.plans = found.pins, found.plans

    def _kept(self) -> dict[str, Plan]:
        """Return what the routes have said."""
        plans = {}
        for file in self._folder.glob(f"*{SUFFIX}"):
            # (One that was damaged by hand is passed over.)
            with suppress(OSError, ValueError, KeyError, TypeError):
                plans[unquote(file.stem)] = read_plan(json.loads(file.read_bytes()))
        return plans

    def document(self, name: str) -> dict[str, Any]:
        """Return what is said of a model, for people."""
        plan = self.plans.get(name, Plan())
        document = {"modelName": name, **plan.as_json(), "waiting": dict(plan.waiting)}
        document["counts"] = self.count(name, plan)
        if fault := self.faults.get(name):
            document["fault"] = fault
        return document
