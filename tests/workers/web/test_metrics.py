"""Tests that a scrape equals status boards and supervisor report. Series are bounded, counters never decrease."""

from __future__ import annotations

import asyncio
import os
import random
import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import psycopg
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics

from jobherd.workers.ipc.control_block import ControlBlock
from jobherd.workers.ipc.counters import BUCKETS, MAX_ERRORS, MAX_KINDS, OUTCOMES, Policy
from jobherd.workers.ipc.current_work import CurrentWork, Phase
from jobherd.workers.ipc.status_board import StatusBoard
from jobherd.workers.web import exposition, metrics, queue_depth, status_report, supervisor_metrics
from jobherd.workers.web.cpu_budget import CpuBudget
from jobherd.workers.web.http_message import Request
from tests.support.patience import LIMIT
from tests.workers.web.support import Scrape, Web

PROCESSED = "jobherd_worker_jobs_processed_total"
DURATION = "jobherd_worker_job_duration_seconds"
IN_FLIGHT = "jobherd_worker_in_flight"


def policies(*names: str) -> list[Policy]:
    return [Policy(name) for name in names]


def child_status(slot: int, kind: str = "worker", state: str = "ready", pid: int = 4242, **more) -> dict[str, object]:
    return {
        "slot": slot,
        "kind": kind,
        "state": state,
        "pid": pid,
        "incarnation": slot + 1,
        "since": 0.0,
        "rss": None,
        **more,
    }


# -- jobs


@pytest.mark.promise("A40", "A41")
def test_scrape_equals_the_numbers_on_the_status_boards():
    """Compare hundreds of attempts of several kinds, in slots whose tables of kinds differ, with plain sums."""
    chance = random.Random(7)
    outcomes, timeouts, recycled, durations = Counter(), Counter(), Counter(), {}
    with Web() as child:
        for slot, names in enumerate(
            (["mail:receipt", "image:thumbnail"], ["image:thumbnail", "mail:receipt", "forge:push"], ["forge:push"])
        ):
            board = child.boards[slot]
            numbers = board.tally.declare(policies(*names))
            for _ in range(300):
                name, outcome, timeout = chance.choice(names), chance.choice(OUTCOMES), chance.random() < 0.1
                seconds = chance.choice([*BUCKETS, 0.0, chance.expovariate(1), 1000.0])
                board.tally.count(numbers[name], OUTCOMES.index(outcome), seconds, timeout=timeout)
                outcomes[name, outcome] += 1
                timeouts[name] += timeout
                if chance.random() < 0.05:
                    recycled[name] += 1
                    board.tally.count_recycled(numbers[name])
                durations.setdefault(name, []).append(seconds)
            board.tally.count_unrun(
                numbers["forge:push"] if "forge:push" in numbers else numbers["mail:receipt"], OUTCOMES.index("expired")
            )
            outcomes["forge:push" if "forge:push" in numbers else "mail:receipt", "expired"] += 1
        scrape = child.scrape()
    names = {"mail:receipt", "image:thumbnail", "forge:push"}
    assert scrape.all(PROCESSED) == {(name, outcome): outcomes[name, outcome] for name in names for outcome in OUTCOMES}
    assert scrape.all("jobherd_worker_timeouts_total") == {(name,): timeouts[name] for name in names}
    assert scrape.all("jobherd_worker_recycled_total") == {(name,): recycled[name] for name in names}
    for name, ran in durations.items():
        assert scrape.of(f"{DURATION}_count", kind=name) == len(ran)
        assert scrape.of(f"{DURATION}_sum", kind=name) == pytest.approx(sum(ran))
        for bound in BUCKETS:
            assert scrape.of(f"{DURATION}_bucket", kind=name, le=str(bound)) == sum(one <= bound for one in ran)
        assert scrape.of(f"{DURATION}_bucket", kind=name, le="+Inf") == len(ran)


@pytest.mark.promise("A40")
def test_every_outcome_of_a_kind_has_a_series_from_the_start():
    """A rate needs the 0 before the first 1."""
    with Web() as child:
        child.boards[0].tally.declare(policies("mail:receipt"))
        scrape = child.scrape()
    assert scrape.all(PROCESSED, kind="mail:receipt") == dict.fromkeys(((outcome,) for outcome in OUTCOMES), 0)
    assert {"ok", "retry", "failed", "poison"} <= set(OUTCOMES)
    assert scrape.of(f"{DURATION}_count", kind="mail:receipt") == 0
    assert scrape.of(IN_FLIGHT, kind="mail:receipt") == 0


def test_starts_waits_and_claims_are_sums_over_the_slots():
    with Web() as child:
        for slot, board in enumerate(child.boards[:3]):
            for number in range(slot + 1):
                board.count_started(1)
                board.tally.count_wait(0.004 * (number + 1))
                board.count_claim(empty=False)
                board.count_claim(empty=True)
        scrape = child.scrape()
    assert scrape.of("jobherd_worker_jobs_started_total") == 6
    assert scrape.of("jobherd_worker_claims_total") == 12
    assert scrape.of("jobherd_worker_claims_empty_total") == 6
    assert scrape.of("jobherd_worker_start_latency_seconds_count") == 6
    assert scrape.of("jobherd_worker_start_latency_seconds_sum") == pytest.approx(0.004 * (1 + 3 + 6))
    assert scrape.of("jobherd_worker_start_latency_seconds_bucket", le="0.005") == 3
    assert scrape.of("jobherd_worker_start_latency_seconds_bucket", le="0.01") == 5


@pytest.mark.promise("A42")
def test_in_flight_counts_running_handlers_of_living_children():
    with Web() as child:
        number = {}
        for slot in range(3):
            number = child.boards[slot].tally.declare(policies("a", "b"))
        child.boards[0].say(CurrentWork(Phase.RUNNING, token=1, job=11, kind=number["a"]))
        child.boards[1].say(CurrentWork(Phase.RUNNING, token=2, job=12, kind=number["b"]))
        child.boards[2].say(CurrentWork(Phase.RUNNING, token=3, job=13, kind=number["b"]))
        child.control.publish({"at": 100.0, "children": [child_status(slot) for slot in range(3)]})
        assert child.scrape().all(IN_FLIGHT) == {("a",): 1, ("b",): 2}
        child.boards[0].say(CurrentWork(Phase.SETTLING, token=1, job=11, kind=number["a"]))
        # the third was killed while it ran b
        child.control.publish({"at": 101.0, "children": [child_status(0), child_status(1)]})
        assert child.scrape().all(IN_FLIGHT) == {("a",): 0, ("b",): 1}
        child.boards[2].say(
            CurrentWork(Phase.RUNNING, token=4, job=14, kind=number["a"], started=101.5)
        )  # its successor runs before the supervisor reports it
        assert child.scrape().all(IN_FLIGHT) == {("a",): 1, ("b",): 1}


def test_kind_without_room_on_the_status_board_is_counted_as_other():
    with Web() as child:
        board = child.boards[0]
        numbers = board.tally.declare(policies(*(f"kind:{number}" for number in range(MAX_KINDS + 50))))
        assert child.scrape().of(PROCESSED, kind="(other)", outcome="ok") is None, "no job needs this label yet"
        board.tally.count(numbers.get("kind:300", 0), 0, 0.1)
        assert child.scrape().of(PROCESSED, kind="(other)", outcome="ok") == 1


def test_number_of_kind_labels_is_bounded():
    """The table of each slot is full, each with other kinds, as after many changes of code.

    No count is lost, and the number of labels stays small.
    """
    with Web() as child:
        for slot, board in enumerate(child.boards):
            numbers = board.tally.declare(policies(*(f"slot{slot}:{number}" for number in range(MAX_KINDS))))
            for number in numbers.values():
                board.tally.count(number, 0, 0.1)
        first, second = child.scrape(), child.scrape()
    for scrape in (first, second):
        counted = scrape.all(PROCESSED, outcome="ok")
        assert len(counted) <= MAX_KINDS + 1
        assert sum(counted.values()) == len(child.boards) * MAX_KINDS
    assert first.all(PROCESSED) == second.all(PROCESSED)


def test_special_characters_in_kind_names_are_escaped():
    name = 'a"b\\c\nd{e="f"} \u202e é'
    with Web() as child:
        child.boards[0].tally.declare(policies(name))
        text = child.scrape().text
        assert (name,) in child.scrape().all(IN_FLIGHT)
    assert all(line.startswith(("#", "jobherd_")) for line in text.splitlines())


# -- counters do not decrease


def test_partially_written_number_does_not_lower_a_counter():
    with Web() as child:
        board = child.boards[0]
        numbers = board.tally.declare(policies("a"))
        for _ in range(256):
            board.tally.count(numbers["a"], 0, 0.1)
        assert child.scrape().of(PROCESSED, kind="a", outcome="ok") == 256
        board.tally._counts[numbers["a"]][0] = 0  # like a partially written number
        board._words[1] = 0
        assert child.scrape().of(PROCESSED, kind="a", outcome="ok") == 256
        board.tally._counts[numbers["a"]][0] = 257
        assert child.scrape().of(PROCESSED, kind="a", outcome="ok") == 257


def test_counts_continue_after_the_death_of_a_worker():
    with Web() as child:
        board = child.boards[0]
        board.tally.count(board.tally.declare(policies("a"))["a"], 0, 0.1)
        board.clear()  # the supervisor does so before it forks the next worker
        successor = board.tally.declare(policies("b", "a"))
        board.tally.count(successor["a"], 0, 0.1)
        assert child.scrape().all(PROCESSED, outcome="ok") == {("a",): 2, ("b",): 0}


def test_unreadable_supervisor_report_keeps_the_last_readable_one():
    with Web() as child:
        child.control.publish({"respawns": 3, "deaths": {"crash": 2}})
        assert child.scrape().of("jobherd_child_respawns_total") == 3
        child.control._facts.write(b'{"respawns": 4, "dea')
        scrape = child.scrape()
        assert (scrape.of("jobherd_child_respawns_total"), scrape.of("jobherd_child_deaths_total", cause="crash")) == (
            3,
            2,
        )


def test_overwritten_status_board_does_not_hide_the_others():
    with Web() as child:
        for board in child.boards[:2]:
            board.tally.count(board.tally.declare(policies("a"))["a"], 0, 0.1)
            board.say(CurrentWork(Phase.RUNNING, job=1, kind=1))
        assert child.scrape().of(PROCESSED, kind="a", outcome="ok") == 2
        child.boards[0].tally._used[0] = 2**60  # the number of kinds
        child.boards[0]._now.write(b"\xff" * 53)
        scrape = child.scrape()
        assert scrape.of(PROCESSED, kind="a", outcome="ok") == 2
        assert scrape.of(IN_FLIGHT, kind="a") == 1


# -- the supervisor


def test_supervisor_report_is_shown():
    with Web() as child:
        now = time.monotonic()
        child.control.loop_at = now - 2
        child.control.lease_deadline = now + 12
        child.control.publish(
            {
                "supervisor": 5,
                "host": "h",
                "pid": 31337,
                "started": now - 100,
                "listening": True,
                "database": True,
                "draining": False,
                "ready_ever": True,
                "children": [child_status(0)],
                "deaths": {"signal": 3, "oom": 1},
                "respawns": 4,
                "reclaimed": 5,
                "released": 6,
                "notifications": 7,
                "wakes": 8,
                "renewals": 9,
                "dropped": 10,
                "late": {"0.05": 2, "+Inf": 1},
                "late_seconds": 0.75,
                "version": "1.2.3",
            }
        )
        scrape = child.scrape()
        since = time.monotonic() - now
        assert scrape.all("jobherd_child_deaths_total") == {("signal",): 3, ("oom",): 1}
        assert scrape.of("jobherd_child_respawns_total") == 4
        assert scrape.of("jobherd_jobs_reclaimed_total") == 5
        assert scrape.of("jobherd_jobs_released_total") == 6
        assert scrape.of("jobherd_notifications_total") == 7
        assert scrape.of("jobherd_wakes_total") == 8
        assert scrape.of("jobherd_lease_renewals_total") == 9
        assert scrape.of("jobherd_log_lines_dropped_total") == 10
        assert [scrape.of("jobherd_loop_late_seconds_bucket", le=le) for le in ("0.05", "+Inf")] == [2, 3]
        assert scrape.of("jobherd_loop_late_seconds_sum") == 0.75
        assert scrape.of("jobherd_listening") == scrape.of("jobherd_database_up") == 1
        assert scrape.of("jobherd_draining") == 0
        assert scrape.of("jobherd_build_info", version="1.2.3") == 1
        assert 12 - since <= scrape.of("jobherd_lease_seconds") <= 12
        assert 2 <= scrape.of("jobherd_loop_age_seconds") <= 2 + since
        assert scrape.of("jobherd_start_time_seconds") == pytest.approx(time.time() - 100, abs=since + 1)
        # Whole numbers only: a time or a size may contain the same digits.
        assert not re.search(r"(?<![\d.])(31337|4242)(?!\d|\.\d*[1-9])", scrape.text), "the scrape shows a process id"
        child.control.draining = True
        child.control.lease_deadline = now - 3
        again = child.scrape()
        assert again.of("jobherd_draining") == 1
        assert again.of("jobherd_lease_seconds") < -2
        assert again.of("jobherd_start_time_seconds") == scrape.of("jobherd_start_time_seconds")


def errors_of(child):
    family = child.scrape().families["jobherd_worker_errors"]
    return {
        (sample.labels["kind"], sample.labels["code"]): sample.value
        for sample in family.samples
        if sample.name.endswith("_total")
    }


@pytest.mark.promise("C34", "C35", "C36", "C37", "C38")
def test_error_codes_from_workers_and_the_supervisor_are_counted_by_kind():
    with Web() as child:
        board = child.boards[0]
        number = board.tally.declare(policies("a"))["a"]
        for code in ("NO_PAPER", "NO_PAPER", "JOB_TIMEOUT", "ünsäglich", "x" * 200):
            board.tally.count_error(number, code)
        child.control.publish({"errors": {"a": {"WORKER_CRASHED": 2, "JOB_TIMEOUT": 1}}})
        errors = errors_of(child)
    assert errors.pop(("(other)", "(other)")) == 1
    assert errors.pop(("a", "(other)")) == 1
    assert errors == {("a", "NO_PAPER"): 2, ("a", "JOB_TIMEOUT"): 2, ("a", "WORKER_CRASHED"): 2}


def test_number_of_error_codes_is_bounded_and_their_counts_outlive_the_worker():
    with Web() as child:
        board = child.boards[0]
        number = board.tally.declare(policies("a"))["a"]
        for code in range(3 * MAX_ERRORS):
            board.tally.count_error(number, f"CODE_{code}")
        successor = StatusBoard.__new__(StatusBoard)
        successor.fd = board.fd
        successor._open()
        successor.tally.declare(policies("a"))
        successor.tally.count_error(number, "CODE_7")
        successor.tally.count_error(number, "CODE_X")
        errors = errors_of(child)
    assert len(errors) == MAX_ERRORS
    assert errors["a", "CODE_7"] == 2
    assert errors["(other)", "(other)"] == 2 * MAX_ERRORS + 2


def test_outcomes_that_the_supervisor_recorded_are_included():
    with Web() as child:
        board = child.boards[0]
        board.tally.count(board.tally.declare(policies("a"))["a"], OUTCOMES.index("retry"), 0.1)
        child.control.publish({"settled": {"a": {"retry": 2, "failed": 1, "nonsense": 9}}, "timeouts": {"a": 1}})
        scrape = child.scrape()
        assert scrape.all(PROCESSED, kind="a") == {
            (outcome,): {"retry": 3, "failed": 1}.get(outcome, 0) for outcome in OUTCOMES
        }
        assert scrape.of("jobherd_worker_timeouts_total", kind="a") == 1


def test_child_processes_are_counted_by_state():
    with Web(slots=8) as child:
        for slot, phase in enumerate((Phase.IDLE, Phase.CLAIMING, Phase.RUNNING, Phase.RUNNING, Phase.IDLE)):
            child.boards[slot].say(CurrentWork(phase))
            child.boards[slot].set_database(connected=slot != 1)
        states = ["ready", "ready", "ready", "ready", "leaving", "booting", "empty"]
        children = [
            child_status(slot, state=state, pid=0 if state == "empty" else 4242, rss=100)
            for slot, state in enumerate(states)
        ]
        child.control.publish({"children": [*children, child_status(7, kind="web")]})
        scrape = child.scrape()
    workers = {"booting": 1, "idle": 1, "claiming": 1, "running": 2, "settling": 0, "leaving": 1}
    assert scrape.all("jobherd_children", kind="worker") == {(state,): number for state, number in workers.items()}
    assert scrape.of("jobherd_children", kind="web", state="idle") == 1
    assert scrape.of("jobherd_children_resident_bytes", kind="worker") == 600
    assert scrape.of("jobherd_children_resident_bytes", kind="web") is None, "a size that was not measured is not 0"
    assert scrape.of("jobherd_children_connected", kind="worker") == 4


def test_number_of_death_causes_is_bounded():
    with Web() as child:
        child.control.publish({"deaths": {f"cause {number}": 1 for number in range(500)}})
        assert child.scrape().all("jobherd_child_deaths_total")["(other)",] == 500 - supervisor_metrics.CAUSES


# -- formats


@pytest.mark.parametrize("version", ["1.0.0", "0.0.1"])
def test_openmetrics_is_used_if_the_client_accepts_version_1_0_0(version):
    with Web() as child:
        board = child.boards[0]
        board.tally.count(board.tally.declare(policies("a"))["a"], 0, 0.1)
        child.control.publish({"deaths": {"crash": 1}, "children": [child_status(0)], "version": "1", "started": 1.0})
        _, headers, text = child.ask(
            "/metrics", Accept=f"application/openmetrics-text;version={version},text/plain;version=0.0.4;q=0.5"
        )
    if version == "1.0.0":
        assert headers["content-type"].startswith("application/openmetrics-text")
        # the strict parser raises if the text is invalid
        families = {family.name: family for family in parse_openmetrics(text)}
        assert families["jobherd_worker_jobs_processed"].type == "counter"
    else:
        assert headers["content-type"].startswith("text/plain")


@pytest.mark.parametrize(
    "accept",
    [
        "",
        "*/*",
        "text/html",
        "application/openmetrics-text;version=evil",
        "a" * 5000,
        ";;;,,,",
        "application/openmetrics-text;q=0",
    ],
)
def test_other_accept_headers_get_the_plain_text_format(accept):
    with Web() as child:
        status, headers, text = child.ask("/metrics", Accept=accept)
    assert status == 200
    assert headers["content-type"].startswith("text/plain; version=0.0.4")
    assert Scrape(text).families


def test_multiprocess_mode_of_prometheus_client_is_never_used(tmp_path: Path):
    """Its environment variable may be set for other programs."""
    program = (
        "from tests.workers.web.support import Web\n"
        "with Web() as child:\n"
        "    child.boards[0].tally.declare([])\n"
        "    assert child.ask('/metrics')[0] == 200\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        cwd=Path(__file__).parents[3],
        env={**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)},
        timeout=LIMIT,
        check=False,
        capture_output=True,
    )
    assert done.returncode == 0, done.stderr.decode()
    assert list(tmp_path.iterdir()) == []


def test_web_process_short_of_cpu_budget_reuses_its_last_response_for_a_second():
    class Purse(CpuBudget):
        strained = False

        def is_strained(self) -> bool:
            return self.strained

    async def scrapes():
        clock, purse, board = [10.0], Purse(), StatusBoard("test")
        measurer = queue_depth.Measurer("host=/nowhere")
        collector = metrics.JobherdCollector((board,), status_report.StatusReader(ControlBlock()), measurer)
        page = exposition.Exposition(collector, (measurer,), purse, clock=lambda: clock[0])

        async def started():
            return Scrape((await page.answer(Request("GET", "/metrics"))).body.decode()).of(
                "jobherd_worker_jobs_started_total"
            )

        assert await started() == 0
        board.count_started(1)
        purse.strained = True
        assert await started() == 0
        clock[0] += exposition.REUSED + 0.1
        assert await started() == 1, "a response is reused only for a short time"
        board.count_started(1)
        purse.strained = False
        assert await started() == 2
        await measurer.close()

    asyncio.run(scrapes())


def test_gateway_streams_slots_and_sessions_are_shown():
    with Web() as child:
        child.control.publish({"started": 1.0, "children": [{"slot": 0, "kind": "worker", "state": "ready", "pid": 1}]})
        assert not child.scrape().families["jobherd_gateway_streams"].samples, "there is no gateway"
        child.control.publish(
            {"started": 1.0, "children": [{"slot": 1, "kind": "gateway", "state": "ready", "pid": 2}]}
        )
        child.boards[1].say_streams("dispatch", 3)
        child.boards[1].say_wanted(40)
        child.boards[1].set_held(7)
        families = child.scrape().families
        streams = {sample.labels["service"]: sample.value for sample in families["jobherd_gateway_streams"].samples}
        assert streams == {"work": 0, "dispatch": 3}
        slots = {sample.labels["state"]: sample.value for sample in families["jobherd_gateway_slots"].samples}
        assert slots == {"waiting": 40, "running": 7}
        child.boards[1].remote.count("sessions", "opened")
        child.boards[1].remote.count("sessions", "resumed", 2)
        for tasks in (1, 2, 3):
            child.boards[1].remote.observe("tasks_per_message", tasks)
        child.boards[1].clear()
        families = child.scrape().families
        samples = families["jobherd_gateway_sessions"].samples
        assert {one.labels["event"]: one.value for one in samples} == {"opened": 1, "resumed": 2, "ended": 0}
        found = {
            (one.name, one.labels.get("le")): one.value for one in families["jobherd_gateway_tasks_per_message"].samples
        }
        of = "jobherd_gateway_tasks_per_message"
        assert (found[f"{of}_bucket", "2.0"], found[f"{of}_count", None], found[f"{of}_sum", None]) == (2, 3, 6)


def test_queue_is_served_if_a_supervisor_has_workers_for_it(database, monkeypatch):
    monkeypatch.setattr("jobherd.workers.web.exposition.PATIENCE", 20.0)
    with psycopg.connect(database, autocommit=True) as connection:
        for queue in ("near", "near-too", "far"):
            connection.execute("INSERT INTO jobherd.ready (kind, queue) VALUES ('k', %s)", (queue,))
    with Web(database, served=("near*",)) as child:

        def served() -> dict[str, float]:
            samples = child.scrape().families["jobherd_queue_served"].samples
            return {sample.labels["queue"]: sample.value for sample in samples}

        gateway = {"slot": 1, "kind": "gateway", "state": "ready", "pid": 2}
        child.control.publish({"started": 1.0, "children": [gateway]})
        assert served() == {"near": 0, "near-too": 0, "far": 0}
        worker = {"slot": 0, "kind": "worker", "state": "ready", "pid": 1}
        child.control.publish({"started": 1.0, "children": [gateway, worker]})
        assert served() == {"near": 1, "near-too": 1, "far": 0}
