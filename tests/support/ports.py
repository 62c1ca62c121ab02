"""A port for a server that must be told one.

Those of this range nobody is given who asks for any, so it stays free until the server takes it.
"""

from __future__ import annotations

import random
import socket

_RANGE = range(20_000, 32_000)
"""Below what the kernel gives to connections and to servers that take any (net.ipv4.ip_local_port_range), which other tests ask for all the time."""


def spare_port() -> int:
    """A port of 127.0.0.1 on which nobody listens."""
    while True:
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", random.choice(_RANGE)))
            except OSError:
                continue
            return int(probe.getsockname()[1])
