"""Reads addresses: of the database and its schema, of the servers, and of the path behind a proxy."""

from __future__ import annotations

import os
import re
from typing import Final

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from jobherd.handlers._enqueue.dsn import unknown_parameter, without_driver
from jobherd.sql import check_schema
from jobherd.supervisor.settings.readers import Reader, SpokenError, words

_NO_SOCKET: Final = "/dev/null"
"""Not a folder, so no server can have its socket there."""
GATEWAY_PORT: Final = 9091
"""The port of the gateway if its address names none."""
_LONGEST_SOCKET: Final = 107
"""Bytes of a socket's path that Linux can store."""


def dsn() -> Reader:
    """Read a libpq connection string. Its password must not appear in an error."""

    def read(value: object) -> str:
        if not isinstance(value, str) or not value.strip():
            raise TypeError
        text = without_driver(value)
        try:
            given = conninfo_to_dict(text)
        except psycopg.Error as problem:
            if unknown := unknown_parameter(problem):
                message = f"PostgreSQL has no connection parameter {unknown!r}; remove it from the address"
                raise SpokenError(message) from None
            raise ValueError from None  # libpq's message repeats a part of the value
        # These errors would fail every connection attempt: a supervisor would wait indefinitely for
        # a database that is not down.
        if not all(_is_port(port) for port in str(given.get("port", "")).split(",")):
            message = "a port is a whole number from 1 to 65,535"
            raise SpokenError(message)
        if "service" in given and not _is_service(str(given["service"])):
            message = (
                f"no service {given['service']!r} can be read from the file of services (PGSERVICEFILE, or "
                "~/.pg_service.conf)"
            )
            raise SpokenError(message)
        return text

    return Reader('a PostgreSQL address ("postgresql://user@host/name" or "host=... dbname=...")', read)


def _is_port(text: str) -> bool:
    digits = text.strip()
    return not digits or (digits.isascii() and digits.isdigit() and len(digits) <= 5 and 1 <= int(digits) <= 65535)


def _is_service(name: str) -> bool:
    """Return whether libpq finds the service.

    It is tested with a connection to a socket that cannot exist, so no connection is made.
    """
    address = make_conninfo(service=name, host=_NO_SOCKET, hostaddr="", port="")
    # no host if libpq did not get as far as trying it
    return psycopg.pq.PGconn.connect_start(address.encode()).host == _NO_SOCKET.encode()


def schema() -> Reader:
    """Read the name of Jobherd's schema."""

    def read(value: object) -> str:
        if not isinstance(value, str):
            raise TypeError
        return check_schema(value)

    return Reader(
        "a name of lower-case letters, digits and _, at most 41 characters, not starting with a digit or pg_", read
    )


def address() -> Reader:
    """Read HOST:PORT, or off."""

    def read(value: object) -> tuple[str, int] | None:
        return None if _is_off(value) else _host_and_port(value, example=8790)

    return Reader('HOST:PORT ("127.0.0.1:8790", ":8790" for all addresses), or off', read)


def gateway_address() -> Reader:
    """Read HOST:PORT, HOST, `unix:PATH`, or off."""

    def read(value: object) -> tuple[str, int] | str | None:
        if _is_off(value):
            return None
        if not isinstance(value, str):
            raise TypeError
        text = value.strip()
        if text.startswith("unix:"):
            if not 0 < len(os.fsencode(text.removeprefix("unix:"))) <= _LONGEST_SOCKET or "\0" in text:
                message = f"the path of a socket has 1 to {_LONGEST_SOCKET} bytes"
                raise ValueError(message)
            return text
        # An empty text must not become ":9091", which means all addresses.
        has_port = not text or (":" in text and not text.endswith("]"))
        return _host_and_port(text if has_port else f"{text}:{GATEWAY_PORT}", example=GATEWAY_PORT)

    return Reader(
        f'HOST:PORT ("127.0.0.1:{GATEWAY_PORT}", ":{GATEWAY_PORT}" for all addresses), HOST for port {GATEWAY_PORT}, '
        "unix:PATH, or off",
        read,
    )


def gateway_addresses() -> Reader:
    """Read a list of addresses that a client of gateways connects to, in the form that gRPC takes."""

    def read(value: object) -> tuple[str, ...]:
        return tuple(_target(each) for each in addresses.read(value))

    def _target(text: str) -> str:
        address = one.read(text)
        if isinstance(address, str):
            return address
        if address is None or text.startswith(":"):  # all addresses of this host, or off: no gateway
            message = f"{text!r} has no host"
            raise ValueError(message)
        host, port = address
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    one, addresses = gateway_address(), words("addresses", ",")
    return Reader(
        f'a list of HOST:PORT ("jobs.example.com:{GATEWAY_PORT}"), HOST for port {GATEWAY_PORT}, or unix:PATH, with '
        "commas between",
        read,
        ",",
    )


def _is_off(value: object) -> bool:
    return value is False or (isinstance(value, str) and value.strip().lower() in {"off", "none", "no", "false"})


def _host_and_port(value: object, *, example: int) -> tuple[str, int]:
    if not isinstance(value, str):
        raise TypeError
    host, colon, port = value.strip().rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        message = f'an IPv6 address is written in brackets: "[::1]:{example}"'
        raise ValueError(message)
    if (
        not colon
        or not re.fullmatch(r"\d{1,5}", port)
        or int(port) > 65535
        or not re.fullmatch(r"[A-Za-z0-9.:_%-]*", host)
    ):
        raise ValueError
    return host or "0.0.0.0", int(port)  # noqa: S104  # ":8790" means all addresses, as in other tools


def url_path() -> Reader:
    """Read a URL path that serves as a prefix: without a slash at its end."""

    def read(value: object) -> str:
        if not isinstance(value, str) or not re.fullmatch(r"(?:/[A-Za-z0-9._~-]+)*/?", value.strip()):
            raise TypeError
        return value.strip().rstrip("/")

    return Reader('the path of an address ("/jobs")', read)
