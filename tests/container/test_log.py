"""The stream of all programs' lines."""

from __future__ import annotations

import fcntl
import json
import os
import re
import threading
from pathlib import Path

import pytest

from container.supervisor.log import ERROR, Log
from dispatcher.log_lines import text_lines
from tests.conftest import PATIENCE_S


def copied(written: dict[str, bytes], folder: Path, *, as_json: bool = False) -> list[str]:
    with (folder / "log").open("wb") as out, Log(out.fileno(), as_json=as_json) as log:
        for program, text in written.items():
            os.write(log.sink(program), text)
        log.say("started")
    return (folder / "log").read_text().splitlines()


def test_each_line_says_whose_it_is(tmp_path: Path) -> None:
    lines = copied({"triton": b"I1 up\n\nE2 down", "nginx": b'[warn] x\n{"a":1}\n'}, tmp_path)
    assert sorted(lines) == [
        "nginx: [warn] x",
        'nginx: {"a":1}',
        "serve: started",
        "triton: E2 down",
        "triton: I1 up",
    ]


def test_every_line_is_json_where_that_is_wanted(tmp_path: Path) -> None:
    written = {"triton": b'say "hi" \xff\n', "gunicorn": b'{"program":"nginx","status":413}\n'}
    found = [json.loads(line) for line in copied(written, tmp_path, as_json=True)]
    assert {(one["program"], one["message"]) for one in found} == {
        ("triton", 'say "hi" \ufffd'),
        ("serve", "started"),
        ("gunicorn", '{"program":"nginx","status":413}'),
    }
    for one in found:
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", one["time"])


def test_a_finished_line_stays_as_it_is(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as out, Log(out.fileno(), as_json=False) as log:
        os.write(log.finished(), b'{"status":200}\ngunicorn: x\n')
    assert (tmp_path / "log").read_text() == '{"status":200}\ngunicorn: x\n'


@pytest.mark.parametrize(
    ("hidden", "shown"),
    [
        ("\r", r"\r"),
        ("\x1b[2K", r"\x1b[2K"),
        ("\x00", r"\x00"),
        ("\x85", r"\x85"),
        ("\u2028", r"\u2028"),
        ("\u202e", r"\u202e"),
        ("\ud800", r"\ud800"),
        ("\t", "\t"),
        ("é", "é"),
    ],
)
def test_nothing_in_a_text_makes_another_line_or_hides_one(hidden: str, shown: str) -> None:
    assert text_lines("gunicorn", f"a{hidden}b\nserve: c") == (
        f"gunicorn: a{shown}b\ngunicorn:   serve: c\n".encode()
    )


NO_FILE = "7#7: connect() to unix:a failed (2: No such file or directory)"
REFUSED = "7#7: *2 connect() to unix:a failed (111: Connection refused) while connecting"


@pytest.mark.parametrize(
    ("program", "line", "level"),
    [
        ("triton", 'I1125 20:59:59.123456 77 server.cc:674] "started"', "info"),
        ("triton", 'W1125 20:59:59.123456 77 metrics.cc:1] "no power"', "warning"),
        ("triton", 'E1125 20:59:59.123456 77 model.cc:1] "failed to load"', "error"),
        ("triton", 'F1125 20:59:59.123456 77 main.cc:1] "no memory"', "critical"),
        ("triton", "+------+---------+", "info"),
        ("triton", "Error is no mark of Triton's", "info"),
        ("nginx", "2026/11/25 20:59:59 [notice] 7#7: signal 3 received", "info"),
        ("nginx", "2026/11/25 20:59:59 [warn] 7#7: *1 a body is buffered", "warning"),
        ("nginx", "2026/11/25 20:59:59 [error] 7#7: *1 connect() failed", "error"),
        ("nginx", "2026/11/25 20:59:59 [alert] 7#7: worker exited on signal 9", "critical"),
        ("nginx", "nginx: [emerg] bind() to 0.0.0.0:80 failed", "critical"),
        ("nginx", f"2026/11/25 20:59:59 [error] {REFUSED}", "error"),
        ("gunicorn", "[2026-11-25 20:59:59 +0000] [77] [INFO] Starting gunicorn", "info"),
        ("gunicorn", "[2026-11-25 20:59:59 +0000] [77] [WARNING] Worker was sent", "warning"),
        ("gunicorn", "[2026-11-25 20:59:59 +0000] [77] [CRITICAL] WORKER TIMEOUT", "critical"),
        ("gunicorn", "ERROR dispatcher.errors: unforeseen error", "error"),
        ("gunicorn", "DEBUG dispatcher.app: x", "debug"),
        ("gunicorn", "Traceback (most recent call last):", "error"),
        ("gunicorn", "what a client prints", "info"),
    ],
)
def test_a_line_has_the_level_that_its_program_gives_it(
    tmp_path: Path, program: str, line: str, level: str
) -> None:
    found = map(json.loads, copied({program: f"{line}\n".encode()}, tmp_path, as_json=True))
    levels = {(one["program"], one["message"]): one["level"] for one in found}
    assert levels == {(program, line): level, ("serve", "started"): "info"}


@pytest.mark.parametrize(
    ("program", "line", "level"),
    [
        ("triton", '%s1125 18:06:43.8 7 a.cc:1] "ignore version directory x which [error]"', "W"),
        ("nginx", f"2026/11/25 20:59:59 [%s] {NO_FILE}", "crit"),
        ("nginx", "2026/11/25 20:59:59 [%s] 7#7: initgroups(root, 0) failed", "alert"),
    ],
)
def test_a_line_that_only_looks_like_an_error_is_marked_as_information(
    tmp_path: Path, program: str, line: str, level: str
) -> None:
    line, shown = line % level, line % ("I" if program == "triton" else "info")
    assert f"{program}: {shown}" in copied({program: f"{line}\n".encode()}, tmp_path)
    found = map(json.loads, copied({program: f"{line}\n".encode()}, tmp_path, as_json=True))
    levels = {one["message"]: one["level"] for one in found}
    assert levels == {shown: "info", "started": "info"}


def test_an_indented_line_has_the_level_of_the_line_that_it_continues(tmp_path: Path) -> None:
    """A line of serve's own has the level that it is given."""
    text = b"ERROR app: failed\nTraceback (most recent call last):\n  File x\nprinted\n  more\n"
    with (tmp_path / "log").open("wb") as out, Log(out.fileno(), as_json=True) as log:
        os.write(log.sink("gunicorn"), text)
        log.say("died\nand more", ERROR)
        log.say("ready")
    found = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    levels = [one["level"] for one in found if one["program"] == "gunicorn"]
    assert levels == ["error", "error", "error", "info", "info"]
    said = [(one["level"], one["message"]) for one in found if one["program"] == "serve"]
    assert said == [("error", "died"), ("error", "and more"), ("info", "ready")]


@pytest.mark.parametrize("length", [4095, 4096, 4097, 20_000, 500_000])
def test_long_lines_and_pieces_come_whole(tmp_path: Path, length: int) -> None:
    """Each piece by a program of its own, as where one starts again."""
    with (tmp_path / "log").open("wb") as out, Log(out.fileno(), as_json=False) as log:
        sink = log.sink("gunicorn")
        for piece in (b"first\n", b"x" * length, b"\nlast\n"):
            with os.fdopen(os.dup(sink), "wb") as file:
                file.write(piece)
    text = (tmp_path / "log").read_text()
    assert text.startswith("gunicorn: first\ngunicorn: xxx")
    assert text.endswith("gunicorn: last\n")
    assert text.count("x") == length


class Reader(threading.Thread):
    """Takes nothing of a pipe, or 4 KiB twice a second, until it has to take all."""

    def __init__(self, *, slow: bool) -> None:
        super().__init__(daemon=True)
        self.source, self.out = os.pipe()
        fcntl.fcntl(self.out, fcntl.F_SETPIPE_SZ, 4096)
        self.slow, self.hurry, self.came = slow, threading.Event(), b""
        self.start()

    def run(self) -> None:
        while not self.hurry.wait(0.5):
            if self.slow:
                self.came += os.read(self.source, 4096)
        while piece := os.read(self.source, 2**20):
            self.came += piece
        os.close(self.source)


@pytest.mark.parametrize(("slow", "sent"), [(True, 10_000), (False, 50_000)])
def test_a_log_that_is_slow_or_stuck_stops_nobody_and_losses_are_counted(
    slow: bool, sent: int
) -> None:
    """2 and 10 MB, of which 4 MiB find room."""
    reader, wrote = Reader(slow=slow), threading.Event()

    def program(sink: int) -> None:
        for number in range(sent):
            os.write(sink, b"line %06d %s\n" % (number, b"x" * 190))
        wrote.set()

    with Log(reader.out, as_json=False) as log:
        sink = log.sink("triton")
        threading.Thread(target=program, args=(sink,), daemon=True).start()
        assert wrote.wait(PATIENCE_S), "the program waits for the reader of the log"
        fcntl.fcntl(reader.out, fcntl.F_SETPIPE_SZ, 2**20)
        reader.hurry.set()
        os.write(sink, b"line 999999 %s\n" % (b"x" * 190))
    os.close(reader.out)
    reader.join(PATIENCE_S)
    lines = reader.came.decode().splitlines()
    lost = sum(int(n) for line in lines for n in re.findall(r"serve: (\d+) lines of the log", line))
    kept = [line for line in lines if re.fullmatch(r"triton: line \d{6} x{190}", line)]
    assert (lost > 0) == (sent == 50_000)
    assert len(kept) + lost == sent + 1
    assert kept == sorted(kept)


def test_a_reader_that_is_gone_is_no_reason_to_fail() -> None:
    source, out = os.pipe()
    os.close(source)
    with Log(out, as_json=False) as log:
        os.write(log.sink("triton"), b"line\n")
        log.say("line")
    os.close(out)
