"""Reads captured requests: lines as SageMaker's data capture writes them, in order of time."""

from __future__ import annotations

import base64
import heapq
import io
import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path, PurePosixPath
from typing import IO, Any
from urllib.parse import quote

from container.trouble import Trouble
from dispatcher.log_lines import HIDDEN
from dispatcher.rollout.capture_files import LINES, MARK
from dispatcher.s3.client import S3, Location
from tool.engines.offline import settings_here

OPEN_FILES = 16  # that are read side by side: each web worker has written its own
LARGEST = 2**26  # bytes of a line, or of a file in S3
WAITING = ("queue", "s3", "total")  # phases that say nothing about the model
WITHOUT = "have no payload; set CAPTURE_PAYLOADS=true where they are captured"
BUSY, FAULT = 429, 500  # and more: no answers of a model


@dataclass(frozen=True)
class CapturedLine:
    """A captured request, its body and its answer as they are kept."""

    at: float  # when it came, in seconds since 1970
    request_id: str
    model: str
    kinds: Mapping[str, str]  # how answers are compared, by model: see `clients.tensors.agreement`
    confidence: float  # the least score of an object that was answered
    status: int
    ms: float  # in the model and its client, without waiting for a slot; 0 where it is unknown
    path: str  # with the query
    headers: Mapping[str, str]
    sent: Mapping[str, Any]  # `observedContentType`, `data` and `encoding`
    answered: Mapping[str, Any]  # the same
    answer_type: str
    files: Sequence[str]  # beside it; in `data` each is named by `MARK`
    file: str  # with its line


@dataclass
class CapturedRequests:
    """The requests in a folder, or below a prefix in S3, that can be sent again."""

    place: str
    model: str = ""  # whose requests are wanted alone
    skipped: Counter[str] = field(default_factory=Counter)  # the others, by reason

    def __post_init__(self) -> None:
        self._prefix = Location.of(self.place)
        self._s3 = S3.of(settings_here())

    def __iter__(self) -> Iterator[CapturedLine]:
        # What a server that captures its answers to these adds meanwhile is not replayed.
        if self._prefix:
            objects = self._s3.list(self._prefix, math.inf)
            sizes = [(one.location.key, one.size) for one in objects]
        else:
            path = Path(self.place)
            files = sorted(one for one in (path, *path.rglob(f"*{LINES}")) if one.is_file())
            sizes = [(file.as_posix(), file.stat().st_size) for file in files]
        if not (found := [one for one in sizes if one[0].endswith(LINES)]):
            raise Trouble(f"{self.place} has no {LINES} files; name what CAPTURE_TO names")
        for at in range(0, len(found), OPEN_FILES):
            some = (self._read(*one) for one in found[at : at + OPEN_FILES])
            yield from heapq.merge(*some, key=lambda line: line.at)

    def _open(self, name: str) -> IO[bytes]:
        if self._prefix is None:
            return Path(name).open("rb")
        return io.BytesIO(self._s3.get(Location(self._prefix.bucket, name), math.inf, LARGEST))

    def _read(self, name: str, left: int) -> Iterator[CapturedLine]:
        with self._open(name) as file:
            while left > 0 and (text := file.readline(LARGEST)):
                left -= len(text)
                try:
                    line = read_line(json.loads(text), name)
                except (AttributeError, LookupError, RecursionError, TypeError, ValueError):
                    self.skipped["are cut off, or no captured requests"] += 1
                    continue
                if self.model not in ("", line.model):
                    continue
                if line.status == BUSY or line.status >= FAULT:
                    self.skipped["had failed for want of time or of a slot"] += 1
                elif left_out := line.sent.get("left_out") or line.answered.get("left_out"):
                    self.skipped[f"are not whole: {left_out}"] += 1
                elif "data" not in line.sent:
                    self.skipped[WITHOUT] += 1
                else:
                    yield line

    def restore(self, line: CapturedLine, part: Mapping[str, Any]) -> bytes:
        """Return a body or an answer as it was, with the files that are kept beside its line.

        Raises OSError, InferenceError: one of these cannot be read.
        """
        text, folder = str(part["data"]), PurePosixPath(line.file).parent
        for name in line.files:
            if (mark := f"{MARK}{name}") in text:
                place = str(folder / name)
                if not (self._prefix or is_inside(Path(place), Path(folder))):
                    raise FileNotFoundError
                with self._open(place) as file:
                    text = text.replace(mark, base64.b64encode(file.read()).decode())
        return base64.b64decode(text) if part.get("encoding") == "BASE64" else text.encode()


def read_line(document: Any, file: str) -> CapturedLine:
    """Read a line; raise AttributeError, LookupError, TypeError, ValueError if it is none."""
    data, event, own = (document[name] for name in ("captureData", "eventMetadata", "dispatcher"))
    sent, answered = data["endpointInput"], data["endpointOutput"]
    headers = {"Content-Type": sent["observedContentType"], "X-Request-Id": event["eventId"]}
    files, model, query = own.get("files", ()), own.get("model", "-"), own.get("query")
    if any(name.startswith("/") or ".." in name for name in files):
        raise ValueError("files elsewhere")
    if not own["path"].startswith("/"):  # it would be another host
        raise ValueError("no path")
    if HIDDEN.search(f"{model}{event['eventId']}"):
        raise ValueError("control characters")
    return CapturedLine(
        at=datetime.fromisoformat(event["inferenceTime"]).timestamp(),
        request_id=event["eventId"],
        model=model,
        kinds=dict(zip(model.split(","), own.get("compared_as", "").split(","), strict=False)),
        confidence=float(own.get("parameters", {}).get("confidence", 0)),
        status=int(own["status"]),
        ms=own_time(own.get("phases_ms", {})),
        path=quote(own["path"]) + (f"?{query}" if query else ""),
        headers={**headers, **own.get("headers", {})},
        sent=sent,
        answered=answered,
        answer_type=answered["observedContentType"],
        files=files,
        file=file,
    )


def is_inside(file: Path, folder: Path) -> bool:
    """Whether a path is a file in a folder, and no link that leads out of it."""
    return file.is_file() and file.resolve().is_relative_to(folder.resolve())


def own_time(phases: Mapping[str, str | float]) -> float:
    """Return the milliseconds of a request in its model and the model's client."""
    return sum(float(ms) for name, ms in phases.items() if name not in WAITING)


def parse_json(text: str | bytes) -> Any:
    """Return a document; None where the text is none."""
    try:
        return json.loads(text)
    except (RecursionError, TypeError, ValueError):
        return None
