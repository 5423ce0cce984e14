"""A captured request, and its line: that of SageMaker's data capture, and what else is known.

Files, such as pictures in base64, are written beside the lines: in `data` each is named, as
`@file:PATH`, in the place of its base64. docs/operations.md has the format.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from urllib.parse import parse_qsl, urlencode

from flask import Response

from dispatcher.codecs.content_types import JSON_SIGNATURE, LINE_TYPES
from dispatcher.codecs.media import IMAGE_SIGNATURE, SOUND_SIGNATURE
from dispatcher.codecs.metadata import (
    ATTRIBUTES,
    INFERENCE_ID,
    SESSION,
    TARGET_MODEL,
    format_attributes,
    read_attributes,
)
from dispatcher.codecs.responses import CSV, dumps
from dispatcher.log_lines import json_line, timestamp
from dispatcher.rollout.capture_files import MARK
from dispatcher.telemetry.request_log import FIRST_ERROR, RequestRecord

MAX_PART = 8 * 2**20  # bytes of one body, or of one answer
LEAST_FILE = 1024  # characters of base64 that become a file
BASE64 = re.compile(rf'(?<=[",])[A-Za-z0-9+/]{{{LEAST_FILE},}}={{0,2}}(?=")')
HASH = "hash"  # what is done to a hidden field that is not left out
# What an answer depends on besides path, query and body, but for keys.
HEADERS = (
    *("Accept", "Content-Encoding", "Inference-Header-Content-Length", INFERENCE_ID),
    *(ATTRIBUTES, SESSION, TARGET_MODEL),
)


@dataclass(slots=True, eq=False)
class CapturedRequest:
    """A request as it comes, and its answer.

    Where payloads are captured it takes the place of `wsgi.input`: the body is read through it.
    """

    record: RequestRecord
    put: Callable[[CapturedRequest], None]  # called once the answer was sent
    content_type: str
    query: str
    headers: Mapping[str, str]  # those of `HEADERS`
    source: Any = None  # where the body comes from
    body: list[bytes] | None = None  # its pieces; None where it is not captured, or too large
    answer: list[bytes] | None = field(default_factory=list)  # the same of the answer
    answer_type: str = ""

    def read(self, size: int = -1) -> bytes:
        piece: bytes = self.source.read(size)
        if self.body is not None:
            self.body.append(piece)
        return piece

    def finish(self, response: Response) -> None:
        """Take the answer, which may be sent as it is made."""
        self.source, self.answer_type = None, response.content_type or ""
        pieces = self.collect(response.iter_encoded())
        response.response = [*pieces] if response.is_sequence else pieces
        response.call_on_close(partial(self.put, self))

    def collect(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        """Yield the pieces of an answer, and keep them until they are too large."""
        size = 0
        for piece in pieces:
            size += len(piece)
            if size > MAX_PART:
                self.answer = None
            if self.answer is not None:
                self.answer.append(piece)
            yield piece

    def measure(self) -> int:
        return sum(len(piece) for part in (self.body, self.answer) for piece in part or ())


@dataclass(frozen=True)
class CapturedLines:
    """Makes the lines of captured requests."""

    payloads: bool  # whether they have bodies, and answers that are no text
    # What is not written as it is, by the name of a field at any depth, of a parameter or tensor.
    hidden: Mapping[str, str]
    # Returns `version`, `engine`, `precision` and `compared_as` of a model in a version, which is
    # empty for the latest; nothing of an unknown model.
    describe: Callable[[str, str], Mapping[str, str]]

    def make(self, one: CapturedRequest, keep: Callable[[bytes], str]) -> bytes:
        """Return the line of a request; `keep` writes a file beside it, and returns its path."""
        record, files, headers, query = one.record, list[str](), dict(one.headers), one.query

        def put_aside(content: bytes) -> str:
            files.append(keep(content))
            return f"{MARK}{files[-1]}"

        if self.hidden:
            attributes = self.hide(read_attributes(headers.get(ATTRIBUTES, "")))
            headers[ATTRIBUTES] = format_attributes(attributes)
            pairs = parse_qsl(query, keep_blank_values=True)
            query = urlencode([(k, v) for k, old in pairs for v in self.hide({k: old}).values()])
        answer = one.answer
        if record.status >= FIRST_ERROR and self.shortens_errors:
            answer = [dumps({"error": {"code": record.code}}).encode()]
        sent: dict[str, str] = {"observedContentType": one.content_type, "mode": "INPUT"}
        if self.payloads:
            sent |= self.encode(one.body, one.content_type, put_aside)
        answered = {"observedContentType": one.answer_type, "mode": "OUTPUT"}
        answered |= self.encode(answer, one.answer_type, put_aside)
        seconds = {"queue": record.queue, "s3": record.s3, "total": record.total}
        seconds |= dict(record.timings.seconds) if record.timings else {}
        metadata = {
            "eventId": record.request_id,
            "inferenceTime": timestamp(record.at),
            "inferenceId": headers.pop(INFERENCE_ID, ""),
            "customAttributes": list(filter(None, [headers.get(ATTRIBUTES)])),
        }
        choice = record.choice  # (of one model alone)
        version = choice.version or record.version
        described = [self.describe(choice.model or name, version) for name in record.models]
        ours = {
            "model": ",".join(record.models),
            "asked_version": record.version,
            "choice": choice.of,
            "answered_by": choice.model,
            **(described[0] if len(described) == 1 else {}),
            "compared_as": ",".join(one.get("compared_as", "") for one in described),
            "path": record.path,
            "query": query,
            "headers": {name: text for name, text in headers.items() if text},
            "parameters": self.hide(dict(record.parameters)),
            "status": record.status,
            "code": record.code,
            "phases_ms": {name: round(1e3 * each, 3) for name, each in seconds.items() if each},
            "files": [*dict.fromkeys(files)],
        }
        return json_line(
            {
                "captureData": {"endpointInput": sent, "endpointOutput": answered},
                "eventMetadata": {name: value for name, value in metadata.items() if value},
                "eventVersion": "0",
                "dispatcher": {name: value for name, value in ours.items() if value},
            }
        )

    @property
    def shortens_errors(self) -> bool:
        """Whether the messages of errors are left out: they may quote from a body."""
        return bool(self.hidden) or not self.payloads

    def encode(
        self, pieces: list[bytes] | None, media_type: str, put_aside: Callable[[bytes], str]
    ) -> dict[str, str]:
        """Return `data` and `encoding` of a body or an answer, or why it is left out."""
        if pieces is None:
            return {"left_out": f"it is larger than {MAX_PART // 2**20} MiB"}
        content = b"".join(pieces)
        try:
            text = content.decode()
            if is_json := JSON_SIGNATURE.match(content):
                text = self.hide_in(text, media_type)
        except (ValueError, RecursionError):
            text, is_json = "", None
        is_media = IMAGE_SIGNATURE.match(content) or SOUND_SIGNATURE.match(content)
        if content and self.hidden and not (is_json or is_media):
            return {"left_out": "CAPTURE_HIDE is set, and only JSON has fields that can be hidden"}
        if content and not (text or self.payloads):  # a drawn picture is a copy of what came
            return {"left_out": "it is no text, and CAPTURE_PAYLOADS is not true"}
        if is_json:
            moved = BASE64.sub(lambda match: move_base64(match[0], put_aside), text)
            return {"data": moved, "encoding": "JSON"}
        if text and media_type.startswith(CSV):
            return {"data": text, "encoding": "CSV"}
        small = len(content) < LEAST_FILE
        data = base64.b64encode(content).decode() if small else put_aside(content)
        return {"data": data, "encoding": "BASE64"}

    def hide_in(self, text: str, media_type: str) -> str:
        """Return JSON, or JSON lines if that is its type, without what is hidden.

        Raises ValueError, RecursionError: it is no JSON.
        """
        if not (self.hidden or ('"error"' in text and self.shortens_errors)):
            return text
        lines = text.split("\n") if media_type.partition(";")[0] in LINE_TYPES else [text]
        return "\n".join(dumps(self.hide(json.loads(line))) for line in lines if line.strip())

    def hide(self, value: Any) -> Any:
        """Return a value of JSON without what is hidden in it."""
        if isinstance(value, list):
            return [self.hide(one) for one in value]
        if not isinstance(value, dict):
            return value
        shown = dict[str, Any]()
        for name, one in value.items():
            # (The data of a tensor have the tensor's name beside them.)
            tensor = value.get("name") if name == "data" else None
            how = self.hidden.get(tensor if isinstance(tensor, str) else name)
            if how == HASH:
                text = one if isinstance(one, str) else dumps(one)
                shown[name] = f"sha256:{hashlib.sha256(text.encode()).hexdigest()[:32]}"
            elif how is None and name == "error" and self.shortens_errors:
                shown[name] = {"code": one.get("code")} if isinstance(one, dict) else None
            elif how is None:
                shown[name] = self.hide(one)
        return shown


def move_base64(text: str, put_aside: Callable[[bytes], str]) -> str:
    """Return what stands for a file in base64, which is put aside; other text as it is."""
    content = base64.b64decode(text) if len(text) % 4 == 0 else b""
    return put_aside(content) if base64.b64encode(content).decode() == text else text
