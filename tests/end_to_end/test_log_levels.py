"""What an operator reads where all is well, from start to end: nothing that looks like an error."""

from __future__ import annotations

import json
from pathlib import Path

from tests.conftest import start, stop, wait_for
from tool.commands.new_client import contents


def test_nothing_looks_like_an_error_where_all_is_well(tmp_path: Path) -> None:
    """In a container with one small model, which logs in JSON."""
    for path, content in contents("double").items():
        if path.parts[0] == "double":
            (tmp_path / "models" / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "models" / path).write_bytes(content)
    (tmp_path / "models" / "double" / "samples").mkdir()
    settings = {"MODEL_REPOSITORY": str(tmp_path / "models"), "REQUIRED_MODELS": "double"}
    endpoint = start(tmp_path, LOG_FORMAT="json", **settings)
    try:
        wait_for(
            lambda: endpoint.process.poll() is not None or "POST http" in endpoint.log.read_text(),
            60,
            "the start",
        )
    finally:
        code = stop(endpoint)
    found = [json.loads(line) for line in endpoint.log.read_text().splitlines()]
    assert code == 0
    assert {line["program"] for line in found} >= {"serve", "triton"}
    assert [line for line in found if line["level"] != "info" and "status" not in line] == []
