"""Checks that the instants of fast schedules are complete, and that each was enqueued once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tests.support.seats import Bench

MAKE: Final = "INSERT INTO jobherd.schedules (name, kind, every) SELECT 's' || n, 'act:nothing', 0.05 FROM generate_series(1, %(many)s) AS n"
GAPS: Final = """
SELECT count(*) AS n FROM (
    SELECT coalesce(t.since, t.at) - lag(t.at) OVER (PARTITION BY t.schedule ORDER BY t.at) AS step,
           t.at - coalesce(t.since, t.at) AS stretch, t.missed * interval '50 ms' AS counted
      FROM jobherd.ticks t) AS steps
 WHERE step <> interval '50 ms' OR stretch <> counted AND stretch > interval '0'
"""
MISSED: Final = "SELECT coalesce(sum(missed + 1), 0)::bigint AS n FROM jobherd.ticks WHERE decided = 'missed'"
DOUBLES: Final = """
SELECT count(*) AS n FROM (SELECT (extras).schedule ->> 'name', (extras).schedule ->> 'at' FROM jobherd.ready
                            GROUP BY 1, 2 HAVING count(*) > 1) AS double
"""
STRAYS: Final = """
SELECT count(*) AS n
  FROM jobherd.ticks t FULL JOIN (SELECT id FROM jobherd.ready UNION ALL SELECT id FROM jobherd.scheduled) r ON r.id = t.job
 WHERE (t.job IS NULL OR r.id IS NULL) AND t.decided IS DISTINCT FROM 'missed'
"""
EDIT: Final = "UPDATE jobherd.schedules SET payload = jsonb_build_object('n', %(n)s::int), revision = revision + 1 WHERE name = %(name)s"


def ticks(bench: Bench) -> int:
    """Return the number of decided instants."""
    return int(bench.ask("SELECT count(*) AS n FROM jobherd.ticks")[0]["n"])


def verdict(bench: Bench) -> tuple[int, int, int, int]:
    """Pause the schedules; return the numbers of gaps, duplicates, unmatched instants or jobs, and missed instants.

    An instant is missed if no process decided it within 60 s, which happens only on a very slow machine.
    """
    bench.ask("UPDATE jobherd.schedules SET paused_at = now(), revision = revision + 1")
    return tuple(bench.ask(one)[0]["n"] for one in (GAPS, DOUBLES, STRAYS, MISSED))  # type: ignore[return-value]
