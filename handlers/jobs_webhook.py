"""jobs:webhook: send a request to a URL when a job reaches its final state.

The database enqueues this job in the same transaction that ends a job with a webhook, so the
request is sent at least once. Its content is read from the history: the payload only names the
job's end, so nothing that a payload makes up is signed. Producers choose the URL and need not be
trusted. So only addresses that anyone on the internet could call are called, and those that the
operator allows. The name is resolved here and the connection goes to the checked address. Redirects
are not followed, and the environment's proxies are not used. Of the receiver's answer only the
status is kept.
"""

from __future__ import annotations

import hashlib
import hmac
import http.client
import ipaddress
import socket
import ssl
import string
import time
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlsplit

from jobherd import Backoff, Failed, Job, Poison, Retry, default_client, handler
from jobherd.handlers._enqueue.options import check_id
from jobherd.handlers._enqueue.statements import Statement
from jobherd.handlers._values.addresses import is_public

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jobherd.handlers._enqueue.statements import Row

FORBIDDEN: Final = "WEBHOOK_FORBIDDEN"
REFUSED: Final = "WEBHOOK_REFUSED"
UNREACHABLE: Final = "WEBHOOK_UNREACHABLE"
GONE: Final = "WEBHOOK_GONE"
UNSIGNED: Final = "WEBHOOK_UNSIGNED"

_LONGEST_WAIT: Final = 3600.0


@dataclass(frozen=True, slots=True)
class Rules:
    """Settings for calling webhooks.

    secrets: each secret signs the request; use several while one replaces another.
    allow: names of hosts, addresses and networks that may be private, and may be called by plain
        http.
    timeout: seconds for each step of a call, default 10.
    """

    secrets: tuple[str, ...] = ()
    allow: tuple[str, ...] = ()
    timeout: float = 10.0


_rules = Rules()


def set_rules(rules: Rules) -> None:
    """Set how this process calls webhooks."""
    global _rules  # set once, when a worker starts
    _rules = rules


@handler("jobs:webhook", timeout="60s", max_attempts=8, backoff=Backoff(base="10s", factor=3, jitter=0.2, cap="6h"))
def deliver(job: Job, url: str, event: dict[str, Any]) -> dict[str, int]:  # noqa: ARG001 - the URL is in the payload for people
    """Send the end of a job to its webhook as signed JSON, and return the answer's status.

    The database enqueues this job.

    Args:
        job: the job.
        url: the URL, for people who read the payload.
        event: its `id` and `finished_at` name the end. The rest is for people.

    Raises:
        Failed: the receiver does not answer with 2xx, cannot be reached, or no secret is set.
        Retry: the receiver says when to try again.
        Poison: the receiver answers 410, its address may not be called, or the history does not
            contain that end any more.
    """
    rules = _rules
    if not rules.secrets:
        message = (
            "no webhook_secret is set, and Jobherd sends no unsigned calls: set JOBHERD_WEBHOOK_SECRET where the "
            "supervisor runs"
        )
        raise Failed(message, code=UNSIGNED)
    if (found := find_end(event)) is None:
        message = "the history no longer has this outcome, because the job was run again or deleted: nothing is sent"
        raise Poison(message, code=GONE)
    address, body = found
    headers = {
        "Content-Type": "application/json",
        "User-Agent": "jobherd",
        "Jobherd-Signature": sign(body, rules.secrets, at=int(time.time())),
        "Jobherd-Delivery": str(job.id),
        "Jobherd-Attempt": str(job.attempt),
    }
    status, again = _post(address, body, headers, rules)
    if 200 <= status < 300:
        return {"status": status}
    if status == http.client.GONE:
        message = "the receiver answered 410: the webhook address is gone"
        raise Poison(message, code=REFUSED)
    if again is not None and status in {http.client.TOO_MANY_REQUESTS, http.client.SERVICE_UNAVAILABLE}:
        raise Retry(min(again, _LONGEST_WAIT), f"the receiver answered {status} and named a time to try again")
    message = f"the receiver answered {status}" + ("; redirects are not followed" if 300 <= status < 400 else "")
    raise Failed(message, code=REFUSED)


def find_end(event: Mapping[str, Any]) -> tuple[str, bytes] | None:
    """Return the URL and the body of the request for the end that `event` names.

    Returns None if the history does not contain it.
    """
    try:
        end = {"id": check_id(event["id"]), "finished_at": datetime.fromisoformat(event["finished_at"])}
    except (KeyError, TypeError, ValueError):
        return None
    return default_client().run(Statement("observe/find_webhook_event", end, _read_end))


def _read_end(rows: list[Row], _: tuple[str, ...]) -> tuple[str, bytes] | None:
    return (rows[0][0], rows[0][1].encode()) if rows else None


def sign(body: bytes, secrets: tuple[str, ...], *, at: int) -> str:
    """Return the signature header: time, and a hex HMAC-SHA256 per secret of time, dot and body.

    >>> sign(b"{}", ("a secret of some length",), at=1700000000)[:17]
    't=1700000000,v1=5'
    """
    signed = b"%d.%s" % (at, body)
    return ",".join(
        [f"t={at}", *(f"v1={hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest()}" for secret in secrets)]
    )


def _post(url: str, body: bytes, headers: dict[str, str], rules: Rules) -> tuple[int, float | None]:
    """Return the status of the answer, and the seconds it asks to wait."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError:
        parts, host, port = urlsplit(""), "", 0
    if parts.scheme not in {"http", "https"} or not host or parts.username is not None:
        message = "the webhook is not a URL like https://example.com/done"
        raise Poison(message, code=FORBIDDEN)
    addresses = _resolve(host, port)
    if not all(_may_call(host, address, encrypted=parts.scheme == "https", allow=rules.allow) for address in addresses):
        message = (
            f"the webhook's host {host!r} may not be called: only https to public addresses may, "
            "and what webhook_allow names where the supervisor runs"
        )
        raise Poison(message, code=FORBIDDEN)
    connection = _Connection(host, port, addresses, timeout=rules.timeout, encrypted=parts.scheme == "https")
    try:
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        connection.request("POST", quote(target, safe=string.punctuation), body, headers)  # a request line is ASCII
        answer = connection.getresponse()
        return answer.status, _seconds(answer.getheader("Retry-After"))
    except (OSError, http.client.HTTPException) as problem:
        message = f"the webhook's host {host!r} could not be reached: {type(problem).__name__}"
        raise Failed(message, code=UNREACHABLE) from problem
    finally:
        connection.close()


def _resolve(host: str, port: int) -> list[str]:
    try:
        return list(
            dict.fromkeys(str(found[4][0]) for found in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        )
    except (OSError, UnicodeError) as problem:
        message = f"the webhook's host {host!r} has no address"
        raise Failed(message, code=UNREACHABLE) from problem


def _may_call(host: str, address: str, *, encrypted: bool, allow: tuple[str, ...]) -> bool:
    """Return whether an address may be called.

    A public address may be called by https; an allowed name, address or network by http or https.
    """
    found = ipaddress.ip_address(address.partition("%")[0])
    for word in allow:
        if word.lower() == host.lower():
            return True
        try:
            if found in ipaddress.ip_network(word, strict=False):
                return True
        except ValueError:
            continue  # a name
    return encrypted and is_public(found)


def _seconds(text: str | None) -> float | None:
    return float(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 10 else None


class _Connection(http.client.HTTPConnection):
    """Connects to checked addresses only. Resolving the name again could return another address."""

    def __init__(self, host: str, port: int, addresses: list[str], *, timeout: float, encrypted: bool) -> None:
        super().__init__(host, port, timeout=timeout)
        self._addresses = addresses
        self._encrypted = encrypted
        if encrypted:
            self.default_port = 443  # otherwise the Host header would contain the port

    def connect(self) -> None:
        """Connect to the first address that answers."""
        for place, address in enumerate(self._addresses, 1):
            try:
                self.sock = socket.create_connection((address, self.port), self.timeout)
                break
            except OSError:
                if place == len(self._addresses):
                    raise
        if self._encrypted:
            self.sock = ssl.create_default_context().wrap_socket(self.sock, server_hostname=self.host)
