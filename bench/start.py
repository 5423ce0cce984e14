"""How long `./serve` takes to the first 200 of /ping, and what memory each process has then.

usage: python -m bench.start [RUNS]

Prints the median of some runs and their spread; memory is that of the last run: the resident set
(RSS), and the proportional one (PSS), in which what processes share is counted once.
"""

from __future__ import annotations

import http.client
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent
PORT = 18080
PATIENCE_S = 120


def main(runs: int) -> None:
    """Measure and print."""
    times = []
    table = ""
    for _ in range(runs):
        took, table = one_start()
        times.append(took)
    say(
        f"./serve to the first 200 of /ping: median {statistics.median(times):.2f} s "
        f"({min(times):.2f} to {max(times):.2f}, {runs} runs)\n"
    )
    say(table)


def one_start() -> tuple[float, str]:
    """Start the container once; return seconds to readiness, and its memory as a table."""
    environment = {
        **os.environ,
        "PYTHON": sys.executable,
        "SAGEMAKER_BIND_TO_PORT": str(PORT),
        "SAGEMAKER_SAFE_PORT_RANGE": f"{PORT + 1}-{PORT + 9}",
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
            return time.monotonic() - before, memory(serve.pid)
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


def memory(root: int) -> str:
    """Return a line per process of the container: RSS and PSS in MB, and what it is."""
    lines = [f"{'RSS MB':>8} {'PSS MB':>8}  process"]
    sums = [0.0, 0.0]
    for pid in sorted({root, *descendants(root)}):
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
        sizes = [
            float(re.findall(rf"^{k}:\s+(\d+)", rollup, re.MULTILINE)[0]) / 1e3
            for k in ("Rss", "Pss")
        ]
        sums = [a + b for a, b in zip(sums, sizes, strict=True)]
        lines.append(f"{sizes[0]:8.0f} {sizes[1]:8.0f}  {described(pid)}")
    lines.append(f"{sums[0]:8.0f} {sums[1]:8.0f}  all")
    return "\n".join(lines) + "\n"


def described(pid: int) -> str:
    words = Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    if stub := re.search(r"triton_python_backend_stub \S*/([^/ ]+)/\d+/", words):
        return f"model process of {stub[1]}"
    known = {
        "tritonserver": "Triton",
        "nginx": "NGINX",
        "gunicorn": "gunicorn",
        "container": "serve",
    }
    return next((name for word, name in known.items() if word in words), words[:60])


def descendants(root: int) -> set[int]:
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    found: set[int] = set()
    while more := {pid for pid, parent in parents.items() if parent in found | {root}} - found:
        found |= more
    return found


def say(text: str) -> None:
    sys.stdout.write(text)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
