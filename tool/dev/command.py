"""`dispatcher dev FOLDER`: serves a folder, and loads what its author changes."""

from __future__ import annotations

import argparse
import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from container.trouble import Trouble
from dispatcher.settings import PROJECT
from tool.dev.changes import Changes, changes, look
from tool.dev.server import Server, to_terminal
from tool.engines.offline import settings_here

LOOK_S = 0.3
PING_EVERY_S = 1.0
MOST_SHOWN = 5


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "folder",
        type=Path,
        nargs="?",
        default=Path(),
        metavar="FOLDER",
        help="models and classes, laid out as SageMaker's /opt/ml/model (default: here)",
    )
    parser.add_argument(
        "--port", type=int, default=0, help="where it answers (default: the usual, 8080)"
    )


def run(options: argparse.Namespace) -> int:
    """Serve and watch until Ctrl-C or the server's end; return the exit code."""
    if not options.folder.is_dir():
        raise Trouble(f"there is no folder {str(options.folder)!r}; name one, or make it")
    folder = options.folder.resolve()
    settings = settings_here(MODEL_DIR=str(folder))
    port = options.port or settings.port
    classes = {*settings.clients_path, folder / "code" / "clients"}
    server = Server(PROJECT, folder, port, to_terminal)
    with interrupted_by_signals():
        try:
            server.start()
            return Watch(server, folder, sorted(classes)).run()
        except KeyboardInterrupt:
            to_terminal("dev: stopping")
            return 0
        finally:
            server.stop()


@contextmanager
def interrupted_by_signals() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end this program as Ctrl-C does, with all that it started."""
    numbers = [signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM)]
    before = {one: signal.getsignal(one) for one in numbers}
    for one, handler in before.items():
        if handler is not signal.SIG_IGN:  # as `nohup` has it
            signal.signal(one, signal.default_int_handler)
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


class Watch:
    """Looks for changes in an author's folder, has the server load them, and says what comes."""

    def __init__(self, server: Server, folder: Path, classes: Sequence[Path]) -> None:
        self.server, self.folder, self.classes = server, folder, classes
        self.seen = look(folder, classes)
        self.reason: str | None = None  # why it is not ready; `None` before its first answer
        self.pinged = 0.0

    def run(self) -> int:
        """Watch until the server ends; return its exit code, which is never 0."""
        before = self.seen
        to_terminal(f"dev: starting {self.folder}; Ctrl-C stops it")
        while (code := self.server.exit_code) is None:
            self.look_at_health()
            time.sleep(LOOK_S)
            now = look(self.folder, self.classes)
            # Twice the same: the author has finished writing.
            if now == before and self.reason is not None and (found := changes(self.seen, now)):
                self.seen = now
                self.take_up(found)
            before = now
        to_terminal(f"dev: the server has ended with exit code {code}")
        return code or 1

    def look_at_health(self) -> None:
        """Say where it has become ready, or is so no longer."""
        if time.monotonic() < self.pinged + PING_EVERY_S:
            return
        self.pinged, reason = time.monotonic(), self.server.reason()
        if self.reason is None and not self.server.has_started:
            return
        if reason and reason != self.reason:
            to_terminal(f"dev: NOT ready: {reason}")
        elif not reason and self.reason is None:
            to_terminal(f"dev: ready: POST {self.server.address}/invocations")
        elif not reason and self.reason:
            to_terminal("dev: ready again")
        self.reason = reason

    def take_up(self, found: Changes) -> None:
        """Have the server load what has changed, and say what it says."""
        began = time.monotonic()
        names = [os.path.relpath(path, self.folder) for path in found.files]
        more = f" and {len(names) - MOST_SHOWN} more" if len(names) > MOST_SHOWN else ""
        to_terminal(f"dev: changed: {', '.join(names[:MOST_SHOWN])}{more}")
        loaded = {name: self.server.is_loaded(name) for name in found.described}
        load = [*found.engines, *(name for name, is_loaded in loaded.items() if not is_loaded)]
        failed = [self.server.unload(model) for model in found.gone]
        failed += [self.server.load(model) for model in load]
        if found.classes or found.gone or any(loaded.values()):
            failed.append(self.server.reload())
        if reasons := list(dict.fromkeys(filter(None, failed))):
            for reason in reasons:
                to_terminal(f"dev: {reason}")
            to_terminal("dev: what worked before is served until this is mended")
        self.pinged, reason = time.monotonic(), self.server.reason()
        if not reasons and not reason:
            to_terminal(f"dev: ready again after {time.monotonic() - began:.1f} s")
            self.reason = ""
