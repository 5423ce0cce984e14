"""InvokeEndpointAsync: input from S3, output or failure to S3, later."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from sagemaker_emulator.emulate.contract import PREFIX, Refused, validation_error
from sagemaker_emulator.emulate.endpoint import Endpoint, Variant
from sagemaker_emulator.emulate.places import bucket_and_key, carried_out, read_object
from sagemaker_emulator.host.calls import NoAnswer
from sagemaker_emulator.trouble import Trouble

INVOCATION_S, QUEUE_S = 900, 21_600  # the service's defaults
MAX_INLINE = 128_000
OUTPUT_LOCATION, FAILURE_LOCATION = f"{PREFIX}OutputLocation", f"{PREFIX}FailureLocation"


@dataclass(frozen=True)
class Job:
    """One request, as it waits.

    Args:
        endpoint: its name.
        variant: that answers it.
        call: what its headers say.
        body: the input where the call brings it; else it is in S3.
        output: where the answer goes, as bucket and key.
        failure: where the reason goes if there is none.
        begin: when it came.

    """

    endpoint: str
    variant: Variant
    call: Mapping[str, str]
    body: bytes
    output: tuple[str, str]
    failure: tuple[str, str] | None
    begin: float


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

    def __init__(  # noqa: PLR0913, PLR0917  all of it is needed
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
        job = Job(name, variant, call, body, output, failure, time.monotonic())
        self.workers.submit(self.run, job)
        headers = {OUTPUT_LOCATION: url_of(output)}
        if failure:
            headers[FAILURE_LOCATION] = url_of(failure)
        return {"InferenceId": inference_id}, headers

    def run(self, job: Job) -> None:
        """Answer a request, and write the output, or why there is none."""
        begin = time.monotonic()
        try:
            content, content_type = self.answer(job, begin)
            where = job.output
            outcome = f"output in {url_of(where)}"
        except (Refused, Trouble, NoAnswer) as error:
            job.variant.failures += 1
            content, content_type = f"{error}".encode(), "text/plain"
            where = job.failure  # type: ignore[assignment]
            outcome = f"failed: {error}" + f"; in {url_of(where)}" * bool(where)
        if where:
            try:
                carried_out(
                    self.client.put_object,
                    Bucket=where[0],
                    Key=where[1],
                    Body=content,
                    ContentType=content_type,
                )
            except Trouble as error:
                outcome = f"cannot be written to {url_of(where)}: {error}"
        self.say(f"InvokeEndpointAsync {outcome} ({time.monotonic() - begin:.2f} s)")

    def answer(self, job: Job, begin: float) -> tuple[bytes, str]:
        waited = begin - job.begin
        if waited > int(job.call.get("RequestTTLSeconds", QUEUE_S)):
            raise Trouble(f"the request expired: it waited {waited:.0f} s")
        seconds = float(job.call.get("InvocationTimeoutSeconds", INVOCATION_S))
        body = job.body or read_object(self.client, *bucket_and_key(job.call["InputLocation"]))
        job.variant.requests += 1
        answer = self.endpoint.ask(job.endpoint, job.variant, body, job.call, seconds)
        content_type = answer.headers.get("Content-Type", "application/octet-stream")
        return answer.read(begin + seconds), content_type


def below(place: tuple[str, str], *parts: str) -> tuple[str, str]:
    """Return the bucket and the key of what is below a prefix."""
    bucket, prefix = place
    return bucket, "/".join(filter(None, (part.strip("/") for part in (prefix, *parts))))


def url_of(place: tuple[str, str]) -> str:
    return f"s3://{place[0]}/{place[1]}"
