"""What is measured of the container with all its models: on a GPU, at once, at a rate."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import gpu, whole
from bench.load import load
from bench.servers.contenders import Contender, as_it_is
from tests.conftest import PROJECT


@pytest.mark.slow
def test_the_tables_of_a_gpu_and_of_the_mix_are_measured_where_there_is_none(
    models: None, tmp_path: Path
) -> None:
    options = whole.parse_arguments(
        ["--gpu", "--models", "bert_base", "--callers", "1", "--rounds", "1", "--seconds", "1"]
    )
    options.until = float("inf")
    with whole.whole_server(
        PROJECT / "model_repository", tmp_path, "exact", options.models
    ) as server:
        said = "\n".join([*gpu.report([server], options), *whole.mix([server], options)])
    row = next(line for line in said.splitlines() if line.startswith("| exact | BERT, 9 tokens"))
    speed, times, spent = row.split(" | ")[3], row.split(" | ")[5], row.split(" | ")[6]
    # A lone caller has as many answers in a second as fit into it; some may have taken longer.
    assert 0.1 < float(speed) * float(times.partition("/")[0]) / 1e3 < 5
    assert "model process of bert_base" in spent
    assert "exact, bert_base: " in said
    assert "| exact | all | | | " in said


def test_a_gpu_is_named_where_none_is(capsys: pytest.CaptureFixture[str]) -> None:
    if gpu.DRIVER.exists():
        pytest.skip("there is a GPU")
    assert whole.main(["--gpu"]) == 1
    assert "--on-cpu" in capsys.readouterr().err


def test_a_run_that_stalls_is_seen_among_others(monkeypatch: pytest.MonkeyPatch) -> None:
    # The gauges of a GPU, and runs of a model there: pretended.
    pages = {
        "/v2/models/m/stats": iter([(0, 0), (9, 36), (9, 36), (10, 39), (14, 751)]),
        "/metrics": iter([(0.25, 2e9), (0.75, 1e9)]),
    }

    def read(port: int, path: str) -> bytes:
        del port
        one, two = next(pages[path])
        if path == "/metrics":
            return (
                f'# TYPE nv_gpu_utilization gauge\n\nnv_gpu_utilization{{gpu_uuid="a"}} {one}\n'
                f'nv_gpu_memory_used_bytes{{gpu_uuid="a"}} {two}\n'
            ).encode()
        sizes = [{"compute_infer": {"count": one, "ns": two * 1e6}}]
        return json.dumps({"model_stats": [{"batch_stats": sizes}]}).encode()

    monkeypatch.setattr(gpu, "read", read)
    monkeypatch.setattr(gpu, "LOOK_AT_GPU_S", -1)
    watch = gpu.Watch(0, "m")
    for _ in range(2):
        watch.look()
    assert (watch.busy, watch.memory_mb) == ([0.25, 0.75], 2000)
    monkeypatch.setattr(gpu, "LOOK_AT_GPU_S", 60)
    for _ in range(2):
        watch.look()
    # Nine runs took 36 ms and one 3, so 4 is the median; of four, one took all but 12 of 712.
    assert watch.longest() == 700 / 4


def test_capacity_is_the_highest_rate_within_the_bound(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def arrive(
        _k6: Path, _port: int, _file: Path, rate: float, _seconds: float
    ) -> dict[str, float]:
        return {
            **dict.fromkeys(("refused", "failed", "not_sent"), 0),
            "answered": 9,
            "p50": rate,
            "p99": 10 * rate,
        }

    # A lone request takes 20 ms, so p99 may be 100 ms; a closed loop has 16 a second.
    loop = load.Loop(0, 1, [0.02] * 16)
    monkeypatch.setattr(load, "ask_in_a_loop", lambda *_: loop)
    monkeypatch.setattr(whole, "arrive", arrive)
    monkeypatch.setattr(whole, "install_rival", lambda *_: tmp_path / "python")
    (tmp_path / "run").mkdir()
    words = ["--capacity", "--models", "bert_base", "--cache", str(tmp_path)]
    server = Contender("exact", [], 0, "/", as_it_is, as_it_is, {}, tmp_path)
    said = [*whole.capacity([server], whole.parse_arguments(words))]
    assert said[-1] == "| exact | bert_base | 20.0 | 10.0 | 10/100 |"
