"""One round of the database thread: a claim, then the requests that wait.

The claim comes first and is answered first, so that its jobs start while results wait for the disk. Results
that one statement records are sent with it: the server records them while the claimed rows are read here.
Each answer goes to the event loop as soon as it is there.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

import psycopg

from jobherd.workers.database.errors import error_name
from jobherd.workers.gateway.claims import SlotClaims
from jobherd.workers.gateway.database import NoAnswerError
from jobherd.workers.gateway.requests import Outcomes
from jobherd.workers.gateway.transactions import Transactions

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from jobherd.workers.database.wire import Request as Statement
    from jobherd.workers.gateway.actions import Claim
    from jobherd.workers.gateway.claims import Claimed
    from jobherd.workers.gateway.database import GatewaySession
    from jobherd.workers.gateway.requests import Request

_log = logging.getLogger("jobherd.gateway")


class DatabaseRound:
    """Runs rounds. Make it in the event loop to which the answers go."""

    def __init__(self, session: GatewaySession, supervisor: int, lease: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._session = session
        self._claims = SlotClaims(session, supervisor)
        self._transactions = Transactions(session, supervisor, lease)

    def run(
        self,
        claim: Claim | None,
        requests: Sequence[Request],
        on_claimed: Callable[[Claim, Claimed | None], None],
        on_answer: Callable[[Request, Any], None],
    ) -> None:
        """Make a claim and send requests. Runs in the database thread. Raises StopWaiting.

        Args:
            claim: None: make none.
            requests: in their order.
            on_claimed: gets the claim and its answer. None: it got no answer, or was rejected.
            on_answer: gets a request and its answer, which is an exception if it was rejected.
        """
        if claim is not None:
            # Always set: one that no claim has sent, because the session could not be opened, is out of date.
            self._session.next = _single_statement(requests)
            self._loop.call_soon_threadsafe(on_claimed, claim, self._claim(claim))
        for request in requests:
            try:
                answer = request.send(self._transactions)
            except (psycopg.Error, ValueError, OverflowError) as problem:
                _log.error("the database rejected a request of the gateway: %s", error_name(problem))
                answer = problem
            self._loop.call_soon_threadsafe(on_answer, request, answer)

    def _claim(self, claim: Claim) -> Claimed | None:
        try:
            return self._claims.make(claim)
        except NoAnswerError:
            return None
        except (psycopg.Error, ValueError) as problem:
            _log.error("the database rejected a claim: %s", error_name(problem))
            return None


def _single_statement(requests: Sequence[Request]) -> Statement | None:
    """Return the statement of the first request, if that records results and needs no other."""
    first = requests[0] if requests else None
    statements = first.prepare().requests if isinstance(first, Outcomes) else ()
    return statements[0] if len(statements) == 1 else None
