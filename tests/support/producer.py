"""A producer in a separate process. It appends a job's id to a file after the commit has returned.

    python -m tests.support.producer DSN FILE SEED RATE KINDS MOST

KINDS is a JSON list of [kind, payload, weight] or [kind, payload, weight, options].

Each job in the file was acknowledged, so it must finish whatever happens. The producer runs until
its standard input ends, and reconnects after an outage of the database.
"""

from __future__ import annotations

import json
import os
import random
import select
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any, Self

import psycopg

from tests.support.audit import read_ids
from tests.support.herd import LIMIT, ROOT

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


class Producer:
    """Starts and stops the producer's process.

    Args:
        dsn: the database.
        path: the file of ids.
        seed: seed of the random choices.
        rate: jobs a second on average.
        kinds: what to enqueue, see the module's docstring.
        most: ready jobs above which it pauses, so that a fault cannot pile up hours of work.
    """

    def __init__(
        self, dsn: str, path: Path, *, seed: int, rate: float, kinds: Sequence[tuple[Any, ...]], most: int = 500
    ) -> None:
        self.path = path
        path.touch()
        words = [dsn, str(path), str(seed), str(rate), json.dumps(kinds), str(most)]
        # A separate process group: Ctrl-C must reach only the script, which then stops the producer.
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.producer", *words], cwd=ROOT, stdin=subprocess.PIPE, process_group=0
        )

    def rest(self, seconds: float) -> None:
        """Stop the producer with SIGSTOP for this long, so that the workers finish all jobs and become idle."""
        self._process.send_signal(signal.SIGSTOP)
        try:
            time.sleep(seconds)
        finally:
            self._process.send_signal(signal.SIGCONT)

    def stop(self) -> list[int]:
        """Stop the producer; return the ids of acknowledged jobs."""
        if self._process.poll() is None:
            assert self._process.stdin is not None
            self._process.stdin.close()
        code = self._process.wait(LIMIT)
        assert code == 0, f"the producer failed with {code}"
        return read_ids(self.path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()


def main() -> None:
    dsn, path, seed, rate, kinds, most = sys.argv[1:]
    dice, table = random.Random(int(seed)), json.loads(kinds)
    weights = [each[2] for each in table]
    file = os.open(path, os.O_WRONLY | os.O_APPEND)
    connection: psycopg.Connection[Any] | None = None
    due, count = time.monotonic(), 0
    while True:
        due = max(due + dice.expovariate(float(rate)), time.monotonic() - 1.0)
        if select.select([sys.stdin], [], [], max(0.0, due - time.monotonic()))[0]:
            return
        try:
            if connection is None:
                connection = psycopg.connect(dsn, autocommit=True)
            if count % 20 == 0 and connection.execute(
                "SELECT count(*) FROM (SELECT FROM jobherd.ready LIMIT %s) AS r", [int(most)]
            ).fetchone() == (int(most),):
                due += 0.2
                continue
            kind, payload, _, *options = dice.choices(table, weights)[0]
            values = [kind, json.dumps(payload), json.dumps(options[0] if options else {})]
            row = connection.execute("SELECT jobherd.enqueue(%s, %s::jsonb, %s::jsonb)", values).fetchone()
            assert row is not None
            os.write(file, b"%d\n" % row[0])  # after the commit, not earlier
            count += 1
        except (psycopg.OperationalError, psycopg.errors.ReadOnlySqlTransaction):
            if connection is not None:
                connection.close()
            connection = None
            due = time.monotonic() + 0.2


if __name__ == "__main__":
    main()
