"""What is asked and what comes: the values that all checks share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from email.message import Message
from pathlib import Path

from sagemaker_emulator.host.limits import Limits

SHOWN = 200  # bytes of an answer


class Failed(Exception):
    """A check has failed; the text is what came."""


class NotApplicable(Exception):
    """A check cannot be made here; the text says why."""


@dataclass(frozen=True)
class Request:
    """The body of a request to /invocations."""

    body: bytes
    content_type: str
    accept: str = ""

    def headers(self) -> dict[str, str]:
        accept = {"Accept": self.accept} if self.accept else {}
        return {"Content-Type": self.content_type, **accept}


@dataclass(frozen=True)
class Reply:
    """An answer.

    Args:
        status: of HTTP.
        headers: of the answer.
        body: of the answer.
        first_s: from the request to the first byte of the body.
        last_s: from the request to the last byte.
        pieces: in how many pieces the body came.

    """

    status: int
    headers: Message
    body: bytes
    first_s: float
    last_s: float
    pieces: int

    @property
    def good(self) -> bool:
        return 200 <= self.status < 300

    def __str__(self) -> str:
        text = " ".join(self.body[:SHOWN].decode(errors="replace").split())
        return f"{self.status} {text}".strip()


@dataclass(frozen=True)
class Settings:
    """What the command line says.

    Args:
        model: the folder for /opt/ml/model.
        models: a folder for each model of a multi-model endpoint.
        environment: of the container.
        request: that is answered well; None to look for an example in /openapi.json.
        stream: that is answered by a stream.
        slow: that takes seconds.
        parallel: how many requests are sent at the same time.
        limits: of the service.

    """

    model: Path | None = None
    models: Path | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    request: Request | None = None
    stream: Request | None = None
    slow: Request | None = None
    parallel: int = 8
    limits: Limits = field(default_factory=Limits)
