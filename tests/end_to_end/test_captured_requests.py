"""Captured requests of the real web server: of all web workers, and none lost at a stop."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.front import front

pytestmark = pytest.mark.slow
COUNT = 40


def test_a_stop_loses_no_captured_request(tmp_path: Path) -> None:
    run, place = tmp_path / "run", tmp_path / "captured"
    run.mkdir()
    given = {"CAPTURE_TO": str(place), "CAPTURE_PAYLOADS": "true", "CAPTURE_SHARE": "0, double=1"}
    with front(run, MODEL_SERVER_WORKERS="2", **given) as endpoint:
        for number in range(COUNT):
            body = {"modelname": "double", "payload": {"numbers": [number]}}
            assert endpoint.ask(**body).status == 200
            assert endpoint.ask(modelname="odd", payload={"numbers": [1]}).status == 200
    lines = [
        json.loads(line)
        for file in place.rglob("*.jsonl")
        for line in file.read_text().splitlines()
    ]
    bodies = [json.loads(line["captureData"]["endpointInput"]["data"]) for line in lines]
    assert sorted(one["payload"]["numbers"][0] for one in bodies) == [*range(COUNT)]
    assert {line["dispatcher"]["model"] for line in lines} == {"double"}
    assert "Traceback" not in endpoint.log.read_text()
