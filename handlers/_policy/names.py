"""Checks names and whole numbers that users write: kinds, queues, tenants, addresses.

An invalid one must fail where it is written. The error names the field, the value and the rule.
"""

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

KIND: Final = re.compile(r"[a-z0-9_][a-z0-9_.:-]{0,99}")
RESERVED: Final = "jobs:"
"""Kinds that begin so are those of Jobherd itself. Their jobs act with the rights of a worker."""
QUEUE: Final = re.compile(r"[a-z0-9_][a-z0-9_.-]{0,62}")

TENANT: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:@-]{0,99}")
WEBHOOK: Final = re.compile(r"(?i:https?)://[^/?#@\s\x00-\x1f]+([/?][^\s\x00-\x1f]*)?")
TRACEPARENT: Final = re.compile(
    r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}( [!-~]*( [!-~]+)?)?"
)
"""A traceparent; after a space each, its tracestate, which may be empty, and its baggage."""
LONGEST_TRACE: Final = 1024
TRACE_HEADERS: Final = ("traceparent", "tracestate", "baggage")

_LONGEST_PARTITION: Final = 200
_SMALLEST, _LARGEST = -32768, 32767  # the columns are smallint


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Return the end of a message with the most similar of these names, or nothing.

    >>> did_you_mean("ordr_id", ["order_id", "reason"])
    "; did you mean 'order_id'?"
    """
    alike = difflib.get_close_matches(name, sorted(names), 1)
    return f"; did you mean {alike[0]!r}?" if alike else ""


def check_kind(value: object) -> str:
    """Return `value` if it is a valid kind, or raise ValueError with the rule.

    >>> check_kind("mail:receipt")
    'mail:receipt'
    """
    if not isinstance(value, str) or not KIND.fullmatch(value):
        message = (
            f"kind {shown(value)} is not a name like 'mail:receipt': use lower-case letters, digits and _ . : - , "
            "at most 100 characters, the first a letter, digit or _"
        )
        raise ValueError(message)
    return value


def check_queue(value: object, *, field: str = "queue") -> str:
    """Return `value` if it is a valid name of a queue, or raise ValueError with the rule.

    >>> check_queue("media")
    'media'
    """
    if not isinstance(value, str) or not QUEUE.fullmatch(value):
        message = (
            f"{field} {shown(value)} is not a name like 'media': use lower-case letters, digits and _ . - , "
            "at most 63 characters, the first a letter, digit or _"
        )
        raise ValueError(message)
    return value


def check_tenant(value: object, *, field: str = "tenant") -> str:
    """Return `value` if it is a valid name of a tenant, or raise ValueError with the rule.

    >>> check_tenant("acme")
    'acme'
    """
    if not isinstance(value, str) or not TENANT.fullmatch(value):
        message = (
            f"{field} {shown(value)} is not a name like 'acme': "
            "use letters, digits and _ . : @ - , at most 100 characters"
        )
        raise ValueError(message)
    return value


def check_partition(value: object, *, field: str = "partition") -> str:
    """Return `value` if it is a valid name of a partition, or raise ValueError with the rule.

    >>> check_partition("acme")
    'acme'
    """
    if not isinstance(value, str) or not 1 <= len(value) <= _LONGEST_PARTITION or not value.isprintable():
        message = (
            f"{field} must be a text of 1 to {_LONGEST_PARTITION} printable characters, such as the id of a customer, "
            f"not {shown(value)}"
        )
        raise ValueError(message)
    return value


def check_webhook(value: object, *, field: str = "webhook") -> str:
    """Return `value` if it can be the URL of a webhook, or raise ValueError with the rule.

    Whether the URL may be called is checked when it is called.

    >>> check_webhook("https://example.com/done?by=jobherd")
    'https://example.com/done?by=jobherd'
    """
    if not isinstance(value, str) or not WEBHOOK.fullmatch(value) or len(value) > 2000:
        message = (
            f"{field} must be a URL like 'https://example.com/done', without a user, at most 2000 characters, "
            f"not {shown(value)}"
        )
        raise ValueError(message)
    return value


def check_traceparent(value: object, *, field: str = "traceparent") -> str:
    """Return `value` if it is a traceparent (W3C Trace Context), or raise ValueError.

    A `tracestate` and a `baggage` may follow, after a space each.

    >>> check_traceparent("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")[3:7]
    '4bf9'
    """
    if not isinstance(value, str) or len(value) > LONGEST_TRACE or not TRACEPARENT.fullmatch(value):
        message = (
            f"{field} {shown(value)} is not like '00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01': "
            "version, trace, parent and flags in lower-case hexadecimal digits, trace and parent not all zeros"
        )
        raise ValueError(message)
    return value


def split_trace(trace: str | None) -> dict[str, str]:
    """Return the headers of a job's trace.

    >>> split_trace("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01  user=7")
    {'traceparent': '00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01', 'baggage': 'user=7'}
    """
    return {name: text for name, text in zip(TRACE_HEADERS, (trace or "").split(" "), strict=False) if text}


def check_whole(value: object, *, field: str, least: int = _SMALLEST) -> int:
    """Return `value` if it is a whole number from `least` to 32767.

    Raises ValueError naming `field`.

    >>> check_whole(5, field="max_attempts", least=1)
    5
    """
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= _LARGEST:
        message = f"{field} must be a whole number from {least} to {_LARGEST}, not {shown(value)}"
        raise ValueError(message)
    return value


def shown(value: object) -> str:
    """Return a value for an error message, at most 80 characters."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
