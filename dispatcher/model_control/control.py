"""Loads and unloads models together with the clients that their folders describe."""

from __future__ import annotations

import logging
from contextlib import suppress

from clients.errors import UnknownModel
from clients.plugins.dispatch_toml import FILE as CLIENT_FILE
from clients.tensors.quoting import brief
from dispatcher.errors import AlreadyLoaded, BadClient, BadModel
from dispatcher.model_control.load_unload import ModelLoader
from dispatcher.model_control.reload import Reloader

log = logging.getLogger(__name__)


class ModelControl:
    """Loads and unloads models and their clients.

    Args:
        loader: loads and unloads models.
        reloader: loads clients, in all web workers.

    """

    def __init__(self, loader: ModelLoader, reloader: Reloader) -> None:
        self.loader = loader
        self.reloader = reloader

    def resolve_name(self, asked: str) -> str:
        """Return the model to be loaded or unloaded, by its name or alias.

        Raises:
            UnknownModel: it is the name of a class whose model has another name.

        """
        registry = self.reloader.registry
        name = registry.name(asked)
        with suppress(UnknownModel):  # it may be from elsewhere, or have failed to load
            return self.loader.own_name(name)
        client = registry.clients.get(name)
        if client and client.served_by != name:
            raise UnknownModel(
                f"{brief(asked)} is the name of a class, not of a model",
                hint=f"its model is {client.served_by!r}: load or unload that one",
            )
        return name

    def load(self, name: str, url: str, *, with_aliases: bool) -> None:
        """Load a model from elsewhere and its client.

        Raises:
            AlreadyLoaded: there is a model of this name or alias.
            BadModel: the model or its client does not load; nothing of the model is left.

        """
        if self.loader.elsewhere:
            raise BadModel(
                "Triton is elsewhere, and reads no folder of this machine",
                hint="put the model into Triton's own repository, then POST /load_model/NAME",
            )
        registry = self.reloader.registry
        self.forget_lost_models(registry.name(name))
        if (owner := registry.name(name)) != name:
            raise AlreadyLoaded(
                f"{name!r} is an alias of the model {owner!r}", hint="choose another name"
            )

        def may_have(alias: str) -> bool:
            """Check whether an alias is free: another model keeps its own."""
            taken = {name, *registry.clients, *registry.aliases, *self.loader.aliases()}
            is_free = alias not in taken and not (self.loader.repository / alias).exists()
            if with_aliases and not is_free:
                log.warning(
                    "the model %s is loaded without its alias %s, which is taken", name, alias
                )
            return with_aliases and is_free

        try:
            self.loader.load(name, url, lambda: self.load_client_of(name), may_have)
        finally:
            self.forget_client(name)

    def load_own(self, name: str) -> None:
        """Load a model of the repository and its client.

        Raises:
            BadClient: the client does not fit the model, which is left as it was, loaded or not.

        """
        was_loaded = self.loader.is_loaded(name)
        self.loader.load_own(name)
        if reason := self.load_client_of(name):
            if not was_loaded:
                self.loader.unload(name)
            raise BadClient(reason, hint=f"mend it, then POST /load_model/{name} again")

    def unload(self, name: str) -> None:
        """Unload a model; where its folder is removed, remove its client too."""
        self.loader.unload(name)
        self.forget_client(name)

    def forget_lost_models(self, name: str) -> None:
        """Remove the clients of models that failed to load or were unloaded late.

        Their names and aliases are free again.
        """
        for lost in {name, *self.loader.unwanted()}:
            self.loader.was_lost(lost)
            self.forget_client(lost)

    def forget_client(self, name: str) -> None:
        """Remove the client of a model whose folder is gone."""
        file = self.loader.repository / name / CLIENT_FILE
        if str(file) in self.reloader.registry.loaded and not file.is_file():
            self.reloader.reload(only=file)

    def load_client_of(self, name: str) -> str:
        """Load the client that a loaded model's folder describes; return why that failed."""
        file = self.loader.repository / name / CLIENT_FILE
        if not file.is_file():
            return ""
        report = self.reloader.reload(only=file)
        return (report.refused | report.broken).get(str(file), "")
