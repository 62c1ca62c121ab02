"""Mutants of flows and of jobs that wait for other jobs."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

AFTER_SQL = "sql/schema/28_after.sql"
RESOLVE_SQL = "sql/schema/29_resolve.sql"
FLOWS_SQL = "sql/schema/30_flows.sql"
RESOLVE_FLOWS_SQL = "sql/schema/33_resolve_flows.sql"
CONTROL_SQL = "sql/schema/22_control.sql"
RETRY_SQL = "sql/schema/35_retry_flows.sql"
AFTER = ("tests/sql/test_after.py",)
JOINS = ("tests/sql/test_flows.py",)
MEMBERS = ("tests/sql/test_settle_members.py",)
AGAIN = ("tests/sql/test_retry_from.py",)
FOREIGN = ("tests/sql/test_flows_limited.py",)

FLOWS = (
    Mutant(
        "a settled job for which others wait writes no history row and so no end",
        "sql/queries/settle/settle_jobs.sql",
        " OR ((job).extras).flow IS NOT NULL)",
        ")",
        AFTER,
    ),
    Mutant(
        "an upstream job that ended before the commit is not found",
        RESOLVE_SQL,
        "    IF ended IS NOT NULL THEN\n",
        "    IF false THEN\n",
        AFTER,
    ),
    Mutant(
        "an edge counts as marked although its upstream job was not found",
        RESOLVE_SQL,
        "        known := known || found_ones;\n",
        "        known := known || still;\n",
        ("tests/sql/test_after.py::test_an_upstream_job_whose_row_is_locked_is_marked_later",),
    ),
    Mutant(
        "a job is released although not all upstream jobs have ended",
        RESOLVE_SQL,
        "         WHERE b.id = f.downstream AND (f.bad IS NOT NULL OR NOT f.open)\n",
        "         WHERE b.id = f.downstream\n",
        AFTER,
    ),
    Mutant(
        "a blocked job is released by a decision from before the lock of its row",
        RESOLVE_SQL,
        "                   ORDER BY b.id LIMIT most FOR UPDATE SKIP LOCKED);\n",
        "                   ORDER BY b.id LIMIT most);\n",
        AFTER,
    ),
    Mutant(
        "an end is deleted while jobs still wait for it",
        RESOLVE_SQL,
        "       AND NOT EXISTS (SELECT FROM jobherd.edges g JOIN jobherd.blocked b ON b.id = g.downstream\n"
        "                        WHERE g.upstream = e.job AND g.state IS NULL);\n",
        ";\n",
        AFTER,
    ),
    Mutant(
        "a tenant waits for the job of another tenant",
        AFTER_SQL,
        "        OR tenants IS NOT NULL AND NOT EXISTS",
        "        OR false AND NOT EXISTS",
        AFTER,
    ),
    Mutant(
        "two processes count a flow at the same time",
        RESOLVE_FLOWS_SQL,
        "    SELECT * INTO old FROM jobherd.flows f WHERE f.id = of_flow FOR UPDATE SKIP LOCKED;\n",
        "    SELECT * INTO old FROM jobherd.flows f WHERE f.id = of_flow;\n",
        JOINS,
    ),
    Mutant(
        "the ends of a flow are counted one by one",
        RESOLVE_FLOWS_SQL,
        "        DELETE FROM jobherd.ends e WHERE e.flow = of_flow RETURNING e.job, e.jobs, e.state, e.delta\n",
        "        DELETE FROM jobherd.ends e WHERE e.id = (SELECT min(o.id) FROM jobherd.ends o WHERE o.flow = of_flow)\n"
        "        RETURNING e.job, e.jobs, e.state, e.delta\n",
        JOINS,
    ),
    Mutant(
        "members that a claim has ended together are counted as one",
        "sql/queries/settle/settle_members.sql",
        "'completed', -count(*)\n",
        "'completed', -1\n",
        MEMBERS,
    ),
    Mutant(
        "members that a claim has ended together are counted twice",
        "sql/queries/settle/settle_members.sql",
        "CASE WHEN (extras).flow IS NOT NULL THEN true END",
        "NULL",
        MEMBERS,
    ),
    Mutant(
        "jobs that wait for a member that ended with others are not released",
        RESOLVE_FLOWS_SQL,
        "                UNION ALL SELECT unnest(t.jobs), t.state FROM taken t) AS m\n",
        "                ) AS m\n",
        MEMBERS,
    ),
    Mutant(
        "a worker settles members one by one",
        "workers/settle/settler.py",
        '"settle/settle_members" if members else "settle/settle_completed"',
        '"settle/settle_completed"',
        ("tests/workers/settle/test_member_ends.py",),
    ),
    Mutant(
        "a flow that has ended is still counted",
        RESOLVE_FLOWS_SQL,
        "    IF old.state IS DISTINCT FROM 'open' THEN\n",
        "    IF false THEN\n",
        JOINS,
    ),
    Mutant(
        "a flow does not wait for a member that is run again by hand",
        CONTROL_SQL,
        "                  FROM over WHERE (extras).flow > 0\n",
        "                  FROM over WHERE false\n",
        JOINS,
    ),
    Mutant(
        "a retry of a flow does not look up the states of completed upstream jobs",
        RETRY_SQL,
        "(e.upstream = ANY (jobs) OR e.state = 'unknown' OR NOT jobherd.is_wanted(e.wanted, e.state));\n",
        "e.upstream = ANY (jobs);\n",
        JOINS,
    ),
    Mutant(
        "a job that is not needed counts as canceled and not as skipped",
        AFTER_SQL,
        "CASE WHEN NEW.error_code = 'UPSTREAM_COMPLETED' THEN 'skipped' ELSE NEW.state END",
        "NEW.state",
        JOINS,
    ),
    Mutant(
        "a tenant puts a job into the flow of another tenant",
        "sql/schema/24_tenants.sql",
        "    WITH CHECK ((extras).tenant = ANY ((SELECT jobherd.own_tenants())::text[])\n"
        "                AND (extras).partition = (extras).tenant AND lane = jobherd.lane_of((extras).tenant)\n"
        "                AND num_nonnulls((extras).flow, (extras).node, (extras).item) = 0);\n"
        "CREATE POLICY own_tenant ON jobherd.scheduled\n",
        "    WITH CHECK ((extras).tenant = ANY ((SELECT jobherd.own_tenants())::text[])\n"
        "                AND (extras).partition = (extras).tenant AND lane = jobherd.lane_of((extras).tenant));\n"
        "CREATE POLICY own_tenant ON jobherd.scheduled\n",
        FOREIGN,
    ),
    Mutant(
        "a tenant adds jobs to the flow of another tenant",
        FLOWS_SQL,
        "        IF confined AND (old.tenant = ANY (jobherd.own_tenants())) IS NOT TRUE THEN\n",
        "        IF false THEN\n",
        FOREIGN,
    ),
    Mutant(
        "a tenant starts a flow without jobs for another tenant",
        FLOWS_SQL,
        "        PERFORM jobherd.check_producer('', made.tenant);  -- also for a flow without jobs\n",
        "",
        FOREIGN,
    ),
    Mutant(
        "the stop of a flow waits for the open transaction of a user",
        RESOLVE_FLOWS_SQL,
        "             ORDER BY i.id FOR UPDATE SKIP LOCKED) AS free\n",
        "             ORDER BY i.id) AS free\n",
        FOREIGN,
    ),
    Mutant(
        "ends whose waiting jobs are locked delay all other ends",
        RESOLVE_SQL,
        "    IF random() < 0.5 THEN\n",
        "    IF false THEN\n",
        FOREIGN,
    ),
    Mutant(
        "a result that cannot be passed on stops maintenance",
        RESOLVE_SQL,
        "        EXCEPTION WHEN OTHERS THEN\n            -- A result that",
        "        EXCEPTION WHEN division_by_zero THEN\n            -- A result that",
        FOREIGN,
    ),
    Mutant(
        "a flow that raises an error stops maintenance",
        RESOLVE_FLOWS_SQL,
        "            IF alone THEN\n                RAISE;\n            END IF;\n",
        "            RAISE;\n",
        FOREIGN,
    ),
    Mutant(
        "a flow does not wait for an inner flow that is run again",
        RETRY_SQL,
        "SELECT old.outer_flow, flow_id, old.state, 1 WHERE old.outer_flow IS NOT NULL;",
        "SELECT old.outer_flow, flow_id, old.state, 1 WHERE false;",
        FOREIGN,
    ),
    Mutant(
        "a flow that is run again does not wait for a member that was run again by hand",
        RETRY_SQL,
        "    PERFORM jobherd.recount_flow(flow_id);\n",
        "",
        AGAIN,
    ),
    Mutant(
        "a retry that runs no job leaves the flow open",
        RETRY_SQL,
        "    INSERT INTO jobherd.ends (flow, delta) VALUES (flow_id, 0);\n",
        "",
        AGAIN,
    ),
    Mutant(
        "a retry blocks the member of another flow again",
        RETRY_SQL,
        "         WHERE e.upstream = flow_id AND e.flow = flow_id AND h.id",
        "         WHERE e.upstream = flow_id AND h.id",
        AGAIN,
    ),
    Mutant(
        "a member that was not needed stays canceled although its upstream job runs again",
        RETRY_SQL,
        "        EXIT WHEN more = '{}';\n",
        "        EXIT WHEN true;\n",
        AGAIN,
    ),
    Mutant(
        "a job that runs again has its earlier results in the payload",
        RETRY_SQL,
        "jobherd.without_results(id, payload)",
        "payload",
        AGAIN,
    ),
    Mutant(
        "a node is mapped again while one of its jobs is live",
        RETRY_SQL,
        "(SELECT f.pending > 0 OR f.state = 'open' FROM",
        "(SELECT false FROM",
        AGAIN,
    ),
    Mutant(
        "a skipped member that is run by hand is subtracted from the canceled ones",
        CONTROL_SQL,
        "SELECT (extras).flow, id, CASE WHEN error_code = 'UPSTREAM_COMPLETED' THEN 'skipped' ELSE state END, 1",
        "SELECT (extras).flow, id, state, 1",
        AGAIN,
    ),
    Mutant(
        "a job waits for another tenant's job through the gateway",
        "workers/gateway/producing.py",
        "if request.tenants and chunk.options.after)",
        "if False)",
        ("tests/gateway/test_producer.py::test_job_of_a_tenant_can_wait_only_for_jobs_of_that_tenant",),
    ),
    Mutant(
        "a transaction with an older snapshot adds members to a sealed flow",
        "sql/schema/30_flows.sql",
        "WHERE f.id = flow_id FOR SHARE;",
        "WHERE f.id = flow_id FOR KEY SHARE;",
        ("tests/sql/test_seal_flow.py",),
    ),
    Mutant(
        "a flow is sealed while a transaction adds members",
        FLOWS_SQL,
        "        PERFORM pg_advisory_xact_lock(jobherd.seal_lock(flow_id));",
        "        PERFORM jobherd.seal_lock(flow_id);",
        ("tests/sql/test_seal_flow.py::test_seal_waits_for_transactions_that_add_members",),
    ),
    Mutant(
        "a canceled flow ends while a transaction adds members",
        RESOLVE_FLOWS_SQL,
        "        alone := pg_try_advisory_xact_lock(jobherd.seal_lock(of_flow));\n",
        "        alone := true;\n",
        ("tests/sql/test_seal_flow.py",),
    ),
    Mutant(
        "a canceled flow ends although a member was added while its ends were counted",
        RESOLVE_FLOWS_SQL,
        "    IF old.pending <= 0 AND (old.sealed OR alone) THEN\n",
        "    IF old.pending <= 0 AND (old.sealed OR old.stopping IS NOT NULL AND pg_try_advisory_xact_lock(jobherd.seal_lock(of_flow))) THEN\n",
        ("tests/sql/test_flow_races.py",),
    ),
    Mutant(
        "two searches count one vanished member twice",
        RESOLVE_FLOWS_SQL,
        "WHERE f.id = ANY (page) ORDER BY f.id FOR UPDATE SKIP LOCKED);\n",
        "WHERE f.id = ANY (page));\n",
        ("tests/sql/test_flow_races.py",),
    ),
    Mutant(
        "a job enqueued while its flow ends waits for the hourly search",
        RESOLVE_SQL,
        "WHERE f.id = ANY (flows) AND f.state = 'open' FOR SHARE SKIP LOCKED);\n",
        "WHERE f.id = ANY (flows));\n",
        ("tests/sql/test_flow_races.py",),
    ),
    Mutant(
        "an old end cancels the callback of a flow that runs again",
        RETRY_SQL,
        "    DELETE FROM jobherd.ends e WHERE e.flow = 0 AND e.job = ANY (more);\n",
        "",
        ("tests/sql/test_flow_races.py",),
    ),
    Mutant(
        "a retry of a flow counts its members in an older snapshot",
        RESOLVE_FLOWS_SQL,
        "        UPDATE jobherd.flows f SET pending = f.pending WHERE f.id = of_flow AND counts.rows > 0;\n",
        "",
        ("tests/sql/test_flow_races.py",),
    ),
    Mutant(
        "a flow ends before it is sealed",
        RESOLVE_FLOWS_SQL,
        "    IF old.pending <= 0 AND (old.sealed OR alone) THEN\n",
        "    IF old.pending <= 0 THEN\n",
        ("tests/sql/test_seal_flow.py",),
    ),
    Mutant(
        "a flow is run again while another flow with its key is open",
        RETRY_SQL,
        "f.tenant IS NOT DISTINCT FROM old.tenant AND f.state = 'open';",
        "f.tenant IS NOT DISTINCT FROM old.tenant AND false;",
        ("tests/sql/test_flow_keys.py::test_flow_cannot_be_run_again_while_another_flow_of_its_key_is_open",),
    ),
)
