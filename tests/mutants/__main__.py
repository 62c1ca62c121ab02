"""Take out each guard, one by one, and see that a test turns red.

`make mutants`, or `python -m tests.mutants [NAME ...]`.

A guard is a line without which everything goes on working until the day it does not. A test suite
that stays green without it does not look. Each mutant is a change of text in a copy of the tree,
and the tests that are to control it. The exit code is 1 if one survives, or if its text is not
where it was: then the guard has moved, and this table with it.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.mutants.flows import FLOWS
from tests.mutants.lanes import LANES
from tests.mutants.mutant import Mutant
from tests.mutants.uplink import UPLINK
from tests.support.checkout import import_path
from tests.support.herd import ROOT

MUTANTS = (
    Mutant(
        "a worker does not withdraw the schedules that an earlier one has left",
        "workers/run/declaration.py",
        """session.run("schedule/postpone_declarations", declared | {"schedules": "[]"})""",
        "pass",
        ("tests/sql/test_schedules.py::test_a_later_worker_withdraws_what_was_postponed",),
    ),
    Mutant(
        "a schedule that a worker could not store is lost",
        "workers/run/declaration.py",
        """session.run("schedule/postpone_declarations", declared)""",
        "pass",
        ("tests/sql/test_schedules.py::test_a_worker_leaves_what_it_cannot_store",),
    ),
    *UPLINK,
    *LANES,
    *FLOWS,
    Mutant(
        "failed runs from before a pause count after it",
        "sql/migrations/0014_pause_failing_schedules.sql",
        "WHERE failed_runs.since IS NULL OR t.noted_at > failed_runs.since",
        "",
        ("tests/sql/test_schedules.py::test_so_many_failed_runs_in_a_row_pause_a_schedule_before_its_next_instant",),
    ),
    Mutant(
        "a run that completed does not end a row of failed runs",
        "sql/migrations/0014_pause_failing_schedules.sql",
        "EXIT WHEN run.state IS DISTINCT FROM 'failed';",
        "CONTINUE WHEN run.state IS DISTINCT FROM 'failed';",
        ("tests/sql/test_schedules.py::test_so_many_failed_runs_in_a_row_pause_a_schedule_before_its_next_instant",),
    ),
    Mutant(
        "a run that a user asks for hides the unfinished job of an instant",
        "sql/migrations/0021_overlap_manual_runs.sql",
        "IF what = 'manual' AND NOT live THEN",
        "IF what = 'manual' THEN",
        ("tests/sql/test_schedules.py::test_a_run_that_a_user_asks_for_does_not_hide_an_unfinished_job",),
    ),
    Mutant(
        "a due instant runs before failed runs are counted",
        "workers/maintenance/schedules.py",
        "changed = self.pause_failing(watched) if watched else 0",
        "changed = 0",
        ("tests/sql/test_schedules.py::test_so_many_failed_runs_in_a_row_pause_a_schedule_before_its_next_instant",),
    ),
    Mutant(
        "a retry by hand of a unique job takes no key",
        "sql/migrations/0032_blocked_jobs.sql",
        "IF key IS NOT NULL AND jobherd.take_key(key, job_id, what) <> job_id THEN",
        "IF false THEN",
        ("tests/sql/test_unique.py::test_a_retry_by_hand_takes_the_key_or_says_that_another_holds_it",),
    ),
    Mutant(
        "whether a key counts is read in the snapshot from before its lock",
        "sql/migrations/0007_unique_jobs.sql",
        "RETURNS boolean\nLANGUAGE plpgsql VOLATILE",
        "RETURNS boolean\nLANGUAGE plpgsql STABLE",
        ("tests/sql/test_unique.py::test_a_second_caller_waits_for_the_first_and_then_decides",),
    ),
    Mutant(
        "the holder of a key that another transaction has just taken is read in the earlier snapshot",
        "sql/migrations/0017_unique_partitions.sql",
        "RETURNS bigint\nLANGUAGE plpgsql VOLATILE",
        "RETURNS bigint\nLANGUAGE plpgsql STABLE",
        ("tests/sql/test_unique.py::test_a_second_caller_waits_for_the_first_and_then_decides",),
    ),
    Mutant(
        "a call whose jobs must all be new keeps what it wrote before it found a duplicate",
        "sql/migrations/0022_cheaper_unique_jobs.sql",
        "                RAISE SQLSTATE 'JH001';  -- to undo everything that it has written\n",
        "                NULL;\n",
        ("tests/sql/test_unique.py::test_raise_names_the_holder_and_enqueues_nothing",),
    ),
    Mutant(
        "any unique violation counts as a key that another transaction has inserted",
        "sql/migrations/0022_cheaper_unique_jobs.sql",
        "IF careful OR violated <> 'keys_pkey' THEN",
        "IF careful THEN",
        ("tests/sql/test_unique.py::test_an_error_that_is_no_conflict_of_keys_is_not_tried_again",),
    ),
    Mutant(
        "keys of finished jobs are inserted as if no row had them",
        "sql/migrations/0022_cheaper_unique_jobs.sql",
        "AND NOT careful AND NOT EXISTS (SELECT FROM found f WHERE NOT f.counts)",
        "AND NOT careful",
        ("tests/sql/test_unique.py::test_many_with_new_held_and_finished_keys",),
    ),
    Mutant(
        "a throttled job's key cannot be found by the job",
        "sql/migrations/0022_cheaper_unique_jobs.sql",
        "CASE WHEN lives = 'never' THEN enqueue_unique.id END)",
        "NULL::bigint)",
        ("tests/cli/test_keys.py::test_a_throttled_job_shows_its_key_while_no_other_job_has_it",),
    ),
    Mutant(
        "a producer for some queues changes a job that waits in another queue",
        "workers/gateway/new_jobs.py",
        "if is_keyed(options) and not (options.unique and options.unique.queue):",
        "if False:",
        ("tests/gateway/test_producer.py::test_a_wrong_option_of_a_unique_job_is_named",),
    ),
    Mutant(
        "a tenant names another tenant for a unique job",
        "sql/migrations/0016_partitions.sql",
        "       AND (tenant = ANY (jobherd.own_tenants())) IS NOT TRUE THEN",
        "       AND false THEN",
        ("tests/sql/test_unique.py::test_a_tenant_reaches_no_key_of_another_tenant",),
    ),
    Mutant(
        "remote results without a confirmation are forgotten with their stream",
        "handlers/_remote/client_state.py",
        "self._tasks.send_again(ref for refs in self._sent.values() for ref in refs)",
        "",
        ("tests/handlers/_remote/test_client_state.py",),
    ),
    Mutant(
        "a resuming worker names only the tasks that it still runs",
        "handlers/_remote/held_tasks.py",
        "return self.open_tasks() + list(self._results)",
        "return self.open_tasks()",
        ("tests/handlers/_remote/test_client_state.py",),
    ),
    Mutant(
        "a remote release overtakes a result that was reported before it",
        "handlers/_remote/held_tasks.py",
        "        if claim in self._claims:\n            self._flush(claim)\n",
        "",
        ("tests/handlers/_remote/test_client_state.py",),
    ),
    Mutant(
        "a remote worker asks for more tasks than it has slots",
        "handlers/_remote/client_state.py",
        "if room < 1:",
        "if room < -1000:",
        ("tests/handlers/_remote/test_client_state.py",),
    ),
    Mutant(
        "a remote worker that lost a task stays silent",
        "handlers/_remote/client_state.py",
        "            self._upkeep.beat_now()\n",
        "",
        ("tests/handlers/_remote/test_client_state.py",),
    ),
    Mutant(
        "remote tasks that no Ready waits for are kept",
        "handlers/_remote/client_state.py",
        "                self.release(claim)\n",
        "                pass\n",
        ("tests/handlers/_remote/test_client_state.py",),
    ),
    Mutant(
        "a remote worker asks a gateway that drains",
        "handlers/_remote/client_state.py",
        "not self._unsent or self.draining or self._releases",
        "not self._unsent or self._releases",
        ("tests/handlers/_remote/test_client_state.py",),
    ),
    Mutant(
        "a remote worker sends without end what is not confirmed",
        "handlers/_remote/client_state.py",
        "if len(self._sent) >= MOST_UNCONFIRMED:",
        "if False:",
        ("tests/handlers/_remote/test_client_state.py",),
    ),
    Mutant(
        "an extension that was not answered is lost with its stream",
        "handlers/_remote/lease_upkeep.py",
        "(kept | self._extensions).items()",
        "self._extensions.items()",
        ("tests/handlers/_remote/test_client_state.py",),
    ),
    Mutant(
        "a remote worker waits for a gateway that does not answer Hello",
        "handlers/_remote/client.py",
        "if not state.is_open and now >= hello_until:",
        "if False:",
        ("tests/handlers/_remote/test_remote.py::test_scene[a_gateway_that_does_not_answer_hello_is_left]",),
    ),
    Mutant(
        "remote tasks that arrive during the stop are kept",
        "handlers/_remote/slot.py",
        "            elif tasks:\n                self._client.release(tasks[0].claim)\n",
        "",
        ("tests/handlers/_remote/test_remote.py::test_scene[tasks_that_cross_the_close_are_released]",),
    ),
    Mutant(
        "a remote worker leaves before its results are confirmed",
        "handlers/_remote/client.py",
        "self._ended or (self._state.is_settled and not self._answers), timeout",
        "True, timeout",
        ("tests/handlers/_remote/test_remote.py::test_scene[close_finishes_the_running_task_and_releases_the_rest]",),
    ),
    Mutant(
        "a producer repeats an enqueue under another key",
        "handlers/_remote/unary_calls.py",
        "                found = client_call(channel, method)(\n",
        "                if hasattr(request, 'idempotency_key'): request.idempotency_key += 'x'\n                found = client_call(channel, method)(\n",
        ("tests/handlers/_remote/test_remote.py::test_scene[a_producer_repeats_an_enqueue_with_the_same_key]",),
    ),
    Mutant(
        "an idle gateway is not woken beside a worker",
        "supervisor/policy/wakeups.py",
        "(pending > 0 if slot.kind.works else requested)",
        "(pending > 0)",
        ("tests/supervisor/policy/test_gateway.py",),
    ),
    Mutant(
        "the idle flag of a gateway is not read once enough workers are idle",
        "supervisor/process/board_reader.py",
        "(missing > 0 if slot.kind.works else slot.kind.claims)",
        "(missing > 0 and slot.kind.claims)",
        ("tests/supervisor/process/test_wakeups.py",),
    ),
    Mutant(
        "a dismissed gateway gets no time for the jobs of its clients",
        "supervisor/policy/stopping.py",
        "(limits.drain_timeout if kind.drains and not kind.works else 0.0)",
        "0.0",
        ("tests/supervisor/policy/test_gateway.py",),
    ),
    Mutant(
        "the end of a drain does not wait for the gateway",
        "supervisor/policy/shutdown.py",
        "[slot for slot in alive if slot.kind.drains]",
        "[slot for slot in alive if slot.kind.works]",
        ("tests/supervisor/policy/test_gateway.py",),
    ),
    Mutant(
        "two gateways share a port",
        "workers/gateway/server.py",
        '("grpc.so_reuseport", 0)',
        '("grpc.so_reuseport", 1)',
        ("tests/workers/gateway/test_server.py",),
    ),
    Mutant(
        "every user of the host may connect to the socket of the gateway",
        "workers/gateway/server.py",
        "os.umask(0o177)",
        "os.umask(0o000)",
        ("tests/workers/gateway/test_server.py",),
    ),
    Mutant(
        "a gateway takes the socket of a server that lives",
        "workers/gateway/server.py",
        '        _make_place(address.removeprefix("unix:"))\n',
        "",
        ("tests/workers/gateway/test_server.py",),
    ),
    Mutant(
        "a certificate without its key is used",
        "workers/gateway/tls.py",
        "            context.load_cert_chain(self._chain, self._key, password=_no_password)\n",
        "",
        ("tests/workers/gateway/test_server.py",),
    ),
    Mutant(
        "a wrong token is forgiven because of a right certificate",
        "workers/gateway/access.py",
        "            return tokens.find(self.by_token, token)\n        if",
        "            found = tokens.find(self.by_token, token)\n            if found:\n                return found\n        if",
        ("tests/workers/gateway/test_access.py",),
    ),
    Mutant(
        "a rejection costs a guesser no time",
        "workers/gateway/authentication.py",
        "            await asyncio.sleep(DELAY)\n",
        "",
        ("tests/workers/gateway/test_server.py",),
    ),
    Mutant(
        "a health check stays SERVING during a drain",
        "workers/gateway/health.py",
        "        self._draining = True\n",
        "",
        ("tests/workers/gateway/test_server.py",),
    ),
    Mutant(
        "a run state that the plan has changed is not announced",
        "supervisor/events/run_state.py",
        "            self._announce(now)\n",
        "            pass\n",
        ("tests/supervisor/events/test_run_state.py",),
    ),
    Mutant(
        "workers are woken by what the boards showed before",
        "supervisor/process/wakeups.py",
        "            self._boards.read_idle_flags()\n",
        "            pass\n",
        ("tests/supervisor/process/test_wakeups.py",),
    ),
    Mutant(
        "the token does not fence a settlement",
        "sql/queries/settle/settle_jobs.sql",
        "WHERE child = %(child)s AND token = %(token)s FOR UPDATE",
        "WHERE child = %(child)s FOR UPDATE",
        ("tests/sql/test_settle.py",),
    ),
    Mutant(
        "the token does not fence a settlement of completed jobs",
        "sql/queries/settle/settle_completed.sql",
        "token = %(token)s",
        "token = token",
        ("tests/sql/test_settle_completed.py", "tests/sql/test_both_settle.py"),
    ),
    Mutant(
        "a lapsed supervisor may claim",
        "sql/queries/claim/claim_jobs.sql",
        "WHERE id = %(supervisor)s AND lease_until > clock_timestamp()",
        "WHERE id = %(supervisor)s",
        ("tests/sql/test_claim.py",),
    ),
    Mutant(
        "a claim does not return the new attempt",
        "sql/queries/claim/claim_jobs.sql",
        "(job).attempts + 1, priority",
        "(job).attempts, priority",
        ("tests/sql/test_claim.py",),
    ),
    Mutant(
        "a claim names the columns of a job",
        "sql/queries/claim/claim_jobs.sql",
        "array_agg(job)",
        "array_agg(((job).id, (job).created_at, (job).run_at, (job).expires_at, (job).timeout, (job).last_error, (job).priority, (job).attempts, (job).max_attempts, (job).crashes, (job).alone, (job).queue, (job).kind, (job).payload, (job).extras, (job).lane)::jobherd.ready)",
        ("tests/sql/test_later_column.py",),
    ),
    Mutant(
        "a settlement does not count the attempt",
        "sql/queries/settle/settle_jobs.sql",
        "THEN 0 ELSE 1 END AS attempts",
        "THEN 0 ELSE 0 END AS attempts",
        ("tests/sql/test_moves.py",),
    ),
    Mutant(
        "a settlement of completed jobs does not count the attempt",
        "sql/queries/settle/settle_completed.sql",
        "attempts + 1, max_attempts",
        "attempts, max_attempts",
        ("tests/sql/test_settle_completed.py",),
    ),
    Mutant(
        "a claim takes what others hold",
        "sql/queries/claim/claim_jobs.sql",
        "LIMIT %(wanted)s\n               FOR UPDATE SKIP LOCKED",
        "LIMIT %(wanted)s",
        ("tests/sql/test_claim.py",),
    ),
    Mutant(
        "a claim takes what its plan likes",
        "sql/queries/claim/claim_jobs.sql",
        "             LIMIT %(wanted)s\n",
        "             LIMIT 2 * %(wanted)s\n",
        ("tests/sql/test_claim.py",),
    ),
    Mutant(
        "the dead child's backend is not ended first",
        "supervisor/crash/dead_child.py",
        "    step: Step = Step.BACKEND\n",
        "    step: Step = Step.SETTLE\n",
        ("tests/system/test_crash.py", "tests/supervisor"),
    ),
    Mutant(
        "a child keeps its siblings' pipes",
        "supervisor/process/spawn.py",
        "        os.close(ends.wake)\n        os.close(ends.report)\n        if ends.output >= 0:",
        "        if ends.output >= 0:",
        ("tests/system/test_hygiene.py", "tests/system/test_parent.py"),
    ),
    Mutant(
        "texts are stored as they come",
        "handlers/_values/sanitize.py",
        '_HOSTILE.sub("\\ufffd", plain)',
        "plain",
        ("tests/handlers/_values/test_sanitize.py",),
    ),
    Mutant(
        "nobody sweeps what nobody holds",
        "workers/maintenance/maintenance.py",
        "            self._sweep()\n",
        "",
        ("tests/workers/maintenance/test_maintenance.py",),
    ),
    Mutant(
        "a maintenance process leaves alone what other supervisors have left behind",
        "workers/maintenance/maintenance.py",
        "            self._orphans_at = time.monotonic() + ORPHANED\n",
        "            pass\n",
        ("tests/system/test_parent.py",),
    ),
    Mutant(
        "a process is ended though its supervisor lives",
        "workers/maintenance/dead_supervisors.py",
        " and not alive(pid, born)",
        "",
        ("tests/workers/maintenance/test_dead_supervisors.py",),
    ),
    Mutant(
        "orphans of living children are swept",
        "sql/queries/recover/requeue_orphans.sql",
        "     WHERE (NOT EXISTS (SELECT FROM jobherd.children c WHERE c.id = r.child) OR r.child IN (SELECT id FROM stray))\n",
        "     WHERE true\n",
        ("tests/sql/test_settle.py", "tests/workers/maintenance/test_maintenance.py"),
    ),
    Mutant(
        "a release is not fenced by the token",
        "sql/schema/09_recover.sql",
        "ON r.child = c.child AND r.token = c.token",
        "ON r.child = c.child",
        ("tests/sql/test_requeue.py",),
    ),
    Mutant(
        "a release of some jobs ends the whole claim",
        "sql/schema/09_recover.sql",
        "WHERE j.id <> ALL (only_jobs)) AS jobs",
        "WHERE false) AS jobs",
        ("tests/sql/test_requeue.py",),
    ),
    Mutant(
        "a lost attempt is not counted",
        "sql/schema/09_recover.sql",
        "(r.job).attempts + lost::integer AS attempts",
        "(r.job).attempts AS attempts",
        ("tests/sql/test_moves.py",),
    ),
    Mutant(
        "a crash before the start is not counted",
        "sql/schema/09_recover.sql",
        "(r.job).crashes + r.crashed::integer AS crashes",
        "(r.job).crashes AS crashes",
        ("tests/sql/test_moves.py",),
    ),
    Mutant(
        "a released job keeps an id that is taken",
        "sql/schema/09_recover.sql",
        "AND NOT EXISTS (SELECT FROM jobherd.ready w WHERE w.id = j.id) THEN j.id",
        "THEN j.id",
        ("tests/sql/test_same_ids.py",),
    ),
    Mutant(
        "a child claims beyond its lease",
        "workers/claim/claimer.py",
        "time.monotonic() >= self._control.lease_deadline - self._settings.lease / 5",
        "False",
        ("tests/workers/test_worker_life.py", "tests/system/test_database.py", "tests/system/test_parent.py"),
    ),
    Mutant(
        "a revoked job starts",
        "workers/run/executor.py",
        "            if self.is_released(row.token):\n                self.recorder.withdraw(row)\n                return False\n",
        "            pass\n",
        ("tests/workers/database/test_wire.py",),
    ),
    Mutant(
        "a revoked short job starts",
        "workers/short_jobs.py",
        "                if words[Word.REVOKED] == token:\n",
        "                if False:\n",
        ("tests/workers/test_short_jobs.py",),
    ),
    Mutant(
        "a short job starts although it was canceled",
        "workers/short_jobs.py",
        "                if interrupts.pending or interrupts.unread or",
        "                if interrupts.unread or",
        ("tests/workers/test_short_jobs.py",),
    ),
    Mutant(
        "a short job starts although its worker is dismissed",
        "workers/short_jobs.py",
        "or wake.dismissed or guard.recycle_reason or now",
        "or guard.recycle_reason or now",
        ("tests/workers/test_short_jobs.py",),
    ),
    Mutant(
        "what a short job leaves in its process is not noticed",
        "workers/short_jobs.py",
        "        if not over:\n            guard.examine()\n",
        "",
        ("tests/workers/test_short_jobs.py",),
    ),
    Mutant(
        "a worker takes any release for one of its claim",
        "workers/settle/in_flight.py",
        "        return self._board.revoked == token\n",
        "        return self._board.revoked != 0\n",
        ("tests/workers/settle/test_in_flight.py",),
    ),
    Mutant(
        "a straggler's release is not fenced by its token",
        "sql/schema/09_recover.sql",
        "ON r.child = c.child AND r.token = c.token\n",
        "ON r.child = c.child\n",
        ("tests/sql/test_requeue_rest.py",),
    ),
    Mutant(
        "what was finished is not on the board",
        "workers/settle/in_flight.py",
        "            entered = self._outcomes.enter(finished.as_entry())\n",
        "            entered = True\n",
        ("tests/system/test_crash.py", "tests/system/test_batches.py", "tests/workers/test_worker_life.py"),
    ),
    Mutant(
        "of a dead child only the claim in in_flight is written",
        "supervisor/process/reaper.py",
        "                outcomes_of(board),\n",
        "                [one for one in outcomes_of(board) if one[0] == work.token],\n",
        ("tests/system/test_batches.py",),
    ),
    Mutant(
        "what was lost on its way waits for a long job's end",
        "supervisor/process/offload.py",
        "        outcomes = outcomes_of(board)\n",
        "        outcomes = [one for one in outcomes_of(board) if one[0] == token]\n",
        ("tests/system/test_batches.py",),
    ),
    Mutant(
        "a release writes what it reads of the next claim",
        "supervisor/process/offload.py",
        "again is None or again.token != token",
        "again is None",
        ("tests/supervisor/process/test_offload.py",),
    ),
    Mutant(
        "a flush writes what it reads of a later job",
        "supervisor/process/offload.py",
        "again != work or",
        "again is None or",
        ("tests/supervisor/process/test_offload.py",),
    ),
    Mutant(
        "after a flush a worker does not check whether its last job was recorded",
        "workers/settle/in_flight.py",
        "        return finished[-1:]\n",
        "        return ()\n",
        ("tests/workers/claim/test_ahead.py", "tests/sql/test_both_settle.py"),
    ),
    Mutant(
        "a claim that is being written does not count as held",
        "supervisor/process/offload.py",
        "if others or earlier else None",
        "if others else None",
        ("tests/supervisor/process/test_offload.py", "tests/system/test_batches.py"),
    ),
    Mutant(
        "a claim that is being written counts as one that nobody heard of",
        "workers/worker.py",
        "0 if behind is None else behind[0]",
        "0",
        ("tests/workers/claim/test_ahead.py",),
    ),
    Mutant(
        "a long job begins before the claim before is written",
        "workers/worker.py",
        "                in_flight.make_sure()\n                behind = False\n",
        "                behind = False\n",
        ("tests/workers/claim/test_ahead.py",),
    ),
    Mutant(
        "a worker that exits does not learn whether the last claim is written",
        "workers/settle/in_flight.py",
        "        self.make_sure()\n        whole = True\n",
        "        whole = True\n",
        ("tests/workers/claim/test_ahead.py",),
    ),
    Mutant(
        "a child outlives its parent",
        "workers/process/wakeup.py",
        "                self.dismissed = self.ended = True\n",
        "",
        ("tests/system/test_parent.py", "tests/workers/test_worker_life.py"),
    ),
    Mutant(
        "a cap is counted without its lock",
        "sql/schema/08_claim.sql",
        "l.name = lock_limit.name FOR NO KEY UPDATE;",
        "l.name = lock_limit.name;",
        ("tests/sql/test_gates.py::test_who_waited_for_the_lock_counts_again",),
    ),
    Mutant(
        "what is parked is overtaken",
        "sql/migrations/0025_claim_under_lane_rates.sql",
        "            EXIT WHEN cardinality(aside) > 0 AND cardinality(taken) = 0 AND job.kind <> ALL (shut_kinds);\n",
        "",
        ("tests/sql/test_gates.py::test_a_parked_job_is_not_overtaken_when_somebody_else_stands_at_the_head",),
    ),
    Mutant(
        "a claim under a rate limit takes one token less",
        "sql/migrations/0025_claim_under_lane_rates.sql",
        "PERFORM jobherd.take_tokens(g, cardinality(batch))",
        "PERFORM jobherd.take_tokens(g, cardinality(batch) - 1)",
        ("tests/sql/test_rates.py",),
    ),
    Mutant(
        "more tokens than the burst come together",
        "sql/migrations/0005_rates.sql",
        "least(greatest(b.used_until, at), at + gate.burst * step)",
        "b.used_until",
        ("tests/sql/test_rates.py",),
    ),
    Mutant(
        "a worker of an earlier version gets a row about the next token",
        "sql/migrations/0025_claim_under_lane_rates.sql",
        "IF rated AND opens AND (",
        "IF rated AND (",
        ("tests/sql/test_rates.py",),
    ),
    Mutant(
        "a bucket that holds more than it can stays empty",
        "sql/migrations/0025_claim_under_lane_rates.sql",
        "    IF overfull THEN PERFORM jobherd.correct_buckets(); END IF;\n",
        "",
        ("tests/sql/test_rates.py",),
    ),
    Mutant(
        "who takes the last token does not learn when the next one comes",
        "sql/migrations/0025_claim_under_lane_rates.sql",
        "(token IS NULL OR left_over = 0 OR ",
        "(token IS NULL OR ",
        ("tests/sql/test_rates.py",),
    ),
    Mutant(
        "an earlier version that withdraws a concurrency limit removes the rate",
        "sql/migrations/0008_keep_rates.sql",
        "WHEN (OLD.rate IS NOT NULL AND (OLD",
        "WHEN (OLD.rate IS NULL AND (OLD",
        ("tests/sql/test_rates.py",),
    ),
    Mutant(
        "no worker is woken when a rate limit opens",
        "supervisor/events/poll.py",
        '            self._fleet.opens_at = float("inf")\n            self._fleet.request_wakeups()\n',
        '            self._fleet.opens_at = float("inf")\n',
        ("tests/supervisor/policy/test_wakeups.py", "tests/system/test_rates.py"),
    ),
    Mutant(
        "a job's transaction does not hold its claim",
        "sql/queries/settle/lock_claim.sql",
        "   FOR KEY SHARE",
        "",
        ("tests/sql/test_transactions.py",),
    ),
    Mutant(
        "an order is taken twice",
        "sql/queries/control/take_fleet_commands.sql",
        "o.taken_at IS NULL AND ",
        "",
        ("tests/sql/test_orders.py",),
    ),
    Mutant(
        "an order is answered twice",
        "sql/queries/control/answer_fleet_command.sql",
        " AND done_at IS NULL",
        "",
        ("tests/sql/test_orders.py",),
    ),
    Mutant(
        "a cancel is forgotten when its job goes back",
        "sql/queries/settle/settle_jobs.sql",
        "WHEN EXISTS (SELECT FROM jobherd.cancels x WHERE x.job = j.id) THEN 'cancelled'",
        "WHEN false THEN 'cancelled'",
        ("tests/sql/test_settle.py", "tests/machines/test_queue.py"),
    ),
    Mutant(
        "a request to cancel that is committed late is not applied",
        "sql/queries/maintenance/end_pauses.sql",
        "EXISTS (SELECT FROM jobherd.cancels) AS asked",
        "false AS asked",
        ("tests/sql/test_cancels.py",),
    ),
    Mutant(
        "a request to cancel is dropped while its job waits",
        "sql/queries/maintenance/apply_cancels.sql",
        "NOT EXISTS (SELECT FROM jobherd.waiting w WHERE w.id = a.job)",
        "true",
        ("tests/sql/test_cancels.py",),
    ),
    Mutant(
        "a request to cancel outlives a retry by in_flight",
        "sql/migrations/0032_blocked_jobs.sql",
        "            DELETE FROM jobherd.cancels WHERE job = job_id;",
        "            NULL;",
        ("tests/sql/test_cancels.py",),
    ),
    Mutant(
        "a caller that deletes a job and stays open holds up due jobs",
        "sql/queries/maintenance/delete_logs.sql",
        "\n                          FOR UPDATE SKIP LOCKED",
        "",
        ("tests/sql/test_open_transactions.py",),
    ),
    Mutant(
        "a claim waits for a lock out of order",
        "sql/schema/08_claim.sql",
        "FOR NO KEY UPDATE SKIP LOCKED;",
        "FOR NO KEY UPDATE;",
        ("tests/sql/test_gates.py::test_a_lock_that_another_claim_has_is_only_tried_out_of_order",),
    ),
    Mutant(
        "a second word reaches what is made of the end",
        "workers/process/interrupt.py",
        "before, self.raised = self.raised, None",
        "before = self.raised",
        ("tests/workers/process/test_interrupt.py",),
    ),
    Mutant(
        "a cancel that comes before its claim is known is forgotten",
        "workers/process/interrupt.py",
        "            self.read()  # An interruption may have arrived before its claim was known here.\n",
        "",
        ("tests/workers/process/test_interrupt.py", "tests/system/test_cancel.py"),
    ),
    Mutant(
        "a job that has moved the timer goes unnoticed",
        "workers/process/job_timer.py",
        "        if interval == _MARK or not (marked or interval or left):\n            return True\n",
        "        return True\n",
        ("tests/workers/process/test_interrupt.py",),
    ),
    Mutant(
        "children may write what the parent says to all",
        "workers/ipc/control_block.py",
        " | _F_SEAL_FUTURE_WRITE",
        "",
        ("tests/workers/process/test_misused.py",),
    ),
    Mutant(
        "the next job finds what the last one left",
        "workers/process/state_guard.py",
        "            found, lost = self._belongings.put_back()\n",
        '            found, lost = False, ""\n',
        ("tests/system/test_hostile_handlers.py",),
    ),
    Mutant(
        "the next job finds what the last one left in Python's tables",
        "workers/process/process_state.py",
        "        found = self._interpreter.put_back() or found\n",
        "",
        ("tests/system/test_hostile_handlers.py",),
    ),
    Mutant(
        "an argument arrives as another",
        "handlers/_define/encoder.py",
        "        binding.compare(payload, binding.bind(decode_payload(text)))\n",
        "        binding.bind(decode_payload(text))\n",
        ("tests/handlers/_values/test_fidelity.py",),
    ),
    Mutant(
        "a set arrives as a list where another parameter takes sets",
        "handlers/_values/fidelity.py",
        "        _check_plain(given)  # an object arrives as its document\n",
        "        pass\n",
        ("tests/handlers/_values/test_fidelity.py",),
    ),
    Mutant(
        "a type that no converter knows is found by the first job",
        "handlers/_load/registry.py",
        "    loading.check_signatures()\n",
        "",
        ("tests/handlers/_values/test_models.py",),
    ),
    Mutant(
        "the next job of a claim finds what the last one left",
        "workers/short_jobs.py",
        "            guard.put_back(kind, now)\n        if not stands",
        "            pass\n        if not stands",
        ("tests/system/test_hostile_handlers.py::test_so_does_the_next_job_of_the_same_claim",),
    ),
    Mutant(
        "a child does not look whether its parent lived when it was forked",
        "supervisor/process/spawn.py",
        "                if os.getppid() != parent:",
        "                if False:",
        ("tests/system/test_steps.py::test_a_child_whose_parent_dies_before_it_can_be_told_leaves_by_itself",),
    ),
    Mutant(
        "signals are not held back while a child is forked",
        "supervisor/process/spawn.py",
        "signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())",
        "signal.pthread_sigmask(signal.SIG_BLOCK, ())",
        ("tests/system/test_steps.py::test_a_child_that_is_told_to_leave_before_it_has_handlers_leaves",),
    ),
    Mutant(
        "a claim in flight outlives its child",
        "supervisor/crash/recovery.py",
        """                self._terminate_sessions(case, now)\n""",
        """                self._ended(case, [("0",)], now)\n""",
        (
            "tests/system/test_steps.py::test_a_claim_that_waits_in_the_server_never_takes_effect_once_its_child_is_dead",
        ),
    ),
    Mutant(
        "what was finished and not heard of is not written by the parent",
        "supervisor/process/reaper.py",
        "                outcomes_of(board),\n",
        "                [],\n",
        ("tests/system/test_steps.py::test_an_outcome_that_waits_in_the_server_is_kept_when_its_child_dies",),
    ),
    Mutant(
        "who is told to leave starts what it has claimed",
        "workers/worker.py",
        "if self._wake.dismissed or self._control.draining or guard.recycle_reason:",
        "if guard.recycle_reason:",
        (
            "tests/system/test_steps.py::test_who_is_told_to_leave_at_a_step_of_a_claim_hands_back_what_it_has_not_started",
        ),
    ),
    Mutant(
        "a job that was only announced counts as started",
        "supervisor/process/reaper.py",
        "if record.runs and board.begun != record.job:",
        "if False:",
        (
            "tests/system/test_steps.py::test_who_stays_at_a_step_of_a_claim_beyond_the_drain_is_ended_and_no_attempt_is_spent",
        ),
    ),
    Mutant(
        "who leaves does not wait for its registration",
        "supervisor/database/unregister.py",
        "    exchange(lambda: not lease.underway)\n",
        "",
        ("tests/system/test_steps.py::test_who_is_told_to_leave_while_it_registers_leaves_no_registration",),
    ),
    Mutant(
        "a parent that was stopped judges by what the boards said before",
        "supervisor/loop.py",
        "        for component in self._note:\n",
        "        for action in plan(self._fleet, now).actions:\n            self._do(action, now)\n        for component in self._note:\n",
        (
            "tests/system/test_steps.py::test_a_job_that_ends_in_time_is_not_punished_for_a_parent_that_was_stopped_beyond_it",
        ),
    ),
    Mutant(
        "two words that are said together are two",
        "supervisor/policy/fleet.py",
        "                if now - self.stop_requested_at < ONE_REQUEST and",
        "                if now - self.stop_requested_at < 0.0 and",
        ("tests/system/test_steps.py::test_words_that_are_said_together_are_one_and_a_third_changes_nothing_more",),
    ),
    Mutant(
        "a softer signal slows down an immediate exit",
        "supervisor/policy/run_state.py",
        "    RunState.IMMEDIATE_SHUTDOWN: RunState.IMMEDIATE_SHUTDOWN,",
        "    RunState.IMMEDIATE_SHUTDOWN: RunState.FAST_SHUTDOWN,",
        ("tests/system/test_steps.py::test_a_supervisor_that_exits_at_once_is_not_slowed_down_by_a_softer_signal",),
    ),
    Mutant(
        "a hook between two jobs has no stop sequence",
        "supervisor/policy/stopping.py",
        "if not case.slot.seen.hook or stop is not None or",
        "if not case.slot.seen.hook or stop is None or",
        ("tests/supervisor/policy/test_stopping.py",),
    ),
    Mutant(
        "a plan writes to the fleet",
        "supervisor/policy/plan.py",
        "            result.state_changes.append(RecycleDecided(slot))\n",
        "            slot.sent.recycle = True\n",
        ("tests/supervisor/policy/test_replacement.py",),
    ),
    Mutant(
        "a plan takes the requested wake-ups from the fleet",
        "supervisor/policy/wakeups.py",
        "    plan.state_changes.append(WakeupsTaken())\n",
        "    fleet.pending_wakeups = 0\n    fleet.kinds_to_wake.clear()\n",
        ("tests/supervisor/policy/test_wakeups.py",),
    ),
    Mutant(
        "a state of a slot does not answer an event",
        "supervisor/policy/slot.py",
        "        SlotEvent.LOADED: State.LEAVING,\n",
        "",
        ("tests/supervisor/policy/test_tables.py",),
    ),
    Mutant(
        "a reason to stop a child has no end",
        "supervisor/policy/stopping.py",
        "    StopReason.STOPPED: _with_the_process,\n",
        "",
        ("tests/supervisor/policy/test_tables.py",),
    ),
    Mutant(
        "the parent is not told that a hook runs",
        "workers/run/hooks.py",
        "self._board.say_hook(time.monotonic() + LIMIT)",
        "self._board.say_hook(0.0)",
        ("tests/system/test_hooks.py",),
    ),
    Mutant(
        "a session of transactions stays as a handler left it",
        "workers/run/transaction.py",
        "        self.committed = True\n        session.reset()\n",
        "        self.committed = True\n",
        ("tests/workers/run/test_transaction.py",),
    ),
    Mutant(
        "a transaction waits for ever for a line that carries nothing",
        "workers/run/transaction_session.py",
        "prepared=False, patience=PATIENCE",
        "prepared=False",
        ("tests/workers/run/test_transaction.py::test_a_session_that_is_swallowed_while_nobody_needed_it_is_given_up",),
    ),
    Mutant(
        "what has answered counts as done, whatever becomes of its transaction",
        "workers/database/receiver.py",
        "            return [result]\n    return results[hidden:]\n",
        "            break\n    return results[hidden:]\n",
        ("tests/workers/database/test_wire.py", "tests/workers/claim/test_ahead.py"),
    ),
    Mutant(
        "a session speaks what the environment asks for",
        "workers/database/opening.py",
        "        **_FORCED,\n",
        "",
        ("tests/system/test_inside.py::test_an_encoding_that_the_environment_asks_for_changes_nothing",),
    ),
    Mutant(
        "a jump of the server's clock is told to nobody",
        "supervisor/database/reclaim.py",
        "            self._fleet.kinds_to_wake.add(MAINTENANCE)\n",
        "",
        ("tests/system/test_clocks.py",),
    ),
    Mutant(
        "it is notified whether or not the server has room",
        "sql/schema/04_wake.sql",
        "NEW.queue) WHERE pg_notification_queue_usage() < 0.9",
        "NEW.queue) WHERE pg_notification_queue_usage() < 9",
        ("tests/system/test_full_notifications.py",),
    ),
    Mutant(
        "a job decides whether its parent waits where it reads",
        "supervisor/process/spawn.py",
        'ours = os.open(f"/proc/self/fd/{reading}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)',
        "ours = os.dup(reading)",
        ("tests/system/test_hostile_handlers.py",),
    ),
    Mutant(
        "a copy that C code has forked goes on as the worker",
        "workers/process/fork_mark.py",
        "        page.madvise(_WIPE_ON_FORK)\n",
        "        pass\n",
        ("tests/system/test_hostile_handlers.py",),
    ),
    Mutant(
        "the next job goes by the clock that the last one has left",
        "workers/process/state_guard.py",
        "elif time.monotonic is not self._clock:",
        "elif False:",
        ("tests/system/test_hostile_handlers.py",),
    ),
    Mutant(
        "fixed words have the times that were refused",
        "workers/job/finished.py",
        "ran=None if one.ran is None else 0.0, ended=0.0, ",
        "",
        ("tests/workers/settle/test_settler.py::test_nor_of_clocks_that_it_has_moved",),
    ),
    Mutant(
        "a session that waits for a job holds its claim",
        "sql/schema/04_wake.sql",
        "    RAISE EXCEPTION USING ERRCODE = 'JHMET';\n",
        "",
        ("tests/sql/test_waiters.py",),
    ),
    Mutant(
        "a resume leaves the earlier stream of the session open",
        "workers/gateway/sessions.py",
        '            actions += state.end_stream(earlier, Status.ABORTED, "the session was resumed by another stream", now)\n',
        "            pass\n",
        ("tests/workers/gateway/test_sessions.py",),
    ),
    Mutant(
        "a late answer takes a session from the stream that attached it later",
        "workers/gateway/sessions.py",
        "known.attached >= opened.attached",
        "known.attached > opened.attached + 9",
        ("tests/workers/gateway/test_sessions.py",),
    ),
    Mutant(
        "a known session is resumed by another principal",
        "workers/gateway/sessions.py",
        "if session.principal != hello.principal:",
        "if False:",
        ("tests/workers/gateway/test_sessions.py",),
    ),
    Mutant(
        "a worker that resumes keeps what a pause takes back",
        "workers/gateway/sessions.py",
        "    if session.claims:\n        # A pause",
        "    if False:\n        # A pause",
        ("tests/workers/gateway/test_sessions.py",),
    ),
    Mutant(
        "a stream that has not written its tasks gets more",
        "workers/gateway/assignment.py",
        "        not stream.unwritten\n        and not",
        "        not",
        ("tests/workers/gateway/test_assignment.py",),
    ),
    Mutant(
        "a gateway claims for a session whose lease has expired",
        "workers/gateway/assignment.py",
        "        and session.lease_until > now\n",
        "",
        ("tests/workers/gateway/test_assignment.py",),
    ),
    Mutant(
        "a gateway that drains lets a Ready wait",
        "workers/gateway/assignment.py",
        "    if state.draining:\n        found.last_ready = number\n",
        "    if state.draining and not number:\n        found.last_ready = number\n",
        ("tests/workers/gateway/test_sessions.py", "tests/workers/gateway/test_assignment.py"),
    ),
    Mutant(
        "claimed tasks whose Ready is gone are kept",
        "workers/gateway/assignment.py",
        "            if answer.token:\n                refs",
        "            if False:\n                refs",
        ("tests/workers/gateway/test_assignment.py",),
    ),
    Mutant(
        "a claim without an answer is followed by another without a check",
        "workers/gateway/assignment.py",
        "            session.check_at = now\n        if stream",
        "            pass\n        if stream",
        ("tests/workers/gateway/test_assignment.py",),
    ),
    Mutant(
        "a ResultBatch is acknowledged before its commit",
        "workers/gateway/tasks.py",
        "found.results[number] = not refs",
        "found.results[number] = True",
        ("tests/workers/gateway/test_tasks.py",),
    ),
    Mutant(
        "a ResultBatch is acknowledged before an earlier one",
        "workers/gateway/tasks.py",
        "        if not committed:\n            break\n",
        "",
        ("tests/workers/gateway/test_tasks.py",),
    ),
    Mutant(
        "a heartbeat makes a lease shorter",
        "workers/gateway/tasks.py",
        "max(task.deadline, min(now + extend, task.latest))",
        "min(now + extend, task.latest)",
        ("tests/workers/gateway/test_tasks.py",),
    ),
    Mutant(
        "a heartbeat makes a lease longer than the timeout",
        "workers/gateway/tasks.py",
        "min(now + extend, task.latest)",
        "now + extend",
        ("tests/workers/gateway/test_tasks.py",),
    ),
    Mutant(
        "a claim on its way is taken for one that no process knows",
        "workers/gateway/deadlines.py",
        "elif not session.claiming and not session.checking:",
        "elif not session.checking:",
        ("tests/workers/gateway/test_sessions.py",),
    ),
    Mutant(
        "a worker that lost a task gets others before it speaks",
        "workers/gateway/deadlines.py",
        "        state.streams[session.stream].silent = True\n",
        "        pass\n",
        ("tests/workers/gateway/test_tasks.py",),
    ),
    Mutant(
        "a gateway claims for a session that another one serves",
        "sql/queries/remote/claim_slots.sql",
        " AND s.attached = w.attached)",
        ")",
        ("tests/sql/test_remote_claims.py",),
    ),
    Mutant(
        "a session without a lease claims",
        "sql/queries/remote/claim_slots.sql",
        "SELECT place, size FROM asked WHERE leased\n",
        "SELECT place, size FROM asked WHERE leased IS NOT NULL\n",
        ("tests/sql/test_remote_claims.py",),
    ),
    Mutant(
        "a gateway without a lease claims",
        "sql/queries/remote/claim_slots.sql",
        "g.via IS NULL AND g.lease_until > clock_timestamp()",
        "g.via IS NULL",
        ("tests/sql/test_remote_claims.py",),
    ),
    Mutant(
        "a job that must run alone is dealt with others",
        "sql/queries/remote/claim_slots.sql",
        "AND (NOT some_alone OR (all_alone AND",
        "AND (true OR (all_alone AND",
        ("tests/sql/test_remote_claims.py",),
    ),
    Mutant(
        "the token does not fence a settlement of many claims",
        "sql/queries/remote/settle_claims.sql",
        "AND token = c.token AND",
        "AND",
        ("tests/sql/test_remote_settlements.py",),
    ),
    Mutant(
        "a part of a claim is settled as the whole",
        "sql/queries/remote/settle_claims.sql",
        " AND cardinality(jobs) = c.size",
        "",
        ("tests/sql/test_remote_settlements.py",),
    ),
    Mutant(
        "a claim that is given twice is settled twice",
        "sql/queries/remote/settle_claims.sql",
        "SELECT DISTINCT ON (child, token) * FROM claim",
        "SELECT * FROM claim",
        ("tests/sql/test_remote_settlements.py",),
    ),
    Mutant(
        "a gateway renews a session that another one serves",
        "sql/queries/remote/renew_sessions.sql",
        "s.id = n.id AND s.attached = n.attached",
        "s.id = n.id",
        ("tests/sql/test_remote_sessions.py",),
    ),
    Mutant(
        "any client resumes a session",
        "sql/queries/remote/attach_session.sql",
        " AND s.principal = %(principal)s::text",
        "",
        ("tests/sql/test_remote_sessions.py",),
    ),
    Mutant(
        "a gateway that resumes a session does not fence the earlier one",
        "sql/queries/remote/attach_session.sql",
        "SET attached = s.attached + 1",
        "SET attached = s.attached",
        ("tests/sql/test_remote_sessions.py",),
    ),
    Mutant(
        "an expired attempt counts as settled by its worker",
        "sql/queries/remote/find_settled.sql",
        "(a.error_code IS NULL OR a.error_code NOT IN ('WORKER_LOST', 'LEASE_EXPIRED'))",
        "true",
        ("tests/sql/test_remote_sessions.py",),
    ),
    Mutant(
        "a reclaim waits for a session that a stopped gateway holds",
        "sql/queries/recover/reclaim_supervisors.sql",
        "clock_timestamp()))\n       FOR UPDATE SKIP LOCKED",
        "clock_timestamp()))\n       FOR UPDATE",
        ("tests/sql/test_remote_sessions.py",),
    ),
    Mutant(
        "a gateway holds a session that another one serves",
        "sql/migrations/0002_remote_sessions.sql",
        "WHERE s.id = session AND s.attached = hold_session.attached FOR SHARE",
        "WHERE s.id = session FOR SHARE",
        ("tests/sql/test_remote_sessions.py",),
    ),
    Mutant(
        "a session that is held can be resumed",
        "sql/migrations/0002_remote_sessions.sql",
        "AND s.attached = hold_session.attached FOR SHARE",
        "AND s.attached = hold_session.attached",
        ("tests/sql/test_remote_sessions.py",),
    ),
)


HANGS = 120
"""Seconds after which a test counts as red.

Some guards keep two from waiting for each other for ever.
"""


def is_noticed(mutant: Mutant, folder: Path) -> str:
    """Run its tests in a copy of the tree that has the change.

    Return what became of it: noticed, SURVIVED or MOVED.
    """
    tree = folder / "tree"
    files = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True).stdout
    tree.mkdir()
    subprocess.run(
        ["tar", "-c", "--null", "-T", "-", "-f", str(folder / "tree.tar")], cwd=ROOT, input=files, check=True
    )
    subprocess.run(["tar", "-x", "-f", str(folder / "tree.tar")], cwd=tree, check=True)
    file = tree / mutant.file
    text = file.read_text()
    if text.count(mutant.was) != 1:
        return f"MOVED: its text stands {text.count(mutant.was)} times in {mutant.file}"
    file.write_text(text.replace(mutant.was, mutant.becomes))
    for test in mutant.tests:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", f"--timeout={HANGS}", test],
            cwd=tree,
            env=os.environ | {"PYTHONPATH": import_path(tree)},
            check=False,
            capture_output=True,
            text=True,
        )
        if done.returncode == 1:
            first = next((line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))), "?")
            return "noticed by " + first.split(" - ")[0].removeprefix("FAILED ").removeprefix("ERROR ")
        if done.returncode:
            return f"MOVED: pytest ended with {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
    return "SURVIVED"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="a part of a mutant's name; default: all")
    given = parser.parse_args()
    bad = 0
    for mutant in MUTANTS:
        if given.names and not any(name in mutant.name for name in given.names):
            continue
        with tempfile.TemporaryDirectory(prefix="jobherd-mutant-") as folder:
            found = is_noticed(mutant, Path(folder))
        bad += not found.startswith("noticed")
        print(f"{mutant.name}: {found}", flush=True)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
