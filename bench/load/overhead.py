"""Measure the server's own cost: a model that does nothing, and bare routes.

In turn with a Flask route without a model: how fast that is tells how fast this machine is with
small requests, of which the processor time of a model says nothing. One that asks this server's
Triton, and does nothing else, tells what this server's own web worker costs; it is measured with
all models.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from bench.load.work import PROJECT
from bench.measure import BARE, Results, say, turned
from bench.servers.contenders import Contender, Skipped, free_port
from container.programs.malloc import ALLOCATOR, FEW_ARENAS
from container.triton_backends.machine.shared_memory import PREFIX

SCRIPT = Path(__file__).parents[1] / "nothing" / "post.lua"
PAYLOAD = {"number": [1]}  # as the script sends it
CALLERS = (1, 16)
WARM_S = 1


def measure(results: Results, server: Contender, repository: Path, folder: Path) -> None:
    """Ask as fast as it goes, in rounds."""
    plain, bare = flask_route(folder), bare_route(server, repository, folder, "nothing")
    contenders = [server, plain, bare]
    try:
        for one in (plain, bare):
            one.start()
            one.wait_for(PAYLOAD)
        for number in range(results.rounds):
            for callers in CALLERS:
                seconds = max(2, int(results.seconds))
                rates = {
                    one.name: asked(one, callers, seconds) for one in turned(contenders, number)
                }
                ours, of_plain, of_bare = (rates[one.name] for one in contenders)
                results.nothing.setdefault(callers, []).append((ours, of_plain, of_bare))
                said = ", ".join(f"{name} {rate:.0f}/s" for name, rate in rates.items())
                say(f"round {number + 1} nothing-model {callers:2} callers: {said}")
    except Skipped as reason:
        results.skipped["nothing-model"] = str(reason)
        say(str(reason))
    finally:
        plain.stop()
        bare.stop()


def flask_route(folder: Path) -> Contender:
    """Return a Flask route without a model, behind NGINX and gunicorn."""
    return route("Flask route", "flask_route", folder, "nothing", {})


def bare_route(server: Contender, repository: Path, folder: Path, modelname: str) -> Contender:
    """Return a Flask route that asks the Triton of this server, and does nothing else."""
    environment = {
        **ALLOCATOR,
        **FEW_ARENAS,
        "BENCH_TRITON": f"127.0.0.1:{server.environment['TRITON_GRPC_PORT']}",
        "BENCH_REPOSITORY": str(repository),
        # So this server has Triton forget the shared memory of one that is gone.
        PREFIX: f"triton_dispatcher_{server.pid}_",
        "TRANSFORMERS_VERBOSITY": "error",
    }
    made = route(BARE, "bare_route", folder, modelname, environment)
    made.helper = server
    return made


def route(
    name: str, module: str, folder: Path, modelname: str, environment: Mapping[str, str]
) -> Contender:
    port, home = free_port(), folder / module
    return Contender(
        name,
        [sys.executable, "-m", f"bench.rivals.{module}", str(port), str(home)],
        port,
        "/invocations",
        lambda payload: {"modelname": modelname, "payload": payload},
        lambda answer: answer["result"],
        {"PYTHONPATH": str(PROJECT), **environment},
        home,
    )


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
            encoding="utf-8",
            check=True,
            timeout=lasts + 30,
        )
    found = re.search(r"Requests/sec: +([\d.]+)", done.stdout)
    if not found or "Non-2xx" in done.stdout or "Socket errors" in done.stdout:
        raise Skipped(f"wrk says:\n{done.stdout}{done.stderr}")
    return float(found[1])
