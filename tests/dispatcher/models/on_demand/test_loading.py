"""What requests do to have a model loaded, without a Triton."""

from __future__ import annotations

import fcntl
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from clients.errors import ModelUnavailable, UnknownModel
from clients.plugins.registry import Registry
from dispatcher.errors import BadModel, OutOfMemory
from dispatcher.models.on_demand.loading import OnDemand
from dispatcher.models.on_demand.memory import Locked, hold_lock
from tests.conftest import PATIENCE_S
from tests.dispatcher.models.on_demand.test_memory import Models


class Clients:
    """A reloader without clients."""

    registry = Registry()

    def follow(self) -> None:
        """Nothing changes."""

    def forget_model(self, file: Path) -> None:
        """There is none."""


@pytest.fixture
def models(tmp_path: Path) -> Models:
    return Models(tmp_path)


def on_demand(models: Models, **memory: float) -> OnDemand:
    reloader: Any = Clients()
    return OnDemand(models.memory(**memory), models.loader, reloader)


def soon(seconds: float = PATIENCE_S) -> float:
    return time.monotonic() + seconds


def add_unloaded(models: Models, *names: str, config: str = "") -> None:
    for name in names:
        models.add(name, config=config)
        models.loader.want(name, yes=False)
        models.server.unloaded.add(name)


def test_a_model_is_loaded_once_and_locked_while_it_is_used(models: Models) -> None:
    add_unloaded(models, "a")
    models.server.loading_s = 0.3
    control, loads = on_demand(models), []
    load = models.server.load
    models.server.load = lambda *model, **how: (loads.append(model), load(*model, **how))[1]  # type: ignore[method-assign]

    def use(_: int) -> None:
        with control.using("a", soon()):
            assert models.loader.is_wanted("a")
            with pytest.raises(Locked), hold_lock(models.used / "a", fcntl.LOCK_EX):
                pass

    with ThreadPoolExecutor(8) as callers:
        list(callers.map(use, range(16)))
    assert loads == [("a",)]
    with hold_lock(models.used / "a", fcntl.LOCK_EX):
        pass


def test_the_steps_of_an_ensemble_are_loaded_before_it(models: Models) -> None:
    """Nested ones too; one that names itself is Triton's to refuse."""
    step = 'ensemble_scheduling { step { model_name: "%s" } }'
    add_unloaded(models, "leaf")
    add_unloaded(models, "inner", config=step % "leaf")
    add_unloaded(models, "outer", config=step % "inner")
    add_unloaded(models, "loop", config=step % "loop")
    control = on_demand(models)
    with control.using("outer", soon()):
        assert models.loaded() == {"leaf", "inner", "outer"}
        with pytest.raises(Locked), hold_lock(models.used / "leaf", fcntl.LOCK_EX):
            pass
    with control.using("loop", soon()):
        pass


def test_who_cannot_wait_is_refused_and_the_load_goes_on(models: Models) -> None:
    add_unloaded(models, "a")
    goes_on, load = threading.Event(), models.server.load
    models.server.load = lambda *model, **how: (goes_on.wait(PATIENCE_S), load(*model, **how))[1]  # type: ignore[method-assign]
    control = on_demand(models)
    with pytest.raises(ModelUnavailable, match="still being loaded"), control.using("a", soon(0.2)):
        pass
    goes_on.set()
    with control.using("a", soon()):
        assert models.loaded() == {"a"}


def test_a_load_that_fails_is_not_tried_by_each_request(
    models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dispatcher.models.on_demand.loading.FORGIVEN_S", 3600)
    add_unloaded(models, "a")
    models.server.refuse_to_load = "it is broken"
    control = on_demand(models)
    for _ in range(2):
        with (
            pytest.raises(ModelUnavailable, match=r"cannot be loaded: .*it is broken"),
            control.using("a", soon()),
        ):
            pass
        models.server.refuse_to_load = ""  # it would succeed now


def test_a_model_from_elsewhere_gets_its_room(models: Models, tmp_path: Path) -> None:
    """It is estimated at 150 MiB; `old` and `used` take 10 each."""
    for name, used in (("old", 300), ("used", 100)):
        models.add(name, used=used)
    (tmp_path / "elsewhere" / "1").mkdir(parents=True)
    (tmp_path / "elsewhere" / "config.pbtxt").write_text('backend: "python"')
    models.server.models_run["new"] = dict
    control = on_demand(models, most=165, keep=0)
    control.load("new", str(tmp_path / "elsewhere"))
    assert models.loaded() == {"used", "new"}
    with pytest.raises(BadModel, match="model_name"):
        control.load("../used/x", str(tmp_path / "elsewhere"))
    control = on_demand(models, most=100, keep=0)
    with pytest.raises(OutOfMemory, match="MODEL_MEMORY_MB is 100"):
        control.load("other", str(tmp_path / "elsewhere"))
    assert models.loaded() == {"used", "new"}


def test_an_unknown_name_makes_no_file(models: Models) -> None:
    add_unloaded(models, "known")
    (models.used / "known").unlink()
    control = on_demand(models)
    for name in ("nosuch", "../wanted/x", ".lock", "x" * 300, ""):
        with control.using(name, soon()):
            pass
        with pytest.raises(UnknownModel) as caught:
            control.load_on_demand(name, soon())
        assert caught.value.hint == "it has known"
    assert list(models.used.iterdir()) == []
