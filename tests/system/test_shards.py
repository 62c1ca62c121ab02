"""Queues on two servers, one of which is killed: the other's continue, the first's after its restart, and no job is
lost or completed twice."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING

import psycopg

from jobherd import Client, sql
from jobherd.handlers._enqueue.shards import shard_of
from jobherd.sql.migrate import migrate
from tests.support.fleet import Stage
from tests.support.postgres import Cluster, quick_place

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.gate import Gate

LIMIT = 60.0


class Producer(threading.Thread):
    """Enqueues into one queue until it is stopped."""

    def __init__(self, client: Client, queue: str) -> None:
        super().__init__(daemon=True)
        self.client = client
        self.queue = queue
        self.acknowledged: list[int] = []
        self.failed = 0
        self.enough = threading.Event()

    def run(self) -> None:
        while not self.enough.is_set():
            try:
                self.acknowledged.append(self.client.enqueue("t:noop", queue=self.queue))
            except psycopg.Error:
                self.failed += 1

    def wait_more(self, stage: Stage, count: int) -> None:
        """Wait until it has enqueued this many more jobs."""
        goal = len(self.acknowledged) + count
        stage.wait(lambda: len(self.acknowledged) >= goal, f"{count} more jobs in {self.queue}", limit=LIMIT)

    def end(self) -> None:
        self.enough.set()
        self.join(LIMIT)
        assert not self.is_alive()


def test_killed_server_stops_only_its_own_queues(tmp_path: Path, gate: Gate):
    with ExitStack() as open_:
        servers = [open_.enter_context(Cluster(place=quick_place())) for _ in range(2)]
        addresses = [server.dsn(server.create("template1")) for server in servers]
        for shard, dsn in enumerate(addresses, 1):
            with psycopg.connect(dsn, autocommit=True) as connection:
                migrate(connection)
                connection.execute(sql.load("migrate/set_shard", "jobherd"), {"shard": shard})
        first, second = (open_.enter_context(Stage(dsn, tmp_path)) for dsn in addresses)
        client = open_.enter_context(Client(shards={"mail-*": first.dsn, "*": second.dsn}, timeout=20))
        try:
            for stage in (first, second):
                stage.run_fleet(workers=1, db_retry_initial="0.1s", db_retry_max="0.5s")
            mail, other = Producer(client, "mail-out"), Producer(client, "pdf")
            running = client.enqueue("t:gate", {"label": "meanwhile"}, queue="mail-in")
            arrival = gate.wait_arrival("meanwhile")
            for producer in (mail, other):
                producer.start()
            mail.wait_more(first, 20)

            servers[0].kill()
            second.wait(lambda: mail.failed > 0, "an error in a producer", limit=LIMIT)
            other.wait_more(second, 50)
            meanwhile = other.acknowledged[-50:]
            second.wait_all(meanwhile, "completed", limit=LIMIT)
            assert list(client.wait_many(meanwhile, timeout=LIMIT)) == meanwhile

            servers[0].start()
            first.reconnect()
            mail.wait_more(first, 20)
            arrival.open("done")
            for producer in (mail, other):
                producer.end()
            row = client.wait(running, timeout=LIMIT)
            assert (row["result"], row["attempts"]) == ("done", 1)
            for stage, producer, shard in ((first, mail, 1), (second, other, 2)):
                stage.wait_all(producer.acknowledged, "completed", limit=LIMIT)
                assert stage.completed_twice() == []
                assert {shard_of(number) for number in producer.acknowledged} == {shard}
                # A job may exist although its connection ended before the commit was confirmed.
                extra = stage.call("SELECT count(*) FROM jobherd.jobs WHERE kind = 't:noop'") - len(
                    producer.acknowledged
                )
                assert 0 <= extra <= producer.failed
                assert stage.fleets[0].stop() == 0
            assert other.failed == 0
        finally:
            for stage in (first, second):
                stage.show()
