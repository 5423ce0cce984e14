"""OpenVINO in this process: where its weights are, what it shares, and that it tells nobody."""

from __future__ import annotations

import mmap
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from backends.machine import allocator
from backends.openvino import session as module
from backends.openvino.session import OpenVinoSession, read_mapped
from tests.support.models import onnx_models, openvino_models

PROPERTIES = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 2, "NUM_STREAMS": 2}
X = np.random.default_rng(1).normal(size=(3, openvino_models.WIDTH)).astype(np.float32)
EXPECTED = np.maximum(X @ openvino_models.FIRST, 0) @ openvino_models.SECOND


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "m" / "1" / "model.onnx"
    openvino_models.two_layers(file)
    return file


@pytest.fixture
def saved(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """What was written for OpenVINO to map."""
    made: list[Path] = []
    save = module._save

    def noted(file: Path, made_of_it: Path) -> None:
        made.append(made_of_it)
        save(file, made_of_it)

    monkeypatch.setattr(module, "_save", noted)
    return made


class TestWeights:
    def test_they_are_written_once_for_two_instances(
        self, file: Path, tmp_path: Path, saved: list[Path]
    ) -> None:
        sessions = [OpenVinoSession(file, PROPERTIES, shared=tmp_path / "s") for _ in range(2)]
        assert len(saved) == 1
        made = sorted(path.suffix for path in saved[0].parent.iterdir())
        assert made == [".bin", ".lock", ".xml"]
        for session in sessions:
            np.testing.assert_allclose(session.run({"x": X}, ["y"])["y"], EXPECTED, atol=1e-4)

    def test_what_an_instance_removes_another_still_has(
        self, file: Path, tmp_path: Path, saved: list[Path]
    ) -> None:
        first, last = (OpenVinoSession(file, PROPERTIES, shared=tmp_path / "s") for _ in "ab")
        first.close()
        np.testing.assert_allclose(last.run({"x": X}, ["y"])["y"], EXPECTED, atol=1e-4)
        last.close()
        assert [path.suffix for path in saved[0].parent.iterdir()] == [".lock"]
        again = OpenVinoSession(file, PROPERTIES, shared=tmp_path / "s")
        np.testing.assert_allclose(again.run({"x": X}, ["y"])["y"], EXPECTED, atol=1e-4)
        assert saved == [saved[0]] * 2

    def test_another_file_in_its_place_is_written_too(
        self, file: Path, tmp_path: Path, saved: list[Path]
    ) -> None:
        _, before = read_mapped(file, tmp_path / "s")
        onnx_models.plus_one(file)
        _, after = read_mapped(file, tmp_path / "s")
        assert saved == [before, after]
        assert before != after
        assert str(module.read(after).inputs[0].partial_shape) == "[?,3]"

    def test_where_they_cannot_be_written_the_file_is_read(
        self, file: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
    ) -> None:
        (tmp_path / "s").mkdir()
        (tmp_path / "s" / "ir").write_text("in the way")
        session = OpenVinoSession(file, PROPERTIES, shared=tmp_path / "s")
        np.testing.assert_allclose(session.run({"x": X}, ["y"])["y"], EXPECTED, atol=1e-4)
        assert f"the weights of '{file}' are not mapped" in capfd.readouterr().err

    def test_so_it_is_where_the_disk_is_full(
        self,
        file: Path,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        capfd: pytest.CaptureFixture[str],
    ) -> None:
        def full(_model: Any, part: Path, **_: Any) -> None:
            part.write_text("<half")
            raise RuntimeError("Exception from src/x.cpp:1:\nNo space left on device")

        monkeypatch.setattr("openvino.save_model", full)
        assert read_mapped(file, tmp_path / "s")[1] == file
        assert "No space left on device" in capfd.readouterr().err
        assert [path.suffix for path in (tmp_path / "s" / "ir").iterdir()] == [".lock"]

    def test_a_mapped_file_goes_out_of_memory_and_can_still_be_read(self, tmp_path: Path) -> None:
        weights = tmp_path / "model (1).bin"
        content = np.random.default_rng(0).bytes(2**22)
        weights.write_bytes(content)
        with weights.open("rb") as opened, mmap.mmap(opened.fileno(), 0, prot=mmap.PROT_READ) as it:
            assert it[:] == content
            assert resident(weights) == 4096
            allocator.forget(weights)
            assert resident(weights) == 0
            assert it[:] == content
        allocator.forget(tmp_path / "none.bin")  # what is not mapped is no matter


def resident(file: Path) -> int:
    """Return how many kB of a mapped file this process has in memory."""
    maps = Path("/proc/self/smaps").read_text()
    found = re.findall(
        rf"(?ms)^\w+-\w+ .{{4}} [^\n]* {re.escape(str(file))}$.*?^Rss: +(\d+) kB", maps
    )
    return sum(map(int, found))


class TestRuns:
    def test_as_many_run_at_a_time_as_there_are_streams(self, file: Path) -> None:
        session = OpenVinoSession(file, PROPERTIES)
        assert session.at_once == 2

        def ask(number: int) -> None:
            came = session.run({"x": X * (number + 1)}, ["y"])["y"]
            np.testing.assert_allclose(came, EXPECTED * (number + 1), rtol=1e-3, atol=1e-3)

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(ask, range(200)))

    def test_memory_is_not_given_back_under_another_run(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """OpenVINO refuses it then. Here it is worthwhile, whatever there is."""
        monkeypatch.setattr(module, "WORTHWHILE", -(2**40))
        names = ["x", *"abcdefghijklmnopqrstuvw", "y"]
        nodes = [helper.make_node("MatMul", [x, "turn"], [y]) for x, y in pairwise(names)]
        sides = [[(name, TensorProto.FLOAT, ["n", 1024])] for name in "xy"]
        turn = np.roll(np.eye(1024, dtype=np.float32), 1, axis=1)
        onnx_models.save(tmp_path / "m.onnx", nodes, *sides, turn=turn)
        session = OpenVinoSession(tmp_path / "m.onnx", PROPERTIES)
        x = np.random.default_rng(2).normal(size=(1024, 1024)).astype(np.float32)
        session.run({"x": x}, ["y"])
        with ThreadPoolExecutor(1) as pool:
            other = pool.submit(session.run, {"x": x}, ["y"])
            while session._free.qsize() > 1 and not other.done():
                time.sleep(0)
            few = [session.run({"x": x[:1]}, ["y"])["y"] for _ in range(30)]  # the usual size
            answers = [(x, other.result()["y"]), *((x[:1], y) for y in few)]
        for given, y in answers:
            np.testing.assert_allclose(y, np.roll(given, 24, axis=1), atol=1e-4)

    def test_an_answer_is_not_changed_by_the_next(self, file: Path) -> None:
        session = OpenVinoSession(file, {**PROPERTIES, "NUM_STREAMS": 1})
        first = session.run({"x": X}, ["y"])["y"]
        session.run({"x": -X}, ["y"])
        np.testing.assert_allclose(first, EXPECTED, atol=1e-4)

    def test_after_a_failure_it_answers_as_before(self, file: Path) -> None:
        session = OpenVinoSession(file, PROPERTIES)
        for _ in range(4):  # more often than there are streams
            with pytest.raises(RuntimeError):
                session.run({"x": X[:, :5]}, ["y"])
        np.testing.assert_allclose(session.run({"x": X}, ["y"])["y"], EXPECTED, atol=1e-4)

    def test_inputs_come_in_the_files_order(self, tmp_path: Path) -> None:
        nodes = [helper.make_node("Sub", ["b", "a"], ["y"])]
        inputs = [(name, TensorProto.FLOAT, [2]) for name in "ba"]
        onnx_models.save(tmp_path / "m.onnx", nodes, inputs, [("y", TensorProto.FLOAT, [2])])
        session = OpenVinoSession(tmp_path / "m.onnx", PROPERTIES)
        given = {"a": np.array([1, 2], np.float32), "b": np.array([5, 9], np.float32)}
        assert session.run(given, ["y"])["y"].tolist() == [4, 7]


def run_alone(script: str) -> str:
    """Return what a process of its own, which ends well, writes."""
    root = Path(__file__).resolve().parents[3]
    command = [sys.executable, "-c", script]
    return subprocess.run(command, cwd=root, check=True, stdout=subprocess.PIPE, text=True).stdout


def test_nothing_is_sent_to_anybody(file: Path) -> None:
    """Neither when it is imported, nor when it reads, compiles, runs and saves a model.

    `make` installs OpenVINO without the package that would; the wheel's extra brings it along.
    """
    (file.parent / "openvino_telemetry.py").write_text("raise SystemExit('it is imported')\n")
    script = f"""
import socket, sys
opened = []
class Socket(socket.socket):
    def __init__(self, *arguments, **named):
        opened.append(arguments)
        super().__init__(*arguments, **named)
socket.socket = Socket
sys.path.insert(0, {str(file.parent)!r})
sys.addaudithook(lambda event, given: event.startswith("socket.") and opened.append(event))
from pathlib import Path
import numpy as np
from backends.openvino.session import OpenVinoSession
session = OpenVinoSession(Path({str(file)!r}), {{}}, shared=Path({str(file.parent)!r}))
session.run({{"x": np.zeros((1, 16), np.float32)}}, ["y"])
print(opened)
"""
    assert run_alone(script) == "[]\n"


def test_ctrl_c_after_sessions_have_come_and_gone_is_an_exception(file: Path) -> None:
    """A stack of OpenVINO for signal handlers is not left behind where it is freed."""
    script = f"""
import signal
from pathlib import Path
from backends.openvino.session import OpenVinoSession
sessions = [OpenVinoSession(Path({str(file)!r}), {{}}) for _ in range(3)]
while sessions:
    del sessions[0]
try:
    signal.raise_signal(signal.SIGINT)
except KeyboardInterrupt:
    print("interrupted")
"""
    assert run_alone(script) == "interrupted\n"
