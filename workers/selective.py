"""A worker that does not take every job: it asks before each claim what it may take, and claims under conditions.

Only where somebody restricts claims does a child live as this one; all others pay nothing for it. What has ended is written before the
hooks are asked, for they are user code and may take their time. Jobs that this child may not take are somebody else's: news that found
it unable is passed on, once.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import psycopg

import sql
from workers.admission import REST, Admission, Narrowing
from workers.connection import is_away
from workers.link import More, send
from workers.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from handlers._handler import AnyHandler
    from workers.execute import Claimed
    from workers.hooks import Caller
    from workers.main import Body

_log = logging.getLogger("jobherd.hooks")


class SelectiveWorker(Worker):
    """A worker whose claims are narrowed."""

    def __init__(self, body: Body, handlers: Mapping[str, AnyHandler], hooks: Caller) -> None:
        super().__init__(body, handlers, hooks)
        self._admission = Admission(hooks, handlers)
        self._narrowing: Narrowing | None = None
        self._failing = False
        self._passed_on = -1

    def _claim(self, avoided: Sequence[str], *, rested: bool) -> list[Claimed]:
        if not avoided:  # the first of a turn over the queues
            self._settle()
            self._narrowing = self._admission.ask()
            self._failing = self._admission.failing
            self._worn = self._worn or self._hooks.torn
        if self._narrowing is None or self._worn:
            return []
        try:
            return super()._claim(avoided, rested=rested)
        except psycopg.Error as problem:
            if is_away(problem) or not any(name.startswith("own_") for name in self._narrowing.conditions):
                raise
            _log.error("a condition of before_claim is refused: %s", " ".join(str(problem).split()))
            self._narrowing, self._failing = None, True
            return []

    def _narrow(self, by: str, claim: dict[str, object]) -> tuple[str, dict[str, object]]:
        narrowing = self._narrowing
        if narrowing is None or not narrowing.conditions:
            return by, claim
        return sql.narrow(by, *narrowing.conditions), claim | {"narrowed": True} | narrowing.parameters

    def _work_table(self) -> bool:
        self._settle()
        self._narrowing = self._admission.ask()  # anew: the claim before may have taken what there was room for
        self._failing = self._admission.failing
        self._worn = self._worn or self._hooks.torn
        return self._narrowing is not None and super()._work_table()

    def _admits(self, kind: str) -> bool:
        return self._narrowing is not None and self._narrowing.admits(kind)

    def _idle(self, epoch: int, longest: float) -> None:
        if self._worn:
            return
        narrowing = self._narrowing
        if self._failing:
            longest = min(longest, self._seat.settings.poll)  # what it says of itself fills the log
        elif narrowing is None or narrowing.conditions:
            longest = REST
        if self._woken and (narrowing is None or narrowing.conditions) and self._passed_on != epoch:
            # Once for each news: two children that both may not would call each other for ever.
            self._passed_on = epoch
            send(self._seat.report, More())
        super()._idle(epoch, longest)
