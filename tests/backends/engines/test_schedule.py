"""How runs share the cores: what is measured of them, and what is done with it."""

from __future__ import annotations

import itertools
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue
from types import SimpleNamespace
from typing import Any
from unittest.mock import ANY, Mock

import numpy as np
import pytest

from backends import measure_runs as module
from backends.batching.item import Item
from backends.engine_choice import ONNXRUNTIME, EngineChoice, find_choice, preference
from backends.measure_runs import Busy, MeasuredRuns, answer_callers, measure_runs
from backends.onnxruntime.session import OnnxFile
from backends.schedule import Schedule, ScheduledSession
from tests.backends.conftest import Process, cpu_config
from tests.conftest import PATIENCE_S, wait_for
from tests.support.models import openvino_models

X = np.random.default_rng(3).normal(size=(6, openvino_models.WIDTH)).astype(np.float32)
EXPECTED = np.maximum(X @ openvino_models.FIRST, 0) @ openvino_models.SECOND


class TestMeasurement:
    """Figures are put there: answers a second apart and joined, in turn and two side by side."""

    @pytest.mark.parametrize(
        ("apart", "together", "expected"),
        [
            ((100, 91), (), MeasuredRuns(2, 2, 1, joined=False, gain=0.91)),
            ((100, 89), (), MeasuredRuns(2, 1, 1, joined=False)),
            ((100, 130), (161, 162), MeasuredRuns(2, 2, 1, joined=False, gain=1.3)),
            ((100, 130), (163, 140), MeasuredRuns(2, 1, 1, joined=True)),
            ((100, 90), (120, 137), MeasuredRuns(2, 1, 1, joined=True)),
            ((100, 90), (120, 156), MeasuredRuns(2, 2, 1, joined=True, gain=1.3)),
        ],
    )
    def test_the_way_with_more_answers_is_taken_if_it_is_worth_it(
        self, monkeypatch: Any, apart: Any, together: Any, expected: MeasuredRuns
    ) -> None:
        assert self.decide(monkeypatch, 2, 0.01, *apart, *together) == expected

    @pytest.mark.parametrize(("lone_s", "in_turn"), [(0.1, 1), (0.019, 2), (0.001, 3)])
    def test_as_many_take_turns_as_are_answered_sooner_so(
        self, monkeypatch: Any, lone_s: float, in_turn: int
    ) -> None:
        """Four side by side take 0.04 s."""
        assert self.decide(monkeypatch, 4, lone_s, 80, 100).in_turn == in_turn

    def decide(
        self, monkeypatch: Any, at_once: int, lone_s: float, *per_s: float, alone_s: float = 0.119
    ) -> MeasuredRuns:
        in_turn, beside = Mock(), Mock()
        ways = [(in_turn, 1, 1), (beside, at_once, 1), (in_turn, 1, 4), (beside, at_once, 2)]
        known = dict(zip(ways, per_s, strict=False))
        monkeypatch.setattr(module, "answer_callers", lambda *asked: known[asked[:3]])
        monkeypatch.setattr(module, "processor_time", {beside: 0.1}.__getitem__)
        monkeypatch.setattr(module, "wall_time", {beside: alone_s, in_turn: lone_s}.__getitem__)
        return measure_runs(in_turn, beside, at_once, at_once, 4 if len(per_s) > 2 else 3)

    def test_nothing_is_measured_where_others_need_the_cores(self, monkeypatch: Any) -> None:
        with pytest.raises(Busy):
            self.decide(monkeypatch, 2, 0.01, 100, 100, alone_s=0.121)

    def test_callers_have_no_more_runs_at_a_time_than_there_are(self) -> None:
        ran, free = [], threading.Semaphore(2)

        def run(requests: int) -> None:
            assert free.acquire(blocking=False)
            ran.append(requests)
            free.release()

        assert answer_callers(run, 2, 3, 4, 0.0001) > 0
        assert ran == [3] * 4


class TestScheduledSession:
    @pytest.mark.parametrize(
        ("measured", "expected", "closed"),
        [
            (Schedule(4, 3, in_turn=2), [(1, 0), (3, 2), (1, 1)], [False, False]),
            (Schedule(4, 3, in_turn=1), [(1, 0), (3, 1), (3, 2)], [False, False]),
            (Schedule(4, 1), [(1, 0), (1, 1), (1, 2)], [True, False]),
        ],
        ids=["two take turns", "one has all cores", "all take turns"],
    )
    def test_runs_follow_what_was_measured(
        self, measured: Schedule, expected: list[tuple[int, int]], closed: list[bool]
    ) -> None:
        """Sessions stand in for an engine's; one fails with more runs at a time than it is for."""
        made: list[Any] = []
        began: Queue[tuple[int, int]] = Queue()
        go = threading.Event()

        def open_session(threads: int, at_once: int) -> Any:
            free = threading.Semaphore(at_once)

            def run(inputs: Any, _outputs: Any) -> dict[str, Any]:
                assert free.acquire(blocking=False)
                began.put((at_once, int(inputs["x"][0])))
                assert go.wait(PATIENCE_S)
                free.release()
                return {"y": inputs["x"]}

            assert threads == 4
            made.append(SimpleNamespace(by_rows=None, run=run, close=Mock()))
            return made[-1]

        opened = ScheduledSession(open_session, Schedule(4, 3, joined=False))
        opened.follow(measured)
        assert (opened.joined, opened.at_once) == (True, measured.at_once)
        assert [one.close.called for one in made] == closed
        with ThreadPoolExecutor(3) as pool:
            asked, order = [], []
            for number in range(3):
                asked.append(pool.submit(opened.run, {"x": np.array([number])}, ["y"]))
                wait_for(lambda: opened.begun == len(asked), "a run")
                if number == 0 or (3, number) in expected:  # others wait
                    order.append(began.get(timeout=PATIENCE_S))
            go.set()
            order += [began.get(timeout=PATIENCE_S) for _ in range(3 - len(order))]
            assert [one.result()["y"].tolist() for one in asked] == [[0], [1], [2]]
        assert order == expected
        opened.close()
        assert all(one.close.call_count == 1 for one in made)

    def test_a_request_ends_a_measurement(self) -> None:
        ran = []

        def run(inputs: Any, _outputs: Any) -> Any:
            ran.append(len(inputs["x"]))
            if len(ran) == 1:
                opened.run({"x": X}, ["y"])
            return {"y": inputs["x"]}

        opened = ScheduledSession(lambda *_: SimpleNamespace(by_rows=None, run=run), Schedule(4, 4))
        with pytest.raises(Busy):
            opened.measure(Item({"x": X[:1]}, ("y",)), 8)
        assert ran == [1, 6]


class Request:
    """Stands in for one of Triton's, of a row."""

    def __init__(self, row: Any) -> None:
        tensor = SimpleNamespace(name=lambda: "x", as_numpy=lambda: row[None])
        self.inputs, self.requested_output_names = lambda: [tensor], lambda: ["y"]
        self.parameters, self.sender = lambda: "", Mock()
        self.get_response_sender = lambda: self.sender

    @property
    def answer(self) -> Any:
        ((response,), _) = self.sender.send.call_args
        return dict(response["output_tensors"])["y"]


class TestModel:
    @pytest.fixture
    def opened(self, process: Process, monkeypatch: pytest.MonkeyPatch) -> Any:
        """Open a model of which this much was measured."""
        made = []

        def open_model(runs: MeasuredRuns | None) -> Any:
            openvino_models.two_layers(process.file)
            found = EngineChoice(ONNXRUNTIME, signature=OnnxFile(process.file).signature, runs=runs)
            monkeypatch.setattr(process.module, "choice_for_onnxruntime", lambda *_: found)
            monkeypatch.setattr("backends.schedule.usable_cpus", lambda: 4)
            made.append(process.module.TritonPythonModel())
            sizes = {"x": openvino_models.WIDTH, "y": openvino_models.CLASSES}
            x, y = ((name, "TYPE_FP32", [size]) for name, size in sizes.items())
            process.initialize(made[0], cpu_config(), x, y)
            return made[0]

        yield open_model
        made[0].finalize()

    def ask(self, model: Any) -> None:
        requests = [Request(row) for row in X]
        assert model.execute(requests) is None
        wait_for(lambda: all(one.sender.send.called for one in requests), "the answers")
        for one, expected in zip(requests, EXPECTED, strict=True):
            np.testing.assert_allclose(one.answer, expected[None], atol=1e-4)

    @pytest.mark.parametrize(("joined", "expected"), [(True, [3, 3]), (False, [1] * 6)])
    def test_requests_that_are_joined_are_split_over_the_free_runs(
        self, opened: Any, monkeypatch: pytest.MonkeyPatch, joined: bool, expected: list[int]
    ) -> None:
        """Others are run one by one."""
        model = opened(MeasuredRuns(4, 2, 1, joined))
        run = Mock(wraps=model._session.run)
        monkeypatch.setattr(model._session, "run", run)
        self.ask(model)
        assert [len(call.args[0]["x"]) for call in run.call_args_list] == expected

    def test_it_is_measured_when_nobody_asks_and_kept(
        self, opened: Any, process: Process, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        """With a request that came, and once more where others needed the cores."""
        runs = MeasuredRuns(4, 1, 1, joined=True)
        measured = Mock(side_effect=[Busy, ValueError, runs])
        monkeypatch.setattr("backends.schedule.measure_runs", measured)
        monkeypatch.setattr(process.module, "IDLE_S", 0.005)
        monkeypatch.setattr(process.module, "idle_cpu_seconds", itertools.count(0, 1000).__next__)
        monkeypatch.setenv("ENGINE_CACHE", str(tmp_path))
        model = opened(None)
        wait_for(lambda: self.ask(model) or runs.sentence() in process.log[-1], "its line")
        self.ask(model)
        folder, asked = process.file.parents[1], preference(cpu_config(), {})
        kept = find_choice(folder, process.file, asked, os.environ).runs
        assert kept == MeasuredRuns(4, 1, 1, joined=True, megabytes=ANY)
