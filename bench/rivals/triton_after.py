"""The step of a Triton ensemble after the model: its output to an answer, as JSON."""

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
    """Outputs are finished one by one."""

    def initialize(self, args: Any) -> None:
        del args
        self.work = WORKS[os.environ["BENCH_MODEL"]](Path(os.environ["BENCH_REPOSITORY"]))

    def execute(self, requests: list[Any]) -> list[Any]:
        return [self.finished(request) for request in requests]

    def finished(self, request: Any) -> Any:
        output = pb_utils.get_input_tensor_by_name(request, "output").as_numpy()[0]
        kept = pb_utils.get_input_tensor_by_name(request, "kept").as_numpy()[0, 0]
        answer = json.dumps(self.work.finish(output, json.loads(kept))).encode()
        return pb_utils.InferenceResponse(
            [pb_utils.Tensor("result", np.array([[answer]], np.object_))]
        )
