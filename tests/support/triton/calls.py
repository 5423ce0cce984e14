"""Calls of the real Triton."""

from __future__ import annotations

import urllib.request
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import tritonclient.grpc as grpc_client
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from tests.conftest import PATIENCE_S, wait_for
from tests.support.telemetry import parse_page, value
from tests.support.triton.process import Triton

ROW = np.zeros((1, 2), np.float32)


def ask(triton: Triton, model: str, *outputs: str, **inputs: np.ndarray[Any, Any]) -> Any:
    """Send one request and return its answer, or the error as a value."""
    tensors = []
    for name, array in inputs.items():
        tensors.append(
            grpc_client.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
        )
        tensors[-1].set_data_from_numpy(array)
    wanted = [grpc_client.InferRequestedOutput(name) for name in outputs]
    try:
        return triton.client.infer(
            model, tensors, outputs=wanted or None, client_timeout=PATIENCE_S
        )
    except InferenceServerException as error:
        return error


def ask_together(triton: Triton, model: str, requests: list[dict[str, Any]]) -> list[Any]:
    with ThreadPoolExecutor(len(requests)) as pool:
        return list(pool.map(lambda inputs: ask(triton, model, **inputs), requests))


def configuration(triton: Triton, model: str) -> dict[str, Any]:
    answer: dict[str, Any] = triton.client.get_model_config(model, as_json=True)["config"]
    return answer


def counts(triton: Triton, model: str) -> tuple[int, int]:
    """Return how many rows were inferred, and in how many executions."""
    stats = triton.client.get_inference_statistics(model).model_stats[0]
    return stats.inference_count, stats.execution_count


def counted(triton: Triton, model: str, rows: int) -> tuple[int, int]:
    """Return the counts when there are so many rows: Triton counts after it has answered."""
    wait_for(lambda: counts(triton, model)[0] >= rows, f"{rows} rows of {model}")
    return counts(triton, model)


def wait_until_pending(triton: Triton, **requests: int) -> None:
    """Wait until so many requests of each model wait in Triton's queues."""
    url = f"http://127.0.0.1:{triton.ports[2]}/metrics"
    name = "nv_inference_pending_request_count"

    def are_there() -> bool:
        with urllib.request.urlopen(url) as page:
            found = parse_page(page.read().decode())
        return all(value(found, name, model=model) == count for model, count in requests.items())

    wait_for(are_there, f"requests that wait: {requests}")
