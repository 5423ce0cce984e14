"""Models from elsewhere, when Triton was started anew and one of them did not load."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from subprocess import PIPE, Popen
from tempfile import TemporaryDirectory
from threading import Event
from typing import IO, Any

import pytest

import dispatcher.model_control.load_unload
from clients.errors import (
    DeadlineExceeded,
    InferenceError,
    ModelUnavailable,
    TooLargeAtOnce,
    UnknownModel,
)
from clients.plugins.dispatch_toml import aliases
from clients.triton.client import renamed_config
from dispatcher.errors import AlreadyLoaded, BadModel, OutOfMemory
from dispatcher.model_control.load_unload import Hosting
from tests.support.check_mistakes import DEADLY, Mistake, write_mistake
from tests.support.fake_triton import FakeTriton
from tests.support.front import front


@pytest.fixture
def server() -> FakeTriton:
    return FakeTriton()


@pytest.fixture
def hosting(server: FakeTriton, tmp_path: Path) -> Hosting:
    for name in ("repository", "wanted", "elsewhere"):
        (tmp_path / name).mkdir()
    (tmp_path / "elsewhere" / "model.onnx").touch()
    return Hosting(
        server, tmp_path / "repository", (), lambda text, _: text, 10, tmp_path / "wanted"
    )


def model_at(folder: Path, toml: str = "") -> Path:
    """Write a model's folder, with a `dispatch.toml` where there is something in it."""
    (folder / "1").mkdir(parents=True)
    (folder / "1" / "model.onnx").write_bytes(b"x")
    (folder / "config.pbtxt").write_text('backend: "onnxruntime"')
    if toml:
        (folder / "dispatch.toml").write_text(toml)
    return folder


def add(hosting: Hosting, folder: Path) -> None:
    """Add a folder to MODEL_REPOSITORY, after the start."""
    before = hosting.folders()
    hosting.folders = lambda: {**before, folder.name: folder}


def wanted(hosting: Hosting) -> list[str]:
    assert hosting.wanted is not None
    return sorted(path.name for path in hosting.wanted.iterdir())


def test_what_is_loaded_is_noted_and_what_is_unloaded_is_not(
    hosting: Hosting, tmp_path: Path
) -> None:
    hosting.load("one", str(tmp_path / "elsewhere"))
    hosting.load("two", str(tmp_path / "elsewhere"))
    assert wanted(hosting) == ["one", "two"]
    hosting.unload("one")
    assert wanted(hosting) == ["two"]


def test_a_model_whose_client_cannot_be_looked_at_is_given_back(
    hosting: Hosting, tmp_path: Path
) -> None:
    def fault() -> str:
        raise DeadlineExceeded("others reload")

    with pytest.raises(DeadlineExceeded, match="others reload"):
        hosting.load("one", str(tmp_path / "elsewhere"), fault)
    assert wanted(hosting) == []
    hosting.load("one", str(tmp_path / "elsewhere"))
    assert wanted(hosting) == ["one"]


def test_a_model_that_was_lost_can_be_loaded_again(
    hosting: Hosting, server: FakeTriton, tmp_path: Path
) -> None:
    hosting.load("one", str(tmp_path / "elsewhere"))
    with pytest.raises(AlreadyLoaded):
        hosting.load("one", str(tmp_path / "elsewhere"))
    server.unloaded.add("one")
    hosting.load("one", str(tmp_path / "elsewhere"))
    assert hosting.is_loaded("one")
    assert wanted(hosting) == ["one"]


def test_a_model_that_was_lost_can_be_unloaded(
    hosting: Hosting, server: FakeTriton, tmp_path: Path
) -> None:
    hosting.load("one", str(tmp_path / "elsewhere"))
    server.unloaded.add("one")
    hosting.unload("one")
    assert wanted(hosting) == []
    assert not (hosting.repository / "one").exists()
    with pytest.raises(UnknownModel):
        hosting.unload("one")


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


def test_a_model_that_takes_too_long_is_there_later(
    hosting: Hosting, server: FakeTriton, tmp_path: Path
) -> None:
    server.loading_s = 11
    with pytest.raises(DeadlineExceeded):
        hosting.load("one", str(tmp_path / "elsewhere"))
    with pytest.raises(AlreadyLoaded, match="being loaded"):
        hosting.load("one", str(tmp_path / "elsewhere"))
    with pytest.raises(UnknownModel):
        hosting.unload("one")
    server.loading.clear()  # it is there
    assert (hosting.repository / "one" / "1" / "model.onnx").exists()
    assert wanted(hosting) == ["one"]
    hosting.unload("one")
    assert wanted(hosting) == []
    assert not (hosting.repository / "one").exists()


def test_one_that_takes_too_long_and_fails_can_be_loaded_again(
    hosting: Hosting, server: FakeTriton, tmp_path: Path
) -> None:
    server.loading_s = 11
    with pytest.raises(DeadlineExceeded):
        hosting.load("one", str(tmp_path / "elsewhere"))
    server.loading.clear()
    server.unloaded.add("one")  # it failed
    server.loading_s = 0
    hosting.load("one", str(tmp_path / "elsewhere"))
    assert hosting.is_loaded("one")


LOADER = """
import sys, time
from pathlib import Path
from dispatcher.model_control.load_unload import Hosting
from tests.support.fake_triton import FakeTriton

class Slow(FakeTriton):
    def load(self, model, *, timeout):
        print("loading", flush=True)
        time.sleep(60)

folder = Path(sys.argv[1])
Hosting(Slow(), folder / "repository", (), str, 10, folder / "wanted").load(
    "one", str(folder / "elsewhere"))
"""


@pytest.mark.parametrize("again", ["load", "unload"])
def test_a_model_whose_loader_was_killed(hosting: Hosting, tmp_path: Path, again: str) -> None:
    """As a web worker is by a system that is short of memory; nobody else sees to the model."""
    url = str(tmp_path / "elsewhere")
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
        assert wanted(hosting) == ["one"]
    else:
        hosting.unload("one")
        assert not (hosting.repository / "one").exists()


def test_who_unloads_a_model_leaves_alone_what_another_one_has_put_into_its_place(
    hosting: Hosting, server: FakeTriton, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, waits, locked = (
        str(tmp_path / "elsewhere"),
        Event(),
        dispatcher.model_control.load_unload.locked,
    )

    def seen(file: IO[str]) -> bool:
        is_locked = locked(file)
        if not is_locked:
            waits.set()
        return is_locked

    hosting.load("one", url)
    monkeypatch.setattr("dispatcher.model_control.load_unload.locked", seen)
    with ThreadPoolExecutor() as pool:
        with hosting.held("one") as is_held:
            assert is_held
            late = pool.submit(hosting.unload, "one")
            assert waits.wait(20)
            hosting.remove("one")
            hosting.load("one", url)
        with pytest.raises(UnknownModel, match="just been unloaded"):
            late.result()
    assert hosting.is_loaded("one")
    assert (hosting.repository / "one" / "1" / "model.onnx").exists()


def test_who_waits_for_another_one_to_unload_a_model_does_not_wait_for_ever(
    hosting: Hosting, tmp_path: Path
) -> None:
    hosting.unload_timeout = 0.2
    hosting.load("one", str(tmp_path / "elsewhere"))
    with hosting.held("one"), pytest.raises(DeadlineExceeded, match="another caller"):
        hosting.unload("one")
    assert hosting.is_loaded("one")
    assert wanted(hosting) == ["one"]


@pytest.mark.parametrize("name", ["README.md", "around"])
def test_what_is_no_folder_in_the_repository_is_no_model(
    hosting: Hosting, tmp_path: Path, name: str
) -> None:
    (hosting.repository / "README.md").touch()
    (hosting.repository / "around").symlink_to("around")
    with pytest.raises(UnknownModel):
        hosting.unload(name)
    with pytest.raises(BadModel, match="of its own"):
        hosting.load(name, str(tmp_path / "elsewhere"))


def test_a_folder_is_in_the_repository_whole_or_not_at_all(
    hosting: Hosting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever is there at the same time is told of a model from elsewhere, and Triton of none."""
    url, seen, link, rmtree = str(tmp_path / "elsewhere"), list[bool](), hosting.link, shutil.rmtree

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


def test_a_model_that_goes_meanwhile_is_not_called_the_repository_s_own(
    hosting: Hosting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosting.load("one", str(tmp_path / "elsewhere"))
    with monkeypatch.context() as patch:
        patch.setattr(hosting, "is_loaded", hosting.remove)
        with pytest.raises(AlreadyLoaded):
            hosting.load("one", str(tmp_path / "elsewhere"))
    (hosting.repository / "own").mkdir()
    with pytest.raises(BadModel, match="of its own"):
        hosting.load("own", str(tmp_path / "elsewhere"))


def test_no_name_is_too_long_to_be_unknown(hosting: Hosting) -> None:
    with pytest.raises(UnknownModel):
        hosting.unload("x" * 300)


def test_no_name_leads_to_a_folder_elsewhere(hosting: Hosting, tmp_path: Path) -> None:
    (tmp_path / "elsewhere" / "model.url").touch()
    assert not hosting.was_lost("../elsewhere")
    assert (tmp_path / "elsewhere").exists()


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


def test_one_that_is_there_by_the_second_look_is_left_alone(
    hosting: Hosting, server: FakeTriton, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another caller was told meanwhile that it is loaded."""
    hosting.load("one", str(tmp_path / "elsewhere"))
    for act in (hosting.unload, lambda name: hosting.load(name, str(tmp_path / "elsewhere"))):
        looks = iter([["LOADING"], ["READY"], ["READY"]])
        monkeypatch.setattr(hosting, "states", lambda name, looks=looks: next(looks))
        with pytest.raises((UnknownModel, AlreadyLoaded)):
            act("one")
        assert wanted(hosting) == ["one"]
        assert (hosting.repository / "one" / "1" / "model.onnx").exists()


def test_what_says_how_a_model_is_asked_is_that_of_the_load(
    hosting: Hosting, tmp_path: Path
) -> None:
    """Else a web worker that starts later would serve another one than those beside it."""
    file = tmp_path / "elsewhere" / "dispatch.toml"
    file.write_text('aliases = ["two"]')
    hosting.load("one", str(tmp_path / "elsewhere"))
    file.write_text('aliases = ["three"]')
    assert (hosting.repository / "one" / file.name).read_text() == 'aliases = ["two"]'
    file.unlink()
    assert (hosting.repository / "one" / file.name).read_text() == 'aliases = ["two"]'


def test_what_says_how_a_model_is_asked_has_a_limit(hosting: Hosting, tmp_path: Path) -> None:
    with (tmp_path / "elsewhere" / "dispatch.toml").open("w") as file:
        file.truncate(2**20 + 1)
    with pytest.raises(BadModel, match=r"dispatch\.toml has more than 1 MiB"):
        hosting.load("one", str(tmp_path / "elsewhere"))
    assert not (hosting.repository / "one").exists()


def test_a_configuration_that_is_not_utf_8(hosting: Hosting, tmp_path: Path) -> None:
    (tmp_path / "elsewhere" / "config.pbtxt").write_bytes(b'name: "\xff\xfe"')
    with pytest.raises(BadModel, match="is not UTF-8"):
        hosting.load("one", str(tmp_path / "elsewhere"))
    assert not (hosting.repository / "one").exists()


@pytest.mark.parametrize("coding", ["utf-8", "utf-8-sig", "utf-16"])
def test_a_configuration_as_editors_of_windows_save_it(
    hosting: Hosting, tmp_path: Path, coding: str
) -> None:
    hosting.renamed_config = renamed_config
    text = 'backend: "python"\r\nmax_batch_size: 8\r\n'
    (tmp_path / "elsewhere" / "config.pbtxt").write_bytes(text.encode(coding))
    hosting.load("one", str(tmp_path / "elsewhere"))
    written = (hosting.repository / "one" / "config.pbtxt").read_bytes().decode("ascii")
    assert sorted(written.splitlines()) == ['backend: "python"', "max_batch_size: 8", 'name: "one"']


def test_what_systems_leave_beside_the_only_folder_is_passed_over(
    hosting: Hosting, tmp_path: Path
) -> None:
    """As in what macOS packs, also where the second folder looks like a model itself."""
    folder = tmp_path / "elsewhere"
    (folder / "net").mkdir()
    (folder / "model.onnx").rename(folder / "net" / "model.onnx")
    (folder / "__MACOSX" / "1").mkdir(parents=True)
    for name in ("._net", ".DS_Store", "Thumbs.db", "__MACOSX/._net", "__MACOSX/1/._model.onnx"):
        (folder / name).write_bytes(b"\0\5\x16\7")
    hosting.load("one", str(folder))
    assert (hosting.repository / "one" / "1").resolve() == folder / "net"


@pytest.mark.parametrize(
    ("text", "renamed"),
    [
        ("max_batch_size: 0\n", 'name: "one"\nmax_batch_size: 0\n'),
        ('name: "two", max_batch_size: 0', 'name: "one", max_batch_size: 0'),
        ("# a note\nname: 'two'; backend: \"python\"", '# a note\nname: "one"; backend: "python"'),
        ('input { name: "x" }', 'name: "one"\ninput { name: "x" }'),
        ("", 'name: "one"\n'),
    ],
)
def test_a_configuration_is_renamed_and_nothing_else(text: str, renamed: str) -> None:
    """A message of protobuf loses a `max_batch_size: 0`, which keeps requests apart."""
    assert renamed_config(text, "one") == renamed


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("dynamic_batching { }\nsequence_batching { }", "dynamic_batching"),
        ("max_batch_size: 99999999999", "99999999999"),
    ],
)
def test_a_configuration_that_is_none(
    hosting: Hosting, tmp_path: Path, text: str, words: str
) -> None:
    hosting.renamed_config = renamed_config
    (tmp_path / "elsewhere" / "config.pbtxt").write_text(text, encoding="utf-8")
    with pytest.raises(BadModel, match=f"elsewhere cannot be loaded: .*{words}"):
        hosting.load("one", str(tmp_path / "elsewhere"))
    assert not (hosting.repository / "one").exists()


@pytest.mark.parametrize(
    ("hidden", "mode", "message"),
    [
        ("inner", 0o000, "inner.*: Permission denied"),
        ("inner", 0o444, "inner.*: Permission denied"),
        (".", 0o444, "`url` is"),
        ("config.pbtxt", 0o000, "config.pbtxt: Permission denied"),
    ],
)
def test_what_may_not_be_read_is_named(
    server: FakeTriton, hidden: str, mode: int, message: str
) -> None:
    with TemporaryDirectory() as name:  # one that others may enter, unlike pytest's
        folder = Path(name)
        folder.chmod(0o777)
        (folder / "repository").mkdir()
        (folder / "repository").chmod(0o777)
        model = folder / "elsewhere"
        (model / "inner" / "1").mkdir(parents=True)
        if hidden != "inner":
            (model / "model.onnx").touch()
            (model / "config.pbtxt").touch()
        (model / hidden).chmod(mode)
        hosting = Hosting(server, folder / "repository", (), lambda text, _: text, 10)
        with somebody_else(), pytest.raises(BadModel, match=message):
            hosting.load("one", str(model))
        assert list((folder / "repository").iterdir()) == []
        assert sorted(path.name for path in folder.iterdir()) == ["elsewhere", "repository"]


@contextmanager
def somebody_else() -> Iterator[None]:
    """Be who may read no more than others may, where this is root."""
    if os.geteuid():
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_a_file_in_the_place_of_a_version_s_folder_is_named(
    hosting: Hosting, tmp_path: Path
) -> None:
    (tmp_path / "elsewhere" / "1").touch()
    with pytest.raises(BadModel, match=r"elsewhere/1: File exists") as raised:
        hosting.load("one", str(tmp_path / "elsewhere"))
    assert "1/model.onnx" in raised.value.hint


def test_a_full_disk_is_no_bad_model(
    hosting: Hosting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write_text(path: Path, text: str) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", write_text)
        with pytest.raises(OutOfMemory, match="RUN_DIR: No space left on device"):
            hosting.load("one", str(tmp_path / "elsewhere"))
    hosting.load("one", str(tmp_path / "elsewhere"))


def test_a_link_to_itself(hosting: Hosting, tmp_path: Path) -> None:
    hosting.roots = (tmp_path,)
    (tmp_path / "elsewhere" / "self").symlink_to("self")
    with pytest.raises(BadModel, match="cannot be followed"):
        hosting.load("one", str(tmp_path / "elsewhere"))


@pytest.mark.parametrize("again", ["load", "unload"])
def test_a_model_that_is_still_being_unloaded_is_nobody_s_until_it_is_gone(
    hosting: Hosting, server: FakeTriton, tmp_path: Path, again: str
) -> None:
    """As one that owes an answer may be until Triton is started anew."""
    url = str(tmp_path / "elsewhere")
    hosting.load("one", url)
    server.unloading.add("one")
    for _ in range(2):
        with pytest.raises(DeadlineExceeded):
            hosting.unload("one")
        with pytest.raises(AlreadyLoaded, match="being loaded, or unloaded"):
            hosting.load("one", url)
        assert (hosting.repository / "one").exists()
        assert wanted(hosting) == []
    server.unloading.clear()
    server.unloaded.add("one")  # it is gone
    if again == "load":
        hosting.load("one", url)
        assert wanted(hosting) == ["one"]
    hosting.unload("one")
    assert not (hosting.repository / "one").exists()


def test_a_model_that_was_never_begun_to_be_unloaded_is_loaded_again_by_a_new_triton(
    hosting: Hosting, server: FakeTriton, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where Triton was silent just then: it has the model still, as ready."""

    def silent(name: str, *, timeout: float) -> None:
        raise DeadlineExceeded("no answer")

    hosting.load("one", str(tmp_path / "elsewhere"))
    monkeypatch.setattr(server, "unload", silent)
    with pytest.raises(DeadlineExceeded):
        hosting.unload("one")
    assert wanted(hosting) == ["one"]


@pytest.mark.parametrize("fault", [DeadlineExceeded("still in use"), ModelUnavailable("away")])
def test_a_model_that_is_unloaded_late_can_be_loaded_and_unloaded_again(
    hosting: Hosting,
    server: FakeTriton,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fault: InferenceError,
) -> None:
    def late(name: str, *, timeout: float) -> None:
        server.unloaded.add(name)
        raise fault

    for again in (hosting.unload, lambda name: hosting.load(name, str(tmp_path / "elsewhere"))):
        hosting.load("one", str(tmp_path / "elsewhere"))
        with monkeypatch.context() as patch:
            patch.setattr(server, "unload", late)
            with pytest.raises(type(fault)):
                hosting.unload("one")
        again("one")
    assert hosting.is_loaded("one")


def test_a_model_for_which_shared_memory_has_no_room_is_not_a_bad_one(
    hosting: Hosting, server: FakeTriton, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(name: str, *, timeout: float) -> None:
        raise TooLargeAtOnce("Error: No space left on device")

    monkeypatch.setattr(server, "load", load)
    with pytest.raises(OutOfMemory, match="No space left") as raised:
        hosting.load("one", str(tmp_path / "elsewhere"))
    assert "unload another model" in raised.value.hint
    assert not hosting.is_loaded("one")


@pytest.mark.parametrize("fault", DEADLY, ids=lambda fault: fault.name)
def test_a_model_of_which_triton_would_die_is_not_loaded(
    hosting: Hosting, server: FakeTriton, tmp_path: Path, fault: Mistake
) -> None:
    """Neither from elsewhere nor from the repository, where it was changed meanwhile."""
    if fault.name != "config_folder":  # of a model from elsewhere that is not read
        with pytest.raises(BadModel, match="over which Triton ends"):
            hosting.load("one", str(write_mistake(tmp_path / "far", fault)))
    assert not (hosting.repository / "one").exists()
    write_mistake(hosting.repository, fault)
    with pytest.raises(BadModel, match="over which Triton ends"):
        hosting.load_own(fault.name)
    assert not hosting.is_loaded(fault.name)
    assert wanted(hosting) == []


@pytest.mark.parametrize("name", ["late", "a+b", "_x", "v1.2", "7"])
def test_a_folder_that_was_added_after_the_start_is_found_and_loaded(
    hosting: Hosting, tmp_path: Path, name: str
) -> None:
    """By two callers too; what comes from elsewhere may have such a name as well."""
    add(hosting, model_at(tmp_path / "models" / name))
    hosting.load_own(name)
    hosting.load_own(name)
    assert hosting.is_loaded(name)
    assert wanted(hosting) == [name]
    assert (hosting.repository / name / "1" / "model.onnx").read_bytes() == b"x"
    hosting.unload(name)
    assert (hosting.repository / name).exists(), "it is the repository's own"
    hosting.load(f"{name}2", str(tmp_path / "elsewhere"))
    assert hosting.is_loaded(f"{name}2")


def test_a_plain_model_file_that_was_added_is_linked_as_at_the_start(
    hosting: Hosting, tmp_path: Path
) -> None:
    (tmp_path / "elsewhere" / "labels.txt").write_text("a")
    add(hosting, tmp_path / "elsewhere")
    hosting.load_own("elsewhere")
    place = hosting.repository / "elsewhere"
    assert (place / "1" / "model.onnx").exists()
    assert (place / "labels.txt").read_text() == "a"


def test_one_that_another_worker_has_taken_in_meanwhile_is_loaded(
    hosting: Hosting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(hosting, tmp_path / "elsewhere")
    link = dispatcher.model_control.load_unload.link

    def late(folder: Path, place: Path) -> None:
        link(folder, place)
        link(folder, hosting.repository / "elsewhere")

    monkeypatch.setattr("dispatcher.model_control.load_unload.link", late)
    assert not hosting.take_in("elsewhere")
    assert [path.name for path in hosting.repository.iterdir()] == ["elsewhere"]
    assert not list(tmp_path.glob("aside*"))


@pytest.mark.parametrize("name", ["..", ".", "", "../elsewhere", "a/b", "nosuch", "x" * 5000])
def test_what_is_no_model_of_the_repository_is_not_found(
    hosting: Hosting, tmp_path: Path, name: str
) -> None:
    model_at(hosting.repository / "there")
    add(hosting, model_at(tmp_path / "models" / "late"))
    with pytest.raises(UnknownModel) as caught:
        hosting.load_own(name)
    assert caught.value.hint == "it has late, there"


def test_a_folder_that_was_removed_meanwhile_is_not_found_until_it_is_back(
    hosting: Hosting, tmp_path: Path
) -> None:
    """Wherever it is back: a folder of that name may come in MODEL_DIR."""
    folder = model_at(tmp_path / "models" / "late")
    add(hosting, folder)
    hosting.load_own("late")
    hosting.folders = dict
    shutil.rmtree(folder)
    with pytest.raises(UnknownModel):
        hosting.load_own("late")
    (hosting.repository / "late").unlink()
    (hosting.repository / "late").mkdir()  # as the prober does
    with pytest.raises(UnknownModel):
        hosting.load_own("late")
    add(hosting, model_at(tmp_path / "mounted" / "late"))
    hosting.load_own("late")
    assert (hosting.repository / "late").resolve() == tmp_path / "mounted" / "late"


@pytest.mark.parametrize("before", [b"\xef\xbb\xbfmax_batch_size: 0\n", None])
def test_a_configuration_that_was_edited_counts_at_the_next_load(
    hosting: Hosting, tmp_path: Path, before: bytes | None
) -> None:
    """Though Triton was given a copy of it, or there was none: a 0 that is written is obeyed."""
    folder = model_at(tmp_path / "models" / "late")
    if before is None:
        shutil.move(folder / "1" / "model.onnx", folder / "model.onnx")
        (folder / "1").rmdir()
        (folder / "config.pbtxt").unlink()
    else:
        (folder / "config.pbtxt").write_bytes(before)
    add(hosting, folder)
    hosting.load_own("late")
    place = hosting.repository / "late"
    for text in ("max_batch_size: 8\n", "max_batch_size: 0\n", "\ufeffmax_batch_size: 3\n"):
        (folder / "config.pbtxt").write_text(text, encoding="utf-8")
        hosting.load_own("late")
        assert (place / "config.pbtxt").read_text() == text.removeprefix("\ufeff")
        assert (place / "1" / "model.onnx").exists()
    (folder / "config.pbtxt").write_text("instance_group { passive: true }")
    with pytest.raises(BadModel, match="over which Triton ends"):
        hosting.load_own("late")
    (folder / "config.pbtxt").unlink()
    hosting.load_own("late")
    assert not (place / "config.pbtxt").exists()
    assert not list(tmp_path.glob("aside*"))


def test_what_is_added_to_a_folder_without_versions_is_found(
    hosting: Hosting, tmp_path: Path
) -> None:
    add(hosting, tmp_path / "elsewhere")
    hosting.load_own("elsewhere")
    (tmp_path / "elsewhere" / "dispatch.toml").write_text('aliases = ["two"]')
    (tmp_path / "elsewhere" / "labels.txt").write_text("a")
    place = hosting.repository / "elsewhere"
    assert not (place / "dispatch.toml").exists()
    hosting.refresh()
    assert (place / "dispatch.toml").read_text() == 'aliases = ["two"]'
    assert (place / "labels.txt").read_text() == "a"
    (tmp_path / "elsewhere" / "dispatch.toml").unlink()
    hosting.load_own("elsewhere")
    assert not os.path.lexists(place / "dispatch.toml")


def test_a_model_that_lies_in_the_repository_itself_is_never_linked_over(
    hosting: Hosting, tmp_path: Path
) -> None:
    model_at(hosting.repository / "late")
    (hosting.repository / "late" / "own.txt").touch()
    add(hosting, model_at(tmp_path / "models" / "late"))
    hosting.load_own("late")
    hosting.refresh()
    assert (hosting.repository / "late" / "own.txt").exists()


@pytest.mark.parametrize("change", ["edited", "added", "removed"])
def test_a_model_from_elsewhere_is_not_loaded_with_a_configuration_of_before(
    hosting: Hosting, tmp_path: Path, change: str
) -> None:
    hosting.renamed_config = renamed_config
    config = tmp_path / "elsewhere" / "config.pbtxt"
    if change != "added":
        config.write_text("max_batch_size: 8")
    hosting.load("one", str(tmp_path / "elsewhere"))
    hosting.load_own("one")
    if change == "removed":
        config.unlink()
    else:
        config.write_text("max_batch_size: 0")
    with pytest.raises(BadModel, match=r"config\.pbtxt has changed since POST /models") as caught:
        hosting.load_own("one")
    assert caught.value.hint == "DELETE /models/one, then POST /models again"
    hosting.unload("one")
    hosting.load("one", str(tmp_path / "elsewhere"))
    hosting.load_own("one")
    place = hosting.repository / "one" / "config.pbtxt"
    assert place.exists() is (change != "removed")
    assert change == "removed" or "max_batch_size: 0" in place.read_text()


def test_a_copy_of_a_folder_that_has_the_name_of_the_first_is_told_so(
    hosting: Hosting, tmp_path: Path
) -> None:
    hosting.renamed_config = renamed_config
    folder = model_at(tmp_path / "models" / "copy")
    (folder / "config.pbtxt").write_text('backend: "python"\nname: "double"\n')
    add(hosting, folder)
    with pytest.raises(BadModel) as caught:
        hosting.load_own("copy")
    assert caught.value.message == (
        "the model 'copy' cannot be loaded: "
        'config.pbtxt:2: `name` is "double", but the folder is "copy"'
    )
    assert caught.value.hint == 'write name: "copy", or leave the line out'
    (folder / "config.pbtxt").write_text('backend: "python"\nname: "copy"\n')
    hosting.load_own("copy")
    (folder / "config.pbtxt").write_text('backend: "python"\n')
    hosting.load_own("copy")


def test_which_aliases_are_free_is_asked_by_one_at_a_time(hosting: Hosting, tmp_path: Path) -> None:
    """Until the model is in the repository, where the next one sees it."""

    def may_have(alias: str) -> bool:
        repository = os.open(hosting.repository, os.O_RDONLY)
        try:
            with pytest.raises(BlockingIOError):
                fcntl.flock(repository, fcntl.LOCK_EX | fcntl.LOCK_NB)
        finally:
            os.close(repository)
        return alias not in hosting.aliases()

    (tmp_path / "elsewhere" / "dispatch.toml").write_text('aliases = ["lal"]')
    hosting.load("one", str(tmp_path / "elsewhere"), may_have=may_have)
    assert hosting.aliases() == {"lal"}
    hosting.load("two", str(tmp_path / "elsewhere"), may_have=may_have)
    assert [hosting.own_name("lal"), aliases(hosting.repository / "two")] == ["one", ()]


def test_an_added_folder_that_cannot_be_loaded_leaves_nothing_until_it_is_mended(
    hosting: Hosting, server: FakeTriton, tmp_path: Path
) -> None:
    folder = model_at(tmp_path / "models" / "late")
    add(hosting, folder)
    server.refuse_to_load = "no ONNX file"
    with pytest.raises(BadModel, match="no ONNX file"):
        hosting.load_own("late")
    assert list(hosting.repository.iterdir()) == []
    server.refuse_to_load = ""
    hosting.renamed_config = renamed_config
    (folder / "config.pbtxt").write_text("max_batchsize: 8")
    with pytest.raises(BadModel, match=r"'late' cannot be loaded: .*max_batchsize"):
        hosting.load_own("late")
    assert list(hosting.repository.iterdir()) == []
    (folder / "config.pbtxt").write_text("max_batch_size: 8")
    hosting.load_own("late")


def test_an_added_folder_that_triton_must_not_see_is_not_linked(
    hosting: Hosting, tmp_path: Path
) -> None:
    fatal = write_mistake(tmp_path / "models", DEADLY[0])
    for folder in (fatal, model_at(tmp_path / "models" / "a b")):
        add(hosting, folder)
        with pytest.raises(BadModel, match="is not served"):
            hosting.load_own(folder.name)
    assert list(hosting.repository.iterdir()) == []


def test_a_model_is_found_by_an_alias_in_its_file(hosting: Hosting, tmp_path: Path) -> None:
    """Also one that nobody has read yet; not by one that was left to another."""
    model_at(hosting.repository / "first", 'aliases = ["one"]')
    add(hosting, model_at(tmp_path / "models" / "second", 'aliases = ["two", "b+c"]'))
    assert [hosting.own_name(alias) for alias in ("one", "two", "b+c")] == [
        "first",
        "second",
        "second",
    ]
    model_at(tmp_path / "third", 'aliases = ["three"]')
    hosting.load("third", str(tmp_path / "third"), may_have=lambda _: False)
    with pytest.raises(UnknownModel):
        hosting.own_name("three")


@pytest.mark.parametrize("left", ["a link", "an empty folder", "a folder of links"])
def test_the_name_of_a_folder_that_was_deleted_is_free(
    hosting: Hosting, tmp_path: Path, left: str
) -> None:
    """What would be said of it otherwise, to load what the repository has, is of no use."""
    place = hosting.repository / "gone"
    if left == "a link":
        place.symlink_to(tmp_path / "nothing")
    else:
        place.mkdir()
        (tmp_path / "aside").mkdir()
        links = place / "1" if left == "a folder of links" else tmp_path / "aside" / "gone"
        links.symlink_to(tmp_path / "nothing")
    hosting.load("gone", str(tmp_path / "elsewhere"))
    assert hosting.is_loaded("gone")
    assert (place / "1" / "model.onnx").exists()
