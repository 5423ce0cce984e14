"""Open loops with k6: requests at a constant rate, answered or not.

A closed loop asks less where the server is slow, and so hides its worst times; this one does not.
What the rates are shares of, the capacity, k6 measures as well, with a closed loop, at the
beginning and on both sides of the overload: its processor time is taken from the server on the same
cores, and the machine drifts.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from bench.measure import Results, say
from bench.servers.contenders import Contender, Skipped, installed

SCRIPT = Path(__file__).parent / "open_loop.js"
SHARES = (0.5, 0.8, 0.95)
OVERLOAD = 1.2
CALLERS = 16  # as many as the capacity needs
GRACE_S = 60


def measure(results: Results, server: Contender, payload: Any, seconds: float, cache: Path) -> None:
    """Send requests at shares of the capacity; an overload lasts longer."""
    try:
        k6 = installed("k6", cache).with_name("k6")
    except Skipped as reason:
        results.skipped["k6"] = str(reason)
        return
    body = cache / "run" / "body.json"
    body.write_text(json.dumps(server.body(payload)), encoding="utf-8")
    url = f"http://127.0.0.1:{server.port}{server.path}"

    def run(what: str, lasts: float, **variables: Any) -> dict[str, Any]:
        command = [str(k6), "run", "--quiet", "--no-usage-report", "--address=127.0.0.1:0"]
        for name, value in {"SECONDS": lasts, "URL": url, "BODY": body, **variables}.items():
            command += ["-e", f"{name}={value}"]
        done = subprocess.run(
            [*command, str(SCRIPT)],
            capture_output=True,
            encoding="utf-8",
            check=False,
            timeout=lasts + 2 * GRACE_S,
        )
        if done.returncode:
            raise Skipped(f"k6 failed: {done.stderr.strip()[-500:]}")
        seen: dict[str, Any] = json.loads(done.stdout)
        say(f"{what}: {seen}")
        return seen

    def closed() -> None:
        seen = run(f"closed loop of {CALLERS}", seconds, CALLERS=CALLERS)
        if seen["refused"] or seen["failed"]:
            raise Skipped(f"a closed loop of {CALLERS} was not answered: {seen}")
        results.capacity.append(seen["answered"] / seen["seconds"])

    def at(share: float, lasts: float) -> None:
        asked = share * results.capacity[-1]
        seen = run(f"open loop at {share:.0%}", lasts, RATE=asked)
        results.open_loop.append({"share": share, "asked": asked, **seen})

    try:
        closed()
        for share in SHARES:
            at(share, seconds)
        closed()
        at(OVERLOAD, 3 * seconds)
        closed()
    except Skipped as reason:
        results.skipped["the rest of the open loops"] = str(reason)
        say(str(reason))
