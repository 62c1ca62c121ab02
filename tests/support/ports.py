"""Finds a free port for a server that needs a fixed one.

The kernel does not assign ports of this range, so the port stays free until the server binds it.
"""

from __future__ import annotations

import random
import socket

_RANGE = range(20_000, 32_000)
"""Below the ports that the kernel assigns (net.ipv4.ip_local_port_range), which other tests use all the time."""


def spare_port() -> int:
    """Return a port of 127.0.0.1 on which no server listens."""
    while True:
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", random.choice(_RANGE)))
            except OSError:
                continue
            return int(probe.getsockname()[1])
