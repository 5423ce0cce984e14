"""The management routes: health, and loading and unloading of models."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flask import Blueprint, Response, g, request

from clients.errors import DeadlineExceeded, UnknownModel
from clients.families.base.dispatch_toml import find_original, remedy
from clients.plugins.registry import Registry
from clients.tensors.quoting import brief
from dispatcher.auth.api_keys import MANAGEMENT
from dispatcher.auth.authorization import list_scopes
from dispatcher.codecs.error_responses import error_response
from dispatcher.codecs.json_request import parse_object
from dispatcher.codecs.responses import json_response
from dispatcher.errors import NOT_READY, STUCK, BadBody, BadClient
from dispatcher.execution.slots import Slots
from dispatcher.models.control import ModelControl
from dispatcher.models.listing import ModelListing
from dispatcher.rollout.plan import Plan
from dispatcher.rollout.rollouts import Rollouts
from dispatcher.settings import Settings
from dispatcher.status.status import Readiness
from dispatcher.status.status_file import News

ROLLOUT_EXPECTED = 'expected {"canary": {"version": 2, "share": 0.05}, "shadow": null}'
READ, WRITE = "look", "change"  # the two kinds of routes, as models to their slots
# Answered from memory, whatever the load; a canary must not wait for a load to be sent back.
FROM_MEMORY = {
    *("management.ping", "management.health", "management.execution_parameters"),
    *("management.show_rollout", "management.change_rollout", "management.forget_rollout"),
    *("management.promote_canary", "management.send_canary_back"),
}


def management_routes(  # noqa: C901  small functions that share them
    settings: Settings,
    listing: ModelListing,
    control: ModelControl,
    readiness: Readiness,
    slots: Slots,
    *,
    rollouts: Rollouts,
) -> Blueprint:
    routes = Blueprint("management", __name__)
    limit_concurrency(routes, slots, settings.managing_wait, control.reloader.news)
    add_rollout_routes(routes, rollouts)

    @routes.route("/ping", methods=["GET", "POST"])
    def ping() -> Response:
        """Answer 200 where Triton and all required models are ready, else 503."""
        return ready_or_not(readiness)

    @routes.get("/health")
    def health() -> Response:
        """Show the reasons behind /ping and the state of each model."""
        state = describe_health(readiness, control.reloader.registry, settings.triton_url)
        response = json_response(state)
        response.status_code = 200 if state["ready"] else 503
        return response

    @routes.get("/execution-parameters")
    def execution_parameters() -> Response:
        """Tell how a batch transform job should send its records."""
        return json_response(
            {
                "MaxConcurrentTransforms": settings.workers * settings.threads,
                "BatchStrategy": "SINGLE_RECORD",
                "MaxPayloadInMB": settings.max_payload_mb,
            }
        )

    @routes.get("/models")
    def list_models() -> Response:
        after = request.args.get("next_page_token", "")
        return json_response(listing.page(after, settings.load_timeout, g.record.may_ask))

    @routes.post("/models")
    def load_model() -> Response:
        """Load a model from a folder under a name."""
        name, url = read_load()
        g.record.modelname = name
        control.load(name, url)
        g.record.known = True
        return json_response({"modelName": name, "modelUrl": url})

    @routes.get("/models/<model>")
    def show_model(model: str) -> Response:
        return json_response(loaded(model))

    @routes.delete("/models/<model>")
    def unload_model(model: str) -> Response:
        """Unload a model and free its memory."""
        return json_response({"modelName": change_model(control, model, control.unload)})

    @routes.post("/reload")
    def reload() -> Response:
        """Load new and changed clients."""
        control.loader.refresh()
        report, refused = control.reloader.reload()
        if refused:
            copies = [file for file in map(Path, refused) if find_original(file)]
            raise BadClient(
                "; ".join(refused.values()),
                hint="; ".join(
                    [
                        "nothing was taken up: all clients are kept as they were",
                        *(remedy(file, file.parent.name) for file in copies),
                    ]
                ),
            )
        return json_response(report)

    @routes.post("/load_model/<model>")
    def load_own_model(model: str) -> Response:
        """Load or reload a model of the repository."""
        return json_response(loaded(change_model(control, model, control.load_own)))

    def loaded(model: str) -> dict[str, Any]:
        entry = listing.entry(model, settings.load_timeout)
        if entry is None:
            raise UnknownModel(
                f"the model {model[:100]!r} is not loaded", hint="GET /models lists those that are"
            )
        return entry

    return routes


def change_model(control: ModelControl, model: str, how: Callable[[str], None]) -> str:
    """Load or unload a model; return its name."""
    g.record.modelname = name = control.resolve_name(model)
    how(name)
    g.record.known = True
    return name


def add_rollout_routes(routes: Blueprint, rollouts: Rollouts) -> None:
    """Add the routes that show and change what is tried beside a model."""

    def answer(model: str, how: Callable[[Plan], Plan | None] | None = None) -> Response:
        rollouts.news.follow()
        g.record.modelname = name = rollouts.name(model)
        g.record.known = True
        if how:
            rollouts.change(name, how)
        return json_response(rollouts.document(name))

    @routes.get("/models/<model>/rollout")
    def show_rollout(model: str) -> Response:
        return answer(model)

    @routes.put("/models/<model>/rollout")
    def change_rollout(model: str) -> Response:
        """Change what is tried beside a model, in all web workers."""
        given = parse_object(request.get_data(), hint=ROLLOUT_EXPECTED)
        return answer(model, lambda plan: plan.changed(given, time.time()))

    @routes.delete("/models/<model>/rollout")
    def forget_rollout(model: str) -> Response:
        """Have the model's dispatch.toml count again."""
        return answer(model, lambda _: None)

    @routes.post("/models/<model>/rollout/promote")
    def promote_canary(model: str) -> Response:
        """Make the canary the stable version."""
        return answer(model, lambda plan: plan.promoted(time.time()))

    @routes.post("/models/<model>/rollout/back")
    def send_canary_back(model: str) -> Response:
        """Give the canary no further request."""
        return answer(model, lambda plan: plan.fallen_back(f"sent back by POST {request.path}"))


def ready_or_not(readiness: Readiness) -> Response:
    """Return 200 where Triton and all required models are ready, else 503 with the reasons."""
    if reasons := readiness.reasons():
        code = STUCK if readiness.restart_helps() else NOT_READY
        return error_response(503, code, "; ".join(reasons), "GET /health says more")
    return Response(status=200)


def describe_health(
    readiness: Readiness, registry: Registry, triton_url: str | None
) -> dict[str, Any]:
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
                "probe": readiness.report(state.name),
            }
            for state in status.models
        ],
        "disabled": registry.broken,
    }


def limit_concurrency(routes: Blueprint, slots: Slots, timeout: float, news: News) -> None:
    """Limit the requests that wait for Triton; each meets the clients as they are now.

    A load takes minutes, and Triton may hang. Reading and changing share the slots as two models
    do: neither takes the other's last slots.
    """

    @routes.before_request
    def wait() -> None:
        if request.endpoint in FROM_MEMORY:
            return
        news.follow()
        changes = list_scopes(request.endpoint, request.method) == (MANAGEMENT,)
        kind = WRITE if changes else READ
        try:
            g.slot = slots.enter(kind, time.monotonic() + timeout, g.caller)
        except DeadlineExceeded as error:
            raise DeadlineExceeded(
                f"other requests load, unload or list models; waited {timeout:.0f} s for them",
                hint="try again later; GET /models shows what is LOADING or UNLOADING",
            ) from error

    @routes.teardown_request
    def leave(_: BaseException | None) -> None:
        if slot := g.pop("slot", None):
            slot.release()


def read_load() -> tuple[str, str]:
    expected = 'expected {"model_name": "…", "url": "/absolute/path/of/a/folder"}'
    body = parse_object(request.get_data(), hint=expected)
    for name in ("model_name", "url"):
        if name not in body:
            raise BadBody(f"`{name}` is missing", hint=expected)
        if not isinstance(body[name], str) or not body[name]:
            raise BadBody(f"`{name}` is {brief(body[name])}", hint=expected)
    return body["model_name"], body["url"]
