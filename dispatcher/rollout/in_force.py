"""What is in force, by what was said of each model and by the versions that are ready."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from clients.base import Client
from clients.families.base.dispatch_toml import authors
from clients.families.base.family import Family
from clients.model_files.config_text import read_folder
from clients.model_files.model_folders import find_served, version_folders
from clients.plugins.registry import Registry
from clients.triton.server import ModelState
from dispatcher.errors import BadBody, BadModel
from dispatcher.rollout.plan import CANARY, SHADOW, STABLE, VERSION, Plan, Variant

ALL = "write `version_policy { all { } }` into its config.pbtxt, then POST /load_model/"
UNLOADED = "the model itself is not loaded"


def plans_of_files(clients: Mapping[str, Client]) -> tuple[dict[str, Plan], dict[str, str]]:
    """Return what dispatch.toml files say, by model, and what is wrong with others."""
    plans, faults = {}, {}
    for name, client in clients.items():
        if not isinstance(client, Family):
            continue
        tables = {SHADOW: client.keys.shadow, CANARY: client.keys.canary}
        if given := {kind: table for kind, table in tables.items() if table is not None}:
            try:
                plans[name] = Plan().changed(given, client.toml.stat().st_mtime)
            except (BadBody, OSError) as error:
                faults[name] = f"{authors(client.toml)}: {error}"
                plans[name] = hold_back(given.values())
    return plans, faults


def hold_back(tables: Iterable[Any]) -> Plan:
    """Return a plan that keeps the versions in wrong tables from answering all, as the latest."""
    listed = [one for table in tables for one in (table if isinstance(table, tuple) else [table])]
    found: list[Any] = [one.get("version") for one in listed if isinstance(one, Mapping)]
    versions = sorted({int(one) for one in found if VERSION.fits(one)})
    held = zip((SHADOW, CANARY), versions[-2:], strict=False)
    return Plan().changed({kind: {"version": one, "share": 0} for kind, one in held}, 0.0)


class VersionsInForce:
    """The plans as they can be followed now.

    `pins` are the versions of models on Triton that requests without a version get: of a model with
    a version that is tried the highest other one, or what was made the stable one.
    """

    def __init__(
        self,
        said: Mapping[str, Plan],
        registry: Registry,
        states: Iterable[ModelState],
        before: Mapping[str, str],
    ) -> None:
        self._registry, self._states = registry, list(states)
        self._ready: dict[str, set[str]] = {}
        self._tried: dict[str, set[str]] = {}
        for state in self._states:
            if state.ready:
                self._ready.setdefault(state.name, set()).add(state.version)
        self.pins = self._pins(said, before)
        self.plans = {name: self._plan(name, plan) for name, plan in said.items()}

    def _served(self, asked: str) -> str:
        """Return the model on Triton behind a name or an alias."""
        name = self._registry.name(asked)
        client = self._registry.clients.get(name)
        return client.served_by if client else name

    def refuse_reload(self, model: str) -> None:
        """Raise BadModel where nothing but what is tried would be loaded, and answer everybody."""
        if (expected := self._expected(model)) and expected <= self._tried.get(model, set()):
            which = " and ".join(sorted(expected))
            raise BadModel(
                f"{model!r} is left as it is: only version {which} would be loaded, which is tried",
                hint=f"{ALL}{model}",
            )

    def _expected(self, model: str) -> set[str]:
        """Return the versions that a model will have once it is loaded, by its folder."""
        client = next((c for c in self._registry.clients.values() if c.served_by == model), None)
        if client is None or not client.folder.is_dir():  # it is on another Triton, or in S3
            return set()
        served = find_served(read_folder(client.folder), version_folders(client.folder))
        return {path.name for path in served}

    def _pins(self, said: Mapping[str, Plan], before: Mapping[str, str]) -> dict[str, str]:
        for name, plan in said.items():
            for one in plan.variants():
                self._tried.setdefault(self._served(one.model or name), set()).add(one.version)
        pins = {}
        for model, versions in self._tried.items():
            if versions == {""}:  # another model is tried, in the version that it has anyway
                continue
            if model not in self._ready and model in before:  # it is being loaded again
                pins[model] = before[model]
            elif others := self._ready.get(model, set()) - versions or (
                self._expected(model) - versions  # what is tried does not answer in its place
            ):
                pins[model] = max(others, key=int)
        for name, plan in said.items():
            model, version = self._served(plan.stable.model or name), plan.stable.version
            if version and version in self._ready.get(model, {version}):
                pins[model] = version
        return pins

    def _plan(self, name: str, said: Plan) -> Plan:
        """Return a plan with its stable version, and why parts of it are not asked."""
        model = self._served(said.stable.model or name)
        stable = replace(said.stable, version=self.pins.get(model, ""), of=STABLE)
        waiting = {one.kind: why for one in said.variants() if (why := self._why_not(name, one))}
        newest = max(self._ready.get(model, ()), key=int, default="0")
        newer = stable.version and int(newest) > int(stable.version)
        if newer and newest not in {one.version for one in said.variants()}:
            waiting[STABLE] = (
                f"version {newest} is loaded, but requests without a version get {stable.version}: "
                f"DELETE /models/{name}/rollout gives them the latest"
            )
        return replace(said, stable=stable, waiting=waiting)

    def _why_not(self, name: str, one: Variant) -> str:
        """Return why a variant cannot be asked, and how to mend that; empty where it can."""
        model = self._served(one.model or name)
        if one.model and (why := self._registry.broken.get(self._registry.name(one.model))):
            return f"the client of {one.model!r} is disabled: {why}"
        ready = self._ready.get(model, set())
        if one.version in ready or (ready and not one.version):
            if one.model or model in self.pins:
                return ""
            return f"no other version of {model!r} is ready, to be the stable one: {ALL}{model}"
        which = f"version {one.version} of {model!r}" if one.version else f"the model {model!r}"
        states = {state.version: state.why for state in self._states if state.name == model}
        if said := states.get(one.version):
            again = f"once all its versions can be loaded, POST /load_model/{model}"
            return f"{which} is not ready: {said}; {again}"
        if not (ready or one.model):
            return UNLOADED
        fix = f"put it there, {ALL}{model}" if one.version else f"POST /load_model/{model} loads it"
        return f"{which} is not ready: {fix}"
