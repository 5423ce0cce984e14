"""A model whose process died, on the real chain: it is loaded again, and others go on."""

from __future__ import annotations

import os
import re
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from container.serving import OWN
from dispatcher.status.election import LOCK
from tests.conftest import Endpoint, commands, running, wait_for
from tests.end_to_end.test_lifecycle import BERT
from tests.support.chaos import Load, find, hit, lay_out, outage

CHAIN = """
from clients.base import Client

class Chain(Client):
    modelname = "chain"
    example = {"numbers": [1]}

    def inference(self, payload):
        numbers = self.numbers(payload, "numbers")[None]
        for model in ("steady", "frail"):
            numbers = self.infer({"INPUT": numbers}, model=model)["OUTPUT"]
        return numbers.tolist()
"""


def stubs_of(endpoint: Endpoint, model: str) -> set[int]:
    found = set(commands(endpoint.process.pid, rf"triton_python_backend_stub \S*/{model}/"))
    assert found, f"no process runs {model}"
    return found


def triton_restarts(endpoint: Endpoint) -> int:
    return int(endpoint.call("/health").json["programs"]["Triton"]["restarts"])


@pytest.mark.slow
def test_a_model_whose_process_died_is_loaded_again(small_repository: Path, tmp_path: Path) -> None:
    """Triton itself goes on calling the model ready."""
    settings = {"MODEL_REPOSITORY": str(small_repository), "CANARY_INTERVAL": "1"}
    with running(tmp_path, **settings) as endpoint:
        assert endpoint.call("/ping").status == 200
        (pid,) = stubs_of(endpoint, "bert_base")
        os.kill(pid, signal.SIGKILL)
        wait_for(lambda: endpoint.call("/ping").status == 503, 20, "/ping turning 503")
        health = endpoint.call("/health").json
        assert "'bert_base' does not answer: its process died (SIGKILL)" in health["reasons"][0]
        assert health["models"][0]["state"] == "READY"
        assert health["models"][0]["canary"]["ok"] is False
        assert endpoint.call("/ping").json["error"]["code"] == "not_ready", "nothing is restarted"
        answer = endpoint.ask(**BERT)
        assert (answer.status, answer.headers["Retry-After"]) == (503, "5")
        wait_for(lambda: endpoint.call("/ping").status == 200, 30, "/ping turning 200")
        assert triton_restarts(endpoint) == 0
        assert endpoint.ask(**BERT).status == 200


@pytest.mark.slow
def test_where_it_cannot_be_loaded_again_triton_is_restarted(
    small_repository: Path, tmp_path: Path
) -> None:
    settings = {"MODEL_REPOSITORY": str(small_repository), "CANARY_INTERVAL": "1"}
    weights = small_repository / "bert_base" / "1" / "model.onnx"
    with running(tmp_path, **settings) as endpoint:
        weights.rename(weights.with_suffix(".away"))
        (pid,) = stubs_of(endpoint, "bert_base")
        os.kill(pid, signal.SIGKILL)
        wait_for(
            lambda: "bert_base cannot be loaded again" in endpoint.log.read_text(),
            20,
            "the failure",
        )
        wait_for(lambda: b'"stuck"' in endpoint.call("/ping").body, 20, "/ping saying so")
        weights.with_suffix(".away").rename(weights)
        wait_for(lambda: endpoint.call("/ping").status == 200, 70, "/ping turning 200")
        assert triton_restarts(endpoint) == 1
        assert endpoint.ask(**BERT).status == 200


@pytest.mark.slow
def test_a_model_that_has_lost_one_of_two_processes_is_loaded_again_as_well(
    small_repository: Path, tmp_path: Path
) -> None:
    """The other answers, and Triton goes on giving requests to the one that is gone."""
    config = small_repository / "bert_base" / "config.pbtxt"
    text = config.read_text()
    for old, new in (("count: 1", "count: 2"), ("dynamic_batching { }", "")):
        assert old in text
        text = text.replace(old, new)
    config.write_text(text)  # each request is a run of its own, and one at a time is lost
    settings = {"MODEL_REPOSITORY": str(small_repository), "CANARY_INTERVAL": "1"}
    with running(tmp_path, **settings) as endpoint:
        before = stubs_of(endpoint, "bert_base")
        assert len(before) == 2
        os.kill(min(before), signal.SIGKILL)
        # Triton sees after a second that the one it hands a request to is gone.
        with ThreadPoolExecutor(4) as pool:
            answers = [pool.submit(endpoint.ask, **BERT) for _ in range(4)]
        statuses = [one.result().status for one in answers]
        assert set(statuses) <= {200, 502}
        assert statuses.count(200) >= 2
        wait_for(lambda: len(stubs_of(endpoint, "bert_base") - before) == 2, 30, "two new ones")
        wait_for(lambda: {endpoint.ask(**BERT).status for _ in range(4)} == {200}, 30, "answers")
        wait_for(lambda: endpoint.call("/ping").status == 200, 10, "/ping turning 200")
        assert triton_restarts(endpoint) == 0


@pytest.mark.slow
def test_other_models_go_on_and_a_class_that_asks_the_model_waits_for_it(tmp_path: Path) -> None:
    settings = lay_out(tmp_path, "steady", "frail")
    (tmp_path / "clients" / "chain.py").write_text(CHAIN)
    settings |= {"REQUIRED_MODELS": "frail,chain", "CANARY_INTERVAL": "1"}
    with running(tmp_path, **settings) as endpoint:
        assert 'dispatcher_canary_ok{model="chain"} 1.0' in endpoint.call("/metrics").body.decode()
        with Load(endpoint, models=("frail",)).going_on() as load:
            hit(endpoint, "a model's process", signal.SIGKILL)  # of `steady`
            seen = outage(endpoint, within=10)
            time.sleep(0.5)
        assert set(load.counts) == {"right"}
        assert seen is None or seen[1] < 15
        assert triton_restarts(endpoint) == 0
        assert Load(endpoint).one("steady", [1.0]) == "right"
        assert endpoint.call("/ping").status == 200


def holder(lock: Path) -> int:
    """Return the process that holds a lock on a file, as the kernel says."""
    locks, inode = Path("/proc/locks").read_text(), lock.stat().st_ino
    found = re.findall(rf"POSIX +ADVISORY +WRITE (\d+) \S+:{inode} ", locks)
    return int(found[0]) if found else 0


@pytest.mark.slow
def test_when_the_worker_that_probes_is_killed_another_does_so(tmp_path: Path) -> None:
    settings = lay_out(tmp_path, "steady", "frail")
    settings |= {"MODEL_SERVER_WORKERS": "2", "RUN_DIR": str(tmp_path / "run")}
    with running(tmp_path, **settings) as endpoint:
        lock = tmp_path / "run" / OWN / LOCK
        first = holder(lock)
        assert first in find(endpoint, "gunicorn's worker")
        with Load(endpoint, models=("frail",)).going_on() as load:
            os.kill(first, signal.SIGKILL)
            wait_for(lambda: holder(lock) not in {0, first}, 2, "another")
            began = stubs_of(endpoint, "steady")
            hit(endpoint, "a model's process", signal.SIGKILL)  # of `steady`
            wait_for(lambda: b"its process died" in endpoint.call("/ping").body, 5, "/ping")
            wait_for(lambda: endpoint.call("/ping").status == 200, 30, "/ping turning 200")
        load.check()
        assert load.counts["right"] > 10
        assert not began & stubs_of(endpoint, "steady")
        assert triton_restarts(endpoint) == 0
