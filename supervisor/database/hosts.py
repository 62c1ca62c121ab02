"""Finds the servers that a DSN names, and which of their names must be resolved first.

It opens nothing and queries no name server. Parts that are missing in the DSN come from its
service, else from the environment, as in libpq. If libpq found a host there, it would resolve the
name itself, and the supervisor would wait for that.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from psycopg import pq

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class Servers:
    """The servers of a DSN.

    Attributes:
        names: host names that must be resolved.
    """

    def __init__(self, given: Mapping[str, object]) -> None:
        defaults = _defaults(str(given.get("service") or ""), str(given.get("servicefile") or ""))
        listed = {
            name: str(given.get(name) or defaults.get(name, "")).split(",") for name in ("host", "hostaddr", "port")
        }
        self._hosts, self._addresses, self._ports = listed.values()
        self.names = [] if any(self._addresses) else [host for host in self._hosts if _is_name(host)]

    def found(self, addresses: Mapping[str, Sequence[str]]) -> list[dict[str, str]]:
        """Return each server as host, hostaddr and port, one for each address of a name.

        Names without an address are left out. Lists of different lengths become one server without
        parts: libpq then reports what is wrong with them.

        Args:
            addresses: addresses by host name.
        """
        count = max(len(self._hosts), len(self._addresses))
        each = [words * count if len(words) == 1 else words for words in (self._hosts, self._addresses, self._ports)]
        if any(len(words) != count for words in each):
            return [{}]
        return [
            {"host": host, "hostaddr": one, "port": port}
            for host, address, port in zip(*each, strict=True)
            for one in (addresses.get(host, ()) if _is_name(host) and not address else (address,))
        ]


def _defaults(service: str, file: str) -> dict[str, str]:
    """Return libpq's defaults for parts that a DSN leaves out.

    Without connecting, libpq reads only the service that the environment names.
    """
    given_names = {name: value for name, value in (("PGSERVICE", service), ("PGSERVICEFILE", file)) if value}
    before = {name: os.environ.get(name) for name in given_names}
    os.environ |= given_names
    try:
        return {
            each.keyword.decode(): each.val.decode(errors="surrogateescape")
            for each in pq.Conninfo.get_defaults()
            if each.val
        }
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _is_name(host: str) -> bool:
    """Return whether libpq would resolve this host.

    It is neither a socket folder nor an address.
    """
    return (
        bool(host)
        and not host.startswith(("/", "@"))
        and ":" not in host
        and not (host.isascii() and host.replace(".", "").isdigit())
    )
