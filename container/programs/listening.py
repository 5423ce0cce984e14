"""Listening on all addresses, of IPv6 and of IPv4."""

from __future__ import annotations

import socket
from functools import cache


def listen_to_all(port: int) -> socket.socket:
    """Return a socket that listens on all addresses; of IPv4 alone where the kernel has no IPv6.

    Raises OSError: the port cannot be bound.
    """
    if not has_ipv6():
        return socket.create_server(("", port))
    return socket.create_server(("::", port), family=socket.AF_INET6, dualstack_ipv6=True)


@cache
def has_ipv6() -> bool:
    """Whether one socket can listen to IPv6 and IPv4."""
    try:
        with socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True):
            return True
    except (OSError, ValueError):
        return False
