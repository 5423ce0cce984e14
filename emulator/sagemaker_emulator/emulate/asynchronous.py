"""InvokeEndpointAsync: input from S3, output or failure to S3, later."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from sagemaker_emulator.emulate.contract import PREFIX, Refused, validation_error
from sagemaker_emulator.emulate.endpoint import Endpoint, Variant
from sagemaker_emulator.emulate.places import bucket_and_key, carried_out, read_object
from sagemaker_emulator.host.calls import NoAnswer
from sagemaker_emulator.trouble import Trouble

INVOCATION_S, QUEUE_S = 900, 21_600  # the service's defaults
MAX_INLINE = 128_000
OUTPUT_LOCATION, FAILURE_LOCATION = f"{PREFIX}OutputLocation", f"{PREFIX}FailureLocation"


class AsyncCalls:
    """Takes requests and answers them one after another, some at a time.

    Args:
        endpoint: that answers them.
        client: boto3's, for S3.
        output: `s3://bucket/prefix` for answers.
        failure: the same for failures; may be empty.
        at_once: requests that a container gets at the same time.
        say: takes a line for each request.

    """

    def __init__(  # noqa: PLR0917  all of it is needed
        self,
        endpoint: Endpoint,
        client: Any,
        output: str,
        failure: str,
        at_once: int,
        say: Callable[[str], None],
    ) -> None:
        self.endpoint, self.client, self.say = endpoint, client, say
        self.output = bucket_and_key(output)
        self.failure = bucket_and_key(failure) if failure else None
        self.workers = ThreadPoolExecutor(at_once, "async")

    def close(self) -> None:
        self.workers.shutdown(wait=False, cancel_futures=True)

    def submit(
        self, name: str, call: Mapping[str, str], body: bytes
    ) -> tuple[dict[str, str], dict[str, str]]:
        """Take a request; return the body and the headers of the service's answer.

        Raises:
            Refused: it has no input, or two; or its location is not in S3.

        """
        location = call.get("InputLocation", "")
        if bool(location) == bool(body):
            raise validation_error("Provide exactly one of InputLocation and Body")
        if len(body) > MAX_INLINE:
            raise validation_error(f"Body must have length less than or equal to {MAX_INLINE}")
        if location:
            try:
                bucket_and_key(location)
            except Trouble as error:
                raise validation_error(f"InputLocation {error}") from error
        inference_id = call.get("InferenceId") or str(uuid.uuid4())
        extension = call.get("S3OutputPathExtension", "")
        file_name = call.get("Filename", f"{inference_id}.out")
        output = below(self.output, extension, file_name)
        failure = self.failure and below(self.failure, extension, f"{inference_id}-error.out")
        variant = self.endpoint.choose(name, call)
        wait = partial(self.answer, name, variant, call, body, time.monotonic())
        self.workers.submit(self.run, wait, output, failure)
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
        begin, where = time.monotonic(), output
        try:
            content, content_type = answer()
            outcome = f"output in {url_of(where)}"
        except (Refused, Trouble, NoAnswer) as error:
            outcome = f"failed: {error}"
            content, content_type = f"{error}".encode(), "text/plain"
            if failure is None:
                self.say(f"InvokeEndpointAsync {outcome}")
                return
            where = failure
            outcome += f"; in {url_of(where)}"
        try:
            bucket, key = where
            more = {"Body": content, "ContentType": content_type}
            carried_out(self.client.put_object, Bucket=bucket, Key=key, **more)
        except Trouble as error:
            outcome = f"cannot be written to {url_of(where)}: {error}"
        self.say(f"InvokeEndpointAsync {outcome} ({time.monotonic() - begin:.2f} s)")

    def answer(
        self, name: str, variant: Variant, call: Mapping[str, str], body: bytes, came: float
    ) -> tuple[bytes, str]:
        """Return the content and the type of the container's answer to a request."""
        begin = time.monotonic()
        if begin - came > int(call.get("RequestTTLSeconds", QUEUE_S)):
            raise Trouble(f"the request expired: it waited {begin - came:.0f} s")
        seconds = float(call.get("InvocationTimeoutSeconds", INVOCATION_S))
        body = body or read_object(self.client, *bucket_and_key(call["InputLocation"]))
        answer = self.endpoint.ask(name, variant, body, call, seconds)
        content_type = answer.headers.get("Content-Type", "application/octet-stream")
        return answer.read(begin + seconds), content_type


def below(place: tuple[str, str], *parts: str) -> tuple[str, str]:
    """Return the bucket and the key of what is below a prefix."""
    bucket, prefix = place
    return bucket, "/".join(filter(None, (part.strip("/") for part in (prefix, *parts))))


def url_of(place: tuple[str, str]) -> str:
    return f"s3://{place[0]}/{place[1]}"
