"""Clients are taken up while others are answered; what does not work is not."""

from __future__ import annotations

import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from clients.triton.server import Signature, TensorSpec
from dispatcher.locks import alone
from dispatcher.models.sandbox import Tried
from dispatcher.settings import Settings
from dispatcher.status.prober import Prober
from dispatcher.status.status_file import News
from tests.support.probing import probed, triton
from tests.support.reloading import FINE, Worker, folder, write
from tests.support.stand_ins import assert_error

__all__ = ["folder"]


def test_a_reload_waits_for_others_only_so_long(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = Worker(folder)
    write(folder / "clients", "gone", "1")
    with alone(folder / "reload", "busy"), monkeypatch.context() as patch:
        patch.setattr(Settings, "managing_wait", 0.2)
        assert_error(worker.reload(), 504, "deadline_exceeded", "other reloads")
    assert worker.reload().status_code == 200
    assert worker.ask("gone") == 1


def test_what_is_new_changed_or_gone_is_taken_up(folder: Path) -> None:
    """Edits of the same size within a second count; what has not changed keeps its object."""
    worker = Worker(folder)
    kept = worker.registry.clients["kept"]
    assert worker.ask("mine") == "old"
    write(folder / "clients", "gone", "1")
    assert worker.reload().json == {"taken": ["gone"], "removed": [], **FINE}
    write(folder / "clients", "mine", "'new'")
    write(folder / "clients", "packed", "'whole'", "packed/__init__.py")
    (folder / "clients" / "gone.py").unlink()
    report = worker.reload().json
    assert report == {"taken": ["mine", "packed"], "removed": ["gone"], **FINE}
    assert [worker.ask(name) for name in ("mine", "packed")] == ["new", "whole"]
    assert worker.ask("gone") == "unknown_model"
    assert worker.registry.clients["kept"] is kept
    assert worker.renewed == 2
    assert worker.reload().json == {"taken": [], "removed": [], **FINE}
    assert worker.renewed == 2


def test_what_lacks_its_model_is_listed(folder: Path) -> None:
    worker = Worker(folder)
    init = (
        "    def __init__(self, environment):\n"
        "        super().__init__(environment)\n"
        "        (self.folder / 'labels.txt').read_text()\n"
    )
    write(folder / "clients", "lacking", "1", after=init)
    assert list(worker.reload().json["absent"]) == ["lacking"]


def test_every_worker_takes_up_what_one_was_asked_to_all_of_it_or_nothing(folder: Path) -> None:
    """Of a file with two classes, too; and a broken class leaves what was there."""
    first, second = Worker(folder), Worker(folder)
    write(folder / "clients", "gone", "1")
    assert first.reload().status_code == 200
    assert second.ask("gone") == 1
    write(folder / "clients", "mine", "'new'")
    mine = folder / "clients" / "mine.py"
    good = mine.read_text()
    write(folder / "clients", "bad", "1 / 0", mine.name)
    mine.write_text(good + mine.read_text())
    (folder / "clients" / "gone.py").unlink()
    response = first.reload()
    assert "'bad' fails on its own example" in response.json["error"]["message"]
    assert "nothing was taken up" in response.json["error"]["hint"]
    for worker in (first, second):
        assert [worker.ask(name) for name in ("mine", "bad", "gone")] == ["old", "unknown_model", 1]
    mine.write_text(mine.read_text().replace("1 / 0", "'mended'"))
    assert first.reload().json == {"taken": ["bad", "mine"], "removed": ["gone"], **FINE}
    for worker in (first, second, Worker(folder)):
        names = "mine", "bad", "gone"
        assert [worker.ask(name) for name in names] == ["new", "mended", "unknown_model"]


def test_a_line_that_a_full_disk_has_cut_hides_none_that_follows(folder: Path) -> None:
    first, second = Worker(folder), Worker(folder)
    write(folder / "clients", "mine", "'new'")
    (folder / "news").write_text('["/nowhe')
    assert first.reload().status_code == 200
    assert second.ask("mine") == "new"


def test_requests_wait_while_what_has_changed_is_taken_up(tmp_path: Path) -> None:
    """A request that comes after the change, meanwhile, would meet the old class."""
    news, ended = News(tmp_path / "news"), list[str]()
    other = threading.Thread(target=lambda: (news.follow(), ended.append("request")))

    def take_up(_: set[str]) -> None:
        other.start()
        other.join(0.2)
        ended.append("change")

    news.followers.append(take_up)
    news.add(["mine"])
    news.follow()
    other.join()
    assert ended == ["change", "request"]


def test_a_good_client_beside_a_broken_one_is_served_by_a_later_worker_too(folder: Path) -> None:
    mine = folder / "clients" / "mine.py"
    mine.write_text(mine.read_text() + "\nclass Broken(Client):\n    modelname = 'broken'\n")
    first = Worker(folder)
    assert (first.ask("mine"), first.ask("broken")) == ("old", "client_disabled")
    response = first.reload()
    assert response.status_code == 200, "it was not this reload that broke it"
    (reason,) = response.json["broken"].values()
    assert "it has no example" in reason or "lacks the method" in reason
    for worker in (first, Worker(folder)):
        assert (worker.ask("mine"), worker.ask("broken")) == ("old", "client_disabled")


def test_a_name_of_another_client_is_refused(folder: Path) -> None:
    worker = Worker(folder)
    write(folder / "clients", "kept", "'stolen'", "a.py")
    response = worker.reload()
    assert "the name 'kept' belongs to the client in " in response.json["error"]["message"]
    assert worker.ask("kept") == "kept"


def test_an_installed_package_that_has_changed_needs_a_restart(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = folder / "site"
    write(site, "ears", "'old'")

    def version(number: str) -> None:
        info = site / f"ears-{number}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: ears\nVersion: {number}\n")
        (info / "entry_points.txt").write_text("[triton_dispatcher.clients]\nears = ears\n")

    version("1.0")
    monkeypatch.syspath_prepend(str(site))
    worker = Worker(folder)
    assert worker.ask("ears") == "old"
    (site / "ears-1.0.dist-info").rename(folder / "was")
    version("2.0")
    write(site, "ears", "'new'")
    response = worker.reload()
    assert "an installed package needs a restart" in response.json["error"]["message"]
    assert worker.ask("ears") == "old"
    del sys.modules["ears"]


def ask_plain(worker: Worker) -> Any:
    tensor = {"name": "x", "shape": [1], "datatype": "FP32", "data": [3]}
    answer = worker.client().post("/infer/plain", json={"inputs": [tensor]}).json
    return answer.get("outputs", [{}])[0].get("data") or answer["error"]["code"]


def serve_plain(*workers: Worker) -> None:
    for worker in workers:
        spec = TensorSpec("x", "FP32", (-1,))
        worker.server.signatures["plain"] = Signature(0, (spec,), (replace(spec, name="y"),))
        worker.server.models_run["plain"] = lambda inputs: {"y": 2 * inputs["x"]}


@pytest.mark.parametrize("how", ["a file", "a class"])
def test_a_model_without_a_client_keeps_being_served_when_one_is_refused(
    folder: Path, how: str
) -> None:
    """Until a client for it is right, or the workers start again."""
    first, second = Worker(folder), Worker(folder)
    (folder / "plain").mkdir()
    for right in (False, True):
        if how == "a file":
            family = "tensors" if right else "tensor"
            (folder / "plain" / "dispatch.toml").write_text(f'family = "{family}"')
        else:
            write(folder / "clients", "plain", "[7]" if right else "1 / 0")
        if right:  # as Triton would have it, which is not there
            first.reloader.trial = lambda found, *_: {s.where: Tried() for s in found}
        response = first.reload()
        assert response.status_code == (200 if right else 400)
        serve_plain(first, second)
        if not right:
            assert [ask_plain(one) for one in (first, second)] == [[6.0]] * 2
            prober = Prober(("plain",), first.registry, first.server, 8, 8, triton)
            assert probed(prober).reasons() == []
    assert first.registry.broken == {}
    assert "plain" in first.registry.clients


def test_what_lies_beside_a_class_is_taken_up_with_it(folder: Path) -> None:
    """What imports it, and what that imports; `other.py` is imported by nobody."""
    for name, file in (("mine", "mine.py"), ("packed", "packed/__init__.py")):
        write(folder / "clients", name, "WORD", file, after="\nfrom shared import WORD\n")
    (folder / "clients" / "shared.py").write_text("from words import WORD")
    (folder / "clients" / "words.py").write_text("WORD = 'one'")
    (folder / "clients" / "other.py").write_text("WORD = 'one'")
    worker = Worker(folder)
    assert [worker.ask(name) for name in ("mine", "packed")] == ["one", "one"]
    (folder / "clients" / "other.py").write_text("WORD = 'two'")
    assert worker.reload().json["taken"] == []
    (folder / "clients" / "words.py").write_text("WORD = 'two'")
    assert worker.reload().json["taken"] == ["mine", "packed"]
    assert [worker.ask(name) for name in ("mine", "packed")] == ["two", "two"]
