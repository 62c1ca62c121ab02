"""Real supervisors over a network that breaks, goes silent, is slow, or rejects statements.

Every job ends once, and the same processes continue.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import threading
from typing import TYPE_CHECKING

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from jobherd import Client
from tests.support.network import Network
from tests.system.test_metrics import fetch, scrape

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.fleet import Fleet, Stage
    from tests.support.gate import Gate

PARENT, WORKERS = "jobherd:supervisor:*", "jobherd:worker:*"
LONG = 90.0
"""Seconds to wait for an event that follows a time limit of Jobherd."""
SOON = 2
"""Seconds for such a limit, in a test of what follows it."""


@pytest.fixture
def network(stage: Stage) -> Iterator[Network]:
    with Network(stage.dsn) as network:
        yield network


def by_parent(words: str):
    return lambda event: event.get("process") == "supervisor" and words in event.get("message", "")


def end(fleet: Fleet, stage: Stage) -> None:
    """Check that the supervisor still runs jobs, has logged no traceback, and exits with 0."""
    stage.wait_state(stage.enqueue("t:noop"), "completed", limit=LONG)
    assert stage.completed_twice() == []
    assert not fleet.said(lambda event: "traceback" in event or "raw" in event)
    assert fleet.stop() == 0


def test_repeated_reset_of_every_connection_costs_no_job_and_no_process(stage: Stage, network: Network, gate: Gate):
    fleet = stage.run_fleet(dsn=network.dsn, workers=2, claim_size=3, db_retry_initial="0.1s")
    before = fleet.workers() | {-1: fleet.maintenance()}
    long = stage.enqueue("t:gate", '{"label": "long"}')
    arrival = gate.wait_arrival("long")
    jobs = [
        row[0]
        for row in stage.run("""SELECT jobherd.enqueue('t:spin', '{"seconds": 0.002}') FROM generate_series(1, 200)""")
    ]
    done = "SELECT count(*) FROM t_trans WHERE place = 'history' AND op = 'INSERT'"
    for number in range(1, 5):
        stage.wait(lambda: stage.call(done) >= number * 40, "some jobs to be done", limit=LONG)  # noqa: B023
        network.cut()
    stage.wait_all(jobs, "completed", limit=LONG)
    arrival.open("survived")
    assert stage.wait_state(long, "completed", limit=LONG)["attempts"] == 1
    assert fleet.workers() | {-1: fleet.maintenance()} == before, "the same processes"
    end(fleet, stage)


def test_silent_listen_session_is_replaced_and_the_poll_finds_jobs_meanwhile(stage: Stage, network: Network):
    fleet = stage.run_fleet(dsn=network.dsn, workers=1, poll="1s", lease="6s")
    opened = network.count("opened", PARENT)
    mark = len(fleet.log)
    assert network.stall(PARENT) >= 1
    stage.wait_state(stage.enqueue("t:noop"), "completed", limit=LONG)
    fleet.wait_log(by_parent("the session does not receive its own notifications"), after=mark, limit=LONG)
    fleet.wait_log(by_parent("the database is there"), after=mark, limit=LONG)
    network.wait("opened", PARENT, more_than=opened)
    end(fleet, stage)


BEATS = 4
"""Renewals after which the supervisor would have noticed a missing echo.

A renewal takes place every 2 s, and an echo may take 6 s.
"""


def test_supervisor_polls_while_listen_is_rejected_and_listens_once_it_is_accepted(stage: Stage, network: Network):
    network.refuse(PARENT, "LISTEN jobherd_jobs")
    dead = stage.call(
        "INSERT INTO jobherd.supervisors (host, machine, pid, pid_started, version, lease_until)"
        " VALUES ('gone', 'gone', 1, 1, '0', clock_timestamp() - interval '1 minute') RETURNING id"
    )
    settings = {"poll": "1s", "lease": "6s", "http": "127.0.0.1:0"}
    fleet = stage.start(dsn=network.dsn, workers=1, db_retry_max_attempts=2, **settings)
    address = fleet.wait_log("metrics and health on")["message"].split(" on ")[1]
    stage.wait(lambda: fetch(address, "/readyz")[0] == 200, lambda: f"/readyz: {fetch(address, '/readyz')}")
    beats: set[object] = set()
    stage.wait(
        lambda: beats.update(stage.run("SELECT max(beat_at) FROM jobherd.supervisors")) or len(beats) >= BEATS,
        "several renewals",
    )
    stage.wait_state(stage.enqueue("t:noop"), "completed")
    assert scrape(address)["jobherd_listening"][()] == 0
    network.wait("refused", PARENT, more_than=1)
    assert network.count("opened", PARENT) == 1, "the same session"
    stage.wait(
        lambda: not stage.run("SELECT id FROM jobherd.supervisors WHERE id = %s", dead),
        "a reclaim without LISTEN, one lease after the start",
    )
    assert len(fleet.said("rejects LISTEN")) == 1
    assert not fleet.said("rejected a statement")
    network.heal()
    fleet.wait_log("the server accepts LISTEN again")
    stage.wait(lambda: scrape(address)["jobherd_listening"][()] == 1, "the supervisor to listen again")
    assert len(network.names()) > 1
    assert network.count("opened", PARENT) == 1
    assert len(fleet.said("rejects LISTEN")) == 1
    end(fleet, stage)


def test_network_silent_for_less_than_the_lease_repeats_no_job(stage: Stage, network: Network, gate: Gate):
    fleet = stage.run_fleet(dsn=network.dsn, workers=2, lease="10m", db_retry_initial="0.1s", patience=SOON)
    before = fleet.workers()
    job = stage.enqueue("t:gate", '{"label": "a"}')
    arrival = gate.wait_arrival("a")
    network.blackhole()
    arrival.open("meanwhile")
    fleet.wait_log(lambda event: "no message from the server" in event.get("message", ""), limit=LONG)
    network.heal()
    row = stage.wait_state(job, "completed", limit=LONG)
    assert (row["result"], row["attempts"], stage.runs(job)) == ("meanwhile", 1, 1)
    assert fleet.workers() == before
    end(fleet, stage)


def test_network_silent_past_the_lease_moves_the_job_and_its_late_outcome_is_rejected(
    stage: Stage, network: Network, gate: Gate
):
    cut_off = stage.run_fleet(dsn=network.dsn, workers=1, lease="3s", db_retry_initial="0.1s", patience=SOON)
    job = stage.enqueue("t:gate", '{"label": "a"}')
    first = gate.wait_arrival("a")
    network.blackhole()
    other = stage.run_fleet(workers=1, lease="6s")
    second = gate.wait_arrival("a", 60)
    assert second.pid in other.workers().values()
    first.open("late")
    cut_off.wait_log(lambda event: "no message from the server" in event.get("message", ""), limit=LONG)
    mark = len(cut_off.log)
    network.heal()
    cut_off.wait_log("the lease was lost", limit=LONG)
    cut_off.wait_log("registered as supervisor", after=mark, limit=LONG)
    second.open("in time")
    row = stage.wait_state(job, "completed", limit=LONG)
    assert (row["result"], row["crashes"]) == ("in time", 0)
    assert other.stop() == 0
    end(cut_off, stage)


def test_slow_network_lets_no_lease_expire(stage: Stage, network: Network):
    network.slow(latency=0.05, bandwidth=50_000)
    fleet = stage.run_fleet(dsn=network.dsn, workers=2, lease="60s")
    network.slow(latency=0.002, crumbs=True)
    jobs = [stage.enqueue("t:noop") for _ in range(5)]
    stage.wait_all(jobs, "completed", limit=LONG)
    assert stage.run("SELECT max(attempts) FROM jobherd.history") == [(1,)]
    end(fleet, stage)


def test_job_is_enqueued_once_when_its_producer_is_cut_off_after_the_commit(stage: Stage, network: Network):
    with Client(network.dsn) as client:
        network.arm("*", "t:noop", where="answered")
        with pytest.raises(psycopg.OperationalError):
            client.enqueue("t:noop", {})
        network.wait_hit()
    assert stage.run("SELECT count(*) FROM jobherd.jobs") == [(1,)]


def lose(network: Network, what: str) -> None:
    """Lose the answer to the supervisor's next such statement after its commit, and the session with it."""
    network.arm(PARENT, what, where="answered")


def test_nothing_is_done_twice_when_the_supervisor_loses_an_answer_after_the_commit(
    stage: Stage, network: Network, gate: Gate
):
    """The poll is 5 minutes away, and a lost answer wakes no worker.

    Requeued jobs are found nevertheless.
    """
    settings = {
        "lease": "6s",
        "poll": "5m",
        "claim_size": 3,
        "claim_window": "0",
        "queues": "default",
        "db_retry_initial": "0.1s",
    }
    fleet = stage.run_fleet(dsn=network.dsn, workers=1, **settings)
    (us,) = stage.run("SELECT id FROM jobherd.supervisors")
    hits = 0

    dead = stage.supervisor()
    child, taken = dead.child(), stage.enqueue("t:noop", queue="elsewhere")
    (claim,) = child.claim(1, ["elsewhere"])
    network.blackhole(PARENT)  # so that the next check for expired leases is the one that finds this supervisor
    stage.run(
        "UPDATE jobherd.supervisors SET lease_until = clock_timestamp() - interval '1 minute' WHERE id = %s", dead.id
    )
    lose(network, "removed AS")
    network.heal()
    network.wait_hit()
    assert stage.wait_state(taken, "retrying")["attempts"] == 1
    assert [one["outcome"] for one in stage.attempts(taken)] == ["lost"]
    assert child.settle(claim.token, [claim.id], "ok") == []

    for word in ("recover/terminate_child_sessions", "settle/settle_jobs", "recover/requeue_child"):
        hits += 1
        labels = "CASE n WHEN 1 THEN json_build_object('label', %s::text)::jsonb ELSE '{}' END"
        jobs = [
            row[0]
            for row in stage.run(f"SELECT jobherd.enqueue('b:maybe', {labels}) FROM generate_series(1, 3) AS n", word)
        ]
        arrival = gate.wait_arrival(word)
        assert stage.states(jobs) == ["running"] * 3
        lose(network, word)
        os.kill(arrival.pid, signal.SIGKILL)
        gate.wait_arrival(word).open("again")
        network.wait_hit(more_than=hits)
        rows = [stage.wait_state(job, "completed", limit=LONG) for job in jobs]
        assert [(row["result"], row["attempts"], row["crashes"]) for row in rows] == [
            ("again", 2, 1),
            ("", 1, 0),
            ("", 1, 0),
        ]
        assert [one["outcome"] for one in rows[0]["history"]] == ["retry", "completed"]
        assert [stage.runs(job) for job in jobs] == [2, 2, 2]

    running = stage.enqueue("t:gate", '{"label": "running"}')
    arrival = gate.wait_arrival("running")
    lose(network, "@renewal:")
    network.wait_hit(more_than=hits + 1)
    stage.wait(lambda: network.names() and fleet.said("the database is there")[-1], "the supervisor to reconnect")
    arrival.open("undisturbed")
    assert stage.wait_state(running, "completed")["attempts"] == 1
    assert stage.run("SELECT id FROM jobherd.supervisors") == [us]
    assert stage.completed_twice() == []
    lose(network, "DELETE FROM jobherd.supervisors")
    assert fleet.stop() == 0
    assert stage.run("SELECT id FROM jobherd.supervisors") == []


@contextlib.contextmanager
def vanished() -> Iterator[int]:
    """Yield a port of this host that answers nothing: its queue of connections is full."""
    with socket.socket() as server, contextlib.ExitStack() as stack:
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        _fill(server, stack)
        yield server.getsockname()[1]


def _fill(server: socket.socket, stack: contextlib.ExitStack) -> None:
    for _ in range(8):
        client = stack.enter_context(socket.socket())
        client.setblocking(False)
        client.connect_ex(server.getsockname())


def test_supervisor_reaches_the_second_host_when_the_first_does_not_answer(stage: Stage, network: Network):
    with vanished() as port:
        both = make_conninfo(network.dsn, host="127.0.0.1,127.0.0.1", port=f"{port},{network.port}")
        fleet = stage.start(dsn=both, workers=1, patience=SOON)
        fleet.wait_ready(1, limit=LONG)
        end(fleet, stage)


@contextlib.contextmanager
def vanishing(port: int) -> Iterator[int]:
    """Yield a port of this host that passes one connection on to another port, and answers no later one."""
    with socket.socket() as server, contextlib.ExitStack() as stack:
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        threading.Thread(target=_relay_one, args=(server, port, stack), daemon=True).start()
        yield server.getsockname()[1]


def _relay_one(server: socket.socket, port: int, stack: contextlib.ExitStack) -> None:
    accepted, _ = server.accept()
    passed_on = socket.create_connection(("127.0.0.1", port))
    with accepted, passed_on, contextlib.suppress(ConnectionError):
        _fill(server, stack)
        other = {accepted: passed_on, passed_on: accepted}
        while True:
            for end in select.select(other, [], [])[0]:
                if not (data := end.recv(65536)):
                    return
                other[end].sendall(data)


def test_supervisor_acts_on_signals_while_the_first_host_does_not_answer(stage: Stage, network: Network):
    """The first host answers only the session that checks the schema, before the loop begins.

    If libpq then blocked the loop, it would do so until the kernel gives up.
    """
    limits = {"connect_timeout": 600, "tcp_user_timeout": 600_000}
    with vanishing(network.port) as port:
        both = make_conninfo(network.dsn, host="127.0.0.1,127.0.0.1", port=f"{port},{network.port}", **limits)
        fleet = stage.start(dsn=both, workers=1)
        fleet.wait_log(" starts")
        # The first report may come before the loop connects. Each later one comes from a later turn of the loop.
        for count in range(1, 5):
            fleet.signal(signal.SIGUSR1)
            fleet.wait_log("1 worker wanted, no database", count=count)
        network.names()  # reads the events
        assert network.count("opened", PARENT) == 0, "the second host is not tried yet"
    fleet.wait_ready(1, limit=LONG)
    end(fleet, stage)


def test_supervisor_exits_on_request_although_the_database_host_does_not_answer(stage: Stage):
    with vanished() as port:
        fleet = stage.start(dsn=make_conninfo(stage.dsn, host="127.0.0.1", port=port, connect_timeout=SOON), workers=1)
        fleet.wait_log("the database does not answer", limit=LONG)
        assert fleet.stop() == 0


HOSTS = ("unshare", "--mount", "/bin/sh", "-c", 'mount --bind "$0" /etc/hosts && exec "$@"')
"""A command that runs in it has its own file of host names."""


def test_every_process_reconnects_when_the_databases_host_name_gets_another_address(stage: Stage, gate: Gate):
    hosts = stage.folder / "hosts"
    hosts.write_text("127.0.0.1 database.invalid\n")
    try:
        done = subprocess.run([*HOSTS, hosts, "true"], capture_output=True, check=False)
    except FileNotFoundError:
        pytest.skip("unshare (util-linux) is not installed")
    if done.returncode:
        pytest.skip(f"no private file of host names can be mounted on this host: {done.stderr.decode()}")
    with Network(stage.dsn) as old, Network(stage.dsn, address="127.0.0.2", port=old.port) as new:
        fleet = stage.run_fleet(
            dsn=old.at("database.invalid"),
            workers=2,
            lease="10m",
            poll="5m",
            db_retry_initial="0.1s",
            within=(*HOSTS, str(hosts)),
        )
        before = fleet.workers() | {-1: fleet.maintenance()}
        job = stage.enqueue("t:gate", '{"label": "a"}')
        arrival = gate.wait_arrival("a")
        mark = len(fleet.log)
        old.close()
        fleet.wait_log("the database is away", after=mark)
        hosts.write_text("127.0.0.2 database.invalid\n")  # in place: this same file is mounted there
        arrival.open("moved")
        row = stage.wait_state(job, "completed", limit=LONG)
        assert (row["result"], row["attempts"]) == ("moved", 1)
        for who in (PARENT, WORKERS, "jobherd:maintenance:*"):
            new.wait("opened", who)
        # idle workers are woken through the new session too: the poll is 5 minutes away
        stage.wait_state(stage.enqueue("t:noop"), "completed", limit=LONG)
        assert fleet.workers() | {-1: fleet.maintenance()} == before, "the same processes"
        end(fleet, stage)


def test_supervisor_with_an_unknown_database_host_waits_until_it_is_stopped(stage: Stage):
    fleet = stage.start(dsn=make_conninfo(stage.dsn, host="no-such-host.invalid"), workers=1, db_retry_initial="0.1s")
    fleet.wait_log("the database does not answer", limit=LONG)
    assert fleet.stop() == 0
