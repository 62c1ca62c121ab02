"""The parent's session: it never waits, and it comes back by itself."""

from __future__ import annotations

import os
import select
import socket
import time

import psycopg
import pytest

from supervisor.courier import ANSWER_PATIENCE, CONNECT_PATIENCE, Courier, Link
from supervisor.spawn import Lookup
from tests.support.patience import LIMIT
from tests.support.postgres import Cluster


class Driver:
    """Turns the crank of a courier, and notes the longest step."""

    def __init__(self, dsn):
        self.courier = Courier(dsn, schema="jobherd", application_name="test", retry_initial=0.05, retry_max=1.0)
        self.longest = 0.0

    def step(self, now=None):
        begun = time.monotonic()
        self.courier.step(begun if now is None else now)
        self.longest = max(self.longest, time.monotonic() - begun)

    def until(self, condition):
        limit = time.monotonic() + LIMIT
        while True:
            self.step()
            if condition():
                return
            assert time.monotonic() < limit, (self.courier.link, self.courier.trouble)
            fd = self.courier.fileno()
            wait = min(max(self.courier.wake_at() - time.monotonic(), 0), 1.0)
            reading, writing = ([fd], [fd]) if fd >= 0 else ([], [])
            select.select(reading, writing if self.courier.events() & 2 else [], [], wait)

    def up(self):
        self.until(lambda: self.courier.link is Link.UP)
        return self

    def ask(self, name, **parameters):
        answers = []
        self.courier.ask(name, parameters, answers.append)
        self.until(lambda: answers)
        return answers[0]


@pytest.fixture
def driver(database):
    driver = Driver(database)
    yield driver
    driver.courier.close()


def test_it_asks_and_is_answered_in_order(driver):
    driver.up()
    assert driver.ask("next_due") == []
    answers = []
    for number in range(3):
        driver.courier.ask("show_job", {"id": number}, lambda answer, number=number: answers.append((number, answer)))
    driver.until(lambda: len(answers) == 3)
    assert answers == [(0, []), (1, []), (2, [])]


@pytest.mark.promise("A7")
def test_a_notification_is_heard_at_once_also_one_that_came_while_a_statement_ran(driver, database):
    driver.up()
    assert driver.ask("start_hearing") == [("16", "yes")]
    with psycopg.connect(database, autocommit=True) as other:
        other.execute("SELECT jobherd.enqueue('a:b')")
        driver.until(lambda: "default" in driver.courier.notifications)
        driver.courier.notifications.clear()
        other.execute("SELECT jobherd.enqueue('a:b')")
        driver.ask("show_job", id=1)
    driver.until(lambda: "default" in driver.courier.notifications)


def test_a_refused_statement_is_answered_with_none_and_the_session_goes_on(driver):
    driver.up()
    assert driver.ask("show_job", id="not a number") is None
    assert any(note.startswith("@refused:show_job") for note in driver.courier.notifications)
    assert driver.ask("next_due") == []


@pytest.mark.promise("A7", "C26")
def test_a_session_that_is_ended_comes_back_and_listens_again(driver, database):
    driver.up()
    epoch = driver.courier.epoch
    answers = []
    with psycopg.connect(database, autocommit=True) as other:
        other.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'test'")
        driver.courier.ask("next_due", {}, answers.append)
        driver.until(lambda: answers)
        assert answers == [None]
        driver.until(lambda: driver.courier.link is Link.UP and driver.courier.epoch > epoch)
        assert driver.ask("start_hearing") == [("16", "yes")]
        other.execute("SELECT jobherd.enqueue('a:b')")
        driver.until(lambda: "default" in driver.courier.notifications)


@pytest.mark.promise("C26")
def test_it_survives_a_server_that_is_killed_and_started():
    with Cluster() as own, own.database() as dsn:
        driver = Driver(dsn).up()
        own.kill()
        driver.until(lambda: driver.courier.link is not Link.UP)
        for _ in range(5):
            driver.until(lambda: driver.courier.link is Link.AWAY)
        own.start()
        driver.up()
        driver.courier.close()
        assert driver.longest < CONNECT_PATIENCE  # a blocking connect would wait for the server


@pytest.fixture
def silent():
    """A server that takes connections and never says a word: what a network that swallows every packet looks like."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        yield f"host=127.0.0.1 port={server.getsockname()[1]} user=nobody dbname=x"


def test_a_server_that_never_answers_is_given_up_in_time_and_nothing_waits(silent):
    driver = Driver(silent)
    now = time.monotonic()
    driver.step(now)
    assert driver.courier.link is Link.CONNECTING
    driver.step(now + CONNECT_PATIENCE - 0.1)
    assert driver.courier.link is Link.CONNECTING
    driver.step(now + CONNECT_PATIENCE + 0.1)
    assert driver.courier.link is Link.AWAY
    assert "no connection" in driver.courier.trouble
    assert driver.longest < CONNECT_PATIENCE


def test_a_statement_without_an_answer_is_given_up_in_time(driver, database):
    driver.up()
    driver.ask("next_due")
    answers = []
    with psycopg.connect(database) as other:
        other.execute("LOCK TABLE jobherd.scheduled IN ACCESS EXCLUSIVE MODE")
        now = time.monotonic()
        driver.courier.ask("next_due", {}, answers.append)
        driver.step(now)
        driver.step(now + ANSWER_PATIENCE + 0.1)
        assert answers == [None]
        assert driver.courier.link is Link.AWAY


def test_a_host_name_is_never_looked_up_here():
    driver = Driver("host=database.invalid dbname=x")
    driver.step()
    assert driver.courier.link is Link.NAMING
    assert driver.courier.wants_addresses == ["database.invalid"]
    assert driver.courier.fileno() == -1
    driver.courier.addressed({}, time.monotonic())
    assert driver.courier.link is Link.AWAY
    assert "database.invalid" in driver.courier.trouble
    assert driver.courier.wake_at() <= time.monotonic() + 1.0


@pytest.mark.parametrize("host", ["/run/postgresql", "127.0.0.1", "::1", "@abstract", ""])
def test_what_is_no_name_needs_no_look_up(host, monkeypatch):
    monkeypatch.delenv("PGHOST", raising=False)
    driver = Driver(f"host='{host}' port=1 dbname=x")
    driver.step()
    assert driver.courier.wants_addresses == []


def test_of_several_hosts_those_without_an_address_are_left_out(silent):
    port = silent.split()[1].removeprefix("port=")
    driver = Driver(f"host=gone.invalid,here.invalid port=1,{port} dbname=x user=x")
    driver.step()
    assert driver.courier.wants_addresses == ["gone.invalid", "here.invalid"]
    driver.courier.addressed({"here.invalid": "127.0.0.1"}, time.monotonic())
    assert driver.courier.link is Link.CONNECTING


def test_a_look_up_is_made_by_a_child():
    lookup = Lookup(["localhost", "no-such-host.invalid"])
    found = None
    while found is None:  # its words and its end need not come together
        assert select.select([lookup.fd], [], [], LIMIT)[0]
        found = lookup.read()
    assert set(found) == {"localhost"}
    lookup.close()
    os.waitpid(lookup.pid, 0)


def test_without_a_session_the_answer_is_none(silent):
    driver = Driver("host=database.invalid dbname=x")
    answers = []
    driver.step()
    driver.courier.addressed({}, time.monotonic())
    driver.courier.ask("next_due", {}, answers.append)
    driver.courier.step(0.0)
    assert answers == [None]


def test_no_secret_in_what_is_said_of_a_failure(cluster):
    driver = Driver(cluster.dsn("no_such_database") + " password=hunter2")
    driver.until(lambda: driver.courier.trouble)
    assert "hunter2" not in driver.courier.trouble
    assert "no_such_database" in driver.courier.trouble
