"""A model whose process died, on the real chain: it is loaded again, and others go on."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.conftest import Endpoint, commands, running, wait_for
from tests.end_to_end.test_lifecycle import BERT


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
