"""The stream of all programs' lines."""

from __future__ import annotations

import fcntl
import json
import os
import re
import subprocess
import threading
from pathlib import Path

import pytest

from container.log import Log


def copied(written: dict[str, bytes], folder: Path, *, as_json: bool = False) -> list[str]:
    with (folder / "log").open("wb") as out, Log(out.fileno(), as_json=as_json) as log:
        for program, text in written.items():
            os.write(log.sink(program), text)
        log.say("started")
    return (folder / "log").read_text().splitlines()


def test_each_line_says_whose_it_is_and_json_stays_as_it_is(tmp_path: Path) -> None:
    lines = copied(
        {"triton": b"I1 up\n\nE2 down", "nginx": b'[warn] x\n{"status":413}\n'}, tmp_path
    )
    assert sorted(lines) == [
        "nginx: [warn] x",
        "serve: started",
        "triton: E2 down",
        "triton: I1 up",
        '{"status":413}',
    ]


def test_every_line_is_json_where_that_is_wanted(tmp_path: Path) -> None:
    lines = copied(
        {"triton": b'say "hi" \xff\n', "nginx": b'{"status":413}\n'}, tmp_path, as_json=True
    )
    found = [json.loads(line) for line in lines]
    assert {"status": 413} in found
    messages = {(one["program"], one["message"]) for one in found if "program" in one}
    assert messages == {("triton", 'say "hi" \ufffd'), ("serve", "started")}
    for one in found:
        if "time" in one:
            assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", one["time"])


@pytest.mark.parametrize("length", [4095, 4096, 4097, 20_000, 500_000])
def test_long_lines_and_pieces_come_whole(tmp_path: Path, length: int) -> None:
    with (tmp_path / "log").open("wb") as out, Log(out.fileno(), as_json=False) as log:
        sink = log.sink("gunicorn")
        for piece in (b"first\n", b"x" * length, b"\nlast\n"):
            with os.fdopen(os.dup(sink), "wb") as file:
                file.write(piece)
    text = (tmp_path / "log").read_text()
    assert text.startswith("gunicorn: first\ngunicorn: xxx")
    assert text.endswith("gunicorn: last\n")
    assert text.count("x") == length


def test_a_program_that_is_started_anew_writes_into_the_same_pipe(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as out, Log(out.fileno(), as_json=False) as log:
        sink = log.sink("triton")
        for number in range(3):
            subprocess.run(["echo", f"start {number}"], stdout=sink, check=True)
    lines = (tmp_path / "log").read_text().splitlines()
    assert lines == ["triton: start 0", "triton: start 1", "triton: start 2"]


def test_a_stuck_log_stops_nobody_and_loses_are_counted() -> None:
    source, out = os.pipe()
    fcntl.fcntl(out, fcntl.F_SETPIPE_SZ, 4096)
    wrote = threading.Event()
    sent = 50_000

    def program(sink: int) -> None:
        for number in range(sent):
            os.write(sink, b"line %d\n" % number)
        wrote.set()

    with Log(out, as_json=False) as log:
        sink = log.sink("triton")
        threading.Thread(target=program, args=(sink,), daemon=True).start()
        assert wrote.wait(20), "the program waits for a log that nobody reads"
        came: list[bytes] = []
        reader = threading.Thread(
            target=lambda: came.extend(iter(lambda: os.read(source, 65536), b""))
        )
        reader.start()
        os.write(sink, b"line last\n")
    os.close(out)
    reader.join()
    os.close(source)
    lines = b"".join(came).decode().splitlines()
    lost = sum(int(n) for line in lines for n in re.findall(r"serve: (\d+) lines of the log", line))
    kept = sum(bool(re.fullmatch(r"triton: line \w+", line)) for line in lines)
    assert lost > 0
    assert kept + lost == sent + 1


def test_a_reader_that_is_gone_is_no_reason_to_fail() -> None:
    source, out = os.pipe()
    os.close(source)
    with Log(out, as_json=False) as log:
        os.write(log.sink("triton"), b"line\n")
        log.say("line")
    os.close(out)
