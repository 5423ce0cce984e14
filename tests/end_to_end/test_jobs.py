"""Asynchronous requests through the whole chain: NGINX, two web workers, Triton and ResNet-50."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.conftest import PICTURES, PROJECT, Answer, Endpoint, picture, running, wait_for
from tests.support.front import key_lines
from tests.support.telemetry import lines_of, settled, value

if TYPE_CHECKING:
    from tests.support.s3 import S3Server

KEYS = {"shop": "a-key-of-the-shop", "other": "a-key-of-others"}
CAT = "images/asynchronous.png"
SLOW = '''
import os, time
from clients.base import Client

class Slow(Client):
    """Sleeps until there is a file, and notes which process does so, at the beginning and end."""
    modelname = "slow"
    example = {"until": "/dev/null", "note": "/dev/null"}

    def inference(self, payload):
        for _ in range(2):
            with open(payload["note"], "a") as note:
                note.write(f"{os.getpid()}\\n")
            while not os.path.exists(payload["until"]):
                time.sleep(0.02)
        return "slept"
'''


@pytest.fixture(scope="module")
def container(
    models: None, s3: S3Server, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Endpoint]:
    """The container with ResNet-50 and a class that sleeps, two keys and a bucket."""
    folder = tmp_path_factory.mktemp("jobs")
    for name in ("models", "clients"):
        (folder / name).mkdir()
    (folder / "models" / "resnet").symlink_to(PROJECT / "model_repository" / "resnet")
    (folder / "clients" / "slow.py").write_text(SLOW)
    (folder / "keys").write_text(key_lines("inference", **KEYS))
    s3.put(CAT, (PICTURES / "chelsea.png").read_bytes())
    settings = s3.environment(
        MODEL_REPOSITORY=str(folder / "models"),
        CLIENTS_PATH=str(folder / "clients"),
        API_KEYS_FILE=str(folder / "keys"),
        JOBS_DIR=str(folder / "kept"),
        MODEL_SERVER_WORKERS="2",
        MODEL_SERVER_LOG_LEVEL="debug",
    )
    with running(folder, **settings) as endpoint:
        yield endpoint


def call(
    container: Endpoint,
    path: str,
    body: Any = None,
    method: str | None = None,
    key: str = "shop",
    **headers: str,
) -> Answer:
    text = None if body is None else body if isinstance(body, str) else json.dumps(body)
    sent = {"x-api-key": KEYS[key], "Content-Type": "application/json"}
    return container.call(path, text, method, {**sent, **headers})


def later(container: Endpoint, body: Any, identity: str = "", **more: str) -> Answer:
    headers = {"X-Amzn-SageMaker-Inference-Id": identity} if identity else {}
    return call(
        container, "/invocations", body, Prefer="wait=1, Respond-Async; x=1", **headers, **more
    )


def ended(container: Endpoint, identity: str, key: str = "shop") -> Any:
    found: list[Any] = []

    def is_over() -> bool:
        found[:] = [call(container, f"/jobs/{identity}", key=key).json]
        return found[0]["status"] not in {"queued", "running"}

    wait_for(is_over, lambda: f"the end of {identity}: {found}")
    return found[0]


def sleeping(note: Path, until: Path = Path("/dev/null")) -> dict[str, Any]:
    return {"modelname": "slow", "payload": {"until": str(until), "note": str(note)}}


def noted(note: Path, times: int = 1) -> list[int]:
    """Wait until so many begins and ends of runs are noted; return their processes."""
    wait_for(
        lambda: note.exists() and note.read_text().count("\n") >= times, f"{times} lines: {note}"
    )
    return [int(line) for line in note.read_text().splitlines()]


def test_the_result_is_the_answer_of_the_synchronous_request(container: Endpoint) -> None:
    image = {"modelname": "resnet", "payload": {"img": picture(PICTURES / "chelsea.png")}}
    bad = {"modelname": "resnet", "payload": {"img": "AAAA"}}
    for body, state in ((image, "succeeded"), (bad, "failed")):
        now = call(container, "/invocations", body)
        accepted = later(container, body)
        assert accepted.status == 202
        assert accepted.headers["Preference-Applied"] == "respond-async"
        identity = accepted.json["id"]
        place = f"/jobs/{identity}"
        assert accepted.headers["Location"] == accepted.json["status_url"] == place
        assert accepted.json["status"] in {"queued", "running"}
        shown = ended(container, identity)
        assert shown["status"] == state
        assert shown["created"] <= shown["started"] <= shown["ended"]
        result = call(container, accepted.json["result"])
        assert result.status == now.status == shown["code"]
        expected, came = now.json, result.json
        if state == "failed":
            assert shown["error"] == came["error"]
            for one in (expected, came):
                one["error"].pop("request_id")
        assert came == expected
    assert "Egyptian cat" in call(container, "/invocations", image).json["result"][0]


def test_a_job_outlives_the_worker_that_is_killed(container: Endpoint, tmp_path: Path) -> None:
    note, go = tmp_path / "note", tmp_path / "go"
    identity = later(container, sleeping(note, go)).json["id"]
    (first,) = noted(note)
    assert call(container, f"/jobs/{identity}").json["status"] == "running"
    os.kill(first, signal.SIGKILL)
    go.touch()
    assert ended(container, identity)["status"] == "succeeded"
    assert call(container, f"/jobs/{identity}/result").json["result"] == "slept"
    _, *second = noted(note, 3)
    assert len(second) == 2
    assert first not in second


def test_a_cancelled_job_has_no_result(container: Endpoint, tmp_path: Path) -> None:
    """Two run, one for each worker, and the third waits."""
    go, *notes = [tmp_path / name for name in ("go", *"abcd")]
    ask = [sleeping(note, go) for note in notes]
    first, second, third, fourth = [later(container, one).json["id"] for one in ask]
    noted(notes[0])
    noted(notes[1])
    for identity in (third, first):
        answer = call(container, f"/jobs/{identity}", method="DELETE")
        assert (answer.status, answer.json["status"]) == (200, "cancelled")
        result = call(container, f"/jobs/{identity}/result")
        assert (result.status, result.json["error"]["code"]) == (409, "job_conflict")
    go.touch()
    for identity in (second, fourth):
        assert ended(container, identity)["status"] == "succeeded"
    noted(notes[0], 2)
    assert call(container, f"/jobs/{first}").json["status"] == "cancelled"
    assert not notes[2].exists(), "it has run"


def test_one_id_is_one_job_of_one_key(container: Endpoint, tmp_path: Path) -> None:
    note, go = tmp_path / "note", tmp_path / "go"
    for _ in range(2):
        answer = later(container, sleeping(note, go), "mine")
        assert (answer.status, answer.json["id"]) == (202, "mine")
    go.touch()
    assert ended(container, "mine")["status"] == "succeeded"
    assert later(container, sleeping(note, go), "mine").json["status"] == "succeeded"
    assert len(noted(note)) == 2
    other = later(container, sleeping(note), "mine")
    assert (other.status, other.json["error"]["code"]) == (409, "job_conflict")
    for method, path in (("GET", ""), ("GET", "/result"), ("DELETE", "")):
        for identity, key in (("mine", "other"), ("none", "shop")):
            answer = call(container, f"/jobs/{identity}{path}", method=method, key=key)
            assert (answer.status, answer.json["error"]["code"]) == (404, "unknown_job")
    theirs = later(container, sleeping(note), "mine", key="other")
    assert (theirs.status, theirs.json["id"]) == (202, "mine")
    assert ended(container, "mine", "other")["status"] == "succeeded"
    assert call(container, "/jobs/mine/result").json["result"] == "slept"
    bad = later(container, sleeping(note), "not an id")
    assert (bad.status, bad.json["error"]["code"]) == (400, "bad_header")


def test_a_run_is_logged_and_counted_once(container: Endpoint) -> None:
    def count() -> float:
        page = "dispatcher_request_seconds_count"
        now = settled(container, x_api_key=KEYS["shop"])
        return value(now, page, model="slow", status="200")

    before = count()
    later(container, sleeping(Path("/dev/null")), "logged")
    ended(container, "logged")
    accepted, run = [
        one for one in lines_of(container, "logged", 2) if one["route"] == "/invocations"
    ]
    assert (accepted["status"], run["status"], run["key"]) == (202, 200, "shop")
    assert count() == before + 1


def test_a_picture_and_an_answer_may_be_in_s3(container: Endpoint, s3: S3Server) -> None:
    from tests.support.s3 import FULL, SECRET  # noqa: PLC0415  boto3 takes half a second

    sent = {"modelname": "resnet", "payload": {"img": picture(PICTURES / "chelsea.png")}}
    now = call(container, "/infer/resnet", {"s3_key": CAT}, **{"X-Request-Id": "by-key"}).json
    assert now == call(container, "/invocations", sent).json
    accepted = later(
        container,
        {"modelname": "resnet", "payload": {"s3_key": CAT}, "output": {"s3_key": "results/later"}},
        "in-s3",
    )
    assert accepted.json["result"] == "s3://pictures/results/later"
    assert ended(container, "in-s3")["status"] == "succeeded"
    assert json.loads(s3.read("results/later")[0]) == now
    (line,) = lines_of(container, "by-key")
    assert line["s3_s"] > 0
    page = call(container, "/metrics").body.decode()
    assert 'dispatcher_s3_seconds_count{model="resnet",status="200"}' in page
    for word in (SECRET, FULL, "Signature="):
        assert word not in container.log.read_text()


@pytest.mark.slow
def test_jobs_are_there_after_a_restart_and_a_model_that_hangs_is_504(
    models: None, tmp_path: Path
) -> None:
    for name in ("models", "clients", "first", "second", "third"):
        (tmp_path / name).mkdir()
    (tmp_path / "models" / "resnet").symlink_to(PROJECT / "model_repository" / "resnet")
    (tmp_path / "clients" / "slow.py").write_text(SLOW)
    settings = {
        "MODEL_REPOSITORY": str(tmp_path / "models"),
        "CLIENTS_PATH": str(tmp_path / "clients"),
    }
    soon = {"X-Amzn-SageMaker-Custom-Attributes": "timeout_ms=4000"}
    kept = {**settings, "JOBS_DIR": str(tmp_path / "kept")}
    with running(tmp_path / "first", **kept) as endpoint:
        later(endpoint, sleeping(Path("/dev/null"), tmp_path / "never"), "hangs", **soon)
        shown = ended(endpoint, "hangs")
        assert (shown["code"], shown["error"]["code"]) == (504, "deadline_exceeded")
        assert call(endpoint, "/jobs/hangs/result").status == 504
        later(endpoint, sleeping(tmp_path / "runs", tmp_path / "go"), "runs")
        later(endpoint, sleeping(tmp_path / "waits"), "waits")
        noted(tmp_path / "runs")
    (tmp_path / "go").touch()
    assert "are lost" not in endpoint.log.read_text()
    with running(tmp_path / "second", **kept) as endpoint:
        assert call(endpoint, "/jobs/hangs").json == shown
        for identity in ("runs", "waits"):
            assert ended(endpoint, identity)["status"] == "succeeded"
    assert len(noted(tmp_path / "runs", 3)) == 3
    with running(tmp_path / "third", **settings) as endpoint:
        for identity in ("runs", "waits"):
            later(endpoint, sleeping(Path("/dev/null"), tmp_path / "never"), identity)
    assert "2 asynchronous requests are lost" in endpoint.log.read_text()
