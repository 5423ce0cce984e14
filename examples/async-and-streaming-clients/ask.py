"""Ask with asyncio; wait and try again where the server is busy.

usage: python ask.py http://127.0.0.1:8080
"""

import asyncio
import json
import random
import sys
import time
import urllib.error
import urllib.request
from collections import Counter

ENDPOINT = sys.argv[1]
CALLERS = 20  # at a time; the server of this example takes two
TIMEOUT_S = 60.0  # for one answer, all tries together
FIRST_S, LONGEST_S = 0.1, 5.0  # how long to wait before the next try
BUSY = {429, 503}  # worth another try; a 400 never is, a 504 has cost the model's time already
seen: Counter[int] = Counter()


def post(body: bytes, timeout: float) -> tuple[int, dict[str, str], bytes]:
    """Send one request; return status, headers and body."""
    try:
        with urllib.request.urlopen(f"{ENDPOINT}/invocations", body, timeout) as answer:
            return answer.status, dict(answer.headers), answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, dict(error.headers), error.read()


async def ask(number: float) -> float:
    """Return the model's answer.

    Raises:
        RuntimeError: it is no 200, and no use to try again.
        TimeoutError: the server was busy for too long.

    """
    tensor = {"name": "X", "shape": [1], "datatype": "FP32", "data": [number]}
    body = json.dumps({"modelname": "slow", "inputs": [tensor]}).encode()
    give_up_at = time.monotonic() + TIMEOUT_S
    backoff = FIRST_S
    while True:
        left = max(0.1, give_up_at - time.monotonic())
        status, headers, content = await asyncio.to_thread(post, body, left)
        seen[status] += 1
        if status == 200:
            return json.loads(content)["outputs"][0]["data"][0]
        if status not in BUSY:
            raise RuntimeError(f"{status}: {content.decode(errors='replace')}")
        # At random up to the backoff more than the server asks for: else all come back at once.
        wait = float(headers.get("Retry-After", 0)) + random.uniform(0, backoff)
        backoff = min(2 * backoff, LONGEST_S)
        if time.monotonic() + wait > give_up_at:
            raise TimeoutError(f"still {status} after {TIMEOUT_S:.0f} s")
        await asyncio.sleep(wait)


async def main() -> None:
    answers = await asyncio.gather(*map(ask, range(CALLERS)))
    right = sum(answer == 2 * number for number, answer in enumerate(answers))
    print(f"{right} of {CALLERS} right")
    print("refused and tried again:", "yes" if seen[429] else "no")
    print("lost:", CALLERS - seen[200])


asyncio.run(main())
