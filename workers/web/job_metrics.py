"""Builds the metrics of jobs: outcomes, durations, error codes and waits, from the status boards.

A counter never goes down: a status board outlives the processes that write it, and an inconsistent
read that is lower than before is ignored.
"""

from __future__ import annotations

import re
import struct
from contextlib import suppress
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

from jobherd.workers.ipc.counters import BUCKETS, MAX_KINDS, OUTCOMES
from jobherd.workers.web.labels import OTHERS, Labels, label
from jobherd.workers.web.process_metrics import current_work

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from prometheus_client import Metric

    from jobherd.workers.ipc.counters import KindCounts
    from jobherd.workers.ipc.status_board import StatusBoard
    from jobherd.workers.web.status_report import StatusReport

ERRORS: Final = 1000
"""Pairs of a kind and an error code that are shown by name. All others count as "(other)"."""

_CODE: Final = re.compile(r"[\w.:-]{1,62}", re.ASCII)
_LE: Final = (*(str(bound) for bound in BUCKETS), "+Inf")


class Tally:
    """Counters of one kind, summed over all slots."""

    __slots__ = ("buckets", "outcomes", "recycled", "seconds", "timeouts")

    def __init__(self) -> None:
        self.outcomes = [0] * len(OUTCOMES)
        self.timeouts = 0
        self.recycled = 0
        self.buckets = [0] * (len(BUCKETS) + 1)
        self.seconds = 0.0


class Highest:
    """The highest values read so far, of numbers that only grow.

    A process may write a number during the read. An inconsistent value is lower, and is ignored.
    """

    def __init__(self) -> None:
        self._seen: dict[tuple[object, ...], tuple[float, ...]] = {}

    def of(self, *key: object, numbers: Sequence[float]) -> tuple[float, ...]:
        """Return `numbers`, each at least as high as before under this key."""
        before = self._seen.get(key)
        after = tuple(numbers) if before is None else tuple(map(max, before, numbers))
        self._seen[key] = after
        return after


class JobMetrics:
    """Builds the metric families of jobs at each scrape."""

    def __init__(self, boards: Sequence[StatusBoard]) -> None:
        self._boards = boards
        self._highest = Highest()
        self._kinds = Labels[str](MAX_KINDS)
        self._codes = Labels[tuple[str, str]](ERRORS)
        self._last: dict[int, list[KindCounts]] = {}

    def collect(self, report: StatusReport) -> Iterator[Metric]:
        """Yield the families, of the boards and of what the supervisor counted itself."""
        tallies = self._tallies(report)
        processed = CounterMetricFamily(
            "jobherd_worker_jobs_processed", "Attempts that ended, by outcome.", labels=["kind", "outcome"]
        )
        timeouts = CounterMetricFamily(
            "jobherd_worker_timeouts", "Attempts that were stopped at their timeout.", labels=["kind"]
        )
        recycled = CounterMetricFamily(
            "jobherd_worker_recycled", "Worker processes replaced because of what a job left behind.", labels=["kind"]
        )
        durations = HistogramMetricFamily(
            "jobherd_worker_job_duration_seconds", "How long handlers ran.", labels=["kind"]
        )
        in_flight = GaugeMetricFamily("jobherd_worker_in_flight", "Handlers that run now.", labels=["kind"])
        running = self._running(report, tallies)
        for kind, tally in tallies.items():
            for outcome, number in zip(OUTCOMES, tally.outcomes, strict=True):
                processed.add_metric([kind, outcome], number)
            timeouts.add_metric([kind], tally.timeouts)
            recycled.add_metric([kind], tally.recycled)
            durations.add_metric([kind], list(zip(_LE, accumulate(tally.buckets), strict=True)), tally.seconds)
        for kind, number in running.items():
            in_flight.add_metric([kind], number)
        yield from (processed, durations, in_flight, timeouts, recycled, self._errors(report))
        yield from self._sums()

    def _label(self, name: str) -> str:
        """Return the label of a kind: its name, unless there are already too many kinds."""
        return label(self._kinds, name)

    def _counted(self, slot: int, board: StatusBoard) -> list[KindCounts]:
        """Return the counters of a status board.

        If a process has corrupted its board, return the last good counters: the others must still
        be shown.
        """
        with suppress(ValueError, struct.error):
            self._last[slot] = board.tally.kind_counts()
        return self._last.get(slot, [])

    def _tallies(self, report: StatusReport) -> dict[str, Tally]:
        tallies: dict[str, Tally] = {}
        for slot, board in enumerate(self._boards):
            for number, counts in enumerate(self._counted(slot, board)):
                split = len(OUTCOMES)
                read = (*counts.outcomes, counts.timeouts, counts.recycled, *counts.buckets, counts.seconds)
                numbers = self._highest.of("kind", slot, number, numbers=read)
                tally = tallies.setdefault(self._label(counts.name), Tally())
                tally.outcomes = [int(a + b) for a, b in zip(tally.outcomes, numbers[:split], strict=True)]
                tally.timeouts += int(numbers[split])
                tally.recycled += int(numbers[split + 1])
                tally.buckets = [int(a + b) for a, b in zip(tally.buckets, numbers[split + 2 : -1], strict=True)]
                tally.seconds += numbers[-1]
        for kind, outcomes in report.settled.items():
            tally = tallies.setdefault(self._label(kind), Tally())
            for outcome, number in outcomes.items():
                if outcome in OUTCOMES:
                    tally.outcomes[OUTCOMES.index(outcome)] += number
        for kind, number in report.timeouts.items():
            tallies.setdefault(self._label(kind), Tally()).timeouts += number
        other = tallies.get(OTHERS)
        if other is not None and not any(other.outcomes) and not other.timeouts:
            del tallies[OTHERS]  # every board has this entry, but few fleets need it
        return tallies

    def _errors(self, report: StatusReport) -> Metric:
        counted: dict[tuple[str, str], int] = {}

        def count(kind: str, code: str, number: int) -> None:
            key = (self._label(kind), code if _CODE.fullmatch(code) else OTHERS)
            key = key if self._codes.has(key) else (OTHERS, OTHERS)
            counted[key] = counted.get(key, 0) + number

        for slot, board in enumerate(self._boards):
            for at, (kind, code, number) in enumerate(board.tally.error_counts()):
                (highest,) = self._highest.of("error", slot, at, numbers=(number,))
                if highest:
                    count(kind, code, int(highest))
        for kind, codes in report.errors.items():
            for code, number in codes.items():
                count(kind, code, number)
        family = CounterMetricFamily(
            "jobherd_worker_errors", "Error codes that attempts ended with.", labels=["kind", "code"]
        )
        for labels, number in sorted(counted.items()):
            family.add_metric(labels, number)
        return family

    def _running(self, report: StatusReport, known: Iterable[str]) -> dict[str, int]:
        """Return how many handlers of each kind run.

        The board of a dead process still shows what it ran. So count only living processes, and
        those that began after the supervisor published its report, which may be a second old.
        """
        running = dict.fromkeys(known, 0)
        living = {child.slot for child in report.children if child.pid}
        for slot, board in enumerate(self._boards):
            now = current_work(board)
            if now is None or not now.runs or not now.job:
                continue
            if slot in living or now.started > report.at or not report.published:
                kind = self._label(board.tally.policy(now.kind).name)
                running[kind] = running.get(kind, 0) + 1 + len(board.company(now))
        return running

    def _sums(self) -> Iterator[Metric]:
        waits, waited, started, claims, empty = [0] * len(_LE), 0.0, 0, 0, 0
        for slot, board in enumerate(self._boards):
            buckets, seconds = board.tally.waits()
            numbers = self._highest.of("slot", slot, numbers=(*buckets, seconds, board.jobs_started, *board.claims))
            waits = [int(a + b) for a, b in zip(waits, numbers[:-4], strict=True)]
            waited += numbers[-4]
            started, claims, empty = started + int(numbers[-3]), claims + int(numbers[-2]), empty + int(numbers[-1])
        yield HistogramMetricFamily(
            "jobherd_worker_start_latency_seconds",
            "How long jobs were due before they started.",
            buckets=list(zip(_LE, accumulate(waits), strict=True)),
            sum_value=waited,
        )
        yield CounterMetricFamily("jobherd_worker_jobs_started", "Jobs that started.", value=started)
        yield CounterMetricFamily("jobherd_worker_claims", "Claims: queries to the database for jobs.", value=claims)
        yield CounterMetricFamily("jobherd_worker_claims_empty", "Claims that found no job.", value=empty)
