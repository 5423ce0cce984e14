"""Open loops with k6: requests come at a constant rate, whether or not the last is answered.

A closed loop asks less where the server is slow, and so hides its worst times; this one does not.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from bench.contenders import Contender, Skipped, installed
from bench.measure import Results, say

SCRIPT = Path(__file__).parent / "open_loop.js"
SHARES = (0.5, 0.8, 0.95, 1.2)
GRACE_S = 60


def measure(
    results: Results, server: Contender, payload: Any, capacity: float, seconds: float, cache: Path
) -> None:
    """Ask at shares of the capacity; an overload lasts longer, for its queue fills slowly."""
    try:
        k6 = installed("k6", cache).with_name("k6")
    except Skipped as reason:
        results.skipped["k6"] = str(reason)
        return
    body = cache / "run" / "body.json"
    body.write_text(json.dumps(server.body(payload)))
    for share in SHARES:
        lasts = seconds * (3 if share > 1 else 1)
        command = [str(k6), "run", "--quiet", "--no-usage-report", "--address=127.0.0.1:0"]
        variables = {
            "RATE": share * capacity,
            "SECONDS": lasts,
            "URL": f"http://127.0.0.1:{server.port}{server.path}",
            "BODY": body,
        }
        for name, value in variables.items():
            command += ["-e", f"{name}={value}"]
        done = subprocess.run(
            [*command, str(SCRIPT)],
            capture_output=True,
            text=True,
            check=False,
            timeout=lasts + 2 * GRACE_S,
        )
        if done.returncode:
            results.skipped[f"open loop at {share:.0%}"] = done.stderr[-500:]
            say(f"k6 failed: {done.stderr[-500:]}")
            continue
        seen = json.loads(done.stdout)
        results.open_loop.append({"share": share, "asked": share * capacity, **seen})
        say(f"open loop at {share:.0%}: {seen}")
