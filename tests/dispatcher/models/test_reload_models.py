"""Clients of models that are loaded and unloaded meanwhile."""

from __future__ import annotations

import os
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from clients.families.base.dispatch_toml import aliases
from clients.model_files.model_folders import link
from clients.plugins.discovery import changes, model_source, tried
from clients.plugins.registry import Verdict
from clients.triton.server import ModelState
from dispatcher.settings import WANTED
from tests.support.fake_triton import FakeTriton
from tests.support.reloading import Worker, folder, write

__all__ = ["folder"]


def test_what_is_edited_while_a_model_without_code_is_tried_is_news(tmp_path: Path) -> None:
    labels = tmp_path / "labels.txt"
    (tmp_path / "dispatch.toml").write_text('family = "classification"')
    labels.write_text("cat")
    source = model_source(tmp_path / "dispatch.toml")
    labels.write_text("dog, while it is tried")
    assert list(changes(tried(source), source.look())) == [str(labels)]


def test_a_model_that_is_loaded_is_tried_alone(folder: Path) -> None:
    """A client that is broken, or hangs when it is tried, must not make each load wait."""
    tried: list[str] = []

    def good(found: Any, *_: Any) -> dict[str, Verdict]:
        tried.extend(Path(source.where).parent.name for source in found)
        return {source.where: Verdict(source.mark) for source in found}

    write(folder / "clients", "broken", "0\n    x = 1 / 0")
    worker = Worker(folder)
    worker.reloader.trial = good
    source = folder / "elsewhere" / "plain"
    (source / "1").mkdir(parents=True)
    (folder / WANTED).mkdir()
    (source / "dispatch.toml").write_text('aliases = ["other"]')
    body = {"model_name": "plain", "url": str(source)}
    assert worker.client().post("/models", json=body).status_code == 200
    assert worker.registry.name("other") == "plain"
    assert worker.client().delete("/models/plain").status_code == 200
    assert worker.registry.name("other") == "other"
    assert tried == ["plain"]


def test_who_loads_or_unloads_a_model_leaves_the_others_their_clients(folder: Path) -> None:
    """Though their folders, or their files, cannot be found at that moment."""
    workers = [Worker(folder), Worker(folder)]
    (folder / WANTED).mkdir()
    for one in workers:
        one.reloader.trial = lambda found, *_: {s.where: Verdict(s.mark) for s in found}

    def load(name: str) -> None:
        (folder / "elsewhere" / name / "1").mkdir(parents=True)
        (folder / "elsewhere" / name / "dispatch.toml").touch()
        body = {"model_name": name, "url": str(folder / "elsewhere" / name)}
        assert workers[0].client().post("/models", json=body).status_code == 200

    def served() -> list[set[str]]:
        workers[1].reloader.take_up()
        return [set(one.registry.clients) for one in workers]

    load("one")
    assert served() == [{"kept", "mine", "one"}] * 2
    (folder / "elsewhere" / "one").rename(folder / "elsewhere" / "away")
    (folder / "clients" / "mine.py").rename(folder / "mine.py")
    write(folder / "clients", "new", "1")  # it waits for a reload
    load("two")
    assert served() == [{"kept", "mine", "one", "two"}] * 2
    assert workers[1].client().delete("/models/two").status_code == 200
    workers[0].reloader.take_up()
    assert served() == [{"kept", "mine", "one"}] * 2
    workers[0].reloader.reload()
    assert {"kept", "new"} <= served()[0] == served()[1]
    assert "mine" not in served()[0]


@pytest.mark.parametrize("name", ["lal", "other", "late"])
def test_the_names_of_a_model_that_is_unloaded_late_are_free_again(folder: Path, name: str) -> None:
    """The model itself may come again, or another one under its alias, or with that alias."""
    worker, source = Worker(folder), folder / "elsewhere" / "late"
    triton = worker.reloader.environment.server
    assert isinstance(triton, FakeTriton)
    worker.reloader.trial = lambda found, taken, _: {
        s.where: Verdict(s.mark, bad={"x": "the name is taken"} if "lal" in taken else {})
        for s in found
    }
    (source / "1").mkdir(parents=True)
    (source / "dispatch.toml").write_text('aliases = ["lal"]')
    plain = folder / "elsewhere" / "plain"
    (plain / "1").mkdir(parents=True)
    (folder / WANTED).mkdir()

    def load(name: str, url: Path) -> int:
        body = {"model_name": name, "url": str(url)}
        return worker.client().post("/models", json=body).status_code

    assert load("late", source) == 200
    triton.unloading.add("late")
    assert worker.client().delete("/models/late").status_code == 504
    assert load("lal", plain) == 409
    assert worker.registry.name("lal") == "late"
    triton.unloading.clear()
    triton.unloaded.add("late")
    assert load(name, plain if name == "lal" else source) == 200
    assert worker.registry.name("lal") == ("lal" if name == "lal" else name)


@pytest.mark.parametrize("fault", ["", "it is broken"])
def test_who_unloads_a_model_waits_for_the_trial_of_its_client(folder: Path, fault: str) -> None:
    worker, source = Worker(folder), folder / "elsewhere" / "plain"
    (source / "1").mkdir(parents=True)
    (source / "dispatch.toml").touch()
    (folder / WANTED).mkdir()
    body = {"model_name": "plain", "url": str(source)}
    with ThreadPoolExecutor() as pool:
        deleted: list[Future[Any]] = []

        def slow(found: Any, *_: Any) -> dict[str, Verdict]:
            deleted.append(pool.submit(worker.client().delete, "/models/plain"))
            with pytest.raises(TimeoutError):
                deleted[0].result(0.3)
            assert worker.client().post("/models", json=body).status_code == 409
            return {s.where: Verdict(s.mark, bad={"plain": fault} if fault else {}) for s in found}

        worker.reloader.trial = slow
        answer = worker.client().post("/models", json=body)
        assert answer.status_code == (400 if fault else 200)
        assert deleted[0].result(10).status_code == (404 if fault else 200)
    assert not (folder / "plain").exists()
    assert str(folder / "plain" / "dispatch.toml") not in worker.registry.loaded


@pytest.mark.parametrize(("multi_model", "taken"), [("false", ["lal"]), ("true", [])])
def test_a_second_model_with_a_taken_alias_is_loaded_without_it(
    folder: Path, multi_model: str, taken: list[str]
) -> None:
    """And stays so when the first is gone, in later workers too: it is not what callers mean.

    On a multi-model endpoint names are the platform's, and no model has aliases.
    """
    source = folder / "elsewhere" / "tenant"
    (source / "1").mkdir(parents=True)
    (folder / WANTED).mkdir()
    (source / "dispatch.toml").write_text('aliases = ["lal", "mine", "b"]')

    def worker() -> Worker:
        one = Worker(folder, SAGEMAKER_MULTI_MODEL=multi_model)
        one.reloader.trial = lambda found, *_: {s.where: Verdict(s.mark) for s in found}
        return one

    first = worker()
    for name in ("b", "a"):  # a worker that comes later finds the second before the first
        body = {"model_name": name, "url": str(source)}
        assert first.client().post("/models", json=body).status_code == 200

    def its(one: Worker, name: str) -> Any:
        return list(one.registry.clients[name].aliases)

    for one in (first, worker()):
        assert (its(one, "b"), its(one, "a")) == (taken, [])
    assert first.client().delete("/models/b").status_code == 200
    for one in (first, worker()):
        assert (one.registry.aliases, its(one, "a")) == ({}, [])


def test_of_two_models_that_are_loaded_at_once_one_has_the_alias(folder: Path) -> None:
    """As where one is loaded after the other: neither is refused."""
    worker = Worker(folder)
    (folder / WANTED).mkdir()
    source = folder / "elsewhere" / "tenant"
    (source / "1").mkdir(parents=True)
    (source / "dispatch.toml").write_text('aliases = ["lal"]')

    def load(name: str) -> int:
        body = {"model_name": name, "url": str(source)}
        return worker.client().post("/models", json=body).status_code

    with ThreadPoolExecutor() as pool:
        second: list[Future[int]] = []

        def trial(found: Any, taken: Any, *_: Any) -> dict[str, Verdict]:
            if not second:
                second.append(pool.submit(load, "two"))
                while not (folder / "two").exists():
                    assert not second[0].done()
                    time.sleep(0.01)
            return {
                s.where: Verdict(
                    s.mark,
                    bad={s.model: "the name belongs to another"}
                    if {*aliases(Path(s.where).parent)} & taken.keys()
                    else {},
                )
                for s in found
            }

        worker.reloader.trial = trial
        assert load("one") == 200
        assert second[0].result(20) == 200
    assert worker.registry.aliases == {"lal": "one"}
    assert {"one", "two"} <= worker.registry.clients.keys()


@pytest.mark.parametrize("state", ["LOADING", "UNLOADING", "UNAVAILABLE"])
def test_a_reload_passes_over_models_that_are_not_loaded(folder: Path, state: str) -> None:
    """Others load and unload them meanwhile; their examples would fail."""
    worker = Worker(folder)
    server = worker.reloader.environment.server
    assert isinstance(server, FakeTriton)
    for name in ("m1", "m2"):
        (folder / name / "1").mkdir(parents=True)
        (folder / name / "dispatch.toml").touch()
    server.states = [ModelState("m1", "1", state), ModelState("m2", "1", "READY")]
    seen: list[str] = []

    def trial(found: Any, *_: Any) -> dict[str, Verdict]:
        found = list(found)
        seen.extend(source.model for source in found)
        return {s.where: Verdict(s.mark, (s.model,)) for s in found}

    worker.reloader.trial = trial
    assert worker.reload().json == {
        "taken": ["m2"],
        "removed": [],
        "broken": {},
        "absent": {"m1": str(folder / "m1")},
    }
    assert seen == ["m2"]
    assert "m1" not in {*worker.registry.clients, *worker.registry.broken}
    server.states = [ModelState(name, "1", "READY") for name in ("m1", "m2")]
    assert worker.reload().json["taken"] == ["m1"]


@pytest.mark.parametrize("then", ["unloaded", "removed", "loaded again"])
def test_a_model_that_goes_while_its_client_is_tried_is_not_called_bad(
    folder: Path, then: str
) -> None:
    worker = Worker(folder)
    server = worker.reloader.environment.server
    assert isinstance(server, FakeTriton)
    (folder / WANTED).mkdir()
    source = folder / "elsewhere" / "m"
    (source / "1").mkdir(parents=True)
    (source / "dispatch.toml").touch()
    worker.reloader.trial = lambda found, *_: {s.where: Verdict(s.mark, ("m",)) for s in found}
    body = {"model_name": "m", "url": str(source)}
    assert worker.client().post("/models", json=body).status_code == 200
    file = folder / "m" / "dispatch.toml"
    file.touch()  # so that it is tried again
    os.utime(file, (1, 1))

    def trial(found: Any, *_: Any) -> dict[str, Verdict]:
        bad = {s.where: Verdict(s.mark, bad={"m": "m is not ready"}) for s in found}
        if then == "unloaded":
            server.unloaded.add("m")
        elif then == "removed":
            file.unlink()
        else:
            file.with_name("new").touch()
            file.with_name("new").replace(file)
        return bad

    worker.reloader.trial = trial
    assert worker.reload().status_code == 200
    assert worker.registry.broken == {}


def test_what_is_said_of_a_model_names_its_author_s_folder(folder: Path) -> None:
    """Not the links in RUN_DIR, which nobody but the container writes."""
    source = folder / "elsewhere" / "m"
    source.mkdir(parents=True)
    for file in ("model.onnx", "dispatch.toml"):
        (source / file).touch()
    link(source, folder / "m")
    worker = Worker(folder)
    server = worker.reloader.environment.server
    assert isinstance(server, FakeTriton)
    server.models_run["m"] = dict
    entry = worker.client().get("/models/m").json or {}
    assert entry["modelUrl"] == str(source)
    assert entry["client"] == f"Tensors in {source / 'dispatch.toml'}"
    (source / "dispatch.toml").write_text('family = "tensor"')
    worker.reload()
    later = Worker(folder)
    assert list(later.reload().json["broken"]) == [str(source / "dispatch.toml")]


def test_a_model_that_its_client_kept_from_being_loaded_says_what_loads_it(folder: Path) -> None:
    """Nothing else helps: a reload passes over it."""
    worker = Worker(folder)
    server = worker.reloader.environment.server
    assert isinstance(server, FakeTriton)
    (folder / WANTED).mkdir()
    (folder / "late3" / "1").mkdir(parents=True)
    (folder / "late3" / "1" / "model.onnx").touch()
    file = folder / "late3" / "dispatch.toml"
    file.write_text('family = "tensor"')
    server.models_run["late3"] = dict
    server.unloaded.add("late3")
    error = worker.client().post("/load_model/late3").json["error"]
    assert error["code"] == "bad_client"
    assert "POST /load_model/late3 again" in error["hint"]
    error = worker.client().post("/infer/late3", json={"payload": {}}).json["error"]
    assert (error["code"], error["hint"]) == (
        "client_disabled",
        "mend it, then POST /load_model/late3",
    )
    file.write_text('family = "tensors"')
    worker.reloader.trial = lambda found, *_: {s.where: Verdict(s.mark, ("late3",)) for s in found}
    assert worker.reload().json["absent"] == {"late3": str(folder / "late3")}
    assert worker.client().post("/load_model/late3").status_code == 200
    assert "late3" in worker.registry.clients


def test_a_mistake_in_a_folder_that_is_loaded_is_told_by_its_own_path(folder: Path) -> None:
    """With one advice, which helps: the file that counts is a copy that nobody can mend."""
    worker = Worker(folder)
    (folder / WANTED).mkdir()
    source = folder / "elsewhere" / "packed" / "tenant"
    (source / "1").mkdir(parents=True)
    (source / "dispatch.toml").write_text('family = "tensor"')
    url = str(source.parent)

    def load() -> Any:
        return worker.client().post("/models", json={"model_name": "t", "url": url})

    error = load().json["error"]
    file = source / "dispatch.toml"
    assert error["message"] == f'{file}: `family` is "tensor"; did you mean `tensors`?'
    assert error["hint"] == f"mend it in {url}, then load it again"
    assert not (folder / "t").exists()
    assert worker.ask("t") == "unknown_model"
    file.write_text('family = "tensors"')
    worker.reloader.trial = lambda found, *_: {s.where: Verdict(s.mark, ("t",)) for s in found}
    assert load().status_code == 200
    assert "t" in worker.registry.clients


def test_one_that_was_loaded_late_says_how_its_file_is_mended(folder: Path) -> None:
    worker = Worker(folder)
    triton = worker.reloader.environment.server
    assert isinstance(triton, FakeTriton)
    (folder / WANTED).mkdir()
    source = folder / "elsewhere" / "tenant"
    (source / "1").mkdir(parents=True)
    named = 'family = "classification"\nlabels = "none.txt"'
    (source / "dispatch.toml").write_text(named)  # which is not there
    triton.loading_s = 1e9
    body = {"model_name": "t", "url": str(source)}
    assert worker.client().post("/models", json=body).status_code == 504
    assert worker.reload().json["absent"] == {"t": str(source)}  # not yet
    triton.loading.clear()
    error = worker.reload().json["error"]
    assert error["message"].startswith(f"{source / 'dispatch.toml'}: `labels`")
    assert "the previous clients are kept" in error["hint"]
    assert "DELETE /models/t, then POST /models again" in error["hint"]
    triton.loading_s = 0
    (source / "dispatch.toml").write_text('family = "tensors"')
    worker.reloader.trial = lambda found, *_: {s.where: Verdict(s.mark, ("t",)) for s in found}
    assert worker.client().delete("/models/t").status_code == 200
    assert worker.client().post("/models", json=body).status_code == 200
    assert "t" in worker.registry.clients
