"""How long the front without Triton takes from its start to its first answers.

    TRITON_URL=127.0.0.1:8001 python -m bench.cold_start [-- COMMAND …]

COMMAND starts it and listens on port 8080 (SAGEMAKER_BIND_TO_PORT); `python -m container.front` by
default, `docker run --rm --network host --env TRITON_URL IMAGE` for an image.
"""

from __future__ import annotations

import http.client
import os
import resource
import statistics
import subprocess
import sys
import time

TIMES = 7
PATHS = ("/v2/health/live", "/ping")
LOOK_S = 0.005
GIVE_UP_S = 60.0


def main(arguments: list[str]) -> None:
    """Start it `TIMES` times, and print the seconds until each path was 200."""
    command = arguments[1:] or [sys.executable, "-m", "container.front"]
    port = int(os.environ.get("SAGEMAKER_BIND_TO_PORT", "8080"))
    took: dict[str, list[float]] = {path: [] for path in PATHS}
    for _ in range(TIMES):
        began = time.monotonic()
        with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
            for path in PATHS:
                while not answers(port, path):
                    if process.poll() is not None or time.monotonic() > began + GIVE_UP_S:
                        process.kill()
                        sys.exit(f"{path} was never 200")
                    time.sleep(LOOK_S)
                took[path].append(time.monotonic() - began)
            process.terminate()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = (used.ru_utime + used.ru_stime) / TIMES
    sys.stdout.write(f"{cpu:.2f} s of CPU time each, the end included; nothing for an image\n")
    for path, seconds in took.items():
        sys.stdout.write(
            f"{path}: median {statistics.median(seconds):.2f} s, "
            f"from {min(seconds):.2f} to {max(seconds):.2f} s, {TIMES} starts\n"
        )


def answers(port: int, path: str) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=GIVE_UP_S)
    try:
        connection.request("GET", path)
        return connection.getresponse().status == http.client.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


if __name__ == "__main__":
    main(sys.argv[1:])
