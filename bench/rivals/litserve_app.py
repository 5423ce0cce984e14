"""LitServe: a worker per core, with its own batching where that pays.

https://lightning.ai/docs/litserve/features: workers per device, batching, fast queue
"""

# Annotations are real ones here: LitServe reads the handlers' own.
import os
import sys
from typing import Any

import litserve
from fastapi import Request

from bench.load.work import Runner

BATCH = int(os.environ["BENCH_BATCH"])


class Rival(litserve.LitAPI):
    """The whole work in `predict`, for a worker is one process."""

    def setup(self, device: str) -> None:
        del device
        self.runner = Runner(int(os.environ["BENCH_THREADS"]))

    def decode_request(self, request: Request) -> Any:
        return request

    def predict(self, payloads: Any) -> Any:
        return self.runner.answer(payloads if BATCH > 1 else [payloads])

    def unbatch(self, answers: Any) -> Any:
        return answers

    def encode_response(self, answer: Any) -> Any:
        return {"result": answer if BATCH > 1 else answer[0]}


if __name__ == "__main__":
    server = litserve.LitServer(
        Rival(max_batch_size=BATCH, batch_timeout=0.005 if BATCH > 1 else 0),
        accelerator="cpu",
        workers_per_device=int(os.environ["BENCH_WORKERS"]),
        fast_queue=True,
        timeout=60,
    )
    server.run(host="127.0.0.1", port=int(sys.argv[1]), generate_client_file=False)
