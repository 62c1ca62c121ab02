"""The table of faults in the fleet, the server and the network between them, and how often each is drawn.

A fault takes effect at once and is taken back later.

Its function returns what it hit, or None if there was nothing to hit. `storm.later` takes back
lasting faults (a stopped process, a silent network), so that the next faults meet them. A deed is an
operator's action and not a fault: deeds are counted separately.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tests.faults.chaos.farm import LEASE

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.faults.chaos.storm import Storm


@dataclass(frozen=True)
class Hit:
    """What a fault hit.

    Args:
        target: Text for the journal.
        pids: The child processes whose jobs must become ready again.
        lasts: Seconds until the fault is taken back.
    """

    target: str
    pids: tuple[int, ...] = ()
    lasts: float = 0.0


@dataclass(frozen=True)
class Fault:
    """A row of the table. weight: how often it is drawn. deed: whether it is an operator's action."""

    name: str
    weight: float
    do: Callable[[Storm], Hit | None]
    deed: bool = False


# -- Processes


def _end_child(storm: Storm, what: signal.Signals) -> Hit | None:
    pid = storm.child()
    return None if pid is None or not storm.send(pid, what) else Hit(f"{what.name} to {pid}", (pid,))


def kill_child(storm: Storm) -> Hit | None:
    return _end_child(storm, signal.SIGKILL)


def hurt_child(storm: Storm) -> Hit | None:
    return _end_child(
        storm, storm.dice.choice([signal.SIGSEGV, signal.SIGABRT, signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
    )


def freeze_child(storm: Storm) -> Hit | None:
    pid, lasts = storm.child(), storm.span(0.02, 1.5)
    if pid is None or not storm.send(pid, signal.SIGSTOP, undo=signal.SIGCONT, after=lasts):
        return None
    return Hit(f"SIGSTOP to {pid}", lasts=lasts)


def kill_parent(storm: Storm) -> Hit | None:
    farm = storm.farm()
    return None if farm is None else Hit(f"supervisor {farm.number}", tuple(farm.signal(signal.SIGKILL)))


def end_parent(storm: Storm) -> Hit | None:
    """Send TERM, INT or QUIT, sometimes again 0.5 to 1.5 s later."""
    farm = storm.farm(ready=True)
    if farm is None:
        return None
    what = storm.dice.choice([signal.SIGTERM, signal.SIGTERM, signal.SIGINT, signal.SIGQUIT])
    herd = farm.herd
    if storm.dice.random() < 0.4:
        storm.later(
            storm.span(0.5, 1.5),
            lambda: herd.signal(what) if herd is farm.herd and herd and herd.process.poll() is None else None,
        )
    farm.leaving = True
    farm.signal(what, 0)
    return Hit(f"{what.name} to supervisor {farm.number}")


def freeze_parent(storm: Storm) -> Hit | None:
    farm, lasts = storm.farm(), storm.span(0.05, 1.0) if storm.dice.random() < 0.85 else LEASE * storm.span(1.0, 2.0)
    if farm is None or farm.frozen or farm.herd is None or not storm.send(farm.herd.pid, signal.SIGSTOP):
        return None
    farm.frozen, pid = True, farm.herd.pid

    def thaw() -> None:
        farm.frozen = False
        storm.send(pid, signal.SIGCONT)

    storm.later(lasts, thaw)
    return Hit(f"SIGSTOP to supervisor {farm.number}", lasts=lasts)


def reload(storm: Storm) -> Hit | None:
    return _tell_parent(storm, signal.SIGHUP)


def resize(storm: Storm) -> Hit | None:
    return _tell_parent(storm, storm.dice.choice([signal.SIGTTIN, signal.SIGTTOU]))


def ask_state(storm: Storm) -> Hit | None:
    return _tell_parent(storm, signal.SIGUSR1)


def _tell_parent(storm: Storm, what: signal.Signals) -> Hit | None:
    farm = storm.farm(ready=True)
    if farm is None or farm.leaving:  # Just before its exit, Python's default handlers are back.
        return None
    farm.signal(what)
    return Hit(f"{what.name} to supervisor {farm.number}")


# -- The server

OTHERS: Final = (
    "FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid() ORDER BY random() LIMIT 1"
)


def _upon_session(storm: Storm, function: str) -> Hit | None:
    rows = storm.run(f"SELECT {function}(pid), pid, application_name {OTHERS}")
    return Hit(f"session {rows[0][1]} of {rows[0][2]!r}") if rows else None


def end_session(storm: Storm) -> Hit | None:
    return _upon_session(storm, "pg_terminate_backend")


def cancel_statement(storm: Storm) -> Hit | None:
    return _upon_session(storm, "pg_cancel_backend")


def kill_session(storm: Storm) -> Hit | None:
    """Kill one server process with SIGKILL: the server ends all others and recovers."""
    rows = storm.run(f"SELECT pid {OTHERS}")
    if not rows:
        return None
    with suppress(ProcessLookupError):
        os.kill(rows[0][0], signal.SIGKILL)
    storm.server_was_away()
    return Hit(f"server process {rows[0][0]}")


def kill_server(storm: Storm) -> Hit | None:
    how = storm.dice.choice(["kill", "immediate", "fast"])
    lasts = storm.span(0.0, 1.0) if storm.dice.random() < 0.7 else storm.span(1.0, 2 * LEASE)
    return Hit(how, lasts=lasts) if storm.stop_server(how, lasts) else None


def lock_table(storm: Storm) -> Hit | None:
    table, lasts = storm.dice.choice(["ready", "running", "history", "children", "supervisors"]), storm.span(0.05, 1.0)
    return (
        Hit(table, lasts=lasts)
        if storm.hold_lock(f"LOCK TABLE jobherd.{table} IN ACCESS EXCLUSIVE MODE", lasts)
        else None
    )


def refuse_commits(storm: Storm) -> Hit | None:
    """Reject half of the transactions that change a claim: the statement succeeds, and its commit fails."""
    lasts = storm.span(0.05, 1.0)
    rows = storm.run(
        "UPDATE audit.refusals SET until = clock_timestamp() + make_interval(secs => %s) RETURNING until", lasts
    )
    return Hit("of claims", lasts=lasts) if rows else None


def forget_supervisor(storm: Storm) -> Hit | None:
    rows = storm.run(
        "DELETE FROM jobherd.supervisors WHERE id = (SELECT id FROM jobherd.supervisors ORDER BY random() LIMIT 1) RETURNING id"
    )
    return Hit(f"row of supervisor {rows[0][0]}") if rows else None


# -- The network


def cut_one(storm: Storm) -> Hit | None:
    farm = storm.dice.choice(storm.farms)
    farm.proxy.cut(storm.dice.randint(1, 2))
    return Hit(f"newest of supervisor {farm.number}")


def cut_all(storm: Storm) -> Hit | None:
    farm = storm.dice.choice(storm.farms)
    farm.proxy.cut()
    return Hit(f"all of supervisor {farm.number}")


def lose_answer(storm: Storm) -> Hit | None:
    farm = storm.dice.choice(storm.farms)
    farm.proxy.swallow()
    return Hit(f"of supervisor {farm.number}")


def silence(storm: Storm) -> Hit | None:
    farm, lasts = (
        storm.dice.choice(storm.farms),
        storm.span(0.05, 1.0) if storm.dice.random() < 0.85 else LEASE * storm.span(0.5, 2.0),
    )
    farm.proxy.hold()
    storm.later(lasts, farm.proxy.heal)
    return Hit(f"of supervisor {farm.number}", lasts=lasts)


# -- Named points


def kill_at_point(storm: Storm) -> Hit | None:
    return _at_point(storm, "kill")


def delay_at_point(storm: Storm) -> Hit | None:
    return _at_point(storm, f"delay {storm.span(0.05, 0.6):.2f}")


def _at_point(storm: Storm, what: str) -> Hit | None:
    """Arm a point for the next process that reaches it. It is counted when it has taken effect."""
    storm.arm(what)
    return None


# -- Operators


def _deed(storm: Storm, statement: str) -> Hit | None:
    rows = storm.run(statement)
    return Hit(str(rows[0])) if rows else None


def cancel(storm: Storm) -> Hit | None:
    return _deed(
        storm,
        "SELECT jobherd.cancel(id), id FROM (SELECT (jobs[1]).id FROM jobherd.running ORDER BY random() LIMIT 1) AS r"
        if storm.dice.random() < 0.6
        else "SELECT jobherd.cancel(id), id FROM (SELECT id FROM jobherd.waiting ORDER BY id LIMIT 1) AS r",
    )


def retry(storm: Storm) -> Hit | None:
    """Retry only jobs that did not complete: a completed job would rightly complete twice."""
    return _deed(
        storm,
        "SELECT jobherd.retry(id), id FROM (SELECT id FROM jobherd.history WHERE state IN ('failed', 'cancelled')"
        " ORDER BY finished_at DESC LIMIT 1) AS h",
    )


def delete(storm: Storm) -> Hit | None:
    """Delete a job, only of kinds whose history is not checked at the end.

    The audit contains the final states of these jobs.
    """
    return _deed(
        storm,
        "SELECT jobherd.delete(id), id FROM (SELECT id FROM jobherd.history WHERE kind IN ('chaos:quick', 'chaos:crash', 'chaos:stuck')"
        " ORDER BY finished_at DESC LIMIT 1) AS h",
    )


def pause(storm: Storm) -> Hit | None:
    queue, lasts = storm.dice.choice(["default", "bulk"]), storm.span(0.1, 2.0)
    storm.later(lasts, lambda: storm.run_surely(f"SELECT jobherd.resume('{queue}')"))
    hit = _deed(storm, f"SELECT jobherd.pause('{queue}')")
    return hit and Hit(queue, lasts=lasts)


def cap(storm: Storm) -> Hit | None:
    return _deed(storm, f"SELECT jobherd.set_limit(kind => 'chaos:capped', max_running => {storm.dice.randint(1, 3)})")


def reprioritize(storm: Storm) -> Hit | None:
    return _deed(
        storm,
        f"SELECT jobherd.reprioritize(id, {storm.dice.randint(-2, 2)}), id FROM (SELECT id FROM jobherd.waiting ORDER BY id DESC LIMIT 1) AS r",
    )


def burst(storm: Storm) -> Hit | None:
    return storm.burst(storm.dice.randint(20, 100))


TABLE: Final = (
    Fault("kill -9 of a child", 24, kill_child),
    Fault("another signal that ends a child", 5, hurt_child),
    Fault("a child frozen for a while", 12, freeze_child),
    Fault("kill -9 of a supervisor", 1.5, kill_parent),
    Fault("a supervisor told to leave", 1, end_parent),
    Fault("a supervisor frozen, sometimes beyond its lease", 1.2, freeze_parent),
    Fault("a session ended on the server", 16, end_session),
    Fault("a statement cancelled on the server", 8, cancel_statement),
    Fault("kill -9 of a server process", 0.25, kill_session),
    Fault("the server killed or stopped, and started again", 0.35, kill_server),
    Fault("a table locked by a stranger", 1.5, lock_table),
    Fault("transactions refused at their commit for a while", 2, refuse_commits),
    Fault("the row of a supervisor deleted", 0.3, forget_supervisor),
    Fault("a connection cut", 8, cut_one),
    Fault("all connections of a supervisor cut", 1.5, cut_all),
    Fault("an answer lost after the commit", 8, lose_answer),
    Fault("a silent network, sometimes beyond the lease", 1.5, silence),
    Fault("kill -9 at a named point", 8, kill_at_point),
    Fault("held up at a named point", 4, delay_at_point),
    Fault("HUP", 0.7, reload, deed=True),
    Fault("TTIN or TTOU", 2, resize, deed=True),
    Fault("USR1", 1, ask_state, deed=True),
    Fault("a job cancelled", 5, cancel, deed=True),
    Fault("a job retried", 4, retry, deed=True),
    Fault("a job of the past deleted", 1.5, delete, deed=True),
    Fault("a queue paused and resumed", 1.5, pause, deed=True),
    Fault("a cap changed", 1.5, cap, deed=True),
    Fault("a priority changed", 2, reprioritize, deed=True),
    Fault("many jobs at once", 2, burst, deed=True),
)
AT_POINT: Final = {"kill": "kill -9 at a named point", "delay": "held up at a named point"}
