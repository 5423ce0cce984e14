"""Ask the same three times, and compare Triton's statistics before and after.

usage: python ask.py http://127.0.0.1:8080
"""

import json
import sys
import urllib.request

MODEL = f"{sys.argv[1]}/v2/models/slow_square"
TENSOR = {"name": "X", "shape": [1], "datatype": "FP32", "data": [7]}


def ask() -> float:
    body = json.dumps({"inputs": [TENSOR]}).encode()
    with urllib.request.urlopen(f"{MODEL}/infer", body) as answer:
        return json.load(answer)["outputs"][0]["data"][0]


def statistics() -> dict[str, int]:
    """Return how often the model ran, and how often the cache had an answer and had none."""
    with urllib.request.urlopen(f"{MODEL}/stats") as answer:
        found = json.load(answer)["model_stats"][0]
    cache = {name: found["inference_stats"][name]["count"] for name in ("cache_hit", "cache_miss")}
    return {"runs of the model": found["execution_count"], **cache}


before = statistics()
print("answers:", [ask() for _ in range(3)])
after = statistics()
for name, count in after.items():
    print(f"{name}: {count - before[name]}")
