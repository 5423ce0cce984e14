"""The pages for people: `/`, on which models are tried, and `/docs`, which is Swagger UI."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from flask import Blueprint, Response, abort, request

from dispatcher.settings import Settings
from dispatcher.version import VERSION

FOLDER = Path(__file__).resolve().parents[1] / "page"
# The package has Swagger UI's files, the same as its makers publish; its own routes are not used:
# their page has a script in it, which a strict policy forbids.
SWAGGER_UI = Path(str(files("flask_swagger_ui"))) / "dist"
TYPES = {
    ".css": "text/css",
    ".html": "text/html",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}

# Scripts, styles and requests are of this server alone; pictures and sounds also what a page holds.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; "
    "media-src data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
# Text never becomes HTML: browsers with Trusted Types refuse it to every script. (Swagger UI makes
# HTML of descriptions, which it cleans; a script in them would not run either.)
TRUSTED_TYPES = "; require-trusted-types-for 'script'; trusted-types 'none'"
HEADERS = {
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(self)",  # to record a sound
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    # A browser asks whether its copy is still right: another version may answer next time.
    "Cache-Control": "no-cache",
}


def page_routes(settings: Settings) -> Blueprint:
    """Make `/`, `/docs` and `/page/{file}`; none of them where the page is switched off."""
    routes = Blueprint("page", __name__)
    if not settings.shows_page:
        return routes
    values = {
        "@version": VERSION,
        "@max_body": str(settings.max_body),
        "@needs_key": str(settings.api_keys_file is not None).lower(),
    }
    served = {path.name: path for path in FOLDER.iterdir() if path.suffix in TYPES}
    index, docs = (fill_page(served.pop(name), values) for name in ("index.html", "docs.html"))
    for name in ("swagger-ui-bundle.js", "swagger-ui.css"):
        served[name] = SWAGGER_UI / name

    @routes.get("/")
    def index_page() -> Response:
        return answer(".html", index, POLICY + TRUSTED_TYPES)

    @routes.get("/docs")
    def docs_page() -> Response:
        return answer(".html", docs)

    @routes.get("/page/<file>")
    def page_file(file: str) -> Response:
        path = served.get(file) or abort(404)
        return answer(path.suffix, path.read_bytes())

    return routes


def fill_page(path: Path, values: dict[str, str]) -> bytes:
    text = path.read_text(encoding="utf-8")
    for place, value in values.items():
        text = text.replace(place, value)
    return text.encode()


def answer(suffix: str, content: bytes, policy: str = POLICY) -> Response:
    """Send a file, or 304 where the browser has it already."""
    headers = {**HEADERS, "Content-Security-Policy": policy}
    response = Response(content, mimetype=TYPES[suffix], headers=headers)
    response.add_etag()
    response.make_conditional(request)
    return response
