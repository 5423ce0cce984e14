"""Whether the container can do its work, as JSON, from memory."""

from __future__ import annotations

from typing import Any

from clients.plugins.registry import Registry
from dispatcher.status.status import Readiness


def health(readiness: Readiness, registry: Registry, triton_url: str | None) -> dict[str, Any]:
    """Return whether the container is ready, why not, and the states of its parts."""
    reasons, status, supervisor = readiness.reasons(), readiness.prober(), readiness.supervisor()
    restarts = supervisor.restarts()
    return {
        "ready": not reasons,
        "reasons": reasons,
        "triton": triton_url or "in this container",
        "programs": {
            name: {"state": one["state"], "restarts": restarts[name]}
            for name, one in supervisor.programs.items()
        },
        "models": [
            {
                "model": state.name,
                "version": state.version,
                "state": state.state or "NOT LOADED",
                "reason": state.why,
                "required": state.name in status.required,
                "canary": readiness.report(state.name),
            }
            for state in status.models
        ],
        "disabled": registry.broken,
    }
