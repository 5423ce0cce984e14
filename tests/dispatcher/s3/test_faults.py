"""What goes wrong with S3: what its client raises, and what the caller reads."""

from __future__ import annotations

import base64
import json
import logging
import subprocess
import sys
import threading
import time
from typing import Any

import pytest
from flask.testing import FlaskClient

from dispatcher.codecs.content_types import LargeBodies
from tests.conftest import PATIENCE_S, PROJECT, free_ports
from tests.dispatcher.s3.conftest import MakeClient, png
from tests.support.proxies import HttpRequest, always, http_server, proxy
from tests.support.s3 import FULL, READER, SECRET, S3Server
from tests.support.stand_ins import assert_error

RED = {"s3_key": "images/red.png"}


def ask(client: FlaskClient, fields: Any = RED) -> Any:
    return client.post("/infer/colour", json=fields)


def test_an_object_over_the_limit_is_refused_by_its_header(make: MakeClient) -> None:
    """Not a byte of it is sent. There is no HEAD before: an object may change meanwhile."""
    came: list[HttpRequest] = []
    words = ("1048577 bytes", "MODEL_SERVER_MAX_BODY_MB")
    headers = {"Content-Length": str(2**20 + 1), "Content-Type": "image/png"}
    with http_server(lambda: (200, headers, b""), came) as port:
        client = make(AWS_ENDPOINT_URL_S3=f"http://127.0.0.1:{port}", MODEL_SERVER_MAX_BODY_MB="1")
        assert_error(ask(client), 413, "object_too_large", *words)
    assert [method for method, *_ in came] == ["GET"]


def test_a_right_that_lacks_is_403_with_its_name(make: MakeClient, pictures: S3Server) -> None:
    client = make(key=READER)
    assert ask(client).status_code == 200
    words = ("s3:GetObject", "arn:aws:s3:::pictures/texts/note.txt")
    assert_error(ask(client, {"s3_key": "texts/note.txt"}), 403, "object_forbidden", *words)
    stored = client.post("/infer/colour", json={**RED, "output": {}})
    assert_error(stored, 403, "object_forbidden", "s3:PutObject")
    listed = [{"modelname": "colour", **RED, "output": {}}, {"modelname": "colour", **RED}]
    results = client.post("/invocations", json={"requests": listed}).json["results"]
    assert [one["status"] for one in results] == [403, 200]


def test_a_hanging_s3_is_504_in_time_and_slows_nobody_else(
    make: MakeClient, pictures: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dispatcher.s3.reading.S3_AT_A_TIME", 2)
    with proxy(pictures.port, after=0, cut=False) as url:
        client = make(AWS_ENDPOINT_URL_S3=url, MODEL_SERVER_THREADS="1")
        came: list[Any] = []
        hanging = [RED, {"payload": [RED, RED]}, {"requests": [{"modelname": "colour", **RED}]}]

        def slow(body: Any) -> None:
            other = client.application.test_client()
            came.append(other.post("/infer/colour?timeout_ms=6000", json=body).json)

        threads = [threading.Thread(target=slow, args=[one]) for one in hanging * 3]
        for one in threads:
            one.start()
        time.sleep(0.3)
        sent = {"payload": {"img": base64.b64encode(png("lime")).decode()}}
        assert client.post("/infer/colour", json=sent).json["result"]["pixel"] == [0, 255, 0]
        text = client.post("/infer/letters", json={"payload": {"text": "abc"}})
        assert text.json == {"modelname": "letters", "result": 3}
        assert not came, "it waited for the hanging ones"
        for one in threads:
            one.join(PATIENCE_S)
        for body in came:
            error = body["results"][0]["error"] if "results" in body else body["error"]
            assert error["code"] == "deadline_exceeded"
            assert "S3 " in error["message"], error
            assert "s3://pictures/images/red.png" in error["message"], error
        assert len(came) == 9


@pytest.mark.parametrize("after", [0, 200_000])
def test_an_object_that_does_not_come_whole_is_an_error(
    make: MakeClient, pictures: S3Server, after: int
) -> None:
    """A text: half of it would be a valid text too. The time for it is bounded by its setting."""
    pictures.put("texts/long.txt", b"x" * 300_000)
    long = {"s3_key": "texts/long.txt"}
    with proxy(pictures.port, after=after, cut=False) as url:
        client = make(AWS_ENDPOINT_URL_S3=url, MODEL_SERVER_TIMEOUT="3")
        response = client.post("/infer/letters", json=long)
        assert_error(response, 504, "deadline_exceeded", "S3", "a third of MODEL_SERVER_TIMEOUT")
    if after:
        with proxy(pictures.port, after=after, cut=True) as url:
            response = make(AWS_ENDPOINT_URL_S3=url).post("/infer/letters", json=long)
        assert_error(response, 503, "storage_unavailable", "broke off")
        assert response.headers["Retry-After"] == "5"


def test_a_refused_connection_is_503(make: MakeClient) -> None:
    client = make(AWS_ENDPOINT_URL_S3=f"http://127.0.0.1:{free_ports(1)[0]}")
    assert_error(ask(client), 503, "storage_unavailable", "AWS_ENDPOINT_URL_S3")
    client = make(AWS_ENDPOINT_URL_S3="minio:9000")
    assert_error(ask(client), 502, "storage_failed", "AWS_ENDPOINT_URL_S3")


def error(code: str, text: str = "") -> str:
    return f"<Error><Code>{code}</Code><Message>about {FULL} {text}</Message></Error>"


# As AWS documents it.
KMS = (
    "User: arn:aws:sts::111122223333:assumed-role/r/s is not authorized to perform: kms:Decrypt on "
    "resource: arn:aws:kms:eu-west-1:111122223333:key/k because no identity-based policy allows it"
)
DENIED = KMS.partition(" because")[0] + " with an explicit deny in a resource-based policy"

HOME = {"x-amz-bucket-region": "eu-west-1"}


@pytest.mark.parametrize(
    ("status", "said", "headers", "answer", "words"),
    [
        (400, "ExpiredToken", {}, (502, "storage_failed"), ("credentials (ExpiredToken)",)),
        (301, "PermanentRedirect", HOME, (502, "storage_failed"), ("eu-west-1", "us-east-1")),
        (400, "AuthorizationHeaderMalformed", HOME, (502, "storage_failed"), ("eu-west-1",)),
        (403, "SignatureDoesNotMatch", {}, (502, "storage_failed"), ("credentials",)),
        (403, "AccessDenied", HOME, (403, "object_forbidden"), ("s3:GetObject",)),
        (404, "NoSuchBucket", {}, (404, "object_not_found"), ("no bucket 'pictures'",)),
        (503, "SlowDown", {}, (503, "storage_unavailable"), ("SlowDown",)),
        (405, "MethodNotAllowed", {}, (502, "storage_failed"), ("MethodNotAllowed",)),
        (403, "InvalidObjectState", {}, (403, "object_forbidden"), ("restore",)),
        (403, "SomethingNew", {}, (502, "storage_failed"), ("SomethingNew",)),
        (400, "KMS.DisabledException", {}, (502, "storage_failed"), ("KMS.DisabledException",)),
        (400, "InvalidRequest: as SSE-C", {}, (502, "storage_failed"), ("as SSE-C",)),
        (403, f"AccessDenied: {KMS}", {}, (403, "object_forbidden"), ("allow kms:Decrypt on arn",)),
        (403, f"AccessDenied: {DENIED}", {}, (403, "object_forbidden"), ("deny of kms:Decrypt",)),
    ],
)
def test_the_codes_of_s3_have_answers(
    make: MakeClient,
    status: int,
    said: str,
    headers: dict[str, str],
    answer: tuple[int, str],
    words: tuple[str, ...],
) -> None:
    """These codes come from a stand-in: SeaweedFS has no regions, and no temporary credentials."""
    code, _, text = said.partition(": ")
    with always(status, error(code, text), headers) as url:
        response = ask(make(AWS_ENDPOINT_URL_S3=url))
    assert_error(response, *answer, *words, text)
    assert FULL not in response.text


def test_no_credential_is_logged(
    make: MakeClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("AWS_SESSION_TOKEN", "the-token-of-the-session")
    caplog.set_level(logging.DEBUG)
    for status, code in ((400, "ExpiredToken"), (500, "InternalError")):
        with always(status, error(code)) as url:
            client = make(AWS_ENDPOINT_URL_S3=url, MODEL_SERVER_TIMEOUT="6")
            response = client.post("/infer/colour", json={**RED, "output": {}})
            assert response.status_code > 500
            for word in (SECRET, FULL, "the-token-of-the-session", "Signature="):
                assert word not in caplog.text + response.text


def test_nothing_is_kept_in_memory_after_the_requests(
    make: MakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[LargeBodies] = []
    begin = LargeBodies.__init__

    def noted(bodies: LargeBodies, most: int) -> None:
        begin(bodies, most)
        made.append(bodies)

    monkeypatch.setattr(LargeBodies, "__init__", noted)
    client = make()
    for payload in ([RED] * 30, [RED, {"s3_key": "none"}] * 9, RED, {"s3_key": "texts/note.txt"}):
        for model in ("colour", ["colour", "letters"]):
            client.post("/invocations", json={"modelname": model, "payload": payload}).close()
    requests = [{"modelname": name, **RED} for name in ("colour", "letters", "none")] * 9
    client.post("/invocations", json={"requests": requests}).close()
    assert [bodies.held for bodies in made] == [0]


def test_objects_count_as_if_they_had_come_in_the_body(
    make: MakeClient, pictures: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A list that can never fit is 413; lines are read a few at a time, and freed."""
    pictures.put("texts/large.txt", b"x" * 300_000)
    begin = LargeBodies.__init__
    monkeypatch.setattr(LargeBodies, "__init__", lambda bodies, _: begin(bodies, 1_000_000))
    monkeypatch.setattr("dispatcher.s3.reading.S3_AT_A_TIME", 1)
    client = make(MODEL_SERVER_THREADS="1")
    large = {"s3_key": "texts/large.txt"}
    lines = "\n".join([json.dumps({"modelname": "letters", **large})] * 9)
    with client.post("/invocations", data=lines, content_type="application/jsonlines") as answer:
        assert [json.loads(line)["result"] for line in answer.text.splitlines()] == [300_000] * 9
    response = client.post("/infer/letters", json={"payload": [large] * 4})
    assert_error(response, 413, "object_too_large", "in all", "application/jsonlines")


def test_requests_that_wait_leave_room_for_those_they_wait_for(
    make: MakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two are read at a time, and fifteen requests want more than a hundred."""
    monkeypatch.setattr("dispatcher.s3.reading.S3_AT_A_TIME", 2)
    client = make(MODEL_SERVER_THREADS="2", MODEL_SERVER_TIMEOUT="300")
    keys = [{"s3_key": f"images/{name}.png"} for name in ("red", "lime", "blue")] * 5
    requests = [{"modelname": "colour", **one} for one in keys]
    bodies = [
        (json.dumps({"modelname": "colour", "payload": keys}), "application/json"),
        (json.dumps({"modelname": ["colour", "resnet"], "payload": keys}), "application/json"),
        (json.dumps({"requests": requests}), "application/json"),
        ("\n".join(map(json.dumps, requests)), "application/jsonlines"),
        (json.dumps(requests[0]), "application/json"),
    ] * 3
    came: list[str] = []

    def ask(body: str, content_type: str) -> None:
        other = client.application.test_client()
        with other.post("/invocations", data=body, content_type=content_type) as response:
            came.append(response.text)

    threads = [threading.Thread(target=ask, args=one) for one in bodies]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert len(came) == len(bodies)
    assert not [text for text in came if '"error"' in text]


def test_wrong_credentials_are_the_servers_fault_and_are_not_shown(make: MakeClient) -> None:
    key = "NOBODYSACCESSKEY0000"
    response = ask(make(key=key))
    assert_error(response, 502, "storage_failed", "InvalidAccessKeyId")
    assert key not in response.text


def test_boto3_is_not_imported_before_the_first_call() -> None:
    code = (
        "import sys, dispatcher.wsgi, dispatcher.s3.client as s3; s3.S3();"
        "print([n for n in sys.modules if n.startswith('boto')])"
    )
    run = subprocess.run([sys.executable, "-c", code], cwd=PROJECT, capture_output=True, check=True)
    assert run.stdout == b"[]\n"
