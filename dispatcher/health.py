"""Whether the container can do its work."""

from __future__ import annotations

from collections.abc import Iterable

from clients.errors import InferenceError
from clients.model_server import ModelServer

# SageMaker wants an answer within 2 s. Two calls are made.
CALL_S = 0.8


def reasons_unready(server: ModelServer, required: Iterable[str]) -> list[str]:
    """Return why the container is not ready, a sentence each; nothing where it is."""
    if not server.is_ready(timeout=CALL_S):
        return ["Triton is not ready"]
    try:
        states = server.models(timeout=CALL_S)
    except InferenceError as error:
        return [f"Triton does not list its models: {error.message}"]
    ready = {state.name for state in states if state.ready}
    return [
        f"the required model {name!r} is not ready"
        + "".join(f": {state.reason}" for state in states if state.name == name and state.reason)
        for name in required
        if name not in ready
    ]
