"""What the server costs by itself: a model that does nothing, asked by wrk.

In turn with a Flask route that asks nobody: how fast that is tells how fast this machine is with
small requests, of which the processor time of a model says nothing.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from pathlib import Path

from bench import load
from bench.contenders import Contender, flask_route
from bench.measure import Results, say

SCRIPT = Path(__file__).parent / "nothing" / "post.lua"
PAYLOAD = {"number": [1]}  # as the script sends it
CALLERS = (1, 16)
WARM_S = 1
START_S = 30


def measure(results: Results, server: Contender, folder: Path) -> None:
    """Ask as fast as it goes, in rounds."""
    if not (wrk := shutil.which("wrk")):
        results.skipped["nothing-model"] = "wrk is not installed: apt-get install wrk"
        return
    route = flask_route(folder)
    route.start()
    try:
        wait(route)
        for number in range(results.rounds):
            for callers in CALLERS:
                for one, rates in ((server, results.nothing), (route, results.route)):
                    asked(wrk, one, callers, WARM_S)
                    rate = asked(wrk, one, callers, max(2, int(results.seconds)))
                    rates.setdefault(callers, []).append(rate)
                    say(f"round {number + 1} nothing, {callers:2} callers: {one.name} {rate:.0f}/s")
    finally:
        route.stop()


def wait(route: Contender) -> None:
    deadline = time.monotonic() + START_S
    while load.once(route.port, route.request(PAYLOAD))[0] != 200:
        if time.monotonic() > deadline:
            raise RuntimeError(f"the Flask route does not answer; see {route.log}")
        time.sleep(0.1)


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
