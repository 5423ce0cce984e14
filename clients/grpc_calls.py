"""Unary calls of gRPC, each on a connection that it has for itself meanwhile.

gRPC's own client hands every call to threads of its own and back, which was most of what the web
worker spent on a model that does nothing (docs/performance.md). Here the thread that asks writes to
the socket and reads from it.

This is as much of HTTP/2 (RFC 9113) as that takes, and of gRPC on it
(https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md): one stream at a time, no
compression, and no table of headers, so that equal headers are equal bytes.
"""

from __future__ import annotations

import math
import socket
import struct
import time
import weakref
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from urllib.parse import unquote_to_bytes

import hpack
from grpc import StatusCode

# Kinds of frames, their flags, and settings; RFC 9113, 6.
DATA, HEADERS, RST_STREAM, SETTINGS = 0x0, 0x1, 0x3, 0x4
PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 0x6, 0x7, 0x8, 0x9
END_STREAM = ACK = 0x1
END_HEADERS = 0x4
PADDED = 0x8
PRIORITY = 0x20
HEADER_TABLE_SIZE, ENABLE_PUSH, INITIAL_WINDOW_SIZE, MAX_FRAME_SIZE = 1, 2, 4, 5

HEAD = struct.Struct(">IBI")  # of a frame: its length in three bytes, its kind; flags; stream
FRAME_HEAD = HEAD.size
PRIORITY_BYTES = 5
MESSAGE_HEAD = 5  # whether it is compressed, and its length

# What may be sent until the other side says otherwise.
FIRST_WINDOW = 65_535
FIRST_FRAME = 16_384
LARGEST = 2**31 - 1  # window, or number of a stream
LAST_STREAM = LARGEST - 2  # another may follow
REFILL = 2**30  # bytes after which the other side may send as many more

PIECE = 2**16
MOST_HEADERS = 2**24  # bytes; the text of an error may be long
REMEMBERED = 512  # bytes of headers that may well come again

UNREADABLE = (ValueError, IndexError, struct.error, hpack.HPACKError)

CODES = {code.value[0]: code for code in StatusCode}
# What the end of a stream without a status means, by HTTP/2's code; all others are INTERNAL.
REFUSED_STREAM = 0x7
RESET = {
    REFUSED_STREAM: StatusCode.UNAVAILABLE,
    0x8: StatusCode.CANCELLED,
    0xB: StatusCode.RESOURCE_EXHAUSTED,
    0xC: StatusCode.PERMISSION_DENIED,
}


class CallFailed(Exception):
    """A call came to nothing.

    Args:
        code: why, in gRPC's terms.
        message: the server's, or what happened to the connection.

    """

    def __init__(self, code: StatusCode, message: str) -> None:
        super().__init__(code, message)
        self.code = code
        self.message = message


class NotTaken(CallFailed):
    """The server says that it has not looked at the call, which may be made again therefore.

    The source: https://github.com/grpc/proposal/blob/master/A6-client-retries.md, "Transparent
    Retries"; once, as there.
    """


class Connections:
    """The connections to a server that nobody uses just now. Safe for many threads.

    Args:
        address: of the server ("host:port").

    """

    def __init__(self, address: str) -> None:
        self.address = address
        self._idle: list[Connection] = []

    def take(self, deadline: float) -> Connection:
        """Return the one that was used last, which is the warmest, or a new one.

        Raises:
            CallFailed: the server is not there.

        """
        while self._idle:
            with suppress(IndexError):  # another thread was sooner
                connection = self._idle.pop()
                if connection.is_open(deadline):
                    return connection
                connection.close()
        host, _, port = self.address.rpartition(":")
        try:
            return Connection(socket.create_connection((host, int(port)), left(deadline)))
        except TimeoutError as error:
            raise late() from error
        except OSError as error:
            raise CallFailed(StatusCode.UNAVAILABLE, f"no connection: {error}") from error

    def give_back(self, connection: Connection) -> None:
        """Let the next call have it, or close it where none may follow."""
        if connection.usable:
            self._idle.append(connection)
        else:
            connection.close()


class Calls:
    """Calls of one method, which can be ended together. Safe for many threads.

    Args:
        connections: to its server.
        path: "/package.Service/Method".

    """

    def __init__(self, connections: Connections, path: str) -> None:
        self.abandoned = ""
        """Why they were ended, if they were."""
        self._connections = connections
        self._under_way: set[Connection] = set()
        self._headers = b"\x83\x86" + b"".join(  # :method POST, :scheme http
            literal(name, value)
            for name, value in (
                (":path", path),
                (":authority", connections.address),
                ("te", "trailers"),
                ("content-type", "application/grpc"),
                ("user-agent", "triton-dispatcher"),
            )
        )

    def call(self, message: bytes, timeout: float) -> bytes:
        """Return the answer to a message, both serialized.

        Args:
            message: to the method.
            timeout: seconds until the answer has to be there; the server is told.

        Raises:
            CallFailed: the server refuses, is late, or is not there; or the calls were abandoned.

        """
        deadline = time.monotonic() + timeout
        try:
            return self._call(message, deadline)
        except NotTaken:
            return self._call(message, deadline)

    def _call(self, message: bytes, deadline: float) -> bytes:
        connection = self._connections.take(deadline)
        self._under_way.add(connection)
        try:
            if self.abandoned:
                raise CallFailed(StatusCode.CANCELLED, self.abandoned)
            timeout = timeout_text(deadline - time.monotonic())
            headers = self._headers + literal("grpc-timeout", timeout)
            return connection.call(headers, message, deadline)
        finally:
            self._under_way.discard(connection)
            if self.abandoned:  # who does that may be about to end it
                connection.usable = False
            self._connections.give_back(connection)

    def abandon(self, reason: str) -> None:
        """Let all that was asked, and is not answered, fail; and all that is asked from now on."""
        self.abandoned = reason
        for connection in list(self._under_way):
            connection.end()


@dataclass
class Reply:
    """What has come on a stream.

    Args:
        headers: at the beginning and at the end.
        data: between them.
        ended: whether that is all.

    """

    headers: dict[bytes, bytes] = field(default_factory=dict)
    data: bytearray = field(default_factory=bytearray)
    ended: bool = False
    _block: bytes = b""
    _last: bool = False

    def take(self, kind: int, flags: int, payload: bytes) -> None:
        """Take in a frame.

        Raises:
            CallFailed: the server has ended the stream.

        """
        if kind == RST_STREAM:
            reason = int.from_bytes(payload, "big")
            failed = NotTaken if reason == REFUSED_STREAM else CallFailed
            raise failed(
                RESET.get(reason, StatusCode.INTERNAL), f"the call was reset (HTTP/2 {reason:#x})"
            )
        if flags & PADDED and kind in (DATA, HEADERS):
            payload = payload[1 : len(payload) - payload[0]]
        if kind == DATA:
            self.data += payload
            self.ended = bool(flags & END_STREAM)
        elif kind == HEADERS:
            self._block = payload[PRIORITY_BYTES:] if flags & PRIORITY else payload
            self._last = bool(flags & END_STREAM)
        elif kind == CONTINUATION:
            self._block += payload
        if kind in (HEADERS, CONTINUATION) and flags & END_HEADERS:
            self.headers.update(read_headers(self._block))
            self.ended = self._last

    def message(self) -> bytes:
        """Return the message that has come.

        Raises:
            CallFailed: there is another status than OK, or not one message.

        """
        if b"grpc-status" not in self.headers:
            status = self.headers.get(b":status", b"none").decode("latin-1")
            raise CallFailed(
                StatusCode.UNKNOWN, f"an answer without gRPC's status, HTTP's: {status}"
            )
        code = CODES.get(int(self.headers[b"grpc-status"]), StatusCode.UNKNOWN)
        if code != StatusCode.OK:
            said = unquote_to_bytes(self.headers.get(b"grpc-message", b""))
            raise CallFailed(code, said.decode(errors="replace"))
        size = len(self.data) - MESSAGE_HEAD
        if self.data[:MESSAGE_HEAD] != b"\0" + max(0, size).to_bytes(4, "big"):
            raise CallFailed(StatusCode.INTERNAL, "the answer is not one uncompressed message")
        return bytes(memoryview(self.data)[MESSAGE_HEAD:])


class Connection:
    """A connection to a server, which has one call at a time.

    Args:
        opened: to the server.

    Raises:
        OSError: the server has closed it.

    """

    def __init__(self, opened: socket.socket) -> None:
        self._socket = opened
        weakref.finalize(self, opened.close)  # nobody says that no model is asked any more
        self._came = bytearray()
        self._stream = -1
        self._window = self._stream_window = self._first_window = FIRST_WINDOW
        self._frame_size = FIRST_FRAME
        self._unacknowledged = 0
        self._leaving = False
        self.usable = True
        """Whether another call may follow."""
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        settings = struct.pack(
            ">HIHIHI", HEADER_TABLE_SIZE, 0, ENABLE_PUSH, 0, INITIAL_WINDOW_SIZE, LARGEST
        )
        refill = struct.pack(">I", LARGEST - FIRST_WINDOW)
        self._socket.sendall(
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
            + frame(SETTINGS, 0, 0, settings)
            + frame(WINDOW_UPDATE, 0, 0, refill)
        )

    def is_open(self, deadline: float) -> bool:
        """Whether the server has not closed it meanwhile; takes in what it has said since."""
        self._socket.settimeout(0)
        try:
            while piece := self._socket.recv(PIECE):
                self._came += piece
        except BlockingIOError:
            piece = b"more may come"
        except OSError:
            return False
        try:
            while not self._missing():
                self._follow(Reply(), deadline)
        except (CallFailed, OSError, *UNREADABLE):
            return False
        return bool(piece) and not self._leaving

    def call(self, headers: bytes, message: bytes, deadline: float) -> bytes:
        """Return the answer to a message.

        Args:
            headers: of the call.
            message: serialized.
            deadline: on the clock of `time.monotonic()`.

        Raises:
            CallFailed: there is none.

        """
        self.usable = False
        reply = Reply()
        try:
            all_sent = self._send(headers, message, reply, deadline)
            while not reply.ended:
                self._follow(reply, deadline)
            self.usable = all_sent and not self._leaving and self._stream < LAST_STREAM
            return reply.message()
        except CallFailed as error:
            # The server has seen that the time is over before we did.
            if error.code == StatusCode.CANCELLED and time.monotonic() >= deadline:
                raise late() from error
            raise
        except TimeoutError as error:
            raise late() from error
        except OSError as error:
            raise CallFailed(StatusCode.UNAVAILABLE, f"the connection broke: {error}") from error
        except UNREADABLE as error:
            # (Not INTERNAL, with which a server says that it has done with the call.)
            raise CallFailed(StatusCode.UNKNOWN, f"the answer cannot be read: {error}") from error

    def end(self) -> None:
        """Let the call fail that is under way, in whichever thread that is."""
        with suppress(OSError):
            # Not closed: its number might be another file's when that thread looks at it again.
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close it; nobody uses it any more."""
        self._socket.close()

    def _send(self, headers: bytes, message: bytes, reply: Reply, deadline: float) -> bool:
        """Send a call; return whether all was sent before the answer was complete."""
        self._stream += 2
        self._stream_window = self._first_window
        head = frame(HEADERS, END_HEADERS, self._stream, headers)
        body = b"\0" + len(message).to_bytes(4, "big") + message
        if len(body) <= min(self._window, self._stream_window, self._frame_size):
            self._put(head + frame(DATA, END_STREAM, self._stream, body), deadline)
            self._window -= len(body)
            return True
        self._put(head, deadline)
        rest = memoryview(body)
        while rest and not reply.ended:
            size = min(self._window, self._stream_window, self._frame_size)
            if size <= 0:
                self._follow(reply, deadline)
                continue
            piece, rest = rest[:size], rest[size:]
            self._put(frame(DATA, 0 if rest else END_STREAM, self._stream, piece), deadline)
            self._window -= len(piece)
            self._stream_window -= len(piece)
        return not rest

    def _put(self, data: bytes, deadline: float) -> None:
        self._socket.settimeout(left(deadline))
        self._socket.sendall(data)

    def _follow(self, reply: Reply, deadline: float) -> None:
        """Wait for the next frame, and do what it says."""
        kind, flags, stream, payload = self._next(deadline)
        if kind == DATA:
            self._unacknowledged += len(payload)
            if self._unacknowledged > REFILL:
                refill = struct.pack(">I", self._unacknowledged)
                self._put(frame(WINDOW_UPDATE, 0, 0, refill), deadline)
                self._unacknowledged = 0
        if kind in (SETTINGS, PING):
            if not flags & ACK:
                self._set(payload if kind == SETTINGS else b"")
                self._put(frame(kind, ACK, 0, payload if kind == PING else b""), deadline)
        elif kind == WINDOW_UPDATE:
            self._widen(stream, int.from_bytes(payload, "big"))
        elif kind == GOAWAY:
            self._leaving = True
            if self._stream > int.from_bytes(payload[:4], "big"):
                raise NotTaken(StatusCode.UNAVAILABLE, "the server is going away")
        elif stream == self._stream:  # else of a call that was given up
            reply.take(kind, flags, payload)

    def _widen(self, stream: int, more: int) -> None:
        if stream == 0:
            self._window += more
        elif stream == self._stream:
            self._stream_window += more

    def _set(self, settings: bytes) -> None:
        for key, value in struct.iter_unpack(">HI", settings):
            if key == INITIAL_WINDOW_SIZE:
                self._stream_window += value - self._first_window
                self._first_window = value
            elif key == MAX_FRAME_SIZE:
                self._frame_size = value

    def _missing(self) -> int:
        """Return how many bytes of the next frame have not come, as far as is known by now."""
        came = self._came
        if len(came) < FRAME_HEAD:
            return FRAME_HEAD - len(came)
        size: int = HEAD.unpack_from(came)[0] >> 8
        return max(0, FRAME_HEAD + size - len(came))

    def _next(self, deadline: float) -> tuple[int, int, int, bytes]:
        """Return the next frame: its kind, its flags, its stream, and what is in it."""
        while missing := self._missing():
            self._read(missing, deadline)
        came = self._came
        size_and_kind, flags, stream = HEAD.unpack_from(came)
        end = FRAME_HEAD + (size_and_kind >> 8)
        with memoryview(came) as view:
            payload = bytes(view[FRAME_HEAD:end])
        del came[:end]
        return size_and_kind & 0xFF, flags, stream & LARGEST, payload

    def _read(self, missing: int, deadline: float) -> None:
        """Read what has come, at least one byte."""
        self._socket.settimeout(left(deadline))
        piece = self._socket.recv(max(PIECE, missing))
        if not piece:
            raise ConnectionResetError("the server has closed it")
        self._came += piece


def frame(kind: int, flags: int, stream: int, payload: bytes | memoryview) -> bytes:
    """Return a frame of HTTP/2; RFC 9113, 4.1."""
    return b"".join((HEAD.pack(len(payload) << 8 | kind, flags, stream), payload))


def literal(name: str, value: str) -> bytes:
    """Return a header that no table has and that is not to be put into one; RFC 7541, 6.2.2.

    Raises:
        ValueError: name or value has 127 bytes or more.

    """
    texts = name.encode(), value.encode()
    if max(map(len, texts)) >= 127:
        raise ValueError(f"the header {name} is too long")
    return b"\0" + b"".join(bytes((len(text),)) + text for text in texts)


@lru_cache(maxsize=64)
def remembered_headers(block: bytes) -> tuple[tuple[bytes, bytes], ...]:
    # With a table of no size equal bytes mean equal headers, on every connection.
    decoder = hpack.Decoder(max_header_list_size=MOST_HEADERS)
    decoder.max_allowed_table_size = 0
    decoder.header_table_size = 0
    return tuple((bytes(name), bytes(value)) for name, value in decoder.decode(block, raw=True))


def read_headers(block: bytes) -> tuple[tuple[bytes, bytes], ...]:
    """Return names and values.

    Raises:
        hpack.HPACKError: these are no headers.

    """
    if len(block) > REMEMBERED:
        return remembered_headers.__wrapped__(block)
    return remembered_headers(block)


def timeout_text(seconds: float) -> str:
    """Return a time as gRPC writes it, in at most eight digits; never less than it is."""
    milliseconds = max(1, math.ceil(seconds * 1000))
    return f"{milliseconds}m" if milliseconds < 10**8 else f"{math.ceil(seconds)}S"


def left(deadline: float) -> float:
    """Return the seconds until then.

    Raises:
        TimeoutError: there are none.

    """
    seconds = deadline - time.monotonic()
    if seconds <= 0:
        raise TimeoutError
    return seconds


def late() -> CallFailed:
    return CallFailed(StatusCode.DEADLINE_EXCEEDED, "no answer came in time")
