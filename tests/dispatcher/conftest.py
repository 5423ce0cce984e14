"""What the tests of several subjects share."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from clients.base import Environment
from clients.plugins.registry import Registry, load_clients
from tests.conftest import PROJECT
from tests.support.fake_triton import FakeTriton


@pytest.fixture(scope="module")
def built_in() -> Registry:
    """The clients, made once: a tokenizer takes a while."""
    return load_clients(Environment(FakeTriton(), PROJECT / "model_repository"))


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ends = socket.socketpair()
    yield ends
    for end in ends:
        end.close()
