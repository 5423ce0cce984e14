"""What is measured of the container with all its models: on a GPU, and at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import gpu, whole
from tests.conftest import PROJECT


def test_the_tables_of_a_gpu_and_of_the_mix_are_measured_where_there_is_none(
    models: None, tmp_path: Path
) -> None:
    options = whole.parse_arguments(
        ["--gpu", "--models", "bert_base", "--callers", "1", "--rounds", "1", "--seconds", "0.1"]
    )
    options.until = float("inf")
    with whole.whole_server(
        PROJECT / "model_repository", tmp_path, "exact", options.models
    ) as server:
        said = "\n".join([*gpu.report([server], options), *whole.mix([server], options)])
    row = next(line for line in said.splitlines() if line.startswith("| exact | BERT, 9 tokens"))
    speed, times, spent = row.split(" | ")[3:6]
    assert float(speed) == pytest.approx(1e3 / float(times.partition("/")[0]), rel=0.5)
    assert "model process of bert_base" in spent
    assert "exact, bert_base: " in said
    assert "| exact | all | | | " in said


def test_a_gpu_is_named_where_none_is(capsys: pytest.CaptureFixture[str]) -> None:
    if gpu.DRIVER.exists():
        pytest.skip("there is a GPU")
    assert whole.main(["--gpu"]) == 1
    assert "--on-cpu" in capsys.readouterr().err


def test_a_gpu_is_looked_at_while_callers_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    gauges = iter([(0.25, 2e9), (0.75, 1e9)])

    def read(port: int, path: str) -> bytes:
        busy, used = next(gauges)
        return (
            f'# TYPE nv_gpu_utilization gauge\n\nnv_gpu_utilization{{gpu_uuid="a"}} {busy}\n'
            f'nv_gpu_memory_used_bytes{{gpu_uuid="a"}} {used}\n'
        ).encode()

    monkeypatch.setattr(gpu, "read", read)
    monkeypatch.setattr(gpu, "LOOK_S", -1)
    watch = gpu.Watch(0)
    for _ in range(2):
        watch.look()
    monkeypatch.setattr(gpu, "LOOK_S", 60)
    watch.look()
    assert (watch.busy, watch.memory_mb) == ([0.25, 0.75], 2000)
