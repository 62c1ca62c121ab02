"""The limit of a control group rejects each fork.

Live processes continue. The supervisor retries the missing ones, which start once forks are allowed.
"""

from __future__ import annotations

import os
import signal
from datetime import datetime
from typing import TYPE_CHECKING

import pytest

from tests.support.cgroup import ProcessLimit, why_not
from tests.support.network import Network
from tests.support.processes import children_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.fleet import Fleet, Stage
    from tests.support.gate import Gate

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not())
REFUSED = "the system rejects another process: Resource temporarily unavailable"


@pytest.fixture
def limit() -> Iterator[ProcessLimit]:
    with ProcessLimit() as group:
        yield group


def confine(limit: ProcessLimit, fleet: Fleet) -> None:
    limit.take(fleet.pid, *children_of(fleet.pid))
    limit.set(1)


def seconds(at: str) -> float:
    return datetime.fromisoformat(at).timestamp()


def test_rejected_forks_are_retried_with_backoff_while_live_workers_continue(
    stage: Stage, gate: Gate, limit: ProcessLimit
):
    fleet = stage.run_fleet(workers=3, respawn_initial="20ms", respawn_max="1s", poll="1s")
    long = stage.enqueue("t:gate", '{"label": "long"}')
    arrival = gate.wait_arrival("long")
    slot, victim = next((slot, pid) for slot, pid in fleet.workers().items() if pid != arrival.pid)
    maintenance = fleet.maintenance()
    confine(limit, fleet)
    mark = len(fleet.log)
    for pid in (victim, maintenance):
        os.kill(pid, signal.SIGKILL)

    def refusals() -> list[float]:
        return [seconds(event["at"]) for event in fleet.said(REFUSED, after=mark) if event["slot"] == slot]

    stage.wait(lambda: len(refusals()) >= 6, "six refusals for that slot")
    # the rejected fork of the maintenance process
    fleet.wait_log(lambda event: REFUSED in event.get("message", "") and event["slot"] != slot, after=mark)
    assert limit.refused() >= 6, "the control group rejected these forks"
    times = refusals()
    rests = [later - earlier for earlier, later in zip(times, times[1:], strict=False)]
    # A busy machine makes any pause longer, and nothing makes one shorter.
    assert [
        rest for rest, least in zip(rests, (0.02, 0.04, 0.08, 0.16, 0.32), strict=False) if rest < 0.8 * least
    ] == [], rests
    jobs = [stage.enqueue("t:noop") for _ in range(20)]
    stage.wait_all(jobs, "completed")
    arrival.open("lived")
    row = stage.wait_state(long, "completed")
    assert (row["result"], row["attempts"], row["crashes"]) == ("lived", 1, 0)
    assert not fleet.said("is ready", after=mark)

    limit.lift()
    fleet.wait_ready(1, after=mark)
    stage.wait(lambda: fleet.maintenance() != maintenance, "a maintenance process")
    assert len(fleet.workers()) == 3
    due = stage.call("""SELECT jobherd.enqueue('t:noop', '{}', '{"delay": 0.05}')""")
    stage.wait_state(due, "completed")
    assert stage.completed_twice() == []
    assert fleet.stop() == 0


def test_host_name_lookup_that_cannot_fork_is_retried_while_the_workers_continue(stage: Stage, limit: ProcessLimit):
    with Network(stage.dsn) as network:
        fleet = stage.run_fleet(
            dsn=network.at("localhost"),
            workers=2,
            poll="1s",
            db_retry_initial="100ms",
            db_retry_max="500ms",
            lease="10m",
        )
        before = fleet.workers() | {-1: fleet.maintenance()}
        confine(limit, fleet)
        mark = len(fleet.log)
        network.cut("jobherd:supervisor:*")
        words = "cannot start a process that looks up a host name: Resource temporarily unavailable"
        fleet.wait_log(words, after=mark)
        refused = limit.refused()
        stage.wait(lambda: limit.refused() > refused + 3, "further attempts to start the process")
        stage.wait_all([stage.enqueue("t:noop") for _ in range(5)], "completed")
        limit.lift()
        fleet.wait_log("the database is there", after=mark)
        stage.wait_state(stage.enqueue("t:noop"), "completed")
        assert fleet.workers() | {-1: fleet.maintenance()} == before, "the same processes"
        assert fleet.stop() == 0
