from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.clients.conftest import in_this_process
from tool.__main__ import main

__all__ = ["in_this_process"]  # the fixture
Write = Callable[..., str]


@pytest.fixture
def write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Write:
    """Write a model `new` into the folder `mine`; return what was printed."""
    monkeypatch.chdir(tmp_path)

    def run(source: Path, *options: str, code: int = 0) -> str:
        given = ["new-model", "new", "--from", str(source), "--into", "mine", *options]
        try:
            got = main(given)
        except SystemExit as end:  # of argparse
            got = int(end.code or 0)
        printed = capsys.readouterr()
        assert got == code, printed.err
        if code:
            assert printed.err.count("\n") == 1, printed.err
            assert not list(tmp_path.glob("mine/*"))
            assert not list(tmp_path.glob(".dispatcher-*"))
        return printed.err if code else printed.out

    return run
