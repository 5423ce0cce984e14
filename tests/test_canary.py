"""The canary: what it finds out, and what it does about it."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from clients.base import Client, Environment
from clients.errors import DeadlineExceeded, ModelFailed, ModelUnavailable
from clients.registry import Registry
from dispatcher.canary import UNTRIED, Canary
from tests.conftest import Endpoint, descendants, running, wait_for
from tests.fake_triton import FakeTriton
from tests.test_chain import BERT, small_repository

__all__ = ["small_repository"]


class Echo(Client):
    modelname = "echo"
    example = {"x": 1}

    def inference(self, payload: Any) -> Any:
        self.infer({})
        if payload.get("x") != 1:
            raise ValueError("not the example")


@pytest.fixture
def server() -> FakeTriton:
    return FakeTriton({"echo": dict})


@pytest.fixture
def canary(server: FakeTriton) -> Canary:
    echo = Echo(Environment(server, Path()))
    return Canary(["echo"], Registry({"echo": echo}), server, 8, 8, clock=lambda: 100.0)


def test_before_the_first_trial_nothing_is_known(canary: Canary) -> None:
    assert UNTRIED in canary.reasons()[0]


def test_a_model_that_answers_its_example_is_well(canary: Canary, server: FakeTriton) -> None:
    assert canary.look() is False
    assert canary.reasons() == []
    assert canary.report("echo") == {"ok": True, "reason": "", "age_s": 0.0}


@pytest.mark.parametrize("error", [ModelFailed("it is gone"), ModelUnavailable("it is loading")])
def test_one_that_does_not_answer_is_named_with_the_reason(
    canary: Canary, server: FakeTriton, error: Exception
) -> None:
    server.models_run["echo"] = error
    assert canary.look() is True
    assert canary.reasons() == [f"the required model 'echo' does not answer: {error}"]
    server.models_run["echo"] = dict
    canary.look()
    assert canary.reasons() == []


@pytest.mark.parametrize(("answered_at", "well"), [(0.0, False), (91.0, False), (93.0, True)])
def test_one_that_is_busy_is_told_from_one_that_hangs(
    canary: Canary, server: FakeTriton, answered_at: float, well: bool
) -> None:
    """It is 100 now, and 8 seconds are granted: an answer to somebody at 93 shows that it lives."""
    server.models_run["echo"] = DeadlineExceeded("no answer")
    server.successes["echo"] = answered_at
    canary.look()
    assert (canary.reasons() == []) == well


def test_a_client_that_fails_on_its_own_example_is_said_so(server: FakeTriton) -> None:
    echo = Echo(Environment(server, Path()))
    echo.example = {"x": 2}  # type: ignore[misc]
    canary = Canary(["echo"], Registry({"echo": echo}), server, 8, 8)
    canary.look()
    assert "its own example" in canary.reasons()[0]


# On the real chain


def stub_of(endpoint: Endpoint, model: str) -> int:
    for pid in descendants(endpoint.process.pid):
        command = Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
        if re.search(rf"triton_python_backend_stub \S*/{model}/", command):
            return pid
    raise AssertionError(f"no process runs {model}")


def test_ping_tells_when_a_model_s_process_is_gone(small_repository: Path, tmp_path: Path) -> None:
    """Triton itself goes on calling the model ready."""
    settings = {
        "MODEL_REPOSITORY": str(small_repository),
        "CANARY_INTERVAL": "1",
        "CANARY_TIMEOUT": "2",
        "SERVE_STOP_TIMEOUT": "5",  # Triton waits in vain for a process that is gone
    }
    with running(tmp_path, **settings) as endpoint:
        assert endpoint.call("/ping").status == 200
        os.kill(stub_of(endpoint, "bert_base"), signal.SIGKILL)
        wait_for(lambda: endpoint.call("/ping").status == 503, 20, "/ping turning 503")
        health = endpoint.call("/health").json
        assert "'bert_base' does not answer" in health["reasons"][0]
        assert health["models"][0]["state"] == "READY"
        assert health["models"][0]["canary"]["ok"] is False
        assert endpoint.ask(**BERT).status == 502
