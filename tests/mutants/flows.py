"""The guards of jobs that wait for other jobs."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

BLOCKED = "sql/migrations/0032_blocked_jobs.sql"
AFTER = ("tests/sql/test_after.py",)

FLOWS = (
    Mutant(
        "a settled job that others wait for leaves no history, and so no end",
        "sql/queries/settle/settle_jobs.sql",
        " OR ((job).extras).flow IS NOT NULL)",
        ")",
        AFTER,
    ),
    Mutant(
        "an upstream job that has ended before the commit is not looked for",
        BLOCKED,
        "    IF ended IS NOT NULL THEN\n",
        "    IF false THEN\n",
        AFTER,
    ),
    Mutant(
        "an edge counts as marked although its upstream job was not found",
        BLOCKED,
        "        known := known || found_ones;\n",
        "        known := known || still;\n",
        ("tests/sql/test_after.py::test_an_upstream_job_whose_row_is_locked_is_marked_later",),
    ),
    Mutant(
        "a job is released although not all upstream jobs have ended",
        BLOCKED,
        "         WHERE b.id = f.downstream AND (f.bad IS NOT NULL OR NOT f.open)\n",
        "         WHERE b.id = f.downstream\n",
        AFTER,
    ),
    Mutant(
        "whether a job may start is decided before its row is locked",
        BLOCKED,
        "                   ORDER BY b.id LIMIT most FOR UPDATE SKIP LOCKED);\n",
        "                   ORDER BY b.id LIMIT most);\n",
        AFTER,
    ),
    Mutant(
        "an end is deleted while jobs still wait for it",
        BLOCKED,
        "       AND NOT EXISTS (SELECT FROM jobherd.edges g JOIN jobherd.blocked b ON b.id = g.downstream\n"
        "                        WHERE g.upstream = e.job AND g.state IS NULL);\n",
        ";\n",
        AFTER,
    ),
    Mutant(
        "a tenant waits for the job of another tenant",
        BLOCKED,
        "        OR confined AND NOT EXISTS",
        "        OR false AND NOT EXISTS",
        AFTER,
    ),
)
