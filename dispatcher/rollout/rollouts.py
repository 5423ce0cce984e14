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
from clients.families.base.dispatch_toml import Keys, authors
from clients.families.base.family import Family
from clients.plugins.registry import Registry
from clients.tensors.quoting import brief
from clients.triton.server import ModelServer
from dispatcher.errors import BadBody, OutOfMemory
from dispatcher.locks import Locked, hold_lock
from dispatcher.rollout.plan import (
    CANARY,
    NO_CHOICE,
    SHADOW,
    STABLE,
    Choice,
    Plan,
    Variant,
    read_plan,
)
from dispatcher.status.status import Status
from dispatcher.status.status_file import News

log = logging.getLogger(__name__)

FOLDER = "rollouts"  # in RUN_DIR
SUFFIX = ".json"
LOCK_S = 5.0  # for another change to end; each writes one small file
ALL = "write `version_policy { all { } }` into its config.pbtxt, then POST /load_model/"


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
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.plans: Mapping[str, Plan] = {}
        """Those in force, by model: replaced and never changed, so that any thread may read it."""
        self.faults: Mapping[str, str] = {}
        """By model, what is wrong with `shadow` and `canary` in its dispatch.toml."""
        self.count: Callable[[str, Plan], dict[str, Any]] = lambda *_: {}
        """Returns how the last calls of a model ended."""
        self._folder, self._registry, self._server = folder, registry, server
        self._status, self._clock = status, clock
        self._filed: tuple[Mapping[str, Client] | None, dict[str, Plan]] = None, {}
        self._unwritten: dict[str, Plan] = {}
        self._looking = threading.RLock()
        self.news = News(folder / "news")
        self.news.take_up = lambda _: self.look()
        self.look()

    # What requests ask

    def plan(self, name: str) -> Plan | None:
        """Return what is tried beside a model; `None` for nothing."""
        return self.plans.get(name)

    def choose(
        self, name: str, version: str, *, session: str, owner: str, request_id: str
    ) -> Choice:
        """Return what answers a request to a model, by its own name and not an alias.

        A request that names a version gets that one.
        """
        plan = self.plans.get(name)
        if plan is None or version:
            return NO_CHOICE
        return plan.choose(name, session=session, owner=owner, request_id=request_id)

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
        except LookupError:  # another worker was first, or a person
            return False
        except OutOfMemory as error:  # each worker then does it for itself
            log.warning("%s", error.message)
            with self._looking:
                plan = self._unwritten[name] = self.plans.get(name, Plan()).fallen_back(why)
                self.look()
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
        file = self._file(name)
        part = file.with_suffix(".part")
        part.write_text(json.dumps(plan.as_json()), encoding="utf-8")
        part.replace(file)
        self._unwritten.pop(name, None)
        self.news.add([name])

    # What is in force

    def look(self) -> None:
        """Bring the plans up to date with the files, the clients and the versions that are ready.

        Called about once a second beside what the news bring.
        """
        with self._looking:
            said = {**self._tables(), **self._kept(), **self._unwritten}
            if not (said or self.plans or self._server.pinned):
                return
            ready: dict[str, set[str]] = {}
            for state in self._status().models:
                if state.ready:
                    ready.setdefault(state.name, set()).add(state.version)
            pins = self._pins(said, ready)
            plans = {name: self._in_force(name, plan, pins, ready) for name, plan in said.items()}
            for name, plan in plans.items():
                before = self.plans.get(name, Plan()).waiting
                for kind, why in plan.waiting.items():
                    if before.get(kind) != why:
                        log.warning("the rollout of %s, %s: %s", name, kind, why)
            # (First what keeps requests away from a version that is tried.)
            self._server.pinned = pins
            self.plans = plans

    def _tables(self) -> dict[str, Plan]:
        """Return the plans of dispatch.toml files; log what is wrong with one, once."""
        clients = self._registry.clients
        if clients is self._filed[0]:
            return self._filed[1]
        plans, faults = {}, {}
        for name, client in clients.items():
            if not isinstance(client, Family):
                continue
            try:
                if plan := plan_of_file(client.keys, client.toml):
                    plans[name] = plan
            except BadBody as error:
                faults[name] = f"{authors(client.toml)}: {error.message}; {error.hint}"
        for name, fault in faults.items() - self.faults.items():
            log.error("nothing is tried beside %s: %s", name, fault)
        self._filed, self.faults = (clients, plans), faults
        return plans

    def _kept(self) -> dict[str, Plan]:
        """Return what the routes have said."""
        plans = {}
        for file in self._folder.glob(f"*{SUFFIX}"):
            # (One that was damaged by hand is passed over.)
            with suppress(OSError, ValueError, KeyError, TypeError):
                plans[unquote(file.stem)] = read_plan(json.loads(file.read_bytes()))
        return plans

    def _pins(self, said: Mapping[str, Plan], ready: Mapping[str, set[str]]) -> dict[str, str]:
        """Return which version of models on Triton a request gets that names none."""
        tried: dict[str, set[str]] = {}
        for name, plan in said.items():
            for one in plan.variants():
                if one.version:
                    tried.setdefault(self.served(name, one), set()).add(one.version)
        pins = {}
        for model, versions in tried.items():
            if others := ready.get(model, set()) - versions:
                pins[model] = max(others, key=int)
            elif model not in ready and model in self._server.pinned:  # it is loading
                pins[model] = self._server.pinned[model]
        for name, plan in said.items():
            model, version = self.served(name, plan.stable), plan.stable.version
            if version and version in ready.get(model, {version}):
                pins[model] = version
        return pins

    def _in_force(
        self,
        name: str,
        plan: Plan,
        pins: Mapping[str, str],
        ready: Mapping[str, set[str]],
    ) -> Plan:
        """Return a plan with its stable version, and why parts of it are not asked."""
        stable = replace(plan.stable, version=pins.get(self.served(name, plan.stable), ""))
        waiting = {
            one.kind: why
            for one in plan.variants()
            if (why := self._why_not(name, one, pins, ready))
        }
        newest = max(ready.get(self.served(name, stable), ()), key=int, default="0")
        newer = stable.version and int(newest) > int(stable.version)
        if newer and newest not in {one.version for one in plan.variants()}:
            waiting[STABLE] = (
                f"version {newest} is loaded, but requests without a version get {stable.version}: "
                f"DELETE /models/{name}/rollout gives them the latest"
            )
        return replace(plan, stable=stable, waiting=waiting)

    def _why_not(
        self, name: str, one: Variant, pins: Mapping[str, str], ready: Mapping[str, set[str]]
    ) -> str:
        """Return why a variant cannot be asked, and how to mend that; empty where it can."""
        model = self.served(name, one)
        if one.model and (why := self._registry.broken.get(self._registry.name(one.model))):
            return f"the client of {one.model!r} is disabled: {why}"
        there = ready.get(model, set())
        if one.version in there or (there and not one.version):
            if one.model or model in pins:
                return ""
            return f"no other version of {model!r} is ready, to be the stable one: {ALL}{model}"
        states = [s for s in self._status().models if s.name == model and s.why]
        why = next((f" ({s.why})" for s in states if s.version == one.version), "")
        if not one.version:
            return f"the model {one.model!r} is not ready{why}: POST /load_model/{model} loads it"
        return f"version {one.version} of {model!r} is not ready{why}: put it there, {ALL}{model}"

    def served(self, name: str, one: Variant) -> str:
        """Return the model on Triton that a model's variant asks."""
        asked = self._registry.name(one.model or name)
        client = self._registry.clients.get(asked)
        return client.served_by if client else asked

    def document(self, name: str) -> dict[str, Any]:
        """Return what is said of a model, for people."""
        plan = self.plans.get(name, Plan())
        document = {"modelName": name, **plan.as_json(), "waiting": dict(plan.waiting)}
        document["counts"] = self.count(name, plan)
        if fault := self.faults.get(name):
            document["fault"] = fault
        return document


def plan_of_file(keys: Keys, toml: Path) -> Plan | None:
    """Return what a dispatch.toml says; `None` for nothing.

    Raises BadBody: `shadow` or `canary` is wrong.
    """
    tables = {SHADOW: keys.shadow, CANARY: keys.canary}
    given = {kind: table for kind, table in tables.items() if table is not None}
    try:
        since = toml.stat().st_mtime  # the same in all web workers
    except OSError:
        since = 0.0
    return Plan().changed(given, since) if given else None
