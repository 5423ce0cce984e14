"""The real chain: Triton, gunicorn and NGINX, with real weights, against reference answers."""

from __future__ import annotations

import contextlib
import json
import socket
from concurrent.futures import ThreadPoolExecutor
from glob import iglob
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import (
    PICTURES,
    PROJECT,
    SHARED,
    Endpoint,
    descendants,
    needs_shared,
    picture,
    wait_for,
)
from tests.support import readme

REFERENCE = PROJECT / "tests" / "reference"


def reference(name: str, folder: Path = REFERENCE) -> Any:
    return json.loads((folder / name).read_text())


def assert_resnet_as_reference(result: list[str], expected: list[dict[str, Any]]) -> None:
    """The same five in the same order, logits within 0.1."""
    parts = [text.split(":", 2) for text in result]
    assert [(int(index), label) for _, index, label in parts] == [
        (e["index"], e["label"]) for e in expected
    ]
    for (score, _, _), e in zip(parts, expected, strict=True):
        assert float(score) == pytest.approx(e["logit"], abs=0.1)


def assert_yolov5_as_reference(result: list[list[float]], expected: dict[str, Any]) -> None:
    """The same classes in the same order, scores within 0.02, corners within 3 pixels."""
    assert [row[0] for row in result] == [e["class_id"] for e in expected["objects"]]
    for (_, score, x1, x2, y1, y2, width, height), e in zip(
        result, expected["objects"], strict=True
    ):
        assert score == pytest.approx(e["score"], abs=0.02)
        assert [x1, y1, x2, y2] == pytest.approx(e["x1_y1_x2_y2"], abs=3)
        assert (width, height) == (expected["width"], expected["height"])


def assert_words_as_reference(
    result: list[dict[str, Any]], text: str, expected: list[dict[str, Any]]
) -> None:
    """The same words with scores within 0.005, in order where scores differ by over 0.002."""
    came = {row["token"]: row["score"] for row in result}
    for e in expected:
        filled = text.replace("[MASK]", e["word"], 1)
        assert came[filled] == pytest.approx(e["score"], abs=0.005)
    scores = [row["score"] for row in result]
    assert scores == sorted(scores, reverse=True)


def assert_bert_as_reference(endpoint: Endpoint, case: dict[str, Any]) -> None:
    answer = endpoint.ask(modelname="bert_base", payload={"text": case["text"]})
    assert answer.status == 200
    result = answer.json["result"]
    if len(case["masks"]) == 1:
        assert_words_as_reference(result, case["text"], case["masks"][0])
    else:
        assert len(result) == len(case["masks"])
        assert_words_as_reference(result[0], case["text"], case["masks"][0])


# The three models


def test_the_engine_that_runs_a_model_is_shown(endpoint: Endpoint) -> None:
    """Which one it is was measured on this machine: the two are about as fast for ResNet-50."""
    (entry,) = [
        one for one in endpoint.call("/models").json["models"] if one["modelName"] == "resnet"
    ]
    engine = entry["engine"]
    assert entry["precision"] == "f32"
    page = endpoint.call("/metrics").body.decode()
    labels = f'engine="{engine}",model="resnet",precision="f32",version="1"'
    assert f"dispatcher_model_engine_info{{{labels}}} 1.0" in page
    said = {"openvino": "OpenVINO in f32, ", "onnxruntime": "ONNX Runtime in f32 "}[engine]
    assert f"model 'resnet': run by {said}" in endpoint.log.read_text()
    if engine == "openvino":
        assert entry["speedup"] > 0.9
        assert "of its range" in entry["difference"]


@pytest.mark.parametrize("name", ["chelsea.png", "coffee.png"])
def test_resnet_classifies_a_photograph(endpoint: Endpoint, name: str) -> None:
    answer = endpoint.ask(
        modelname="resnet", payload={"img": picture(PICTURES / name)}, parameters={"top_k": 5}
    )
    assert answer.status == 200
    assert_resnet_as_reference(answer.json["result"], reference("resnet.json")[name])


@pytest.mark.parametrize("name", ["chelsea.png", "coffee.png"])
def test_yolov5_finds_the_objects(endpoint: Endpoint, name: str) -> None:
    answer = endpoint.ask(modelname="yolov5", payload={"img": picture(PICTURES / name)})
    assert answer.status == 200
    assert_yolov5_as_reference(answer.json["result"], reference("yolov5.json")[name])


@pytest.mark.parametrize("case", reference("bert_base.json"), ids=lambda case: case["text"])
def test_bert_fills_the_blank(endpoint: Endpoint, case: dict[str, Any]) -> None:
    assert_bert_as_reference(endpoint, case)


def test_texts_of_unequal_lengths_that_share_runs_are_answered_as_alone(
    endpoint: Endpoint,
) -> None:
    cases = reference("bert_base.json") * 12
    with ThreadPoolExecutor(12) as pool:
        for done in [pool.submit(assert_bert_as_reference, endpoint, case) for case in cases]:
            done.result()


@pytest.mark.parametrize(("command", "shown"), readme.requests()[:-1])
def test_the_readme_s_requests_are_answered_as_it_shows(
    endpoint: Endpoint, command: str, shown: Any
) -> None:
    came = readme.run(command, f"http://127.0.0.1:{endpoint.port}")
    assert readme.same(came, shown), came


def test_the_reader_s_own_model_answers_as_it_shows(endpoint: Endpoint, tmp_path: Path) -> None:
    """Written by `new-model`, with the options that stand there."""
    command, shown = readme.requests()[-1]
    came = readme.run_with_own_model(command, f"http://127.0.0.1:{endpoint.port}", tmp_path)
    assert endpoint.call("/models/photos", method="DELETE").status == 200
    assert readme.same(came, shown), came


@needs_shared
@pytest.mark.parametrize("name", ["dog.jpg", "bus.jpg"])
def test_larger_photographs_too(endpoint: Endpoint, name: str) -> None:
    img = picture(SHARED / "pictures" / name)
    answer = endpoint.ask(modelname="resnet", payload={"img": img}, parameters={"top_k": 5})
    expected = reference("resnet.json", SHARED / "reference")[name]
    assert_resnet_as_reference(answer.json["result"], expected)
    answer = endpoint.ask(modelname="yolov5", payload={"img": img})
    expected = reference("yolov5.json", SHARED / "reference")[name]
    assert_yolov5_as_reference(answer.json["result"], expected)


def test_a_list_is_answered_in_order_as_if_one_by_one(endpoint: Endpoint) -> None:
    """20 pictures are more than one batch of either model."""
    names = ["chelsea.png", "coffee.png"] * 10
    payload = [{"img": picture(PICTURES / name)} for name in names]
    answer = endpoint.ask(modelname="resnet", payload=payload, parameters={"top_k": 5})
    assert answer.status == 200
    for name, result in zip(names, answer.json["result"], strict=True):
        assert_resnet_as_reference(result, reference("resnet.json")[name])
    answer = endpoint.ask(modelname="yolov5", payload=payload[:10])
    for name, result in zip(names[:10], answer.json["result"], strict=True):
        assert_yolov5_as_reference(result, reference("yolov5.json")[name])


@pytest.mark.parametrize("version", [1, "1", 2])
def test_a_version_is_chosen(endpoint: Endpoint, version: int | str) -> None:
    text = "The world has [MASK] people."
    answer = endpoint.ask(modelname="bert_base", modelversion=version, payload={"text": text})
    assert answer.status == 200
    assert answer.json["modelversion"] == str(version)
    assert answer.json["result"][0]["token"] == "The world has many people."


# What goes wrong


def test_nginx_refuses_with_the_same_json(endpoint: Endpoint) -> None:
    answer = endpoint.call("/invocations", b" " * (26 * 2**20))
    assert answer.status == 413
    assert answer.json["error"]["code"] == "too_large"
    assert "25 MiB" in answer.json["error"]["message"]
    assert f"({26 * 2**20} bytes)" in answer.json["error"]["message"]
    with socket.create_connection(("127.0.0.1", endpoint.port), timeout=10) as caller:
        caller.sendall(
            b"POST /invocations HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        with contextlib.suppress(OSError):
            for _ in range(26):
                caller.sendall(b"100000\r\n" + b" " * 2**20 + b"\r\n")
        said = caller.recv(4096).decode()
    assert said.startswith("HTTP/1.1 413 ")
    assert "too large (of a length it does not say); at most 25 MiB" in said
    answer = endpoint.call("/" + "x" * 40_000)
    assert answer.status == 414
    assert set(answer.json["error"]) == {"code", "message", "hint", "request_id"}
    answer = endpoint.call("/ping", headers={"X": "x" * 40_000})
    assert answer.status == 400
    assert set(answer.json["error"]) == {"code", "message", "hint", "request_id"}
    assert "nginx/" not in str(answer.headers), "the version is nobody's business"


# Health and life


def test_ping(endpoint: Endpoint) -> None:
    for method in ("GET", "POST"):
        answer = endpoint.call("/ping", method=method)
        assert (answer.status, answer.body) == (200, b"")


def test_the_start_says_what_it_does(endpoint: Endpoint) -> None:
    log = endpoint.log.read_text()
    for step in ("Triton is ready after ", "gunicorn is ready after ", "NGINX is ready after "):
        assert log.count(f"serve: {step}") == 1
    assert f"POST http://127.0.0.1:{endpoint.port}/invocations" in log


def test_every_line_of_the_log_says_which_program_it_comes_from(endpoint: Endpoint) -> None:
    endpoint.call("/invocations", b" " * (26 * 2**20), headers={"X-Request-Id": "too-large"})
    wait_for(lambda: '"request_id": "too-large"' in endpoint.log.read_text(), 5, "NGINX's line")
    plain = set()
    for line in endpoint.log.read_text().splitlines():
        if line.startswith("{"):
            assert json.loads(line)["program"] in ("nginx", "dispatcher")
        else:
            plain.add(line.partition(": ")[0])
    assert {"serve", "triton", "nginx"} <= plain <= {"serve", "triton", "nginx", "gunicorn"}


def test_triton_is_not_to_be_reached_from_outside(endpoint: Endpoint) -> None:
    """All listening TCP sockets of the container but NGINX's are bound to loopback."""
    inodes = set()
    for pid in descendants(endpoint.process.pid):
        for link in iglob(f"/proc/{pid}/fd/*"):  # noqa: PTH207  Path's fails where it ends meanwhile
            with contextlib.suppress(OSError):
                inodes.add(str(Path(link).readlink()))
    for table in ("udp", "udp6"):
        lines = Path(f"/proc/net/{table}").read_text().splitlines()[1:]
        assert not [line for line in lines if f"socket:[{line.split()[9]}]" in inodes]
    listening = {}
    tables = [Path("/proc/net/tcp").read_text(), Path("/proc/net/tcp6").read_text()]
    for line in "".join(table.partition("\n")[2] for table in tables).splitlines():
        fields = line.split()
        if fields[3] == "0A" and f"socket:[{fields[9]}]" in inodes:
            address, _, port = fields[1].partition(":")
            listening[int(port, 16)] = address
    assert set(listening.pop(endpoint.port)) == {"0"}  # of either family
    assert len(listening) == 3
    loopback = "0100007F"
    assert set(listening.values()) <= {loopback, f"0000000000000000FFFF0000{loopback}"}
