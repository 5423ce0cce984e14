"""Which files are taken for sources of clients."""

from __future__ import annotations

from pathlib import Path

import pytest

from clients.plugins import discovery


def test_of_the_project_s_own_folder_only_what_was_added_is_a_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not list(discovery.sources(tmp_path))
    for name in discovery.LIBRARY:
        (tmp_path / name).symlink_to(discovery.OWN_FOLDER / name)
    (tmp_path / "mine.py").touch()
    monkeypatch.setattr(discovery, "OWN_FOLDER", tmp_path)
    assert [one.where for one in discovery.sources(tmp_path)] == [str(tmp_path / "mine.py")]
