"""Large tensors through shared memory, on the real Triton: the answers are those of gRPC."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpc_client
from tritonclient.grpc import service_pb2
from tritonclient.utils import InferenceServerException

from clients.errors import InferenceError, ModelFailed, ModelUnavailable, TensorsRefused
from clients.triton import shared_memory as regions
from clients.triton.client import Triton
from clients.triton.server import Hints
from clients.triton.shared_memory import FOLDER, MIB, NAME, Regions
from tests.support.triton import process as triton_process

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
    for _ in range(50):
        with contextlib.suppress(InferenceServerException):
            triton.client.unregister_system_shared_memory()
            return
        time.sleep(0.1)
    pytest.fail("Triton keeps using a region")


def three_rows() -> grpc_client.InferInput:
    """Return an input as Triton's own client sends it."""
    return grpc_client.InferInput("x", [3, 3], "FP32").set_data_from_numpy(X[:3])


def ask(client: Triton, x: np.ndarray[Any, Any] = X) -> np.ndarray[Any, Any]:
    (answer,) = client.infer("free", {"x": x}, timeout=30).values()
    return answer


class TestOnTriton:
    def test_answers_are_right_however_they_come(
        self, triton: triton_process.Triton, client: Triton
    ) -> None:
        for rows in (ROWS, ROWS, 2 * ROWS, ROWS // 2, 10, ROWS):  # learned, larger, smaller, tiny
            x = np.arange(3 * rows, dtype=np.float32).reshape(rows, 3)
            np.testing.assert_array_equal(ask(client, x), x + 1)
        assert known(triton)
        assert not list(FOLDER.glob(f"{NAME}*"))

    def test_an_array_in_any_order_is_written_in_that_of_c(self, client: Triton) -> None:
        x = np.asfortranarray(X)
        for _ in range(2):
            np.testing.assert_array_equal(ask(client, x), X + 1)

    def test_an_answer_stays_when_the_region_is_used_again(self, client: Triton) -> None:
        ask(client)
        first = ask(client)
        ask(client, X * 0)
        np.testing.assert_array_equal(first, X + 1)

    def test_a_triton_that_has_forgotten_the_region_is_told_a_new_one(
        self, triton: triton_process.Triton, client: Triton
    ) -> None:
        for _ in range(2):
            ask(client)
        before = known(triton)
        forget(triton)
        for _ in range(2):
            np.testing.assert_array_equal(ask(client), X + 1)
        assert known(triton)
        assert not set(before) & set(known(triton))

    def test_an_answer_that_is_larger_than_foreseen_comes_by_grpc(self, client: Triton) -> None:
        few, many = np.zeros_like(X), np.ones_like(X)
        few[:40_000] = 1
        for x in (few, many, many, few):
            (where,) = client.infer("nonzero", {"x": x}, timeout=30).values()
            np.testing.assert_array_equal(where, np.nonzero(x))

    def test_only_the_rows_that_are_wanted_come(self, client: Triton) -> None:
        for rows, wanted in (
            (ROWS, [0, 7, ROWS - 1]),
            (ROWS, []),
            (ROWS, range(0, ROWS, 2)),  # by gRPC, where it is learned how large they are
            (ROWS // 2, range(ROWS // 2)),  # as many of fewer: all of them
            (ROWS, range(1, ROWS, 2)),
        ):
            answer = client.infer(
                "free", {"x": X[:rows]}, hints=Hints(rows={"y": wanted}), timeout=30
            )["y"]
            np.testing.assert_array_equal(answer, X[:rows][wanted] + 1)

    def test_only_rows_above_a_number_come(self, client: Triton) -> None:
        for rows, least in ((ROWS, 3 * ROWS - 5), (ROWS, 3 * ROWS), (ROWS, 0), (10, 15)):
            above = {"y": (np.int64(1), np.float32(least))}  # as a class may well give them
            answer = client.infer("free", {"x": X[:rows]}, hints=Hints(above=above), timeout=30)
            y = X[:rows] + 1
            np.testing.assert_array_equal(answer["y"], y[y[:, 1] > least])

    @pytest.mark.parametrize(
        "asked", [{"rows_above": '{"other": {"y": [0, 100]}}'}, {"rows": '{"other": {"y": [1]}}'}]
    )
    def test_rows_of_another_model_are_no_matter(
        self, triton: triton_process.Triton, asked: dict[str, Any]
    ) -> None:
        """An ensemble hands its parameters on to all of its steps."""
        answer = triton.client.infer("free", [three_rows()], parameters=asked)
        np.testing.assert_array_equal(answer.as_numpy("y"), X[:3] + 1)

    @pytest.mark.parametrize(
        ("parameter", "said"),
        [
            *(
                ("rows_above", one)
                for one in ("[3, 1]", "[-1, 1]", "[0, -1]", f"[0, 1{'0' * 400}]", "0")
            ),
            *(("rows", one) for one in ("[3]", "[-1]", '["0"]', "0")),
        ],
    )
    def test_rows_that_there_are_not_are_refused(
        self, triton: triton_process.Triton, parameter: str, said: str
    ) -> None:
        self.refuse(triton, parameter, f'{{"free": {{"y": {said}}}}}')

    @pytest.mark.parametrize("parameter", ["rows_above", "rows"])
    @pytest.mark.parametrize("text", ['{"free": 0}', '{"free": [0]}', "[0]", "{"])
    def test_what_says_nothing_of_outputs_is_refused(
        self, triton: triton_process.Triton, parameter: str, text: str
    ) -> None:
        self.refuse(triton, parameter, text)

    def refuse(self, triton: triton_process.Triton, parameter: str, text: str) -> None:
        with pytest.raises(InferenceServerException, match="rows") as caught:
            triton.client.infer("free", [three_rows()], parameters={parameter: text})
        assert caught.value.status() == "StatusCode.INVALID_ARGUMENT"

    def test_what_is_wrong_with_a_request_is_told_as_by_grpc(
        self, triton: triton_process.Triton, client: Triton
    ) -> None:
        wrong = np.zeros((ROWS, 4), np.float32)
        plain = Triton(f"127.0.0.1:{triton.ports[0]}")
        told = []
        for one in (client, plain):
            with pytest.raises(TensorsRefused) as caught:
                ask(one, wrong)
            told.append(caught.value.message)
        assert told[0] == told[1]
        np.testing.assert_array_equal(ask(client), X + 1)

    def test_a_request_that_fails_keeps_no_region(
        self, triton: triton_process.Triton, client: Triton
    ) -> None:
        for _ in range(2):
            ask(client)
        for _ in range(30):  # thirty regions would be more than there may be
            with pytest.raises(TensorsRefused):
                ask(client, np.zeros((ROWS, 4), np.float32))
            with pytest.raises(TensorsRefused):
                client.infer("free", {"x": X, "other": np.array(["text"])}, timeout=30)
        np.testing.assert_array_equal(ask(client), X + 1)
        assert len(known(triton)) <= 3  # one for each of the sizes that were needed


class FakeServer:
    """Notes its calls, and refuses them on request."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.error: InferenceError | None = None
        self.used: set[str] = set()

    def __call__(self, method: str, request: Any, timeout: float) -> Any:
        assert timeout
        if method == "SystemSharedMemoryRegister":
            assert request.key == f"/{request.name}"
            assert (FOLDER / request.name).stat().st_size == request.byte_size
            if self.error:
                raise self.error
            self.names.append(request.name)
        elif method == "SystemSharedMemoryUnregister":
            if request.name in self.used:
                raise ModelFailed("it is currently in use")
            self.names.remove(request.name)
        return SimpleNamespace(regions=list(self.names))


class TestRegions:
    def test_a_region_is_for_one_call_at_a_time_and_used_again(self) -> None:
        held = Regions(FakeServer(), 8 * MIB)
        one, other = held.take(3 * MIB - 5), held.take(3 * MIB)
        assert one
        assert other
        assert one.name != other.name
        assert held.take(3 * MIB) is None  # eight are not nine
        held.give_back(one)
        assert held.take(2 * MIB) is one

    def test_what_is_too_small_makes_room_for_what_is_needed(self) -> None:
        server = FakeServer()
        held = Regions(server, 8 * MIB)
        small = held.take(3 * MIB)
        assert small
        held.give_back(small)
        large = held.take(7 * MIB)
        assert large
        assert server.names == [large.name]

    def test_a_region_that_triton_may_still_write_to_is_left_alone(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        server = FakeServer()
        held = Regions(server, 8 * MIB)
        given_up = held.take(5 * MIB)
        assert given_up
        held.give_back(given_up, idle=False)
        assert held.take(5 * MIB) is None
        assert server.names == [given_up.name]
        monkeypatch.setattr(regions.time, "monotonic", lambda: given_up.usable_at + 1)
        assert held.take(5 * MIB) is given_up

    def test_a_server_that_refuses_is_asked_again_later(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        server = FakeServer()
        server.error = ModelUnavailable("it is away")
        held = Regions(server, 8 * MIB)
        assert held.take(MIB) is None
        assert "go through gRPC for 60 s: it is away" in caplog.text
        server.error = None
        assert held.take(MIB) is None
        now = regions.time.monotonic()
        monkeypatch.setattr(regions.time, "monotonic", lambda: now + 61)
        assert held.take(8 * MIB)

    def test_where_memory_is_missing_it_is_said_and_nothing_is_left(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        held = Regions(FakeServer(), 8 * MIB, tmp_path / "missing")
        assert held.take(MIB) is None
        assert "no shared memory for large tensors" in caplog.text

    def test_regions_of_workers_that_are_gone_are_forgotten(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        server = FakeServer()
        gone = [f"{NAME}{2**22 + 1}_{number}" for number in range(3)]  # beyond the largest process
        server.names += [gone[0], "another's"]
        held = Regions(server, 8 * MIB)
        held.tidy()
        assert server.names == ["another's"]
        own = held.take(MIB)
        assert own
        server.names += gone
        server.used = {gone[1]}  # Triton has not done yet with what was asked for
        held.tidy()
        assert gone[0] in server.names, "not each time"
        now = regions.time.monotonic()
        monkeypatch.setattr(regions.time, "monotonic", lambda: now + 11)
        held.tidy()
        assert server.names == ["another's", own.name, gone[1]]
        server.used = set()
        monkeypatch.setattr(regions.time, "monotonic", lambda: now + 22)
        held.tidy()
        assert server.names == ["another's", own.name]

    def test_what_a_killed_worker_left_in_the_folder_is_removed(self, tmp_path: Path) -> None:
        """It was killed while it registered a region with Triton: the name was there still."""
        gone, own = f"{NAME}{2**22 + 1}_1", f"{NAME}{os.getpid()}_1"
        younger = f"{NAME}{2**22 + 2}_1"  # of another container, whose processes are not seen here
        for name in (gone, own, younger, "another's"):
            (tmp_path / name).touch()
            if name != younger:
                os.utime(tmp_path / name, times=(0, time.time() - 61))
        Regions(FakeServer(), 8 * MIB, tmp_path).tidy()
        left = {path.name for path in tmp_path.iterdir()}
        assert left == {"another's", own, younger}

    def test_triton_forgets_no_region_that_it_is_using(self, triton: triton_process.Triton) -> None:
        """What `sweep` builds on. The model waits for a second request, ten seconds at most."""
        client = Triton(f"127.0.0.1:{triton.ports[0]}")
        server = client._regions._call
        name = f"{NAME}{2**22 + 1}_1"
        x = np.arange(20, dtype=np.float32)[None]
        memory = FOLDER / name
        memory.write_bytes(x.tobytes() + bytes(4096))
        request = service_pb2.SystemSharedMemoryRegisterRequest(
            name=name, key=f"/{name}", byte_size=4096
        )
        server("SystemSharedMemoryRegister", request, 10)
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
                time.sleep(1)
                with pytest.raises(ModelFailed, match="in use"):
                    server("SystemSharedMemoryUnregister", named, 10)
                assert client.infer("total", {"x": x}, timeout=30)["total"].tolist() == [[190]]
                asked.result(30)
        assert np.frombuffer(memory.read_bytes(), np.float32)[20] == 190
        memory.unlink()
        Regions(server, 0).sweep()
        assert name not in Regions(server, 0).registered()
