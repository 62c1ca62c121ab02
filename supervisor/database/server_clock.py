"""Detects jumps of the server's clock, which decides whether leases have expired."""

from __future__ import annotations


class ServerClock:
    """Compares the server's clock with this host's monotonic clock at each reading."""

    def __init__(self) -> None:
        self._ahead: tuple[float, float] | None = None
        """At least, at most."""

    def jump(self, server: float, *, asked: float, now: float) -> float:
        """Return by how many seconds the server's clock has jumped since the last reading.

        The server's clock was read at some time between request and answer, so a slow answer is not
        a jump.

        Args:
            server: the server's clock.
            asked: when the request was sent.
            now: when the answer arrived.
        """
        before, self._ahead = self._ahead, (server - now, server - asked)
        if before is None:
            return 0.0
        least, most = self._ahead
        return max(least - before[1], 0.0) + min(most - before[0], 0.0)
