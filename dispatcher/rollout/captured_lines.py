"""The line of a captured request: that of SageMaker's data capture, and what is known here besides.

Files, such as pictures in base64, are written beside the lines: in `data` each is named, as
`@file:PATH`, in the place of its base64. docs/operations.md has the format.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import parse_qsl, urlencode

from dispatcher.codecs.content_types import JSON_SIGNATURE
from dispatcher.codecs.media import IMAGE_SIGNATURE, SOUND_SIGNATURE
from dispatcher.codecs.metadata import ATTRIBUTES, format_attributes, read_attributes
from dispatcher.codecs.responses import CSV, dumps
from dispatcher.log_lines import json_line, timestamp
from dispatcher.rollout.capture import INFERENCE_ID, MAX_PART, CapturedRequest

HASH = "hash"  # what is done to a hidden field that is not left out
LEAST_FILE = 1024  # characters of base64 that become a file
BASE64 = re.compile(rf'(?<=[",])[A-Za-z0-9+/]{{{LEAST_FILE},}}={{0,2}}(?=")')
FIRST_ERROR = 400


@dataclass(frozen=True)
class CapturedLines:
    """Makes the lines."""

    payloads: bool  # whether they have bodies, and answers that are no text
    # What is not written as it is, by the name of a field at any depth, of a parameter or tensor.
    hidden: Mapping[str, str]
    # Returns `version`, `engine`, `precision` and `compared_as` of a model in a version, which is
    # empty for the latest.
    describe: Callable[[str, str], Mapping[str, str]]

    def make(self, one: CapturedRequest, keep: Callable[[bytes], str]) -> bytes:
        """Return the line of a request; `keep` writes a file beside it, and returns its path."""
        record, files, headers, query = one.record, list[str](), dict(one.headers), one.query
        if self.hidden:
            attributes = self.hide(read_attributes(headers.get(ATTRIBUTES, "")))
            headers[ATTRIBUTES] = format_attributes(attributes)
            pairs = parse_qsl(query, keep_blank_values=True)
            query = urlencode([(k, v) for k, old in pairs for v in self.hide({k: old}).values()])

        def put_aside(content: bytes) -> str:
            files.append(keep(content))
            return f"@file:{files[-1]}"

        body, answer = one.body, one.answer
        if record.status >= FIRST_ERROR and self.shortens_errors:
            error = {"code": record.code, "message": record.message}
            answer = [dumps({"error": error}).encode()]
        parts = [("INPUT", one.content_type, body), ("OUTPUT", one.answer_type, answer)]
        data = [
            {"observedContentType": media_type, "mode": mode}
            | (self.encode(pieces, media_type, put_aside) if self.payloads or pieces else {})
            for mode, media_type, pieces in parts
        ]
        choice, known = record.choice, record.known and len(record.models) == 1
        answers = choice.model or "".join(record.models), choice.version or record.version
        kinds = [self.describe(name, "").get("compared_as", "") for name in record.models]
        seconds = {"queue": record.queue, "s3": record.s3, "total": record.total}
        seconds |= dict(record.timings.seconds) if record.timings else {}
        metadata = {
            "eventId": record.request_id,
            "inferenceTime": timestamp(record.at),
            "inferenceId": headers.pop(INFERENCE_ID, ""),
            "customAttributes": list(filter(None, [headers.get(ATTRIBUTES)])),
        }
        ours = {
            "model": ",".join(record.models),
            "asked_version": record.version,
            "choice": choice.of,
            "answered_by": choice.model,
            "compared_as": ",".join(kinds),
            **(self.describe(*answers) if known else {}),
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
                "captureData": {"endpointInput": data[0], "endpointOutput": data[1]},
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
        except UnicodeDecodeError:
            text = ""
        is_media = IMAGE_SIGNATURE.match(content) or SOUND_SIGNATURE.match(content)
        is_json = text and JSON_SIGNATURE.match(content)
        if is_json and (self.hidden or ('"error"' in text and self.shortens_errors)):
            try:
                text = self.hide_in(text)
            except (ValueError, RecursionError):
                is_json = None
        if is_json:
            data, encoding = BASE64.sub(partial(move_base64, put_aside), text), "JSON"
        elif content and self.hidden and not is_media:
            return {"left_out": "CAPTURE_HIDE is set, and only JSON has fields that can be hidden"}
        elif content and not (text or self.payloads):  # a drawn picture is a copy of what came
            return {"left_out": "it is no text, and CAPTURE_PAYLOADS is not true"}
        elif media_type.startswith(CSV):
            data, encoding = text, "CSV"
        else:
            small = len(content) < LEAST_FILE
            data = base64.b64encode(content).decode() if small else put_aside(content)
            encoding = "BASE64"
        return {"data": data, "encoding": encoding}

    def hide_in(self, text: str) -> str:
        """Return a JSON document, or some on lines, without what is hidden.

        Raises ValueError, RecursionError: it is neither.
        """
        try:
            documents = [json.loads(text)]
        except ValueError:
            documents = [json.loads(line) for line in text.split("\n") if line.strip()]
        return "\n".join(dumps(self.hide(one)) for one in documents)

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


def move_base64(put_aside: Callable[[bytes], str], match: re.Match[str]) -> str:
    """Return what stands for a file in base64, which is put aside; other text as it is."""
    try:
        content = base64.b64decode(match[0], validate=True)
    except binascii.Error:
        return match[0]
    return put_aside(content) if base64.b64encode(content).decode() == match[0] else match[0]
