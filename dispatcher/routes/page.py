"""The page at `/`, on which models are tried in a browser, and its files."""

from __future__ import annotations

from pathlib import Path

from flask import Blueprint, Response, abort, request

from dispatcher.settings import Settings
from dispatcher.version import VERSION

FOLDER = Path(__file__).resolve().parents[1] / "page"
INDEX = "index.html"
TYPES = {
    ".css": "text/css",
    ".html": "text/html",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}

# Scripts, styles and requests are of this server alone; pictures also those that the page itself
# holds. Text never becomes HTML: browsers with Trusted Types refuse it to every script.
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "Permissions-Policy": "camera=(self), geolocation=(), microphone=()",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    # A browser asks whether its copy is still right: another version may answer next time.
    "Cache-Control": "no-cache",
}


def page_routes(settings: Settings) -> Blueprint:
    """Return `/` and `/page/{file}`; neither where the page is switched off."""
    routes = Blueprint("page", __name__)
    if not settings.shows_page:
        return routes
    values = {
        "@version": VERSION,
        "@max_body": str(settings.max_body),
        "@needs_key": str(settings.api_keys_file is not None).lower(),
    }
    files = {path.name: path.read_bytes() for path in FOLDER.iterdir() if path.suffix in TYPES}
    index = files.pop(INDEX).decode()
    for place, value in values.items():
        index = index.replace(place, value)

    @routes.get("/")
    def index_page() -> Response:
        """Show the page."""
        return answer(INDEX, index.encode())

    @routes.get("/page/<file>")
    def page_file(file: str) -> Response:
        """Return a script, a style or a picture of the page."""
        return answer(file, files[file]) if file in files else abort(404)

    return routes


def answer(name: str, content: bytes) -> Response:
    """Return a file, or 304 where the browser has it already."""
    response = Response(content, mimetype=TYPES[Path(name).suffix], headers=HEADERS)
    response.add_etag()
    response.make_conditional(request)
    return response
