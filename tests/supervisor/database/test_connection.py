"""The supervisor's database session never blocks and reconnects automatically."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import time
from decimal import Decimal

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from jobherd.handlers._values.outcome import OK, Outcome
from jobherd.supervisor.database.connection import DatabaseConnection, Link
from jobherd.supervisor.database.connector import CONNECT_PATIENCE
from jobherd.supervisor.database.exchange import ANSWER_PATIENCE
from jobherd.supervisor.database.requests import Request
from jobherd.supervisor.process.name_lookup import NameLookup
from jobherd.workers.job.finished import Finished, settlement
from tests.support.patience import LIMIT
from tests.support.postgres import Cluster, quick_place
from tests.support.queue import Queue


class Driver:
    """Calls `step` of a `DatabaseConnection` and records the duration of the longest step."""

    def __init__(self, dsn):
        self.db = DatabaseConnection(dsn, schema="jobherd", application_name="test", retry_initial=0.05, retry_max=1.0)
        self.longest = 0.0

    def step(self, now=None):
        begun = time.monotonic()
        self.db.step(begun if now is None else now)
        self.longest = max(self.longest, time.monotonic() - begun)

    def until(self, condition):
        limit = time.monotonic() + LIMIT
        while True:
            self.step()
            if condition():
                return
            assert time.monotonic() < limit, (self.db.link, self.db.trouble)
            fd = self.db.fileno()
            wait = min(max(self.db.wake_at(0.0) - time.monotonic(), 0), 1.0)
            reading, writing = ([fd], [fd]) if fd >= 0 else ([], [])
            select.select(reading, writing if self.db.events() & 2 else [], [], wait)

    def up(self):
        self.until(lambda: self.db.link is Link.UP)
        return self

    def ask(self, name, **parameters):
        answers = []
        self.db.ask(name, parameters, answers.append)
        self.until(lambda: answers)
        return answers[0]


@pytest.fixture
def driver(database):
    driver = Driver(database)
    yield driver
    driver.db.close()


def test_server_time_is_exact_whatever_extra_float_digits_says(database):
    """With a rounded time, the server's clock seems to stop and then to jump, so a supervisor never reclaims jobs."""
    with Queue(database) as queue:
        queue.run("ALTER DATABASE " + conninfo_to_dict(database)["dbname"] + " SET extra_float_digits = -15")
        driver = Driver(database).up()
        ((_, _, _, told, *_),) = driver.ask("lease/renew_lease", supervisor=queue.supervisor().id, lease=15.0)
        ((own,),) = queue.run("SELECT extract(epoch FROM clock_timestamp())")
        assert 0 <= own - Decimal(told) < 2 * LIMIT
        driver.db.close()


def test_outcomes_with_null_in_lists_are_written_when_array_nulls_is_off(database):
    """Only the job that a dead worker ran has an error and usage: for its finished jobs, the lists have NULL."""
    with Queue(database) as queue:
        queue.run("ALTER DATABASE " + conninfo_to_dict(database)["dbname"] + " SET array_nulls = off")
        driver = Driver(database).up()
        done, died = queue.enqueue_many("a:b", 2)
        child = queue.child()
        token = child.claim(2)[0].token
        failed = Outcome("failed", error="it died", code="WORKER_CRASHED")
        finished = [
            Finished(done, OK, 0.1, time.monotonic()),
            Finished(died, failed, 0.2, time.monotonic(), usage='{"max_rss": 1}', crashed=1),
        ]
        written = settlement(child.id, token, finished, ran_on="here/1", now=time.monotonic())
        assert driver.ask("settle/settle_jobs", **written), "the server rejected the statement"
        assert queue.states([done, died]) == ["completed", "failed"]
        assert queue.run("SELECT error IS NULL, usage IS NULL FROM jobherd.history WHERE id = %s", done) == [
            (True, True)
        ]
        driver.db.close()


def test_requests_are_answered_in_order(driver):
    driver.up()
    assert driver.ask("maintenance/find_next_due") == []
    answers = []
    for number in range(3):
        driver.db.ask(
            "observe/show_job", {"id": number}, lambda answer, number=number: answers.append((number, answer))
        )
    driver.until(lambda: len(answers) == 3)
    assert answers == [(0, []), (1, []), (2, [])]


@pytest.mark.promise("A7")
def test_notification_is_received_at_once_even_while_a_statement_runs(driver, database):
    driver.up()
    assert driver.ask("wake/enable_notify") == [("16", "yes")]
    with psycopg.connect(database, autocommit=True) as other:
        other.execute("SELECT jobherd.enqueue('a:b')")
        driver.until(lambda: "default" in driver.db.notifications)
        driver.db.notifications.clear()
        other.execute("SELECT jobherd.enqueue('a:b')")
        driver.ask("observe/show_job", id=1)
    driver.until(lambda: "default" in driver.db.notifications)


@pytest.mark.promise("A7")
def test_notification_right_after_an_answer_is_received_in_the_same_step(driver, database):
    """libpq reads the socket only up to the end of an answer, and continues after the caller has fetched that answer.

    The socket does not show as readable for data that libpq has already buffered.
    """
    driver.up()
    driver.until(lambda: driver.db.setup.listening and driver.db.is_quiet)
    driver.step()
    driver.db.notifications.clear()
    answers = []
    driver.db.ask("maintenance/find_next_due", {}, answers.append)
    driver.step()
    fd = driver.db.fileno()
    assert select.select([fd], [], [], LIMIT)[0]
    with socket.socket(fileno=os.dup(fd)) as wire, psycopg.connect(database, autocommit=True) as other:
        limit, answer = time.monotonic() + LIMIT, b""
        while not answer.endswith(b"Z\0\0\0\5I"):
            answer = wire.recv(65536, socket.MSG_PEEK)
            assert time.monotonic() < limit
        other.execute("SELECT pg_notify('jobherd_jobs', 'behind')")
        while b"behind" not in wire.recv(65536, socket.MSG_PEEK):
            assert time.monotonic() < limit
    driver.step()
    assert answers == [[]]
    assert driver.db.notifications == ["behind"]


def test_rejected_statement_is_answered_with_none_and_the_session_continues(driver):
    driver.up()
    assert driver.ask("observe/show_job", id="not a number") is None
    assert [event.statement for event in driver.db.happened] == ["observe/show_job"]
    assert driver.ask("maintenance/find_next_due") == []


@pytest.mark.promise("A7", "C26")
def test_terminated_session_reconnects_and_listens_again(driver, database):
    driver.up()
    epoch = driver.db.epoch
    answers = []
    with psycopg.connect(database, autocommit=True) as other:
        other.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'test'")
        driver.db.ask("maintenance/find_next_due", {}, answers.append)
        driver.until(lambda: answers)
        assert answers == [None]
        driver.until(lambda: driver.db.link is Link.UP and driver.db.epoch > epoch)
        assert driver.ask("wake/enable_notify") == [("16", "yes")]
        other.execute("SELECT jobherd.enqueue('a:b')")
        driver.until(lambda: "default" in driver.db.notifications)


def test_read_only_session_is_replaced(driver):
    """A primary that became read-only rejects writes but keeps its sessions.

    Another host of the DSN may be the primary now.
    """
    driver.up()
    epoch, answers = driver.db.epoch, []
    driver.db._exchange.queue.append(Request("steer", b"SET default_transaction_read_only = on", [], answers.append))
    assert (
        driver.ask("lease/register_supervisor", host="h", machine="m", pid=1, pid_started=1, version="0", lease=15.0)
        is None
    )
    driver.until(lambda: driver.db.epoch > epoch and driver.db.link is Link.UP)
    assert driver.ask("lease/register_supervisor", host="h", machine="m", pid=1, pid_started=1, version="0", lease=15.0)


@pytest.mark.promise("C26")
def test_session_reconnects_after_the_server_is_killed_and_started():
    with Cluster(place=quick_place()) as own, own.database() as dsn:
        driver = Driver(dsn).up()
        own.kill()
        driver.until(lambda: driver.db.link is not Link.UP)
        for _ in range(5):
            driver.until(lambda: driver.db.link is Link.AWAY)
        own.start()
        driver.up()
        driver.db.close()
        assert driver.longest < CONNECT_PATIENCE  # a blocking connect would wait for the server


@pytest.fixture
def silent():
    """A server that accepts connections and never sends a byte, like a network that drops every packet."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        yield f"host=127.0.0.1 port={server.getsockname()[1]} user=nobody dbname=x"


def test_connection_to_a_silent_server_times_out_without_blocking(silent):
    driver = Driver(silent)
    now = time.monotonic()
    driver.step(now)
    assert driver.db.link is Link.CONNECTING
    driver.step(now + CONNECT_PATIENCE - 0.1)
    assert driver.db.link is Link.CONNECTING
    driver.step(now + CONNECT_PATIENCE + 0.1)
    assert driver.db.link is Link.AWAY
    assert "no connection" in driver.db.trouble
    assert driver.longest < CONNECT_PATIENCE


def test_statement_without_an_answer_times_out_and_ends_the_session(driver, database):
    driver.up()
    driver.until(lambda: driver.db.is_quiet)  # the first requests of a session would be ahead of this one
    answers = []
    with psycopg.connect(database) as other:
        other.execute("LOCK TABLE jobherd.scheduled IN ACCESS EXCLUSIVE MODE")
        now = time.monotonic()
        driver.db.ask("maintenance/find_next_due", {}, answers.append)
        driver.step(now)
        driver.step(now + ANSWER_PATIENCE + 0.1)
        assert answers == [None]
        assert driver.db.link is Link.AWAY


def test_request_between_two_steps_is_sent_in_the_next_step(driver):
    """Such as a request that a notification in the last step of a turn caused.

    Without this, a canceled job ran for up to 1 s longer.
    """
    driver.until(lambda: driver.db.is_quiet)
    answers = []
    driver.db.ask("maintenance/find_next_due", {}, answers.append)
    assert driver.db.wake_at(0.0) <= time.monotonic()
    driver.step()
    assert driver.db.wake_at(0.0) > time.monotonic(), "the request was sent"
    driver.until(lambda: answers)


def test_session_leaves_name_lookup_to_another_process():
    driver = Driver("host=database.invalid dbname=x")
    driver.step()
    assert driver.db.link is Link.NAMING
    assert driver.db.wants_addresses == ["database.invalid"]
    assert driver.db.fileno() == -1
    driver.db.addressed({}, time.monotonic())
    assert driver.db.link is Link.AWAY
    assert "database.invalid" in driver.db.trouble
    assert driver.db.wake_at(0.0) <= time.monotonic() + 1.0


@pytest.mark.parametrize("host", ["/run/postgresql", "127.0.0.1", "::1", "@abstract", ""])
def test_addresses_and_socket_paths_need_no_name_lookup(host, monkeypatch):
    monkeypatch.delenv("PGHOST", raising=False)
    driver = Driver(f"host='{host}' port=1 dbname=x")
    driver.step()
    assert driver.db.wants_addresses == []


@pytest.mark.parametrize("where", ["dsn", "environment"])
def test_host_names_of_a_service_file_are_not_looked_up_by_libpq(where, tmp_path, monkeypatch, silent):
    """libpq would look up the names of the service file itself, so the supervisor would wait for the name server."""
    port = silent.split()[1].removeprefix("port=")
    file = tmp_path / "services"
    file.write_text(f"[jobs]\nhost=gone.invalid,here.invalid\nport=1,{port}\nuser=x\n\n[other]\nhost=other.invalid\n")
    monkeypatch.setenv("PGSERVICEFILE", str(file))
    monkeypatch.setenv("PGSERVICE", "jobs" if where == "environment" else "other")
    driver = Driver("service=jobs dbname=x" if where == "dsn" else "dbname=x")
    driver.step()
    assert driver.db.wants_addresses == ["gone.invalid", "here.invalid"]
    driver.db.addressed({"here.invalid": ["127.0.0.1"]}, time.monotonic())
    assert driver.db.link is Link.CONNECTING
    assert (peer(driver.db), driver.db._connector.where) == ("127.0.0.1", f"here.invalid port {port}")
    assert os.environ["PGSERVICE"] == ("jobs" if where == "environment" else "other")


def test_missing_service_is_named_in_the_error(tmp_path, monkeypatch):
    monkeypatch.setenv("PGSERVICEFILE", str(tmp_path / "services"))
    (tmp_path / "services").write_text("[jobs]\nhost=here.invalid\n")
    driver = Driver("service=gone dbname=x host=127.0.0.1 port=1")
    driver.step()
    assert driver.db.link is Link.AWAY
    assert 'definition of service "gone" not found' in driver.db.trouble


def test_hosts_without_an_address_are_skipped(silent):
    port = silent.split()[1].removeprefix("port=")
    driver = Driver(f"host=gone.invalid,here.invalid port=1,{port} dbname=x user=x")
    driver.step()
    assert driver.db.wants_addresses == ["gone.invalid", "here.invalid"]
    driver.db.addressed({"here.invalid": ["127.0.0.1"]}, time.monotonic())
    assert driver.db.link is Link.CONNECTING


def peer(db):
    """Return the address that the session's socket is connected to, or None."""
    if db.fileno() < 0:
        return None
    with socket.socket(fileno=os.dup(db.fileno())) as twin, contextlib.suppress(OSError):
        return twin.getpeername()[0]


def test_session_tries_every_address_of_a_host_name(silent):
    """On most hosts `localhost` has two addresses, and the server may listen only on the second."""
    port = conninfo_to_dict(silent)["port"]
    driver = Driver(f"host=db.invalid port={port} dbname=x user=x")
    driver.step()
    driver.db.addressed({"db.invalid": ["127.0.0.7", "127.0.0.1"]}, time.monotonic())  # no server listens on the first
    driver.until(lambda: peer(driver.db) == "127.0.0.1")
    driver.db.close()


@pytest.fixture
def void():
    """An address that does not even accept connections.

    Its queue of pending connections is full, so the kernel drops new ones.
    """
    with socket.socket() as server, contextlib.ExitStack() as stack:
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        for _ in range(8):
            client = stack.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(server.getsockname())
        yield f"host=127.0.0.1 port={server.getsockname()[1]} user=nobody dbname=x"


def test_connection_to_a_vanished_host_times_out_without_blocking(void):
    """If libpq is called before the socket is ready, it blocks until the kernel gives up, here after 10 minutes."""
    driver = Driver(f"{void} tcp_user_timeout=600000")
    for _ in range(10):
        driver.step()
        assert driver.db.link is Link.CONNECTING
    driver.step(time.monotonic() + CONNECT_PATIENCE + 1)
    assert driver.db.link is Link.AWAY
    assert "no connection to 127.0.0.1 port" in driver.db.trouble
    assert driver.longest < 60


@pytest.mark.parametrize("first", ["silent", "void", "refusing"])
def test_second_host_is_tried_when_the_first_cannot_be_reached(cluster, request, first):
    here = conninfo_to_dict(cluster.dsn())
    port = 1 if first == "refusing" else conninfo_to_dict(request.getfixturevalue(first))["port"]
    driver = Driver(make_conninfo(cluster.dsn(), host=f"127.0.0.1,{here['host']}", port=f"{port},{here['port']}"))
    if first != "refusing":
        for _ in range(3):
            driver.step()
        assert driver.db.link is Link.CONNECTING
        driver.step(time.monotonic() + CONNECT_PATIENCE / 2 + 1)  # each of two hosts gets half the time
    driver.up()
    driver.db.close()
    assert driver.longest < 60


def test_connect_timeout_that_is_not_a_number_falls_back_to_the_default(silent):
    driver = Driver(make_conninfo(silent, connect_timeout="²"))
    now = time.monotonic()
    driver.step(now)
    assert driver.db.wake_at(0.0) == now + CONNECT_PATIENCE
    driver.db.close()


def test_each_host_gets_the_connect_timeout_of_the_dsn(silent):
    port = conninfo_to_dict(silent)["port"]
    driver = Driver(make_conninfo(silent, host="127.0.0.1,127.0.0.1", port=f"{port},{port}", connect_timeout=100))
    now = time.monotonic()
    driver.step(now)
    driver.step(now + 99)
    assert driver.db.wake_at(0.0) == now + 100
    driver.step(now + 101)
    assert (driver.db.link, driver.db.wake_at(0.0)) == (Link.CONNECTING, now + 201)
    driver.step(now + 202)
    assert driver.db.link is Link.AWAY


def test_read_only_host_is_skipped(cluster, database):
    with psycopg.connect(database, autocommit=True) as connection, cluster.database() as other:
        name = conninfo_to_dict(other)["dbname"]
        connection.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
        here = conninfo_to_dict(other)
        driver = Driver(make_conninfo(other, host=f"{here['host']},127.0.0.1", port=f"{here['port']},1"))
        driver.until(lambda: driver.db.trouble)
        assert "read-only" in driver.db.trouble
        assert "refused" in driver.db.trouble, "the second host was tried too"


def test_name_lookup_runs_in_a_child_process():
    lookup = NameLookup(["localhost", "no-such-host.invalid"])
    found = None
    while found is None:  # the output and the end of file may arrive separately
        assert select.select([lookup.fd], [], [], LIMIT)[0]
        found = lookup.read()
    assert set(found) == {"localhost"}
    assert "127.0.0.1" in found["localhost"]
    lookup.close()
    os.waitpid(lookup.pid, 0)


def test_request_without_a_session_is_answered_with_none(silent):
    driver = Driver("host=database.invalid dbname=x")
    answers = []
    driver.step()
    driver.db.addressed({}, time.monotonic())
    driver.db.ask("maintenance/find_next_due", {}, answers.append)
    driver.db.step(0.0)
    assert answers == [None]


def test_connection_error_omits_the_advice_of_libpq(tmp_path):
    driver = Driver(f"host={tmp_path} dbname=x")
    driver.until(lambda: driver.db.trouble)
    assert "No such file or directory" in driver.db.trouble
    assert "Is the server running" not in driver.db.trouble


def test_connection_error_omits_the_password(cluster):
    driver = Driver(cluster.dsn("no_such_database") + " password=hunter2")
    driver.until(lambda: driver.db.trouble)
    assert "hunter2" not in driver.db.trouble
    assert "no_such_database" in driver.db.trouble
