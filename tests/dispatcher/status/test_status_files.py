"""The status files: what one process publishes, and others read."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from container.supervisor.supervisor import LONGEST_REASON
from dispatcher.status.status import SupervisorStatus
from dispatcher.status.status_file import SIZE, StatusReader, StatusWriter
from tests.conftest import PATIENCE_S


def parse(fields: dict[str, object]) -> SupervisorStatus:
    return SupervisorStatus(**fields)  # type: ignore[arg-type]


def test_a_status_is_read_as_it_was_published(tmp_path: Path) -> None:
    path = tmp_path / "supervisor.json"
    read = StatusReader(path, parse, SupervisorStatus(), fresh=0)
    assert read() == SupervisorStatus(), "none yet"
    programs = {"Triton": {"state": "ending", "starts": 2, "reason": "x"}}
    StatusWriter(path).write({"stopping": True, "programs": programs})
    assert read().stopping
    assert read().triton_fault == "Triton is being restarted: x"
    assert read().restarts() == {"Triton": 1}


def test_a_thread_waits_for_the_one_that_reads(tmp_path: Path) -> None:
    """The first requests after a long silence come together."""
    begun, go_on = threading.Event(), threading.Event()

    def parse_slowly(fields: dict[str, object]) -> SupervisorStatus:
        begun.set()
        assert go_on.wait(PATIENCE_S)
        return parse(fields)

    path = tmp_path / "supervisor.json"
    read = StatusReader(path, parse_slowly, SupervisorStatus(), fresh=60)
    StatusWriter(path).write({"stopping": True})
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(read)
        assert begun.wait(PATIENCE_S)
        second = threads.submit(read)
        with pytest.raises(TimeoutError):
            second.result(0.1)
        go_on.set()
        assert first.result(PATIENCE_S).stopping
        assert second.result(PATIENCE_S).stopping


@pytest.mark.parametrize("written", [b'{"stopp', b"", b"no checksum", b"00000000{}"])
def test_what_was_known_before_a_half_written_document_still_holds(
    tmp_path: Path, written: bytes
) -> None:
    """Also where it happens to be JSON: the first page may be new and the next one old."""
    path = tmp_path / "supervisor.json"
    read = StatusReader(path, parse, SupervisorStatus(), fresh=0)
    StatusWriter(path).write({"stopping": True})
    assert read().stopping
    path.write_bytes(written)
    assert read().stopping
    StatusWriter(path).write({"stopping": False})
    assert not read().stopping


@pytest.mark.parametrize("character", ["x", "\x00", "é", "😀"])
def test_a_long_reason_leaves_no_tail_behind(tmp_path: Path, character: str) -> None:
    path = tmp_path / "supervisor.json"
    publish = StatusWriter(path).write
    read = StatusReader(path, parse, SupervisorStatus(), fresh=0)
    reason = (character * 300)[:LONGEST_REASON]
    one = {"state": "waiting", "starts": 2, "reason": reason}
    for programs in ({"Triton": one, "gunicorn": one, "NGINX": one}, {"Triton": one}, {}):
        publish({"stopping": True, "programs": programs})
        assert path.stat().st_size == SIZE
        assert read() == SupervisorStatus(stopping=True, programs=programs)
    publish({"stopping": True, "programs": {"Triton": {**one, "reason": "x" * 2 * SIZE}}})
    assert len(str(read().programs["Triton"]["reason"])) == 2 * SIZE
    publish({"stopping": False, "programs": {}})
    assert read() == SupervisorStatus()
    assert path.stat().st_size > 2 * SIZE, "a full disk could not give that back"
