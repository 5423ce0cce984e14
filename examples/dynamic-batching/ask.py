"""Ask with eight callers at a time, and compare Triton's statistics before and after.

usage: python ask.py http://127.0.0.1:8080
"""

import json
import re
import sys
import urllib.request
from concurrent.futures import ThreadPoolExecutor

CALLERS, REQUESTS = 8, 32
ENDPOINT = sys.argv[1]


def ask(number: int) -> list[float]:
    tensor = {"name": "X", "shape": [1, 8], "datatype": "FP32", "data": [number] * 8}
    body = json.dumps({"inputs": [tensor]}).encode()
    with urllib.request.urlopen(f"{ENDPOINT}/infer/mix", body) as answer:
        return json.load(answer)["outputs"][0]["data"]


def statistics() -> tuple[int, int]:
    """Return how many requests Triton has answered, and in how many runs of the model."""
    with urllib.request.urlopen(f"{ENDPOINT}/metrics") as answer:
        text = answer.read().decode()
    requests, runs = (
        re.search(rf'^{name}{{model="mix",version="1"}} (\d+)', text, re.MULTILINE)
        for name in ("nv_inference_request_success", "nv_inference_exec_count")
    )
    return int(requests[1]), int(runs[1])


before = statistics()
with ThreadPoolExecutor(CALLERS) as callers:
    answers = list(callers.map(ask, range(REQUESTS)))
after = statistics()
right = sum(answer == [7.0 * number] * 8 for number, answer in enumerate(answers))
requests, runs = after[0] - before[0], after[1] - before[1]
print(f"{right} right answers")
print(f"{requests} requests in {runs} runs: {requests / runs:.0f} in each")
