"""What an operator reads at a start where all is well: nothing that looks like an error."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.conftest import Endpoint, start, stop, wait_for
from tool.commands.new_client import contents


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    """A container with one small model, which logs in JSON."""
    folder = tmp_path_factory.mktemp("log")
    for path, content in contents("double").items():
        if path.parts[0] == "double":
            (folder / "models" / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / "models" / path).write_bytes(content)
    (folder / "models" / "double" / "samples").mkdir()
    with (folder / "models" / "double" / "1" / "model.py").open("a") as file:
        file.write("print('no end of line', end='', flush=True)\n")
    endpoint = start(
        folder, MODEL_REPOSITORY=str(folder / "models"), LOG_FORMAT="json", REQUIRED_MODELS="double"
    )
    yield endpoint
    stop(endpoint)


def lines(endpoint: Endpoint) -> list[dict[str, Any]]:
    whole = endpoint.log.read_text().rpartition("\n")[0]
    return [json.loads(line) for line in whole.splitlines()]


def test_at_a_start_nothing_looks_like_an_error(small: Endpoint) -> None:
    wait_for(
        lambda: (
            small.process.poll() is not None
            or any("POST http" in line.get("message", "") for line in lines(small))
        ),
        60,
        "the start",
    )
    found = [line for line in lines(small) if "status" not in line]
    assert {line["program"] for line in found} >= {"serve", "triton"}
    assert {line["level"] for line in found} == {"info"}, [
        line for line in found if line["level"] != "info"
    ]


def test_what_a_model_prints_stays_apart_from_tritons_own_lines(small: Endpoint) -> None:
    printed = [line["message"] for line in lines(small) if "no end of line" in str(line)]
    assert set("".join(printed).split("no end of line")) == {""}
    assert any(
        re.fullmatch(r"I\d{4} [^\]]*\] \"successfully loaded 'double'\"", line.get("message", ""))
        for line in lines(small)
    )


def test_a_stop_is_information_too(small: Endpoint) -> None:
    assert stop(small) == 0
    assert {line["level"] for line in lines(small) if "status" not in line} == {"info"}
