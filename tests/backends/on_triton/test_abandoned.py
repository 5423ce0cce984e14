"""What was asked of a model whose process is gone."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from clients.errors import ModelFailed
from clients.triton.client import Triton
from tests.conftest import PATIENCE_S
from tests.support.triton import process as triton_process
from tests.support.triton.calls import wait_until_pending

X = np.zeros((1, 1), np.float32)
WAITS = "batch_size"  # for four rows, twenty seconds


def test_it_fails_at_once_and_what_is_asked_of_others_does_not(
    triton: triton_process.Triton, client: Triton
) -> None:
    four = np.zeros((4, 1), np.float32)
    with ThreadPoolExecutor(2) as pool:
        for _ in range(2):  # after the first answer, and after it was given up once
            assert client.infer(WAITS, {"x": four}, timeout=99)["rows"].tolist() == [[4]] * 4
            asked = pool.submit(client.infer, WAITS, {"x": X}, timeout=99)
            other = pool.submit(
                client.infer, "total", {"x": X}, timeout=PATIENCE_S
            )  # waits for two
            wait_until_pending(triton, batch_size=1, total=1)
            client.abandon(WAITS, "it is gone")
            with pytest.raises(ModelFailed, match="it is gone"):
                asked.result(PATIENCE_S)
            assert WAITS in client.take_failing()
            assert client.infer("total", {"x": X}, timeout=99)["total"].tolist() == [[0]]
            assert other.result(PATIENCE_S)["total"].tolist() == [[0]]


def test_a_model_that_was_never_asked_can_be_abandoned(client: Triton) -> None:
    client.abandon("bare", "it is gone")
    answer = client.infer("bare", {"x": np.zeros((1, 3), np.float32)}, timeout=99)
    assert answer["y"].tolist() == [[1, 1, 1]]
    assert "bare" not in client.take_failing()


def test_what_is_answered_in_time_stays_and_what_is_not_fails(
    triton: triton_process.Triton, client: Triton
) -> None:
    four = np.zeros((4, 1), np.float32)
    assert client.infer(WAITS, {"x": four}, timeout=99)["rows"].tolist() == [[4]] * 4
    with ThreadPoolExecutor(3) as pool:
        few = [pool.submit(client.infer, WAITS, {"x": X}, timeout=99) for _ in range(3)]
        wait_until_pending(triton, batch_size=3)
        client.abandon(WAITS, "it is gone", within=PATIENCE_S)
        assert client.infer(WAITS, {"x": X}, timeout=99)["rows"].tolist() == [[4]]
        assert [one.result(PATIENCE_S)["rows"].tolist() for one in few] == [[[4]]] * 3
        assert client.infer(WAITS, {"x": four}, timeout=99)["rows"].tolist() == [[4]] * 4
        late = pool.submit(client.infer, WAITS, {"x": X}, timeout=99)
        wait_until_pending(triton, batch_size=1)
        began = time.monotonic()
        client.abandon(WAITS, "it is gone", within=1)
        with pytest.raises(ModelFailed, match="it is gone"):
            late.result(PATIENCE_S)
        assert time.monotonic() - began > 0.9
    client.infer(WAITS, {"x": four}, timeout=99)  # runs what was given up, too
