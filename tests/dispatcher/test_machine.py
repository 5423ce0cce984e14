"""How much memory and CPU a container has and uses, by real processes and by files."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from flask import Flask, Response, g

from clients.triton.shared_memory import MIB, affordable
from dispatcher import app as web
from dispatcher.app import room_made
from dispatcher.routes import metrics
from dispatcher.routes.metrics import CurrentState, files_of, limits
from dispatcher.settings import read_settings
from dispatcher.status.instances import process_cpu
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


ALMOST = 0.45
"""Seconds of the child's half: the kernel counts user and system time in ticks, each rounded."""

# Its child works and ends; it takes note of that on request, and writes the CPU seconds.
PARENT = """
import os, sys, time
child = os.fork()
if not child:
    while time.process_time() < 0.5:
        pass
    os._exit(0)
os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
print(child, flush=True)
sys.stdin.readline()
os.waitpid(child, 0)
print(sum(os.times()[2:4]), flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def parent() -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", PARENT]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process
        process.kill()


def next_line(process: Any) -> str:
    return str(process.stdout.readline())


def reap(process: Any) -> float:
    """Let it take note of its child's end; return the child's CPU seconds by its own count."""
    process.stdin.write("\n")
    process.stdin.flush()
    return float(next_line(process))


def cpu(triton: int, models: list[tuple[str, int]]) -> dict[tuple[str, str], float]:
    readiness: Any = SimpleNamespace(supervisor=lambda: SimpleNamespace(triton_pid=triton))
    shown = CurrentState(readiness, None, cast(Any, None), True, [], read_settings({}), {})  # noqa: FBT003
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(metrics, "model_processes", lambda _: models)
        family, _ = shown.processes()
    return {(one.labels["program"], one.labels["model"]): one.value for one in family.samples}


def test_the_seconds_of_ended_children_count_where_they_should(
    parent: subprocess.Popen[str],
) -> None:
    """Those of a model are not Triton's when it has ended; its engines' trials are the model's."""
    model = int(next_line(parent))
    before, while_it_lived = process_cpu(parent.pid), cpu(parent.pid, [("m", model)])
    assert while_it_lived["triton", "m"] >= ALMOST
    used = reap(parent)
    assert used >= ALMOST
    assert cpu(0, [("m", parent.pid)])["triton", "m"] >= used
    tick = 1 / os.sysconf("SC_CLK_TCK")
    assert process_cpu(parent.pid) == pytest.approx(before + used, abs=3 * tick)
    assert process_cpu(parent.pid, children=False) == pytest.approx(before, abs=3 * tick)
    after = cpu(parent.pid, [])
    assert after["triton", ""] == pytest.approx(while_it_lived["triton", ""], abs=0.1)
    assert ("triton", "m") not in after


def shown(machine: Path, group: Path) -> dict[str, float]:
    return {family.name: family.samples[0].value for family in limits(machine, group)}


def test_a_small_container_on_a_large_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """4 GiB and one and a half CPUs of 64 GiB and 16; 3.5 are in use, 0.75 by copies of files."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))
    machine, group = tmp_path / "meminfo", tmp_path / "cgroup"
    machine.write_text("MemTotal: 67108864 kB\nMemAvailable: 58720256 kB\n")
    group.mkdir()
    assert shown(machine, group) == {
        "dispatcher_cpus": 16,
        "dispatcher_memory_limit_bytes": 64 * 2**30,
        "dispatcher_memory_available_bytes": 56 * 2**30,
    }
    (group / "cpu.max").write_text("150000 100000\n")
    (group / "memory.max").write_text(f"{4 * 2**30}\n")
    (group / "memory.current").write_text(f"{7 * 2**29}\n")
    (group / "memory.stat").write_text(f"active_file {2**28}\ninactive_file {2**29}\n")
    assert shown(machine, group) == {
        "dispatcher_cpus": 1.5,
        "dispatcher_memory_limit_bytes": 4 * 2**30,
        "dispatcher_memory_available_bytes": 2**30 + 2**28,
    }


def test_the_room_of_run_dir_and_the_waiting_jobs_are_shown(tmp_path: Path) -> None:
    settings = replace(read_settings({"JOBS_QUEUE": "50"}), run_dir=tmp_path)
    size, free = "dispatcher_run_dir_size_bytes", "dispatcher_run_dir_free_bytes"
    assert {family.name for family in files_of(settings)} == {size, free}, "no jobs are taken"
    for name in ("1.2.a", "2.3.b"):
        (tmp_path / "jobs" / "waiting").mkdir(parents=True, exist_ok=True)
        (tmp_path / "jobs" / "waiting" / name).touch()
    found = {family.name: family.samples[0].value for family in files_of(settings)}
    disk = os.statvfs(tmp_path)
    assert found.pop(size) == disk.f_blocks * disk.f_frsize
    assert 0 < found.pop(free) < disk.f_blocks * disk.f_frsize
    assert found == {"dispatcher_jobs_waiting": 2, "dispatcher_jobs_limit": 50}
