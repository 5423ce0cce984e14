"""What reading /metrics costs a server with many models.

    python -m bench.load.scrape [MODELS]

Every model is asked once, so that each has its own counts. Then callers ask them in turn, in rounds
without a scrape and with one each second, as fast as they are answered.
"""

from __future__ import annotations

import json
import shutil
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path

from bench.load import load, models
from bench.servers.contenders import Contender, this_server
from bench.servers.processes import cpu_ms

MODELS = 50
CALLERS = 8
ROUNDS = 7
SECONDS = 8.0
SCRAPES = 20
OK = 200
PAYLOAD = {"inputs": [{"name": "INPUT", "shape": [1, 1], "datatype": "FP32", "data": [1]}]}
SCRAPE = b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"


def main(arguments: list[str]) -> None:
    """Measure, and print a line for each figure."""
    count = int(arguments[0]) if arguments else MODELS
    folder = Path(tempfile.mkdtemp(prefix="scrape-"))
    names = [f"nothing{number}" for number in range(count)]
    for name in names:
        models.add_nothing(folder / "repository", name)
    settings = {"MODEL_SERVER_ACCESS_LOG": "errors"}
    server = this_server(folder / "repository", folder, names[0], settings=settings)
    server.start()
    try:
        server.wait_for(PAYLOAD)
        body = json.dumps({"payload": PAYLOAD}).encode()
        measure(server, [load.request(f"/infer/{name}", body) for name in names])
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)


def measure(server: Contender, asked: list[bytes]) -> None:
    """Ask all models, then scrape: of an idle server, and beside callers."""
    for one in asked:
        status, body = load.once(server.port, one)
        if status != OK:
            sys.exit(f"answered {status}: {body[:300]!r}")
    say(f"{len(asked)} models, {CALLERS} callers, {ROUNDS} rounds of {SECONDS:.0f} s each way")
    costs = [idle_cost(server, pause) for pause in (0.0, 1.0)]
    say(f"bytes of a page: {len(load.once(server.port, SCRAPE)[1])}")
    for pause, (took, used) in zip(("at once", "each second"), costs, strict=True):
        say(f"scrapes {pause}, idle: {took:.0f} ms and {used:.0f} CPU-ms each (medians)")
    speeds, efforts = [], []
    for number in range(ROUNDS):
        ways = (False, True) if number % 2 else (True, False)
        found = {way: asked_for_a_while(server, asked, scraped=way) for way in ways}
        (alone, used_alone), (beside, used_beside) = found[False], found[True]
        speeds.append(beside.per_second / alone.per_second)
        efforts.append(used_beside / used_alone)
        say(
            f"round {number + 1}: {alone.per_second:.0f}/s, p99 {alone.percentile(0.99):.1f} ms, "
            f"{used_alone:.2f} CPU-ms each without; {beside.per_second:.0f}/s, "
            f"{beside.percentile(0.99):.1f} ms, {used_beside:.2f} with a scrape each second"
        )
    say(f"answers with, of those without: {statistics.median(speeds):.3f} (median of the rounds)")
    say(f"CPU-ms of an answer with, of those without: {statistics.median(efforts):.3f}")


def idle_cost(server: Contender, pause: float) -> tuple[float, float]:
    """Return the milliseconds and CPU milliseconds of a scrape, less what the idle server uses."""
    before, since = cpu_ms(*server.pids).total(), time.monotonic()
    time.sleep(5)
    idle = (cpu_ms(*server.pids).total() - before) / (time.monotonic() - since)
    before, since, times = cpu_ms(*server.pids).total(), time.monotonic(), []
    for _ in range(SCRAPES):
        began = time.monotonic()
        load.once(server.port, SCRAPE)
        times.append(time.monotonic() - began)
        time.sleep(pause)
    used = cpu_ms(*server.pids).total() - before - idle * (time.monotonic() - since)
    return statistics.median(times) * 1e3, used / SCRAPES


def asked_for_a_while(
    server: Contender, asked: list[bytes], *, scraped: bool
) -> tuple[load.Loop, float]:
    """Ask for some seconds, beside a scrape each second or none.

    Returns:
        what was seen, and the CPU milliseconds for each answer, the scrapes included.

    """
    done = threading.Event()

    def scrape() -> None:
        while not done.wait(1.0):
            load.once(server.port, SCRAPE)

    beside = threading.Thread(target=scrape)
    before = cpu_ms(*server.pids).total()
    if scraped:
        beside.start()
    try:
        loop = load.closed_loop(server.port, asked, CALLERS, SECONDS)
    finally:
        done.set()
        if scraped:
            beside.join()
    return loop, (cpu_ms(*server.pids).total() - before) / loop.answers


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
