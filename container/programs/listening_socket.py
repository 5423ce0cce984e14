"""The socket that NGINX listens on, held here too so that nothing is reset.

The kernel completes TCP connections by itself and queues them until a process accepts them. When
the last process closes the listening socket, the queued connections are reset, and their callers do
not know whether their request was read. NGINX closes the socket as soon as it is asked to quit.

So this process keeps the socket open beside NGINX. At a stop it first drops new connections while
NGINX accepts the queued ones; then it closes the socket and asks NGINX to quit. Where NGINX dies,
callers wait in the queue for the next one.
"""

from __future__ import annotations

import ctypes
import socket
import struct
import time
from functools import cache

BACKLOG = 1024  # NGINX sets its own, from its configuration

# Time for handshakes that are under way: a round trip of the slowest callers of a container, which
# are behind a load balancer nearby.
UNDER_WAY_S = 0.1
LONGEST_S = 1.0  # for NGINX to accept the queued connections
LOOK_S = 0.005

SO_ATTACH_FILTER = 26  # asm-generic/socket.h

# linux/filter.h. A SYN packet asks for a new connection. It is dropped, not refused: the caller's
# kernel sends it again after a second, and is refused then, for the socket is closed.
_DROP_SYN = struct.pack(
    "HBBI" * 4,
    *(0x30, 0, 0, 13),  # BPF_LD | BPF_B | BPF_ABS: the flags, 14th byte of the TCP header
    *(0x45, 0, 1, 0x02),  # BPF_JMP | BPF_JSET | BPF_K: is SYN among them?
    *(0x06, 0, 0, 0),  # BPF_RET | BPF_K: no byte of the packet
    *(0x06, 0, 0, 0xFFFFFFFF),  # BPF_RET | BPF_K: all of it
)
_FILTER_LENGTH = 8

# linux/tcp.h: of a listening socket `tcpi_unacked` is how many connections wait to be accepted.
_UNACKED_OFFSET = 24


class ListeningSocket:
    """A listening TCP socket on all addresses of IPv6 and IPv4, which NGINX inherits.

    Raises:
        OSError: the port cannot be bound.

    """

    def __init__(self, port: int) -> None:
        self._socket = listen_to_all(port)
        self._socket.settimeout(0)  # NGINX does not change an inherited one

    def fileno(self) -> int:
        return self._socket.fileno()

    def shut(self, *, accepts: bool) -> None:
        """Drop new connections, let NGINX accept the queued ones, and close the socket.

        That takes a tenth of a second, and a second at most. Where the kernel takes no filter, or
        NGINX does not run, the socket is closed at once.
        """
        try:
            if accepts and self.fileno() >= 0:
                self._drop_new_connections()
                self._wait_for_queued()
        except OSError:
            pass
        finally:
            self.close()

    def _drop_new_connections(self) -> None:
        filter_ = ctypes.create_string_buffer(_DROP_SYN, len(_DROP_SYN))
        program = struct.pack("HP", len(filter_) // _FILTER_LENGTH, ctypes.addressof(filter_))
        self._socket.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, program)

    def _wait_for_queued(self) -> None:
        began = time.monotonic()
        time.sleep(UNDER_WAY_S)
        while self.waiting() and time.monotonic() < began + LONGEST_S:
            time.sleep(LOOK_S)

    def waiting(self) -> int:
        """Return how many connections wait to be accepted."""
        info = self._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _UNACKED_OFFSET + 4)
        return int(struct.unpack_from("I", info, _UNACKED_OFFSET)[0])

    def close(self) -> None:
        """Close it in this process; without an NGINX the queued connections are reset."""
        self._socket.close()


def listen_to_all(port: int) -> socket.socket:
    """Return a socket that listens on all addresses; of IPv4 alone where the kernel has no IPv6.

    Raises:
        OSError: the port cannot be bound.

    """
    if not has_ipv6():
        return socket.create_server(("", port), backlog=BACKLOG)
    return socket.create_server(
        ("::", port), family=socket.AF_INET6, backlog=BACKLOG, dualstack_ipv6=True
    )


@cache
def has_ipv6() -> bool:
    """Whether one socket can listen to IPv6 and IPv4."""
    try:
        with socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True):
            return True
    except (OSError, ValueError):
        return False
