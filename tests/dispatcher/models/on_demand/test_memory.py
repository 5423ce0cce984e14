"""Which models are unloaded for others: never one in use, pinned, or just loaded."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dispatcher.errors import OutOfMemory
from dispatcher.models.load_unload import PROCESS_BYTES, ModelLoader
from dispatcher.models.on_demand.memory import MIB, ModelMemory
from tests.conftest import PATIENCE_S, PROJECT
from tests.support.fake_triton import FakeTriton

HOUR = 3600.0


class Models:
    """Models of 10 MiB each in a repository, of which some are loaded."""

    def __init__(self, folder: Path) -> None:
        for name in ("repository", "wanted", "used"):
            (folder / name).mkdir()
        self.server = FakeTriton()
        self.loader = ModelLoader(
            folder / "repository", (), lambda text, _: text, self.server, 10, folder / "wanted"
        )
        self.used = folder / "used"
        self.pinned: set[str] = set()

    def memory(
        self, most: float = math.inf, idle: float = math.inf, keep: float = 5
    ) -> ModelMemory:
        return ModelMemory(
            self.used, self.loader, most * MIB, idle, keep, pinned=lambda: self.pinned
        )

    def add(self, name: str, *, used: float = HOUR, config: str = "", size: int = 10) -> None:
        """Add a model that was loaded, and last used some seconds ago."""
        (self.loader.repository / name).mkdir(exist_ok=True)
        (self.loader.repository / name / "config.pbtxt").write_text(config)
        self.server.models_run[name] = dict
        (self.used / name).write_text(str(size * MIB))
        self.loader.want(name)
        past = time.time() - used
        os.utime(self.loader.wanted / name, (past, past))  # type: ignore[operator]
        os.utime(self.used / name, (past, past))

    def loaded(self) -> set[str]:
        return {path.name for path in self.loader.wanted.iterdir()}  # type: ignore[union-attr]


@pytest.fixture
def models(tmp_path: Path) -> Models:
    return Models(tmp_path)


def make_room(memory: ModelMemory, size: int = 10, wait: float = 0.0) -> None:
    (memory.folder / "new").write_text(str(size * MIB))
    with memory.room("new", time.monotonic() + wait):
        pass


def test_the_least_recently_used_goes_first_and_no_more_than_needed(models: Models) -> None:
    for name, used in (("a", 300), ("b", 500), ("c", 100), ("d", 400)):
        models.add(name, used=used)
    memory = models.memory(most=45)
    make_room(memory, 5)
    assert models.loaded() == {"a", "b", "c", "d"}, "it fits"
    make_room(memory, 6)
    assert models.loaded() == {"a", "c", "d"}
    make_room(memory, 25)
    assert models.loaded() == {"a", "c"}
    assert models.server.unloaded == {"b", "d"}


def test_pinned_models_stay_and_what_does_not_fit_beside_them_is_refused(models: Models) -> None:
    models.pinned = {"a"}
    models.add("a", used=9000)
    models.add("b")
    memory = models.memory(most=20)
    make_room(memory)
    assert models.loaded() == {"a"}
    with pytest.raises(OutOfMemory) as caught:
        make_room(memory, 11)
    assert caught.value.message == (
        "the model new needs about 11 MiB; MODEL_MEMORY_MB is 20, of which REQUIRED_MODELS take 10"
    )


def test_a_model_that_another_worker_uses_stays(models: Models) -> None:
    """The lock is of another process, and ends with it."""
    models.add("a", used=500)
    models.add("b", used=100)
    code = (
        "import fcntl, sys\n"
        "from pathlib import Path\n"
        "from dispatcher.locks import hold_lock\n"
        f"with hold_lock(Path({str(models.used / 'a')!r}), fcntl.LOCK_SH):\n"
        "    print('locked', flush=True)\n"
        "    sys.stdin.read()\n"
    )
    memory = models.memory(most=20)
    with subprocess.Popen(
        [sys.executable, "-c", code], cwd=PROJECT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as user:
        assert user.stdout
        assert user.stdout.readline() == b"locked\n"
        make_room(memory)
        assert models.loaded() == {"a"}, "the next one was unloaded instead"
        with pytest.raises(OutOfMemory, match="all other models are in use"):
            make_room(memory, 20, wait=0.2)
        user.kill()
    make_room(memory, 20)
    assert models.loaded() == set()


def test_one_that_was_just_loaded_is_safe_for_a_while(models: Models) -> None:
    models.add("old", used=2 * HOUR)
    models.add("new one", used=0)
    os.utime(models.used / "new one", (1, 1))
    memory = models.memory(most=20, keep=HOUR)
    make_room(memory)
    assert models.loaded() == {"new one"}
    with pytest.raises(OutOfMemory):
        make_room(memory, 20, wait=0.1)
    nearly = time.time() - HOUR + 0.5
    os.utime(models.loader.wanted / "new one", (nearly, nearly))  # type: ignore[operator]
    make_room(memory, 20, wait=PATIENCE_S)
    assert models.loaded() == set()


def test_idle_models_go_after_their_time(models: Models) -> None:
    models.pinned = {"pinned"}
    for name, used in (("idle", 3601), ("pinned", 9000), ("used", 1)):
        models.add(name, used=used)
    memory = models.memory(idle=HOUR)
    (memory.folder / ".lock").touch()
    os.utime(memory.folder / ".lock", (1, 1))
    memory.tidy()
    assert models.loaded() == {"pinned", "used"}
    models.add("idle", used=3601)
    memory.tidy()
    assert "idle" in models.loaded(), "another web worker has just looked"


def test_the_steps_of_a_loaded_ensemble_stay(models: Models) -> None:
    models.add("step", used=900)
    models.add("chain", used=300, config='ensemble_scheduling { step { model_name: "step" } }')
    models.add("other", used=100)
    memory = models.memory(most=20)
    assert list(memory.unused(memory.sizes())) == ["chain", "other"]
    assert memory.need("chain") == 0, "it has no process"
    make_room(memory, 1)
    assert models.loaded() == {"step"}, "the chain frees nothing, and step belongs to it until then"


def test_room_that_was_made_is_taken_until_the_model_is_loaded(models: Models) -> None:
    memory = models.memory(most=20)
    first = "f" * 255  # as long as a name may be
    for name in (first, "second", "third"):
        (memory.folder / name).write_text(str(10 * MIB))
    with (
        memory.room(first, 0),
        memory.room("second", 0),
        pytest.raises(OutOfMemory),
        memory.room("third", time.monotonic() + 0.2),
    ):
        pass
    with memory.room("third", 0):
        pass


def test_a_model_is_estimated_by_its_files_before_its_first_load(models: Models) -> None:
    folder = models.loader.repository / "large" / "1"
    folder.mkdir(parents=True)
    (folder / "model.onnx").write_bytes(bytes(3 * MIB))
    assert models.memory().need("large") == PROCESS_BYTES + 2 * 3 * MIB


def test_what_a_models_processes_take_is_measured(models: Models, tmp_path: Path) -> None:
    proc = tmp_path / "proc"
    (proc / "7" / "task" / "7").mkdir(parents=True)
    (proc / "7" / "task" / "7" / "children").write_text("8 9 10 ")
    for pid, model, size in ((8, "a", 100), (9, "a", 50), (10, "b", 7)):
        (proc / str(pid)).mkdir()
        command = f"/x/triton_python_backend_stub\0/models/{model}/1/model.py\0more"
        (proc / str(pid) / "cmdline").write_text(command)
        (proc / str(pid) / "smaps_rollup").write_text(
            f"00400000-7fff [rollup]\nRss:  999 kB\nPss:    {size} kB\nPss_Dirty:   1 kB\n"
        )
    memory = ModelMemory(models.used, models.loader, triton=lambda: 7, proc=proc)
    assert memory.measured() == {"a": 150 * 1024, "b": 7 * 1024}


def test_what_a_model_took_is_known_at_its_next_load(models: Models) -> None:
    models.add("a", size=33)
    memory = models.memory(most=40)
    (models.used / "a").write_text(str(35 * MIB))
    make_room(memory, 40)
    assert memory.need("a") == 35 * MIB
