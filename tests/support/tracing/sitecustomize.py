"""Python imports this at its start where PYTHONPATH names this folder: see tests/support/trip.py.

While `recording` exists in TRIP_FOLDER, each process writes there, in a file named by its number, a
line for each new call: the piece of work that it is a part of, the file of the project that called,
or "-", and the file and the function that were called. A thread begins a new piece of work with
each of its outermost calls.
"""

from __future__ import annotations

import math
import os
import sys
import threading
from pathlib import Path
from types import FrameType

PROJECT = f"{Path(__file__).resolve().parents[3]}/"
FOLDERS = tuple(f"{PROJECT}{name}/" for name in ("backends", "clients", "container", "dispatcher"))
folder = os.environ.get("TRIP_FOLDER", "")


class Work(threading.local):
    """What a thread is at."""

    depth = sys.maxsize
    number = 0
    seen: set[tuple[str, str, str]]


work = Work()


def file_of(frame: FrameType) -> str:
    """Return the file of a function of the project; nothing for all others."""
    path = frame.f_code.co_filename
    return path.removeprefix(PROJECT) if path.startswith(FOLDERS) else ""


def note(frame: FrameType, event: str, _: object) -> None:
    """Write down a call, the first time that a thread makes it."""
    if event != "call" or not (called := file_of(frame)) or frame.f_code.co_name == "<module>":
        return
    if called == "clients/triton/inference.py":  # a model's configuration is read but once
        frame.f_globals["SIGNATURE_S"] = math.inf
    if not os.path.exists(f"{folder}/recording"):  # noqa: PTH110  called for every function
        return
    callers = []
    caller = frame.f_back
    while caller:
        if file := file_of(caller):
            callers.append(file)
        caller = caller.f_back
    if len(callers) <= work.depth:
        work.depth, work.number, work.seen = len(callers), work.number + 1, set()
    call = (callers[0] if callers else "-", called, frame.f_code.co_qualname)
    if call not in work.seen:
        work.seen.add(call)
        with Path(folder, str(os.getpid())).open("a") as lines:
            lines.write(f"{threading.get_ident()}.{work.number} {' '.join(call)}\n")


def begin() -> None:
    """Look at every call from now on, in this thread and in those that begin later."""
    threading.setprofile(note)
    sys.setprofile(note)


if folder:
    begin()
