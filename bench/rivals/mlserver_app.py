"""MLServer: a worker process per core; its adaptive batching where a batch pays.

https://mlserver.readthedocs.io/en/stable/user-guide/parallel-inference.html
"""

from __future__ import annotations

import json
import os

from mlserver import MLModel
from mlserver.types import InferenceRequest, InferenceResponse, ResponseOutput

from bench.load.work import Runner


class Rival(MLModel):
    """One text per payload in a BYTES tensor, one JSON text per answer."""

    async def load(self) -> bool:
        self.runner = Runner(int(os.environ["BENCH_THREADS"]))
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        takes = self.runner.work.takes
        texts = [
            text if isinstance(text, str) else text.decode() for text in payload.inputs[0].data
        ]
        answers = self.runner.answer([{takes: text} for text in texts])
        result = ResponseOutput(
            name="result",
            shape=[len(answers), 1],
            datatype="BYTES",
            data=[json.dumps(answer) for answer in answers],
        )
        return InferenceResponse(model_name=self.name, outputs=[result])
