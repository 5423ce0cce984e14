"""What is on /metrics, over all web workers, and what hostile callers and full disks do to it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from flask.testing import FlaskClient

from clients.base import Client, Environment
from clients.plugins.registry import Registry
from dispatcher.settings import read_settings
from dispatcher.status.status import Readiness, Status, SupervisorStatus
from dispatcher.telemetry.request_log import RequestRecord
from dispatcher.telemetry.telemetry import MAX_MODELS, Metrics
from dispatcher.version import VERSION
from tests.conftest import PROJECT, Endpoint, alive, descendants, wait_for
from tests.support.application import make_app
from tests.support.fake_triton import FakeTriton
from tests.support.probing import triton
from tests.support.programs import kilobytes
from tests.support.telemetry import difference, parse_page, scraped, settled, value


def ask(endpoint: Endpoint, modelname: str, **more: Any) -> int:
    return endpoint.ask(modelname=modelname, payload={"numbers": [1]}, **more).status


def one_worker(
    *clients: type[Client],
    repository: Path = PROJECT / "model_repository",
    supervisor: SupervisorStatus = SupervisorStatus(),  # noqa: B008  it is immutable
) -> FlaskClient:
    """Return a web worker without others, in this process."""
    environment = Environment(FakeTriton({one.modelname: dict for one in clients}), repository)
    registry = Registry({one.modelname: one(environment) for one in clients})
    settings = read_settings({"SAGEMAKER_SAFE_PORT_RANGE": "1-3"})  # nobody is there
    readiness = Readiness(lambda: supervisor, Status)
    return make_app(settings, registry, environment, readiness).test_client()


def test_counts_are_those_of_the_requests_sent(seen: Endpoint) -> None:
    before = settled(seen)
    with ThreadPoolExecutor(8) as pool:
        asked = ["double"] * 60 + ["fails"] * 30 + [f"no-{n}" for n in range(40)]
        statuses = Counter(pool.map(lambda name: ask(seen, name), asked))
    assert statuses == {200: 60, 502: 30, 404: 40}
    assert seen.call("/infer/double", json.dumps({"payload": {"numbers": [1]}})).status == 200
    assert seen.call("/ping").status == 200
    assert seen.call("/nowhere").status == 404
    assert seen.call("/invocations").status == 405
    now = difference(settled(seen), before)

    def requests(**labels: str) -> float:
        return value(now, "dispatcher_requests_total", **labels)

    asking = {"method": "POST", "route": "/invocations"}
    assert requests(**asking, model="double", status="200") == 60
    assert requests(**asking, model="fails", status="502") == 30
    assert requests(**asking, model="other", status="404") == 40
    assert requests(route="/infer/<model>", model="double", status="200") == 1
    assert requests(method="GET", route="/ping", model="", status="200") == 1
    assert requests(route="", status="404") == 1
    assert requests(route="", status="405") == 1
    assert requests() - requests(route="/metrics") == 60 + 30 + 40 + 4
    for name in ("dispatcher_request_seconds", "dispatcher_queue_seconds"):
        assert value(now, f"{name}_count", model="double", status="200") == 61
        assert value(now, f"{name}_bucket", model="double", status="200", le="+Inf") == 61
        assert value(now, f"{name}_count", model="fails", status="502") == 30
        assert value(now, f"{name}_count", model="other", status="404") == 40
        assert value(now, f"{name}_count") == 131


def test_the_names_of_models_that_are_made_up_do_not_fill_the_memory(seen: Endpoint) -> None:
    before = set(scraped(seen))
    for n in range(50):
        ask(seen, f"made-up-{n}")
        seen.call(f"/made/up/{n}")
        seen.call("/ping", method=f"MADE{chr(65 + n % 26)}")
    added = {key for key in set(scraped(seen)) - before if "made" in str(key).lower()}
    assert not added


def test_the_answers_inside_of_an_answer_are_counted(seen: Endpoint) -> None:
    before = settled(seen)
    one = {"modelname": "double", "payload": {"numbers": [1]}}
    lines = "\n".join(json.dumps(x) for x in [one] * 7 + [one | {"modelname": "fails"}] * 3)
    headers = {"Content-Type": "application/jsonlines"}
    assert seen.call("/invocations", lines + "\nno JSON", headers=headers).status == 200
    assert seen.call("/invocations", json.dumps({"requests": [one, {}]})).status == 200
    several = one | {"modelname": ["double", "fails"]}
    assert seen.call("/invocations", json.dumps(several)).status == 200
    now = difference(settled(seen), before)
    assert value(now, "dispatcher_items_total", model="double", status="200") == 9
    assert value(now, "dispatcher_items_total", model="fails", status="502") == 4
    assert value(now, "dispatcher_items_total", model="", status="400") == 2
    assert value(now, "dispatcher_requests_total", model="several", status="200") == 2
    assert value(now, "dispatcher_requests_total", model="double", status="200") == 1


def test_what_is_known_at_the_moment(seen: Endpoint) -> None:
    now = scraped(seen)
    assert value(now, "dispatcher_probe_ok", model="double") == 1
    assert 0 <= value(now, "dispatcher_probe_age_seconds", model="double") < 600
    assert value(now, "dispatcher_build_info", version=VERSION, revision="unknown") == 1
    assert value(now, "dispatcher_ready") == 1
    assert value(now, "dispatcher_triton_up") == 0, "there is none behind this one"
    memory = {key: v for key, v in now.items() if key[0] == "dispatcher_worker_resident_bytes"}
    assert len(memory) == 2
    for (_, labels), size in memory.items():
        rss = kilobytes(int(dict(labels)["pid"]), "status", "VmRSS") * 1024
        assert rss / 2 < size < rss * 2


def test_a_worker_that_is_killed_takes_only_its_requests_in_flight_along(seen: Endpoint) -> None:
    before = settled(seen)
    with ThreadPoolExecutor(6) as pool:
        for _ in range(6):
            pool.submit(seen.ask, modelname="sleeps", payload={"seconds": [1.5]})
        wait_for(
            lambda: value(scraped(seen), "dispatcher_requests_in_flight") == 7, "all six begin"
        )
        workers = descendants(seen.process.pid)
        for pid in workers:
            os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not alive(workers), "the workers' end")
    wait_for(lambda: seen.call("/ping").status == 200, "new workers")
    kept = {k: v for k, v in before.items() if k[0] == "dispatcher_requests_total"}
    now = settled(seen)
    assert all(now[key] >= number for key, number in kept.items()), "what was counted stays"


def test_saturation_is_the_mean_of_the_workers(seen: Endpoint) -> None:
    settled(seen)

    def saturation() -> float:
        return value(scraped(seen), "dispatcher_saturation_ratio")

    wait_for(lambda: saturation() == 0, "an idle server")
    with ThreadPoolExecutor(4) as pool:
        for _ in range(4):
            pool.submit(seen.ask, modelname="sleeps", payload={"seconds": [1.5]})
        # Each of the two workers has 16 turns for one model.
        wait_for(lambda: saturation() == 4 / 32, "four turns of 32")
    wait_for(lambda: saturation() == 0, "an idle server")


def test_restarts_and_a_container_that_is_not_ready_are_told() -> None:
    page = one_worker(supervisor=triton("waiting", 3, "SIGKILL")).get("/metrics")
    assert page.status_code == 200
    assert 'dispatcher_restarts_total{program="triton"} 2.0' in page.text
    assert "dispatcher_ready 0.0" in page.text
    assert "dispatcher_triton_up 0.0" in page.text


def test_a_model_that_is_loaded_at_run_time_is_counted_by_its_name(tmp_path: Path) -> None:
    for name in ("repository", "elsewhere"):
        (tmp_path / name).mkdir()
    (tmp_path / "elsewhere" / "model.onnx").touch()
    client = one_worker(repository=tmp_path / "repository")
    since = {"X-Request-Start": str(time.time())}
    body = {"model_name": "new", "url": str(tmp_path / "elsewhere")}
    asked = [
        ("DELETE", "/models/new", 404, "other"),
        ("POST", "/models", 200, "new"),
        ("POST", "/models", 409, "new"),
        ("POST", "/load_model/new", 400, "new"),  # DELETE it first
        ("DELETE", "/models/new", 200, "new"),
    ]
    for method, path, status, _ in asked:
        answer = client.open(path, method=method, json=body, headers=since, buffered=True)
        assert answer.status_code == status
        answer.close()
    counted = parse_page(client.get("/metrics").text)
    labels = [dict(found) for name, found in counted if name == "dispatcher_requests_total"]
    assert sorted((one["method"], one["status"], one["model"]) for one in labels) == sorted(
        (method, str(status), model) for method, _, status, model in asked
    )


def test_a_worker_has_the_room_for_its_counts_before_it_counts(seen: Endpoint) -> None:
    """A disk that is full later ends no worker: the files are mapped into its memory."""
    folder = seen.log.parent / "metrics"
    for seat in (0, 1):  # also of the workers that followed dead ones
        for kind in ("counter", "histogram", "gauge_livesum"):
            status = (folder / f"{kind}_{seat}.db").stat()
            assert status.st_blocks * 512 >= status.st_size
    assert len(list(folder.glob("*.db"))) == 2 * 3, "there are none of dead workers"


def record(model: str, status: int = 200) -> RequestRecord:
    made = RequestRecord(0.0, "", "POST", "/invocations", "/invocations", 0)
    made.models, made.known, made.status = [model], True, status
    return made


def test_ten_thousand_models_that_exist_have_few_names_of_their_own() -> None:
    metrics = Metrics(["first"])
    for number in range(10_000):
        metrics.request(record(f"model-{number}"))
    page = parse_page(metrics.page().decode())
    named = [labels for name, labels in page if name == "dispatcher_requests_total"]
    assert len(named) == MAX_MODELS, "without `first`, and with `other`"
    others = value(page, "dispatcher_requests_total", model="other")
    assert others == 10_000 - (MAX_MODELS - 1)


COUNTING = """
import os, resource, sys
from pathlib import Path

folder = Path(sys.argv[1])
os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(folder)
from dispatcher.telemetry import multiprocess

multiprocess.allocate(folder, 0)
from dispatcher.telemetry.telemetry import Metrics
from tests.end_to_end.test_metrics import record

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
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"it died: {done.returncode}, {done.stderr}"
    assert done.stderr.count("some counts will be missing from /metrics") == 1
    page, name = parse_page(done.stdout), "dispatcher_request_seconds_count"
    assert value(page, name, model="model-0", status="200") == 2, "what was counted before goes on"
    assert 100 < sum(found == name for found, _ in page) < 600


class Jumps(Client):
    """Moves the clock by some hours."""

    modelname = "jumps"
    example: Any = {}
    ahead = 0.0

    def inference(self, payload: Any) -> Any:
        Jumps.ahead += 3600 * payload["hours"]
        return "later"


@pytest.mark.parametrize("hours", [1, -1])
def test_a_clock_that_jumps_is_no_time_that_passed(
    monkeypatch: pytest.MonkeyPatch, hours: int
) -> None:
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + Jumps.ahead)
    client = one_worker(Jumps)
    for _ in range(2):
        # NGINX has noted the time of the second request before the clock jumped again.
        since = {"X-Request-Start": str(time.time())}
        Jumps.ahead += 3600 * hours
        answer = client.post("/infer/jumps", json={"payload": {"hours": hours}}, headers=since)
        assert answer.status_code == 200
        (queued,) = re.findall(r"queue;dur=([\d.]+)", answer.headers["Server-Timing"])
        assert float(queued) < 60_000
        answer.close()
    page = parse_page(client.get("/metrics").text)
    for name in ("dispatcher_request_seconds_sum", "dispatcher_queue_seconds_sum"):
        (seconds,) = (v for (n, labels), v in page.items() if n == name)
        assert 0 <= seconds < 60
