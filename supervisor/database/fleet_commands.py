"""Orders: what somebody wants of this parent, from whatever host. Taken from the database, carried out once, answered into their rows.

A notification says that there are some, and each beat looks as well. Taking one marks it, so none is carried out twice; should the session be lost
between, it is not carried out at all, and a keeper says so to whoever waits. A flood cannot hurt: a letter takes a few, the next one goes
out a while after, and whoever asks is refused once a hundred are open (`jobherd.order`). Nothing here waits, and what an order does
stands elsewhere: each name has a trade, which does it or sees that it is done, and answers now or later.
"""

from __future__ import annotations

import json
import logging
import signal
from collections import deque
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import orjson

from jobherd.supervisor.database.connection import Link
from jobherd.supervisor.policy.fleet import RunState

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from jobherd.supervisor.database.connection import Answer, DatabaseConnection
    from jobherd.supervisor.policy.fleet import Fleet

log = logging.getLogger("jobherd.supervisor")

MOST: Final = 8
"""Orders taken by one letter, and carried out in one turn of the loop."""
SOONEST: Final = 0.05
"""Seconds between two letters that take some."""
AGAIN: Final = 0.5
"""Seconds before a letter that was lost is sent again."""
LONGEST: Final = 1_000_000
"""Characters of an answer; a longer one is an error."""

MEANT: Final = {"drain": signal.SIGTERM, "add": signal.SIGTTIN, "remove": signal.SIGTTOU, "reload": signal.SIGHUP}
"""Orders that say what a signal says."""


class Refused(Exception):  # noqa: N818 - says what happened
    """An order that is not carried out. Its text tells whoever asked why, and what to do instead."""


@dataclass(frozen=True, slots=True)
class FleetCommand:
    """An order that was taken."""

    id: int
    name: str
    arguments: Mapping[str, Any]
    asked_by: str


Trade: TypeAlias = "Callable[[FleetCommand, float], Mapping[str, Any] | None]"
"""Carries out an order: called with it and the time, returns the answer, or None if `FleetCommands.answer` will be called with it later. Raises Refused."""


def objection(name: str, fleet: Fleet) -> str | None:
    """Return why one of `MEANT` cannot be done now, or None. To drain twice is to drain."""
    if name == "drain":
        return None
    if fleet.run_state is not RunState.SERVING or fleet.exit_code is not None:
        return "it is leaving already: nothing can be changed any more"
    if name == "add" and fleet.wanted >= fleet.limits.max_workers:
        return f"it has {fleet.wanted} workers already, as many as max_workers allows"
    if name == "remove" and fleet.wanted <= 0:
        return "it has no worker left that could be taken away; to stop it, drain it"
    return None


class FleetCommands:
    """Takes, hands over and answers. `step` is called each turn; `trades` says who carries out what, by name."""

    def __init__(self, db: DatabaseConnection, fleet: Fleet, trades: dict[str, Trade]) -> None:
        self.trades = trades
        self._db = db
        self._fleet = fleet
        self._wanted = False
        self._asking = False
        self._at = 0.0
        self._taken: deque[FleetCommand] = deque()
        self._answers: dict[int, tuple[str | None, str | None]] = {}
        """What is not written yet, or not known to be."""
        self._sent: set[int] = set()
        self._answer_at = 0.0

    def heard(self, supervisor: str) -> None:
        """That supervisor was notified of fleet commands; perhaps it is this one."""
        if supervisor == str(self._fleet.supervisor):
            self._wanted = True

    def look(self) -> None:
        """There are some."""
        self._wanted = True

    def wake_at(self) -> float:
        """When `step` must be called at the latest."""
        if self._db.link is not Link.UP:
            return float("inf")
        if self._taken:
            return 0.0
        due = self._answer_at if len(self._answers) > len(self._sent) else float("inf")
        return min(due, self._at) if self._wanted and not self._asking and self._fleet.supervisor else due

    def step(self, now: float) -> None:
        """Carry out what was taken, send what is answered, take what is there: whatever is due."""
        if self._db.link is not Link.UP:
            return
        while self._taken:
            self._carry_out(self._taken.popleft(), now)
        if len(self._answers) > len(self._sent) and now >= self._answer_at:
            for number in self._answers.keys() - self._sent:
                self._send(number, now)
        if self._wanted and not self._asking and now >= self._at and self._fleet.supervisor:
            self._wanted, self._asking, self._at = False, True, now + SOONEST
            wanted = {"supervisor": self._fleet.supervisor, "most": MOST}
            self._db.ask("take_orders", wanted, lambda answer: self._took(answer, asked=now))

    def answer(self, number: int, answer: Mapping[str, Any] | None = None, *, error: str | None = None) -> None:
        """Write what became of an order. Only the first answer counts.

        number: the order's. answer: what to say, as JSON can hold it. error: why it was not done, instead.
        """
        text = "" if error is not None else as_json(answer or {})
        if len(text) > LONGEST:
            error = f"the answer has {len(text):,} characters, more than {LONGEST:,}"
        self._answers.setdefault(number, (text, None) if error is None else (None, error))

    # -- parts ------------------------------------------------------------------------------------------------------

    def _took(self, answer: Answer, *, asked: float) -> None:
        self._asking = False
        if answer is None:
            self._wanted, self._at = True, asked + AGAIN
            return
        self._wanted = self._wanted or len(answer) >= MOST
        for number, name, arguments, asked_by in answer:
            document = _document(arguments)
            if document is None:
                self.answer(int(number or 0), error="its arguments cannot be read: too deep, or a number that is too long")
            else:
                self._taken.append(FleetCommand(int(number or 0), name or "", document, asked_by or ""))

    def _carry_out(self, order: FleetCommand, now: float) -> None:
        ids = {"order": order.id, "arguments": dict(order.arguments)}
        if order.name != "report":
            log.info("%s is ordered by %s", order.name, order.asked_by, extra=ids)
        trade = self.trades.get(order.name)
        try:
            if trade is None:
                raise Refused(f"it does not know the order {order.name!r}; it knows {', '.join(sorted(self.trades))}")
            reply = trade(order, now)
        except Refused as problem:
            self.answer(order.id, error=str(problem))
        except Exception as problem:  # an order must not be able to bring the parent down
            log.exception("the order %r has failed", order.name, extra=ids)
            self.answer(order.id, error=f"it failed: {type(problem).__name__}: {problem}")
        else:
            if reply is not None:
                self.answer(order.id, reply)

    def _send(self, number: int, now: float) -> None:
        text, error = self._answers[number]
        self._sent.add(number)
        self._db.ask(
            "answer_order",
            {"order": number, "answer": text, "error": error},
            partial(self._answered, number, now),
            partial(self._unwritable, number),
        )

    def _answered(self, number: int, sent: float, answer: Answer) -> None:
        self._sent.discard(number)
        if answer is None:
            self._answer_at = sent + AGAIN
        else:
            self._answers.pop(number, None)

    def _unwritable(self, number: int) -> None:
        """What cannot be written must still be answered: in fixed words, then not by us."""
        self._sent.discard(number)
        if self._answers.pop(number, (None, None))[0] is not None:
            self._answers[number] = (None, "the answer cannot be written down")


def as_json(document: object) -> str:
    """Return a document as PostgreSQL takes it: no NUL, no half of a pair of surrogates, no number that is none."""
    try:
        text = orjson.dumps(document).decode()  # a number that is none becomes null
    except TypeError:  # half of a pair of surrogates, or what only the slow way can write
        text = ""
    if text and "\\u0000" not in text:
        return text
    return json.dumps(_writable(document), separators=(",", ":"), allow_nan=False)


def _writable(value: Any) -> Any:
    match value:
        case str():
            return value.replace("\0", "\N{REPLACEMENT CHARACTER}").encode(errors="replace").decode()
        case float():
            return value if value - value == 0 else None
        case dict():
            return {str(_writable(name)): _writable(inner) for name, inner in value.items()}
        case list() | tuple():
            return [_writable(inner) for inner in value]
        case _:
            return value


def _document(text: str | None) -> Mapping[str, Any] | None:
    """Return the arguments of an order, or None: PostgreSQL holds documents that Python cannot, and the session would be given up over one."""
    if not text:
        return {}
    try:
        found = json.loads(text)
        json.dumps(found)  # as the log does, which says what was ordered
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else {}
