"""A model whose process is gone, on the real chain."""

from __future__ import annotations

import os
import re
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.conftest import Endpoint, descendants, running, wait_for
from tests.end_to_end.test_chain import BERT, small_repository

__all__ = ["small_repository"]


def stub_of(endpoint: Endpoint, model: str) -> int:
    for pid in descendants(endpoint.process.pid):
        command = Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
        if re.search(rf"triton_python_backend_stub \S*/{model}/", command):
            return pid
    raise AssertionError(f"no process runs {model}")


@pytest.mark.slow
def test_a_model_whose_process_is_gone_is_mended_by_a_new_start_of_triton(
    small_repository: Path, tmp_path: Path
) -> None:
    """Triton itself goes on calling the model ready."""
    settings = {"MODEL_REPOSITORY": str(small_repository), "CANARY_INTERVAL": "1"}
    with running(tmp_path, **settings) as endpoint:
        assert endpoint.call("/ping").status == 200
        os.kill(stub_of(endpoint, "bert_base"), signal.SIGKILL)
        wait_for(lambda: endpoint.call("/ping").status == 503, 20, "/ping turning 503")
        assert endpoint.call("/ping").json["error"]["code"] == "stuck"
        health = endpoint.call("/health").json
        assert "'bert_base' does not answer" in health["reasons"][0]
        assert health["models"][0]["state"] == "READY"
        assert health["models"][0]["canary"]["ok"] is False
        answer = endpoint.ask(**BERT)
        assert (answer.status, answer.headers["Retry-After"]) == (503, "5")
        wait_for(lambda: endpoint.call("/ping").status == 200, 70, "/ping turning 200")
        assert endpoint.call("/health").json["programs"]["Triton"]["restarts"] == 1
        assert endpoint.ask(**BERT).status == 200


@pytest.mark.slow
def test_a_model_that_has_lost_one_of_two_processes_is_mended_as_well(
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
        os.kill(stub_of(endpoint, "bert_base"), signal.SIGKILL)
        wait_for(
            lambda: b"1 of its 2 processes are left" in endpoint.call("/ping").body,
            10,
            "/ping saying so",
        )
        # Triton sees after a second that the one it hands a request to is gone.
        with ThreadPoolExecutor(4) as pool:
            answers = [pool.submit(endpoint.ask, **BERT) for _ in range(4)]
        statuses = [one.result().status for one in answers]
        assert set(statuses) <= {200, 502}
        assert statuses.count(200) >= 2
        wait_for(lambda: endpoint.call("/ping").status == 200, 70, "/ping turning 200")
        assert endpoint.call("/health").json["programs"]["Triton"]["restarts"] == 1
        assert {endpoint.ask(**BERT).status for _ in range(4)} == {200}
