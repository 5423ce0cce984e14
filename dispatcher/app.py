"""The routes."""

from __future__ import annotations

from flask import Flask, Response, request
from flask.json.provider import DefaultJSONProvider
from flask.typing import ResponseReturnValue

from clients.model_server import ModelServer
from clients.registry import Registry
from dispatcher import errors
from dispatcher.ask import read_ask
from dispatcher.dispatch import Dispatcher
from dispatcher.health import reasons_unready
from dispatcher.settings import Settings


class JSON(DefaultJSONProvider):
    """JSON as the contract has it: fields in the order written, text unescaped, nothing else."""

    sort_keys = False
    ensure_ascii = False
    compact = True


def create_app(settings: Settings, registry: Registry, server: ModelServer) -> Flask:
    """Return the web application.

    Args:
        settings: of the container.
        registry: the clients, made in this process.
        server: where their models run.

    """
    app = Flask(__name__, static_folder=None)
    app.json = JSON(app)
    app.config["MAX_CONTENT_LENGTH"] = settings.max_body_mb * 2**20
    errors.register(app)
    dispatcher = Dispatcher(registry, server, settings.client_timeout)

    @app.route("/ping", methods=["GET", "POST"])
    def ping() -> Response:
        """Say 200 when Triton and every required model are ready, else 503 and why."""
        if reasons := reasons_unready(server, settings.required_models):
            return errors.answer(503, "not_ready", "; ".join(reasons), "the log has the details")
        return Response(status=200)

    @app.post("/invocations")
    def invocations() -> ResponseReturnValue:
        """Ask a model."""
        if (request.content_length or 0) > app.config["MAX_CONTENT_LENGTH"]:
            raise errors.too_large(settings.max_body_mb)
        ask = read_ask(request.get_data(cache=False), settings.max_batch)
        answer = {"modelname": ask.modelname, "result": dispatcher.result(ask)}
        if ask.modelversion:
            answer["modelversion"] = ask.modelversion
        return app.json.response(answer)

    return app
