"""Send signals to jobs that wait for them: none is lost, and none is received twice.

python -m tests.faults.signals [--jobs 4000] [--kills 60]

Each job receives three signals. Four senders send them in any order, also before a job waits. Their
transactions stay open for up to 0.1 s, and a tenth of them is rolled back and repeated. A third of
the signals come without a notification, as if it was lost. Meanwhile random child processes are
killed, also maintenance processes. At the end each job has the payloads of its committed signals,
each once.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sys
import threading
import time
from pathlib import Path

import psycopg

from tests.support.figures import Report
from tests.support.ground import arguments, ground
from tests.support.herd import Herd

WORK = Path(__file__).with_name("step_work.py")
HERDS = 2
TIMES = 3
SENDERS = 4
DEADLINE = 900.0
QUICK = ("--db-retry-initial", "0.2s")
UNDONE = 0.1
"""Share of transactions that are rolled back and sent again."""
LEFT = "SELECT count(*) FROM jobherd.jobs WHERE state NOT IN ('completed', 'failed', 'cancelled', 'expired')"


def send(dsn: str, numbers: list[tuple[int, int]], seed: str) -> None:
    """Send signals, given as pairs of job and number, in random transactions."""
    dice = random.Random(seed)
    with psycopg.connect(dsn) as connection:
        while numbers:
            part = [numbers.pop() for _ in range(min(len(numbers), dice.randint(1, 20)))]
            for job, number in part:
                if dice.random() < 1 / 3:
                    connection.execute(
                        "INSERT INTO jobherd.signals (topic, payload) VALUES (%s, to_json(%s::int))",
                        [f"job/{job}/number", number],
                    )
                else:
                    connection.execute("SELECT jobherd.signal_job(%s, 'number', to_jsonb(%s::int))", [job, number])
            time.sleep(dice.uniform(0, 0.1))
            if dice.random() < UNDONE:
                connection.rollback()
                numbers[:0] = part
            else:
                connection.commit()


def main() -> int:
    given = arguments(__doc__, jobs=4000, kills=60, workers=2)
    dice = random.Random(given.seed)
    report = Report(f"signals: {given.jobs * TIMES:,} to {given.jobs:,} jobs, {given.kills} kills", given.seed)
    with ground() as (_, dsn), contextlib.ExitStack() as stack:
        report.on(dsn)
        with psycopg.connect(dsn, autocommit=True) as connection:
            payload = f'{{"times": {TIMES}}}'
            rows = connection.execute(
                "SELECT jobherd.enqueue('fault:waits', %s::jsonb) FROM generate_series(1, %s)", [payload, given.jobs]
            ).fetchall()
        numbers = [(job, TIMES * place + turn) for place, (job,) in enumerate(rows) for turn in range(TIMES)]
        wanted = {job: set(range(TIMES * place, TIMES * place + TIMES)) for place, (job,) in enumerate(rows)}
        dice.shuffle(numbers)
        herds = [
            stack.enter_context(Herd(dsn, WORK, "--queues", "default", *QUICK, workers=given.workers))
            for _ in range(HERDS)
        ]
        senders = [
            threading.Thread(target=send, args=(dsn, numbers[place::SENDERS], f"{given.seed}/{place}"))
            for place in range(SENDERS)
        ]
        for sender in senders:
            sender.start()
        kills, until, began = 0, time.monotonic() + DEADLINE, time.monotonic()
        with psycopg.connect(dsn, autocommit=True) as connection:
            while time.monotonic() < until and connection.execute(LEFT).fetchone()[0]:
                time.sleep(dice.uniform(0.05, 0.3))
                pids = dice.choice(herds).children() if kills < given.kills else []
                with contextlib.suppress(ProcessLookupError, IndexError):
                    os.kill(dice.choice(pids), signal.SIGKILL)
                    kills += 1
            for sender in senders:
                sender.join()
            seconds = time.monotonic() - began
            found = dict(connection.execute("SELECT id, result FROM jobherd.jobs WHERE state = 'completed'").fetchall())
            (waits,) = connection.execute("SELECT count(*) FROM jobherd.waits").fetchone()
        codes = [herd.stop() for herd in herds]
        lost = {job: numbers for job, numbers in wanted.items() if not numbers <= set(found.get(job) or ())}
        twice = [job for job, got in found.items() if len(got) != len(set(got))]
        report.fact("run", f"{kills} kills in {seconds:.0f} s")
        report.holds("each job is completed", len(found) == given.jobs, len(found))
        report.holds("no signal is lost", not lost, dict(list(lost.items())[:5]))
        report.holds("no signal is taken twice", not twice, twice[:5])
        report.holds("no job waits for a signal", waits == 0, waits)
        report.holds("every supervisor exited with 0", codes == [0] * HERDS, codes)
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
