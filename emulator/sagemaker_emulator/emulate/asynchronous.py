"""InvokeEndpointAsync: input from S3, output or failure to S3, later."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from sagemaker_emulator.emulate.contract import PREFIX, Refused, validation_error
from sagemaker_emulator.emulate.endpoint import Endpoint
from sagemaker_emulator.emulate.s3 import call_s3, read_object, split_url
from sagemaker_emulator.host.calls import NoAnswer
from sagemaker_emulator.trouble import Trouble

INVOCATION_S, QUEUE_S = 900, 21_600  # the service's defaults
MAX_INLINE = 128_000
say = logging.getLogger(__name__).info
OUTPUT_LOCATION, FAILURE_LOCATION = f"{PREFIX}OutputLocation", f"{PREFIX}FailureLocation"


class AsyncCalls:
    """Takes requests and answers them, some `at_once`, below `s3://bucket/prefix`.

    Without a place for failures these are only shown.
    """

    def __init__(self, client: Any, output: str, failure: str, at_once: int) -> None:
        self.client = client
        self.output = split_url(output)
        self.failure = split_url(failure) if failure else None
        self.workers = ThreadPoolExecutor(at_once, "async")

    def close(self) -> None:
        self.workers.shutdown(wait=False, cancel_futures=True)

    def submit(
        self, endpoint: Endpoint, name: str, call: Mapping[str, str], body: bytes
    ) -> tuple[dict[str, str], dict[str, str]]:
        """Take a request, or raise Refused; return the service's answer, and its headers."""
        location = call.get("InputLocation", "")
        if bool(location) == bool(body):
            raise validation_error("Provide exactly one of InputLocation and Body")
        if len(body) > MAX_INLINE:
            raise validation_error(f"Body must have length less than or equal to {MAX_INLINE}")
        if location:
            try:
                split_url(location)
            except Trouble as error:
                raise validation_error(f"InputLocation {error}") from error
        endpoint.refuse_wrong(name, call)
        inference_id = call.get("InferenceId") or str(uuid.uuid4())
        extension = call.get("S3OutputPathExtension", "")
        output = below(self.output, extension, call.get("Filename", f"{inference_id}.out"))
        failure = self.failure and below(self.failure, extension, f"{inference_id}-error.out")
        answer = partial(self.answer, endpoint, name, call, body, time.monotonic())
        self.workers.submit(self.run, answer, output, failure)
        headers = {OUTPUT_LOCATION: url_of(output)}
        if failure:
            headers[FAILURE_LOCATION] = url_of(failure)
        return {"InferenceId": inference_id}, headers

    def run(
        self,
        answer: Callable[[], tuple[bytes, str]],
        output: tuple[str, str],
        failure: tuple[str, str] | None,
    ) -> None:
        """Answer a request, and write the output, or why there is none."""
        begin = time.monotonic()
        where: tuple[str, str] | None = output
        try:
            content, content_type = answer()
            outcome = "output"
        except (Refused, Trouble, NoAnswer) as error:
            outcome, where = f"failed: {error}", failure
            content, content_type = f"{error}".encode(), "text/plain"
        if where:
            outcome += f" in {url_of(where)}"
            try:
                bucket, key = where
                more = {"Body": content, "ContentType": content_type}
                call_s3(self.client.put_object, Bucket=bucket, Key=key, **more)
            except Trouble as error:
                outcome = f"cannot be written to {url_of(where)}: {error}"
        say(f"InvokeEndpointAsync {outcome} ({time.monotonic() - begin:.2f} s)")

    def answer(
        self, endpoint: Endpoint, name: str, call: Mapping[str, str], body: bytes, came: float
    ) -> tuple[bytes, str]:
        """Return the content and the type of the container's answer to a request."""
        begin = time.monotonic()
        if begin - came > int(call.get("RequestTTLSeconds", QUEUE_S)):
            raise Trouble(f"the request expired: it waited {begin - came:.0f} s")
        seconds = float(call.get("InvocationTimeoutSeconds", INVOCATION_S))
        body = body or read_object(self.client, *split_url(call["InputLocation"]))
        answer = endpoint.ask(name, body, call, seconds)
        content_type = answer.headers.get("Content-Type", "application/octet-stream")
        return answer.read(begin + seconds), content_type


def below(place: tuple[str, str], *parts: str) -> tuple[str, str]:
    """Return the bucket and the key of what is below a prefix."""
    bucket, prefix = place
    return bucket, "/".join(filter(None, (part.strip("/") for part in (prefix, *parts))))


def url_of(place: tuple[str, str]) -> str:
    return f"s3://{place[0]}/{place[1]}"
