"""What is on /metrics, and what hostile callers and full disks do to it."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from bench.servers.processes import kilobytes
from clients.base import Client, Environment
from clients.plugins.registry import Registry
from dispatcher.routes import metrics as route
from dispatcher.settings import read_settings
from dispatcher.telemetry.request_log import RequestRecord
from dispatcher.telemetry.telemetry import MAX_MODELS, Metrics
from tests.conftest import PROJECT, Endpoint, commands, wait_for
from tests.support.application import make_app, quiet
from tests.support.fake_triton import FakeTriton
from tests.support.telemetry import scraped, settled, value

NUMBERS = {"numbers": [1]}


def page_of(endpoint: Endpoint) -> str:
    answer = endpoint.call("/metrics")
    assert answer.status == 200
    return answer.body.decode()


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
    page = page_of(endpoint)
    own, triton = page[: page.index("# HELP nv_")], page[page.index("# HELP nv_") :]
    assert faults(own) == []
    assert all(line.startswith("nv_") for line in faults(page)), "none is there twice"
    assert "dispatcher_" not in triton
    assert faults(own.replace("_total", "")) != [], "promtool looks at it"


def test_every_metric_is_in_the_documentation(endpoint: Endpoint) -> None:
    table = (PROJECT / "docs" / "operations.md").read_text()
    documented = set(re.findall(r"`(dispatcher_\w+)`", table))
    typed = re.findall(r"^# TYPE (dispatcher_\w+)", page_of(endpoint), re.MULTILINE)
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


def test_batches_are_those_that_triton_ran(endpoint: Endpoint) -> None:
    texts = [{"text": f"The {word} has [MASK] people."} for word in ("world", "town", "house")]

    def items() -> tuple[float, float]:
        now = scraped(endpoint)
        counted = value(now, "dispatcher_batch_size_sum", model="bert_base")
        return counted, value(now, "nv_inference_count_total", model="bert_base")

    before, _ = items()
    assert endpoint.ask(modelname="bert_base", payload=texts).status == 200
    # The list is answered before Triton has counted it.
    wait_for(lambda: items()[0] >= before + 3, 5, "the three texts")
    now = scraped(endpoint)
    counted, of_triton = items()
    assert counted == of_triton
    every = value(now, "dispatcher_batch_size_bucket", model="bert_base", le="+Inf")
    assert every == value(now, "dispatcher_batch_size_count", model="bert_base")
    up_to = [
        value(now, "dispatcher_batch_size_bucket", model="bert_base", le=f"{end}.0")
        for end in (1, 2, 16, 128)
    ]
    assert up_to == sorted(up_to)
    assert up_to[-2] == every, "its max_batch_size is 16"


def test_a_histogram_of_counts_by_size() -> None:
    buckets, total = route.histogram(route.Counter({1: 5, 3: 2, 200: 1}))
    below = dict(buckets)
    assert [below[end] for end in ("1.0", "2.0", "4.0", "128.0", "+Inf")] == [5, 5, 7, 7, 8]
    assert total == 5 + 6 + 200


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
    wait_for(lambda: refusals() == expected, 5, lambda: f"{expected}; there are {refusals()}")


def test_saturation_is_the_mean_of_the_workers(seen: Endpoint) -> None:
    settled(seen)

    def saturation() -> float:
        return value(scraped(seen), "dispatcher_saturation_ratio")

    wait_for(lambda: saturation() == 0, 5, "an idle server")
    with ThreadPoolExecutor(4) as pool:
        for _ in range(4):
            pool.submit(seen.ask, modelname="sleeps", payload={"seconds": [1.5]})
        # Each of the two workers has 16 turns for one model.
        wait_for(lambda: saturation() == 4 / 32, 5, "four turns of 32")
    wait_for(lambda: saturation() == 0, 5, "an idle server")


def record(model: str, status: int = 200) -> RequestRecord:
    made = RequestRecord(0.0, "", "POST", "/invocations", "/invocations", 0)
    made.models, made.known, made.status = [model], True, status
    return made


def test_ten_thousand_models_that_exist_have_few_names_of_their_own() -> None:
    metrics = Metrics(["first"])
    for number in range(10_000):
        metrics.request(record(f"model-{number}"))
    page = metrics.page().decode()
    counted = {
        labels["model"]: number
        for family in text_string_to_metric_families(page)
        for name, labels, number, *_ in family.samples
        if name == "dispatcher_requests_total"
    }
    assert len(counted) == MAX_MODELS, "without `first`, and with `other`"
    assert counted["other"] == 10_000 - (MAX_MODELS - 1)


COUNTING = """
import os, resource, sys
from pathlib import Path

folder = Path(sys.argv[1])
os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(folder)
from dispatcher.telemetry import multiprocess

multiprocess.allocate(folder, 0)
from dispatcher.telemetry.telemetry import Metrics
from tests.end_to_end.test_scraping import record

resource.setrlimit(resource.RLIMIT_FSIZE, (2**21, 2**21))
metrics = Metrics(environment=os.environ)
for status in (200, 400, 500, 503):
    for number in range(150):
        metrics.request(record(f"model-{number}", status))
metrics.request(record("model-0"))
sys.stdout.write(metrics.page().decode())
"""


def test_a_worker_whose_files_may_not_grow_lives_on(tmp_path: Path) -> None:
    command = [sys.executable, "-c", COUNTING, str(tmp_path)]
    done = subprocess.run(
        command, cwd=PROJECT, capture_output=True, text=True, check=False, env={**os.environ}
    )
    assert done.returncode == 0, f"it died: {done.returncode}, {done.stderr}"
    assert done.stderr.count("some counts will be missing from /metrics") == 1
    found = {
        (labels["model"], labels["status"]): number
        for family in text_string_to_metric_families(done.stdout)
        for name, labels, number, *_ in family.samples
        if name == "dispatcher_request_seconds_count"
    }
    assert found["model-0", "200"] == 2, "what was counted before goes on"
    assert 100 < len(found) < 600


class Jumps(Client):
    """Moves the clock by an hour."""

    modelname = "jumps"
    example: Any = {}

    def inference(self, payload: Any) -> Any:
        Clock.ahead += 3600 * payload["hours"]
        return "later"


class Clock:
    ahead = 0.0


@pytest.mark.parametrize("hours", [1, -1])
def test_a_clock_that_jumps_is_no_time_that_passed(
    monkeypatch: pytest.MonkeyPatch, hours: int
) -> None:
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + Clock.ahead)
    environment = Environment(FakeTriton({"jumps": dict}), PROJECT / "model_repository")
    registry = Registry({"jumps": Jumps(environment)})
    settings = read_settings({"SAGEMAKER_SAFE_PORT_RANGE": "1-3"})  # nobody is there
    client = make_app(settings, registry, environment, quiet(FakeTriton())).test_client()
    for _ in range(2):
        # NGINX has noted the time of the second request before the clock jumped again.
        since = {"X-Request-Start": str(time.time())}
        Clock.ahead += 3600 * hours
        answer = client.post("/infer/jumps", json={"payload": {"hours": hours}}, headers=since)
        assert answer.status_code == 200
        (queued,) = re.findall(r"queue;dur=([\d.]+)", answer.headers["Server-Timing"])
        assert float(queued) < 60_000
        answer.close()
    page = client.get("/metrics").text
    seconds = {
        name: number
        for family in text_string_to_metric_families(page)
        for name, labels, number, *_ in family.samples
        if name.endswith("_seconds_sum") and labels.get("model") == "jumps"
    }
    assert set(seconds) == {"dispatcher_request_seconds_sum", "dispatcher_queue_seconds_sum"}
    assert all(0 <= number < 60 for number in seconds.values())
