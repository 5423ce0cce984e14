"""What the supervisor tells the web workers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from container.serving import Notice as Teller
from container.supervisor.supervisor import LONGEST_REASON
from dispatcher.readiness.supervisor_status import Notice, reader


def test_a_notice_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "supervisor.json"
    read = reader(path, fresh=0)
    assert read() == Notice(), "none yet"
    told = {
        "stopping": True,
        "programs": {"Triton": {"state": "ending", "starts": 2, "reason": "x"}},
    }
    path.write_text(json.dumps(told).ljust(4096))
    assert read().stopping
    assert read().triton_fault == "Triton is being restarted: x"
    assert read().restarts() == {"Triton": 1}
    path.write_text('{"stopp')
    assert read().stopping, "what was known before still holds"


@pytest.mark.parametrize("character", ["x", "\x00", "é", "😀"])
def test_a_long_reason_leaves_no_tail_behind(tmp_path: Path, character: str) -> None:
    path, said = tmp_path / "notice", list[str]()
    tell = Teller(path, said.append)
    reason = (character * 300)[:LONGEST_REASON]
    one = {"state": "waiting", "starts": 2, "reason": reason}
    for programs in ({"Triton": one, "gunicorn": one, "NGINX": one}, {"Triton": one}, {}):
        tell({"stopping": True, "programs": programs})
        assert path.stat().st_size == Teller.SIZE
        assert reader(path, fresh=0)() == Notice(stopping=True, programs=programs)
    tell({"stopping": True, "programs": {"Triton": {**one, "reason": "x" * 9000}}})
    tell({"stopping": False, "programs": {}})
    assert json.loads(path.read_bytes()) == {"stopping": False, "programs": {}}
    assert said == []
