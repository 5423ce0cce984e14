"""Frames of `application/vnd.amazon.eventstream`, in which the service streams an answer.

https://docs.aws.amazon.com/AmazonS3/latest/API/RESTSelectObjectAppendix.html has the format.
"""

from __future__ import annotations

import json
import struct
from binascii import crc32

CONTENT_TYPE = "application/vnd.amazon.eventstream"
STRING = 7


def frame(kind: str, name: str, content_type: str, payload: bytes) -> bytes:
    """Return a frame: lengths, their checksum, headers, payload, checksum of all."""
    headers = {":message-type": kind, f":{kind}-type": name, ":content-type": content_type}
    packed = b"".join(
        struct.pack(f"!B{len(name)}sBH{len(value)}s", len(name), name, STRING, len(value), value)
        for name, value in ((key.encode(), text.encode()) for key, text in headers.items())
    )
    prelude = struct.pack("!II", 16 + len(packed) + len(payload), len(packed))
    checked = prelude + struct.pack("!I", crc32(prelude)) + packed + payload
    return checked + struct.pack("!I", crc32(checked))


def payload_part(piece: bytes) -> bytes:
    return frame("event", "PayloadPart", "application/octet-stream", piece)


def model_stream_error(code: str, message: str) -> bytes:
    """Return the frame that ends a stream: ModelInvocationTimeExceeded or StreamBroken."""
    payload = json.dumps({"ErrorCode": code, "Message": message}).encode()
    return frame("exception", "ModelStreamError", "application/json", payload)
