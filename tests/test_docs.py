"""The documentation is what the code does."""

from __future__ import annotations

import importlib.util
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from flask import Flask

from clients.base import Environment
from clients.plugins.registry import load_clients
from dispatcher.codecs.content_types import LINE_TYPES, READERS
from dispatcher.codecs.error_responses import SERVICE_STATUS
from dispatcher.codecs.json_request import is_version
from dispatcher.codecs.responses import IMAGE_TYPES, JSON, LINES, NPY
from dispatcher.errors import (
    ANSWERS,
    NOT_READY,
    ROUTING,
    STUCK,
    CallerGone,
    Unauthorized,
    WrongScope,
)
from dispatcher.routes.models import FROM_MEMORY
from dispatcher.settings import read_settings, rows
from dispatcher.version import VERSION
from tests.conftest import PROJECT
from tests.support import readme
from tests.support.application import make_app, quiet
from tests.support.fake_triton import FakeTriton


def test_the_readme_has_a_request_per_model() -> None:
    commands = " ".join(command for command, _ in readme.requests())
    for name in ("resnet", "yolov5", "bert_base"):
        assert name in commands


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


def short_values(expected: str) -> str:
    """Leave out of what a reader expects what the page says once for all settings."""
    return re.sub("^(whole number, |one of )|[,;] or nothing$", "", expected)


def test_every_setting_is_documented_as_it_is() -> None:
    table = {}
    for line in (PROJECT / "docs" / "settings.md").read_text().splitlines():
        if match := re.match(r"\| `([A-Z0-9_]+)` \| (.*?) \| (.*) \| (.*) \|$", line):
            table[match[1]] = match.groups()[1:]
    expected = {}
    for row in rows():
        default = row.default.removeprefix(f"{PROJECT}/")
        expected[row.variable] = (
            f"`{default}`" if default else "–",
            row.meaning,
            short_values(row.expected),
        )
    assert table == expected


HTTP = "".join(
    (PROJECT / "docs" / f"{name}.md").read_text() for name in ("http", "limits", "routes")
)


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
    inner = {"494", "495", "496", "497", "505", "502"}
    assert set(statuses["hint"]) == answered - inner
    known = {(str(status), code) for status, (code, _) in ROUTING.items()}
    for error in (CallerGone, Unauthorized, WrongScope):
        known.add(tuple(map(str, ANSWERS[error])))
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
    assert statuses == {200, 202, SERVICE_STATUS, *answered, *ROUTING}


def test_openapi_has_429_wherever_one_waits(openapi: Any) -> None:
    for rule in openapi_app().url_map.iter_rules():
        if not rule.endpoint.startswith("management.") or rule.endpoint in FROM_MEMORY:
            continue
        for method in rule.methods - {"HEAD", "OPTIONS"}:
            route = openapi["paths"][re.sub(r"<(\w+)>", r"{\1}", rule.rule)][method.lower()]
            assert "429" in route["responses"], rule


def test_openapi_has_the_version_of_the_project(openapi: Any) -> None:
    assert openapi["info"]["version"] == VERSION


def test_openapi_takes_the_versions_that_the_code_takes(openapi: Any) -> None:
    number, text = openapi["components"]["schemas"]["ModelVersion"]["oneOf"]
    largest = number["maximum"]
    assert is_version(str(largest))
    assert not is_version(str(largest + 1))
    for one in ("1", str(largest)):
        assert re.search(text["pattern"], one)
    for one in ("0", "01", "", "-1", str(10 * largest)):
        assert not re.search(text["pattern"], one)


@pytest.fixture
def openapi() -> Any:
    """Without the routes of single models, which are one in the code."""
    found: Any = openapi_app().test_client().get("/openapi.json").json
    shown = {one: of for one, of in found["paths"].items() if not re.match(r"/infer/\w", one)}
    return {**found, "paths": shown}


@cache
def openapi_app() -> Flask:
    environment = Environment(FakeTriton(), PROJECT / "model_repository")
    return make_app(read_settings({}), load_clients(environment), environment, quiet())


TASKS = sorted(PROJECT.glob("docs/tasks/*.md"))
PAGES = [*PROJECT.glob("*.md"), *PROJECT.glob("docs/*.md"), *TASKS, PROJECT / "bench" / "NOTES.md"]
CHANGES = (PROJECT / "CHANGELOG.md").read_text()
CONTRIBUTING = (PROJECT / "CONTRIBUTING.md").read_text()


def anchors(page: Path) -> set[str]:
    """Return what a link may name behind `#`, as GitHub makes it from headings."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", one.lower()).replace(" ", "-") for one in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page: Path) -> None:
    for target, _, anchor in re.findall(r"\]\(([^)#:]*)(#([^)]*))?\)", page.read_text()):
        found = page.parent / target if target else page
        assert found.exists(), target
        assert not anchor or anchor in anchors(found), f"{target}#{anchor}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_lines_can_be_read_on_a_phone(page: Path) -> None:
    """But for tables, whose rows are one line each, and for code."""
    prose = re.sub(r"(?ms)^ *```.*?^ *```$", "", page.read_text())
    text = [line for line in prose.splitlines() if not line.lstrip().startswith("|")]
    assert [line for line in text if len(line) > 130] == []


@pytest.mark.parametrize("page", TASKS, ids=lambda page: page.name)
def test_a_page_of_a_task_is_short_and_can_be_found(page: Path) -> None:
    assert len(page.read_text().split()) <= 300
    assert f"(tasks/{page.name})" in (PROJECT / "docs" / "families.md").read_text()


def test_every_make_command_that_is_named_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (PROJECT / "Makefile").read_text(), re.MULTILINE))
    pages = [page.read_text() for page in PAGES if page.name != "NOTES.md"]
    named = r"(?:`|^ *)make ([a-z-]+)(?:`| +#|$)"
    found = {one for page in pages for one in re.findall(named, page, re.MULTILINE)}
    assert {"serve", "test", "check"} <= found <= targets


def drawing(page: str) -> str:
    return re.search(r"```mermaid\nflowchart.*?```", page, re.DOTALL)[0]


def test_the_first_screen_has_the_drawing_of_the_architecture_and_the_licence() -> None:
    readme_page = (PROJECT / "README.md").read_text()
    architecture = (PROJECT / "docs" / "architecture.md").read_text()
    assert drawing(readme_page) == drawing(architecture)
    first_screen = readme_page.partition("\n## ")[0]
    for shown in (drawing(readme_page), "[Apache-2.0](LICENSE)", "AGPL-3.0", "LitServe", "BentoML"):
        assert shown in first_screen


@pytest.mark.parametrize(
    ("question", "link", "answer"),
    [
        ("YOLOv8", "docs/families.md", "YOLOv8"),
        ("SageMaker", "docs/sagemaker.md", "dispatcher pack"),
        ("API key", "docs/access.md#keys", "new-key"),
        ("What is slow", "docs/operations.md#symptoms", "one model is slow"),
        ("GPU", "docs/deploy-image.md#gpu", "GPU=cuda13"),
        ("calls two models", "docs/classes.md#a-class-that-asks-other-models", "self.ask("),
        ("crashes", "docs/failures.md#models", "its only process dies"),
    ],
)
def test_the_readme_leads_to_the_answer_of_what_people_ask(
    question: str, link: str, answer: str
) -> None:
    """By the word that they search, in bold, and one link."""
    items = (PROJECT / "README.md").read_text().partition("\nThen\n")[2].split("\n- ")
    (item,) = (one for one in items if question in one.partition("**:")[0].partition("** ")[0])
    assert f"]({link})" in item
    name, _, anchor = link.partition("#")
    parts = re.split(r"^(?=#+ )", (PROJECT / name).read_text(), flags=re.MULTILINE)
    headed = {one.partition("\n")[0].lower().strip("# ").replace(" ", "-"): one for one in parts}
    assert answer in (headed[anchor] if anchor else "".join(parts))


def test_the_licence_is_whole() -> None:
    text = (PROJECT / "LICENSE").read_text()
    assert text.split() == (APACHE.read_text() if APACHE.exists() else text).split()
    for part in ("Version 2.0, January 2004", "9. Accepting Warranty", "END OF TERMS"):
        assert part in text


APACHE = Path("/usr/share/common-licenses/Apache-2.0")  # of Debian and Ubuntu


def test_the_changelog_has_the_version_of_the_project() -> None:
    versions = re.findall(r"^## \[(.+?)\](.*)$", CHANGES, re.MULTILINE)
    assert [name for name, _ in versions][:2] == ["Unreleased", VERSION]
    assert all(re.fullmatch(r" - \d{4}-\d\d-\d\d", date) for _, date in versions[1:])
    kinds = set(re.findall(r"^### (.+)$", CHANGES, re.MULTILINE))
    assert kinds <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}


def test_modules_are_where_the_changelog_says() -> None:
    rows = re.findall(r"^  \| (`.+) \| (`.+) \|$", CHANGES, re.MULTILINE)
    assert rows
    for before, now in rows:
        old = re.findall(r"`([\w.]+)`", before)
        new = re.findall(r"`([\w.]+)`", now)
        folder = new[0].rpartition(".")[0]
        full = [folder + name if name.startswith(".") else name for name in new]
        assert len(old) == len(full)
        for name in full:
            assert importlib.util.find_spec(name), name
        for name in old:  # a folder may have the name of what was a file
            assert not (PROJECT / f"{name.replace('.', '/')}.py").exists(), name


def test_what_contributors_are_pointed_at_is_there() -> None:
    paths = re.findall(r"`((?:clients|container|dispatcher|docs|tests)/[\w/.-]*)`", CONTRIBUTING)
    assert len(paths) > 10
    for path in [*paths, *re.findall(r"`([A-Z]\w+\.md|nginx\.conf|\.ci/run)`", CONTRIBUTING)]:
        assert (PROJECT / path).exists(), path
    for file, names in (
        ("dispatcher/settings/__init__.py", ["class Settings"]),
        ("dispatcher/errors.py", ["ANSWERS"]),
        ("dispatcher/routes/openapi.py", ["ERRORS"]),
        ("clients/families/base/family.py", ["class Family", "def fit"]),
        ("clients/families/base/text_input.py", ["class TextKeys", "class TextFamily"]),
    ):
        for name in names:
            assert name.split()[-1] in CONTRIBUTING
            assert name in (PROJECT / file).read_text(), f"{file}: {name}"


def test_pre_commit_runs_the_checks_of_make_check_and_no_others() -> None:
    table = yaml.safe_load((PROJECT / ".pre-commit-config.yaml").read_text())
    ((hook,),) = (repository["hooks"] for repository in table["repos"])
    assert (hook["entry"], hook["language"], hook["pass_filenames"]) == (
        "make check",
        "system",
        False,
    )
