"""The documentation is what the code does."""

from __future__ import annotations

import html
import json
import re
import subprocess
from typing import Any

import pytest
from flask import Flask

from clients.base import Client, Environment, Payload
from clients.plugins.registry import Registry, load_clients
from dispatcher.codecs.content_types import LINE_TYPES, READERS
from dispatcher.codecs.error_responses import SERVICE_STATUS
from dispatcher.codecs.json_request import is_version
from dispatcher.codecs.responses import IMAGE_TYPES, JSON, LINES, NPY
from dispatcher.errors import ANSWERS, NOT_READY, ROUTING, STUCK, CallerGone
from dispatcher.routes.models import FROM_MEMORY
from dispatcher.settings import read_settings, rows
from tests.conftest import PROJECT, Endpoint
from tests.support import readme
from tests.support.application import make_app, quiet
from tests.support.fake_triton import FakeTriton


def test_the_readme_has_a_request_per_model() -> None:
    commands = " ".join(command for command, _ in readme.requests())
    for name in ("resnet", "yolov5", "bert_base"):
        assert name in commands


@pytest.mark.parametrize(("command", "shown"), readme.requests())
def test_the_readme_s_requests_are_answered_as_it_shows(
    endpoint: Endpoint, command: str, shown: Any
) -> None:
    came = readme.run(command, f"http://127.0.0.1:{endpoint.port}")
    assert readme.same(came, shown), came


def test_an_answer_that_differs_is_seen() -> None:
    for came, shown in [
        ({"a": 1}, {"a": 2}),
        (["1.5:3:cat"], ["1.5:3:dog"]),
        (["1.5:3:cat"], ["1.9:3:cat"]),
        ([1, 2], [1]),
        ({"a": 1}, {"a": 1, "b": 2}),
        ("x", "y"),
    ]:
        assert not readme.same(came, shown)


def test_every_setting_is_documented_as_it_is() -> None:
    table = {}
    for line in (PROJECT / "docs" / "settings.md").read_text().splitlines():
        if match := re.match(r"\| `([A-Z_]+)` \| (.*?) \| (.*) \| (.*) \|$", line):
            table[match[1]] = match.groups()[1:]
    expected = {}
    for row in rows():
        default = row.default.removeprefix(f"{PROJECT}/")
        expected[row.variable] = (
            f"`{default}`" if default else "nothing",
            row.meaning,
            row.expected,
        )
    assert table == expected


HTTP = (PROJECT / "docs" / "http.md").read_text()


def test_every_error_code_is_documented_with_its_status() -> None:
    table = set(re.findall(r"^\| (\d{3}) \| `(\w+)` \|", HTTP, re.MULTILINE))
    expected = {(str(status), code) for status, code in ANSWERS.values()}
    expected |= {(str(status), code) for status, (code, _) in ROUTING.items()}
    expected |= {("503", NOT_READY), ("503", STUCK)}
    assert table == expected


def test_nginx_s_own_codes_are_those_of_the_table() -> None:
    configuration = (PROJECT / "nginx.conf").read_text()
    tables = dict(
        re.findall(r"map \$refused \$(code|message|hint) {(.*?)\n    }", configuration, re.DOTALL)
    )
    statuses = {
        name: re.findall(r"^ *(\d{3}) ", table, re.MULTILINE) for name, table in tables.items()
    }
    assert statuses["code"] == statuses["message"]
    # NGINX closes such a connection, whatever `error_page` says; the other is closed by its caller
    for_the_log_alone = {"408", "499"}
    assert set(statuses["hint"]) == set(statuses["code"]) - for_the_log_alone
    answered = set(
        re.findall(r"\d{3}", " ".join(re.findall(r"error_page ([\d ]+)", configuration)))
    )
    assert set(statuses["hint"]) == answered - {"494", "495", "496", "497", "505", "502"}
    known = {(str(status), code) for status, (code, _) in ROUTING.items()}
    known.add(tuple(map(str, ANSWERS[CallerGone])))
    for status, code in re.findall(r"(\d{3}) +(\w+);", tables["code"]):
        assert (status, code) in known


def test_every_route_and_content_type_is_documented(openapi: Any) -> None:
    for path, methods in openapi["paths"].items():
        for method in methods:
            assert f"{method.upper()} {path}" in HTTP
    for content_type in [*READERS, *LINE_TYPES, JSON, LINES, NPY, *IMAGE_TYPES]:
        assert f"`{content_type}`" in HTTP


def test_openapi_has_every_route_of_the_code(openapi: Any) -> None:
    routes = {
        (re.sub(r"<(\w+)>", r"{\1}", rule.rule), method.lower())
        for rule in openapi_app().url_map.iter_rules()
        for method in rule.methods - {"HEAD", "OPTIONS"}
    }
    documented = {
        (path, method) for path, methods in openapi["paths"].items() for method in methods
    }
    assert documented == routes


def test_openapi_has_every_status_of_the_code(openapi: Any) -> None:
    statuses = {
        int(status)
        for methods in openapi["paths"].values()
        for route in methods.values()
        for status in route["responses"]
    }
    answered = {status for status, _ in ANSWERS.values()}
    assert statuses == {200, SERVICE_STATUS, *answered, *ROUTING}


def test_openapi_has_429_wherever_one_waits(openapi: Any) -> None:
    for rule in openapi_app().url_map.iter_rules():
        if not rule.endpoint.startswith("management.") or rule.endpoint in FROM_MEMORY:
            continue
        for method in rule.methods - {"HEAD", "OPTIONS"}:
            route = openapi["paths"][re.sub(r"<(\w+)>", r"{\1}", rule.rule)][method.lower()]
            assert "429" in route["responses"], rule


def test_openapi_takes_the_versions_that_the_code_takes(openapi: Any) -> None:
    number, text = openapi["components"]["schemas"]["Request"]["properties"]["modelversion"][
        "oneOf"
    ]
    largest = number["maximum"]
    assert is_version(str(largest))
    assert not is_version(str(largest + 1))
    for one in ("1", str(largest)):
        assert re.search(text["pattern"], one)
    for one in ("0", "01", "", "-1", str(10 * largest)):
        assert not re.search(text["pattern"], one)


@pytest.fixture
def openapi() -> Any:
    return openapi_app().test_client().get("/openapi.json").json


def openapi_app(*more: type[Client]) -> Flask:
    environment = Environment(FakeTriton(), PROJECT / "model_repository")
    registry = load_clients(environment)
    registry = Registry({**registry.clients, **{one.modelname: one(environment) for one in more}})
    return make_app(read_settings({}), registry, environment, quiet())


def test_the_page_for_people_needs_nothing_from_elsewhere() -> None:
    page = openapi_app().test_client().get("/docs").text
    assert not re.findall(r"(?:src|href)=[\"'](?!openapi\.json)[^\"']*", page)
    for name in ("resnet", "yolov5", "bert_base"):
        assert f"<code>{name}</code>" in page


def test_the_page_s_commands_can_be_pasted_into_a_shell() -> None:
    class Quoting(Client):
        modelname = "quoting"
        example = {"text": "It's a [MASK], $(echo isn't) it? \\u0027 <b>"}

        def inference(self, payload: Payload) -> Any:
            return payload

    app = openapi_app(Quoting)
    page = app.test_client().get("/docs").text
    commands = re.findall(r"<pre>(curl .*?)</pre>", page, re.DOTALL)
    last = 'curl() { shift $(($# - 1)); printf %s "$1"; }\n' + html.unescape(commands[-1])
    sent = subprocess.run(["/bin/sh", "-c", last], capture_output=True, text=True, check=False)
    assert json.loads(sent.stdout) == {"modelname": "quoting", "payload": Quoting.example}


def test_every_link_leads_somewhere() -> None:
    for page in [PROJECT / "README.md", *PROJECT.glob("docs/*.md"), PROJECT / "CHANGELOG.md"]:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_every_make_command_that_is_named_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (PROJECT / "Makefile").read_text(), re.MULTILINE))
    pages = (PROJECT / "README.md").read_text() + (PROJECT / "docs" / "settings.md").read_text()
    assert set(re.findall(r"`?make ([a-z-]+)", pages)) <= targets
