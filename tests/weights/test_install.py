"""Nothing half-written, whatever happens in between."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from weights import install

from .conftest import MADE, Bench


def interrupted(*_arguments: object) -> bytes:
    raise KeyboardInterrupt


def no_space(_descriptor: int) -> None:
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize("had_one", [False, True])
def test_an_interruption_and_a_full_disk_leave_what_was_there(
    bench: Bench,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    *,
    had_one: bool,
) -> None:
    if had_one:
        bench.run("one")
    before = bench.files("one")
    monkeypatch.setattr(os, "fsync", interrupted)  # while writing
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            bench.run("one", "--force")
        assert bench.files("one") == before
        assert not had_one or bench.model("one").read_bytes() == MADE
        bench.convert = interrupted  # while converting
    bench.convert = None
    monkeypatch.setattr(os, "fsync", no_space)
    assert bench.run("one", "--force") == 1
    assert bench.files("one") == before
    assert "No space left on device" in capsys.readouterr().err


def test_a_run_that_ends_between_record_and_model_is_repaired_by_the_next(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace: Callable[[Path, Path], Path] = Path.replace

    def stop_before_the_model(path: Path, target: Path) -> Path:
        if target.name == install.MODEL:
            raise KeyboardInterrupt
        return replace(path, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", stop_before_the_model)
        with pytest.raises(KeyboardInterrupt):
            bench.run("one")
    assert bench.files("one") == [install.RECORD]
    assert bench.run("one") == 0
    assert bench.model("one").read_bytes() == MADE


def test_others_can_read_it_and_with_a_damaged_record_it_is_the_users_own(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    bench.run("one")
    mask = os.umask(0)
    os.umask(mask)  # Triton may run under another user than the one who made the weights
    assert bench.model("one").stat().st_mode & 0o777 == 0o666 & ~mask
    (bench.repository / "one" / install.RECORD).write_text("{")
    assert bench.run("one") == 0
    assert "kept" in capsys.readouterr().out
