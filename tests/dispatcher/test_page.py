"""The page at /: its files, its headers, and where it is switched off."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest
from flask.testing import FlaskClient

from clients.base import Environment
from clients.plugins.registry import Registry
from dispatcher.auth.api_keys import KeyFile
from dispatcher.routes.page import SWAGGER_UI
from dispatcher.settings import read_settings
from tests.conftest import PROJECT
from tests.support.application import make_app, quiet
from tests.support.fake_triton import FakeTriton

FOLDER = PROJECT / "dispatcher" / "page"
FILES = sorted(path.name for path in FOLDER.iterdir() if path.suffix != ".html")


def visitor(folder: Path, **variables: str) -> FlaskClient:
    settings = read_settings(variables)
    environment = Environment(FakeTriton(), folder)
    keys = KeyFile(settings.api_keys_file, None) if settings.api_keys_file else None
    return make_app(settings, Registry(), environment, quiet(), keys=keys).test_client()


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    file = tmp_path / "keys"
    file.write_text(f"inference shop {hashlib.sha256(b'secret').hexdigest()}\n")
    return file


@pytest.mark.parametrize("path", ["/", "/docs"])
def test_a_browser_may_load_nothing_from_elsewhere_and_run_nothing_inline(
    tmp_path: Path, path: str
) -> None:
    answer = visitor(tmp_path).get(path)
    assert (answer.status_code, answer.mimetype) == (200, "text/html")
    policy = dict(
        one.strip().partition(" ")[::2]
        for one in answer.headers["Content-Security-Policy"].split(";")
    )
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert policy["frame-ancestors"] == policy["form-action"] == policy["base-uri"] == "'none'"
    assert ("require-trusted-types-for" in policy) == (path == "/")
    assert "unsafe" not in answer.headers["Content-Security-Policy"]
    assert not re.search(
        r"<style|<script(?! (defer|type=\"module\") src=\"page/)| on\w+=|@\w", answer.text
    )


def test_no_file_names_another_server_and_the_page_is_small(tmp_path: Path) -> None:
    client = visitor(tmp_path)
    sizes = [len(client.get(f"/page/{name}").data) for name in FILES]
    assert sum(sizes) + len(client.get("/").data) < 110_000
    for path in ["/", "/docs", *(f"/page/{name}" for name in FILES)]:
        text = client.get(path).text.replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?://|[\"'(]//", text), path


@pytest.mark.parametrize("name", [*FILES, "swagger-ui-bundle.js", "swagger-ui.css"])
def test_every_file_has_its_type_and_a_mark_of_its_content(tmp_path: Path, name: str) -> None:
    types = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
    client = visitor(tmp_path)
    answer = client.get(f"/page/{name}")
    assert (answer.status_code, answer.mimetype) == (200, types[Path(name).suffix])
    own = FOLDER / name
    assert answer.data == (own if own.exists() else SWAGGER_UI / name).read_bytes()
    assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
    assert answer.headers["Cache-Control"] == "no-cache"
    # NGINX makes the mark a weak one where it compresses the file.
    for mark in (answer.headers["ETag"], f"W/{answer.headers['ETag']}"):
        assert client.get(f"/page/{name}", headers={"If-None-Match": mark}).status_code == 304
    assert client.get(f"/page/{name}", headers={"If-None-Match": '"x"'}).status_code == 200


@pytest.mark.parametrize(
    "path",
    [
        *("/page/", "/page/../app.py", "/page/..%2fapp.py", "/page/%2e%2e/app.py"),
        *("/page/..%5capp.py", "/page//etc/passwd", "/page/page.js/", "/page/page.js%00.css"),
        *("/page/nothing.js", "/page/index.html", "/page/docs.html"),
    ],
)  # fmt: skip
def test_nothing_but_its_own_files_is_served(tmp_path: Path, path: str) -> None:
    answer = visitor(tmp_path).get(path)
    assert answer.status_code == 404
    assert (answer.json or {})["error"]["code"] == "not_found"


def test_where_keys_are_needed_it_is_off_unless_the_setting_says_on_and_it_knows_of_them(
    tmp_path: Path, keys: Path
) -> None:
    off, client = visitor(tmp_path, PAGE="off"), visitor(tmp_path, API_KEYS_FILE=str(keys))
    for path in ("/", "/docs", "/page/page.js", "/page/swagger-ui.css"):
        assert off.get(path).status_code == 404
        assert client.get(path).status_code == 401
        assert client.get(path, headers={"x-api-key": "secret"}).status_code == 404
    text = visitor(tmp_path, MODEL_SERVER_MAX_BODY_MB="7").get("/").text
    assert '<meta name="max-body" content="7340032">' in text
    assert '<meta name="needs-key" content="false">' in text
    client = visitor(tmp_path, API_KEYS_FILE=str(keys), PAGE="on")
    assert '<meta name="needs-key" content="true">' in client.get("/").text
    assert {client.get(path).status_code for path in ("/", "/docs", "/page/page.js")} == {200}
    assert {client.get(path).status_code for path in ("/models", "/openapi.json")} == {401}
