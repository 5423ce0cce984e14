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

from tests.conftest import PROJECT, Endpoint, running, wait_for
from tests.support.mistakes import MISTAKES, config, write_mistake, write_right

pytestmark = pytest.mark.slow

IN_FOLDER = {one.name: one for one in MISTAKES if one.name in {"misspelt", "lfs", "other_dims"}}
RIGHT_CLASS = """
from clients.base import Client

class Mine(Client):
    modelname = "works"
    examples = [{"x": [0, 1, 2]}, {"x": [0, 0, 0]}]

    def inference(self, payload):
        found = self.infer({"INPUT": self.numbers(payload, "x")[None]}, model="right")["OUTPUT"][0]
        boxes = found[found > 0]
        return {"first": float(boxes.sum()), "boxes": boxes.tolist()}
"""


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

    def logs(self, message: str) -> None:
        """Wait for a message in the container's log, with paths as check has them."""

        def log() -> str:
            text = self.endpoint.log.read_text()
            return text.replace(f"{self.root}/code/clients/", "").replace(f"{self.root}/", "")

        wait_for(lambda: message in log(), 60, lambda: f"{message!r} in the log\n{log()}")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    root = tmp_path_factory.mktemp("models").resolve()
    pinned = config("dynamic", "instance_group { count: 1 }\ndynamic")  # else there are two
    pinned(write_right(root, "right"))
    for mistake in IN_FOLDER.values():
        write_mistake(root, mistake)
    classes = root / "code" / "clients"
    classes.mkdir(parents=True)
    (classes / "works.py").write_text(RIGHT_CLASS)
    (classes / "no_box.py").write_text(
        RIGHT_CLASS.replace("works", "no_box").replace("boxes.sum()", "boxes.max()")
    )
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


@pytest.mark.parametrize("name", IN_FOLDER)
def test_a_mistake_in_a_model_is_told_alike(place: Place, name: str) -> None:
    one = place.checked(name)[0]
    message = one["message"]
    assert one["level"] == "error"
    assert IN_FOLDER[name].words in f"`{one['key']}` {message}"
    place.logs(message)
    posted = json.dumps({"model_name": f"{name}_posted", "url": str(place.root / name)})
    answer = place.endpoint.call("/models", posted)
    assert (answer.status, answer.json["error"]["code"]) == (400, "bad_model")
    text = "{message}\n{hint}".format(**answer.json["error"])
    assert message in text.replace(f"{name}_posted", name).replace(f"{place.root}/", "")
    assert one["fix"] in text
    assert str(place.root / name) in text  # the author's own path
    assert "triton-dispatcher-" not in text  # and no other
    assert f"{name}_posted" not in place.endpoint.call("/models").body.decode()


def test_a_mistake_in_a_class_is_told_alike_and_one_that_works_is_fine(place: Place) -> None:
    (one,) = place.checked("no_box")
    assert one["level"] == "error"
    message = one["message"]
    assert "the client of 'no_box' fails on its own examples[1]: ValueError: zero-size" in message
    place.logs(message.replace("code/clients/", ""))
    assert place.checked("works") == []
    answer = place.endpoint.ask(modelname="works", payload={"x": [1, 0, 3]})
    assert answer.json["result"] == {"first": 8.0, "boxes": [2.0, 6.0]}
    assert "the client of 'works'" not in place.endpoint.log.read_text()
