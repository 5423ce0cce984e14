"""The front in AWS Lambda: by the contract of its Web Adapter, and as a handler.

Lambda itself, its emulator and the adapter are not among what can be installed here.
"""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import PATIENCE_S, PROJECT, Endpoint, free_ports, wait_for
from tests.end_to_end.test_remote_triton import X, make_models, triton_in
from tests.support.triton.process import Triton

EXAMPLE = PROJECT / "examples" / "lambda"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lambda")
    make_models(folder)
    shutil.copy(EXAMPLE / "handler.py", folder)
    (folder / "local").mkdir()
    return folder


@pytest.fixture(scope="module")
def triton(folder: Path) -> Iterator[Triton]:
    with triton_in(folder, "a") as triton:
        yield triton


def variables(folder: Path, triton: Triton) -> dict[str, str]:
    return {
        "TRITON_URL": f"127.0.0.1:{triton.ports[0]}",
        "MODEL_REPOSITORY": str(folder / "local"),
        "MODEL_SERVER_MAX_BODY_MB": "6",
    }


@pytest.fixture
def front(folder: Path, triton: Triton) -> Iterator[Endpoint]:
    """The process that the image starts, and that the adapter asks on a port."""
    port = free_ports(1)[0]
    environment = {**os.environ, **variables(folder, triton), "SAGEMAKER_BIND_TO_PORT": str(port)}
    log = folder / "front.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "container.front"],
            env=environment,
            cwd=PROJECT,
            stdout=output,
            stderr=output,
        )
    yield Endpoint(port, process, log)
    process.kill()
    process.wait()


def status(front: Endpoint, path: str) -> int:
    try:
        return front.call(path).status
    except ConnectionError:
        return 0


def test_the_adapter_finds_it_ready_and_it_answers(front: Endpoint, triton: Triton) -> None:
    wait_for(lambda: status(front, "/v2/health/live") == 200, front.log.read_text)
    wait_for(lambda: status(front, "/ping") == 200, front.log.read_text)
    answer = front.ask(modelname="plus", payload=X)
    assert answer.json["result"]["outputs"][0]["data"] == [2, 3, 4]
    refused = front.call("/invocations", b" " * (6 * 2**20 + 1))
    assert (refused.status, refused.json["error"]["code"]) == (413, "too_large")
    nowhere = front.call("/nowhere")
    assert (nowhere.status, nowhere.json["error"]["code"]) == (404, "not_found")

    def logged() -> list[dict[str, Any]]:
        lines = front.log.read_text().splitlines()
        return [json.loads(line) for line in lines if line.startswith("{") and '"plus"' in line]

    wait_for(logged, "the request's line in the log")
    assert b'dispatcher_requests_total{method="POST",model="plus"' in front.call("/metrics").body
    # Lambda freezes the processes between two requests, and stops them at the end.
    pids = [int(pid) for pid in children(front.process.pid)] + [front.process.pid]
    for number in (signal.SIGSTOP, signal.SIGCONT):
        for pid in pids:
            os.kill(pid, number)
        time.sleep(1)
    assert front.ask(modelname="plus", payload=X).status == 200
    front.process.terminate()
    assert front.process.wait(PATIENCE_S) == 0


def children(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({}, "front: TRITON_URL is not set"),
        ({"TRITON_URL": "a:1", "API_KEYS_FILE": "/no"}, "front: API_KEYS_FILE is '/no': it cannot"),
        (
            {"TRITON_URL": "grpcs://a:1", "TRITON_CA_FILE": __file__},
            f"front: TRITON_CA_FILE is '{__file__}'",
        ),
    ],
)
def test_what_is_wrong_with_the_settings_is_one_line(settings: dict[str, str], line: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "container.front"],
        cwd=PROJECT,
        env=os.environ | settings,
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith(line.encode())
    assert done.stderr.count(b"\n") == 1


def event(path: str, body: bytes, content_type: str) -> dict[str, Any]:
    """Return what API Gateway's REST API sends to a function (payload format 1.0)."""
    headers = {"Accept": content_type, "Content-Type": content_type, "Host": "example.com"}
    return {
        "path": path,
        "httpMethod": "POST",
        "headers": headers,
        "multiValueHeaders": {name: [value] for name, value in headers.items()},
        "queryStringParameters": None,
        "multiValueQueryStringParameters": None,
        "requestContext": {"path": f"/v1{path}", "identity": {"sourceIp": "192.0.2.1"}},
        "body": base64.b64encode(body).decode(),
        "isBase64Encoded": True,
    }


HANDLE = """
import json, sys
import handler
json.dump([handler.handler(event, None) for event in json.load(sys.stdin)], sys.stdout)
"""


def test_the_handler_answers_api_gateway(folder: Path, triton: Triton) -> None:
    """As Lambda's runtime client calls it: with what was JSON, for what becomes JSON."""
    path = folder / "row.npy"
    np.save(path, np.ones((1, 3), np.float32))
    body = json.dumps({"modelname": "plus", "payload": X}).encode()
    events = [
        event("/invocations", body, "application/json"),
        event("/infer/plus", path.read_bytes(), "application/x-npy"),
        event("/invocations", b'{"modelname": "no"}', "application/json"),
    ]
    done = subprocess.run(
        [sys.executable, "-c", HANDLE],
        env={**os.environ, **variables(folder, triton), "PYTHONPATH": str(PROJECT)},
        cwd=folder, input=json.dumps(events).encode(), capture_output=True, check=True,
    )  # fmt: skip
    answer, binary, missing = json.loads(done.stdout)
    assert answer["statusCode"] == 200, answer
    assert json.loads(answer["body"])["result"]["outputs"][0]["data"] == [2, 3, 4]
    assert (binary["statusCode"], binary["isBase64Encoded"]) == (200, True), binary
    path.write_bytes(base64.b64decode(binary["body"]))
    assert np.load(path).tolist() == [[2, 2, 2]]
    assert missing["statusCode"] in {400, 404}
    assert json.loads(missing["body"])["error"]["hint"]
    assert '"model":"plus"' in done.stderr.decode().replace(" ", "")


def test_the_template_is_valid_and_grants_prefixes_alone() -> None:
    lint = import_module("cfnlint.api").lint_file  # which takes seconds
    assert not lint(EXAMPLE / "template.yaml")
    text = (EXAMPLE / "template.yaml").read_text()
    assert "ApiKeyRequired: true" in text
    for action, prefix in (("s3:GetObject", "ImagesPrefix"), ("s3:PutObject", "ResultsPrefix")):
        resource = f"!Sub arn:${{AWS::Partition}}:s3:::${{Bucket}}/${{{prefix}}}*"
        assert re.search(rf"Action: {action}\n +Resource: {re.escape(resource)}\n", text)
    listing = text.partition("Action: s3:ListBucket")[2].partition("Events:")[0]
    assert 'StringLike: {s3:prefix: !Sub "${ImagesPrefix}*"}' in listing
    assert text.count("Action:") == 3
