"""The routes that describe the others: /openapi.json and /docs."""

from __future__ import annotations

import json
import secrets
from typing import Any

from flask import Blueprint, Response, render_template, request

from clients.plugins.registry import Registry
from clients.tensors.client import examples_of
from dispatcher.codecs.responses import dumps, json_response
from dispatcher.routes.openapi import document, resolved
from dispatcher.routes.page import FOLDER
from dispatcher.settings import Settings

# The page has its own style, and nothing else that a browser would load or run.
READING = (
    "default-src 'none'; style-src 'nonce-{nonce}'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
# With its forms: scripts of this server, requests to it, and pictures that came as answers.
TRYING = (
    f"{READING}; script-src 'self'; connect-src 'self'; img-src 'self' blob:; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
STYLES = ("page.css", "docs.css")


def docs_routes(settings: Settings, registry: Registry) -> Blueprint:
    """Return `/openapi.json` and `/docs`."""
    routes = Blueprint("pages", __name__)
    routes.add_app_template_filter(shell_quoted_json, "quotable")
    routes.add_app_template_filter(lambda value: json.dumps(value, indent=2), "pretty")
    style = "".join((FOLDER / name).read_text(encoding="utf-8") for name in STYLES)
    policy = TRYING if settings.shows_page else READING

    @routes.get("/openapi.json")
    def openapi() -> Response:
        """Describe all routes in OpenAPI 3.1."""
        return json_response(document(settings, registry))

    @routes.get("/docs")
    def docs() -> Response:
        """Show the same as a web page, with forms where the page's files are served."""
        nonce = secrets.token_urlsafe(16)
        described = document(settings, registry)
        page = render_template(
            "docs.html",
            doc=resolved(described, described),
            clients=registry.clients,
            examples={name: examples_of(one) for name, one in registry.clients.items()},
            endpoint=request.host_url,
            nonce=nonce,
            style=style,
            forms=settings.shows_page,
            max_body=settings.max_body,
            needs_key=settings.api_keys_file is not None,
        )
        # NGINX adds a stricter policy to every response without one.
        return Response(
            page,
            mimetype="text/html",
            headers={"Content-Security-Policy": policy.format(nonce=nonce)},
        )

    return routes


def shell_quoted_json(value: Any) -> str:
    """Return JSON without apostrophes, to be put between single quotes in a shell."""
    return dumps(value).replace("'", "\\u0027")
