"""Builds the Prometheus metrics from status boards, supervisor facts and queue depths.

A scrape reads memory and stores nothing, so it slows no child process. Labels are kinds, outcomes,
states, causes and queues, each of a bounded number over the life of this process (`labels.py`). A
label is never a process ID, a job or a slot. A counter never goes down: a status board outlives the
processes that write it, and an inconsistent read that is lower than before is ignored.
`docs/metrics.md` lists all metrics, and a test compares the list.
"""

from __future__ import annotations

import re
import struct
import time
from contextlib import suppress
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, InfoMetricFamily
from prometheus_client.registry import Collector

from jobherd.workers.ipc.counters import BUCKETS, MAX_KINDS, OUTCOMES
from jobherd.workers.ipc.status_board import Phase
from jobherd.workers.web.labels import OTHERS, Labels, label
from jobherd.workers.web.queue_depth import STATES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from prometheus_client import Metric

    from jobherd.workers.ipc.counters import KindCounts
    from jobherd.workers.ipc.status_board import CurrentWork, StatusBoard
    from jobherd.workers.web.fleet_facts import Child, Facts, Reader
    from jobherd.workers.web.queue_depth import Depth, Measurer

CAUSES: Final = 64
"""Causes of death that are shown by name. All others count as "(other)"."""

ERRORS: Final = 1000
"""Pairs of a kind and an error code that are shown by name. All others count as "(other)"."""

_CODE: Final = re.compile(r"[\w.:-]{1,62}", re.ASCII)
_STATE: Final = re.compile(r"[a-z_]{1,20}")
_PHASES: Final = tuple(phase for phase in Phase if phase is not Phase.TOGETHER)
"""The metric does not distinguish one running job from several in a batch handler."""
_LE: Final = (*(str(bound) for bound in BUCKETS), "+Inf")
_READY: Final = "ready"


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


class JobherdCollector(Collector):
    """Builds metric families from status boards and facts, at each scrape."""

    def __init__(self, boards: Sequence[StatusBoard], reader: Reader, measurer: Measurer) -> None:
        self._boards = boards
        self._reader = reader
        self._measurer = measurer
        self._highest = Highest()
        self._kinds = Labels[str](MAX_KINDS)
        self._codes = Labels[tuple[str, str]](ERRORS)
        self._causes = Labels[str](CAUSES)
        self._last: dict[int, list[KindCounts]] = {}
        self._born: tuple[float, float] = (0.0, 0.0)

    def describe(self) -> Iterable[Metric]:
        """Describe nothing, so that registering does not collect."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Yield all metric families. The registry calls this at each scrape."""
        facts = self._reader.read()
        yield from self._jobs(facts)
        yield from self._slots(facts)
        yield from self._parent(facts)
        yield from self._queues()

    # -- jobs, from the status boards

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

    def _tallies(self, facts: Facts) -> dict[str, Tally]:
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
        for kind, outcomes in facts.settled.items():
            tally = tallies.setdefault(self._label(kind), Tally())
            for outcome, number in outcomes.items():
                if outcome in OUTCOMES:
                    tally.outcomes[OUTCOMES.index(outcome)] += number
        for kind, number in facts.timeouts.items():
            tallies.setdefault(self._label(kind), Tally()).timeouts += number
        other = tallies.get(OTHERS)
        if other is not None and not any(other.outcomes) and not other.timeouts:
            del tallies[OTHERS]  # every board has this entry, but few fleets need it
        return tallies

    def _jobs(self, facts: Facts) -> Iterator[Metric]:
        tallies = self._tallies(facts)
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
        running = self._running(facts, tallies)
        for kind, tally in tallies.items():
            for outcome, number in zip(OUTCOMES, tally.outcomes, strict=True):
                processed.add_metric([kind, outcome], number)
            timeouts.add_metric([kind], tally.timeouts)
            recycled.add_metric([kind], tally.recycled)
            durations.add_metric([kind], list(zip(_LE, accumulate(tally.buckets), strict=True)), tally.seconds)
        for kind, number in running.items():
            in_flight.add_metric([kind], number)
        yield from (processed, durations, in_flight, timeouts, recycled, self._errors(facts))
        yield from self._sums()

    def _errors(self, facts: Facts) -> Metric:
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
        for kind, codes in facts.errors.items():
            for code, number in codes.items():
                count(kind, code, number)
        family = CounterMetricFamily(
            "jobherd_worker_errors", "Error codes that attempts ended with.", labels=["kind", "code"]
        )
        for labels, number in sorted(counted.items()):
            family.add_metric(labels, number)
        return family

    def _running(self, facts: Facts, known: Iterable[str]) -> dict[str, int]:
        """Return how many handlers of each kind run.

        The board of a dead process still shows what it ran. So count only living processes, and
        those that began after the supervisor published its facts, which may be a second old.
        """
        running = dict.fromkeys(known, 0)
        seated = {child.slot for child in facts.children if child.pid}
        for slot, board in enumerate(self._boards):
            now = _now(board)
            if now is None or not now.runs or not now.job:
                continue
            if slot in seated or now.started > facts.at or not facts.told:
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

    # -- child processes

    def _slots(self, facts: Facts) -> Iterator[Metric]:
        states: dict[tuple[str, str], int] = {}
        memory: dict[str, int] = {}
        connected: dict[str, int] = {}
        for child in facts.children:
            connected.setdefault(child.kind, 0)
            for phase in _PHASES:
                states.setdefault((child.kind, phase.name.lower()), 0)
            if not child.pid:
                continue
            key = (child.kind, self._state(child))
            states[key] = states.get(key, 0) + 1
            if child.rss:  # measured only if there is a memory limit
                memory[child.kind] = memory.get(child.kind, 0) + child.rss
            connected[child.kind] += self._boards[child.slot].database if child.slot < len(self._boards) else 0
        children = GaugeMetricFamily("jobherd_children", "Living child processes, by state.", labels=["kind", "state"])
        for key, number in states.items():
            children.add_metric(key, number)
        resident = GaugeMetricFamily(
            "jobherd_children_resident_bytes", "Total memory of living child processes.", labels=["kind"]
        )
        sessions = GaugeMetricFamily(
            "jobherd_children_connected", "Child processes that have a database session.", labels=["kind"]
        )
        for kind, size in memory.items():
            resident.add_metric([kind], size)
        for kind, number in connected.items():
            sessions.add_metric([kind], number)
        yield from (children, resident, sessions)

    def _state(self, child: Child) -> str:
        """Return the state of a living process, from its board if it is READY.

        Else return the supervisor's view.
        """
        if child.state != _READY:
            return child.state if _STATE.fullmatch(child.state) else "idle"
        now = _now(self._boards[child.slot]) if child.slot < len(self._boards) else None
        if now is not None and now.runs:
            return "running"
        return "idle" if now is None or now.phase is Phase.BOOTING else now.phase.name.lower()

    # -- the supervisor

    def _parent(self, facts: Facts) -> Iterator[Metric]:
        deaths = CounterMetricFamily(
            "jobherd_child_deaths",
            "Child processes that ended, by cause; `left` is a requested exit.",
            labels=["cause"],
        )
        shown: dict[str, int] = {}
        for cause, number in sorted(facts.deaths.items()):
            called = label(self._causes, cause)
            shown[called] = shown.get(called, 0) + number
        for cause, number in shown.items():
            deaths.add_metric([cause], number)
        yield deaths
        counts = facts.counts
        yield CounterMetricFamily(
            "jobherd_child_respawns", "Child processes forked to replace one that died.", value=counts["respawns"]
        )
        yield CounterMetricFamily(
            "jobherd_jobs_reclaimed", "Jobs reclaimed from supervisors whose lease expired.", value=counts["reclaimed"]
        )
        yield CounterMetricFamily(
            "jobherd_jobs_released", "Jobs released for workers that died.", value=counts["released"]
        )
        yield CounterMetricFamily(
            "jobherd_notifications", "Notifications received from the database.", value=counts["notifications"]
        )
        yield CounterMetricFamily("jobherd_wakes", "Workers woken to look for jobs.", value=counts["wakes"])
        yield CounterMetricFamily("jobherd_lease_renewals", "Times the lease was renewed.", value=counts["beats"])
        yield GaugeMetricFamily(
            "jobherd_lease_seconds",
            "Seconds until the lease may expire; below 0, it has expired.",
            value=facts.lease_left,
        )
        yield GaugeMetricFamily(
            "jobherd_listening", "Whether the supervisor receives notifications.", value=facts.listening
        )
        yield GaugeMetricFamily(
            "jobherd_database_up", "Whether the supervisor reaches its database.", value=facts.database
        )
        yield GaugeMetricFamily("jobherd_draining", "Whether the supervisor is draining.", value=facts.draining)
        yield GaugeMetricFamily(
            "jobherd_loop_age_seconds", "Time since the last turn of the supervisor's loop.", value=facts.loop_age
        )
        yield CounterMetricFamily(
            "jobherd_log_lines_dropped",
            "Supervisor log lines that were dropped because they were not read.",
            value=counts["dropped"],
        )
        if facts.late:
            yield HistogramMetricFamily(
                "jobherd_loop_late_seconds",
                "How long an event may have waited for the supervisor's loop.",
                buckets=list(zip(facts.late, accumulate(facts.late.values()), strict=True)),
                sum_value=facts.late_seconds,
            )
        if facts.started:
            # Computed once: the difference between two clocks would make the value jitter.
            if self._born[0] != facts.started:
                self._born = (facts.started, time.time() - (facts.now - facts.started))
            yield GaugeMetricFamily(
                "jobherd_start_time_seconds", "When the supervisor started, in Unix time.", value=self._born[1]
            )
        yield InfoMetricFamily("jobherd_build", "Version of Jobherd.", value={"version": facts.version})

    # -- the queues

    def _queues(self) -> Iterator[Metric]:
        jobs = GaugeMetricFamily(
            "jobherd_queue_jobs", "Jobs in a queue, in the whole database.", labels=["queue", "state"]
        )
        capped = GaugeMetricFamily(
            "jobherd_queue_jobs_capped",
            "Whether counting stopped, so that there may be more.",
            labels=["queue", "state"],
        )
        oldest = GaugeMetricFamily(
            "jobherd_queue_oldest_seconds", "How long the oldest has waited, or run.", labels=["queue", "state"]
        )
        paused = GaugeMetricFamily("jobherd_queue_paused", "Whether a queue is paused.", labels=["queue"])
        at = GaugeMetricFamily(
            "jobherd_queues_measured_timestamp_seconds", "When the queues were last measured.", labels=["state"]
        )
        queues = self._measurer.paused()
        found = self._measurer.latest()
        for state in STATES:
            measured = found.get(state)
            if measured is None:
                continue
            for queue, depth in _filled(measured.depths, queues):
                jobs.add_metric([queue, state], depth.jobs if depth else 0)
                capped.add_metric([queue, state], depth.capped if depth else 0)
                oldest.add_metric([queue, state], depth.oldest if depth else 0)
        for state, moment in self._measurer.told_at().items():
            at.add_metric([state], moment)
        for queue, held in queues.items():
            paused.add_metric([queue], held)
        gate = GaugeMetricFamily(
            "jobherd_paused", "Whether a queue, a kind or everything is paused.", labels=["scope", "name"]
        )
        limit = GaugeMetricFamily(
            "jobherd_cap_limit", "How many jobs of a queue or kind may run at a time.", labels=["scope", "name"]
        )
        taken = GaugeMetricFamily(
            "jobherd_cap_running", "How many of them run, over all hosts.", labels=["scope", "name"]
        )
        for each in self._measurer.gates():
            gate.add_metric([each.scope, each.name], each.paused)
            if each.most is not None:
                limit.add_metric([each.scope, each.name], each.most)
                taken.add_metric([each.scope, each.name], each.running or 0)
        yield from (jobs, capped, oldest, paused, gate, limit, taken, at)
        if owned := self._measurer.tenants():
            tenants = GaugeMetricFamily(
                "jobherd_tenant_jobs", "Jobs of a tenant, in the whole database.", labels=["tenant", "state"]
            )
            for (tenant, state), number in owned.items():
                tenants.add_metric([tenant, state], number)
            yield tenants


def _now(board: StatusBoard) -> CurrentWork | None:
    try:
        return board.now()
    except ValueError:  # not a valid phase: a process has corrupted its board
        return None


def _filled(depths: Mapping[str, Depth], queues: Iterable[str]) -> Iterator[tuple[str, Depth | None]]:
    """Yield the depth of every known queue, or None for a queue in which no job was found."""
    for queue in sorted({*depths, *queues}):
        yield queue, depths.get(queue)
