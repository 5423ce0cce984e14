"""How much memory a container is taken to have, and how much of it goes to tensors."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from flask import Flask, Response, g

from clients.triton.shared_memory import MIB, affordable
from dispatcher import app as web
from dispatcher.app import room_made
from dispatcher.settings import read_settings
from dispatcher.telemetry.memory import free_memory, lies_in_memory, total_memory
from dispatcher.telemetry.request_log import RequestRecord
from dispatcher.wsgi import share_memory

GIB = 1024 * MIB
V1 = (*(f"memory/memory.{name}" for name in ("limit_in_bytes", "usage_in_bytes", "stat")), "total_")
V2 = ("memory.max", "memory.current", "memory.stat", "")


@pytest.mark.parametrize(
    ("folder", "in_memory"),
    [("/tmp/run", True), ("/tmpx", False), ("/data/run", False), ("/data/fast/run", True)],
)
def test_a_folder_of_a_file_system_in_memory_is_known(
    tmp_path: Path, folder: str, in_memory: bool
) -> None:
    """Lines as in proc_pid_mountinfo(5), of `docker run --tmpfs /tmp -v data:/data`."""
    mounts = tmp_path / "mountinfo"
    mounts.write_text(
        "36 35 98:0 / / rw,noatime master:1 - overlay overlay rw\n"
        "37 36 0:52 / /tmp rw,nosuid - tmpfs tmpfs rw\n"
        "38 36 0:53 / /data rw - tmpfs tmpfs rw\n"
        "39 36 8:1 /v /data rw shared:2 master:1 - ext4 /dev/sda1 rw\n"
        "40 39 0:54 / /data/fast rw - tmpfs tmpfs rw\n"
    )
    assert lies_in_memory(Path(folder), mounts) is in_memory


@pytest.mark.parametrize(("limit_file", "used_file", "stat_file", "prefix"), [V1, V2])
@pytest.mark.parametrize(
    ("limit", "used", "idle", "whole", "free"),
    [
        (2 * GIB, GIB // 2, 0, 2 * GIB, GIB + GIB // 2),
        (2 * GIB, GIB + GIB // 2, GIB // 4, 2 * GIB, GIB),  # idle copies of files are free
        (16 * GIB, GIB, 0, 8 * GIB, 4 * GIB),
        ("max", GIB, 0, 8 * GIB, 4 * GIB),  # version 2 without a limit
        ("9223372036854771712", GIB, 0, 8 * GIB, 4 * GIB),  # version 1 without one
    ],
)
def test_the_limit_of_a_container_counts_where_the_machine_has_more(
    tmp_path: Path, limit: object, used: int, idle: int, whole: int, free: int,
    limit_file: str, used_file: str, stat_file: str, prefix: str,
) -> None:  # fmt: skip
    machine = tmp_path / "meminfo"
    machine.write_text("MemTotal:   8388608 kB\nMemFree:   1 kB\nMemAvailable:    4194304 kB\n")
    assert (total_memory(machine, tmp_path), free_memory(machine, tmp_path)) == (8 * GIB, 4 * GIB)
    (tmp_path / limit_file).parent.mkdir(exist_ok=True)
    (tmp_path / limit_file).write_text(f"{limit}\n")
    (tmp_path / used_file).write_text(f"{used}\n")
    if idle:
        files = "".join(f"{prefix}{kind}_file {idle}\n" for kind in ("active", "inactive"))
        (tmp_path / stat_file).write_text(f"cache 1\n{files}shmem {GIB}\n")
    assert (total_memory(machine, tmp_path), free_memory(machine, tmp_path)) == (whole, free)


def of_size(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """Give every folder that size."""
    found = SimpleNamespace(f_blocks=size // 4096, f_frsize=4096)
    monkeypatch.setattr("clients.triton.shared_memory.os.statvfs", lambda folder: found)


@pytest.mark.parametrize(
    ("folder", "memory", "expected"),
    [
        (8 * GIB, 64 * GIB, 512 * MIB),
        (GIB, 64 * GIB, 128 * MIB),
        (8 * GIB, 2 * GIB, 256 * MIB),
        (8 * GIB, GIB - 1, 0),
        (64 * MIB, 64 * GIB, 0),
    ],
)
def test_tensors_get_an_eighth_of_what_is_scarcer(
    monkeypatch: pytest.MonkeyPatch, folder: int, memory: int, expected: int
) -> None:
    """What lies in /dev/shm counts as memory: who takes more than the limit is killed."""
    assert affordable(64 * GIB, Path("/missing")) == 0
    of_size(monkeypatch, folder)
    assert affordable(memory) == expected


def test_the_workers_share_it_unless_triton_is_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    of_size(monkeypatch, 8 * GIB)
    monkeypatch.setattr("dispatcher.wsgi.total_memory", lambda: 2 * GIB)
    two = {"MODEL_SERVER_WORKERS": "2"}
    assert share_memory(read_settings(two)) == 128 * MIB
    assert share_memory(read_settings({**two, "TRITON_URL": "triton:8001"})) == 0


@pytest.mark.parametrize(
    ("in_memory", "length", "refused"),
    [
        (True, 30 * MIB, False),
        (True, 31 * MIB, True),
        (False, 50 * MIB, False),
        (False, 51 * MIB, True),
    ],
)
def test_answers_that_are_read_slowly_leave_memory_and_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_memory: bool, length: int, refused: bool
) -> None:
    monkeypatch.setattr(web, "lies_in_memory", lambda _: in_memory)
    monkeypatch.setattr(web, "free_memory", lambda: 60 * MIB)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=100 * MIB))
    app = Flask(__name__)
    with app.test_request_context():
        g.record = RequestRecord(0, "a", "POST", "/", "/", 0)
        half = bytes(length // 2)
        response = Response([half, half, bytes(length % 2)])
        came = room_made(tmp_path, response)
        assert (came.status_code, came.headers.get("Retry-After")) == (
            (429, "1") if refused else (200, None)
        )
