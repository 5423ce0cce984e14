"""Ask with Triton's own clients: over HTTP with retries, and over gRPC in one stream.

usage: python triton_clients.py 127.0.0.1:8080 127.0.0.1:8101
"""

import asyncio
import random
import sys
from collections import Counter

import numpy as np
import tritonclient.grpc.aio as grpc
import tritonclient.http.aio as http
from tritonclient.utils import InferenceServerException

HTTP, GRPC = sys.argv[1:]
CALLERS = 20
TRIES, FIRST_S, LONGEST_S = 100, 0.1, 5.0
BUSY = {"429", "503"}
seen: Counter[str] = Counter()


def tensors(client, number):
    """Return the inputs of a request; `client` is the module, for each has its own class."""
    x = client.InferInput("X", [1], "FP32")
    x.set_data_from_numpy(np.array([number], np.float32))
    return [x]


async def ask(client: http.InferenceServerClient, number: int) -> float:
    """Return the model's answer; wait and try again where the server is busy.

    Raises:
        InferenceServerException: any other error, or the server was busy too often.

    """
    backoff = FIRST_S
    for left in reversed(range(TRIES)):
        try:
            answer = await client.infer("slow", tensors(http, number))
        except InferenceServerException as error:
            seen[error.status()] += 1
            if error.status() not in BUSY or not left:
                raise
        else:
            return float(answer.as_numpy("Y")[0])
        await asyncio.sleep(random.uniform(0, backoff))
        backoff = min(2 * backoff, LONGEST_S)
    raise AssertionError


async def stream(client: grpc.InferenceServerClient, numbers: range) -> list[float]:
    """Return the answers to requests in one stream, in the order in which they come."""

    async def requests():
        for number in numbers:
            yield {"model_name": "slow", "inputs": tensors(grpc, number), "request_id": str(number)}

    answers = []
    async for answer, error in client.stream_infer(requests()):
        if error:
            raise error
        answers.append(float(answer.as_numpy("Y")[0]))
    return answers


async def main() -> None:
    async with http.InferenceServerClient(HTTP) as client:
        answers = await asyncio.gather(*(ask(client, number) for number in range(CALLERS)))
    right = sum(answer == 2 * number for number, answer in enumerate(answers))
    tried_again = "yes" if seen["429"] else "no"
    print(f"HTTP: {right} of {CALLERS} right; refused and tried again: {tried_again}")
    async with grpc.InferenceServerClient(GRPC) as client:
        answer = await client.infer("slow", tensors(grpc, 21))
        print("gRPC, one request:", float(answer.as_numpy("Y")[0]))
        print("gRPC, a stream of five:", await stream(client, range(5)))


asyncio.run(main())
