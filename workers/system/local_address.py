"""Decides whether a host name means only this machine, and which host a Host header names.

No name is resolved here.
"""

from __future__ import annotations

import ipaddress
import re
from typing import Final

_HOST: Final = re.compile(
    r"(?:(?P<name>[A-Za-z0-9_~-]+(?:\.[A-Za-z0-9_~-]+)*)\.?|\[(?P<v6>[0-9A-Fa-f:.]+)\])(?::[0-9]{0,5})?|(?P<bare>[0-9A-Fa-f]*:[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*)"
)


def is_loopback(host: str) -> bool:
    """Whether this host is an address of this machine only.

    >>> is_loopback("127.0.0.1"), is_loopback("::1"), is_loopback("0.0.0.0"), is_loopback("jobs.example")
    (True, True, False, False)
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_local(host: str) -> bool:
    """Whether this host is an address of this machine only, or is named localhost.

    >>> is_local("localhost"), is_local("127.1.2.3"), is_local("localhost.evil.example")
    (True, True, False)
    """
    return host.lower() == "localhost" or is_loopback(host)


def host_of(header: str) -> str:
    """Return the host in a Host header, without its port.

    The port is not checked, because any port may have been forwarded to this one. The result is
    empty if the header is not one host and port.

    >>> host_of("localhost:8790"), host_of("[::1]:80"), host_of("::1")
    ('localhost', '::1', '::1')
    >>> host_of("localhost:1@evil.example"), host_of("[::1].evil.example")
    ('', '')
    """
    found = _HOST.fullmatch(header)
    return (found["name"] or found["v6"] or found["bare"]).lower() if found else ""
