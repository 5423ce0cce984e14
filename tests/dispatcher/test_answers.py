"""What comes back: types, lines, drawings, headers; and the routes of the platform."""

from __future__ import annotations

import gzip
import io
import json
import re
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event, Semaphore
from typing import Any

import numpy as np
import pytest
from flask.testing import FlaskClient
from PIL import Image

from clients.base import Environment
from clients.errors import DeadlineExceeded
from clients.images.drawing import Box, draw_boxes
from clients.plugins.registry import Registry
from clients.tensors.classes import classified
from clients.tensors.client import TensorResult
from clients.triton.server import ModelState, Tensors
from dispatcher.codecs.json_encoding import encode
from dispatcher.execution.admission import Admission
from dispatcher.settings import MANAGING, Settings, read_settings
from tests.dispatcher.test_asking import PNG, ask, client, repository, server
from tests.dispatcher.test_http import Red, assert_error, built_in, image
from tests.support.application import make_app, quiet
from tests.support.fake_triton import Arrays, FakeTriton

__all__ = ["built_in", "client", "repository", "server"]  # fixtures


# Accept


@pytest.mark.parametrize(
    ("accept", "content_type"),
    [
        ("", "application/json"),
        ("*/*", "application/json"),
        ("application/json;verbose=true", "application/json"),
        ("text/html, application/json;q=0.5", "application/json"),
        ("image/png", "image/png"),
        ("image/jpeg", "image/jpeg"),
        ("image/*;q=0.9, application/json;q=0.8", "image/jpeg"),
        ("image/png; q=0.9, application/json; q=0.1", "image/png"),
        ("application/json; verbose=true ; q=0.1, image/png; q=0.9", "image/png"),
        ("text/html, image/gif, image/jpeg, *; q=.2, */*; q=.2", "application/json"),
        ("text/html, image/gif, image/jpeg, */*; q=0.2", "application/json"),
        ("text/html,image/webp,image/png,image/svg+xml,*/*;q=0.8", "application/json"),
        ("text/html;q=0.1, image/png", "image/png"),
        ("text/html;q=0, image/png, */*;q=0.1", "image/png"),
        ("text/html;q=0., application/json;q=0, */*", "image/jpeg"),
        ("text/html;q=.001, image/png, */*;q=0.1", "application/json"),
        ("*", "application/json"),
        ("application/json;q=.5, image/png;q=1.", "image/png"),
        ("application/json;Q=.1, image/png;q=.05", "application/json"),
        ("application/json; q = 0.1, image/png; q = 0.9", "image/png"),
        ('application/json;p="a,b;q=1";q=0.1, image/png;q=0.9', "image/png"),
        (", application/json;; ,", "application/json"),
    ],
)
def test_the_answer_is_of_a_type_that_is_accepted(
    client: FlaskClient, accept: str, content_type: str
) -> None:
    headers = {"Accept": accept, "Content-Type": "image/png"}
    response = client.post("/infer/yolov5", data=PNG, headers=headers)
    assert response.status_code == 200
    assert response.content_type == content_type


@pytest.mark.parametrize(
    ("path", "accept"),
    [
        ("/infer/yolov5", "text/html"),
        ("/infer/resnet", "image/png"),
        ("/infer/yolov5", "application/x-npy"),
        ("/infer/yolov5", "application/jsonlines"),
        ("/infer/yolov5", "application/json;q=0"),
        ("/infer/yolov5", "application/json; q=0"),
        ("/infer/yolov5", "application/json; q=.0"),
        ("/infer/yolov5", "text/html, *;q=0."),
    ],
)
def test_else_it_is_406_and_the_model_is_not_asked(
    client: FlaskClient, server: FakeTriton, path: str, accept: str
) -> None:
    headers = {"Accept": accept, "Content-Type": "image/png"}
    response = client.post(path, data=PNG, headers=headers)
    assert_error(response, 406, "not_acceptable", "application/json")
    assert server.calls == []


@pytest.mark.parametrize(
    "accept",
    [
        "application/json;q=0,9, image/png;q=0,5",
        "image/png, application/json;q=0x1",
        "image/png, application/json;q=1_0",
        "image/png, application/json;q=\u0661",
        "image/png, application/json;q=1e400",
        "image/png, application/json;q=2",
        "image/png, application/json;q=",
        "image/png, application/json;q=0.5;q=0.6",
        "image/png, application/json;q=0.5 x",
        "image/png, application/json;0.5",
        "image/png, application/json q=1",
        "image/png, json",
        ";q=1",
    ],
)
def test_an_accept_header_that_cannot_be_read_is_refused(client: FlaskClient, accept: str) -> None:
    headers = {"Accept": accept.encode().decode("latin-1"), "Content-Type": "image/png"}
    response = client.post("/infer/yolov5", data=PNG, headers=headers)
    assert_error(response, 400, "bad_header", "Accept", "application/json;q=0.9, image/png;q=0.1")
    response = client.post(
        "/infer/yolov5", data=PNG, content_type="image/png",
        headers={"Accept": "application/json;q=0.9, image/png;q=0.1"},
    )  # fmt: skip
    assert response.content_type == "application/json"


@pytest.mark.parametrize("form", ["compact", "objects"])
def test_a_detector_draws_its_boxes(client: FlaskClient, form: str) -> None:
    """The box found has its left edge at x = 45 and its right one at 55, from y 22.5 to 27.5."""
    response = client.post(
        f"/infer/yolov5?format={form}",
        data=PNG,
        headers={"Accept": "image/png", "Content-Type": "image/png"},
    )
    drawn = np.asarray(Image.open(io.BytesIO(response.data)).convert("RGB"))
    assert drawn.shape == (50, 100, 3)
    changed = (drawn != [255, 0, 0]).any(2)
    assert changed[27, 45:56].all(), "the box's lower edge"
    assert not changed[:21].any(), "above the box nothing is drawn"
    assert not changed[:, :43].any()


def test_drawing_ends_with_the_time_of_the_request() -> None:
    looks: list[int] = []

    def look() -> None:
        looks.append(1)
        if len(looks) > 2:
            raise DeadlineExceeded("too late")

    picture = np.zeros((20, 20, 3), np.uint8)
    with pytest.raises(DeadlineExceeded):
        draw_boxes(picture, [Box(1, 1, 9, 9, "a", 0.5, 0)] * 9, "image/png", look)
    assert len(looks) == 3


def test_a_list_comes_in_lines_where_they_are_accepted(client: FlaskClient) -> None:
    response = client.post(
        "/infer/resnet?top_k=1",
        json={"payload": [{"img": image(Red)}, {"img": image([0, 0, 255])}]},
        headers={"Accept": "application/jsonlines"},
    )
    assert "Content-Length" not in response.headers, "nobody waits for all of it"
    assert [json.loads(line) for line in response.text.splitlines()] == [
        ["1.000000:7:cock"],
        ["1.000000:5:electric ray, crampfish, numbfish, torpedo"],
    ]


LINES = "application/jsonlines"
LINES_ACCEPTED = [
    ("", LINES),
    ("*/*", LINES),
    ("application/jsonlines", LINES),
    ("application/jsonlines, application/json", LINES),
    ("application/json, text/plain, */*", LINES),  # axios
    ("application/json", "application/json"),
    ("application/json; charset=utf-8", "application/json"),
    ("application/json, application/*+json", "application/json"),  # Spring's RestTemplate
    ("application/json, */*;q=0.5", "application/json"),
    ("application/json;q=0.5, application/jsonlines", LINES),
]


@pytest.mark.parametrize(("accept", "content_type"), LINES_ACCEPTED)
def test_lines_are_answered_in_lines_or_in_one_document_of_json(
    client: FlaskClient, accept: str, content_type: str
) -> None:
    one = '{"modelname": "%s", "payload": {"text": "a [MASK]"}, "parameters": {"top_k": 1}}\n'
    response = client.post(
        "/invocations",
        data=one % "bert_base" + "{\n" + one % "nosuch" + one % "bert_base",
        headers={"Content-Type": LINES, "Accept": accept},
    )
    assert response.status_code == 200
    assert response.content_type == content_type
    if content_type == LINES:
        answers = [json.loads(line) for line in response.text.splitlines()]
    else:
        assert set(response.json or {}) == {"results"}
        answers = (response.json or {})["results"]
    assert [answer["status"] for answer in answers] == [200, 400, 404, 200]
    assert [answers[n]["result"][0]["token"] for n in (0, 3)] == ["a many", "a many"]


def test_no_lines_are_an_empty_document(client: FlaskClient) -> None:
    headers = {"Content-Type": LINES, "Accept": "application/json"}
    assert client.post("/invocations", data=b"\n", headers=headers).json == {"results": []}


def test_lines_in_neither_are_406(client: FlaskClient, server: FakeTriton) -> None:
    headers = {"Content-Type": LINES, "Accept": "text/csv"}
    response = client.post("/invocations", data=b"{}", headers=headers)
    assert_error(response, 406, "not_acceptable", "application/jsonlines", "application/json")
    assert server.calls == []


def test_objects_have_named_fields(client: FlaskClient) -> None:
    response = client.post("/infer/yolov5?format=objects", data=PNG, content_type="image/png")
    assert (response.json or {})["result"] == [
        {
            "label": "car",
            "index": 2,
            "score": 0.75,
            "box": {"x1": 45.0, "y1": 22.5, "x2": 55.0, "y2": 27.5},
        }
    ]
    response = client.post(
        "/infer/resnet?format=objects&top_k=1", data=PNG, content_type="image/png"
    )
    assert (response.json or {})["result"] == [{"label": "cock", "index": 7, "score": 1.0}]


# Packing, headers


@pytest.mark.parametrize("packed", [True, False])
def test_a_large_body_counts_as_one_however_it_was_packed(
    server: FakeTriton, built_in: Registry, repository: Path, packed: bool
) -> None:
    """3 MB in 3 kB, beside others that leave room for 2."""
    admission = Admission(1, 1, 9, 2**20)
    admission.bodies.take(admission.bodies.most - 2 * 10**6)
    client = make_app(
        read_settings({}),
        built_in,
        Environment(server, repository),
        quiet(server),
        admission,
    ).test_client()
    body = json.dumps({"modelname": "bert_base", "payload": {"text": "a" * 3 * 10**6}}).encode()
    headers = {"Content-Encoding": "gzip"} if packed else {}
    sent = gzip.compress(body) if packed else body
    response = client.post("/invocations", data=sent, headers=headers)
    assert_error(response, 429, "too_many_requests", "large requests under way")


@pytest.mark.parametrize("encoding", ["gzip", "x-gzip", "GZip"])
def test_a_packed_body_is_unpacked(client: FlaskClient, encoding: str) -> None:
    body = json.dumps({"modelname": "bert_base", "payload": {"text": "a [MASK]"}}).encode()
    for content_type in ("application/json", "application/jsonlines", ""):
        response = client.post(
            "/invocations",
            data=gzip.compress(body),
            headers={"Content-Encoding": encoding, "Content-Type": content_type},
        )
        assert response.status_code == 200
        assert "a many" in response.text


def test_all_parts_of_a_packed_body_count(client: FlaskClient) -> None:
    # RFC 1952, 2.2: one after the other, as `cat a.gz b.gz` makes them.
    line = json.dumps({"modelname": "bert_base", "payload": {"text": "a [MASK]"}}).encode()
    response = client.post(
        "/invocations",
        data=gzip.compress(line + b"\n") + gzip.compress(line),
        headers={"Content-Encoding": "gzip", "Content-Type": "application/jsonlines"},
    )
    assert [json.loads(one)["status"] for one in response.text.splitlines()] == [200, 200]


@pytest.mark.parametrize("zeros", [1, 512, 70_000])
def test_zeros_behind_a_packed_body_are_passed_over(client: FlaskClient, zeros: int) -> None:
    body = gzip.compress(b'{"modelname": "bert_base", "payload": {"text": "a [MASK]"}}')
    response = client.post(
        "/invocations", data=body + bytes(zeros), headers={"Content-Encoding": "gzip"}
    )
    assert response.status_code == 200


@pytest.mark.parametrize(
    ("data", "encoding", "status", "code"),
    [
        (gzip.compress(b"{}") + b"and more", "gzip", 400, "bad_body"),
        (gzip.compress(b"") * 5000, "gzip", 400, "bad_body"),
        (b"", "gzip", 400, "bad_body"),
        (
            gzip.compress(b" " * 2**19) + gzip.compress(b" " * 2**19 + b" "),
            "gzip",
            413,
            "too_large",
        ),
        (gzip.compress(b" " * (2**20 + 1)), "gzip", 413, "too_large"),
        (b"no gzip", "gzip", 400, "bad_body"),
        (gzip.compress(b"{}" * 100)[:-9], "gzip", 400, "bad_body"),
        (b"{}", "br", 415, "unsupported_type"),
    ],
)
def test_a_packed_body_that_is_not_taken(
    client: FlaskClient, data: bytes, encoding: str, status: int, code: str
) -> None:
    response = client.post("/invocations", data=data, headers={"Content-Encoding": encoding})
    assert_error(response, status, code)


def test_numbers_that_json_cannot_hold_are_null_and_counted(client: FlaskClient) -> None:
    response = ask(client, modelname="noted", payload={})
    assert (response.json or {})["result"] == [None, None, 1.5]
    assert response.headers["X-Non-Finite-Values"] == "2"


def unsure(inputs: Tensors) -> Arrays:
    """Class 1 scores infinity, class 3 5.5, class 2 nothing that is a number; others less."""
    logits = np.full((len(inputs["input"]), 1000), -9, np.float32)
    logits[:, [1, 3, 2]] = [np.inf, 5.5, np.nan]
    return {"output": logits}


def test_scores_that_are_not_finite_are_null_and_counted_in_every_form(
    client: FlaskClient, server: FakeTriton
) -> None:
    server.models_run["resnet"] = unsure
    img = {"img": image(Red)}
    texts = ["null:1:goldfish, Carassius auratus"]  # lines 2 and 4 of the model's labels
    texts.append("5.500000:3:tiger shark, Galeocerdo cuvieri")

    def asked(**body: Any) -> tuple[Any, str | None]:
        response = ask(client, parameters={"top_k": 2}, **body)
        assert "nan" not in response.text
        assert "inf" not in response.text
        return response.json, response.headers.get("X-Non-Finite-Values")

    one, count = asked(modelname="resnet", payload=img)
    assert (one["result"], count) == (texts, "1")
    several, count = asked(modelname="resnet", payload=[img, img, img])
    assert (several["result"], count) == ([texts] * 3, "3")
    named, count = asked(modelname=["resnet", "nosuch"], payload=img)
    assert (named["results"]["resnet"]["result"], count) == (texts, "1")
    request = {"modelname": "resnet", "payload": img, "parameters": {"top_k": 1000}}
    mixed = ask(client, requests=[request, request])
    assert mixed.headers["X-Non-Finite-Values"] == "4"
    assert (mixed.json or {})["results"][1]["result"][-1].startswith("null:2:")
    lines = client.post(
        "/infer/resnet?top_k=2",
        json={"payload": [img]},
        headers={"Accept": "application/jsonlines"},
    )
    assert json.loads(lines.text) == texts


def test_classes_of_a_tensor_that_are_not_finite_are_null_and_counted() -> None:
    scores = np.array([[1, np.nan, -np.inf]], np.float32)
    classes = classified(scores, 3, [b"a", b"b", b"c"], batched=True)
    text, count = encode(TensorResult("m", "", {"y": classes, "z": scores}, "", {"y"}).body())
    y, z = json.loads(text)["outputs"]
    assert y["data"] == ["1.000000:0:a", "null:2:c", "null:1:b"]
    assert z["data"] == [1, None, None]
    assert count == 4


def test_a_client_s_attributes_go_back_and_cannot_end_the_header(client: FlaskClient) -> None:
    response = client.post(
        "/infer/noted",
        json={"payload": {}},
        headers={"X-Amzn-SageMaker-Custom-Attributes": "trace=7"},
    )
    header = response.headers["X-Amzn-SageMaker-Custom-Attributes"]
    assert header == "seen=7;evil=a??Set-Cookie: b"
    assert (
        "X-Amzn-SageMaker-Custom-Attributes" not in ask(client, payload={"text": "[MASK]"}).headers
    )


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"X-Amzn-SageMaker-Inference-Id": "a-1", "X-Request-Id": "b"}, "a-1"),
        ({"X-Request-Id": "b.2_c"}, "b.2_c"),
        ({"X-Request-Id": "x" * 128}, "x" * 128),
        ({"X-Amzn-SageMaker-Inference-Id": "order 17/3", "X-Request-Id": "b"}, "b"),
        ({"X-Amzn-SageMaker-Inference-Id": "x" * 129, "X-Request-Id": "b"}, "b"),
    ],
)
def test_the_caller_s_request_id_comes_back(
    client: FlaskClient, headers: dict[str, str], expected: str
) -> None:
    for path in ("/ping", "/nowhere"):
        assert client.get(path, headers=headers).headers["X-Request-Id"] == expected


@pytest.mark.parametrize("said", ["ab<script>", "x" * 129, "a b", "ä", ""])
def test_one_that_a_log_cannot_hold_is_another(client: FlaskClient, said: str) -> None:
    given = client.get("/ping", headers={"X-Request-Id": said}).headers["X-Request-Id"]
    assert re.fullmatch("[0-9a-f]{32}", given)


def test_every_answer_says_where_the_time_went(client: FlaskClient) -> None:
    timing = ask(client, payload={"text": "[MASK]"}).headers["Server-Timing"]
    names = [part.partition(";")[0] for part in timing.split(", ")]
    assert names == ["queue", "decode", "inference", "postprocess"]
    assert "queue;dur=" in client.get("/nowhere").headers["Server-Timing"]


# The platform's routes


@pytest.fixture
def plain_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    (folder / "model.onnx").write_bytes(b"x")
    return folder


def test_load_invoke_list_unload(
    client: FlaskClient,
    server: FakeTriton,
    repository: Path,
    plain_model: Path,
) -> None:
    name = "0a1b2c3d"
    assert client.post(f"/models/{name}/invoke", data=b"{").status_code == 404  # unread
    url = f"file://{plain_model}/"
    body = {"model_name": name, "url": url}
    assert client.post("/models", json=body).status_code == 200
    assert (repository / name / "1" / "model.onnx").read_bytes() == b"x"
    assert_error(client.post("/models", json=body), 409, "already_loaded")
    entry = client.get(f"/models/{name}").json or {}
    assert (entry["modelName"], entry["modelUrl"]) == (name, url)
    assert set(entry) == {
        *("modelName", "modelUrl", "version", "state"),
        *("client", "weights", "parameters", "example", "aliases", "batching"),
    }
    listed = [one["modelName"] for one in (client.get("/models").json or {})["models"]]
    assert name in listed
    resnet = client.get("/models/resnet").json or {}
    assert resnet["batching"] == {"max_batch_size": 4, "requests_share_runs": True}
    yolov5 = client.get("/models/yolov5").json or {}
    assert yolov5["batching"] == {"max_batch_size": 4, "requests_share_runs": False}
    assert client.delete(f"/models/{name}").status_code == 200
    assert not (repository / name).exists()
    assert client.get(f"/models/{name}").status_code == 404
    assert client.delete(f"/models/{name}").status_code == 404
    assert client.post(f"/models/{name}/invoke", data=b"{").status_code == 404


def test_who_looks_at_the_models_does_not_wait_for_those_who_unload_them(
    client: FlaskClient, server: FakeTriton, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model that owes an answer is long in unloading, and several of them take all turns."""
    under_way, end = Semaphore(0), Event()

    def unload(model: str, *, timeout: float) -> None:
        under_way.release()
        end.wait(20)

    monkeypatch.setattr(server, "unload", unload)
    names = [f"m{number}" for number in range(MANAGING)]
    server.models_run |= dict.fromkeys(names, dict)
    app = client.application
    with ThreadPoolExecutor() as pool:
        try:
            gone = [pool.submit(app.test_client().delete, f"/models/{name}") for name in names]
            for _ in names:
                assert under_way.acquire(timeout=10)
            looks = [pool.submit(app.test_client().get, p) for p in ("/models", "/models/m0") * 3]
            assert [look.result(5).status_code for look in looks] == [200] * 6
            assert pool.submit(app.test_client().head, "/models").result(5).status_code == 200
        finally:
            end.set()
        assert [one.result(5).status_code for one in gone] == [200] * MANAGING


def test_who_manages_models_and_has_no_turn_in_time_is_told_so(
    server: FakeTriton, built_in: Registry, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Settings, "managing_wait", 0.05)
    admission = Admission(1, 1, 9, 1)
    for _ in range(MANAGING):
        admission.management.enter("change", time.monotonic() + 9)
    environment = Environment(server, repository)
    client = make_app(
        read_settings({}), built_in, environment, quiet(server), admission
    ).test_client()
    response = client.post("/load_model/m")
    assert_error(response, 504, "deadline_exceeded", "others load, unload", "UNLOADING")
    assert "send" not in response.text
    assert client.get("/models").status_code == 200


def test_a_model_that_cannot_be_loaded_leaves_nothing_behind(
    client: FlaskClient,
    server: FakeTriton,
    repository: Path,
    plain_model: Path,
) -> None:
    server.refuse_to_load = "no ONNX file"
    response = client.post("/models", json={"model_name": "m", "url": str(plain_model)})
    assert_error(response, 400, "bad_model", "no ONNX file")
    assert list(repository.iterdir()) == []
    assert client.get("/ping").status_code == 200


def test_a_model_that_does_not_fit_is_507(
    client: FlaskClient, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    source = tmp_path_factory.mktemp("model")
    (source / "model.onnx").write_bytes(b"x")
    monkeypatch.setattr("dispatcher.model_control.load_unload.free_memory", lambda: 100 * 2**20)
    response = client.post("/models", json={"model_name": "m", "url": str(source)})
    assert_error(response, 507, "out_of_memory", "150 MiB", "100 MiB")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"{", ["not JSON"]),
        (b"[]", ["[]"]),
        (b'{"model_name": "m"}', ["`url` is None"]),
        (b'{"model_name": 5, "url": "/"}', ["`model_name` is 5"]),
        (b'{"model_name": "../m", "url": "/"}', ["'../m'"]),
        (b'{"model_name": ".m", "url": "/"}', ["'.m'"]),
        (b'{"model_name": "m/n", "url": "/"}', ["'m/n'"]),
        (b'{"model_name": "m", "url": "relative"}', ["'relative'", "absolute"]),
        (b'{"model_name": "m", "url": "/no/such/folder"}', ["/no/such/folder"]),
        (b'{"model_name": "m", "url": "s3://bucket/m"}', ["s3://"]),
        (b'{"model_name": "m", "url": "/etc\\u0000"}', ["`url`"]),
    ],
)
def test_a_bad_load_is_400(client: FlaskClient, body: bytes, words: list[str]) -> None:
    response = client.post("/models", data=body)
    assert response.status_code == 400
    for word in words:
        assert word in response.text


def test_execution_parameters(client: FlaskClient) -> None:
    """One record at a time is what every content type takes; several are for JSON lines alone."""
    assert client.get("/execution-parameters").json == {
        "MaxConcurrentTransforms": 16,
        "BatchStrategy": "SINGLE_RECORD",
        "MaxPayloadInMB": 1,
    }


def test_pages_of_models(client: FlaskClient, server: FakeTriton) -> None:
    server.models_run |= {f"m{i:03}": dict for i in range(150)}
    names, token = [], ""
    while True:
        page = client.get(f"/models?next_page_token={token}").json or {}
        names += [one["modelName"] for one in page["models"]]
        assert len(page["models"]) <= 100
        token = page.get("nextPageToken", "")
        if not token:
            break
    assert len(names) == len(set(names)) == 150 + 6
    assert names == sorted(names)


def test_health_says_what_ping_says(client: FlaskClient, server: FakeTriton) -> None:
    health = client.get("/health")
    assert health.status_code == 200
    assert (health.json or {})["ready"] is True
    one = next(m for m in (health.json or {})["models"] if m["model"] == "resnet")
    assert one == {
        "model": "resnet",
        "version": "1",
        "state": "READY",
        "reason": "",
        "required": True,
        "canary": None,
    }
    server.unloaded.add("resnet")
    assert client.get("/health").status_code == client.get("/ping").status_code == 503
    server.states = [ModelState("resnet", "", "")]  # its configuration was refused
    (one,) = (client.get("/health").json or {})["models"]
    assert one["state"] == "NOT LOADED"
    assert "Triton's log has the reason" in one["reason"]
    assert_error(client.get("/ping"), 503, "not_ready", "Triton's log has the reason")
