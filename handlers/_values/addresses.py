"""Decides which network addresses are public, for requests to URLs that producers choose.

The list is this module's own, because `ipaddress` of older Python versions calls several
special-purpose blocks global and changes between versions. It contains IANA's special-purpose
registries (IPv4 and IPv6), multicast, deprecated blocks that systems still route, and addresses in
public ranges where clouds serve metadata. An address that embeds an IPv4 address is not public. The
only exception is NAT64 (64:ff9b::/96), which hosts without IPv4 need: it is as public as the
embedded IPv4 address.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_network
from typing import Final

_NAT64: Final = ip_network("64:ff9b::/96")
_UNICAST: Final = ip_network("2000::/3")
"""The only IPv6 range that IANA allocates for global unicast. All others are special or
reserved."""

_SPECIAL: Final = tuple(
    ip_network(block)
    for block in (
        "0.0.0.0/8",  # this network
        "10.0.0.0/8",  # private
        "100.64.0.0/10",  # shared by carriers
        "127.0.0.0/8",  # loopback
        "168.63.129.16/32",  # metadata and DNS of Azure
        "169.254.0.0/16",  # link-local, metadata of most clouds
        "172.16.0.0/12",  # private
        "192.0.0.0/24",  # protocol assignments, metadata of Oracle
        "192.0.2.0/24",  # documentation
        "192.31.196.0/24",  # AS112
        "192.52.193.0/24",  # AMT
        "192.88.99.0/24",  # 6to4 relay, deprecated
        "192.168.0.0/16",  # private
        "192.175.48.0/24",  # AS112
        "198.18.0.0/15",  # benchmarking
        "198.51.100.0/24",  # documentation
        "203.0.113.0/24",  # documentation
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved, broadcast
        "2001::/23",  # protocol assignments: Teredo, benchmarking, ORCHID
        "2001:db8::/32",  # documentation
        "2002::/16",  # 6to4
        "2620:4f:8000::/48",  # AS112
        "3fff::/20",  # documentation
    )
)


def is_public(address: IPv4Address | IPv6Address) -> bool:
    """Return whether an address belongs to a host that is reachable from the internet.

    >>> from ipaddress import ip_address
    >>> is_public(ip_address("93.184.215.14")), is_public(ip_address("::ffff:93.184.215.14"))
    (True, False)
    """
    if isinstance(address, IPv6Address):
        if address in _NAT64:
            return is_public(IPv4Address(int(address) & 0xFFFFFFFF))
        if address not in _UNICAST:
            return False
    return not any(address in block for block in _SPECIAL)
