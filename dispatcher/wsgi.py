"""What a gunicorn worker runs: the one place where the web worker's parts are put together."""

from __future__ import annotations

import logging
import os

from flask import Flask

from clients.base import Environment
from clients.registry import load_clients
from clients.triton import Triton, renamed_config
from dispatcher.app import admission_of, create_app
from dispatcher.canary import Canary
from dispatcher.settings import read_settings
from dispatcher.watch import Watch, replace_worker


def build() -> Flask:
    """Return the application, made from the environment; called once per worker, after the fork."""
    settings = read_settings(os.environ)
    logging.basicConfig(
        level=settings.log_level.upper(), format="%(levelname)s %(name)s: %(message)s"
    )
    environment = Environment(
        Triton(f"127.0.0.1:{settings.triton_grpc_port}"),
        settings.model_repository,
        max_pixels=settings.max_megapixels * 1_000_000,
    )
    registry = load_clients(environment, settings.clients_path)
    canary = Canary(
        settings.required_models,
        registry,
        environment.server,
        settings.canary_interval,
        settings.canary_timeout,
    )
    canary.start()
    admission = admission_of(settings)
    Watch(admission, settings.client_timeout, replace_worker).start()
    return create_app(settings, registry, environment, renamed_config, canary, admission)
