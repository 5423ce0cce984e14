"""The descriptions of loaded models, for `GET /models`."""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clients.base import Client
from clients.errors import InferenceError
from clients.families.base.dispatch_toml import aliases, authors
from clients.model_files.model_folders import authors_folder
from clients.parameters import Parameter
from clients.plugins.registry import Registry
from clients.tensors.client import examples_of
from clients.triton.server import ModelServer, ModelState
from dispatcher.locks import read_json
from dispatcher.models.repository import URL_FILE
from dispatcher.rollout.rollouts import Rollouts
from dispatcher.s3.model_cache import RECORD

PAGE_SIZE = 100  # models in one response
WEIGHTS_RECORD = "model.onnx.source.json"  # written by the weights tool
LISTED_STATES = frozenset({"READY", "LOADING", "UNLOADING"})
ENGINE_FIELDS = ("engine", "precision", "speedup", "difference", "engine_reason")


@dataclass
class ModelListing:
    """Lists the loaded models."""

    registry: Registry
    server: ModelServer
    repository: Path
    engines: Path | None = None  # the folder in which backends note which engine runs a model
    url: str = ""  # of a Triton elsewhere
    available: Callable[[], Mapping[str, Path]] = dict  # the models that can be loaded
    rollouts: Rollouts | None = None  # what is tried beside models

    def page(
        self, after: str, timeout: float, only: Container[str] | None = None
    ) -> dict[str, Any]:
        """Return a page of models whose names follow `after`, and all that are not loaded."""
        states = self.states(timeout)
        entries = [entry for entry in self.entries(timeout, states) if entry["modelName"] > after]
        entries = [entry for entry in entries if only is None or entry["modelName"] in only]
        page: dict[str, Any] = {
            "models": entries[:PAGE_SIZE],
            "available": [
                {
                    "modelName": name,
                    "modelUrl": model_url(folder),
                    "aliases": list(aliases(folder)),
                }
                for name, folder in sorted(self.available().items())
                if name not in states and (only is None or name in only)
            ],
            "disabled": self.registry.broken if only is None else {},
        }
        if len(entries) > PAGE_SIZE:
            page["nextPageToken"] = page["models"][-1]["modelName"]
        return page

    def entry(self, name: str, timeout: float) -> dict[str, Any] | None:
        """Return one model; `None` where it is not loaded."""
        name = self.registry.name(name)
        entries = self.entries(timeout, self.states(timeout))
        return next((entry for entry in entries if entry["modelName"] == name), None)

    def states(self, timeout: float) -> dict[str, list[ModelState]]:
        """Return the states of the loaded models' versions."""
        states: dict[str, list[ModelState]] = {}
        for state in self.server.models(timeout=timeout):
            if state.state in LISTED_STATES:
                states.setdefault(state.name, []).append(state)
        return states

    def entries(
        self, timeout: float, states: Mapping[str, list[ModelState]]
    ) -> Iterator[dict[str, Any]]:
        """Yield the loaded models, by the names of their clients."""
        named: list[tuple[str, str, Client | None]] = []
        for model in states:
            clients = [c for c in self.registry.clients.values() if c.served_by == model]
            named += [(client.modelname, model, client) for client in clients]
            if model not in self.registry.clients:
                named.append((model, model, None))
        for name, model, client in sorted(named, key=lambda one: one[:2]):
            examples = list(examples_of(client)) if client else []
            source = self.registry.source(name)
            latest = max(states[model], key=lambda state: int(state.version or 0))
            yield {
                "modelName": name,
                "served_by": model,
                "modelUrl": self.url or model_url(self.repository / model),
                "version": latest.version,
                "state": latest.state,
                "client": client and f"{type(client).__name__} in {authors(source)}",
                "weights": weights(self.repository / model),
                "parameters": {k: schema(v) for k, v in client.parameters.items()}
                if client
                else {},
                "media": dict(client.media) if client else {},
                "example": next(iter(examples), None),
                "examples": examples,
                "aliases": list(client.aliases) if client else [],
                "batching": self.batching(model, timeout),
                "rollout": self.rollout(name),
                **(self.engine(model, latest.version) if latest.ready else {}),
            }

    def rollout(self, name: str) -> dict[str, Any] | None:
        """Return what is tried beside a model, and how it goes; `None` where nothing is."""
        rollouts = self.rollouts
        tried = rollouts and (name in rollouts.plans or name in rollouts.faults)
        return rollouts.document(name) if rollouts and tried else None

    def batching(self, model: str, timeout: float) -> dict[str, Any] | None:
        """Return how a model batches; `None` where Triton does not say."""
        try:
            signature = self.server.signature(model, timeout=timeout)
        except InferenceError:
            return None
        return {
            "max_batch_size": signature.max_batch_size,
            "requests_share_runs": signature.shares_runs,
        }

    def engine(self, model: str, version: str) -> dict[str, Any]:
        """Return the engine of a model's version, as its backend noted.

        Empty for models in other backends, such as those of NVIDIA's image.
        """
        noted = self.engines and read_json(self.engines / f"{model}.{version}.json")
        return {key: noted[key] for key in ENGINE_FIELDS if key in noted} if noted else {}


def model_url(folder: Path) -> str:
    """Return the URL that a model was loaded from, its place in S3, or its own folder."""
    try:
        return (folder / URL_FILE).read_bytes().decode()  # as text its line ends would change
    except OSError:
        own = authors_folder(folder)
    return str((read_json(own / RECORD) or {}).get("source", own))


def weights(folder: Path) -> str:
    record = read_json(folder / WEIGHTS_RECORD) or {}
    known = {"weights", "licence"} <= record.keys()
    return f"{record['weights']} ({record['licence']})" if known else "your own"


def schema(parameter: Parameter) -> dict[str, Any]:
    """Describe a parameter; `minimum` and `maximum` are absent where there is no limit."""
    entry: dict[str, Any] = {
        "default": parameter.default,
        "expected": parameter.expected,
        "meaning": parameter.meaning,
    }
    if parameter.choices:
        return {**entry, "type": "string", "enum": list(parameter.choices)}
    entry["type"] = "integer" if isinstance(parameter.default, int) else "number"
    limits = {"minimum": parameter.low, "maximum": parameter.high}
    return entry | {name: limit for name, limit in limits.items() if math.isfinite(limit)}
