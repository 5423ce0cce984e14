"""Models that are unloaded late, and models that Triton must not load."""

from __future__ import annotations

from pathlib import Path

import pytest

from clients.errors import DeadlineExceeded, InferenceError, ModelUnavailable, TooLargeAtOnce
from dispatcher.errors import AlreadyLoaded, BadModel, OutOfMemory
from tests.support.loading import Hosting
from tests.support.mistakes import DEADLY, Mistake, write_mistake


@pytest.mark.parametrize("again", ["load", "unload"])
def test_a_model_that_is_still_being_unloaded_is_nobody_s_until_it_is_gone(
    hosting: Hosting, again: str
) -> None:
    """As one that owes an answer may be until Triton is restarted."""
    url = hosting.url
    hosting.load("one", url)
    hosting.server.unloading.add("one")
    for _ in range(2):
        with pytest.raises(DeadlineExceeded):
            hosting.unload("one")
        with pytest.raises(AlreadyLoaded, match="being loaded, or unloaded"):
            hosting.load("one", url)
        assert (hosting.repository / "one").exists()
        assert hosting.listed() == []
    hosting.server.unloading.clear()
    hosting.server.unloaded.add("one")  # it is gone
    if again == "load":
        hosting.load("one", url)
        assert hosting.listed() == ["one"]
    hosting.unload("one")
    assert not (hosting.repository / "one").exists()


@pytest.mark.parametrize("fault", [DeadlineExceeded("still in use"), ModelUnavailable("away")])
@pytest.mark.parametrize("again", ["load", "unload", "a new Triton"])
def test_a_model_that_is_unloaded_late_can_be_loaded_and_unloaded_again(
    hosting: Hosting, monkeypatch: pytest.MonkeyPatch, fault: InferenceError, again: str
) -> None:
    """A Triton that was silent just then has it still, as ready; so a new one loads it again."""

    def late(name: str, *, timeout: float) -> None:
        if again != "a new Triton":
            hosting.server.unloaded.add(name)
        raise fault

    hosting.load("one", hosting.url)
    with monkeypatch.context() as patch:
        patch.setattr(hosting.server, "unload", late)
        with pytest.raises(type(fault)):
            hosting.unload("one")
    if again == "load":
        hosting.load("one", hosting.url)
    elif again == "unload":
        hosting.unload("one")
    assert hosting.is_loaded("one") == (again != "unload")
    assert hosting.listed() == ["one"] * (again != "unload")


def test_a_model_for_which_shared_memory_has_no_room_is_not_a_bad_one(
    hosting: Hosting, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(name: str, *, timeout: float) -> None:
        raise TooLargeAtOnce("Error: No space left on device")

    monkeypatch.setattr(hosting.server, "load", load)
    with pytest.raises(OutOfMemory, match="No space left") as raised:
        hosting.load("one", hosting.url)
    assert "unload another model" in raised.value.hint
    assert not hosting.is_loaded("one")


@pytest.mark.parametrize("fault", DEADLY, ids=lambda fault: fault.name)
def test_a_model_of_which_triton_would_die_is_not_loaded(
    hosting: Hosting, tmp_path: Path, fault: Mistake
) -> None:
    """Neither from elsewhere nor from the repository, where it was changed meanwhile."""
    if fault.name != "config_folder":  # of a model from elsewhere that is not read
        with pytest.raises(BadModel, match="and crashes Triton"):
            hosting.load("one", str(write_mistake(tmp_path / "far", fault)))
    assert not (hosting.repository / "one").exists()
    write_mistake(hosting.repository, fault)
    with pytest.raises(BadModel, match="and crashes Triton"):
        hosting.load_own(fault.name)
    assert not hosting.is_loaded(fault.name)
    assert hosting.listed() == []
