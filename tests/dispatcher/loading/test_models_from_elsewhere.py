"""Models from elsewhere, also when another process loads or unloads them."""

from __future__ import annotations

import json
import shutil
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from subprocess import PIPE, Popen
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest

from clients.errors import DeadlineExceeded, UnknownModel
from dispatcher.errors import AlreadyLoaded, BadModel
from tests.conftest import PATIENCE_S
from tests.support.front import front
from tests.support.loading import Hosting


def test_what_is_loaded_is_noted_until_it_is_unloaded_or_lost(hosting: Hosting) -> None:
    """One that was lost can be loaded, and unloaded, again."""
    url = hosting.url
    hosting.load("one", url)
    hosting.load("two", url)
    assert hosting.listed() == ["one", "two"]
    hosting.unload("one")
    assert hosting.listed() == ["two"]
    with pytest.raises(AlreadyLoaded):
        hosting.load("two", url)
    hosting.server.unloaded.add("two")
    hosting.load("two", url)
    assert hosting.is_loaded("two")
    assert hosting.listed() == ["two"]
    hosting.server.unloaded.add("two")
    hosting.unload("two")
    assert hosting.listed() == []
    assert not (hosting.repository / "two").exists()
    (hosting.folder / "model.url").touch()
    for name in ("two", "x" * 300, "../elsewhere"):
        with pytest.raises(UnknownModel):
            hosting.unload(name)
    assert hosting.folder.exists(), "no name leads to a folder elsewhere"


def test_a_model_whose_client_cannot_be_looked_at_is_given_back(hosting: Hosting) -> None:
    def fault() -> str:
        raise DeadlineExceeded("other reloads")

    with pytest.raises(DeadlineExceeded, match="other reloads"):
        hosting.load("one", hosting.url, fault)
    assert hosting.listed() == []
    hosting.load("one", hosting.url)
    assert hosting.listed() == ["one"]


@pytest.mark.parametrize("beside", ["config.pbtxt", "dispatch.toml"])
def test_a_version_folder_of_a_wrong_name_is_not_taken_for_the_model(
    hosting: Hosting, tmp_path: Path, beside: str
) -> None:
    """What is beside it would be dropped without a word."""
    folder = tmp_path / "misnamed"
    (folder / "v1").mkdir(parents=True)
    (folder / "v1" / "model.onnx").touch()
    hosting.load("inside", str(folder))
    (folder / beside).touch()
    with pytest.raises(BadModel, match="is no model") as caught:
        hosting.load("one", str(folder))
    assert "1/model.onnx" in caught.value.hint


@pytest.mark.parametrize("fails", [False, True])
def test_a_model_that_takes_too_long_is_there_later_or_can_be_loaded_again(
    hosting: Hosting, fails: bool
) -> None:
    url = hosting.url
    hosting.server.loading_s = 11
    with pytest.raises(DeadlineExceeded):
        hosting.load("one", url)
    with pytest.raises(AlreadyLoaded, match="being loaded"):
        hosting.load("one", url)
    with pytest.raises(UnknownModel):
        hosting.unload("one")
    hosting.server.loading.clear()
    hosting.server.loading_s = 0
    if fails:
        hosting.server.unloaded.add("one")
        hosting.load("one", url)
    assert hosting.is_loaded("one")
    assert (hosting.repository / "one" / "1" / "model.onnx").exists()
    assert hosting.listed() == ["one"]
    hosting.unload("one")
    assert hosting.listed() == []
    assert not (hosting.repository / "one").exists()


LOADER = """
import sys, time
from pathlib import Path
from dispatcher.models.load_unload import ModelLoader
from tests.support.fake_triton import FakeTriton

class Slow(FakeTriton):
    def load(self, model, *, timeout):
        print("loading", flush=True)
        time.sleep(60)

folder = Path(sys.argv[1])
ModelLoader(folder / "repository", (), str, Slow(), 10, folder / "wanted").load(
    "one", str(folder / "elsewhere"))
"""


@pytest.mark.parametrize("again", ["load", "unload"])
def test_a_model_whose_loader_was_killed(hosting: Hosting, tmp_path: Path, again: str) -> None:
    """As a web worker is by a system that is short of memory; nobody else sees to the model."""
    url = hosting.url
    with Popen([sys.executable, "-c", LOADER, str(tmp_path)], stdout=PIPE) as loader:
        assert loader.stdout
        assert loader.stdout.readline() == b"loading\n"
        with pytest.raises(AlreadyLoaded, match="being loaded"):
            hosting.load("one", url)
        with pytest.raises(UnknownModel):
            hosting.unload("one")
        loader.kill()
    if again == "load":
        hosting.load("one", url)
        assert hosting.is_loaded("one")
        assert hosting.listed() == ["one"]
    else:
        hosting.unload("one")
        assert not (hosting.repository / "one").exists()


def test_who_unloads_a_model_leaves_alone_what_another_one_has_put_into_its_place(
    hosting: Hosting, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, waits = hosting.url, Event()

    def sleep(seconds: float) -> None:
        waits.set()
        time.sleep(seconds)

    hosting.load("one", url)
    clock = SimpleNamespace(sleep=sleep, monotonic=time.monotonic)
    monkeypatch.setattr("dispatcher.locks.time", clock)
    with ThreadPoolExecutor() as pool:
        with hosting.held("one") as is_held:
            assert is_held
            late = pool.submit(hosting.unload, "one")
            assert waits.wait(PATIENCE_S)
            hosting.remove("one")
            hosting.load("one", url)
        with pytest.raises(UnknownModel, match="just been unloaded"):
            late.result()
    assert hosting.is_loaded("one")
    assert (hosting.repository / "one" / "1" / "model.onnx").exists()


def test_who_waits_for_another_one_to_unload_a_model_does_not_wait_for_ever(
    hosting: Hosting,
) -> None:
    hosting.unload_timeout = 0.2
    hosting.load("one", hosting.url)
    with hosting.held("one"), pytest.raises(DeadlineExceeded, match="another caller"):
        hosting.unload("one")
    assert hosting.is_loaded("one")
    assert hosting.listed() == ["one"]


@pytest.mark.parametrize("name", ["README.md", "around", "own"])
def test_what_was_not_loaded_into_the_repository_is_no_model(hosting: Hosting, name: str) -> None:
    (hosting.repository / "README.md").touch()
    (hosting.repository / "around").symlink_to("around")
    (hosting.repository / "own").mkdir()
    with pytest.raises(UnknownModel):
        hosting.unload(name)
    with pytest.raises(BadModel, match="of its own"):
        hosting.load(name, hosting.url)


def test_a_folder_is_in_the_repository_whole_or_not_at_all(
    hosting: Hosting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A concurrent caller hears of the model from elsewhere; Triton gets no request."""
    url, seen, link, rmtree = hosting.url, list[bool](), hosting.link, shutil.rmtree

    def here() -> bool:
        return (hosting.repository / "one").exists()

    def slow_link(source: Path, folder: Path, name: str) -> None:
        link(source, folder, name)
        seen.append(here())
        if len(seen) == 1:  # another one is sooner
            hosting.load(name, url)

    def slow_rmtree(folder: Path, **more: Any) -> None:
        seen.append(here())
        rmtree(folder, **more)

    monkeypatch.setattr(hosting, "link", slow_link)
    with pytest.raises(AlreadyLoaded):
        hosting.load("one", url)
    assert seen == [False, False]
    assert hosting.is_loaded("one")
    monkeypatch.setattr(shutil, "rmtree", slow_rmtree)
    hosting.unload("one")
    assert seen == [False, False, False]
    assert [path.name for path in tmp_path.glob("aside*")] == []


@pytest.mark.slow
def test_a_model_may_take_longer_to_load_than_an_answer(tmp_path: Path) -> None:
    for name in ("wanted", "elsewhere"):
        (tmp_path / name).mkdir()
    model = tmp_path / "elsewhere"
    (model / "model.onnx").touch()
    body = json.dumps({"model_name": "slow", "url": str(model)}).encode()
    with front(tmp_path, "tests.support.sleepers:build()", MODEL_SERVER_TIMEOUT="2") as endpoint:
        assert endpoint.call("/models", body).status == 200
        assert endpoint.call("/infer/sleeps", b'{"payload": {"seconds": 3}}').status == 504
