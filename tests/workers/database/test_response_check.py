"""A faulty pooler can send a client the answers to another client's statements. Jobherd rejects them."""

from __future__ import annotations

import os
import select
import threading
import time

import psycopg
import pytest

from jobherd.supervisor.database.connection import DatabaseConnection
from jobherd.workers.database.response_check import Answers
from jobherd.workers.database.wire import Wire
from tests.support.patience import LIMIT
from tests.support.pooler import PROGRAM, Pooler


def test_answer_with_other_columns_than_the_first_answer_to_its_statement_is_rejected(database: str):
    with psycopg.connect(database, autocommit=True) as connection:
        answers = Answers()
        ask = connection.pgconn.exec_
        answers.check("one", ask(b"SELECT 1 AS a, 2 AS b"))
        answers.check("one", ask(b"SELECT 3 AS a, 4 AS b WHERE false"))
        answers.check("other", ask(b"SET search_path = public"))
        for strange in (b"SELECT 1 AS a", b"SELECT 1 AS c, 2 AS b", b"SET search_path = public", b"LISTEN there"):
            with pytest.raises(psycopg.OperationalError, match="another statement than one"):
                answers.check("one", ask(strange))


@pytest.mark.skipif(not os.path.exists(PROGRAM), reason="Debian's pgbouncer is not installed: make pgbouncer")
@pytest.mark.parametrize("who", ["worker", "parent"])
def test_worker_and_supervisor_reject_answers_to_another_clients_statements(database: str, who: str):
    """Another client listens through the pooler, and is notified without end.

    After some time, pgbouncer 1.18 takes a notification for an answer.
    """
    with Pooler(database, "transaction", size=1) as pooler:
        # Two clients share one backend. At each switch, the pooler sets the name of the next client
        # and checks the backend.
        with (
            psycopg.connect(pooler.dsn, autocommit=True, application_name="listens") as listener,
            psycopg.connect(pooler.dsn, autocommit=True, application_name="works") as connection,
        ):
            wire = Wire(connection, "jobherd", prepared=False)
            ask = _through_a_courier(pooler.dsn) if who == "parent" else lambda name: wire.exchange((name, {}))[0]
            first = {name: ask(name) for name in ("session/show_backend", "maintenance/find_next_due")}
            listener.execute("LISTEN storm")
            over = threading.Event()
            storm = threading.Thread(target=_notify, args=(database, over))
            other = threading.Thread(target=_work, args=(pooler.dsn, over))
            storm.start()
            other.start()
            try:
                until, mixed_up = time.monotonic() + LIMIT / 2, ""
                while not mixed_up:
                    if time.monotonic() >= until:
                        pytest.skip("this pgbouncer has lost count of nothing")  # 1.18 does within a second.
                    for name, answer in first.items():
                        try:
                            assert ask(name) == answer
                        except psycopg.OperationalError as problem:
                            mixed_up = str(problem)
                            break
                assert "a pooler has mixed them up" in mixed_up
            finally:
                over.set()
                storm.join()
                other.join()


def _notify(dsn: str, over: threading.Event) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        while not over.is_set():
            connection.execute("NOTIFY storm")


def _work(dsn: str, over: threading.Event) -> None:
    """Use the same backend as a client that ignores the answers."""
    while not over.is_set():
        try:
            with psycopg.connect(dsn, autocommit=True, application_name="others") as connection:
                while not over.is_set():
                    connection.execute("SELECT 'somebody', 'else'")
        except psycopg.Error:
            continue


def _through_a_courier(dsn: str):
    db = DatabaseConnection(dsn, schema="jobherd", application_name="parent", retry_initial=60.0, retry_max=60.0)

    def ask(name: str):
        answers: list[object] = []
        db.ask(name, {}, answers.append)
        until = time.monotonic() + LIMIT
        while not answers:
            assert time.monotonic() < until
            db.step(time.monotonic())
            fd = db.fileno()
            if fd >= 0:
                select.select([fd], [fd] if db.events() & 2 else [], [], 0.05)
        if answers[0] is None:
            raise psycopg.OperationalError(db.trouble)
        return answers[0]

    return ask
