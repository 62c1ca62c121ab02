"""Decides which gateway a client tries next, and after which delay. No I/O."""

from __future__ import annotations

import random as _random
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

FIRST_DELAY: Final = 0.1
LONGEST_DELAY: Final = 10.0


class Reconnect:
    """Goes through the addresses in turn. The delay doubles with each failure, with full jitter.

    Full jitter: a random time up to the delay. Otherwise all workers of a gateway that restarts
    would connect at the same moment.

    Args:
        addresses: the gateways of one database.
        random: returns a number from 0 to 1.
    """

    def __init__(self, addresses: Sequence[str], random: Callable[[], float] = _random.random) -> None:
        self._addresses = addresses
        self._random = random
        self._index = 0
        self._delay = FIRST_DELAY

    @property
    def address(self) -> str:
        """The gateway to use now."""
        return self._addresses[self._index]

    def failed(self, lived: float = 0.0) -> float:
        """Choose the next gateway and return the delay before it is tried, in seconds.

        lived: seconds for which the connection was open. A connection that lasted for the longest
            delay ends the doubling; a gateway that ends each stream at once does not.
        """
        self._index = (self._index + 1) % len(self._addresses)
        if lived >= LONGEST_DELAY:
            self._delay = FIRST_DELAY
        delay, self._delay = self._delay, min(2 * self._delay, LONGEST_DELAY)
        return delay * self._random()


def read_addresses(given: str | Sequence[str]) -> list[str]:
    """Return the addresses of "HOST:PORT[,HOST:PORT]", "unix:PATH" or a sequence of them.

    Raises:
        ValueError: an address is invalid, or there is none.

    Example:
        >>> read_addresses("a.example:9091, b.example:9091")
        ['a.example:9091', 'b.example:9091']
    """
    parts = given.split(",") if isinstance(given, str) else list(given)
    addresses = [part.strip() for part in parts if part.strip()]
    if not addresses:
        message = 'no address of a gateway: pass one such as "gateway.example:9091"'
        raise ValueError(message)
    for address in addresses:
        host, _, port = address.rpartition(":")
        if not address.startswith("unix:") and not (host and port.isdecimal() and 0 < int(port) < 65536):
            message = f'invalid address {address!r} of a gateway: expected "HOST:PORT" or "unix:PATH"'
            raise ValueError(message)
    return addresses
