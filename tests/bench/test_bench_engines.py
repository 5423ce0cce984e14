"""The limit and rivals run each engine, and say so."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.load import work
from bench.load.limit import Limit, Sample, Way, best_ways
from bench.servers import sessions
from bench.servers.rival_servers import Place, environment
from bench.servers.sessions import Engine
from tests.conftest import PROJECT


@pytest.fixture(scope="module")
def limit() -> Iterator[Limit]:
    with Limit(PROJECT / "model_repository", "bert_base") as started:
        yield started


@pytest.mark.slow
def test_every_engine_of_the_limit_gives_the_same_answer(limit: Limit) -> None:
    found = {engine: limit.answer(work.payload("bert_base"), engine) for engine in Engine}
    # Engines run weights in int8 differently: of the others the scores are nearly equal.
    best = {engine: work.Bert.gist(answer)[:3] for engine, answer in found.items()}
    assert best[Engine.ONNXRUNTIME] == ["the" * 5 + word for word in ("world.", "war.", "matter.")]
    assert best[Engine.OPENVINO_F32] == best[Engine.ONNXRUNTIME]
    if sessions.has_bf16():  # elsewhere the weights in int8 decide what is computed
        assert best[Engine.OPENVINO_BF16] == best[Engine.ONNXRUNTIME]


class FixedLimit(Limit):
    """A limit with figures by engine."""

    def __init__(self, speeds: dict[Engine, float]) -> None:
        self.speeds = speeds

    def measure(self, way: Way, seconds: float, payload: object) -> Sample:
        speed = self.speeds[way.engine] * (1 + way.batch / 100)
        return Sample(speed, 1e3 / speed, 1e3 / speed, {"limit": 10}, 100)


@pytest.mark.parametrize(
    ("among", "best"),
    [
        ((Engine.ONNXRUNTIME, Engine.OPENVINO_F32), Engine.OPENVINO_F32),
        ((Engine.OPENVINO_BF16,), Engine.OPENVINO_BF16),
    ],
)
def test_the_limit_is_the_best_engine_at_the_precision(
    among: tuple[Engine, ...], best: Engine
) -> None:
    limit = FixedLimit({Engine.ONNXRUNTIME: 50, Engine.OPENVINO_F32: 60, Engine.OPENVINO_BF16: 100})
    ways = best_ways(limit, "resnet", None, 2, (1, 8, 16), 1, among)
    assert {way.engine for way in ways.values()} == {best}
    assert ways[1].in_hand == 1
    assert ways[8].in_hand <= 8
    best16 = ways[16]  # a thread for each core
    assert (best16.threads, best16.intra_op_threads, best16.batch) == (2, 1, 8)


@pytest.mark.parametrize(
    ("flags", "engines"),
    [
        ("fpu avx512_bf16 sse", (Engine.OPENVINO_BF16,)),
        ("fpu amx_bf16", (Engine.OPENVINO_BF16,)),
        ("fpu avx512f", (Engine.ONNXRUNTIME, Engine.OPENVINO_F32)),
    ],
)
def test_bf16_is_measured_where_the_cpu_computes_it(
    flags: str, engines: tuple[Engine, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "processor", lambda: flags)
    assert sessions.engines_at("auto") == engines
    assert sessions.engines_at("exact") == (Engine.ONNXRUNTIME, Engine.OPENVINO_F32)


def test_a_rival_runs_the_engine_that_it_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    repository = PROJECT / "model_repository"
    place = Place(repository, Path(), "bert_base", 2, "auto", Engine.OPENVINO_F32)
    for name, value in environment(place, place.engine).items():
        if name.startswith("BENCH_"):
            monkeypatch.setenv(name, value)
    runner = work.Runner(1)
    assert isinstance(runner.session, sessions.OpenVino)
    (answer,) = runner.answer([{"text": "The capital of France is [MASK]."}])
    assert answer[0]["token"] == "The capital of France is paris."
