"""The steps of a Triton ensemble around the model.

The one `before` makes tensors of a payload's text, the one `after` an answer, as JSON, of outputs.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

# Triton starts this file by its path.
sys.path.append(os.environ["BENCH_PROJECT"])

from bench.load.work import WORKS


class TritonPythonModel:
    """Requests are worked on one by one: the model between the steps batches them."""

    def initialize(self, args: Any) -> None:
        self.work = WORKS[os.environ["BENCH_MODEL"]](Path(os.environ["BENCH_REPOSITORY"]))
        self.step = self.prepared if args["model_name"] == "before" else self.finished

    def execute(self, requests: list[Any]) -> list[Any]:
        return [
            pb_utils.InferenceResponse(
                [pb_utils.Tensor(name, tensor) for name, tensor in self.step(request).items()]
            )
            for request in requests
        ]

    def prepared(self, request: Any) -> dict[str, Any]:
        text = pb_utils.get_input_tensor_by_name(request, "payload").as_numpy()[0, 0].decode()
        inputs, kept = self.work.prepare({self.work.takes: text})
        return {**inputs, "kept": np.array([[json.dumps(kept).encode()]], np.object_)}

    def finished(self, request: Any) -> dict[str, Any]:
        output, kept = (
            pb_utils.get_input_tensor_by_name(request, name).as_numpy()[0]
            for name in ("output", "kept")
        )
        answer = json.dumps(self.work.finish(output, json.loads(kept[0]))).encode()
        return {"result": np.array([[answer]], np.object_)}
