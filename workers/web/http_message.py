"""Parses HTTP requests and writes answers. Accesses no socket and does not know jobs."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

_REQUEST: Final = re.compile(r"([A-Z]{1,16}) (/[!-~]{0,2047}) HTTP/1\.([01])")
_ALWAYS: Final = (
    ("Cache-Control", "no-store"),
    ("X-Content-Type-Options", "nosniff"),
    ("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'"),
)
_HEADER: Final = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([^\x00-\x08\x0a-\x1f\x7f]*)")
TWO_LENGTHS: Final = "Content-Length together with Transfer-Encoding, or Transfer-Encoding in HTTP/1.0"


@dataclass(frozen=True, slots=True)
class Request:
    """A parsed request. Header names are in lower case."""

    method: str
    path: str
    query: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a request."""

    status: int
    body: bytes
    content_type: str = "text/plain; charset=utf-8"
    headers: tuple[tuple[str, str], ...] = ()

    def all_headers(self) -> tuple[tuple[str, str], ...]:
        """Return all headers except Content-Type and Content-Length."""
        return (*_ALWAYS, *self.headers)


class Refused(Exception):  # noqa: N818 - says what happened
    """The request is rejected. The reason repeats nothing of the request."""

    def __init__(self, status: int, reason: str, *headers: tuple[str, str]) -> None:
        super().__init__(reason)
        self.answer = Answer(status, f"{reason}\n".encode(), headers=headers)


def parse(head: bytes) -> Request:
    r"""Return the parsed request. `head` must not include its empty line. Raises Refused.

    >>> parse(b"GET /livez?x=1 HTTP/1.1\r\nHost: localhost").path
    '/livez'
    """
    first, *lines = head.decode("latin-1").split("\r\n")
    asked = _REQUEST.fullmatch(first)
    if not asked:
        raise Refused(HTTPStatus.BAD_REQUEST, "the request line is not one of HTTP/1")
    headers: dict[str, str] = {}
    for line in lines:
        found = _HEADER.fullmatch(line)
        if not found:
            raise Refused(HTTPStatus.BAD_REQUEST, "a header is not one")
        name = found[1].lower()
        if name == "host" and name in headers:
            raise Refused(HTTPStatus.BAD_REQUEST, "more than one Host")
        headers[name] = found[2].rstrip()
    if asked[3] == "1" and "host" not in headers:
        raise Refused(HTTPStatus.BAD_REQUEST, "no Host")
    if has_two_lengths(headers, asked[3]):
        raise Refused(HTTPStatus.BAD_REQUEST, TWO_LENGTHS)
    if asked[1] not in {"GET", "HEAD"}:
        raise Refused(HTTPStatus.METHOD_NOT_ALLOWED, "only GET and HEAD", ("Allow", "GET, HEAD"))
    path, _, query = asked[2].partition("?")
    return Request(asked[1], path, query, headers)


def has_two_lengths(headers: Collection[str], version: str) -> bool:
    """Whether two servers could disagree about where a request with these headers ends.

    Behind a proxy that uses the other length, the rest would count as a separate request.

    Args:
        headers: names in lower case.
        version: the minor version of HTTP/1.
    """
    return "transfer-encoding" in headers and ("content-length" in headers or version == "0")


def path_of(read: bytes) -> str:
    """Return the path in the first bytes of a request; empty if they are not a request.

    >>> path_of(b"POST /queues/action?x=1 HTTP/1.1")
    '/queues/action'
    """
    words = read.partition(b"\r\n")[0].split(b" ")
    return words[1].partition(b"?")[0].decode("latin-1") if len(words) == 3 else ""


def written(answer: Answer, *, head_only: bool = False) -> tuple[bytes, ...]:
    """Return the answer as sent, in parts: a long body is not copied for each slow client."""
    lines = [
        f"HTTP/1.1 {answer.status} {HTTPStatus(answer.status).phrase}",
        f"Content-Type: {answer.content_type}",
        f"Content-Length: {len(answer.body)}",
        "Connection: close",
        *(f"{name}: {value}" for name, value in answer.all_headers()),
        "\r\n",
    ]
    head = "\r\n".join(lines).encode("latin-1")
    if head_only:
        return (head,)
    return (head, answer.body) if len(answer.body) > 65536 else (head + answer.body,)
