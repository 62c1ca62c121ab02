"""Limits wrong tokens, per address and over all addresses.

Each wrong token costs one attempt; attempts come back with time. Without any left, a token is not
compared at all, right or wrong. The limit over all addresses does not apply to an address that has
recently shown a right token: a flood of guesses from elsewhere does not lock legitimate users out.
Must not read a clock except by default.
"""

from __future__ import annotations

import ipaddress
import math
import time
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from jobherd.workers.dashboard.request import Refused, address_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.requests import Request

ADDRESS: Final = (10, 10.0)
"""Allowed wrong tokens of one address.

How many at once, and the seconds after which one more is allowed.
"""
ALL: Final = (100, 1.0)
"""The same for all addresses together."""
KEPT: Final = 4096
"""Addresses that are counted separately.

If there are more, the address whose last wrong token is the oldest is forgotten.
"""


class LoginLimits:
    """Count wrong tokens. Made by `application`, one a process.

    >>> limits = LoginLimits(clock=lambda: 0.0)
    >>> for _ in range(10):
    ...     limits.failed("10.1.2.3")
    >>> limits.wait("10.1.2.3"), limits.wait("10.1.2.4")
    (10.0, 0.0)
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._all = 0.0
        """The time at which all attempts will have come back."""
        self._each: dict[str, float] = {}
        """The same by address, in the order of the last wrong token."""
        self._right: dict[str, None] = {}
        """Addresses that have shown a right token, the latest last."""

    def wait(self, address: str) -> float:
        """Return the seconds until this address may show a token; 0: now."""
        key = _network(address)
        own = _left(self._each.get(key, 0.0), self._clock(), ADDRESS)
        return own if key in self._right else max(own, _left(self._all, self._clock(), ALL))

    def failed(self, address: str) -> None:
        """Count a wrong token from this address."""
        key, now = _network(address), self._clock()
        self._all = max(self._all, now) + ALL[1]
        self._each[key] = max(self._each.pop(key, 0.0), now) + ADDRESS[1]
        while len(self._each) > KEPT:
            del self._each[next(iter(self._each))]

    def succeeded(self, address: str) -> None:
        """Store that a right token came from this address."""
        key = _network(address)
        self._right.pop(key, None)
        self._right[key] = None
        while len(self._right) > KEPT:
            del self._right[next(iter(self._right))]


def count_wrong(request: Request) -> None:
    """Count and record a wrong token."""
    request.app.state.login_limits.failed(address_of(request))
    request.app.state.access_log.refused(request)


def count_right(request: Request) -> None:
    """Record a right token."""
    request.app.state.login_limits.succeeded(address_of(request))


def check_attempts(request: Request) -> None:
    """Raise Refused if too many wrong tokens came from this address, or from all.

    The token is not compared then.
    """
    if wait := request.app.state.login_limits.wait(address_of(request)):
        request.app.state.access_log.limited(request)
        seconds = math.ceil(wait)
        raise Refused(
            HTTPStatus.TOO_MANY_REQUESTS,
            f"Too many wrong tokens. Try again in {seconds} s.",
            headers={"Retry-After": str(seconds)},
        )


def _left(back_at: float, now: float, limit: tuple[int, float]) -> float:
    most, each = limit
    return max(0.0, back_at - now - (most - 1) * each)


def _network(address: str) -> str:
    """Return the network that counts as one address: of IPv6 the /64, which one host controls."""
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return address
    if ip.version == 4:
        return address
    mapped = ip.ipv4_mapped
    return str(mapped or ipaddress.ip_network((int(ip), 64), strict=False))
