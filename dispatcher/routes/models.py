"""The routes that say how the container is, and that load and unload models."""

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
from dispatcher.codecs.responses import json_answer
from dispatcher.errors import NOT_READY, STUCK, AlreadyLoaded, BadBody, BadClient
from dispatcher.errors import answer as error_answer
from dispatcher.execution.admission import Caller, Turns
from dispatcher.model_control.listing import Catalogue
from dispatcher.model_control.load_unload import Hosting
from dispatcher.model_control.reload import Reloader
from dispatcher.readiness.status import Readiness
from dispatcher.routes.health import health as state_of
from dispatcher.settings import Settings

log = logging.getLogger(__name__)

LOOK, CHANGE = "look", "change"  # the two kinds of routes, as their turns know them
# Answered from memory, however much is going on.
AT_ONCE = {"management.ping", "management.health", "management.execution_parameters"}


def management_routes(  # noqa: C901, PLR0913, PLR0917  small functions that share them
    settings: Settings,
    catalogue: Catalogue,
    hosting: Hosting,
    readiness: Readiness,
    reloader: Reloader,
    turns: Turns,
) -> Blueprint:
    """Return the routes of the platform and of operators."""
    routes = Blueprint("management", __name__)
    in_turn(routes, turns, settings.managing_wait)

    @routes.route("/ping", methods=["GET", "POST"])
    def ping() -> Response:
        """Say 200 when Triton and every required model are ready, else 503 and why."""
        if reasons := readiness.reasons():
            code = STUCK if readiness.restart_helps() else NOT_READY
            return error_answer(503, code, "; ".join(reasons), "GET /health says more")
        return Response(status=200)

    @routes.get("/health")
    def health() -> Response:
        """Say in JSON what /ping says in one code, and the state of each model."""
        state = state_of(readiness, reloader.registry)
        response = json_answer(state)
        response.status_code = 200 if state["ready"] else 503
        return response

    @routes.get("/execution-parameters")
    def execution_parameters() -> Response:
        """Say how a batch transform job should send its records."""
        return json_answer(
            {
                "MaxConcurrentTransforms": settings.workers * settings.threads,
                "BatchStrategy": "SINGLE_RECORD",
                "MaxPayloadInMB": settings.max_payload_mb,
            }
        )

    @routes.get("/models")
    def list_models() -> Response:
        """List the models that are loaded."""
        return json_answer(
            catalogue.page(request.args.get("next_page_token", ""), settings.load_timeout)
        )

    @routes.post("/models")
    def load_model() -> Response:
        """Load the model in a folder under a name."""
        name, url = read_load()
        g.record.modelname = name
        load(hosting, reloader, name, url, with_aliases=not settings.multi_model)
        g.record.known = True
        return json_answer({"modelName": name, "modelUrl": url})

    @routes.get("/models/<model>")
    def show_model(model: str) -> Response:
        """Show one model that is loaded."""
        return json_answer(loaded(model))

    @routes.delete("/models/<model>")
    def unload_model(model: str) -> Response:
        """Unload a model and give its memory back."""
        name = named(hosting, reloader, model)
        g.record.modelname = name
        unload(hosting, reloader, name)
        g.record.known = True
        return json_answer({"modelName": name})

    @routes.post("/reload")
    def reload() -> Response:
        """Take up clients that are new or have changed."""
        hosting.refresh()
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
        return json_answer(said)

    @routes.post("/load_model/<model>")
    def load_own_model(model: str) -> Response:
        """Load a model of the repository, or load it anew."""
        name = named(hosting, reloader, model)
        g.record.modelname = name
        load_own(hosting, reloader, name)
        g.record.known = True
        return json_answer(loaded(name))

    def loaded(model: str) -> dict[str, Any]:
        entry = catalogue.entry(model, settings.load_timeout)
        if entry is None:
            raise UnknownModel(
                f"the model {model[:100]!r} is not loaded", hint="GET /models lists those that are"
            )
        return entry

    return routes


def named(hosting: Hosting, reloader: Reloader, asked: str) -> str:
    """Return the name of the model that is to be loaded, or unloaded, for it or for an alias.

    Raises:
        UnknownModel: it is the name of a class that asks a model of another name.

    """
    registry = reloader.registry
    name = registry.name(asked)
    with suppress(UnknownModel):  # it may be from elsewhere, or be lost
        return hosting.own_name(name)
    client = registry.clients.get(name)
    if client and client.served_by != name:
        raise UnknownModel(
            f"{brief(asked)} is the name of a class, not of a model",
            hint=f"its model is {client.served_by!r}: load or unload that one",
        )
    return name


def load(
    hosting: Hosting,
    reloader: Reloader,
    name: str,
    url: str,
    *,
    with_aliases: bool,
) -> None:
    """Load a model, and take up what its folder says of its client.

    Raises:
        AlreadyLoaded: the name is another one's alias, or there is a model of this name.
        BadModel: one or the other cannot be done; nothing of the model is left.

    """
    registry = reloader.registry
    forget_lost(hosting, reloader, registry.name(name))
    if (owner := registry.name(name)) != name:
        raise AlreadyLoaded(
            f"{name!r} is an alias of the model {owner!r}", hint="choose another name"
        )

    def may_have(alias: str) -> bool:
        """Whether an alias is nobody's name: what another has stays with it."""
        taken = {name, *registry.clients, *registry.aliases, *hosting.aliases()}
        is_free = alias not in taken and not (hosting.repository / alias).exists()
        if with_aliases and not is_free:
            log.warning("the model %s is loaded without its alias %s, which is taken", name, alias)
        return with_aliases and is_free

    try:
        hosting.load(name, url, lambda: refused(hosting, reloader, name), may_have)
    finally:
        forget_client(hosting, reloader, name)


def load_own(hosting: Hosting, reloader: Reloader, name: str) -> None:
    """Load a model of the repository, and take up what its folder says of its client.

    Raises:
        BadClient: it does not fit the model, which is left as it was: loaded, or not.

    """
    was_loaded = hosting.is_loaded(name)
    hosting.load_own(name)
    if reason := refused(hosting, reloader, name):
        if not was_loaded:
            hosting.unload(name)
        raise BadClient(reason, hint=f"mend it, then POST /load_model/{name} again")


def unload(hosting: Hosting, reloader: Reloader, name: str) -> None:
    """Unload a model; where its folder goes with it, its client goes too."""
    hosting.unload(name)
    forget_client(hosting, reloader, name)


def forget_lost(hosting: Hosting, reloader: Reloader, name: str) -> None:
    """Take away the client of a model that was lost, and of those that were unloaded late.

    Their names and aliases are free again, though nobody waited for their end.
    """
    for lost in {name, *hosting.unwanted()}:
        hosting.was_lost(lost)
        forget_client(hosting, reloader, lost)


def forget_client(hosting: Hosting, reloader: Reloader, name: str) -> None:
    """Take away the client of a model whose folder is gone."""
    file = hosting.repository / name / CLIENT_FILE
    if str(file) in reloader.registry.loaded and not file.is_file():
        reloader.reload(only=file)


def refused(hosting: Hosting, reloader: Reloader, name: str) -> str:
    """Take up what a loaded model's folder says of its client; return why it is not taken."""
    file = hosting.repository / name / CLIENT_FILE
    if not file.is_file():
        return ""
    report = reloader.reload(only=file)
    return (report.refused | report.broken).get(str(file), "")


def in_turn(routes: Blueprint, turns: Turns, timeout: float) -> None:
    """Let few in that ask Triton: a load takes minutes, and a Triton that hangs is silent.

    Those who only look are told from those who change something, as requests for two models are:
    neither takes the last turns from the other.
    """

    @routes.before_request
    def wait() -> None:
        if request.endpoint in AT_ONCE:
            return
        caller = Caller(request.environ.get("gunicorn.socket"))
        kind = LOOK if request.method in {"GET", "HEAD", "OPTIONS"} else CHANGE
        try:
            g.turn = turns.enter(kind, time.monotonic() + timeout, caller)
        except DeadlineExceeded as error:
            raise DeadlineExceeded(
                f"others load, unload or list models, and did not end within {timeout:.0f} s",
                hint="try again later; GET /models shows what is LOADING or UNLOADING",
            ) from error

    @routes.teardown_request
    def leave(_: BaseException | None) -> None:
        if turn := g.pop("turn", None):
            turn.release()


def read_load() -> tuple[str, str]:
    """Return name and folder from the body of `POST /models`.

    Raises:
        BadBody: it is not of the form that the platform sends.

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
