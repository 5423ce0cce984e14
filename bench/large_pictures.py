"""Measure the memory of large pictures that are sent at the same moment.

usage: python -m bench.large_pictures

Prints for each kind of picture the most memory that the web workers had while it was asked (PSS, in
all), what they have some seconds later, how long /ping took at most meanwhile, and the statuses.
WebP and PNG are of one colour, a few bytes for 50 megapixels: what anybody can send.
"""

from __future__ import annotations

import base64
import io
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from PIL import Image

from bench.load import load, models, work
from bench.load.growth import serving
from bench.servers.contenders import Contender
from bench.servers.processes import memory_mb

LATER_S = 10
EVERY_S = 0.1


@dataclass(frozen=True)
class Kind:
    """Pictures of one kind, and how many callers send one each."""

    callers: int
    file_format: str
    mode: str
    size: tuple[int, int]

    def __str__(self) -> str:
        megapixels = self.size[0] * self.size[1] / 1e6
        return f"{self.callers} × {self.file_format} {self.mode}, {megapixels:.0f} megapixels"

    def payload(self) -> Mapping[str, str]:
        file = io.BytesIO()
        lossless = {"lossless": True} if self.file_format == "WebP" else {}
        Image.new(self.mode, self.size).save(file, self.file_format, **lossless)
        return {"img": base64.b64encode(file.getvalue()).decode()}


KINDS = (
    Kind(24, "WebP", "RGB", (10_000, 5_000)),
    Kind(12, "PNG", "RGBA", (10_000, 5_000)),
    Kind(16, "PNG", "RGB", (4_000, 3_000)),
    Kind(16, "JPEG", "RGB", (4_000, 3_000)),
)


@dataclass
class Watch:
    """What was seen while callers waited."""

    most_mb: float = 0.0
    slowest_ping_s: float = 0.0
    statuses: Counter[int] = field(default_factory=Counter)


def main() -> None:
    """Measure and print."""
    cache = work.PROJECT / ".cache" / "bench"
    (cache / "run").mkdir(parents=True, exist_ok=True)
    say(f"| pictures | most MB | MB {LATER_S} s later | slowest /ping, s | statuses |")
    say("|---|---|---|---|---|")
    with serving(models.lay_out(cache), cache, "resnet") as server:
        say(f"| none | {web_mb(server):.0f} | | | |")
        for kind in KINDS:
            seen = watched(server, server.request(kind.payload()), kind.callers)
            time.sleep(LATER_S)
            statuses = ", ".join(f"{many} × {status}" for status, many in seen.statuses.items())
            say(
                f"| {kind} | {seen.most_mb:.0f} | {web_mb(server):.0f} "
                f"| {seen.slowest_ping_s:.1f} | {statuses} |"
            )


def watched(server: Contender, asked: bytes, callers: int) -> Watch:
    """Let all callers ask once at the same moment, and look on until all are answered."""
    seen = Watch()

    def ask() -> None:
        seen.statuses[load.once(server.port, asked)[0]] += 1

    def ping() -> None:
        while any(caller.is_alive() for caller in waiting):
            since = time.monotonic()
            load.once(server.port, b"GET /ping HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            seen.slowest_ping_s = max(seen.slowest_ping_s, time.monotonic() - since)
            time.sleep(EVERY_S)

    waiting = [threading.Thread(target=ask) for _ in range(callers)]
    pings = threading.Thread(target=ping)
    for thread in (*waiting, pings):
        thread.start()
    while any(caller.is_alive() for caller in waiting):
        seen.most_mb = max(seen.most_mb, web_mb(server))
        time.sleep(EVERY_S)
    pings.join()
    return seen


def web_mb(server: Contender) -> float:
    """Return the memory of all web workers and their master, in MB (PSS)."""
    return sum(sizes["pss"] for name, sizes in memory_mb(server.pid) if name == "gunicorn")


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
