"""The real container behind `emulate`, asked by plain boto3."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from botocore.exceptions import ClientError

from tests.conftest import PICTURES, Endpoint, picture
from tests.emulator.emulate.test_s3_and_batch import ask, transform, written
from tests.support.emulate import Emulated, emulated
from tests.support.s3 import BUCKET, S3Server

TEXTS = [f"The world has [MASK] {word}." for word in ("people", "days")]


def asked(text: str) -> dict[str, object]:
    return {"modelname": "bert_base", "payload": {"text": text}, "parameters": {"top_k": 1}}


@pytest.fixture(scope="module")
def running(
    endpoint: Endpoint, s3: S3Server, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Emulated]:
    with emulated(
        tmp_path_factory.mktemp("emulate"),
        *(f"http://127.0.0.1:{endpoint.port}", "--async-output", f"s3://{BUCKET}/out"),
        *("--s3-endpoint-url", s3.url),
        environment=s3.environment(),
    ) as emulate:
        yield emulate


def test_a_model_answers(running: Emulated) -> None:
    body = {"modelname": "resnet", "payload": {"img": picture(PICTURES / "coffee.png")}}
    answer, _ = running.invoke(json.dumps(body).encode(), ContentType="application/json")
    assert json.loads(answer)["result"][0].endswith(":espresso")


def test_an_error_has_the_container_s_own_text(running: Emulated) -> None:
    with pytest.raises(ClientError) as caught:
        running.invoke(b'{"modelname": "nonsense", "payload": {}}')
    assert caught.value.response["OriginalStatusCode"] == 404
    error = json.loads(caught.value.response["OriginalMessage"])["error"]
    assert error["code"] == "unknown_model"
    assert error["message"] in str(caught.value)


def test_lines_are_streamed(running: Emulated) -> None:
    answer = running.runtime.invoke_endpoint_with_response_stream(
        EndpointName="mine",
        Body=json.dumps({"requests": [asked(text) for text in TEXTS]}).encode(),
        ContentType="application/json",
        Accept="application/jsonlines",
    )
    content = b"".join(event["PayloadPart"]["Bytes"] for event in answer["Body"])
    answer["Body"].close()
    tokens = [json.loads(line)["result"][0]["token"] for line in content.splitlines()]
    assert tokens[0] == "The world has many people."
    assert len(tokens) == 2


def test_an_asynchronous_call_is_answered_in_s3(running: Emulated, s3: S3Server) -> None:
    s3.put("in/text.json", json.dumps(asked(TEXTS[0])).encode())
    answer = ask(running, InputLocation=f"s3://{BUCKET}/in/text.json")
    content, _ = written(s3, answer["OutputLocation"])
    assert json.loads(content)["result"][0]["token"] == "The world has many people."


def test_a_batch_is_transformed(endpoint: Endpoint, tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text("".join(f"{json.dumps(asked(one))}\n" for one in TEXTS))
    done = transform(
        f"http://127.0.0.1:{endpoint.port}",  # type: ignore[arg-type]
        *(tmp_path / "in.jsonl", tmp_path / "out"),
        *("--split-type=Line", "--assemble-with=Line", "--content-type=application/jsonlines"),
        s3=None,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "SingleRecord" in done.stdout  # as /execution-parameters of the container says
    lines = (tmp_path / "out" / "in.jsonl.out").read_text().splitlines()
    assert len(lines) == 2
    assert json.loads(lines[0])["result"][0]["token"] == "The world has many people."
