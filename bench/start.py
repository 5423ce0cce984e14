"""Measure how long `./serve` takes until `/ping` is 200, and its memory.

usage: python -m bench.start [RUNS]; `make bench` measures it as well

Prints the median of some runs and their spread; memory is that of the last run: the resident set
(RSS), and the proportional one (PSS), in which what processes share is counted once.
"""

from __future__ import annotations

import http.client
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from bench.servers.processes import memory_mb

PROJECT = Path(__file__).resolve().parent.parent
PORT = 18080
PATIENCE_S = 120

Rows = list[tuple[str, dict[str, float]]]


def main(runs: int) -> None:
    """Measure and print."""
    times = []
    rows: Rows = []
    for _ in range(runs):
        took, rows = one_start()
        times.append(took)
    say(
        f"./serve to the first 200 of /ping: median {statistics.median(times):.2f} s "
        f"({min(times):.2f} to {max(times):.2f}, {runs} runs)\n"
    )
    say(table(rows))


def one_start(settings: Mapping[str, str] = {}) -> tuple[float, Rows]:
    """Start the container once; return seconds to readiness and the memory."""
    environment = {
        **os.environ,
        "PYTHON": sys.executable,
        "SAGEMAKER_BIND_TO_PORT": str(PORT),
        "SAGEMAKER_SAFE_PORT_RANGE": f"{PORT + 1}-{PORT + 9}",
        **settings,
    }
    with tempfile.TemporaryFile() as log:
        before = time.monotonic()
        serve = subprocess.Popen([PROJECT / "serve"], env=environment, stdout=log, stderr=log)
        try:
            while ping() != 200:
                if serve.poll() is not None or time.monotonic() > before + PATIENCE_S:
                    log.seek(0)
                    sys.exit(f"it does not start:\n{log.read().decode()[-2000:]}")
                time.sleep(0.02)
            return time.monotonic() - before, memory_mb(serve.pid)
        finally:
            serve.send_signal(signal.SIGTERM)
            serve.wait()


def ping() -> int:
    connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=2)
    try:
        connection.request("GET", "/ping")
        return connection.getresponse().status
    except OSError:
        return 0
    finally:
        connection.close()


def table(rows: Rows) -> str:
    """Return a line per process of the container: RSS and PSS in MB, and what it is."""
    lines = [f"{'RSS MB':>8} {'PSS MB':>8}  process"]
    for name, sizes in [*rows, ("all", total(rows))]:
        lines.append(f"{sizes['rss']:8.0f} {sizes['pss']:8.0f}  {name}")
    return "\n".join(lines) + "\n"


def total(rows: Rows) -> dict[str, float]:
    return {kind: sum(sizes[kind] for _, sizes in rows) for kind in ("rss", "pss")}


def say(text: str) -> None:
    sys.stdout.write(text)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
