"""Rate limits with real supervisors: killed workers, timers instead of polls, declared limits."""

from __future__ import annotations

import os
import random
import signal
import time
from typing import TYPE_CHECKING

from tests.sql.test_rates import most_in_any_window
from tests.support.patience import LIMIT

if TYPE_CHECKING:
    from tests.support.fleet import Stage
    from tests.support.gate import Gate

STARTS = """
CREATE TABLE public.starts (at timestamptz, kind text, number integer, lane text);
CREATE FUNCTION public.note_start() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN INSERT INTO public.starts VALUES (NEW.claimed_at, NEW.jobs[1].kind, cardinality(NEW.jobs), NEW.lane); RETURN NULL; END $$;
CREATE TRIGGER starts AFTER INSERT ON jobherd.running FOR EACH ROW EXECUTE FUNCTION public.note_start();
"""
"""Each committed claim adds a row here, even if its worker dies."""
OWN = """
from jobherd import handler
from tests.support.gate import at_gate

@handler("own:api", timeout="5m", rate="3/s", burst=2)
def api(label: str) -> str:
    return at_gate(label)
"""
RATE, BURST = 100, 5


def starts(stage: Stage) -> list[float]:
    rows = stage.run("SELECT extract(epoch FROM at), number FROM public.starts")
    return [float(at) for at, number in rows for _ in range(number)]


def test_rate_limit_holds_in_every_window_while_workers_are_killed(stage: Stage):
    stage.run(STARTS)
    stage.run("SELECT jobherd.limit('mail', %s, burst => %s)", f"{RATE}/s", BURST)
    fleets = [stage.run_fleet(workers=2, poll="300s") for _ in range(3)]
    jobs = stage.enqueue_many("t:noop", 600, queue="mail", max_attempts=20)
    dice = random.Random(27)
    killed = 0
    until = time.monotonic() + 4 * LIMIT
    while (ended := stage.call("SELECT count(*) FROM jobherd.history")) < len(jobs) or killed < 10:
        assert time.monotonic() < until, stage.census(jobs)
        if len(jobs) - ended < 100 and killed < 10:  # this process is slower than the workers
            jobs += stage.enqueue_many("t:noop", 200, queue="mail", max_attempts=20)
        before = stage.call("SELECT count(*) FROM public.starts")
        stage.wait(
            lambda before=before: (
                stage.call("SELECT count(*) FROM public.starts") >= before + 10
                or stage.call("SELECT count(*) FROM jobherd.history") >= len(jobs)
            ),
            "ten more starts",
        )
        if killed < 20 and (pids := list(dice.choice(fleets).workers().values())):
            os.kill(dice.choice(pids), signal.SIGKILL)
            killed += 1
    times = starts(stage)
    assert len(times) >= len(jobs)
    for window in (0.01, 0.05, 0.25, 1.0, 3.0):
        assert most_in_any_window(times, window) <= BURST + RATE * window, window
    for fleet in fleets:
        assert fleet.stop() == 0


def test_next_token_of_a_rate_limit_wakes_a_worker_without_a_poll(stage: Stage):
    stage.run(STARTS)
    fleet = stage.run_fleet(workers=2, poll="300s")
    stage.run("SELECT jobherd.limit(kind => 't:noop', rate => '5/s', burst => 1)")
    jobs = stage.enqueue_many("t:noop", 6)
    stage.wait_all(jobs, "completed")
    times = sorted(starts(stage))
    assert all(later - earlier >= 0.2 for earlier, later in zip(times, times[1:], strict=False))
    other = stage.enqueue("t:spin")
    stage.wait_state(other, "completed")
    assert fleet.stop() == 0


def test_next_token_of_a_partition_wakes_a_worker(stage: Stage):
    stage.run(STARTS)
    fleet = stage.run_fleet(workers=2, poll="300s")
    stage.run("SELECT jobherd.limit_each_rate('crm', '5/s')")
    jobs = [
        job
        for name in ("acme", "globex", "initech")
        for job in stage.enqueue_many("t:noop", 4, queue="crm", partition=name)
    ]
    stage.wait_all(jobs, "completed")
    found = stage.run("SELECT array_agg(extract(epoch FROM at) ORDER BY at) FROM public.starts GROUP BY lane")
    assert len(found) == 3
    for (times,) in found:
        assert all(later - earlier >= 0.2 for earlier, later in zip(times, times[1:], strict=False))
    assert fleet.stop() == 0


def test_rate_limit_set_by_hand_overrides_the_rate_that_a_handler_declares(stage: Stage, gate: Gate):
    stage.run(STARTS)
    fleet = stage.run_fleet(workers=2, handlers=stage.write("own.py", OWN), poll="300s")
    jobs = [stage.enqueue("own:api", f'{{"label": "{label}"}}') for label in ("a", "b", "c")]
    for label in ("a", "b", "c"):
        gate.wait_arrival(label).open()
    stage.wait_all(jobs, "completed")
    assert max(starts(stage)) - min(starts(stage)) >= 0.3
    assert stage.run("SELECT name, rate, burst, rated_by FROM jobherd.limits") == [("own:api", "3/s", 2, "@handler")]
    stage.run("SELECT jobherd.limit(kind => 'own:api', rate => '1/d')")
    last = stage.enqueue("own:api", '{"label": "never"}')
    stage.wait(lambda: stage.call("SELECT count(*) FROM jobherd.parked") == 1, "the last job to be parked")
    assert stage.state(last) == "ready"
    stage.run("SELECT jobherd.limit(kind => 'own:api')")
    gate.wait_arrival("never").open()
    stage.wait_state(last, "completed")
    assert fleet.stop() == 0
