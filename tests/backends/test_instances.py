"""What the instances of one container share: who runs, and the optimized model."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from container.backends.activity import LINGER_NS, Board
from container.backends.onnxruntime import session as module
from container.backends.onnxruntime.optimized import WAYS, usable
from container.backends.onnxruntime.session import OnnxSession
from container.backends.onnxruntime.session_settings import session_settings
from container.backends.onnxruntime.widths import Widths, between

ROOT = Path(__file__).resolve().parents[2]
CPU = [("CPUExecutionProvider", {})]


def config(count: int = 2, **parameters: str) -> dict[str, Any]:
    return {
        "name": "m",
        "instance_group": [{"count": count, "kind": "KIND_CPU"}],
        "parameters": {key: {"string_value": text} for key, text in parameters.items()},
    }


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A matrix product and a convolution, whose weights ONNX Runtime packs for the processor."""
    generator = np.random.default_rng(0)
    weights = {
        "kernel": generator.normal(size=(16, 3, 3, 3)).astype(np.float32),
        "matrix": generator.normal(size=(16, 5)).astype(np.float32),
    }
    graph = helper.make_graph(
        [
            helper.make_node("Conv", ["x", "kernel"], ["filtered"]),
            helper.make_node("GlobalAveragePool", ["filtered"], ["pooled"]),
            helper.make_node("Flatten", ["pooled"], ["flat"]),
            helper.make_node("MatMul", ["flat", "matrix"], ["y"]),
        ],
        "m",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, 8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 5])],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    opset = [helper.make_opsetid("", 17)]
    file = tmp_path / "m" / "1" / "model.onnx"
    file.parent.mkdir(parents=True)
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), file)
    return file


X = np.random.default_rng(1).normal(size=(2, 3, 8, 8)).astype(np.float32)


def opened(model: Path, shared: Path, settings: Any = None) -> OnnxSession:
    shared.mkdir(exist_ok=True)
    return OnnxSession(model, settings or session_settings(config(), cpus=2), CPU, {}, shared)


def width(session: Any) -> int:
    threads: int = session.get_session_options().intra_op_num_threads
    return threads


def spinning(session: Any) -> str:
    options = session.get_session_options()
    spins: str = options.get_session_config_entry("session.intra_op.allow_spinning")
    return spins


class TestTheBoard:
    def test_runs_are_counted_over_all_instances_and_shortly_after(self, tmp_path: Path) -> None:
        one, other = Board(tmp_path / "activity"), Board(tmp_path / "activity")
        assert one.runs() == 0
        with one.running():
            assert one.runs() == other.runs() == 1
            assert (one.others(), other.others()) == (0, 1)
            with one.running(), other.running():
                assert one.runs() == other.runs() == 3
                assert (one.others(), other.others()) == (1, 2)
        assert one.runs() == 2, "who was busy just now will be again"
        time.sleep(2 * LINGER_NS / 1e9)
        assert one.runs() == other.runs() == 0

    def test_one_that_was_killed_while_it_ran_does_not_count(self, tmp_path: Path) -> None:
        script = (
            "import os, pathlib; from container.backends.activity import Board\n"
            f"with Board(pathlib.Path({str(tmp_path / 'activity')!r})).running():\n"
            "    print(flush=True); os.abort()"
        )
        board = Board(tmp_path / "activity")
        killed = subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE)
        assert killed.stdout
        killed.stdout.read()
        os.waitid(os.P_PID, killed.pid, os.WEXITED | os.WNOWAIT)
        assert board.runs() == 0, "nobody has asked for it yet"
        killed.wait()
        killed.stdout.close()
        assert board.runs() == 0

    def test_the_place_of_one_that_is_gone_is_taken_again(self, tmp_path: Path) -> None:
        file = tmp_path / "activity"
        script = (
            "import pathlib; from container.backends.activity import Board\n"
            f"print(Board(pathlib.Path({str(file)!r})).place)"
        )
        places = {
            subprocess.run(
                [sys.executable, "-c", script], cwd=ROOT, check=True, capture_output=True
            ).stdout
            for _ in range(2)
        }
        assert len(places) == 1
        assert Board(file).place != Board(file).place


class TestWidths:
    @pytest.mark.parametrize(
        ("cpus", "at_once", "counts"),
        [
            (1, 0, {}),
            (2, 2, {}),
            (3, 0, {}),
            (4, 2, {2: 2}),
            (6, 6, {3: 2, 2: 3}),
            (16, 8, {8: 2, 4: 4, 2: 8}),
            (16, 2, {8: 2, 4: 2, 2: 2}),
            (16, 0, {8: 1, 4: 1, 2: 1}),
        ],
    )
    def test_an_instance_has_what_its_runs_can_use(
        self, cpus: int, at_once: int, counts: dict[int, int]
    ) -> None:
        assert between(cpus, at_once) == counts

    def test_the_fewer_runs_the_wider_they_are_and_none_shares_a_session(self) -> None:
        widths = Widths(8, "one", {8: ["all"], 4: ["four", "FOUR"], 2: ["two"]})
        with widths.lent(1) as only, widths.lent(1) as too_late:
            assert only == "all"
            assert too_late in {"four", "FOUR"}
        with widths.lent(2) as first, widths.lent(2) as second, widths.lent(2) as third:
            assert {first, second} == {"four", "FOUR"}
            assert third == "two"
            with widths.lent(2) as fourth, widths.lent(2) as fifth:
                assert fourth == fifth == "one"
        with widths.lent(3) as first, widths.lent(5) as second:
            assert (first, second) == ("two", "one")
        with pytest.raises(ZeroDivisionError), widths.lent(4):
            raise ZeroDivisionError
        with widths.lent(4) as first:
            assert first == "two"


class TestTheOptimizedModel:
    def test_answers_are_those_of_the_model_as_it_is(self, model: Path, tmp_path: Path) -> None:
        (expected,) = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"]).run(
            ["y"], {"x": X}
        )
        session = opened(model, tmp_path / "shared")
        with session.running(), Board(tmp_path / "shared" / "activity").running():
            narrow = session.run({"x": X}, ["y"])["y"]
        time.sleep(2 * LINGER_NS / 1e9)
        wide = session.run({"x": X}, ["y"])["y"]
        np.testing.assert_allclose(narrow, expected, rtol=1e-5)
        np.testing.assert_allclose(wide, expected, rtol=1e-5)

    def test_a_lone_instance_runs_with_all_cores(
        self, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ran: list[tuple[int, str]] = []
        run = onnxruntime.InferenceSession.run

        def noted(self: Any, *arguments: Any) -> Any:
            ran.append((width(self), spinning(self)))
            return run(self, *arguments)

        monkeypatch.setattr(onnxruntime.InferenceSession, "run", noted)
        session = opened(model, tmp_path / "shared", session_settings(config(2), cpus=4))
        other = Board(tmp_path / "shared" / "activity")
        with session.running():
            session.run({"x": X}, ["y"])
            with other.running():
                session.run({"x": X}, ["y"])
                with other.running():
                    session.run({"x": X}, ["y"])
        assert ran == [(4, "1"), (2, "0"), (1, "0")]

    def test_it_is_crowded_where_others_have_a_run_for_each_core(
        self, model: Path, tmp_path: Path
    ) -> None:
        session = opened(model, tmp_path / "shared", session_settings(config(2), cpus=2))
        others = [Board(tmp_path / "shared" / "activity") for _ in range(2)]
        with session.running(), session.running(), others[0].running():
            assert not session.is_crowded()
            with others[1].running():
                assert session.is_crowded()
        alone = OnnxSession(model, session_settings(config(2), cpus=2), CPU, {})
        assert not alone.is_crowded(), "it sees no others"

    def test_a_configured_number_of_threads_is_the_only_one(
        self, model: Path, tmp_path: Path
    ) -> None:
        settings = session_settings(config(2, intra_op_thread_count="3"), cpus=4)
        session = opened(model, tmp_path / "shared", settings)
        assert (settings.intra_op_threads, settings.lone_threads) == (3, 3)
        assert [width(one) for one in session.sessions] == [3]

    def test_runs_at_a_time_have_their_share_and_a_lone_one_all_cores(
        self, model: Path, tmp_path: Path
    ) -> None:
        batching = {**config(1), "dynamic_batching": {}}
        settings = session_settings(batching, cpus=4)
        session = opened(model, tmp_path / "shared", settings)
        assert (settings.at_once, settings.run_threads) == (2, 2)
        assert sorted(width(one) for one in session.sessions) == [1, 2, 2, 4]

    def test_a_large_model_is_not_written_for_that(
        self, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(module, "LARGEST", model.stat().st_size - 1)
        settings = session_settings({**config(1), "dynamic_batching": {}}, cpus=4)
        session = opened(model, tmp_path / "shared", settings)
        assert settings.at_once == 2
        assert [width(one) for one in session.sessions] == [4]
        assert not (tmp_path / "shared" / "optimized").exists()
        several = opened(model, tmp_path / "shared", session_settings(config(2), cpus=4))
        assert len(several.sessions) > 1, "of several instances each would have the weights"

    @pytest.mark.parametrize(
        "alone",
        [
            config(4),
            {**config(1), "sequence_batching": {}},
            config(1, execution_mode="1"),
            {**config(1, intra_op_thread_count="4"), "dynamic_batching": {}},
            {**config(1, **{"session.intra_op.allow_spinning": "1"}), "dynamic_batching": {}},
            {**config(4), "dynamic_batching": {}},
        ],
        ids=[
            "no core for another",
            "in sequence",
            "parts of the graph in parallel",
            "threads are configured",
            "they spin",
            "an instance per core",
        ],
    )
    def test_otherwise_an_instance_has_one_run_at_a_time(self, alone: dict[str, Any]) -> None:
        settings = session_settings(alone, cpus=4)
        assert (settings.at_once, settings.gathers) == (0, False)

    @pytest.mark.parametrize("batching", [{}, {"dynamic_batching": {}}])
    def test_so_it_has_on_a_gpu_and_its_share_of_threads_for_what_is_left(
        self, batching: dict[str, Any]
    ) -> None:
        settings = session_settings({**config(2), **batching}, cpus=8, on_cpu=False)
        assert (settings.at_once, settings.gathers, settings.intra_op_threads) == (0, False, 4)

    @pytest.mark.parametrize(
        ("count", "cpus", "at_once"), [(1, 2, 2), (1, 8, 2), (1, 16, 4), (2, 16, 2), (1, 64, 8)]
    )
    def test_gathered_runs_have_four_cores_each_and_there_are_two_at_least(
        self, count: int, cpus: int, at_once: int
    ) -> None:
        settings = session_settings({**config(count), "dynamic_batching": {}}, cpus=cpus)
        assert (settings.at_once, settings.gathers) == (at_once, True)

    @pytest.mark.parametrize(
        ("count", "cpus", "at_once"), [(1, 1, 1), (1, 2, 2), (1, 8, 8), (2, 8, 4), (1, 16, 8)]
    )
    def test_small_gathered_runs_have_a_core_each_or_there_are_eight(
        self, count: int, cpus: int, at_once: int
    ) -> None:
        batching = {"dynamic_batching": {"preferred_batch_size": [2, 4]}, "max_batch_size": 8}
        settings = session_settings({**config(count), **batching}, cpus=cpus)
        assert (settings.at_once, settings.gathers, settings.most) == (at_once, True, 4)

    @pytest.mark.parametrize("preferred", [{}, {"preferred_batch_size": [8]}])
    def test_a_preference_for_the_largest_is_none(self, preferred: dict[str, Any]) -> None:
        """Triton completes a configuration so that has none."""
        batching = {"dynamic_batching": preferred, "max_batch_size": 8}
        settings = session_settings({**config(1), **batching}, cpus=8)
        assert (settings.at_once, settings.most) == (2, None)

    @pytest.mark.parametrize(
        ("count", "cpus", "one_run"),
        [(1, 1, False), (1, 2, True), (1, 3, True), (1, 4, False), (2, 2, False), (2, 4, False)],
    )
    def test_few_tokens_have_all_of_two_or_three_cores_in_one_run(
        self, count: int, cpus: int, *, one_run: bool
    ) -> None:
        settings = session_settings({**config(count), "dynamic_batching": {}}, cpus=cpus)
        assert (settings.few > 0) is one_run
        assert not session_settings(config(count), cpus=cpus).few

    @pytest.mark.parametrize(
        ("count", "cpus", "at_once", "threads"),
        [(1, 8, 8, 1), (3, 8, 2, 1), (1, 12, 6, 2), (1, 20, 6, 3), (1, 32, 8, 4)],
    )
    def test_what_triton_does_not_batch_is_run_a_core_each_or_eight_at_a_time(
        self, count: int, cpus: int, at_once: int, threads: int
    ) -> None:
        settings = session_settings(config(count), cpus=cpus)
        chosen = (settings.at_once, settings.gathers, settings.run_threads)
        assert chosen == (at_once, False, threads)

    def test_runs_of_one_instance_have_a_session_each(
        self, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ran: list[Any] = []
        run = onnxruntime.InferenceSession.run
        all_run = threading.Barrier(4)

        def noted(self: Any, *arguments: Any) -> Any:
            ran.append(self)
            all_run.wait(10)
            return run(self, *arguments)

        session = opened(model, tmp_path / "shared", session_settings(config(2), cpus=8))
        expected = session.run({"x": X}, ["y"])["y"]
        monkeypatch.setattr(onnxruntime.InferenceSession, "run", noted)

        def answer() -> Any:
            with session.running():
                all_run.wait(10)
                return session.run({"x": X}, ["y"])["y"]

        with ThreadPoolExecutor(4) as pool:
            for one in [pool.submit(answer) for _ in range(4)]:
                np.testing.assert_allclose(one.result(), expected, rtol=1e-5)
        assert [width(one) for one in ran] == [2, 2, 2, 2]
        assert len(set(map(id, ran))) == 4

    def test_where_all_widths_would_have_too_much_of_their_own_there_are_two(
        self, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for own, cpus, widths in ((15, 4, [1, 2, 2, 4]), (15, 8, [4, 8]), (17, 4, [4])):
            grown = iter((0, own * 2**20))
            monkeypatch.setattr(module.allocator, "private_bytes", lambda grown=grown: next(grown))
            settings = session_settings({**config(1), "dynamic_batching": {}}, cpus=cpus)
            session = opened(model, tmp_path / f"shared{own}-{cpus}", settings)
            assert sorted(width(one) for one in session.sessions) == widths, (own, cpus)

    def test_the_only_instance_of_one_core_has_one_run_at_a_time(self) -> None:
        settings = session_settings({**config(1), "dynamic_batching": {}}, cpus=1)
        assert (settings.at_once, settings.intra_op_threads) == (1, 1)
        assert session_settings({**config(2), "dynamic_batching": {}}, cpus=1).at_once == 0

    @pytest.mark.parametrize(
        ("words", "shared"), [(3008, 2), (3001, 2), (33001, 1)], ids=["even", "odd", "odd, large"]
    )
    def test_packed_weights_of_matrix_products_are_shared(
        self, model: Path, tmp_path: Path, words: int, shared: int
    ) -> None:
        # They are written in this order; a bias that is no multiple of 64 bytes moves what follows
        # to where it cannot be read, which is a crash.
        generator = np.random.default_rng(0)
        weights = {
            "bias": generator.normal(size=words).astype(np.float32),
            "hidden": generator.normal(size=(1000, 64)).astype(np.float32),  # 256 kB
            "vocabulary": generator.normal(size=(64, words)).astype(np.float32),
        }
        graph = helper.make_graph(
            [
                helper.make_node("MatMul", ["x", "hidden"], ["a"]),
                helper.make_node("MatMul", ["a", "vocabulary"], ["b"]),
                helper.make_node("Add", ["b", "bias"], ["y"]),
            ],
            "m",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 1000])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", words])],
            [numpy_helper.from_array(one, name) for name, one in weights.items()],
        )
        opset = [helper.make_opsetid("", 17)]
        onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), model)
        session = opened(model, tmp_path / "shared")
        assert len(session.sessions) == 2
        x = generator.normal(size=(3, 1000)).astype(np.float32)
        expected = x @ weights["hidden"] @ weights["vocabulary"] + weights["bias"]
        for run in (session.run, session.run_beside_others):
            np.testing.assert_allclose(run({"x": x}, ["y"])["y"], expected, rtol=1e-3, atol=1e-2)
        (graph_file,) = (tmp_path / "shared" / "optimized").glob("*/model.onnx")
        assert graph_file.read_bytes().count(b"prepacked") == shared
        assert usable(graph_file)

    def test_weights_of_which_each_session_would_have_its_own_are_not_kept_twice(
        self, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        graph = helper.make_graph(
            [helper.make_node("MatMul", ["x", "matrix"], ["y"])],
            "m",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3000])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 3000])],
            [numpy_helper.from_array(np.ones((3000, 3000), np.float32), "matrix")],
        )
        opset = [helper.make_opsetid("", 17)]
        onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), model)
        monkeypatch.setattr(module, "WAYS", WAYS[-1:] * 2)
        ones = np.ones((1, 3000), np.float32)
        for asked, threads in ((config(), 1), ({**config(1), "dynamic_batching": {}}, 2)):
            session = opened(model, tmp_path / "shared", session_settings(asked, cpus=2))
            assert [width(one) for one in session.sessions] == [threads]
            assert session.run({"x": ones}, ["y"])["y"].tolist() == [[3000.0] * 3000]

    def test_it_is_made_once_and_goes_with_the_last_that_uses_it(
        self, model: Path, tmp_path: Path
    ) -> None:
        # A process each, as Triton has them: the locks are between processes.
        shared = tmp_path / "shared"
        first = opened(model, shared)
        (made,) = (shared / "optimized").glob("*/model.onnx")
        written = made.stat().st_mtime_ns
        script = (
            "import pathlib\n"
            "from container.backends.onnxruntime import session, session_settings\n"
            f"settings = session_settings.session_settings({config()!r}, cpus=2)\n"
            f"session.OnnxSession(pathlib.Path({str(model)!r}), settings, {CPU!r}, {{}}, "
            f"pathlib.Path({str(shared)!r})).close()\n"
        )
        subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True)
        assert made.stat().st_mtime_ns == written
        assert first.run({"x": X}, ["y"])["y"].shape == (2, 5)
        first.close()
        assert list((shared / "optimized").iterdir()) == []

    def test_it_comes_and_goes_whole_whoever_opens_and_closes_it(self, tmp_path: Path) -> None:
        (tmp_path / "m").mkdir()
        source, shared, made = tmp_path / "m" / "model.onnx", tmp_path / "shared", tmp_path / "made"
        source.write_bytes(b"model")
        script = (
            "import os, pathlib, time\n"
            "from container.backends.onnxruntime.optimized import OptimizedFile\n"
            "def save(path):\n"
            f"    one = os.open({str(made)!r}, os.O_CREAT | os.O_EXCL)\n"  # nobody else makes it
            "    path.write_bytes(b'graph')\n"
            "    time.sleep(0.001)\n"
            f"    os.unlink({str(made)!r})\n"
            "    os.close(one)\n"
            "for _ in range(300):\n"
            f"    folder, source = pathlib.Path({str(shared)!r}), pathlib.Path({str(source)!r})\n"
            "    file = OptimizedFile(folder, source, '', save)\n"
            "    time.sleep(0.001)\n"
            "    assert file.graph.read_bytes() == b'graph'\n"
            "    file.close()\n"
        )
        command = [sys.executable, "-c", script]
        processes = [subprocess.Popen(command, cwd=ROOT) for _ in range(4)]
        assert [process.wait(60) for process in processes] == [0] * 4
        assert list(shared.iterdir()) == []

    def test_one_half_made_by_a_process_that_was_killed_is_made_anew(
        self, model: Path, tmp_path: Path
    ) -> None:
        shared = tmp_path / "shared"
        session = opened(model, shared)
        (made,) = (shared / "optimized").glob("*/model.onnx")
        session.close()
        made.parent.mkdir()
        (made.parent / "model.onnx.part").write_bytes(b"half")
        assert opened(model, shared).run({"x": X}, ["y"])["y"].shape == (2, 5)

    def test_where_it_cannot_be_written_the_model_is_opened_as_it_is(
        self, model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
    ) -> None:
        (tmp_path / "shared").mkdir()
        (tmp_path / "shared" / "optimized").write_text("in the way")
        session = opened(model, tmp_path / "shared")
        assert session.run({"x": X}, ["y"])["y"].shape == (2, 5)
        assert "is not optimized for all instances together" in capfd.readouterr().err
