"""Admits or rejects a call: reads the token and the certificate of its client.

A stream is admitted once, with its first message, and a unary call each time. `access.py` decides;
this module must not.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Any, Final

import grpc

from jobherd.workers.gateway.access import Principal, Rejections, Role, token_in
from jobherd.workers.gateway.actions import Status

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from jobherd.workers.gateway.access_file import LiveAccess

    Context = grpc.aio.ServicerContext[Any, Any]

_log = logging.getLogger("jobherd.gateway")

DELAY: Final = 0.2
"""Seconds before a rejection is sent, so that guessing is slow."""


class Authenticator:
    """Admits clients.

    Args:
        access: who may connect.
        on_refused: called for each client that is rejected.

    Attributes:
        rejections: counts those without a valid token or certificate.
    """

    def __init__(self, access: LiveAccess, on_refused: Callable[[Status], object] = bool) -> None:
        self.rejections = Rejections()
        self._on_refused = on_refused
        self._access = access

    async def admit(self, context: Context, *, token: str = "", role: Role = Role.BOTH) -> Principal:
        """Return the client's principal.

        A client without a valid token or certificate is rejected with UNAUTHENTICATED, one whose
        principal may not do this with PERMISSION_DENIED: both end the call by an exception.

        Args:
            context: the call.
            token: from the first message of a stream; default: the one in the metadata.
            role: what the call needs, WORK or ENQUEUE; BOTH: either is enough.
        """
        principal = self._access.identify(token or _token_of(context), _names_of(context))
        if principal is None:
            self._on_refused(Status.UNAUTHENTICATED)
            if about := self.rejections.note(time.monotonic()):
                _log.warning(
                    "the gateway rejected clients without a valid token or certificate",
                    extra={"count": about, "peer": context.peer()},
                )
            await asyncio.sleep(DELAY)
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "the token or certificate is missing or not valid")
        elif not (principal.works if role is Role.WORK else principal.enqueues if role is Role.ENQUEUE else True):
            self._on_refused(Status.PERMISSION_DENIED)
            await context.abort(
                grpc.StatusCode.PERMISSION_DENIED,
                f"the principal {principal.name} has the role {principal.role.value}: this call needs {role.value}",
            )
        return principal

    def admits(self, principal: Principal) -> bool:
        """Return whether a client that was admitted earlier still is. If not, end its stream."""
        return self._access.admits(principal)


def _token_of(context: Context) -> str:
    for key, value in context.invocation_metadata() or ():
        if key == "authorization":
            return token_in(value if isinstance(value, str) else value.decode("latin-1"))
    return ""


def _names_of(context: Context) -> list[str]:
    """Return the names in the client's certificate: alternative names first, as TLS clients check them."""
    found = context.auth_context()
    return [*_texts(found, "x509_subject_alternative_name"), *_texts(found, "x509_common_name")]


def _texts(found: Any, name: str) -> Iterable[str]:
    return (value.decode(errors="replace") for value in found.get(name, ()))
