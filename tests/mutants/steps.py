"""Mutants of durable steps, signals and child jobs."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

STEPS = "workers/run/steps.py"
SIGNALS_SQL = "sql/schema/37_signals.sql"
CHILDREN_SQL = "sql/schema/38_child_jobs.sql"
SIGNALS = ("tests/sql/test_signals.py",)
CHILDREN = ("tests/sql/test_child_jobs.py",)
LOST = ("tests/workers/run/test_steps.py::test_lost_claim_interrupts_the_job_and_records_no_further_step",)
WORKER = "tests/workers/run/test_child_jobs.py::"
COUNT = "tests/workers/run/test_attempt_count.py::"

INPUTS = "tests/workers/run/test_inputs.py::"
FIND_INPUTS = "sql/queries/steps/find_inputs.sql"
UNREADABLE = (f"{INPUTS}test_reading_a_result_in_a_transaction_or_another_thread_raises_an_error",)
SAID = (f"{INPUTS}test_missing_input_raises_an_error_with_the_reason",)

STEPPING = (
    Mutant(
        "a step is recorded although the claim is lost",
        STEPS,
        "        if not self._write(job, name, result, statement, **about):\n",
        "        if self._write(job, name, result, statement, **about) is None:\n",
        LOST,
    ),
    Mutant(
        "the statement records a step although the claim is lost",
        "sql/schema/36_steps.sql",
        "    IF NOT FOUND THEN\n        RETURN false;\n",
        "    IF false THEN\n        RETURN false;\n",
        LOST,
    ),
    Mutant(
        "an attempt that could not record its step resets the count of attempts",
        "workers/run/attempt_count.py",
        "        if first and not transactions.own_session.is_lost:\n",
        "        if False:\n",
        (f"{COUNT}test_attempt_whose_step_was_not_recorded_counts_toward_max_attempts",),
    ),
    Mutant(
        "the status board keeps the count of attempts that a step has reset",
        "workers/run/attempt_count.py",
        "    board.say(now._replace(attempts=attempt))\n",
        "",
        (f"{COUNT}test_status_board_and_job_row_show_the_reset_attempt_count",),
    ),
    Mutant(
        "a step's name is used twice in one attempt",
        STEPS,
        "        if name in self._names:\n",
        "        if False:\n",
        ("tests/workers/run/test_steps.py",),
    ),
    Mutant(
        "a handler that catches the exception of its suspension completes",
        STEPS,
        "            return outcome if outcome.failed else SWALLOWED\n",
        "            return outcome\n",
        ("tests/workers/run/test_suspending.py",),
    ),
    Mutant(
        "a signal counts as matched although a wait of its topic is locked",
        SIGNALS_SQL,
        " WHERE s.id = ANY (ids) AND s.topic <> ALL (busy);",
        " WHERE s.id = ANY (ids);",
        SIGNALS,
    ),
    Mutant(
        "waits are not checked again for a new signal",
        SIGNALS_SQL,
        "        UPDATE jobherd.waits w SET looked = false WHERE w.job = ANY (held) AND w.looked;\n",
        "",
        SIGNALS,
    ),
    Mutant(
        "a signal that the job has already taken wakes it again",
        SIGNALS_SQL,
        " WHERE t.job = w.job AND t.signal = s.id)) END);",
        " WHERE false)) END);",
        SIGNALS,
    ),
    Mutant(
        "a tenant's signal wakes jobs of another tenant",
        SIGNALS_SQL,
        " AND (s.tenants IS NULL OR w.tenant = ANY (s.tenants))\n",
        "\n",
        SIGNALS,
    ),
    Mutant(
        "a suspended job that was locked is not woken later",
        SIGNALS_SQL,
        " WHERE w.job = ANY (held) AND w.job <> ALL (there);",
        " WHERE w.job = ANY (held);",
        SIGNALS,
    ),
    Mutant(
        "the end of the child jobs writes no signal",
        CHILDREN_SQL,
        "    INSERT INTO jobherd.signals (topic) VALUES ('flow/' || NEW.id);\n",
        "",
        CHILDREN,
    ),
    Mutant(
        "a parent job is woken while its child jobs run",
        SIGNALS_SQL,
        " WHERE o.id = w.flow AND o.state = 'open')",
        " WHERE false)",
        CHILDREN,
    ),
    Mutant(
        "each flow writes a signal at its end although no job waits",
        CHILDREN_SQL,
        "    WHEN (NEW.step IS NOT NULL AND OLD.state = 'open'",
        "    WHEN (OLD.state = 'open'",
        CHILDREN,
    ),
    Mutant(
        "a cancellation waits for a session that has locked the flow of the child jobs",
        CHILDREN_SQL,
        "               FOR UPDATE SKIP LOCKED) AS free\n     WHERE f.id = free.id;\n    RETURN NULL;\n",
        "               FOR UPDATE) AS free\n     WHERE f.id = free.id;\n    RETURN NULL;\n",
        CHILDREN,
    ),
    Mutant(
        "child jobs that may outlive their parent job are canceled",
        CHILDREN_SQL,
        "AND NOT o.outlives\n               FOR UPDATE",
        "\n               FOR UPDATE",
        CHILDREN,
    ),
    Mutant(
        "a statement that is sent twice spawns the child jobs twice",
        CHILDREN_SQL,
        "    IF FOUND THEN\n        RETURN done;\n",
        "    IF false THEN\n        RETURN done;\n",
        (f"{WORKER}test_repeated_spawn_statement_enqueues_the_child_jobs_once",),
    ),
    Mutant(
        "child jobs are spawned under a lost claim",
        CHILDREN_SQL,
        "    IF NOT FOUND THEN\n        RETURN NULL;\n",
        "    IF false THEN\n        RETURN NULL;\n",
        (f"{WORKER}test_repeated_spawn_statement_enqueues_the_child_jobs_once",),
    ),
    Mutant(
        "the failure of a child job is recorded as a step, so it cannot be run again",
        STEPS,
        '        if not failures and any("failed" in entry for entry in entries):\n',
        "        if False:\n",
        (f"{WORKER}test_failed_child_job_fails_its_parent_job_and_both_can_be_run_again",),
    ),
    Mutant(
        "a job reads the result of a node that it did not wait for",
        FIND_INPUTS,
        " WHERE e.downstream IN (%(job)s::bigint, %(flow)s::bigint) AND e.flow IS NOT NULL",
        " WHERE e.flow IN (SELECT x.flow FROM jobherd.edges x WHERE x.downstream IN (%(job)s::bigint, %(flow)s::bigint))",
        SAID,
    ),
    Mutant(
        "a deleted result is read as an empty one",
        FIND_INPUTS,
        "f.is_copied OR f.is_past AS is_stored",
        "true AS is_stored",
        (f"{INPUTS}test_deleted_result_raises_an_error_and_is_not_read_as_empty",),
    ),
    Mutant(
        "a result that was passed on is read from the history",
        FIND_INPUTS,
        "CASE WHEN f.is_copied THEN f.copy ELSE f.original END",
        "f.original",
        (f"{INPUTS}test_result_passed_as_an_argument_can_be_read_after_its_job_was_deleted",),
    ),
    Mutant(
        "a large result stops a read of many results",
        "sql/queries/steps/list_inputs.sql",
        " WHERE p.place = 1 OR p.bytes <= 4000000",
        " WHERE p.bytes <= 4000000",
        (f"{INPUTS}test_large_results_are_read_a_few_at_a_time",),
    ),
    Mutant(
        "results can be read inside the job's transaction",
        "workers/run/inputs.py",
        "            active=transactions.active,\n",
        "            active=False,\n",
        UNREADABLE,
    ),
    Mutant(
        "a thread of the handler can read results",
        "workers/run/inputs.py",
        "            in_thread=threading.current_thread() is not threading.main_thread() or transactions.is_forked,\n",
        "            in_thread=False,\n",
        UNREADABLE,
    ),
    Mutant(
        "an encrypted result is returned as it is stored",
        "handlers/_run/inputs.py",
        "    if is_sealed(value):\n",
        "    if False:\n",
        SAID,
    ),
)
