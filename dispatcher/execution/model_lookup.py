"""Finds the client of a model; where there is none, says which models there are."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from clients.base import Client
from clients.errors import ClientDisabled, InferenceError, ModelUnavailable, UnknownModel
from clients.families.base.dispatch_toml import FILE, find_original, remedy
from clients.plugins.registry import Registry
from clients.tensors.client import TensorClient
from clients.tensors.quoting import brief
from clients.triton.client import TritonEnvironment
from clients.triton.server import ModelState
from dispatcher.rollout.rollouts import Rollouts
from dispatcher.rollout.shadow import Shadows

STATES_TIMEOUT_S = 2.0  # for Triton's list of models


@dataclass
class ModelLookup:
    """Finds clients by the names of models."""

    registry: Registry
    environment: TritonEnvironment  # what clients are made with; its server runs the models
    refuse_model: Callable[[str], None]  # raises ModelUnavailable for one known not to answer
    # Whether a model is to be loaded, and was not unloaded.
    wanted: Callable[[str], bool] = lambda _: False
    # Loads a model that is available and has no client, until a deadline, or refuses it where there
    # is none; returns whether there is such a model.
    load: Callable[[str, float | None], bool] = lambda _name, _until: False
    follow: Callable[[], None] = lambda: None  # takes up what other web workers have changed
    rollouts: Rollouts | None = None  # what is tried
    shadows: Shadows | None = None  # what notes how that goes

    def refuse(self, asked: str) -> None:
        """Fail at once for a model or alias that is known not to answer.

        Raises ModelUnavailable: Triton is down, or the model is stuck.
        """
        name = self.registry.name(asked)
        client = self.registry.clients.get(name)
        self.refuse_model(client.served_by if client else name)

    def client(self, asked: str, until: float | None = None) -> Client:
        """Return the client of a model that is to be asked, as `find`.

        Raises ModelUnavailable: the model is known not to answer, too.
        """
        self.refuse(asked)
        return self.find(asked, until)

    def find(self, asked: str, until: float | None = None) -> Client:
        """Return the client of a model, or one for plain tensors.

        It is loaded until a deadline, where there is one.

        Raises ClientDisabled: its client could not be loaded.
        Raises ModelUnavailable: it has no client, and Triton does not list its models.
        """
        name = self.registry.name(asked)
        if client := self.registry.clients.get(name):
            return client
        if name in self.registry.broken:
            raise self.disabled(name)
        if self.load(name, until):
            name = self.registry.name(name)  # it may have come with a client
            return self.registry.clients.get(name) or TensorClient(self.environment, name)
        states = self.states()
        served = self.served(states)
        is_listed = name in {state.name for state in states}
        if name in served or (is_listed and self.wanted(name)):  # which failed: Triton says why
            return TensorClient(self.environment, name)
        near = difflib.get_close_matches(name[:100], served, n=len(served) or 1, cutoff=0)
        hint = f"the served models are: {', '.join(near) or 'none'}"
        if (meant := name.replace(" ", "+")) != name and meant in served:
            hint = f'in a query "+" is read as a blank: write {meant.replace("+", "%2B")!r}'
        if is_listed:
            hint = f"POST /load_model/{name} loads it, or says why that fails; {hint}"
            raise UnknownModel(f"the model {brief(name)} is not loaded", hint=hint)
        raise UnknownModel(f"there is no model {brief(name)}", hint=hint)

    def disabled(self, name: str) -> ClientDisabled:
        """Return the error for a model whose client is broken."""
        file = Path(self.registry.source(name))
        hint = remedy(file, name)
        with suppress(InferenceError):
            states = [state.state for state in self.states() if state.name == name]
            is_own = file.name == FILE and not find_original(file)
            if is_own and states and "READY" not in states:  # POST /reload skips it
                hint = f"mend it, then POST /load_model/{name}"
        return ClientDisabled(
            f"the client of {brief(name)} is disabled: {self.registry.broken.get(name)}", hint=hint
        )

    def states(self) -> list[ModelState]:
        """Return the state of each version of each model, as Triton lists them."""
        try:
            return self.environment.server.models(timeout=STATES_TIMEOUT_S)
        except InferenceError as error:
            raise ModelUnavailable(
                f"Triton does not list its models: {error.message}",
                hint="try again after Retry-After seconds",
            ) from error

    def served(self, states: Iterable[ModelState]) -> list[str]:
        """Return the names of ready models, their clients and aliases."""
        clients = self.registry.clients
        ready = {state.name for state in states if state.ready}
        named = {name for name, client in clients.items() if client.served_by in ready}
        aliases = {alias for alias, name in self.registry.aliases.items() if name in named}
        return sorted(named | aliases | (ready - clients.keys()))

    def is_served(self, asked: str) -> bool:
        """Check whether a model of this name or alias can be asked."""
        self.follow()
        try:
            return asked in self.served(self.states())
        except ModelUnavailable:
            # Triton lists no models while it loads one, but answers requests to the others.
            if self.registry.name(asked) in self.registry.clients:
                return True
            raise
