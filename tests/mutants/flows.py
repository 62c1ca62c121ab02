"""The guards of jobs that wait for other jobs."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

BLOCKED = "sql/migrations/0032_blocked_jobs.sql"
FLOW = "sql/migrations/0033_flows.sql"
LIMITED = "sql/migrations/0037_safe_flows.sql"
AFTER = ("tests/sql/test_after.py",)
JOINS = ("tests/sql/test_flows.py",)
FOREIGN = ("tests/sql/test_flows_limited.py",)

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
        FLOW,
        "    IF ended IS NOT NULL THEN\n",
        "    IF false THEN\n",
        AFTER,
    ),
    Mutant(
        "an edge counts as marked although its upstream job was not found",
        FLOW,
        "        known := known || found_ones;\n",
        "        known := known || still;\n",
        ("tests/sql/test_after.py::test_an_upstream_job_whose_row_is_locked_is_marked_later",),
    ),
    Mutant(
        "a job is released although not all upstream jobs have ended",
        LIMITED,
        "         WHERE b.id = f.downstream AND (f.bad IS NOT NULL OR NOT f.open)\n",
        "         WHERE b.id = f.downstream\n",
        AFTER,
    ),
    Mutant(
        "whether a job may start is decided before its row is locked",
        LIMITED,
        "                   ORDER BY b.id LIMIT most FOR UPDATE SKIP LOCKED);\n",
        "                   ORDER BY b.id LIMIT most);\n",
        AFTER,
    ),
    Mutant(
        "an end is deleted while jobs still wait for it",
        LIMITED,
        "       AND NOT EXISTS (SELECT FROM jobherd.edges g JOIN jobherd.blocked b ON b.id = g.downstream\n"
        "                        WHERE g.upstream = e.job AND g.state IS NULL);\n",
        ";\n",
        AFTER,
    ),
    Mutant(
        "a tenant waits for the job of another tenant",
        "sql/migrations/0040_shards.sql",
        "        OR confined AND NOT EXISTS",
        "        OR false AND NOT EXISTS",
        AFTER,
    ),
    Mutant(
        "two processes count a flow at the same time",
        FLOW,
        "    SELECT * INTO old FROM jobherd.flows f WHERE f.id = of_flow FOR UPDATE SKIP LOCKED;\n",
        "    SELECT * INTO old FROM jobherd.flows f WHERE f.id = of_flow;\n",
        JOINS,
    ),
    Mutant(
        "the ends of a flow are counted one by one",
        FLOW,
        "        DELETE FROM jobherd.ends e WHERE e.flow = of_flow RETURNING e.job, e.state, e.delta\n",
        "        DELETE FROM jobherd.ends e WHERE e.id = (SELECT min(o.id) FROM jobherd.ends o WHERE o.flow = of_flow)\n"
        "        RETURNING e.job, e.state, e.delta\n",
        JOINS,
    ),
    Mutant(
        "a flow that has ended is counted on",
        FLOW,
        "    IF old.state IS DISTINCT FROM 'open' THEN\n",
        "    IF false THEN\n",
        JOINS,
    ),
    Mutant(
        "a member that is run again by hand is not waited for",
        FLOW,
        "                SELECT (extras).flow, id, state, 1 FROM over WHERE (extras).flow > 0\n",
        "                SELECT (extras).flow, id, state, 1 FROM over WHERE false\n",
        JOINS,
    ),
    Mutant(
        "a retry of a flow does not look up what became of upstream jobs that completed",
        LIMITED,
        "(e.upstream = ANY (jobs) OR e.state = 'unknown');\n",
        "e.upstream = ANY (jobs);\n",
        JOINS,
    ),
    Mutant(
        "a job that is not needed counts as canceled",
        BLOCKED,
        "CASE WHEN NEW.error_code = 'UPSTREAM_COMPLETED' THEN 'skipped' ELSE NEW.state END",
        "NEW.state",
        JOINS,
    ),
    Mutant(
        "a tenant puts a job into the flow of another tenant",
        LIMITED,
        "    WITH CHECK ((extras).tenant = ANY ((SELECT jobherd.own_tenants())::text[])\n"
        "                AND (extras).partition = (extras).tenant AND lane = jobherd.lane_of((extras).tenant)\n"
        "                AND num_nonnulls((extras).flow, (extras).node, (extras).item) = 0);\n"
        "ALTER POLICY own_tenant ON jobherd.scheduled\n",
        "    WITH CHECK ((extras).tenant = ANY ((SELECT jobherd.own_tenants())::text[])\n"
        "                AND (extras).partition = (extras).tenant AND lane = jobherd.lane_of((extras).tenant));\n"
        "ALTER POLICY own_tenant ON jobherd.scheduled\n",
        FOREIGN,
    ),
    Mutant(
        "a tenant adds jobs to the flow of another tenant",
        LIMITED,
        "        IF confined AND (old.tenant = ANY (jobherd.own_tenants())) IS NOT TRUE THEN\n",
        "        IF false THEN\n",
        FOREIGN,
    ),
    Mutant(
        "a tenant starts a flow without jobs for another tenant",
        LIMITED,
        "        PERFORM jobherd.check_producer('', made.tenant);  -- also for a flow without jobs\n",
        "",
        FOREIGN,
    ),
    Mutant(
        "the stop of a flow waits for the open transaction of a user",
        LIMITED,
        "             ORDER BY i.id FOR UPDATE SKIP LOCKED) AS free\n",
        "             ORDER BY i.id) AS free\n",
        FOREIGN,
    ),
    Mutant(
        "ends that are held up hold up all others",
        LIMITED,
        "    IF random() < 0.5 THEN\n",
        "    IF false THEN\n",
        FOREIGN,
    ),
    Mutant(
        "a result that cannot be passed on stops maintenance",
        LIMITED,
        "        EXCEPTION WHEN OTHERS THEN\n            -- A result that",
        "        EXCEPTION WHEN division_by_zero THEN\n            -- A result that",
        FOREIGN,
    ),
    Mutant(
        "a flow that raises an error stops maintenance",
        LIMITED,
        "            IF alone THEN\n                RAISE;\n            END IF;\n",
        "            RAISE;\n",
        FOREIGN,
    ),
    Mutant(
        "an inner flow that is run again is not waited for",
        LIMITED,
        "SELECT old.outer_flow, flow_id, old.state, 1 WHERE old.outer_flow IS NOT NULL;",
        "SELECT old.outer_flow, flow_id, old.state, 1 WHERE false;",
        FOREIGN,
    ),
)
