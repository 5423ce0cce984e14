"""Loads that would never end: in a trial of the import, and in Triton's own processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from container.programs import model_loads, trial
from container.programs.model_loads import ModelLoads
from tests.conftest import PATIENCE_S

TRIAL = Path(trial.__file__).parent
# The stub, as far as it matters here: it imports `model` from the folder that it is given, and what
# that raises has to be UTF-8.
STUB = """
import json, sys
import model
import triton_python_backend_utils as pb_utils
config, fault = pb_utils.ModelConfig({"name": "mine"}), ""
try:
    print(json.dumps(model.TritonPythonModel.auto_complete_config(config)._model_config))
except Exception as error:
    fault = f"{type(error).__name__}: {error}"
sys.stderr.buffer.write(fault.encode("utf-8"))
sys.exit(fault != "")
"""
UTILS = """
class ModelConfig:
    def __init__(self, fields):
        self._model_config = fields
"""
WAITS = {"x86_64": 61, "aarch64": 260}[os.uname().machine]
COMPLETED = """
class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config._model_config["max_batch_size"] = 4
        return config
"""
MISTAKEN = """
class TritonPythonModel:
    auto_complete_config = staticmethod(lambda config: None)
"""


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (COMPLETED, '{"name": "mine", "max_batch_size": 4}'),
        ("class TritonPythonModel: pass", '{"name": "mine"}'),
        ("import os\nprint('no', flush=True)\nos._exit(3)", "(exit code 3); it wrote last: no"),
        ("import os, sys\nos._exit(0)", "(exit code 0); it wrote last: nothing"),
        ("import ctypes\nctypes.string_at(0)", "(SIGSEGV); it wrote last: Fatal Python"),
        ("import os\nos.kill(os.getpid(), 9)", "(SIGKILL, as where memory"),
        ("raise LookupError('no such label')", "LookupError: no such label\n\nAt:\n  "),
        ("raise OSError('no file \\udcff.txt')", r"OSError: no file \udcff.txt"),
        ("import sys\nsys.exit('no licence')", "SystemExit: no licence"),
        ("import labels", "ModuleNotFoundError: No module named 'labels'"),
        (MISTAKEN, "TypeError: auto_complete_config must return a pb_utils.ModelConfig"),
    ],
)
def test_an_import_that_ends_its_process_is_an_error_with_its_last_words(
    tmp_path: Path, source: str, said: str
) -> None:
    file = tmp_path / "mine" / "1" / "model.py"
    file.parent.mkdir(parents=True)
    file.write_text(source)
    (tmp_path / "triton_python_backend_utils.py").write_text(UTILS)
    done = subprocess.run(
        [sys.executable, "-c", STUB],
        env={
            **os.environ,
            "PYTHONPATH": f"{TRIAL}:{tmp_path}",
            "TRIAL_MODEL": str(file),
            "TRIAL_BACKEND": "DEFAULT",
        },
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert said in done.stdout + done.stderr
    assert (done.returncode == 0) == said.startswith("{")
    assert not done.stdout or json.loads(done.stdout)


@pytest.fixture
def loader() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


class Stage:
    """A Triton in a folder like /proc, with one process that loads the model `slow`."""

    def __init__(self, proc: Path, loader: int, instance: str) -> None:
        self.said: list[str] = []
        self.has_started = False
        self.call = proc / "7" / "task" / "8" / "syscall"
        self.call.parent.mkdir(parents=True)
        self.call.write_text("running")
        (proc / str(loader) / "task" / str(loader)).mkdir(parents=True)
        stub = loader
        if instance == "slow":  # which completes the configuration, in a child
            stub = 9
            (proc / "9" / "task" / "9").mkdir(parents=True)
            (proc / "9" / "task" / "9" / "children").write_text(f"{loader}")
        (self.call.parent / "children").write_text(f"{stub}")
        words = ["/b/triton_python_backend_stub", "/r/slow/1/model.py", *"234567", instance, "D"]
        (proc / str(stub) / "cmdline").write_text("\0".join(words))
        stat = Path(f"/proc/{loader}/stat").read_text(encoding="utf-8")
        (proc / str(loader) / "stat").write_text(stat)
        self.loads = ModelLoads(
            lambda: (7, self.has_started), 40, lambda line, _="": self.said.append(line), proc
        )
        self.loads(b'I1127 03:00:00 7 model_lifecycle.cc:472] "loading: slow:1"')


def test_a_process_that_triton_waits_for_is_killed(
    tmp_path: Path, loader: subprocess.Popen[bytes]
) -> None:
    stage, now = Stage(tmp_path, loader.pid, "slow_0"), time.monotonic()
    stage.loads.look(now)
    stage.call.write_text(f"{WAITS} {loader.pid:#x} 0x7f00 0x0")
    stage.loads.look(now + 1)
    assert loader.poll() is None, "it may be about to end"
    stage.loads.look(now + 1 + model_loads.GIVEN_UP_S)
    assert loader.wait(PATIENCE_S) == -signal.SIGKILL
    assert "has given up the process of the model slow" in stage.said[0]


@pytest.mark.parametrize("instance", ["slow_0", "slow"])
@pytest.mark.parametrize(("has_started", "limit"), [(False, 30), (True, 30)])
def test_a_load_that_takes_too_long_is_ended(
    tmp_path: Path, loader: subprocess.Popen[bytes], instance: str, has_started: bool, limit: int
) -> None:
    stage, now = Stage(tmp_path, loader.pid, instance), time.monotonic()
    stage.loads.look(now)
    stage.has_started = has_started
    stage.loads._age = lambda _: age  # type: ignore[method-assign]
    age = limit - 1.0
    stage.loads.look(now + age)
    assert not stage.said
    age = limit + 1.0
    stage.loads.look(now + age)
    assert loader.wait(PATIENCE_S) == -signal.SIGABRT
    assert f"the model slow has been loading for {limit + 1} s" in stage.said[0]
    assert stage.loads.hung == {"slow"}
    stage.loads(b'I1127 03:00:00 7 model_lifecycle.cc:472] "loading: slow:1"')
    assert not stage.loads.hung, "somebody loads it again"


@pytest.mark.parametrize(
    ("line", "ends"),
    [
        (b"I1127 03:00:00 7 model_lifecycle.cc:839] \"successfully loaded 'slow'\"", True),
        (b"E1127 03:00:00 7 model_lifecycle.cc:642] \"failed to load 'slow' version 1: I\"", True),
        (b"a label: \"successfully loaded 'slow'\"", False),
        (b"I1127 03:00:00 7 model.py:12] \"successfully loaded 'slow'\"", False),
        (b'I1127 03:00:00 7 model.py:12] "loading: other:1"', False),
    ],
)
def test_what_is_loaded_is_left_alone_whatever_a_model_says(
    tmp_path: Path, loader: subprocess.Popen[bytes], line: bytes, ends: bool
) -> None:
    """What the model itself says ends and begins no load."""
    stage, now = Stage(tmp_path, loader.pid, "slow_0"), time.monotonic()
    assert stage.loads.in_words() == "slow (for 0 s)"
    stage.loads(line)
    assert stage.loads.in_words() == ("" if ends else "slow (for 0 s)")
    if ends:
        stage.call.write_text(f"{WAITS} {loader.pid:#x} 0x7f00 0x0")
        for later in (1, 10, 1000):
            stage.loads.look(now + later)
        assert loader.poll() is None
        assert not stage.said
