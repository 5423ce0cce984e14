"""Shared memory of models that are loaded later, and of runs."""

from __future__ import annotations

import json
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from backends.machine import shared_folder, shared_memory
from backends.machine.shared_memory import MIB, PREFIX, SHARES, Share, TooLarge
from backends.model_config import ModelConfigError


def part_model(**more: Any) -> dict[str, Any]:
    """256 KiB in and 256 KiB out: batches of n need 1.5 + 1.125 n MiB."""
    tensor = {"data_type": "TYPE_FP32", "dims": ["64", "1024"]}
    return {
        "name": "b",
        "max_batch_size": 16,
        "input": [{"name": "x", **tensor}],
        "output": [{"name": "y", **tensor}],
        **more,
    }


LITTLE = {SHARES: json.dumps({"size": 64 * MIB, "models": {"a": [1000, 5 * MIB]}})}


def release(share: Share) -> None:
    """Close the file by which others count a share."""
    assert share.held is not None
    os.close(share.held)


@pytest.mark.parametrize(
    ("more", "batch"),
    [
        ({}, 5),  # 7.1 of 8 MiB
        ({"instance_group": [{"count": 2}]}, 2),  # 3.75 of 4
        ({"max_batch_size": 3}, 3),
        ({"max_batch_size": 0}, 1),
        ({"model_warmup": [{"batch_size": 7}]}, 7),
    ],
)
def test_a_model_that_comes_later_has_room_for_a_batch_of_its_part(
    more: dict[str, Any], batch: int
) -> None:
    share = Share.of(part_model(**more), LITTLE)
    release(share)
    assert share.tensors == batch * MIB // 2
    assert share.region == 1.5 * MIB + batch * 1.125 * MIB


def is_open(file: os.stat_result) -> bool:
    """Look by identity: another thread may be given a number that became free."""
    for path in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # closed since it was listed
            if os.path.samestat(path.stat(), file):
                return True
    return False


def test_the_room_of_a_model_that_comes_later_is_counted_until_it_has_it() -> None:
    share = Share.of(part_model(), LITTLE)
    assert share.held is not None
    held, grown = os.fstat(share.held), list[int]()
    assert held.st_size == int(5.625 * MIB)
    assert not held.st_nlink
    assert share.has_room(int(2.5 * MIB))
    assert not share.has_room(int(2.5 * MIB) + 1)
    assert is_open(held)

    def grow(more: int) -> None:
        assert is_open(held), "it is counted until the region has it"
        grown.append(more)

    for _ in range(2):
        share.reserve(MIB, grow)
    assert grown == [int(4.625 * MIB)]
    assert not is_open(held)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """In the place of /dev/shm."""
    monkeypatch.setattr(shared_memory, "FOLDER", tmp_path)
    return tmp_path


def write_region(path: Path, size: int) -> None:
    path.touch()
    os.truncate(path, size)


def test_what_all_models_have_is_no_more_than_they_may_where_others_have_the_rest(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """5.6 MiB are counted for each, and what a planned model has not taken yet."""
    monkeypatch.setattr(shared_memory, "ENDING_S", 0.0)
    plan = {"size": 64 * MIB, "models": {"planned": [1000, 42 * MIB]}}
    environment = {SHARES: json.dumps(plan), PREFIX: "ours_"}
    write_region(folder / "ours_region", 10 * MIB)
    write_region(folder / "theirs", 100 * MIB)
    planned = Share.of(part_model(name="planned"), environment)
    share = Share.of(part_model(), environment)
    other = Share.of(part_model(), environment)
    with pytest.raises(ModelConfigError, match=r"'b': beside the other .*in 64 MB"):
        Share.of(part_model(), environment)
    share.reserve(0, lambda size: os.truncate(folder / "ours_region", 10 * MIB + size))
    with pytest.raises(ModelConfigError):
        Share.of(part_model(), environment)
    release(other)
    release(Share.of(part_model(), environment))
    planned.reserve(0, lambda size: None)
    for later in [Share.of(part_model(), environment) for _ in range(4)]:
        release(later)


def test_what_others_have_only_for_a_moment_is_waited_for(folder: Path) -> None:
    """As a process has that only completes a configuration."""
    write_region(folder / "ours_region", 62 * MIB)
    leaving = threading.Timer(0.3, (folder / "ours_region").unlink)
    leaving.start()
    share = Share.of(part_model(), {**LITTLE, PREFIX: "ours_"})
    leaving.join()
    release(share)


def test_of_models_that_are_loaded_at_once_each_counts_what_the_others_hold(folder: Path) -> None:
    environment = {**LITTLE, PREFIX: "ours_", shared_folder.VARIABLE: str(folder)}
    write_region(folder / "ours_region", 50 * MIB)

    def load(_: int) -> int | None:
        try:
            return Share.of(part_model(), environment).held
        except ModelConfigError:
            return None

    with ThreadPoolExecutor(4) as pool:
        held = [one for one in pool.map(load, range(4)) if one is not None]
    for one in held:
        os.close(one)
    assert len(held) == 2


def test_room_is_waited_for_once() -> None:
    """Another model may give it back; where nobody does, later requests do not wait."""
    share, tries = Share(64 * MIB, 1000, 5 * MIB), list[int]()

    def grow(size: int) -> None:
        tries.append(size)
        if len(tries) != 4:
            raise MemoryError

    share.reserve(0, grow)
    assert tries == [int(3.5 * MIB)] * 4
    share, counts = Share(64 * MIB, 1000, 5 * MIB, _patience=0.2), []
    for _ in range(3):
        with pytest.raises(TooLarge, match="--shm-size"):
            share.reserve(0, grow)
        counts.append(len(tries))
    assert counts[0] > 5
    assert counts[1:] == [counts[0] + 1, counts[0] + 2]


def test_runs_that_begin_together_grow_the_region_once() -> None:
    share = Share(64 * MIB, 1000, 5 * MIB)
    grown: list[int] = []

    def grow(size: int) -> None:
        time.sleep(0.05)  # while others come
        grown.append(size)

    def run() -> int:
        share.reserve(0, grow)
        return len(grown)

    with ThreadPoolExecutor(4) as pool:
        runs = [pool.submit(run) for _ in range(4)]
    assert [one.result() for one in runs] == [1] * 4, "and none begins before it has grown"
