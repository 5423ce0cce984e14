"""The HTTP contract on the real chain: plain boto3, long jobs, many files, models at run time."""

from __future__ import annotations

import gzip
import io
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from bench.servers.processes import kilobytes
from tests.conftest import PICTURES, Endpoint, commands, picture, running
from tests.end_to_end.test_chain import assert_resnet_as_reference, reference
from tests.end_to_end.test_lifecycle import BERT
from tests.support.front import sagemaker_runtime

COFFEE = PICTURES / "coffee.png"


@pytest.fixture(scope="module")
def runtime(endpoint: Endpoint) -> Any:
    return sagemaker_runtime(endpoint)


def invoke(runtime: Any, **arguments: Any) -> Any:
    return runtime.invoke_endpoint(EndpointName="any", **arguments)


def test_boto3_asks_with_a_picture_and_attributes(runtime: Any) -> None:
    answer = invoke(
        runtime,
        Body=COFFEE.read_bytes(),
        ContentType="image/png",
        CustomAttributes="modelname=resnet;top_k=5",
        InferenceId="my-id",
    )
    assert answer["ResponseMetadata"]["HTTPHeaders"]["x-request-id"] == "my-id"
    result = json.loads(answer["Body"].read())["result"]
    assert_resnet_as_reference(result, reference("resnet.json")["coffee.png"])


def test_boto3_asks_by_target_model_for_a_drawn_picture(runtime: Any) -> None:
    answer = invoke(
        runtime,
        Body=COFFEE.read_bytes(),
        ContentType="application/octet-stream",
        Accept="image/jpeg",
        TargetModel="yolov5.tar.gz",
    )
    assert answer["ContentType"] == "image/jpeg"
    assert Image.open(io.BytesIO(answer["Body"].read())).size == (600, 400)


def rss(endpoint: Endpoint) -> dict[int, float]:
    """Return the resident bytes of each gunicorn and NGINX process of a container."""
    workers = commands(endpoint.process.pid, "gunicorn|nginx: worker")
    return {pid: kilobytes(pid, "status", "VmRSS") * 1024 for pid in workers}


@pytest.mark.slow
def test_ten_thousand_lines_in_bounded_memory(endpoint: Endpoint) -> None:
    """One answer a line in order; bad lines in their places; memory does not grow with them."""
    lines = [
        json.dumps({"modelname": "nosuch", "payload": {"n": n}})
        if n % 100
        else json.dumps(BERT | {"parameters": {"top_k": 1}})
        for n in range(10_000)
    ]
    lines[77] = "not json"
    body = "\n".join(lines)
    before = rss(endpoint)
    answer = endpoint.call("/invocations", body, headers={"Content-Type": "application/jsonlines"})
    assert answer.status == 200
    assert answer.headers["Content-Type"] == "application/jsonlines"
    answers = [json.loads(line) for line in answer.body.splitlines()]
    assert len(answers) == 10_000
    for n, one in enumerate(answers):
        if n == 77:
            assert one["error"]["code"] == "bad_body"
        elif n % 100:
            assert one["error"]["code"] == "unknown_model"
        else:
            assert one["result"][0]["token"] == "The world has many people."
    after = rss(endpoint)
    grown = max(after[pid] - before.get(pid, 0) for pid in after if pid in before)
    assert grown < 40 * 2**20, (
        "all 10,000 answers at once are 3 MB, their objects several times that"
    )


@pytest.mark.parametrize("path", ["/models/nosuch/invoke", "/nowhere", "/v2"])
def test_an_answer_before_the_body_is_read_arrives(endpoint: Endpoint, path: str) -> None:
    """gunicorn must not close the connection on what NGINX is still sending."""
    for size in (10, 100_000, 20_000_000):
        for _ in range(5):
            answer = endpoint.call(path, b"x" * size, method="POST")  # type: ignore[arg-type]
            assert answer.status == (405 if path == "/v2" else 404)


def test_large_answers_are_packed(endpoint: Endpoint) -> None:
    answer = endpoint.call("/openapi.json", headers={"Accept-Encoding": "gzip"})
    assert answer.headers["Content-Encoding"] == "gzip"
    assert json.loads(gzip.decompress(answer.body))["openapi"] == "3.1.0"


@pytest.mark.parametrize(
    "request_line",
    [
        "TRACE /ping HTTP/1.1",
        "CONNECT /ping HTTP/1.1",
        "BREW /ping HTTP/1.1",
        "GET /ping?" + "x" * 5000 + " HTTP/1.1",
        "GET /ping HTTP/1.1\r\n" + "\r\n".join(f"X-{n}: y" for n in range(150)),
        "GET /ping HTTP/3.0",
        "GARBAGE",
    ],
    ids=lambda line: line[:14],
)
def test_no_refusal_is_html(endpoint: Endpoint, request_line: str) -> None:
    with socket.create_connection(("127.0.0.1", endpoint.port), timeout=10) as connection:
        connection.sendall(f"{request_line}\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"<html" not in answer.lower()
    if body:
        status = int(head.split()[1])
        assert json.loads(body)["error"]["code"]
        assert 400 <= status < 500


@pytest.mark.slow
def test_health_answers_at_once_under_load(endpoint: Endpoint) -> None:
    done = threading.Event()
    payload = [{"img": picture(COFFEE)}] * 2

    def load_it() -> None:
        while not done.is_set():
            endpoint.ask(modelname="resnet", payload=payload)

    callers = [threading.Thread(target=load_it) for _ in range(24)]
    for caller in callers:
        caller.start()
    try:
        time.sleep(2)
        for _ in range(5):
            begun = time.monotonic()
            assert endpoint.call("/ping").status == 200
            assert time.monotonic() - begun < 2, "what the platform waits"
    finally:
        done.set()
        for caller in callers:
            caller.join()


CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
    "response_headers_conformance",
    "unsupported_method",
)


@pytest.fixture(scope="module")
def for_schemathesis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    """A container of its own: the tool also unloads models."""
    with running(tmp_path_factory.mktemp("schemathesis")) as endpoint:
        yield endpoint


@pytest.mark.slow
def test_schemathesis_finds_nothing_undocumented(
    for_schemathesis: Endpoint, tmp_path: Path
) -> None:
    # A millisecond is too little for any answer, and is allowed.
    (tmp_path / "schemathesis.toml").write_text(
        '[checks.not_a_server_error]\nexpected-statuses = ["2XX", "3XX", "4XX", 504]\n'
    )
    done = subprocess.run(
        [
            *(Path(sys.executable).parent / "st", "run"),
            f"http://127.0.0.1:{for_schemathesis.port}/openapi.json",
            "--mode=all",
            "--continue-on-failure",
            "--max-examples=20",
            f"--checks={','.join(CHECKS)}",
            "--exclude-method=DELETE",
            "--suppress-health-check=all",
            "--no-color",
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert for_schemathesis.call("/ping").status == 200
