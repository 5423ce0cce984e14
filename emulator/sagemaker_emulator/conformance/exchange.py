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
    """An answer; of status 0 where none came, with the reason in its place."""

    status: int
    body: bytes
    headers: Message = field(default_factory=Message)
    first_s: float = 0.0  # from the request to the first byte of the body
    last_s: float = 0.0  # from the request to the last byte

    @property
    def good(self) -> bool:
        return 200 <= self.status < 300

    def __str__(self) -> str:
        text = " ".join(self.body[:SHOWN].decode(errors="replace").split())
        return f"{self.status or ''} {text}".strip()


@dataclass(frozen=True)
class Settings:
    """What the command line says."""

    model: Path | None = None  # the folder for /opt/ml/model
    models: Path | None = None  # with a folder for each model of a multi-model endpoint
    environment: Mapping[str, str] = field(default_factory=dict)
    request: Request | None = None  # that is answered well
    stream: Request | None = None  # that is answered by a stream
    slow: Request | None = None  # that takes seconds
    parallel: int = 8  # requests that are sent at the same time
    limits: Limits = field(default_factory=Limits)
