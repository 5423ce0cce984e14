"""Clients of models that are loaded and unloaded meanwhile."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from clients.model_files.model_folders import link
from clients.triton.server import ModelState
from dispatcher.models import reload
from dispatcher.models.sandbox import Tried
from dispatcher.settings import WANTED
from tests.conftest import PATIENCE_S
from tests.support.reloading import Worker, folder, write

__all__ = ["folder"]


@pytest.fixture
def elsewhere(folder: Path) -> Path:
    """Return where models of POST /models lie; a load and an unload is noted in RUN_DIR."""
    (folder / WANTED).mkdir()
    return folder / "elsewhere"


def model_at(folder: Path, toml: str = "") -> Path:
    (folder / "1").mkdir(parents=True)
    (folder / "dispatch.toml").write_text(toml)
    return folder


def load(worker: Worker, name: str, folder: Path) -> Any:
    return worker.client().post("/models", json={"model_name": name, "url": str(folder)})


def test_a_model_that_is_loaded_is_tried_alone(folder: Path, elsewhere: Path) -> None:
    """A class that is broken, or hangs when it is tried, must not make each load wait."""
    write(folder / "clients", "broken", "0\n    x = 1 / 0")
    worker = Worker(folder)
    worker.reloader.trial = lambda *_: pytest.fail("no process is needed for a dispatch.toml")
    assert load(worker, "plain", model_at(elsewhere / "plain")).status_code == 200
    assert "plain" in worker.registry.clients
    assert worker.client().delete("/models/plain").status_code == 200
    assert "plain" not in worker.registry.clients


def test_who_loads_or_unloads_a_model_leaves_the_others_their_clients(
    folder: Path, elsewhere: Path
) -> None:
    """Though their folders, or their files, cannot be found at that moment."""
    workers = [Worker(folder), Worker(folder)]

    def served() -> list[set[str]]:
        for one in workers:
            one.ask("kept")
        return [set(one.registry.clients) for one in workers]

    assert load(workers[0], "one", model_at(elsewhere / "one")).status_code == 200
    assert served() == [{"kept", "mine", "one"}] * 2
    (elsewhere / "one").rename(elsewhere / "away")
    (folder / "clients" / "mine.py").rename(folder / "mine.py")
    write(folder / "clients", "new", "1")  # it waits for a reload
    assert load(workers[0], "two", model_at(elsewhere / "two")).status_code == 200
    assert served() == [{"kept", "mine", "one", "two"}] * 2
    assert workers[1].client().delete("/models/two").status_code == 200
    assert served() == [{"kept", "mine", "one"}] * 2
    workers[0].reloader.reload()
    assert {"kept", "new"} <= served()[0] == served()[1]
    assert "mine" not in served()[0]


def test_the_name_of_a_model_that_is_unloaded_late_is_free_again(
    folder: Path, elsewhere: Path
) -> None:
    worker, source = Worker(folder), model_at(elsewhere / "late")
    assert load(worker, "late", source).status_code == 200
    worker.server.unloading.add("late")
    assert worker.client().delete("/models/late").status_code == 504
    assert load(worker, "late", source).status_code == 409
    worker.server.unloading.clear()
    worker.server.unloaded.add("late")
    assert load(worker, "late", source).status_code == 200


@pytest.mark.parametrize("fault", ["", "it is broken"])
def test_who_unloads_a_model_waits_for_the_trial_of_its_client(
    folder: Path, elsewhere: Path, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker, source = Worker(folder), model_at(elsewhere / "plain")
    with ThreadPoolExecutor() as pool:
        deleted: list[Future[Any]] = []

        def fail_slowly(*_: Any) -> dict[str, str]:
            deleted.append(pool.submit(worker.client().delete, "/models/plain"))
            with pytest.raises(TimeoutError):
                deleted[0].result(0.3)
            assert load(worker, "plain", source).status_code == 409
            return {"plain": fault} if fault else {}

        monkeypatch.setattr(reload, "failures", fail_slowly)
        assert load(worker, "plain", source).status_code == (400 if fault else 200)
        assert deleted[0].result(PATIENCE_S).status_code == (404 if fault else 200)
    assert not (folder / "plain").exists()
    assert str(folder / "plain" / "dispatch.toml") not in worker.registry.loaded


def test_a_model_from_elsewhere_has_no_aliases_in_later_workers_either(
    folder: Path, elsewhere: Path
) -> None:
    source = model_at(elsewhere / "tenant", 'aliases = ["lal", "mine"]')
    first = Worker(folder)
    for name in ("b", "a"):
        assert load(first, name, source).status_code == 200
    for one in (first, Worker(folder)):
        assert one.registry.aliases == {}
        assert {"a", "b"} < one.registry.clients.keys()


@pytest.mark.parametrize("state", ["LOADING", "UNLOADING", "UNAVAILABLE"])
def test_a_reload_passes_over_models_that_are_not_loaded(folder: Path, state: str) -> None:
    """Others load and unload them meanwhile; their examples would fail."""
    worker = Worker(folder)
    for name in ("m1", "m2"):
        model_at(folder / name)
    worker.server.states = [ModelState("m1", "1", state), ModelState("m2", "1", "READY")]
    seen: list[str] = []

    def trial(found: Any, *_: Any) -> dict[str, Tried]:
        seen.extend(source.model for source in found)
        return {s.where: Tried() for s in found}

    worker.reloader.trial = trial
    assert worker.reload().json == {
        "taken": ["m2"],
        "removed": [],
        "broken": {},
        "absent": {"m1": str(folder / "m1")},
    }
    assert seen == ["m2"]
    assert "m1" not in {*worker.registry.clients, *worker.registry.broken}
    worker.server.states = [ModelState(name, "1", "READY") for name in ("m1", "m2")]
    assert worker.reload().json["taken"] == ["m1"]


def test_what_is_said_of_a_model_names_its_author_s_folder(folder: Path) -> None:
    """Not the links in RUN_DIR, which nobody but the container writes."""
    source = folder / "elsewhere" / "m"
    source.mkdir(parents=True)
    for file in ("model.onnx", "dispatch.toml"):
        (source / file).touch()
    link(source, folder / "m")
    worker = Worker(folder)
    worker.server.models_run["m"] = dict
    entry = worker.client().get("/models/m").json or {}
    assert entry["modelUrl"] == str(source)
    assert entry["client"] == f"Tensors in {source / 'dispatch.toml'}"
    (source / "dispatch.toml").write_text('family = "tensor"')
    worker.reload()
    later = Worker(folder)
    assert list(later.reload().json["broken"]) == [str(source / "dispatch.toml")]


def test_a_model_that_its_client_kept_from_being_loaded_says_what_loads_it(
    folder: Path, elsewhere: Path
) -> None:
    """Nothing else helps: a reload passes over it."""
    worker = Worker(folder)
    file = model_at(folder / "late3", 'family = "tensor"') / "dispatch.toml"
    (folder / "late3" / "1" / "model.onnx").touch()
    worker.server.models_run["late3"] = dict
    worker.server.unloaded.add("late3")
    error = worker.client().post("/load_model/late3").json["error"]
    assert error["code"] == "bad_client"
    assert "POST /load_model/late3 again" in error["hint"]
    error = worker.client().post("/infer/late3", json={"payload": {}}).json["error"]
    assert error["code"] == "unknown_model"
    assert error["hint"].startswith("POST /load_model/late3 loads it, or says why that fails")
    file.write_text('family = "tensors"')
    assert worker.reload().json["absent"] == {"late3": str(folder / "late3")}
    assert worker.client().post("/load_model/late3").status_code == 200
    assert "late3" in worker.registry.clients


def test_a_mistake_in_a_folder_that_is_loaded_is_told_by_its_own_path(
    folder: Path, elsewhere: Path
) -> None:
    """With one advice, which helps: the file that counts is a copy that nobody can mend."""
    worker = Worker(folder)
    url = elsewhere / "packed"
    file = model_at(url / "tenant", 'family = "tensor"') / "dispatch.toml"
    error = load(worker, "t", url).json["error"]
    assert error["message"] == f'{file}: `family` is "tensor"; did you mean `tensors`?'
    assert error["hint"] == f"mend it in {url}, then load it again"
    assert not (folder / "t").exists()
    assert worker.server.models_run == {}, "Triton did not hear of it"
    assert worker.ask("t") == "unknown_model"
    file.write_text('family = "tensors"')
    assert load(worker, "t", url).status_code == 200
    assert "t" in worker.registry.clients


def test_one_that_was_loaded_late_says_how_its_file_is_mended(
    folder: Path, elsewhere: Path
) -> None:
    worker = Worker(folder)
    # Labels that are not there.
    source = model_at(elsewhere / "tenant", 'family = "classification"\nlabels = "none.txt"')
    worker.server.loading_s = 1e9
    assert load(worker, "t", source).status_code == 504
    assert worker.reload().json["absent"] == {"t": str(source)}  # not yet
    worker.server.loading.clear()
    error = worker.reload().json["error"]
    assert error["message"].startswith(f"{source / 'dispatch.toml'}: `labels`")
    assert "all clients are kept" in error["hint"]
    assert "DELETE /models/t, then POST /models again" in error["hint"]
    worker.server.loading_s = 0
    (source / "dispatch.toml").write_text('family = "tensors"')
    assert worker.client().delete("/models/t").status_code == 200
    assert load(worker, "t", source).status_code == 200
    assert "t" in worker.registry.clients
