"""Callers in a closed loop: each asks again once it is answered.

One thread for all of them and requests that are made once, for what this costs is taken from the
server on the same cores; several processes where a server on many cores can outrun one.
"""

from __future__ import annotations

import http.client
import os
import re
import selectors
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import chain, cycle
from multiprocessing import get_context

HEADER_END = b"\r\n\r\n"
LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
PATIENCE_S = 60
LOOK_S = 0.02
CALLERS_OF_A_PROCESS = 8
LEAST_WARM_S = 1.0


def say(text: str) -> None:
    """Show on standard error how far the measurement is."""
    sys.stderr.write(f"bench: {text}\n")
    sys.stderr.flush()


class LoadError(Exception):
    """An answer was not 200, or none came; the message shows it."""


def request(path: str, body: bytes, content_type: str = "application/json") -> bytes:
    """Return a whole POST request that keeps the connection."""
    head = (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: {content_type}\r\n"
        f"Accept: */*\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


@dataclass
class Loop:
    """What a closed loop has seen.

    Args:
        begin: when counting began, after the loop had got going.
        end: when nothing was asked any more; later answers are not counted.
        times: what each answer that is counted took, in seconds.

    """

    begin: float
    end: float
    times: list[float] = field(default_factory=list)
    answers: int = 0

    @property
    def per_second(self) -> float:
        return len(self.times) / (self.end - self.begin)

    def percentile(self, share: float) -> float:
        """Return the time, in milliseconds, within which this share was answered."""
        ordered = sorted(self.times)
        return ordered[min(len(ordered) - 1, int(len(ordered) * share))] * 1e3


class Caller:
    """One keep-alive connection, which asks again and again."""

    def __init__(self, port: int, asked: Iterator[bytes]) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.settimeout(0)
        self.asked = asked
        self.left = memoryview(b"")
        self.came = bytearray()
        self.needed = 0
        self.since = 0.0

    def ask(self) -> None:
        self.left, self.came, self.needed = memoryview(next(self.asked)), bytearray(), 0
        self.since = time.perf_counter()
        self.send()

    def send(self) -> None:
        while self.left:
            try:
                self.left = self.left[self.socket.send(self.left) :]
            except BlockingIOError:
                return

    def answered(self) -> bool:
        """Take what has come; return whether it is a whole answer.

        Raises:
            LoadError: it is not 200, or the connection was closed.

        """
        try:
            part = self.socket.recv(1 << 18)
        except BlockingIOError:
            return False
        if not part:
            raise LoadError(f"the connection was closed after {bytes(self.came[:500])!r}")
        self.came += part
        if not self.needed and HEADER_END in self.came:
            head = bytes(self.came.partition(HEADER_END)[0])
            if length := LENGTH.search(head):
                self.needed = len(head) + len(HEADER_END) + int(length[1])
        if not self.needed or len(self.came) < self.needed:
            return False
        if not self.came.startswith((b"HTTP/1.1 200", b"HTTP/1.0 200")):
            raise LoadError(f"answered {bytes(self.came[:500])!r}")
        return True


def ask_in_a_loop(
    port: int, asked: Sequence[bytes], callers: int, seconds: float, warm: float = 0.5
) -> Loop:
    """Let some callers ask, and count for some seconds after the first `warm` ones.

    The callers send the requests of `asked` in turn.

    Raises:
        LoadError: an answer was not 200, or none came.

    """
    begin = time.perf_counter() + warm
    loop, turns = Loop(begin, begin + seconds), cycle(asked)
    with ExitStack() as stack:
        selector = stack.enter_context(selectors.DefaultSelector())
        for _ in range(callers):
            caller = Caller(port, turns)
            stack.enter_context(caller.socket)
            selector.register(caller.socket, selectors.EVENT_READ, caller)
            start(selector, caller)
        while selector.get_map():
            ready = selector.select(PATIENCE_S)
            if not ready:
                raise LoadError(f"no answer within {PATIENCE_S} s")
            for key, events in ready:
                follow(selector, key.data, events, loop)
    if not loop.times:
        raise LoadError(f"no answer within {seconds} s")
    return loop


def ask_at_once(
    port: int,
    groups: Sequence[tuple[Sequence[bytes], int]],
    seconds: float,
    warm: float,
    look: Callable[[], None] = lambda: None,
) -> list[Loop]:
    """Let groups ask at the same time, each from a process of its own, as `ask_in_a_loop` does.

    A group is what its callers ask, and how many they are. `look` is called again and again.
    """
    with get_context("fork").Pool(len(groups)) as pool:
        coming = pool.starmap_async(
            ask_in_a_loop, [(port, *group, seconds, warm) for group in groups]
        )
        while not coming.ready():
            look()
            coming.wait(LOOK_S)
        return coming.get()


def ask_from_processes(
    port: int,
    asked: Sequence[bytes],
    callers: int,
    seconds: float,
    warm: float,
    look: Callable[[], None],
) -> Loop:
    """Let callers ask as `ask_in_a_loop` does, from at most half of the cores."""
    most = min(callers // CALLERS_OF_A_PROCESS, len(os.sched_getaffinity(0)) // 2)
    count = max(1, most)
    sizes = [callers // count + (number < callers % count) for number in range(count)]
    loops = ask_at_once(port, [(asked, size) for size in sizes], seconds, warm, look)
    times = list(chain.from_iterable(one.times for one in loops))
    return Loop(loops[0].begin, loops[0].end, times, sum(one.answers for one in loops))


def follow(selector: selectors.DefaultSelector, caller: Caller, events: int, loop: Loop) -> None:
    """Go on with one caller: send more, or take what came, and ask again."""
    if events & selectors.EVENT_WRITE:
        caller.send()
        if not caller.left:
            selector.modify(caller.socket, selectors.EVENT_READ, caller)
    if not events & selectors.EVENT_READ or not caller.answered():
        return
    now = time.perf_counter()
    loop.answers += 1
    if loop.begin <= now < loop.end:
        loop.times.append(now - caller.since)
    if now < loop.end:
        start(selector, caller)
    else:
        selector.unregister(caller.socket)


def start(selector: selectors.DefaultSelector, caller: Caller) -> None:
    caller.ask()
    both = selectors.EVENT_READ | selectors.EVENT_WRITE
    selector.modify(caller.socket, both if caller.left else selectors.EVENT_READ, caller)


def once(port: int, asked: bytes) -> tuple[int, bytes]:
    """Ask once; return the status and the body, or status 0 without an answer."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as connection:
            connection.sendall(asked)
            response = http.client.HTTPResponse(connection)
            response.begin()
            return response.status, response.read()
    except (OSError, http.client.HTTPException):
        return 0, b""
