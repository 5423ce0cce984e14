"""The connections to Triton, for inference, control and probe.

The channels are made in each process after the fork, which gRPC does not survive. All threads share
them: they are thread-safe except for streams.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from tritonclient.grpc import service_pb2_grpc

from clients.triton.requests import Runs

CHANNEL = (
    # gRPC waits longer and longer, up to two minutes, before it tries to reach a server again: too
    # long for one on this machine that is starting or was restarted.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 500),
    # Tensors have no limit.
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    # Docker passes its own proxy on to every container; it does not know this machine's ports.
    ("grpc.enable_http_proxy", 0),
    # An error's text comes as metadata, of which gRPC takes 16 kB by default: a model with a longer
    # text seemed to be unreachable.
    ("grpc.max_metadata_size", 2**20),
    ("grpc.absolute_max_metadata_size", 2**24),
    # A machine that is gone without a word: the kernel gives its connection up after the second
    # time. (More frequent pings are against the rules of Triton, which then closes the connection.)
    ("grpc.keepalive_time_ms", 310_000),
    ("grpc.keepalive_timeout_ms", 10_000),
)

Metadata = Callable[[], Sequence[tuple[str, str]]]


@dataclass(frozen=True)
class Address:
    """Where Triton listens for gRPC, and how it is reached."""

    target: str  # as gRPC names it: "host:port", "dns:///name:port" or "ipv4:a:port,b:port"
    tls: bool = False  # whether the connection is encrypted
    # Certificates of authorities (PEM); `None` means those that gRPC knows
    ca_file: Path | None = None
    certificate_file: Path | None = None  # certificate and key of this side (PEM)
    metadata: Metadata = tuple  # returns what is sent with every call

    def channel(self) -> grpc.Channel:
        options: list[tuple[str, Any]] = [*CHANNEL]
        if not self.tls:
            return grpc.insecure_channel(self.target, options)
        kind, _, places = self.target.partition(":")
        if kind in {"ipv4", "ipv6"}:  # the certificate is for the first
            first = places.split(",")[0]
            options.append(("grpc.default_authority", first.rpartition(":")[0]))
        root = self.ca_file and self.ca_file.read_bytes()
        own = self.certificate_file and self.certificate_file.read_bytes()
        credentials = grpc.ssl_channel_credentials(root, own, own)
        return grpc.secure_channel(self.target, credentials, options)


class ModelChannel:
    """A gRPC channel of one model, which can be closed without the others."""

    def __init__(self, address: Address) -> None:
        self.abandoned = ""
        """Why it was closed, if it was."""
        self._channel = address.channel()
        self.stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)
        self.runs = Runs(self.stub, address.metadata)

    def abandon(self, reason: str) -> None:
        """Close the channel: all requests on it fail, and all that follow."""
        self.abandoned = reason
        if not self.runs.is_broken:  # else gRPC would wait for its thread, for ever
            self._channel.close()
