"""The answers that unary calls wait for: of a transaction, or the commit of the results that they reported."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Mapping

    from jobherd.handlers._remote import messages as m
    from jobherd.workers.gateway.actions import Action
    from jobherd.workers.gateway.peer import Peer
    from jobherd.workers.gateway.state import State
    from jobherd.workers.gateway.transactions import Transactions


@dataclass(slots=True)
class Lookup:
    """A transaction whose answer a call waits for."""

    run: Callable[[Transactions], Any]
    answer: asyncio.Future[Any]

    def send(self, database: Transactions) -> Any:
        return self.run(database)

    def apply(self, _state: State, answer: Any, _peers: Mapping[int, Peer], _now: float) -> list[Action]:
        answer_call(self.answer, answer)
        return []


def answer_call(call: asyncio.Future[Any], answer: Any) -> None:
    """Pass the answer of a transaction, or its error, to a call that may have ended."""
    if call.done():
        return
    if isinstance(answer, Exception):
        call.set_exception(answer)
    else:
        call.set_result(answer)


class Reply:
    """What a call gets that has reported results. committed: done once they are recorded."""

    def __init__(self, refusals: list[m.Refusal], committed: asyncio.Future[Any]) -> None:
        self.refusals = refusals
        self.committed = committed

    def refuse(self, _batch: int, refusal: m.Refusal) -> None:
        """Let the answer say that a result was refused."""
        self.refusals.append(refusal)
