"""What an author hears of a mistake is the same from check, at the start and from POST /models.

One container has all the mistakes; each is in a folder of its own.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import PROJECT, Answer, Endpoint, running, wait_for
from tests.support.mistakes import MISTAKES
from tests.support.mistakes.authored import (
    IN_CLASS,
    IN_TOML,
    RIGHT_CLASS,
    write_classifier,
)
from tests.support.mistakes.mistake import (
    config,
    write_mistake,
    write_right,
)

pytestmark = pytest.mark.slow

IN_FOLDER = {
    one.name: one
    for one in MISTAKES
    if one.name in {"misspelt", "renamed", "lfs", "other_dims", "no_version", "v1"}
}


@dataclass(frozen=True)
class Place:
    """The folder with all models and classes, and the container that serves them."""

    root: Path
    endpoint: Endpoint
    found: list[dict[str, Any]]
    """What check finds."""

    def checked(self, name: str) -> list[dict[str, Any]]:
        files = (f"{name}/", f"code/clients/{name}.py")
        return [one for one in self.found if f"{one['file']}/".startswith(files)]

    def log(self) -> str:
        """Return the container's log, with paths as check has them."""
        text = self.endpoint.log.read_text()
        return text.replace(f"{self.root}/code/clients/", "").replace(f"{self.root}/", "")

    def post(self, name: str) -> Answer:
        body = {"model_name": f"{name}_posted", "url": str(self.root / name)}
        return self.endpoint.call("/models", json.dumps(body))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    root = tmp_path_factory.mktemp("models").resolve()
    pinned = config("dynamic", "instance_group { count: 1 }\ndynamic")  # else there are two
    pinned(write_right(root, "right"))
    for mistake in IN_FOLDER.values():
        write_mistake(root, mistake)
    for name, (change, _) in IN_TOML.items():
        change(write_classifier(root / name))
    classes = root / "code" / "clients"
    classes.mkdir(parents=True)
    for name, (source, _) in {**IN_CLASS, "works": (RIGHT_CLASS, "")}.items():
        (classes / f"{name}.py").write_text(source.replace("NAME", name))
    (root.parent / "empty").mkdir(exist_ok=True)
    checked = subprocess.run(
        (sys.executable, "-m", "tool", "check", "--json", str(root)),
        cwd=PROJECT,
        capture_output=True,
        timeout=120,
        check=False,
    )
    found = json.loads(checked.stdout)["findings"]
    settings = {"MODEL_DIR": str(root), "MODEL_REPOSITORY": str(root.parent / "empty")}
    with running(tmp_path_factory.mktemp("run"), **settings) as endpoint:
        yield Place(root, endpoint, found)


def said(answer: Answer) -> str:
    error = answer.json["error"]
    return f"{error['message']}\n{error['hint']}"


@pytest.mark.parametrize("name", [*IN_TOML, *IN_FOLDER])
def test_a_mistake_in_a_model_is_told_alike(place: Place, name: str) -> None:
    words = IN_TOML[name][1] if name in IN_TOML else IN_FOLDER[name].words
    one = place.checked(name)[0]
    message = one["message"]
    assert one["level"] == "error"
    assert words in f"`{one['key']}` {message}"
    wait_for(lambda: message in place.log(), 60, lambda: f"{message!r} in the log\n{place.log()}")
    answer = place.post(name)
    assert (answer.status, answer.json["error"]["code"]) == (400, "bad_model")
    text = said(answer)
    assert message in text.replace(f"{name}_posted", name).replace(f"{place.root}/", "")
    assert one["fix"] in text
    assert str(place.root / name) in text  # the author's own path
    assert "triton-dispatcher-" not in text  # and no other
    assert f"{name}_posted" not in {
        one["modelName"] for one in place.endpoint.call("/models").json["models"]
    }


@pytest.mark.parametrize("name", IN_CLASS)
def test_a_mistake_in_a_class_is_told_alike(place: Place, name: str) -> None:
    (one,) = place.checked(name)
    message = one["message"]
    assert one["level"] == "error"
    assert IN_CLASS[name][1] in message
    message = message.replace("code/clients/", "")  # as in `log`
    wait_for(lambda: message in place.log(), 60, lambda: f"{message!r} in the log\n{place.log()}")


def test_a_class_that_works_is_fine(place: Place) -> None:
    assert place.checked("works") == []
    answer = place.endpoint.ask(modelname="works", payload={"x": [1, 0, 3]})
    assert answer.json["result"] == {"first": 8.0, "boxes": [2.0, 6.0]}
    assert "the client of 'works'" not in place.log()
