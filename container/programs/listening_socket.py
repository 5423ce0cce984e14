"""The socket on which NGINX listens. It is the container's own, so that nobody in it gets lost.

The kernel completes a connection by itself, and keeps it until somebody accepts it. When the last
who listens closes the socket, those that nobody has accepted yet are reset: their callers had come
in, and do not know whether their request was read. NGINX does so as soon as it is asked to quit.

Here the socket is kept open beside NGINX. At the end nobody new is let in first, while NGINX still
accepts who is in already; then NGINX alone has it, and is asked to quit. Where NGINX dies callers
wait for the next one.
"""

from __future__ import annotations

import ctypes
import socket
import struct
import time

BACKLOG = 1024  # NGINX sets its own, from its configuration

# Packets on their way to complete a connection are given this time: a round trip of the slowest
# callers of a container, which has a load balancer beside it.
UNDER_WAY_S = 0.1
LONGEST_S = 1.0  # for NGINX to accept those who are in
LOOK_S = 0.005

SO_ATTACH_FILTER = 26  # asm-generic/socket.h

# linux/filter.h. A packet with SYN asks for a new connection. It is dropped, not refused: its
# caller's kernel sends it again after a second, and is refused then, as nobody listens any more.
_NEW_ONES_DROPPED = struct.pack(
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
    """A listening TCP socket on all addresses, for NGINX to inherit.

    Args:
        port: to listen on.

    Raises:
        OSError: the port cannot be had.

    """

    def __init__(self, port: int) -> None:
        self._socket = socket.socket()
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._socket.bind(("0.0.0.0", port))
            self._socket.listen(BACKLOG)
        except OSError:
            self._socket.close()
            raise
        self._socket.settimeout(0)  # NGINX takes an inherited one as it is

    def fileno(self) -> int:
        """Return the number of the file."""
        return self._socket.fileno()

    def shut(self, *, accepts: bool) -> None:
        """Let nobody new in, wait until everybody who is in was accepted, and leave it to NGINX.

        That takes a tenth of a second, and a second at most. Where the kernel takes no filter, or
        nobody accepts, it is left at once.

        Args:
            accepts: whether there is an NGINX that does so.

        """
        try:
            if accepts and self.fileno() >= 0:
                self._drop_new_ones()
                self._wait_for_those_within()
        except OSError:
            pass
        finally:
            self.close()

    def _drop_new_ones(self) -> None:
        filter_ = ctypes.create_string_buffer(_NEW_ONES_DROPPED, len(_NEW_ONES_DROPPED))
        program = struct.pack("HP", len(filter_) // _FILTER_LENGTH, ctypes.addressof(filter_))
        self._socket.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, program)

    def _wait_for_those_within(self) -> None:
        began = time.monotonic()
        time.sleep(UNDER_WAY_S)
        while self.waiting() and time.monotonic() < began + LONGEST_S:
            time.sleep(LOOK_S)

    def waiting(self) -> int:
        """Return how many connections nobody has accepted yet."""
        info = self._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _UNACKED_OFFSET + 4)
        return int(struct.unpack_from("I", info, _UNACKED_OFFSET)[0])

    def close(self) -> None:
        """Close it here; without an NGINX whoever still waits is cut off."""
        self._socket.close()
