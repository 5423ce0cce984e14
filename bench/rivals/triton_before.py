"""The step of a Triton ensemble before the model: a payload's text to tensors."""

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
    """Requests are prepared one by one: the model after it batches them."""

    def initialize(self, args: Any) -> None:
        del args
        self.work = WORKS[os.environ["BENCH_MODEL"]](Path(os.environ["BENCH_REPOSITORY"]))

    def execute(self, requests: list[Any]) -> list[Any]:
        return [self.prepared(request) for request in requests]

    def prepared(self, request: Any) -> Any:
        text = pb_utils.get_input_tensor_by_name(request, "payload").as_numpy()[0, 0].decode()
        inputs, kept = self.work.prepare({self.work.takes: text})
        tensors = {**inputs, "kept": np.array([[json.dumps(kept).encode()]], np.object_)}
        return pb_utils.InferenceResponse(
            [pb_utils.Tensor(name, tensor) for name, tensor in tensors.items()]
        )
