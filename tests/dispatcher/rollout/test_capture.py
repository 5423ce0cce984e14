"""Captured requests: what is written of them, and that nothing is lost or delayed silently."""

from __future__ import annotations

import base64
import gzip
import json
import logging
import resource
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from clients.base import Client, Environment, Parameter, Payload
from clients.plugins.registry import Registry
from dispatcher.app import START_HEADER
from dispatcher.rollout import capture as captured
from dispatcher.rollout import capture_files, captured_request
from dispatcher.rollout.capture import Capture
from dispatcher.rollout.plan import Choice
from dispatcher.settings import read_settings
from dispatcher.telemetry.telemetry import Metrics, Telemetry
from tests.conftest import PROJECT
from tests.support.application import make_app, quiet
from tests.support.fake_triton import FakeTriton
from tests.support.telemetry import parse_page, value

PICTURE = (PROJECT / "tests" / "pictures" / "chelsea.png").read_bytes()
IMG = base64.b64encode(PICTURE).decode()
JSON, SECRET = "application/json", "a-text-that-only-the-caller-may-see"
NOON = 1_800_000_000.0 // 86400 * 86400 + 43200


class Colour(Client):
    modelname = "colour"
    compared_as = "vectors"
    example = {"img": ""}
    media = {"picture": "img"}
    drawn_as = ("image/png",)
    parameters = {"factor": Parameter(1.0, 0, 10, "what to multiply by")}

    def inference(self, payload: Payload) -> Any:
        return [one * self.request.parameters["factor"] for one in self.picture(payload)[0, 0]]

    def draw(self, payload: Payload, result: Any, media_type: str) -> bytes:
        return PICTURE


class Letters(Client):
    modelname = "letters"
    example = {"text": ""}
    media = {"text": "text"}

    def inference(self, payload: Payload) -> Any:
        return len(self.text(payload))


class Site:
    """The application, whose captured requests lie in a folder."""

    def __init__(self, folder: Path, **settings: str) -> None:
        self.folder = folder / "captured"
        given = read_settings({"CAPTURE_TO": str(self.folder), **settings})
        server = FakeTriton({"colour": dict, "letters": dict})
        environment = Environment(server, folder)
        registry = Registry({one.modelname: one(environment) for one in (Colour, Letters)})
        self.telemetry = Telemetry(Metrics(registry.clients))
        app = make_app(given, registry, environment, quiet(server), telemetry=self.telemetry)
        self.client: FlaskClient = app.test_client()
        self.capture: Capture = self.telemetry.capture.__self__  # type: ignore[union-attr]

    def ask(self, path: str, body: Any, media_type: str = JSON, **headers: str) -> TestResponse:
        given = {name.replace("_", "-"): text for name, text in headers.items()}
        given[START_HEADER] = str(time.time())
        data = body if isinstance(body, bytes) else json.dumps(body)
        answer = self.client.post(path, data=data, content_type=media_type, headers=given)
        answer.get_data()
        answer.close()
        return answer

    def lines(self) -> list[dict[str, Any]]:
        self.capture.flush()
        files = sorted(self.folder.rglob("*.jsonl"))
        return [json.loads(line) for file in files for line in file.read_text().splitlines()]

    def counted(self, outcome: str) -> float:
        page = parse_page(self.telemetry.metrics.page().decode())
        return value(page, "dispatcher_captured_requests_total", outcome=outcome)

    def restore(self, line: dict[str, Any], part: str = "endpointInput") -> bytes:
        """Return a body or an answer, as docs/operations.md says."""
        (folder,) = {file.parent for file in self.folder.rglob("*.jsonl")}
        text: str = line["captureData"][part]["data"]
        for name in line["dispatcher"].get("files", []):
            content = base64.b64encode((folder / name).read_bytes()).decode()
            text = text.replace(f"@file:{name}", content)
        is_binary = line["captureData"][part]["encoding"] == "BASE64"
        return base64.b64decode(text) if is_binary else text.encode()


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Site]:
    monkeypatch.setattr(captured, "BATCH_S", 3600.0)  # nothing is written unless it is asked for
    return lambda **settings: Site(tmp_path, **settings)


def test_a_line_is_that_of_data_capture_without_what_came(start: Callable[..., Site]) -> None:
    site = start()
    site.client.get("/ping")  # which finds the versions here
    answer = site.ask(
        "/invocations?factor=2",
        {"modelname": "colour", "payload": {"img": IMG}},
        X_Amzn_SageMaker_Inference_Id="mine",
        X_Amzn_SageMaker_Custom_Attributes="trace=7",
        Authorization=f"Bearer {SECRET}",
    )
    (line,) = site.lines()
    ours = line.pop("dispatcher")
    assert line["eventMetadata"].pop("inferenceTime")[-1] == "Z"
    assert line == {
        "captureData": {
            "endpointInput": {"observedContentType": JSON, "mode": "INPUT"},
            "endpointOutput": {
                "observedContentType": JSON,
                "mode": "OUTPUT",
                "data": answer.text,
                "encoding": "JSON",
            },
        },
        "eventMetadata": {
            "eventId": "mine",
            "inferenceId": "mine",
            "customAttributes": ["trace=7"],
        },
        "eventVersion": "0",
    }
    assert ours.pop("phases_ms").keys() >= {"total", "decode", "class"}
    assert ours == {
        "model": "colour",
        "version": "1",
        "compared_as": "vectors",
        "path": "/invocations",
        "query": "factor=2",
        "headers": {"X-Amzn-SageMaker-Custom-Attributes": "trace=7"},
        "parameters": {"factor": 2.0},
        "status": 200,
    }
    assert SECRET not in json.dumps([line, ours])
    assert site.counted("written") == 1


FORM = (
    b"--x\r\nContent-Disposition: form-data; name=f; filename=a.png\r\n"
    b"Content-Type: image/png\r\n\r\n" + PICTURE + b"\r\n--x--\r\n"
)
LINES = b"\n".join(
    json.dumps({"modelname": "letters", "payload": {"text": f"a{n}"}}).encode() for n in range(3)
)
SPACED = b'{ "payload": [ {"img":"data:image/png;base64,%s"},\n {"img":"%s"} ] }'
# What looks like base64, and would not come back as it is.
ODD = json.dumps({"payload": {"text": "a" * 1025, "b": "a" * 1025 + "b==", "c": IMG[:1500] + "="}})
BODIES = {
    "odd": ("/infer/letters", ODD.encode(), JSON, 0),
    "json": ("/infer/colour", SPACED % (IMG.encode(), IMG.encode()), JSON, 1),
    "picture": ("/infer/colour", PICTURE, "image/png", 1),
    "lines": ("/invocations", LINES, "application/jsonlines", 0),
    "form": ("/infer/colour", FORM, "multipart/form-data; boundary=x", 1),
    "text": ("/infer/letters", "ä".encode("latin-1"), "text/plain; charset=latin1", 0),
    "refused": ("/infer/letters", b'{"payload": {"text": 1}}', JSON, 0),
}


@pytest.mark.parametrize("form", BODIES)
@pytest.mark.parametrize("packed", [False, True])
def test_a_body_is_restored_bit_for_bit(
    start: Callable[..., Site], form: str, packed: bool
) -> None:
    path, body, media_type, pictures = BODIES[form]
    sent = gzip.compress(body) if packed else body
    site = start(CAPTURE_PAYLOADS="true")
    answer = site.ask(path, sent, media_type, **({"Content_Encoding": "gzip"} if packed else {}))
    (line,) = site.lines()
    assert site.restore(line) == sent
    assert site.restore(line, "endpointOutput") == answer.data
    assert line["captureData"]["endpointInput"]["observedContentType"] == media_type
    if not packed:
        assert len(line["dispatcher"].get("files", [])) == pictures


def test_hidden_fields_are_nowhere(start: Callable[..., Site]) -> None:
    site = start(CAPTURE_PAYLOADS="true", CAPTURE_HIDE="img, user=hash")
    body = {"modelname": "colour", "payload": [{"img": IMG}, {"img": SECRET, "user": SECRET}]}
    attributes = f"user={SECRET};factor=3"
    headers = {"X_Amzn_SageMaker_Custom_Attributes": attributes}
    assert site.ask(f"/invocations?user={SECRET}", body, **headers).status_code == 400
    site.ask("/infer/letters", f"{SECRET}".encode(), "text/plain")
    first, second = site.lines()
    assert SECRET not in json.dumps([first, second])
    assert IMG[:100] not in json.dumps(first)
    hashed = json.loads(first["captureData"]["endpointInput"]["data"])["payload"][1]["user"]
    assert hashed.startswith("sha256:")
    assert first["eventMetadata"]["customAttributes"] == [f"user={hashed};factor=3"]
    assert "CAPTURE_HIDE" in second["captureData"]["endpointInput"]["left_out"]


def test_a_tensor_is_hidden_by_its_name(start: Callable[..., Site]) -> None:
    site = start(CAPTURE_PAYLOADS="true", CAPTURE_HIDE="secret")
    tensors = [{"name": name, "shape": [1], "data": [name * 3]} for name in ("secret", "open")]
    site.ask("/v2/models/letters/infer", {"inputs": tensors})
    data = site.lines()[0]["captureData"]["endpointInput"]["data"]
    assert "secretsecretsecret" not in data
    assert "openopenopen" in data


def test_without_payloads_errors_do_not_quote_them(start: Callable[..., Site]) -> None:
    site = start()
    service = {"modelname": "colour", "payload": {}, "parameters": {"factor": SECRET}}
    assert SECRET[:4] in site.ask("/endpoints/x/invocations", service).text
    site.ask("/infer/colour", {"payload": {"img": SECRET}})
    one = json.dumps({"modelname": "letters", "payload": {"text": 1, SECRET: 2}}).encode()
    site.ask("/invocations", one + b"\n" + LINES, "application/jsonlines")
    service, first, second = site.lines()
    assert SECRET[:4] not in json.dumps([service, first, second])
    assert (first["dispatcher"]["status"], first["dispatcher"]["code"]) == (400, "bad_payload")
    assert '{"code":"bad_payload"}' in second["captureData"]["endpointOutput"]["data"]


def test_without_payloads_no_copy_of_a_picture_is_kept(start: Callable[..., Site]) -> None:
    for payloads in ("false", "true"):
        site = start(CAPTURE_PAYLOADS=payloads)
        assert site.ask("/infer/colour", PICTURE, "image/png", Accept="image/png").data == PICTURE
        answered = site.lines()[-1]["captureData"]["endpointOutput"]
        assert ("data" in answered, "left_out" in answered) == (
            payloads == "true",
            payloads != "true",
        )


def test_requests_are_sampled_by_model_and_minute(start: Callable[..., Site]) -> None:
    site = start(CAPTURE_SHARE="0, letters=0.5", CAPTURE_PER_MINUTE="20")
    now = [0.0]
    site.capture.clock = lambda: now[0]
    site.capture._minute = 0.0

    def ask(count: int) -> int:
        for number in range(count):
            site.ask("/infer/colour", PICTURE, "image/png", X_Request_Id=f"id-{number}")
            body = {"payload": {"text": "a"}}
            site.ask("/infer/letters", body, X_Request_Id=f"id-{number}")
        return len(site.lines())

    few = ask(20)
    assert 5 <= few <= 15
    assert ask(20) == min(20, 2 * few)  # the same ids, the same choice
    assert ask(20) == 20
    now[0] += captured.MINUTE_S
    assert ask(20) == 20 + few


def test_only_what_asks_a_model_is_captured(start: Callable[..., Site]) -> None:
    site = start()
    site.ask("/invocations", {"payload": {}})  # names no model
    site.client.get("/models", headers={START_HEADER: str(time.time())}).close()
    site.client.post("/infer/colour", data=PICTURE).close()  # of `serve`, not of a caller
    assert site.ask("/infer/colour", PICTURE, "image/png", X_Replay="true").status_code == 200
    assert site.lines() == []


@contextmanager
def first_warning(caplog: pytest.LogCaptureFixture) -> Iterator[list[str]]:
    found: list[str] = []
    with caplog.at_level(logging.WARNING):
        yield found
    found += [one.message for one in caplog.records]


def test_a_place_that_cannot_be_used_is_logged_once_and_serving_goes_on(
    start: Callable[..., Site], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "captured").write_text("a file")
    with first_warning(caplog) as warnings:
        site = start()
        for _ in range(3):
            assert site.ask("/infer/colour", PICTURE, "image/png").status_code == 200
            site.capture.flush()
            site.capture._note("requests are not captured", "")  # as a smaller one was written
    (said,) = warnings
    assert said.startswith(f"requests are not captured: {tmp_path / 'captured'}: ")
    assert said.endswith("set CAPTURE_TO to another place")
    assert (site.counted("not_written"), site.counted("written")) == (3, 0)


def test_a_full_disk_leaves_whole_lines(
    start: Callable[..., Site], caplog: pytest.LogCaptureFixture
) -> None:
    site = start()
    site.ask("/infer/colour", PICTURE, "image/png")
    before = site.lines()
    (file,) = site.folder.rglob("*.jsonl")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    site.ask("/infer/colour", PICTURE, "image/png")
    resource.setrlimit(resource.RLIMIT_FSIZE, (file.stat().st_size + 100, limits[1]))
    try:
        with first_warning(caplog) as warnings:
            assert site.lines() == before
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "No space left on device" in "".join(warnings)
    site.ask("/infer/colour", PICTURE, "image/png")
    assert len(site.lines()) == 2
    assert (site.counted("not_written"), site.counted("written")) == (1, 2)


def test_others_keep_room_on_the_disk(
    start: Callable[..., Site], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capture_files, "LEFT_SHARE", 1.1)
    monkeypatch.setattr(capture_files, "LEFT_BYTES", 2**80)
    site = start()
    site.ask("/infer/colour", PICTURE, "image/png")
    assert site.lines() == []


def test_the_queue_is_bounded(start: Callable[..., Site], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(captured, "MAX_BYTES", 2 * len(PICTURE) + 1000)
    site = start(CAPTURE_PAYLOADS="true")
    for _ in range(4):
        assert site.ask("/infer/colour", PICTURE, "image/png").status_code == 200
    assert site.counted("queue_full") == 2
    assert len(site.lines()) == 2
    site.ask("/infer/colour", PICTURE, "image/png")
    assert len(site.lines()) == 3


def test_the_measure_of_each_of_several_models_is_said(start: Callable[..., Site]) -> None:
    site = start()
    body = {"modelname": ["letters", "colour"], "payload": {"img": IMG, "text": "a"}}
    assert site.ask("/invocations", body).status_code == 200
    ours = site.lines()[0]["dispatcher"]
    measures = dict(zip(ours["model"].split(","), ours["compared_as"].split(","), strict=True))
    assert measures == {"letters": "values", "colour": "vectors"}


def test_what_a_canary_answers_is_said(start: Callable[..., Site]) -> None:
    """In the record; tests of rollouts see that it is there."""
    site = start()
    site.ask("/infer/colour", PICTURE, "image/png")
    ((one, _),) = site.capture._waiting
    one.record.choice = Choice("letters", "3", "canary")
    (line,) = site.lines()
    ours = line["dispatcher"]
    said = {name: ours[name] for name in ("model", "choice", "answered_by", "version")}
    canary = {"choice": "canary", "answered_by": "letters", "version": "3"}
    assert said == {"model": "colour", **canary}
    assert ours["compared_as"] == "values"


def test_a_folder_that_is_emptied_is_made_again(start: Callable[..., Site]) -> None:
    site = start()
    site.ask("/infer/colour", PICTURE, "image/png")
    assert len(site.lines()) == 1
    shutil.rmtree(site.folder)
    site.ask("/infer/colour", PICTURE, "image/png")
    assert len(site.lines()) == 1
    assert site.counted("written") == 2
    shutil.rmtree(site.folder)
    site.capture.flush()
    site.capture.close()
    assert not [*site.folder.rglob("*.jsonl")]  # an empty one says nothing


def test_what_is_too_large_is_left_out(
    start: Callable[..., Site], monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (captured, captured_request):
        monkeypatch.setattr(module, "MAX_PART", 200)
    site = start(CAPTURE_PAYLOADS="true")
    site.ask("/invocations", LINES + b"\n" + LINES, "application/jsonlines")
    site.ask("/invocations", b"{}", "application/jsonlines")  # no model, and a line all the same
    line, _ = site.lines()
    for part in line["captureData"].values():
        assert part["left_out"].startswith("it is larger than")


def test_files_are_bounded_by_hour_and_size_and_removed_in_time(
    start: Callable[..., Site], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capture_files, "MAX_FILE", 1000)
    site = start(CAPTURE_KEEP_DAYS="2")
    now = [NOON]
    site.capture.files.clock = lambda: now[0]
    (site.folder / "notes.txt").write_text("of somebody else")

    def hours() -> dict[str, int]:
        for _ in range(2):
            site.ask("/infer/colour", PICTURE, "image/png")
            site.capture.flush()
        site.capture.tidy()
        files = [one.relative_to(site.folder).parts for one in site.folder.rglob("*.jsonl")]
        return {"/".join(parts[2:4]): files.count(parts) for parts in files}

    day = time.gmtime(NOON).tm_mday
    one = f"{day:02}/12"
    assert len([*site.folder.rglob("*.jsonl")]) <= 1
    assert one in hours()
    now[0] += 3600
    assert {one, f"{day:02}/13"} <= hours().keys()
    now[0] += 2 * 86400
    assert one not in hours()
    assert f"{day:02}/13" in hours()
    now[0] += 86400
    assert f"{day:02}/13" not in hours()
    assert (site.folder / "notes.txt").exists()
