"""What /metrics says of processes, by real ones, and of a container, by files like its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dispatcher.routes import metrics
from dispatcher.routes.metrics import CurrentState, files_of, limits
from dispatcher.settings import read_settings
from dispatcher.status.instances import process_cpu

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
    shown = CurrentState(readiness, None, cast(Any, None), True, [], read_settings({}))  # noqa: FBT003
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(metrics, "model_processes", lambda _: models)
        family, _ = shown.processes()
    return {(one.labels["program"], one.labels["model"]): one.value for one in family.samples}


def test_the_seconds_of_ended_children_count_where_they_should(
    parent: subprocess.Popen[str],
) -> None:
    """Also those of a model's: at its first load its engines are compared, in such processes."""
    next_line(parent)
    before = process_cpu(parent.pid)
    used = reap(parent)
    assert used >= ALMOST
    assert cpu(0, [("m", parent.pid)])["triton", "m"] >= used
    tick = 1 / os.sysconf("SC_CLK_TCK")
    assert process_cpu(parent.pid) == pytest.approx(before + used, abs=3 * tick)
    assert process_cpu(parent.pid, children=False) == pytest.approx(before, abs=3 * tick)


def test_an_ended_models_seconds_do_not_count_again_as_tritons(
    parent: subprocess.Popen[str],
) -> None:
    model = int(next_line(parent))
    while_it_lived = cpu(parent.pid, [("m", model)])
    assert while_it_lived["triton", "m"] >= ALMOST
    reap(parent)
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
    machine.write_text("MemTotal: 67108864 kB\nMemAvailable: 1024 kB\n")
    assert shown(machine, group)["dispatcher_memory_available_bytes"] == 2**20, "the machine's"


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
