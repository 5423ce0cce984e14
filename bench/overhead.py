"""What the server costs by itself: a model that does nothing, asked by wrk."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

from bench.contenders import Contender
from bench.measure import Results, say

SCRIPT = Path(__file__).parent / "nothing" / "post.lua"
CALLERS = (1, 16)
WARM_S = 1


def measure(results: Results, server: Contender) -> None:
    """Ask as fast as it goes, in rounds."""
    if not (wrk := shutil.which("wrk")):
        results.skipped["nothing-model"] = "wrk is not installed: apt-get install wrk"
        return
    for number in range(results.rounds):
        for callers in CALLERS:
            asked(wrk, server, callers, WARM_S)
            rate = asked(wrk, server, callers, max(2, int(results.seconds)))
            results.nothing.setdefault(callers, []).append(rate)
            say(f"round {number + 1} nothing-model {callers:2} callers: {rate:.0f}/s")


def asked(wrk: str, server: Contender, callers: int, seconds: int) -> float:
    """Return the requests per second.

    Raises:
        RuntimeError: not all of them were answered 200.

    """
    done = subprocess.run(
        [
            *(wrk, "-t1", f"-c{callers}", f"-d{seconds}s", "-s", str(SCRIPT)),
            f"http://127.0.0.1:{server.port}{server.path}",
        ],
        capture_output=True,
        text=True,
        check=True,
        timeout=seconds + 30,
    )
    found = re.search(r"Requests/sec: +([\d.]+)", done.stdout)
    if not found or "Non-2xx" in done.stdout or "Socket errors" in done.stdout:
        raise RuntimeError(f"wrk says:\n{done.stdout}{done.stderr}")
    return float(found[1])
