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
from dataclasses import dataclass
from pathlib import Path

from tests.support.checkout import import_path
from tests.support.herd import ROOT


@dataclass(frozen=True)
class Mutant:
    """A guard taken out. tests: what is to turn red, as pytest takes it."""

    name: str
    file: str
    was: str
    becomes: str
    tests: tuple[str, ...]


MUTANTS = (
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
        "(t.job).attempts + 1 AS attempts",
        "(t.job).attempts AS attempts",
        ("tests/sql/test_claim.py",),
    ),
    Mutant(
        "a claim names the columns of a job",
        "sql/queries/claim/claim_jobs.sql",
        "array_agg(t.job ORDER BY",
        "array_agg(((t.job).id, (t.job).created_at, (t.job).run_at, (t.job).expires_at, (t.job).timeout, (t.job).last_error, (t.job).priority, (t.job).attempts, (t.job).max_attempts, (t.job).crashes, (t.job).alone, (t.job).queue, (t.job).kind, (t.job).payload, (t.job).extras, (t.job).lane)::jobherd.ready ORDER BY",
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
        "LIMIT %(wanted)s\n       FOR UPDATE SKIP LOCKED",
        "LIMIT %(wanted)s",
        ("tests/sql/test_claim.py",),
    ),
    Mutant(
        "a claim takes what its plan likes",
        "sql/queries/claim/claim_jobs.sql",
        "     LIMIT %(wanted)s\n",
        "     LIMIT 2 * %(wanted)s\n",
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
        "whoever leaves does not hear whether the last claim is written",
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
        ("tests/sql/test_gates.py::test_who_waited_for_the_lock_counts_anew",),
    ),
    Mutant(
        "what is parked is overtaken",
        "sql/schema/08_claim.sql",
        "            EXIT WHEN cardinality(aside) > 0 AND cardinality(taken) = 0 AND job.kind <> ALL (shut_kinds);\n",
        "",
        ("tests/sql/test_gates.py::test_a_parked_job_is_not_overtaken_when_somebody_else_stands_at_the_head",),
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
        "sql/schema/10_control.sql",
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
        "            self.hear()  # An interruption may have arrived before its claim was known here.\n",
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
        "workers/worker.py",
        "                tidy.put_back(row.kind, now)\n            if not stands",
        "                pass\n            if not stands",
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
        "if self._wake.dismissed or self._control.draining or tidy.recycle_reason:",
        "if tidy.recycle_reason:",
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
        "a softer word slows down whoever leaves at once",
        "supervisor/policy/fleet.py",
        "        if run_state.value > self.run_state.value:",
        "        if run_state is not self.run_state:",
        ("tests/system/test_steps.py::test_whoever_is_to_leave_at_once_is_not_slowed_down_by_a_softer_word",),
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
        "whoever waits for a job holds its claim",
        "sql/schema/04_wake.sql",
        "    RAISE EXCEPTION USING ERRCODE = 'JHMET';\n",
        "",
        ("tests/sql/test_waiters.py",),
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
