"""The management routes: health, and loading and unloading of models."""

from __future__ import annotations

import json
import logging
import time
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from flask import Blueprint, Response, g, request

from clients.errors import DeadlineExceeded, UnknownModel
from clients.plugins.dispatch_toml import FILE as CLIENT_FILE
from clients.plugins.dispatch_toml import authors, copied, remedy
from clients.tensors.shown import brief
from dispatcher.codecs.error_responses import error_response
from dispatcher.codecs.responses import json_response
from dispatcher.errors import NOT_READY, STUCK, AlreadyLoaded, BadBody, BadClient
from dispatcher.execution.slots import Caller, Slots
from dispatcher.model_control.listing import ModelListing
from dispatcher.model_control.load_unload import ModelLoader
from dispatcher.model_control.reload import Reloader
from dispatcher.readiness.prober import Canary
from dispatcher.routes.health import health as state_of
from dispatcher.settings import Settings

log = logging.getLogger(__name__)

READ, WRITE = "look", "change"  # the two kinds of routes, as models to their slots
# Answered from memory, whatever the load.
FROM_MEMORY = {"management.ping", "management.health", "management.execution_parameters"}


def management_routes(  # noqa: C901, PLR0913, PLR0917  small functions that share them
    settings: Settings,
    listing: ModelListing,
    model_loader: ModelLoader,
    canary: Canary,
    reloader: Reloader,
    slots: Slots,
) -> Blueprint:
    """Return the management routes."""
    routes = Blueprint("management", __name__)
    limit_concurrency(routes, slots, settings.managing_wait)

    @routes.route("/ping", methods=["GET", "POST"])
    def ping() -> Response:
        """Answer 200 where Triton and all required models are ready, else 503."""
        if reasons := canary.reasons():
            code = STUCK if canary.mendable() else NOT_READY
            return error_response(503, code, "; ".join(reasons), "GET /health says more")
        return Response(status=200)

    @routes.get("/health")
    def health() -> Response:
        """Show the reasons behind /ping and the state of each model."""
        state = state_of(canary)
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
        """List the loaded models."""
        return json_response(
            listing.page(request.args.get("next_page_token", ""), settings.load_timeout)
        )

    @routes.post("/models")
    def load_model() -> Response:
        """Load a model from a folder under a name."""
        name, url = read_load()
        g.record.modelname = name
        load(model_loader, reloader, name, url, with_aliases=not settings.multi_model)
        g.record.known = True
        return json_response({"modelName": name, "modelUrl": url})

    @routes.get("/models/<model>")
    def show_model(model: str) -> Response:
        """Describe a loaded model."""
        return json_response(loaded(model))

    @routes.delete("/models/<model>")
    def unload_model(model: str) -> Response:
        """Unload a model and free its memory."""
        name = resolve_name(model_loader, reloader, model)
        g.record.modelname = name
        unload(model_loader, reloader, name)
        g.record.known = True
        return json_response({"modelName": name})

    @routes.post("/reload")
    def reload() -> Response:
        """Load new and changed clients."""
        model_loader.refresh()
        report = reloader.reload()
        if report.refused:
            copies = [file for file in map(Path, report.refused) if copied(file)]
            raise BadClient(
                "; ".join(report.refused.values()),
                hint="; ".join(
                    [
                        "what there was before is kept",
                        f"taken up were: {', '.join(report.taken) or 'none'}",
                        *(remedy(file, file.parent.name) for file in copies),
                    ]
                ),
            )
        said = asdict(report)
        del said["refused"]
        said["broken"] = {str(authors(where)): why for where, why in report.broken.items()}
        return json_response(said)

    @routes.post("/load_model/<model>")
    def load_own_model(model: str) -> Response:
        """Load or reload a model of the repository."""
        name = resolve_name(model_loader, reloader, model)
        g.record.modelname = name
        load_own(model_loader, reloader, name)
        g.record.known = True
        return json_response(loaded(name))

    def loaded(model: str) -> dict[str, Any]:
        entry = listing.entry(model, settings.load_timeout)
        if entry is None:
            raise UnknownModel(
                f"the model {model[:100]!r} is not loaded", hint="GET /models lists those that are"
            )
        return entry

    return routes


def resolve_name(model_loader: ModelLoader, reloader: Reloader, asked: str) -> str:
    """Return the model to be loaded or unloaded, by its name or alias.

    Raises:
        UnknownModel: it is the name of a class whose model has another name.

    """
    registry = reloader.registry
    name = registry.name(asked)
    with suppress(UnknownModel):  # it may be from elsewhere, or have failed to load
        return model_loader.own_name(name)
    client = registry.clients.get(name)
    if client and client.served_by != name:
        raise UnknownModel(
            f"{brief(asked)} is the name of a class, not of a model",
            hint=f"its model is {client.served_by!r}: load or unload that one",
        )
    return name


def load(
    model_loader: ModelLoader,
    reloader: Reloader,
    name: str,
    url: str,
    *,
    with_aliases: bool,
) -> None:
    """Load a model from elsewhere and its client.

    Raises:
        AlreadyLoaded: there is a model of this name or alias.
        BadModel: the model or its client does not load; nothing of the model is left.

    """
    registry = reloader.registry
    forget_lost_models(model_loader, reloader, registry.name(name))
    if (owner := registry.name(name)) != name:
        raise AlreadyLoaded(
            f"{name!r} is an alias of the model {owner!r}", hint="choose another name"
        )

    def may_have(alias: str) -> bool:
        """Check whether an alias is free: another model keeps its own."""
        taken = {name, *registry.clients, *registry.aliases, *model_loader.aliases()}
        is_free = alias not in taken and not (model_loader.repository / alias).exists()
        if with_aliases and not is_free:
            log.warning("the model %s is loaded without its alias %s, which is taken", name, alias)
        return with_aliases and is_free

    try:
        model_loader.load(name, url, lambda: load_client_of(model_loader, reloader, name), may_have)
    finally:
        forget_client(model_loader, reloader, name)


def load_own(model_loader: ModelLoader, reloader: Reloader, name: str) -> None:
    """Load a model of the repository and its client.

    Raises:
        BadClient: the client does not fit the model, which is left as it was, loaded or not.

    """
    was_loaded = model_loader.is_loaded(name)
    model_loader.load_own(name)
    if reason := load_client_of(model_loader, reloader, name):
        if not was_loaded:
            model_loader.unload(name)
        raise BadClient(reason, hint=f"mend it, then POST /load_model/{name} again")


def unload(model_loader: ModelLoader, reloader: Reloader, name: str) -> None:
    """Unload a model; where its folder is removed, remove its client too."""
    model_loader.unload(name)
    forget_client(model_loader, reloader, name)


def forget_lost_models(model_loader: ModelLoader, reloader: Reloader, name: str) -> None:
    """Remove the clients of models that failed to load or were unloaded late.

    Their names and aliases are free again.
    """
    for lost in {name, *model_loader.unwanted()}:
        model_loader.was_lost(lost)
        forget_client(model_loader, reloader, lost)


def forget_client(model_loader: ModelLoader, reloader: Reloader, name: str) -> None:
    """Remove the client of a model whose folder is gone."""
    file = model_loader.repository / name / CLIENT_FILE
    if str(file) in reloader.registry.loaded and not file.is_file():
        reloader.reload(only=file)


def load_client_of(model_loader: ModelLoader, reloader: Reloader, name: str) -> str:
    """Load the client that a loaded model's folder describes; return why that failed."""
    file = model_loader.repository / name / CLIENT_FILE
    if not file.is_file():
        return ""
    report = reloader.reload(only=file)
    return (report.refused | report.broken).get(str(file), "")


def limit_concurrency(routes: Blueprint, slots: Slots, timeout: float) -> None:
    """Limit the requests that wait for Triton.

    A load takes minutes, and Triton may hang. Reading and changing share the slots as two models
    do: neither takes the other's last slots.
    """

    @routes.before_request
    def wait() -> None:
        if request.endpoint in FROM_MEMORY:
            return
        caller = Caller(request.environ.get("gunicorn.socket"))
        kind = READ if request.method in {"GET", "HEAD", "OPTIONS"} else WRITE
        try:
            g.slot = slots.enter(kind, time.monotonic() + timeout, caller)
        except DeadlineExceeded as error:
            raise DeadlineExceeded(
                f"others load, unload or list models, and did not end within {timeout:.0f} s",
                hint="try again later; GET /models shows what is LOADING or UNLOADING",
            ) from error

    @routes.teardown_request
    def leave(_: BaseException | None) -> None:
        if slot := g.pop("slot", None):
            slot.release()


def read_load() -> tuple[str, str]:
    """Read name and folder from the body of `POST /models`.

    Raises:
        BadBody: it does not have the form that the platform sends.

    """
    expected = 'expected {"model_name": "…", "url": "/absolute/path/of/a/folder"}'
    try:
        body = json.loads(request.get_data())
    except (ValueError, RecursionError) as error:
        raise BadBody(f"the body is not JSON ({error})", hint=expected) from error
    if not isinstance(body, dict):
        raise BadBody(f"the body is {brief(body)}", hint=expected)
    for name in ("model_name", "url"):
        if not isinstance(body.get(name), str) or not body[name]:
            raise BadBody(f"`{name}` is {brief(body.get(name))}", hint=expected)
    return body["model_name"], body["url"]
