"""Chooses the SQL statement of the next claim, its parameters, and the number of jobs to request.

This module sends nothing. It learns from the answers: how many jobs fill the claim window, whose
turn it is, where to start scanning, and whether pauses and limits must be checked.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from jobherd.workers.claim.queue_turns import QueueTurns
from jobherd.workers.claim.scan_start import LONG, SOUGHT, WALKS, ScanStart
from jobherd.workers.run.durations import LEAST

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from jobherd.workers.claim.restriction import Unrestricted
    from jobherd.workers.job.row import JobRow
    from jobherd.workers.process.spec import ChildSpec
    from jobherd.workers.run.durations import Durations


class ClaimQuery:
    """Builds the claiming statements of a worker, and adapts each to the results of those before it.

    wanted: jobs that it requests. The claim locks this many, but may take fewer.
    gated: whether it must check pauses, queue prefixes and limits. The settings require it, or the
    answer to a claim has said so.
    last: queue and kind of the last job claimed with `claim_gated`. Other workers may be waiting
    for its place in a concurrency limit.
    scan_start: where it starts in the index.
    """

    def __init__(
        self, spec: ChildSpec, kinds: Collection[str], durations: Durations, sizes: Collection[int],
        restriction: Unrestricted,
    ) -> None:  # fmt: skip
        self._spec = spec
        self._settings = settings = spec.settings
        self._all_kinds = set(kinds)
        self._durations = durations
        self._batches = bool(sizes)
        self._restriction = restriction
        self.scan_start = ScanStart()
        self._turns = (
            QueueTurns(settings.served, dict(settings.queue_weights), dict(settings.queue_priorities))
            if settings.queue_turns
            else None
        )
        """None: the order of the queues is strict."""
        self.wanted = 1 if settings.claim_window else settings.most_claimed
        self._fewest = 1
        if sizes and settings.claim_window:
            # A claim that is too small for a batch call would never be enlarged: an unseen kind
            # counts as long.
            self.wanted = self._fewest = min(settings.most_claimed, max(sizes))
        self._kinds: list[str] | None = [] if settings.claim_window else None
        self._shares: list[float] | None = [] if settings.claim_window else None
        """The share of a claim that a job of each of these kinds fills. Without shares, only the
        number of jobs limits a claim.
        """
        self._short: list[str] = []
        self.gated = bool(settings.queue_max_concurrency) or any(queue.endswith("*") for queue in settings.served)
        self.last = ("", "")
        self._set_shares()

    def build(self, child: int, avoided: Sequence[str], *, rested: bool, spent: float) -> tuple[str, dict[str, Any]]:
        """Return the name and the parameters of the next claiming statement.

        Each such statement returns the rows of claim_jobs.sql.

        Args:
            child: the number of this worker in `children`.
            avoided: queues whose ready rows are all locked by other sessions.
            rested: the worker was just idle.
            spent: seconds since the answer to the last claim.
        """
        settings = self._settings
        claim: dict[str, Any] = {
            "supervisor": self._spec.supervisor,
            "child": child,
            "served": settings.served or None,
            "turns": None,
            "avoided": avoided or None,
            "wanted": self.wanted,
            "kinds": self._kinds,
            "shares": self._shares,
            "short": self._short,
        }
        if self.gated:
            return self._restriction.narrow("claim/claim_gated", claim | self._gate_parameters(spent))
        if self._turns is not None:
            claim["turns"] = self._turns.order_served(spent) if settings.served else self._turns.order(spent)
        single = bool(rested and settings.claim_window and not self._batches)
        statement, claim = self._restriction.narrow("claim/claim_job" if single else "claim/claim_jobs", claim)
        return self._choose_start(statement, claim, avoided, single=single)

    def _gate_parameters(self, spent: float) -> dict[str, Any]:
        limited, limits = (
            map(list, zip(*self._settings.queue_max_concurrency, strict=True))
            if self._settings.queue_max_concurrency
            else (None, None)
        )
        left_queue, left_kind = self.last if self.last[0] else (None, None)
        turns = self._turns
        return {
            "limited": limited,
            "limits": limits,
            "left_queue": left_queue,
            "left_kind": left_kind,
            "narrowed": False,
            "turns": None if turns is None else turns.order(spent),
            "tiers": None if turns is None else turns.tiers,
        }

    def _choose_start(
        self, statement: str, claim: dict[str, Any], avoided: Sequence[str], *, single: bool
    ) -> tuple[str, dict[str, Any]]:
        """Let the claim skip the dead rows of one queue, if that pays."""
        start, turns = self.scan_start, self._turns
        if turns is not None and turns.shared and start.turn_until and statement in WALKS:
            # A claim can skip the dead rows of one queue only. The full scan of all queues waits
            # until the next turn.
            if turns.last in {"", *avoided} or time.monotonic() >= start.turn_until:
                return statement, claim
            claim["served"] = [turns.last]
        if not start.until or not start.seeks(statement, time.monotonic()):
            return statement, claim
        place = start.place or (None, None, None)
        claim |= dict(zip(("past_queue", "past_priority", "past_id"), place, strict=True))
        claim["back"] = start.back
        if single or start.back:
            claim["wanted"] = 1
        return SOUGHT, claim

    def may_go_ahead(self, statement: str) -> bool:
        """Return whether the claim may be made before the outcomes of the last one are recorded.

        That needs a claim without concurrency limits and without a budget. It also needs the
        setting `claim_window`: with it, the supervisor records the outcomes if their settlement is
        lost and a job runs long.
        """
        ahead = statement in {"claim/claim_jobs", SOUGHT}
        return ahead and self.wanted > 1 and bool(self._settings.claim_window)

    def is_turn_over(self, claim: dict[str, Any], now: float) -> bool:
        """Return whether an empty claim was for the queue whose turn it is. Then make another claim."""
        turns = self._turns
        if turns is None or not turns.shared or claim["served"] != [turns.last]:
            return False
        self.scan_start.turn_until = now  # That queue is empty, so the next claim considers all queues.
        return True

    def note_result(self, found: Sequence[JobRow], statement: str, *, took: float, together: bool, now: float) -> None:
        """Adapt the next claim to the result of a claim: whose turn it is, and where it starts.

        Args:
            found: the rows of the answer.
            statement: the claim.
            took: seconds that it took.
            together: it waited for a settlement that was sent with it.
            now: monotonic time.
        """
        if self._turns is not None and (not found or found[0].token is not None):
            self._turns.note(found[0].queue if found else "")
        if not found and self.gated:
            # The claim has already notified other workers of this place. If each empty claim
            # repeated that, idle workers would wake each other indefinitely.
            self.last = ("", "")
        start = self.scan_start
        if (start.until or took > LONG) and (statement == SOUGHT or statement in WALKS):
            start.note_claim(found, sought=statement == SOUGHT, took=took, together=together, now=now)

    def split_opening(self, found: list[JobRow]) -> float | None:
        """Take off the last row if it is the next opening of a rate limit, and return the seconds until then."""
        if self.gated and found and not found[-1].id and not found[-1].queue and found[-1].waited is not None:
            return found.pop().waited
        return None

    def switch_gates(self) -> None:
        """Note that the first pause or limit was added, or the last one was removed."""
        self.gated, self.last = not self.gated, ("", "")

    def adapt(self, batch: Sequence[JobRow]) -> None:
        """Set the next claim's size to the number of jobs like these that fill `claim_window` seconds.

        This runs before the claim, because a producer may wait for that claim.
        """
        settings, durations = self._settings, self._durations
        self._short = durations.short()
        self._set_shares()
        if settings.claim_window:
            expected = sum(durations.expected(row.kind) for row in batch) / len(batch)
            fill = 1 + int(settings.claim_window / max(expected, LEAST))
            self.wanted = max(self._fewest, min(settings.most_claimed, fill))

    def _set_shares(self) -> None:
        """Set the share of the next claim that a job of each kind fills.

        Kinds that must be claimed alone have no share, and are claimed alone.
        """
        durations, window = self._durations, self._settings.claim_window
        if window or durations.alone:
            shares = durations.shares(window) if window else dict.fromkeys(self._all_kinds - durations.alone, 0.0)
            self._kinds, self._shares = list(shares), list(shares.values())
