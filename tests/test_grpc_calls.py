"""Calls of gRPC beside grpcio, and beside h2 for what a server may do that grpcio's does not."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

import grpc
import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import DataReceived, PingAckReceived, RequestReceived, StreamEnded
from h2.settings import SettingCodes

from clients.grpc_calls import CallFailed, Calls, Connections

PATH = "/test.Service/Call"
SOON_S = 10  # what is waited for comes much sooner
LONG = "ä%\n" * 5000


def refusing(message: bytes, context: grpc.ServicerContext) -> bytes:
    """Do what the message says, and answer it."""
    word, _, rest = message.partition(b" ")
    if word == b"sleep":
        gone = threading.Event()
        context.add_callback(gone.set)
        Server.cancelled = not context.is_active() or gone.wait(float(rest))
    if word == b"abort":
        context.abort(next(c for c in grpc.StatusCode if c.name == rest.decode()), LONG)
    if word == b"peer":
        return context.peer().encode()
    if word == b"left":
        return str(context.time_remaining()).encode()
    return message


class Server:
    """grpcio's own, of one method."""

    cancelled = False

    def __init__(self, port: int = 0) -> None:
        handler = grpc.unary_unary_rpc_method_handler(refusing)
        self.server = grpc.server(
            ThreadPoolExecutor(40),
            options=[("grpc.max_receive_message_length", -1), ("grpc.so_reuseport", 0)],
        )
        generic = grpc.method_handlers_generic_handler("test.Service", {"Call": handler})
        self.server.add_generic_rpc_handlers((generic,))
        self.port = self.server.add_insecure_port(f"127.0.0.1:{port}")
        self.server.start()

    def stop(self) -> None:
        self.server.stop(None).wait()


@pytest.fixture
def server() -> Iterator[Server]:
    started = Server()
    yield started
    started.stop()


@pytest.fixture
def calls(server: Server) -> Calls:
    return Calls(Connections(f"127.0.0.1:{server.port}"), PATH)


@pytest.mark.parametrize("size", [0, 1, 16_379, 16_380, 65_530, 65_531, 200_000, 5_000_000])
def test_a_message_comes_back_as_it_was_sent(calls: Calls, size: int) -> None:
    message = os.urandom(size)
    for _ in range(2):
        assert calls.call(message, SOON_S) == message


def test_messages_beyond_all_windows_of_one_connection(calls: Calls) -> None:
    message = os.urandom(300_000)
    for _ in range(50):
        assert calls.call(message, SOON_S) == message


@pytest.mark.parametrize("code", [code for code in grpc.StatusCode if code.value[0]])
def test_a_refusal_is_the_one_that_grpcio_reads(server: Server, calls: Calls, code: Any) -> None:
    with grpc.insecure_channel(
        f"127.0.0.1:{server.port}", [("grpc.absolute_max_metadata_size", 2**20)]
    ) as channel:
        with pytest.raises(grpc.RpcError) as theirs:
            channel.unary_unary(PATH)(f"abort {code.name}".encode(), timeout=SOON_S)
        with pytest.raises(CallFailed) as ours:
            calls.call(f"abort {code.name}".encode(), SOON_S)
        assert ours.value.code == theirs.value.code() == code  # type: ignore[attr-defined]
        assert ours.value.message == theirs.value.details() == LONG  # type: ignore[attr-defined]


def test_calls_one_after_the_other_share_a_connection(calls: Calls) -> None:
    peers = {calls.call(b"peer", SOON_S)}
    with pytest.raises(CallFailed):
        calls.call(b"abort NOT_FOUND", SOON_S)
    peers.add(calls.call(b"peer", SOON_S))
    assert len(peers) == 1


def test_the_server_knows_how_long_it_has(calls: Calls) -> None:
    assert 6 < float(calls.call(b"left", 7.0)) < 7.1
    assert 10**7 < float(calls.call(b"left", 10.0**7 * 1.1)) < 1.2 * 10**7


def test_a_late_answer_is_not_waited_for_and_the_server_hears_of_it(calls: Calls) -> None:
    began = time.monotonic()
    with pytest.raises(CallFailed) as late:
        calls.call(b"sleep 10", 0.2)
    assert late.value.code == grpc.StatusCode.DEADLINE_EXCEEDED
    assert 0.2 <= time.monotonic() - began < 5
    until = time.monotonic() + SOON_S
    while not Server.cancelled and time.monotonic() < until:
        time.sleep(0.01)
    assert Server.cancelled
    assert calls.call(b"again", SOON_S) == b"again"


def test_many_threads_get_their_own_answers(calls: Calls) -> None:
    def ask(number: int) -> bool:
        message = f"{number} ".encode() * (1 + number % 50 * 300)
        return calls.call(message, SOON_S) == message

    with ThreadPoolExecutor(32) as pool:
        assert all(pool.map(ask, range(600)))


def test_who_was_started_anew_is_asked_anew(server: Server, calls: Calls) -> None:
    assert calls.call(b"before", SOON_S) == b"before"
    server.stop()
    with pytest.raises(CallFailed) as gone:
        calls.call(b"meanwhile", SOON_S)
    assert gone.value.code == grpc.StatusCode.UNAVAILABLE
    again = Server(server.port)
    try:
        assert calls.call(b"after", SOON_S) == b"after"
    finally:
        again.stop()


def test_calls_that_are_abandoned_fail_at_once_and_others_do_not(server: Server) -> None:
    connections = Connections(f"127.0.0.1:{server.port}")
    some, others = Calls(connections, PATH), Calls(connections, PATH)
    with ThreadPoolExecutor(4) as pool:
        waiting = [pool.submit(some.call, b"sleep 30", 40.0) for _ in range(2)]
        other = pool.submit(others.call, b"sleep 1", SOON_S)
        time.sleep(0.3)
        some.abandon("its process died")
        for one in waiting:
            assert isinstance(one.exception(5), CallFailed)
        assert other.result(SOON_S) == b"sleep 1"
    with pytest.raises(CallFailed, match="its process died"):
        some.call(b"later", SOON_S)
    assert others.call(b"later", SOON_S) == b"later"


# What HTTP/2 allows a server to do.

HEADERS = [(":status", "200"), ("content-type", "application/grpc")]
OK = [("grpc-status", "0")]
MESSAGE = b"\0\0\0\0\5hello"


class Peer:
    """A server by h2: takes connections one after the other, and does what it is told."""

    def __init__(self, act: Callable[[Peer], None]) -> None:
        self.act = act
        self.calls: Calls | None = None
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.events: list[Any] = []
        self.got = b""
        self.accepted = 0
        self.error: BaseException | None = None
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self) -> None:
        with suppress(OSError):
            while True:
                self.socket, _ = self.listener.accept()
                self.accepted += 1
                self.events.clear()
                with self.socket:
                    self.socket.settimeout(SOON_S)
                    self.http = H2Connection(H2Configuration(client_side=False))
                    self.http.initiate_connection()
                    self.flush()
                    try:
                        self.act(self)
                    except BaseException as error:
                        self.error = error
                        raise
                    # Closed with something unread it would be reset, and what was sent be lost.
                    self.socket.shutdown(socket.SHUT_WR)
                    while self.socket.recv(2**16):
                        pass

    def flush(self) -> None:
        self.socket.sendall(self.http.data_to_send())

    def until(self, kind: type[Any]) -> Any:
        """Read until such an event has come, and acknowledge what is read."""
        while True:
            while self.events:
                event = self.events.pop(0)
                if isinstance(event, DataReceived):
                    self.got += event.data
                    self.http.acknowledge_received_data(
                        event.flow_controlled_length, event.stream_id
                    )
                    self.flush()
                if isinstance(event, kind):
                    return event
            came = self.socket.recv(2**16)
            if not came:
                raise ConnectionResetError
            self.events += self.http.receive_data(came)
            self.flush()

    def answer(self, stream: int, pad: int | None = None) -> None:
        self.http.send_headers(stream, HEADERS)
        self.http.send_data(stream, MESSAGE[:3], pad_length=pad)
        self.http.send_data(stream, MESSAGE[3:], pad_length=pad)
        self.http.send_headers(stream, OK, end_stream=True)
        self.flush()

    def refuse(self, stream: int, text: str = "") -> None:
        headers = [*HEADERS, ("grpc-status", "3"), ("grpc-message", text)]
        self.http.send_headers(stream, headers, end_stream=True)
        self.flush()


@contextmanager
def peer(act: Callable[[Peer], None]) -> Iterator[tuple[Peer, Calls]]:
    there = Peer(act)
    with there.listener:
        host, port = there.listener.getsockname()
        yield there, Calls(Connections(f"{host}:{port}"), PATH)


def test_padding_pings_and_headers_in_short_are_understood() -> None:
    def act(there: Peer) -> None:
        for pad in (None, 0, 200):
            stream = there.until(StreamEnded).stream_id
            there.http.ping(b"12345678")
            there.flush()
            assert there.until(PingAckReceived).ping_data == b"12345678"
            there.answer(stream, pad)

    with peer(act) as (there, calls):
        for _ in range(3):
            assert calls.call(b"hello", SOON_S) == b"hello"
        assert (there.accepted, there.error) == (1, None)
        assert there.got == b"\0\0\0\0\5hello" * 3


def test_a_request_says_what_grpc_wants_of_it() -> None:
    def act(there: Peer) -> None:
        asked.update(there.until(RequestReceived).headers)
        there.answer(1)

    asked: dict[bytes, bytes] = {}
    with peer(act) as (_, calls):
        assert calls.call(b"hello", 3) == b"hello"
    assert asked[b":method"] == b"POST"
    assert asked[b":scheme"] == b"http"
    assert asked[b":path"] == PATH.encode()
    assert asked[b"te"] == b"trailers"
    assert asked[b"content-type"] == b"application/grpc"
    assert asked[b"grpc-timeout"][-1:] == b"m"
    assert 2000 < int(asked[b"grpc-timeout"][:-1]) <= 3000


@pytest.mark.parametrize("window", [1, 1000, 2**20])
def test_no_more_is_sent_than_the_server_has_room_for(window: int) -> None:
    """h2 raises an error where it gets more."""

    def act(there: Peer) -> None:
        stream = there.until(StreamEnded).stream_id
        there.http.update_settings(
            {SettingCodes.INITIAL_WINDOW_SIZE: window, SettingCodes.MAX_FRAME_SIZE: 20_000}
        )
        there.http.max_inbound_frame_size = 20_000  # h2 hears of it one piece late
        there.answer(stream)
        there.answer(there.until(StreamEnded).stream_id)

    message = os.urandom(2000 if window == 1 else 400_000)
    with peer(act) as (there, calls):
        assert calls.call(b"hello", SOON_S) == b"hello"
        assert calls.call(message, SOON_S) == b"hello"
        assert there.got.endswith(message)
        assert there.error is None


def test_an_error_as_long_as_several_frames() -> None:
    def act(there: Peer) -> None:
        there.refuse(there.until(StreamEnded).stream_id, "%C3%A4" * 20_000)

    with peer(act) as (_, calls), pytest.raises(CallFailed) as refused:
        calls.call(b"hello", SOON_S)
    assert refused.value.code == grpc.StatusCode.INVALID_ARGUMENT
    assert refused.value.message == "ä" * 20_000


def test_a_refusal_before_all_was_sent_counts() -> None:
    def act(there: Peer) -> None:
        stream = there.until(RequestReceived).stream_id
        if there.accepted == 1:
            there.refuse(stream, "enough")
        else:
            there.answer(stream)

    with peer(act) as (there, calls):
        with pytest.raises(CallFailed, match="enough"):
            calls.call(bytes(100_000), SOON_S)
        assert calls.call(b"hello", SOON_S) == b"hello"
        assert there.accepted == 2


def test_a_server_that_is_going_away_answers_what_it_has_taken() -> None:
    def act(there: Peer) -> None:
        stream = there.until(StreamEnded).stream_id
        there.answer(stream)
        there.http.close_connection(last_stream_id=stream)
        there.flush()

    with peer(act) as (there, calls):
        for _ in range(3):
            assert calls.call(b"hello", SOON_S) == b"hello"
        assert there.accepted == 3


def goes_away(there: Peer) -> None:
    there.until(StreamEnded)
    there.http.close_connection(last_stream_id=0)
    there.flush()


def refuses(there: Peer) -> None:
    there.http.reset_stream(there.until(StreamEnded).stream_id, ErrorCodes.REFUSED_STREAM)
    there.flush()


@pytest.mark.parametrize("gives_back", [goes_away, refuses])
@pytest.mark.parametrize("times", [1, 2])
def test_what_a_server_has_not_looked_at_is_asked_once_more(
    gives_back: Callable[[Peer], None], times: int
) -> None:
    def act(there: Peer) -> None:
        if there.accepted <= times:
            gives_back(there)
        else:
            there.answer(there.until(StreamEnded).stream_id)

    with peer(act) as (there, calls):
        if times == 1:
            assert calls.call(b"hello", SOON_S) == b"hello"
        else:
            with pytest.raises(CallFailed) as failed:
                calls.call(b"hello", SOON_S)
            assert failed.value.code == grpc.StatusCode.UNAVAILABLE
        assert there.accepted == 2


@pytest.mark.parametrize(
    ("reason", "code"),
    [  # the table of PROTOCOL-HTTP2.md
        (ErrorCodes.REFUSED_STREAM, grpc.StatusCode.UNAVAILABLE),
        (ErrorCodes.CANCEL, grpc.StatusCode.CANCELLED),
        (ErrorCodes.ENHANCE_YOUR_CALM, grpc.StatusCode.RESOURCE_EXHAUSTED),
        (ErrorCodes.INADEQUATE_SECURITY, grpc.StatusCode.PERMISSION_DENIED),
        (ErrorCodes.INTERNAL_ERROR, grpc.StatusCode.INTERNAL),
    ],
)
def test_a_stream_that_is_reset(reason: ErrorCodes, code: grpc.StatusCode) -> None:
    def act(there: Peer) -> None:
        there.http.reset_stream(there.until(StreamEnded).stream_id, reason)
        there.flush()

    with peer(act) as (_, calls), pytest.raises(CallFailed) as reset:
        calls.call(b"hello", SOON_S)
    assert reset.value.code == code


def frame(kind: int, flags: int, payload: bytes, stream: int = 1) -> bytes:
    return (
        len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload
    )


@pytest.mark.parametrize(
    ("raw", "code"),
    [
        (b"", grpc.StatusCode.UNAVAILABLE),
        (frame(0, 0, MESSAGE)[:12], grpc.StatusCode.UNAVAILABLE),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n" * 1000, grpc.StatusCode.UNAVAILABLE),
        (frame(1, 0x5, b"\xff\xff\xff\xff\xff\xff"), grpc.StatusCode.UNKNOWN),
        (frame(0, 0x8, b""), grpc.StatusCode.UNKNOWN),
        (frame(4, 0, b"odd", stream=0), grpc.StatusCode.UNKNOWN),
        (frame(1, 0x5, b"\x88"), grpc.StatusCode.UNKNOWN),  # HTTP's 200 alone
        (frame(1, 0x5, b"\x88\x00\x0bgrpc-status\x01x"), grpc.StatusCode.UNKNOWN),
        (frame(1, 0x5, b"\x88\x00\x0bgrpc-status\x010"), grpc.StatusCode.INTERNAL),  # no message
        (
            frame(0, 0, b"\1\0\0\0\1x") + frame(1, 0x5, b"\x00\x0bgrpc-status\x010"),
            grpc.StatusCode.INTERNAL,  # a compressed one
        ),
        (
            frame(0, 0, MESSAGE * 2) + frame(1, 0x5, b"\x00\x0bgrpc-status\x010"),
            grpc.StatusCode.INTERNAL,
        ),
    ],
)
def test_what_is_no_answer_is_an_error(raw: bytes, code: grpc.StatusCode) -> None:
    def act(there: Peer) -> None:
        there.until(StreamEnded)
        there.socket.sendall(raw)

    with peer(act) as (_, calls), pytest.raises(CallFailed) as failed:
        calls.call(b"hello", SOON_S)
    assert failed.value.code == code
    assert failed.value.message


def test_a_call_that_is_cancelled_as_its_time_is_over_is_late() -> None:
    def act(there: Peer) -> None:
        there.until(StreamEnded)
        clock.append(10.0**9)  # seconds later
        there.http.reset_stream(1, ErrorCodes.CANCEL)
        there.flush()

    clock: list[float] = []
    with peer(act) as (_, calls), pytest.MonkeyPatch.context() as patch:
        now = time.monotonic
        patch.setattr("clients.grpc_calls.time.monotonic", lambda: now() + sum(clock))
        patch.setattr("clients.grpc_calls.left", lambda _: SOON_S)
        with pytest.raises(CallFailed) as late:
            calls.call(b"hello", SOON_S)
    assert late.value.code == grpc.StatusCode.DEADLINE_EXCEEDED


def test_a_connection_of_abandoned_calls_is_no_other_calls() -> None:
    """Who abandons them may be about to end it, when it has another call already."""

    def act(there: Peer) -> None:
        stream = there.until(StreamEnded).stream_id
        assert there.calls
        there.calls.abandoned = "it is gone"  # and its end is not here yet
        there.answer(stream)

    with peer(act) as (there, calls):
        there.calls = calls
        assert calls.call(b"hello", SOON_S) == b"hello"
        assert calls._connections._idle == []


def test_a_server_that_says_nothing_is_late() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        host, port = listener.getsockname()
        with pytest.raises(CallFailed) as late:
            Calls(Connections(f"{host}:{port}"), PATH).call(bytes(10**7), 0.3)
    assert late.value.code == grpc.StatusCode.DEADLINE_EXCEEDED
