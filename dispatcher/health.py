"""Whether the container can do its work."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from clients.errors import InferenceError
from clients.model_server import ModelServer
from dispatcher.canary import Canary

# SageMaker wants an answer within 2 s. Two calls are made.
CALL_S = 0.8


def health(server: ModelServer, required: Iterable[str], canary: Canary) -> dict[str, Any]:
    """Return whether the container is ready, why not, and the state of each model."""
    required = list(required)
    if not server.is_ready(timeout=CALL_S):
        return {"ready": False, "reasons": ["Triton is not ready"], "models": []}
    try:
        states = server.models(timeout=CALL_S)
    except InferenceError as error:
        reason = f"Triton does not list its models: {error.message}"
        return {"ready": False, "reasons": [reason], "models": []}
    ready = {state.name for state in states if state.ready}
    reasons = [
        f"the required model {name!r} is not ready"
        + "".join(f": {state.reason}" for state in states if state.name == name and state.reason)
        for name in required
        if name not in ready
    ] or canary.reasons()
    models = [
        {
            "model": state.name,
            "version": state.version,
            "state": state.state or "NOT LOADED",
            "reason": state.reason,
            "required": state.name in required,
            "canary": canary.report(state.name),
        }
        for state in states
    ]
    return {"ready": not reasons, "reasons": reasons, "models": models}
