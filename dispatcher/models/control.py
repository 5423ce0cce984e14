"""Loads and unloads models together with the clients that their folders describe."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from clients.errors import UnknownModel
from clients.families.base.dispatch_toml import FILE as CLIENT_FILE
from clients.families.base.dispatch_toml import aliases
from clients.tensors.quoting import brief
from dispatcher.errors import AlreadyLoaded, BadClient, BadModel
from dispatcher.models.load_unload import ModelLoader
from dispatcher.models.reload import Reloader
from dispatcher.models.repository import no_such_folder
from dispatcher.s3.remote_models import RemoteModels


@dataclass
class ModelControl:
    """Loads and unloads models and their clients."""

    loader: ModelLoader
    reloader: Reloader
    remote: Sequence[RemoteModels] = ()
    # Raises BadModel where a loaded model would be left with versions alone that are only tried
    refuse_reload: Callable[[str], None] = lambda _: None

    def resolve_name(self, asked: str) -> str:
        """Return the model to be loaded or unloaded, by its name or alias.

        Includes models that were added after the start, on disk or in S3.

        Raises UnknownModel: it is the name of a class whose model has another name.
        Raises InferenceError: S3 does not list its models.
        """
        registry = self.reloader.registry
        name = registry.name(asked)
        found, client = self.available_name(name), registry.clients.get(name)
        if self.remote and not (found or client or self.loader.states(name)):
            for store in self.remote:
                store.refresh(time.monotonic() + self.loader.timeout)
            if not (found := self.available_name(name)):
                raise no_such_folder(asked, self.available())
        if client and not found and client.served_by != name:
            raise UnknownModel(
                f"{brief(asked)} is the name of a class, not of a model",
                hint=f"its model is {client.served_by!r}: load or unload that one",
            )
        return found or name  # it may be from elsewhere, or have failed to load

    def available_name(self, asked: str) -> str:
        """Return the model on disk or in S3 with this name or alias; empty where there is none."""
        there = self.available()
        if asked in there:
            return asked
        return next((name for name, folder in there.items() if asked in aliases(folder)), "")

    def available(self) -> dict[str, Path]:
        """Return all models that can be loaded by name, and their folders."""
        there = {name: path for one in self.remote for name, path in one.names().items()}
        return there | self.loader.own_folders()

    def fetch(self, name: str, until: float, *, newest: bool) -> None:
        """Fetch a model from S3, where it comes from there; its newest version, or any.

        Raises InferenceError: S3 does not give it, or there is no room for it.
        """
        folder = self.loader.folders().get(name)
        for store in self.remote:
            is_its = folder is None or folder.parent == store.folder
            if is_its and name in store.names():
                if newest or not store.is_fetched(name):
                    store.fetch(name, until)
                return

    def load(self, name: str, url: str) -> None:
        """Load a model from elsewhere and its client, which has no aliases."""
        if self.loader.elsewhere:
            raise BadModel(
                "Triton is elsewhere, and reads no folder of this machine",
                hint="put the model into Triton's own repository, then POST /load_model/NAME",
            )
        registry = self.reloader.registry
        # Names and aliases of those that failed to load, or were unloaded late, are free again.
        for lost in {registry.name(name), *self.loader.unwanted()}:
            self.loader.was_lost(lost)
            self.forget_client(lost)
        if (owner := registry.name(name)) != name:
            raise AlreadyLoaded(
                f"{name!r} is an alias of the model {owner!r}", hint="choose another name"
            )
        try:
            self.loader.load(name, url, lambda: self.load_client_of(name))
        finally:
            self.forget_client(name)

    def load_own(self, name: str) -> None:
        """Load a model of the repository and its client; from S3 its newest version.

        Raises BadClient: the client does not fit the model, which is left as it was, loaded or not.
        """
        self.fetch(name, time.monotonic() + self.loader.timeout, newest=True)
        self.load_fetched(name)

    def load_fetched(self, name: str) -> None:
        """Load a model of the repository and its client, as they are on disk."""
        if was_loaded := self.loader.is_loaded(name):
            self.refuse_reload(name)
        self.loader.load_own(name)
        if reason := self.load_client_of(name):
            if not was_loaded:
                self.loader.unload(name)
            raise BadClient(reason, hint=f"mend it, then POST /load_model/{name} again")

    def unload(self, name: str) -> None:
        """Unload a model; where its folder is removed, remove its client too."""
        self.loader.unload(name)
        self.forget_client(name)

    def forget_client(self, name: str) -> None:
        """Remove the client of a model whose folder is gone."""
        self.reloader.forget_model(self.loader.repository / name / CLIENT_FILE)

    def load_client_of(self, name: str) -> str:
        """Load the client that a loaded model's folder describes; return why that failed."""
        file = self.loader.repository / name / CLIENT_FILE
        return self.reloader.load_model(file) if file.is_file() else ""
