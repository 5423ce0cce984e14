"""Python imports this at its start where PYTHONPATH names this folder: see tests/support/trip.py.

While `recording` exists in TRIP_FOLDER, each process writes there, in a file named by its number, a
line for each new call in a thread: the thread, the file of the project that called, or "-", and the
file and the function that were called.
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from types import FrameType

PROJECT = f"{Path(__file__).resolve().parents[3]}/"
FOLDERS = tuple(f"{PROJECT}{name}/" for name in ("clients", "container", "dispatcher"))
folder = os.environ.get("TRIP_FOLDER", "")
seen: set[tuple[int, str, str, str]] = set()


def file_of(frame: FrameType) -> str:
    """Return the file of a function of the project; nothing for all others."""
    path = frame.f_code.co_filename
    return path.removeprefix(PROJECT) if path.startswith(FOLDERS) else ""


def note(frame: FrameType, event: str, _: object) -> None:
    """Write down a call, the first time that a thread makes it."""
    if event != "call" or not (called := file_of(frame)) or frame.f_code.co_name == "<module>":
        return
    if not os.path.exists(f"{folder}/recording"):  # noqa: PTH110  called for every function
        return
    caller = frame.f_back
    while caller and not file_of(caller):
        caller = caller.f_back
    call = (
        threading.get_ident(),
        file_of(caller) if caller else "-",
        called,
        frame.f_code.co_qualname,
    )
    if call not in seen:
        seen.add(call)
        with Path(folder, str(os.getpid())).open("a") as file:
            file.write(" ".join(map(str, call)) + "\n")


def begin() -> None:
    """Look at every call from now on, in this thread and in those that begin later."""
    threading.setprofile(note)
    sys.setprofile(note)


if folder:
    begin()
