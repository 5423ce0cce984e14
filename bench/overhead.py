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
from bench.contenders import Contender, Skipped, flask_route
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
                pair = []
                for one in (server, route):
                    asked(wrk, one, callers, WARM_S)
                    pair.append(asked(wrk, one, callers, max(2, int(results.seconds))))
                results.nothing.setdefault(callers, []).append((pair[0], pair[1]))
                say(
                    f"round {number + 1} nothing-model {callers:2} callers: {pair[0]:.0f}/s, "
                    f"{route.name} {pair[1]:.0f}/s"
                )
    except Skipped as reason:
        results.skipped["nothing-model"] = str(reason)
        say(str(reason))
    finally:
        route.stop()


def wait(route: Contender) -> None:
    """Wait until it answers.

    Raises:
        Skipped: it does not.

    """
    deadline = time.monotonic() + START_S
    while load.once(route.port, route.request(PAYLOAD))[0] != 200:
        ended = route.process is None or route.process.poll() is not None
        if ended or time.monotonic() > deadline:
            raise Skipped(f"the Flask route does not answer: {route.log.read_text()[-500:]}")
        time.sleep(0.1)


def asked(wrk: str, server: Contender, callers: int, seconds: int) -> float:
    """Return the requests per second.

    Raises:
        Skipped: not all of them were answered 200.

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
        raise Skipped(f"wrk says:\n{done.stdout}{done.stderr}")
    return float(found[1])
