"""BentoML: a worker per core; its adaptive batching where a batch pays.

https://docs.bentoml.com/en/latest/build-with-bentoml/parallelize-requests.html
"""

from __future__ import annotations

import os
from typing import Any

import bentoml

from bench.load.work import Runner

BATCH = int(os.environ["BENCH_BATCH"])


@bentoml.service(
    workers=int(os.environ["BENCH_WORKERS"]),
    threads=1,  # ONNX Runtime has the core to itself
    traffic={"timeout": 60},
    metrics={"enabled": False},
    logging={"access": {"enabled": False}},
)
class Rival:
    """One route, for one payload or, where it batches, for a list of them."""

    def __init__(self) -> None:
        self.runner = Runner(int(os.environ["BENCH_THREADS"]))

    if BATCH > 1:

        @bentoml.api(batchable=True, max_batch_size=BATCH, max_latency_ms=60000)
        def predict(self, payloads: list[dict[str, str]]) -> list[Any]:
            return self.runner.answer(payloads)

    else:

        @bentoml.api
        def predict(self, payload: dict[str, str]) -> list[Any]:
            return self.runner.answer([payload])[0]
