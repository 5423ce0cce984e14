"""Large tensors through shared memory, on the real Triton: the answers are those of gRPC."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpc_client
from tritonclient.grpc import service_pb2
from tritonclient.utils import InferenceServerException

from clients.errors import ModelFailed, TensorsRefused
from clients.triton.client import Triton
from clients.triton.server import Hints
from clients.triton.shared_memory import FOLDER, MIB, NAME, Regions
from tests.conftest import PATIENCE_S, wait_for
from tests.support.triton import process as triton_process
from tests.support.triton.calls import wait_until_pending

ROWS = 200_000  # of three float32: 2.4 MB
X = np.arange(3 * ROWS, dtype=np.float32).reshape(ROWS, 3)


@pytest.fixture
def client(triton: triton_process.Triton) -> Iterator[Triton]:
    yield Triton(f"127.0.0.1:{triton.ports[0]}", 64 * MIB)
    forget(triton)


def known(triton: triton_process.Triton) -> list[str]:
    return list(triton.client.get_system_shared_memory_status().regions)


def forget(triton: triton_process.Triton) -> None:
    """Let Triton forget all regions; it is done with a request shortly after it has answered."""

    def has_forgotten() -> bool:
        with contextlib.suppress(InferenceServerException):
            triton.client.unregister_system_shared_memory()
            return True
        return False

    wait_for(has_forgotten, "a region that Triton does not use any more")


def ask(client: Triton, x: np.ndarray[Any, Any] = X) -> np.ndarray[Any, Any]:
    (answer,) = client.infer("free", {"x": x}, timeout=60).values()
    return answer


def test_answers_are_right_however_they_come(triton: triton_process.Triton, client: Triton) -> None:
    for rows in (ROWS, ROWS, 2 * ROWS, ROWS // 2, 10, ROWS):  # learned, larger, smaller, tiny
        x = np.arange(3 * rows, dtype=np.float32).reshape(rows, 3)
        np.testing.assert_array_equal(ask(client, x), x + 1)
        np.testing.assert_array_equal(ask(client, np.asfortranarray(x)), x + 1)
    assert known(triton)
    assert not list(FOLDER.glob(f"{NAME}{os.getpid()}_*"))


def test_an_answer_stays_when_the_region_is_used_again(client: Triton) -> None:
    ask(client)
    first = ask(client)
    ask(client, X * 0)
    np.testing.assert_array_equal(first, X + 1)


def test_a_triton_that_has_forgotten_the_region_is_told_a_new_one(
    triton: triton_process.Triton, client: Triton
) -> None:
    for _ in range(2):
        ask(client)
    before = known(triton)
    forget(triton)
    for _ in range(2):
        np.testing.assert_array_equal(ask(client), X + 1)
    assert known(triton)
    assert not set(before) & set(known(triton))


def test_an_answer_that_is_larger_than_foreseen_comes_by_grpc(client: Triton) -> None:
    few, many = np.zeros_like(X), np.ones_like(X)
    few[:40_000] = 1
    for x in (few, many, many, few):
        (where,) = client.infer("nonzero", {"x": x}, timeout=60).values()
        np.testing.assert_array_equal(where, np.nonzero(x))


def test_only_the_rows_that_are_wanted_come(client: Triton) -> None:
    for rows, wanted in (
        (ROWS, [0, 7, ROWS - 1]),
        (ROWS, []),
        (ROWS, range(0, ROWS, 2)),  # by gRPC, where it is learned how large they are
        (ROWS // 2, range(ROWS // 2)),  # as many of fewer: all of them
        (ROWS, range(1, ROWS, 2)),
    ):
        hints = Hints(rows={"y": wanted})
        answer = client.infer("free", {"x": X[:rows]}, hints=hints, timeout=60)
        np.testing.assert_array_equal(answer["y"], X[:rows][wanted] + 1)


def test_only_rows_above_a_number_come(client: Triton) -> None:
    for rows, least in ((ROWS, 3 * ROWS - 5), (ROWS, 3 * ROWS), (ROWS, 0), (10, 15)):
        above = {"y": (np.int64(1), np.float32(least))}  # as a class may well give them
        answer = client.infer("free", {"x": X[:rows]}, hints=Hints(above=above), timeout=60)
        y = X[:rows] + 1
        np.testing.assert_array_equal(answer["y"], y[y[:, 1] > least])


def test_what_is_wrong_with_a_request_is_told_as_by_grpc(
    triton: triton_process.Triton, client: Triton
) -> None:
    wrong = np.zeros((ROWS, 4), np.float32)
    plain = Triton(f"127.0.0.1:{triton.ports[0]}")
    said = []
    for one in (client, plain):
        with pytest.raises(TensorsRefused) as caught:
            ask(one, wrong)
        said.append(caught.value.message)
    assert said[0] == said[1]
    np.testing.assert_array_equal(ask(client), X + 1)


def test_a_request_that_fails_keeps_no_region(
    triton: triton_process.Triton, client: Triton
) -> None:
    for _ in range(2):
        ask(client)
    for _ in range(30):  # thirty regions would be more than there may be
        with pytest.raises(TensorsRefused):
            ask(client, np.zeros((ROWS, 4), np.float32))
        with pytest.raises(TensorsRefused):
            client.infer("free", {"x": X, "other": np.array(["text"])}, timeout=60)
    np.testing.assert_array_equal(ask(client), X + 1)
    assert len(known(triton)) <= 3  # one for each of the sizes that were needed


def test_triton_forgets_no_region_that_it_is_using(triton: triton_process.Triton) -> None:
    """What `sweep` builds on. The model waits for a second request, twenty seconds."""
    client = Triton(f"127.0.0.1:{triton.ports[0]}")
    server = client._regions._call
    name = f"{NAME}{2**22 + 1}_1"
    x = np.arange(20, dtype=np.float32)[None]
    memory = FOLDER / name
    memory.write_bytes(x.tobytes() + bytes(4096))
    request = service_pb2.SystemSharedMemoryRegisterRequest(
        name=name, key=f"/{name}", byte_size=4096
    )
    server("SystemSharedMemoryRegister", request, 60)
    named = service_pb2.SystemSharedMemoryUnregisterRequest(name=name)
    given = grpc_client.InferInput("x", [1, 20], "FP32")
    wanted = grpc_client.InferRequestedOutput("total")
    where = [(given, x.nbytes, 0), (wanted, 4, x.nbytes)]
    with ThreadPoolExecutor(1) as pool:
        for one, size, offset in where:
            given.set_data_from_numpy(x)
            wanted.unset_shared_memory()
            one.set_shared_memory(name, size, offset)
            asked = pool.submit(triton.client.infer, "total", [given], outputs=[wanted])
            wait_until_pending(triton, total=1)
            with pytest.raises(ModelFailed, match="in use"):
                server("SystemSharedMemoryUnregister", named, 60)
            assert client.infer("total", {"x": x}, timeout=60)["total"].tolist() == [[190]]
            asked.result(PATIENCE_S)
    assert np.frombuffer(memory.read_bytes(), np.float32)[20] == 190
    memory.unlink()
    Regions(server, 0).sweep()
    assert name not in Regions(server, 0).registered()
