"""The state of the container as JSON, from memory."""

from __future__ import annotations

from typing import Any

from dispatcher.readiness.prober import Canary


def health(canary: Canary) -> dict[str, Any]:
    """Return whether the container is ready, the reasons, and the state of its parts."""
    reasons, notice = canary.reasons(), canary.notice()
    restarts = notice.restarts()
    required = {canary.model(name) for name in canary.required}
    return {
        "ready": not reasons,
        "reasons": reasons,
        "programs": {
            name: {"state": one["state"], "restarts": restarts[name]}
            for name, one in notice.programs.items()
        },
        "models": [
            {
                "model": state.name,
                "version": state.version,
                "state": state.state or "NOT LOADED",
                "reason": state.why,
                "required": state.name in required,
                "canary": canary.report(state.name),
            }
            for state in canary.states()
        ],
        "disabled": canary.registry.broken,
    }
