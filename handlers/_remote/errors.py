"""The errors of `jobherd.remote`, and what the status of a broken call means. Nothing here does I/O."""

from __future__ import annotations

from enum import Enum
from typing import Final


class RemoteError(Exception):
    """Base of the errors of `jobherd.remote`."""


class AccessDeniedError(RemoteError):
    """Raised if the gateway rejects the token or certificate, or does not allow the request."""


class UnreachableError(RemoteError):
    """Raised if no gateway has answered in time."""


class RejectedError(RemoteError):
    """Raised if the gateway rejects a request as invalid. Repeating it does not help."""


class Verdict(Enum):
    """What a client does after a call has ended with an error."""

    RETRY = "retry"
    """Try the next gateway, after a delay."""
    NEW_SESSION = "new session"
    """The same, without the session: no gateway has it any more, or it belongs to another token."""
    GIVE_UP = "give up"
    """The same request would be rejected again."""


_DENIED: Final = {"UNAUTHENTICATED", "PERMISSION_DENIED"}
_INVALID: Final = {"UNIMPLEMENTED", "INVALID_ARGUMENT", "FAILED_PRECONDITION", "OUT_OF_RANGE"}


def judge_stream(status: str, *, resumed: bool, opened: bool) -> Verdict:
    """Return what follows from the status with which a stream ended.

    Args:
        status: name of the gRPC status.
        resumed: whether Hello named a session.
        opened: whether HelloAck has arrived.
    """
    if status == "UNAUTHENTICATED":
        return Verdict.GIVE_UP
    if resumed and not opened and status in {"NOT_FOUND", "PERMISSION_DENIED"}:
        return Verdict.NEW_SESSION
    if not opened and status in _DENIED | _INVALID:
        return Verdict.GIVE_UP
    return Verdict.RETRY


def error_of(status: str, details: str, address: str) -> RemoteError:
    """Return the error for a status that a retry does not change.

    Example:
        >>> error_of("UNAUTHENTICATED", "unknown token", "gateway:9091")
        AccessDeniedError('gateway gateway:9091 rejected the token or certificate: unknown token')
    """
    text = details or status
    if status == "UNAUTHENTICATED":
        return AccessDeniedError(f"gateway {address} rejected the token or certificate: {text}")
    if status == "PERMISSION_DENIED":
        return AccessDeniedError(f"gateway {address} does not allow this: {text}")
    if status == "UNIMPLEMENTED":
        return RejectedError(f"{address} is not a gateway of this version of Jobherd: {text}")
    return RejectedError(f"gateway {address} rejected the request: {text}")
