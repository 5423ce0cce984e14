"""`TRITON_URL`: the front with Tritons that it has not started."""

from __future__ import annotations

import base64
import json
import shutil
import signal
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from tests.conftest import PROJECT, Answer, Endpoint, running, start, stop, wait_for
from tests.end_to_end.test_stateful import tensors
from tests.support.telemetry import scraped, value
from tests.support.triton import process
from tests.support.triton.process import Triton

pytestmark = pytest.mark.slow

SECRET = "Bearer 7d1a-not-for-logs"
X = {"inputs": [{"name": "x", "shape": [1, 3], "datatype": "FP32", "data": [1, 2, 3]}]}
MODEL = """
import time
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            x = request.inputs()[0].as_numpy()
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("y", {y})]))
        return answers
"""
CONFIG = """
backend: "python"
max_batch_size: 4
input {{ name: "x" data_type: TYPE_FP32 dims: {dims} }}
output {{ name: "y" data_type: TYPE_FP32 dims: [ 3 ] }}
"""


HEARD = """
import json
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            heard = json.loads(request.parameters()).get("authorization", "nothing")
            y = pb_utils.Tensor("y", np.array([heard], object))
            sender.send(pb_utils.InferenceResponse([y]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
STREAMS = """
backend: "python"
input { name: "x" data_type: TYPE_FP32 dims: [ 1 ] }
output { name: "y" data_type: TYPE_STRING dims: [ 1 ] }
instance_group { kind: KIND_CPU }
model_transaction_policy { decoupled: true }
"""


def make_models(folder: Path) -> None:
    """`plus` adds one, as `spare` does; `colours` weighs the colours.

    `total` adds up a sequence, and `heard` streams the metadata of its request.
    """
    shutil.copytree(PROJECT / "examples" / "sequence" / "models", folder / "models")
    place = folder / "models" / "heard"
    (place / "1").mkdir(parents=True)
    (place / "1" / "model.py").write_text(HEARD)
    (place / "config.pbtxt").write_text(STREAMS)
    for name, y, dims in (
        ("plus", "x + 1", [3]),
        ("spare", "x + 1", [3]),
        ("colours", "x.mean((2, 3))", [3, 32, 32]),
    ):
        place = folder / "models" / name
        (place / "1").mkdir(parents=True)
        (place / "1" / "model.py").write_text(MODEL.format(y=y))
        (place / "config.pbtxt").write_text(CONFIG.format(dims=dims))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("remote")
    make_models(folder)
    local = folder / "local" / "colours"  # the model itself is not here
    local.mkdir(parents=True)
    (local / "dispatch.toml").write_text('family = "classification"\naliases = ["paint-v1"]\n')
    (local / "labels.txt").write_text("red\ngreen\nblue\n")
    return folder


def triton_in(folder: Path, name: str, **more: Any) -> Any:
    """Start a Triton in a folder of its own, over the models that all share."""
    place = folder / name
    place.mkdir()
    (place / "models").symlink_to(folder / "models")
    options = (*more.pop("options", ()), "--grpc-header-forward-pattern=authorization")
    names = ("plus", "colours", "total", "heard")
    return process.running(place, names, options=options, **more)


@pytest.fixture(scope="module")
def two(folder: Path) -> Iterator[tuple[Triton, Triton]]:
    with triton_in(folder, "a") as a, triton_in(folder, "b") as b:
        yield a, b


@pytest.fixture(scope="module")
def house(folder: Path, two: tuple[Triton, Triton]) -> Iterator[Endpoint]:
    a, b = (f"127.0.0.1:{one.ports[0]}" for one in two)
    (folder / "metadata").write_text(f"authorization: {SECRET}\n")
    two[1].process.send_signal(signal.SIGSTOP)  # gRPC takes the second where the first is slower
    with running(
        folder,
        TRITON_URL=f"ipv4:{a},{b}",
        TRITON_METADATA=f"@{folder / 'metadata'}",
        MODEL_REPOSITORY=str(folder / "local"),
        PROBE_INTERVAL="0.5",
    ) as endpoint:
        two[1].process.send_signal(signal.SIGCONT)
        yield endpoint


def runs(triton: Triton, model: str = "plus") -> int:
    """Return how many requests Triton has counted, which it does after it has answered."""
    (stats,) = triton.client.get_inference_statistics(model).model_stats
    return int(stats.inference_stats.success.count)


def test_no_triton_is_started_and_the_log_and_health_say_where_it_is(
    house: Endpoint, two: tuple[Triton, Triton]
) -> None:
    url = f"ipv4:127.0.0.1:{two[0].ports[0]},127.0.0.1:{two[1].ports[0]}"
    log = house.log.read_text()
    assert f"serve: Triton: at {url}; none is started here" in log
    assert "serve: ready after" in log
    health = house.call("/health").json
    assert health["triton"] == url
    assert set(health["programs"]) == {"NGINX", "gunicorn"}
    assert value(scraped(house), "dispatcher_triton_up") == 1


def test_a_family_answers_with_local_labels_and_the_remote_model(house: Endpoint) -> None:
    green = np.zeros((32, 32, 3), np.uint8)
    green[..., 1] = 255
    img = base64.b64encode(cv2.imencode(".png", green)[1].tobytes()).decode()
    answer = house.ask(modelname="paint-v1", payload={"img": img})
    assert answer.status == 200, answer.body
    assert answer.json["result"][0].endswith(":green")


def test_a_sequence_keeps_its_state(house: Endpoint) -> None:
    for number in range(1, 11):
        ends = {"sequence_start": number == 1, "sequence_end": number == 10}
        answer = house.ask(**tensors(number, sequence_id=7, **ends))
        assert answer.status == 200, answer.body
        assert answer.json["outputs"][0]["data"] == [number * (number + 1) / 2]


def test_metadata_is_sent_with_a_stream(house: Endpoint) -> None:
    tensor = {"name": "x", "shape": [1], "datatype": "FP32", "data": [1]}
    body = {"modelname": "heard", "inputs": [tensor]}
    answer = house.call(
        "/invocations", json.dumps(body), headers={"Accept": "application/jsonlines"}
    )
    assert answer.status == 200, answer.body
    (line,) = answer.body.splitlines()
    assert json.loads(line)["outputs"][0]["data"] == [SECRET]
    assert house.ask(**body).json["result"][0]["outputs"][0]["data"] == [SECRET]


def test_models_are_loaded_and_unloaded(house: Endpoint, two: tuple[Triton, Triton]) -> None:
    answer = house.call("/load_model/spare", b"")
    assert answer.status == 200, answer.body
    assert answer.json["modelUrl"].startswith("ipv4:")
    assert two[0].states()["spare"][0] == "READY"
    assert house.ask(modelname="spare", payload=X).status == 200
    assert house.call("/models/spare", method="DELETE").status == 200
    assert two[0].states()["spare"][0] == "UNAVAILABLE"
    missing = house.call("/load_model/nothing", b"")
    assert missing.status == 404
    assert "colours, heard, plus, spare, total" in missing.json["error"]["hint"]
    elsewhere = house.call("/models", json.dumps({"model_name": "m", "url": "/tmp"}))
    assert (elsewhere.status, elsewhere.json["error"]["code"]) == (400, "bad_model")


def test_documents_alone_need_the_http_address(house: Endpoint, two: tuple[Triton, Triton]) -> None:
    answer = house.call("/v2")
    assert (answer.status, "TRITON_HTTP_URL" in answer.json["error"]) == (501, True)
    assert house.call("/v2/models/plus/infer", json.dumps(X)).status == 200  # by gRPC
    assert house.call("/v2/health/ready").status == 200
    body = '{"id": "7", "x": [1, 2.5, 1e-7]}'
    for call in ("generate", "generate_stream"):
        path = f"/v2/models/plus/{call}"
        with urllib.request.urlopen(
            f"http://127.0.0.1:{two[0].ports[1]}{path}", body.encode()
        ) as own:
            expected = own.read().removeprefix(b"data: ")
        answer = house.call(path, body)
        assert answer.headers["Content-Type"] == own.headers["Content-Type"]
        assert json.loads(answer.body.removeprefix(b"data: ")) == json.loads(expected)


def ping(house: Endpoint) -> Answer:
    return house.call("/ping")


def test_the_next_takes_over_and_one_that_comes_back_is_found(
    house: Endpoint, folder: Path, two: tuple[Triton, Triton]
) -> None:
    a, b = two
    assert house.ask(modelname="plus", payload=X).status == 200
    wait_for(lambda: runs(a) > 0, "a run of the first")
    assert runs(b) == 0
    a.process.kill()
    a.process.wait()
    wait_for(lambda: house.ask(modelname="plus", payload=X).status == 200, "200")
    wait_for(lambda: ping(house).status == 200, "200")
    wait_for(lambda: runs(b) > 0, "a run of the second")

    b.process.kill()
    b.process.wait()
    wait_for(lambda: ping(house).status == 503, "503")
    error = ping(house).json["error"]
    assert error["code"] == "not_ready", "nobody here restarts it"
    assert "Triton is not ready" in error["message"]
    assert house.ask(modelname="plus", payload=X).status == 503
    assert value(scraped(house), "dispatcher_triton_up") == 0
    with ExitStack() as stack:
        again = stack.enter_context(triton_in(folder, "again", ports=a.ports))
        wait_for(lambda: ping(house).status == 200, "200")
        assert house.ask(modelname="plus", payload=X).status == 200
        wait_for(lambda: runs(again) > 0, "a run of the first, started again")
    log = house.log.read_text()
    assert "restart" not in log
    assert SECRET not in log


@pytest.fixture(scope="module")
def certificate(folder: Path) -> Path:
    """A certificate of its own authority, for 127.0.0.1, with its key."""
    file, key = folder / "certificate.pem", folder / "key.pem"
    names = "subjectAltName=IP:127.0.0.1,DNS:localhost"
    subprocess.run(
        ["openssl", "req", "-x509", "-nodes", "-newkey", "ec", "-pkeyopt",
         "ec_paramgen_curve:prime256v1", "-subj", "/CN=a test", "-addext", names,
         "-days", "1", "-keyout", key, "-out", file],
        check=True, capture_output=True,
    )  # fmt: skip
    return file


def test_over_tls_by_name_and_by_address(folder: Path, certificate: Path, tmp_path: Path) -> None:
    options = (
        "--grpc-use-ssl=true",
        f"--grpc-server-cert={certificate}",
        f"--grpc-server-key={folder / 'key.pem'}",
    )
    with triton_in(folder, "tls", options=options, ca_file=certificate) as triton:
        place = f"localhost:{triton.ports[0]}"
        with running(
            tmp_path,
            TRITON_URL=f"grpcs://dns:///{place}",
            TRITON_HTTP_URL=f"http://127.0.0.1:{triton.ports[1]}",
            TRITON_CA_FILE=str(certificate),
            MODEL_REPOSITORY=str(folder / "local"),
            REQUIRED_MODELS="plus",
        ) as house:
            assert ping(house).status == 200
            assert house.ask(modelname="plus", payload=X).status == 200
            assert house.call("/load_model/spare", b"").status == 200
            assert house.call("/v2/models/plus/infer", json.dumps(X)).status == 200
        untrusted = start(
            tmp_path,
            TRITON_URL=f"grpcs://ipv4:127.0.0.1:{triton.ports[0]}",
            MODEL_REPOSITORY=str(folder / "local"),
        )
        try:
            wait_for(lambda: "NOT ready" in untrusted.log.read_text(), "the announcement")
            assert "Triton is not ready" in untrusted.log.read_text()
        finally:
            stop(untrusted)
