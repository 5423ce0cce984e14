"""Batch transform: each file of a folder or prefix is sent, and answered by a file `NAME.out`."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from http import HTTPStatus
from itertools import islice
from typing import Any

from sagemaker_emulator.emulate.contract import Refused
from sagemaker_emulator.emulate.endpoint import Endpoint
from sagemaker_emulator.emulate.places import Place
from sagemaker_emulator.host.calls import NoAnswer, ask_text
from sagemaker_emulator.host.limits import MB
from sagemaker_emulator.trouble import Trouble

SINGLE, MULTI = "SingleRecord", "MultiRecord"
STRATEGIES = {"SINGLE_RECORD": SINGLE, "MULTI_RECORD": MULTI}
LINE, NONE = "Line", "None"
PARAMETERS_S, ANSWER_S = 10.0, 600.0
DEFAULTS = {"strategy": MULTI, "max_payload_mb": 6, "at_once": 1}
SHOWN = 300


@dataclass(frozen=True)
class Job:
    """A transform job; what is empty or 0 the container's /execution-parameters decide.

    Args:
        strategy: SingleRecord or MultiRecord.
        max_payload_mb: of a request.
        at_once: requests that the container gets at the same time.
        split: Line, or None for whole files.
        assemble: Line, or None to write answers one right after another.
        content_type: of the requests.
        accept: the type of the answers.

    """

    strategy: str = ""
    max_payload_mb: int = 0
    at_once: int = 0
    split: str = NONE
    assemble: str = NONE
    content_type: str = ""
    accept: str = ""

    def environment(self) -> dict[str, str]:
        """Return the variables that the service sets in a container for batch transform."""
        return {
            "SAGEMAKER_BATCH": "true",
            "SAGEMAKER_BATCH_STRATEGY": (self.strategy or MULTI)
            .replace("Record", "_Record")
            .upper(),
            "SAGEMAKER_MAX_PAYLOAD_IN_MB": str(self.max_payload_mb or DEFAULTS["max_payload_mb"]),
            "SAGEMAKER_MAX_CONCURRENT_TRANSFORMS": str(self.at_once or DEFAULTS["at_once"]),
        }


def completed(job: Job, endpoint: Endpoint, say: Callable[[str], None]) -> Job:
    """Return a job with what the container's /execution-parameters say, and the defaults."""
    found = execution_parameters(endpoint, say)
    wanted: dict[str, Any] = {
        name: getattr(job, name) or found.get(name) or default for name, default in DEFAULTS.items()
    }
    say(", ".join(f"{name} {value}" for name, value in wanted.items()))
    return replace(job, **wanted)


def execution_parameters(endpoint: Endpoint, say: Callable[[str], None]) -> dict[str, Any]:
    """Return what a container says of batch transform; nothing where it says nothing."""
    variant = endpoint.variants[0]
    until = time.monotonic() + PARAMETERS_S
    try:
        status, text = ask_text(
            variant.container.address, "GET", "/execution-parameters", until=until
        )
    except NoAnswer as error:
        say(f"GET /execution-parameters: {error}; using the defaults")
        return {}
    if status != HTTPStatus.OK:
        say(f"GET /execution-parameters is answered with {status}; using the defaults")
        return {}
    try:
        says = json.loads(text)
        return {
            "strategy": STRATEGIES[says.get("BatchStrategy", "MULTI_RECORD")],
            "max_payload_mb": int(says.get("MaxPayloadInMB", 0)),
            "at_once": int(says.get("MaxConcurrentTransforms", 0)),
        }
    except (ValueError, KeyError, TypeError, AttributeError):
        say(
            f"GET /execution-parameters is answered with {text[:SHOWN]!r}; expected "
            '{"MaxConcurrentTransforms": 1, "BatchStrategy": "MULTI_RECORD", "MaxPayloadInMB": 6}; '
            "using the defaults"
        )
        return {}


def transform(
    job: Job, source: Place, target: Place, endpoint: Endpoint, say: Callable[[str], None]
) -> int:
    """Send all that is in a place; return how many files failed.

    Raises:
        Trouble: there is no input, or a place cannot be read or written.

    """
    names = inputs(source)
    job = completed(job, endpoint, say)
    failed = 0
    for name in names:
        try:
            content, count = transformed(job, source.read(name), endpoint)
        except Refused as error:
            failed += 1
            say(f"{name}: failed: {error}")
            continue
        target.write(f"{name}.out", content)
        say(f"{name}: {count} requests, {len(content)} bytes in {name}.out")
    outcome = f"Failed: {failed}" if failed else f"Completed: {len(names)}"
    say(f"{outcome} of {len(names)} files")
    return failed


def inputs(source: Place) -> list[str]:
    """Return the names of what is in a place.

    Raises:
        Trouble: there is nothing, or it cannot be read.

    """
    if names := source.names():
        return names
    raise Trouble("there is no input; expected files in the folder, or objects at the prefix")


def transformed(job: Job, content: bytes, endpoint: Endpoint) -> tuple[bytes, int]:
    """Return the answers for a file in the order of its records, and how many there were.

    Raises:
        Refused: a record is too large, or the container does not answer one.

    """
    call: Mapping[str, str] = {
        name: value
        for name, value in (("ContentType", job.content_type), ("Accept", job.accept))
        if value
    }
    (variant, *_) = endpoint.variants

    def answered(body: bytes) -> bytes:
        until = time.monotonic() + ANSWER_S
        try:
            return endpoint.ask("transform", variant, body, call, ANSWER_S).read(until)
        except (Refused, NoAnswer) as error:
            status = error.fields.get("OriginalStatusCode", 0) if isinstance(error, Refused) else 0
            raise Refused(
                "ModelError", f"Bad HTTP status received from algorithm: {status}; {error}"
            ) from error

    bodies = requests_of(job, content)
    answers: list[bytes] = []
    workers = ThreadPoolExecutor(job.at_once, "transform")
    try:
        while some := list(islice(bodies, job.at_once)):
            answers += workers.map(answered, some)
    finally:  # after Ctrl-C nobody waits for the container
        workers.shutdown(wait=False, cancel_futures=True)
    if job.assemble == LINE:
        return b"".join(one.removesuffix(b"\n") + b"\n" for one in answers), len(answers)
    return b"".join(answers), len(answers)


def requests_of(job: Job, content: bytes) -> Iterator[bytes]:
    """Yield the bodies for a file: whole, a line each, or as many lines as fit into one.

    Raises:
        Refused: a record is larger than a request may be.

    """
    limit = job.max_payload_mb * MB
    records = [content] if job.split == NONE else content.removesuffix(b"\n").split(b"\n")
    together: list[bytes] = []
    size = 0
    for record in records:
        if len(record) > limit:
            raise Refused(
                "ModelError",
                f"a record has {len(record)} bytes; a request may have {limit} "
                "(--max-payload-mb, or MaxPayloadInMB of /execution-parameters)",
            )
        if together and (job.strategy == SINGLE or size + len(record) + 1 > limit):
            yield b"\n".join(together)
            together, size = [], 0
        together.append(record)
        size += len(record) + 1
    if together:
        yield b"\n".join(together)
