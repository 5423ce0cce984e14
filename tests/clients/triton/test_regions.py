"""Regions of shared memory, with a server that notes its calls."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from clients.errors import InferenceError, ModelFailed, ModelUnavailable
from clients.triton import shared_memory as regions
from clients.triton.shared_memory import FOLDER, MIB, NAME, Region, Regions

GONE = 2**22 + 1  # beyond the largest process


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


@pytest.fixture
def server() -> FakeServer:
    return FakeServer()


@pytest.fixture
def held(server: FakeServer) -> Regions:
    return Regions(server, 8 * MIB)


@pytest.fixture
def advance(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Let it be so many seconds later."""
    now = [time.monotonic()]
    monkeypatch.setattr(regions.time, "monotonic", lambda: now[0])

    def later(seconds: float) -> None:
        now[0] += seconds

    return later


def take(held: Regions, size: int) -> Region:
    region = held.take(size)
    assert region
    return region


def test_a_region_is_for_one_call_at_a_time_and_used_again(held: Regions) -> None:
    one, other = take(held, 3 * MIB - 5), take(held, 3 * MIB)
    assert one.name != other.name
    assert held.take(3 * MIB) is None  # eight are not nine
    held.give_back(one)
    assert held.take(2 * MIB) is one


def test_what_is_too_small_makes_room_for_what_is_needed(held: Regions, server: FakeServer) -> None:
    held.give_back(take(held, 3 * MIB))
    assert server.names == [take(held, 7 * MIB).name]


def test_a_region_that_triton_may_still_write_to_is_left_alone(
    held: Regions, server: FakeServer, advance: Callable[[float], None]
) -> None:
    given_up = take(held, 5 * MIB)
    held.give_back(given_up, idle=False)
    assert held.take(5 * MIB) is None
    assert server.names == [given_up.name]
    advance(given_up.usable_at - time.monotonic() + 1)
    assert held.take(5 * MIB) is given_up


def test_a_server_that_refuses_is_asked_again_later(
    held: Regions,
    server: FakeServer,
    advance: Callable[[float], None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    server.error = ModelUnavailable("it is away")
    assert held.take(MIB) is None
    assert "go through gRPC for 60 s: it is away" in caplog.text
    server.error = None
    assert held.take(MIB) is None
    advance(61)
    assert held.take(8 * MIB)


def test_where_memory_is_missing_it_is_said_and_nothing_is_left(
    server: FakeServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert Regions(server, 8 * MIB, tmp_path / "missing").take(MIB) is None
    assert "no shared memory for large tensors" in caplog.text


def test_regions_of_workers_that_are_gone_are_forgotten(
    held: Regions, server: FakeServer, advance: Callable[[float], None]
) -> None:
    gone = [f"{NAME}{GONE}_{number}" for number in range(3)]
    server.names += [gone[0], "another's"]
    held.tidy()
    assert server.names == ["another's"]
    own = take(held, MIB)
    server.names += gone
    server.used = {gone[1]}  # Triton has not done yet with what was asked for
    held.tidy()
    assert gone[0] in server.names, "not each time"
    advance(11)
    held.tidy()
    assert server.names == ["another's", own.name, gone[1]]
    server.used = set()
    advance(11)
    held.tidy()
    assert server.names == ["another's", own.name]


def test_what_a_killed_worker_left_in_the_folder_is_removed(
    server: FakeServer, tmp_path: Path
) -> None:
    """It was killed while it registered a region with Triton: the name was there still."""
    gone, own = f"{NAME}{GONE}_1", f"{NAME}{os.getpid()}_1"
    younger = f"{NAME}{GONE + 1}_1"  # of another container, whose processes are not seen here
    for name in (gone, own, younger, "another's"):
        (tmp_path / name).touch()
        if name != younger:
            os.utime(tmp_path / name, times=(0, time.time() - 61))
    Regions(server, 8 * MIB, tmp_path).tidy()
    assert {path.name for path in tmp_path.iterdir()} == {"another's", own, younger}
