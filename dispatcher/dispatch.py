"""Hands each ask to its model's client, and says which models there are when there is none."""

from __future__ import annotations

import difflib
import time
from typing import Any

from clients.base import Client, Request
from clients.errors import InferenceError, TooLargeAtOnce, UnknownModel
from clients.model_server import ModelServer
from clients.registry import Registry
from dispatcher.ask import Ask
from dispatcher.errors import ClientDisabled

LOOKUP_S = 2.0  # what an error may spend on finding out which models are served


class Dispatcher:
    """Answers asks with the clients of `registry`, whose models run on `server`.

    Args:
        registry: the clients.
        server: where the models run.
        timeout: seconds that one ask may take.

    """

    def __init__(self, registry: Registry, server: ModelServer, timeout: float) -> None:
        self.registry = registry
        self.server = server
        self.timeout = timeout

    def result(self, ask: Ask) -> Any:
        """Return the result for an ask; a list of results where it has a list of payloads.

        Raises:
            InferenceError: one of its subclasses.

        """
        client = self.client(ask.modelname)
        request = Request(
            parameters=client.read_parameters(ask.parameters),
            version=ask.modelversion,
            deadline=time.monotonic() + self.timeout,
        )
        with request.active():
            return batches(client, ask) if ask.is_list else client.inference(ask.payloads[0])

    def client(self, modelname: str) -> Client:
        """Return the client of a model.

        Raises:
            UnknownModel: there is none; the hint lists what is served, the nearest name first.
            ClientDisabled: there is one that could not be loaded.

        """
        if modelname in self.registry.clients:
            return self.registry.clients[modelname]
        if modelname in self.registry.broken:
            raise ClientDisabled(
                f"the client of {modelname!r} is disabled: {self.registry.broken[modelname]}",
                hint="mend the class and restart the container",
            )
        near = difflib.get_close_matches(modelname, self.served(), n=len(self.served()), cutoff=0)
        raise UnknownModel(
            f"there is no model {modelname[:100]!r}",
            hint=f"served are: {', '.join(near) or 'none'}",
        )

    def served(self) -> list[str]:
        """Return the names of the clients whose models are ready; of all where Triton is silent."""
        try:
            ready = {state.name for state in self.server.models(timeout=LOOKUP_S) if state.ready}
        except InferenceError:
            return sorted(self.registry.clients)
        return sorted(
            name for name, client in self.registry.clients.items() if client.triton_model() in ready
        )


def batches(client: Client, ask: Ask) -> list[Any]:
    """Return the results for many payloads, a batch of the model at a time.

    No more than one batch of pictures is decoded at once. Where the model has no room for a batch,
    it and those after it are halved.
    """
    results: list[Any] = []
    size = client.max_batch_size
    while (start := len(results)) < len(ask.payloads):
        batch = ask.payloads[start : start + size]
        try:
            results += client.inference_batch(batch)
        except TooLargeAtOnce as error:
            if len(batch) == 1:
                error.message = f"payload[{start}]: {error.message}"
                raise
            size = (len(batch) + 1) // 2
        except InferenceError as error:
            if error.position is not None:
                error.message = f"payload[{start + error.position}]: {error.message}"
            raise
    return results
