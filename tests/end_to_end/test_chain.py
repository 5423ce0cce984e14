"""The real chain: Triton, gunicorn and NGINX, with real weights, against reference answers."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from glob import iglob
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tests.conftest import (
    PICTURES,
    PROJECT,
    Endpoint,
    commands,
    descendants,
    picture,
    running,
    wait_for,
)
from tests.end_to_end.conftest import BERT
from tests.support import readme
from tests.support.front import sagemaker_runtime
from tests.support.models import onnx_models
from tests.support.models.onnx_repository import ONE, parameter, rows
from tests.support.programs import kilobytes
from tests.support.telemetry import Samples, difference, scraped, settled, value
from tool.__main__ import main

REFERENCE = PROJECT / "tests" / "reference"


def reference(name: str) -> Any:
    return json.loads((REFERENCE / name).read_text())


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


def test_texts_of_unequal_lengths_that_share_runs_are_answered_as_alone(endpoint: Endpoint) -> None:
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


@pytest.mark.slow
def test_the_reader_s_own_model_answers_as_it_shows(endpoint: Endpoint, tmp_path: Path) -> None:
    """Written by `new-model`, with the options that stand there."""
    command, shown = readme.requests()[-1]
    came = readme.run_with_own_model(command, f"http://127.0.0.1:{endpoint.port}", tmp_path)
    assert endpoint.call("/models/photos", method="DELETE").status == 200
    assert readme.same(came, shown), came


def test_a_list_is_answered_in_order_as_if_one_by_one(endpoint: Endpoint) -> None:
    """17 and 9 pictures are more than one batch of either model."""
    names = ["chelsea.png", "coffee.png"] * 8 + ["chelsea.png"]
    payload = [{"img": picture(PICTURES / name)} for name in names]
    answer = endpoint.ask(modelname="resnet", payload=payload, parameters={"top_k": 5})
    assert answer.status == 200
    for name, result in zip(names, answer.json["result"], strict=True):
        assert_resnet_as_reference(result, reference("resnet.json")[name])
    answer = endpoint.ask(modelname="yolov5", payload=payload[:9])
    for name, result in zip(names[:9], answer.json["result"], strict=True):
        assert_yolov5_as_reference(result, reference("yolov5.json")[name])


@pytest.mark.parametrize("version", [1, "1", 2])
def test_a_version_is_chosen(endpoint: Endpoint, version: int | str) -> None:
    answer = endpoint.ask(**BERT, modelversion=version)
    assert answer.status == 200
    assert answer.json["modelversion"] == str(version)
    assert answer.json["result"][0]["token"] == "The world has many people."


# The contract, as callers from elsewhere know it


def test_boto3_asks_with_attributes_and_by_target_model(endpoint: Endpoint) -> None:
    runtime, body = sagemaker_runtime(endpoint), (PICTURES / "coffee.png").read_bytes()
    answer = runtime.invoke_endpoint(
        EndpointName="any",
        Body=body,
        ContentType="image/png",
        CustomAttributes="modelname=resnet;top_k=5",
        InferenceId="my-id",
    )
    assert answer["ResponseMetadata"]["HTTPHeaders"]["x-request-id"] == "my-id"
    result = json.loads(answer["Body"].read())["result"]
    assert_resnet_as_reference(result, reference("resnet.json")["coffee.png"])
    drawn = runtime.invoke_endpoint(
        EndpointName="any",
        Body=body,
        ContentType="application/octet-stream",
        Accept="image/jpeg",
        TargetModel="yolov5.tar.gz",
    )
    assert drawn["ContentType"] == "image/jpeg"
    assert Image.open(io.BytesIO(drawn["Body"].read())).size == (600, 400)


def test_dispatcher_invoke_asks_and_draws(
    endpoint: Endpoint, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = ["--url", f"http://127.0.0.1:{endpoint.port}"]
    text = ["--text", BERT["payload"]["text"], "--parameter", "top_k=1"]
    assert main(["invoke", "bert_base", *text, *url]) == 0
    (best,) = json.loads(capsys.readouterr().out)["result"]
    assert best["token"] == "The world has many people."
    drawn = tmp_path / "boxes.jpg"
    img = ["--img", str(PICTURES / "coffee.png"), "--draw", str(drawn)]
    assert main(["invoke", "yolov5", *img, *url]) == 0
    assert drawn.read_bytes().startswith(b"\xff\xd8")
    capsys.readouterr()
    assert main(["invoke", "yolov5", "--example", *url]) == 0
    assert len(json.loads(capsys.readouterr().out)["result"]) == 1  # a cup
    for unknown in (["--example"], ["--text", "a"]):
        assert main(["invoke", "restnet", *unknown, *url]) == 1
        assert "404 unknown_model" in capsys.readouterr().err


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


# Models that are loaded while it runs


@pytest.mark.parametrize("layout", ["plain", "one inside"])
def test_load_invoke_list_unload(endpoint: Endpoint, tmp_path: Path, layout: str) -> None:
    tensor = {"name": "x", "shape": [1, 3], "datatype": "FP32", "data": [1, 2, 3]}
    body = json.dumps({"inputs": [tensor]})
    inner = tmp_path / "inner"
    onnx_models.plus_one((tmp_path if layout == "plain" else inner / "1") / "model.onnx")
    if layout != "plain":
        config = 'name: "another name"\nbackend: "onnxruntime"\n' + rows(4) + ONE
        (inner / "config.pbtxt").write_text(config + parameter("engine", "onnxruntime"))
    name = "3f9c2d"
    assert endpoint.call(f"/models/{name}/invoke", body).status == 404
    wanted = json.dumps({"model_name": name, "url": str(tmp_path)})
    loaded = endpoint.call("/models", wanted)
    assert loaded.status == 200, loaded.body
    assert endpoint.call("/models", wanted).status == 409
    answer = endpoint.call(f"/models/{name}/invoke", body)
    assert answer.status == 200, answer.body
    assert answer.json["outputs"] == [{**tensor, "name": "y", "data": [2, 3, 4]}]
    listed = {one["modelName"]: one for one in endpoint.call("/models").json["models"]}
    assert listed[name]["modelUrl"] == str(tmp_path)
    assert listed[name]["state"] == "READY"
    assert "ResNet-50" in listed["resnet"]["weights"]
    assert "bert_mini" in listed["bert_base"]["weights"]
    instances = f"triton_python_backend_stub .*/{name}/"
    assert commands(endpoint.process.pid, instances)
    assert endpoint.call(f"/models/{name}", method="DELETE").status == 200
    assert not commands(endpoint.process.pid, instances), "its memory is given back before"
    assert endpoint.call(f"/models/{name}").status == 404
    assert endpoint.call(f"/models/{name}/invoke", body).status == 404


# What /metrics has of the models


@pytest.mark.skipif(
    not shutil.which("promtool"),
    reason="there is no promtool: `make test` installs it on Debian, by apt-get install prometheus",
)
def test_promtool_finds_no_fault(endpoint: Endpoint) -> None:
    """Of Triton's own metrics it dislikes some names, so these are checked by themselves."""

    def faults(page: str) -> list[str]:
        done = subprocess.run(
            ["promtool", "check", "metrics"],
            input=page,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode in {0, 3}, f"it cannot be read: {done.stderr}"  # 3: faults of style
        return (done.stdout + done.stderr).splitlines()

    assert endpoint.ask(modelname="bert_base", payload={"text": "a [MASK]"}).status == 200
    page = endpoint.call("/metrics").body.decode()
    own, triton = page[: page.index("# HELP nv_")], page[page.index("# HELP nv_") :]
    assert faults(own) == []
    assert all(line.startswith("nv_") for line in faults(page)), "none is there twice"
    assert "dispatcher_" not in triton
    assert faults(own.replace("_total", "")) != [], "promtool looks at it"


def test_every_metric_is_in_the_documentation(endpoint: Endpoint) -> None:
    table = (PROJECT / "docs" / "operations.md").read_text()
    documented = set(re.findall(r"`(dispatcher_\w+)`", table))
    typed = re.findall(
        r"^# TYPE (dispatcher_\w+)", endpoint.call("/metrics").body.decode(), re.MULTILINE
    )
    assert set(typed) <= documented
    assert {"dispatcher_saturation_ratio", "dispatcher_proxy_refusals_total"} <= set(typed)
    assert {"dispatcher_cpus", "dispatcher_memory_available_bytes"} <= set(typed)


def test_memory_and_processor_time_are_those_of_the_models_processes(endpoint: Endpoint) -> None:
    def seconds() -> float:
        now = scraped(endpoint)
        return value(now, "dispatcher_cpu_seconds_total", program="triton", model="bert_base")

    found = value(scraped(endpoint), "dispatcher_memory_bytes", program="triton", model="bert_base")
    processes = commands(endpoint.process.pid, "/bert_base/")
    assert processes
    kib = sum(kilobytes(pid, "smaps_rollup", "Pss") for pid in processes)
    assert found == pytest.approx(1024 * kib, rel=0.3)
    before, texts = seconds(), [{"text": "a [MASK] " * 60}] * 4
    assert endpoint.ask(modelname="bert_base", payload=texts).status == 200
    ticks = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in processes]
    used = sum(int(number) for one in ticks for number in one[11:15]) / os.sysconf("SC_CLK_TCK")
    assert before < seconds() == pytest.approx(used, rel=0.1)


def test_what_nginx_refuses_is_counted(endpoint: Endpoint) -> None:
    def refusals() -> dict[str, float]:
        return {
            dict(labels)["status"]: number
            for (name, labels), number in scraped(endpoint).items()
            if name == "dispatcher_proxy_refusals_total"
        }

    before = refusals()
    assert set(before) >= {"400", "413", "429", "499", "503", "504"}, "0 where there was none"
    for _ in range(5):
        assert endpoint.call("/ping").status == 200
    assert endpoint.call("/nowhere").status == 404, "which is not NGINX's"
    for _ in range(2):
        assert endpoint.call("/invocations", " " * (26 * 2**20)).status == 413
    assert endpoint.call("/" + "a" * 9000).status == 414
    body = json.dumps({"modelname": "bert_base", "payload": [{"text": "a [MASK] " * 60}] * 8})
    with socket.create_connection(("127.0.0.1", endpoint.port)) as left:
        head = f"POST /invocations HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        left.sendall(head.encode() + body.encode())
        time.sleep(0.05)
    expected = {**before, "413": before["413"] + 2, "414": before["414"] + 1}
    expected["499"] += 1
    wait_for(lambda: refusals() == expected, lambda: f"{expected}; there are {refusals()}")


def test_triton_s_own_metrics_stand_beside_those_of_batches_and_requests(
    endpoint: Endpoint,
) -> None:
    # The parser gives a counter the ending that Triton leaves out.
    of_triton = ("nv_inference_count_total", "nv_inference_request_success_total")

    def of_bert(samples: Samples, *names: str, **labels: str) -> list[float]:
        return [value(samples, name, model="bert_base", **labels) for name in names]

    before = settled(endpoint)
    for _ in range(3):
        assert endpoint.ask(**BERT).status == 200
    rows, answered = of_bert(before, *of_triton)
    # A request is answered before Triton has counted it.
    wait_for(
        lambda: of_bert(scraped(endpoint), *of_triton) == [rows + 3, answered + 3],
        "Triton's count",
    )
    now = settled(endpoint)
    assert value(now, "dispatcher_triton_up") == 1
    assert value(now, "dispatcher_ready") == 1
    assert value(now, "dispatcher_probe_ok") == 3
    requests = ("dispatcher_requests_total", "dispatcher_request_seconds_sum")
    count, seconds = of_bert(difference(now, before), *requests, status="200")
    assert count == 3
    assert seconds > 0
    assert of_bert(now, "dispatcher_batch_size_sum") == [rows + 3]
    (every,) = of_bert(now, "dispatcher_batch_size_count")
    up_to = [
        of_bert(now, "dispatcher_batch_size_bucket", le=f"{end}.0")[0] for end in (1, 2, 16, 128)
    ]
    assert up_to == sorted(up_to)
    assert up_to[-2] == every, "its max_batch_size is 16"
    assert of_bert(now, "dispatcher_batch_size_bucket", le="+Inf") == [every]


# Health and life


def test_ping_is_empty_and_the_start_says_what_it_does(endpoint: Endpoint) -> None:
    for method in ("GET", "POST"):
        answer = endpoint.call("/ping", method=method)
        assert (answer.status, answer.body) == (200, b"")
    log = endpoint.log.read_text()
    for step in ("Triton is ready after ", "gunicorn is ready after ", "NGINX is ready after "):
        assert log.count(f"serve: {step}") == 1
    assert f"POST http://127.0.0.1:{endpoint.port}/invocations" in log


def test_every_line_of_the_log_says_which_program_it_comes_from(endpoint: Endpoint) -> None:
    endpoint.call("/invocations", b" " * (26 * 2**20), headers={"X-Request-Id": "too-large"})
    wait_for(lambda: '"request_id": "too-large"' in endpoint.log.read_text(), "NGINX's line")
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


# The whole contract


CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
    "response_headers_conformance",
    "unsupported_method",
)


@pytest.mark.slow
def test_schemathesis_finds_nothing_undocumented(models: None, tmp_path: Path) -> None:
    """In a container of its own: the tool also loads models."""
    # A millisecond is too little for any answer, and is allowed.
    (tmp_path / "schemathesis.toml").write_text(
        '[checks.not_a_server_error]\nexpected-statuses = ["2XX", "3XX", "4XX", 504]\n'
    )
    with running(tmp_path) as endpoint:
        done = subprocess.run(
            [
                *(Path(sys.executable).parent / "st", "run"),
                f"http://127.0.0.1:{endpoint.port}/openapi.json",
                "--mode=all",
                "--continue-on-failure",
                "--max-examples=10",
                "--request-timeout=400",
                f"--checks={','.join(CHECKS)}",
                "--exclude-method=DELETE",
                "--exclude-path-regex=/unload$",  # GET /v1/models says which models there are
                "--suppress-health-check=all",
                "--no-color",
            ],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=3600,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
        assert endpoint.call("/ping").status == 200
