"""The common part of the campaigns against the server.

Runs supervisors under audit and a producer that writes the ids of acknowledged jobs to a file, and
checks the invariants.

    with Campaign(report, dsn, seed=given.seed, herds=2) as field:
        ...                      # the fault
        field.finish()           # drained, checked, every supervisor has exited

This module does not depend on the kind of fault.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Self

from tests.support.audit import Audit
from tests.support.herd import ROOT, Herd
from tests.support.producer import Producer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tests.support.figures import Report

WORK = Path(__file__).with_name("work.py")
KINDS = [("fault:quick", {}, 50.0), ("fault:sleep", {"seconds": 0.02}, 40.0), ("fault:sleep", {"seconds": 0.5}, 10.0)]
QUICK = ("--db-retry-initial", "0.2s")


class Campaign:
    """Supervisors and a producer on one database.

    Args:
        root: The checkout that the supervisors run.
        through: The DSN of the supervisors and the producer, if it differs from the audit's DSN.
        env: Additional environment variables, by number of the supervisor.
    """

    def __init__(
        self,
        report: Report,
        dsn: str,
        *,
        seed: int,
        herds: int = 2,
        workers: int = 2,
        rate: float = 40.0,
        kinds: list[tuple[str, dict[str, object], float]] | None = None,
        words: tuple[str, ...] = QUICK,
        through: str | None = None,
        env: Mapping[int, dict[str, str]] | None = None,
        root: Path = ROOT,
    ) -> None:
        self.report = report
        self.dsn = dsn
        self._folder = tempfile.TemporaryDirectory(prefix="jobherd-campaign-")
        self.audit = Audit(dsn)
        self._stack = contextlib.ExitStack()
        self.herds = [
            Herd(through or dsn, WORK, *words, workers=workers, env=(env or {}).get(number), root=root)
            for number in range(herds)
        ]
        self._producing = Producer(
            through or dsn, Path(self._folder.name, "acknowledged"), seed=seed, rate=rate, kinds=kinds or KINDS
        )
        self.acknowledged: list[int] = []

    def __enter__(self) -> Self:
        try:
            for herd in self.herds:
                self._stack.enter_context(herd)
            self._stack.enter_context(self._producing)
        except BaseException:
            self._stack.close()
            raise
        self.families = [herd.children() for herd in self.herds]
        return self

    def __exit__(self, kind: object, *rest: object) -> None:
        if kind is not None or self.report.is_broken:
            self.show()
        for herd in self.herds:
            if kind is not None and herd.process.poll() is None:
                herd.destroy()
        self._stack.close()
        self.audit.close()
        self._folder.cleanup()

    def adopt(self, herd: Herd) -> None:
        """Start one more supervisor and add it to the campaign."""
        self._stack.enter_context(herd)
        self.herds.append(herd)

    def completed(self) -> int:
        return int(self.audit.run("SELECT count(*) FROM audit.steps WHERE step = 'completed'")[0][0])

    def work_on(self, jobs: int = 20, limit: float = 120.0) -> float:
        """Wait until `jobs` more jobs are completed; return the seconds that it took."""
        begun = time.monotonic()
        enough = self.completed() + jobs
        self.wait(lambda: self.completed() >= enough, f"{jobs} more completed jobs", limit)
        return time.monotonic() - begun

    def wait(self, condition: Callable[[], object], what: str, limit: float = 120.0) -> None:
        until = time.monotonic() + limit
        while not condition():
            if time.monotonic() > until:
                raise TimeoutError(f"waited {limit:g} s for {what}")
            time.sleep(0.05)

    def finish(self, *, same: bool = True, limit: float = 180.0, told: int | None = None, lost: bool = False) -> None:
        """Stop the producer, wait until all jobs finish, stop the supervisors, and check the invariants.

        Args:
            same: Check that the child processes are the same as at the start.
            lost: Allow acknowledged jobs to be lost.
            told: Most log lines of each supervisor since its start, those of its child processes included.
        """
        report = self.report
        self.acknowledged = self._producing.stop()
        report.holds("every job finished", self.audit.wait_all_over(limit))
        if same:
            families = [herd.children() for herd in self.herds]
            report.holds(
                "the same processes as before", families == self.families, "" if families == self.families else families
            )
        codes = [herd.stop() for herd in self.herds]
        report.holds("every supervisor exited with 0", not any(codes), codes)
        lines = [len(herd.events) for herd in self.herds]
        report.fact("lines logged, per supervisor", lines)
        if told is not None:
            report.holds(f"no supervisor has logged more than {told} lines", max(lines) <= told, lines)
        report.holds(
            "no traceback in the log",
            not any("Traceback" in event.line for herd in self.herds for event in herd.events),
        )
        self.audit.check(report, [] if lost else self.acknowledged)

    def show(self) -> None:
        """Print the last 150 log lines of all supervisors."""
        events = sorted((event for herd in self.herds for event in list(herd.events)), key=lambda each: each.at)
        print("\n".join(event.line for event in events[-150:]), file=sys.stderr)
