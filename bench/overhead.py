"""What the server costs by itself: a model that does nothing, asked by wrk.

In turn with a Flask route that asks nobody: how fast that is tells how fast this machine is with
small requests, of which the processor time of a model says nothing.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

from bench import load
from bench.contenders import Contender, Skipped, free_port
from bench.measure import Results, say
from bench.work import PROJECT

SCRIPT = Path(__file__).parent / "nothing" / "post.lua"
PAYLOAD = {"number": [1]}  # as the script sends it
CALLERS = (1, 16)
WARM_S = 1
START_S = 30


def measure(results: Results, server: Contender, folder: Path) -> None:
    """Ask as fast as it goes, in rounds."""
    route = flask_route(folder)
    route.start()
    try:
        wait(route)
        for number in range(results.rounds):
            for callers in CALLERS:
                seconds = max(2, int(results.seconds))
                ours, plain = (asked(one, callers, seconds) for one in (server, route))
                results.nothing.setdefault(callers, []).append((ours, plain))
                say(
                    f"round {number + 1} nothing-model {callers:2} callers: {ours:.0f}/s, "
                    f"{route.name} {plain:.0f}/s"
                )
    except Skipped as reason:
        results.skipped["nothing-model"] = str(reason)
        say(str(reason))
    finally:
        route.stop()


def flask_route(folder: Path) -> Contender:
    """Return a Flask route that asks nobody, behind NGINX and gunicorn, for the nothing-model."""
    port = free_port()
    home = folder / "flask_route"
    return Contender(
        "Flask route",
        [sys.executable, "-m", "bench.rivals.flask_route", str(port), str(home)],
        port,
        "/invocations",
        lambda payload: {"modelname": "nothing", "payload": payload},
        lambda answer: answer["result"],
        {"PYTHONPATH": str(PROJECT)},
        home,
    )


def wait(server: Contender) -> None:
    """Wait until it answers the model that does nothing.

    Raises:
        Skipped: it does not.

    """
    deadline = time.monotonic() + START_S
    while load.once(server.port, server.request(PAYLOAD))[0] != 200:
        ended = server.process is None or server.process.poll() is not None
        if ended or time.monotonic() > deadline:
            raise Skipped(f"{server.name} does not answer: {server.log.read_text()[-500:]}")
        time.sleep(0.1)


def asked(server: Contender, callers: int, seconds: int) -> float:
    """Return the requests per second, after a second that is not counted.

    Raises:
        Skipped: not all of them were answered 200, or there is no wrk.

    """
    if not (wrk := shutil.which("wrk")):
        raise Skipped("wrk is not installed: apt-get install wrk")
    for lasts in (WARM_S, seconds):
        done = subprocess.run(
            [
                *(wrk, "-t1", f"-c{callers}", f"-d{lasts}s", "-s", str(SCRIPT)),
                f"http://127.0.0.1:{server.port}{server.path}",
            ],
            capture_output=True,
            text=True,
            check=True,
            timeout=lasts + 30,
        )
    found = re.search(r"Requests/sec: +([\d.]+)", done.stdout)
    if not found or "Non-2xx" in done.stdout or "Socket errors" in done.stdout:
        raise Skipped(f"wrk says:\n{done.stdout}{done.stderr}")
    return float(found[1])
