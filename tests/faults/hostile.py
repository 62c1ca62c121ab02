"""Enqueue hostile payloads, kinds, queues and texts, from a seed, in every way that jobs can be enqueued.

Handlers return each input in every way in which a handler can return something. Each input is
rejected on enqueue with a message, or its job finishes. No row is stuck, no process dies of an input,
and the next job runs normally. `python -m tests.faults.hostile --count 10000`.
"""

from __future__ import annotations

import asyncio
import json
import math
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg

from jobherd import AsyncClient, Client, PayloadError
from tests.faults.hostile_work import WAYS
from tests.support.figures import Report
from tests.support.fleet import ROOT, Stage, is_ready
from tests.support.ground import arguments, ground

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.fleet import Fleet

WORK = Path(__file__).with_name("hostile_work.py")
MOVES = "SELECT last_value FROM t_trans_n_seq"
REFUSALS = (
    PayloadError,
    ValueError,
    TypeError,
    psycopg.DataError,
    psycopg.IntegrityError,
    psycopg.ProgrammingError,
    psycopg.InternalError,
    psycopg.errors.ObjectNotInPrerequisiteState,
)
TEXTS = (
    "", "\0", "a\0b", "\ud800", "\udfff x", "\ufffe\uffff", "\u202eevil\u202c", "\u200b", "\x1b[2J\x1b]0;x\x07", "\r\nERROR forged: yes", "\x1e{}", "\x1f",
    "<script>alert(1)</script>", "'; DROP TABLE jobherd.ready; --", "%s %(x)s {0} {x.__class__}", "${jndi:ldap://x}", "../../etc/passwd", "os.system",
    "__proto__", "constructor", "NaN", "\\u0000", "\\", '"', "postgresql://me:secret@host/db", "x" * 70_000, "é" * 5000, "👩‍👩‍👧‍👦" * 300, "=cmd|' /C'!A0", "ﷺ" * 200,
)  # fmt: skip
DOCUMENTS = (
    "null", "17", '"text"', "[1, 2]", "{}", "[" * 100 + "]" * 100, "[" * 900 + "]" * 900, "[" * 6000 + "]" * 6000, '{"a":' * 2000 + "1" + "}" * 2000,
    '{"value": ' + "9" * 5000 + "}", '{"value": 1e131071}', '{"value": 1e400}', '{"value": 1e-400}', '{"value": -0}', '{"value": "\\ud800"}',
    '{"value": "a\\u0000b"}', '{"a\\u0000": 1}', '{"value": 1, "value": 2}', '{"": 1}', '{"value": 18446744073709551616}', '{"value": 1.7976931348623157e309}',
    '{"__proto__": {"x": 1}, "constructor": 2}', '{"job": 1}', '{"self": 1}', '{"value": 1, "how": 5}', '{"n": "seven"}', '{"n": 1e3}', '{"n": true}', '{"n": null}',
)  # fmt: skip
NAMES = (
    "os.system", "../../x", "a;drop table", "<script>", "x" * 10_000, "", " ", "UPPER", "a\0b", "\ud800", "*", "@renewal:1", "hostile:says ", "é", "a" * 64, "%s", "jobs:webhook",
)  # fmt: skip
OPTIONS: tuple[dict[str, Any], ...] = (
    {"priority": 2**31}, {"priority": -(2**15)}, {"priority": 1.5}, {"priority": True}, {"max_attempts": 0}, {"max_attempts": 10**12}, {"delay": math.inf},
    {"delay": math.nan}, {"delay": "1e9d"}, {"delay": -5}, {"timeout": 0}, {"timeout": 1e300}, {"timeout": "100 years"}, {"run_at": "infinity"},
    {"run_at": "10000-01-01"}, {"expires_at": "-infinity"}, {"expires_at": "4713-01-01 BC"}, {"unknown": 1}, {"tenant": "\0"}, {"tenant": "x" * 5000},
    {"webhook": "javascript:alert(1)"}, {"webhook": "http://127.0.0.1:1/"}, {"traceparent": "x"}, {"parent_id": -1}, {"payload_bytes": "text"}, {"queue": None}, {},
)  # fmt: skip


class Oddities:
    """Generates the inputs, from a seed."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)

    def text(self) -> str:
        dice = self.dice
        if dice.random() < 0.6:
            return dice.choice(TEXTS)
        return "".join(
            chr(
                dice.choice(
                    (
                        dice.randrange(0x20),
                        dice.randrange(0x80),
                        dice.randrange(0xD7F0, 0xE010),
                        dice.randrange(0x110000),
                    )
                )
            )
            for _ in range(dice.randrange(20))
        )

    def value(self, depth: int = 0) -> Any:
        """Return a random Python value; some are not JSON."""
        dice = self.dice
        match dice.randrange(12 if depth < 4 else 8):
            case 0 | 1 | 2:
                return self.text()
            case 3:
                return dice.choice((0, -1, 2**63, 2**64, 10**999, -(10**1001), 10**5000))
            case 4:
                return dice.choice((0.0, -0.0, 1e308, math.inf, -math.inf, math.nan, 5e-324))
            case 5:
                return dice.choice((None, True, False))
            case 6:
                return dice.choice((object(), b"bytes", {1, 2}, 1j, lambda: None, {1: 2}, range(3), type))
            case 7:
                deep: Any = []
                for _ in range(dice.choice((10, 99, 101, 500))):
                    deep = [deep] if dice.random() < 0.5 else {"d": deep}
                return deep
            case 8 | 9:
                return [self.value(depth + 1) for _ in range(dice.randrange(4))]
            case _:
                return {self.text(): self.value(depth + 1) for _ in range(dice.randrange(4))}

    def document(self) -> str:
        """Return a random text that is passed as JSON; some texts are invalid."""
        if self.dice.random() < 0.5:
            return self.dice.choice(DOCUMENTS)
        with suppress(TypeError, ValueError, RecursionError):
            return json.dumps(
                {"value": self.value(), "how": self.dice.choice(WAYS)}, ensure_ascii=self.dice.random() < 0.5
            )
        return "{"

    def kind(self) -> str:
        return self.dice.choices(
            ("hostile:says", "hostile:int", "hostile:nothing", self.dice.choice(NAMES)), (8, 1, 1, 1)
        )[0]

    def options(self) -> dict[str, Any]:
        dice = self.dice
        return (
            dict(dice.choice(OPTIONS))
            if dice.random() < 0.2
            else {"queue": dice.choice(NAMES)}
            if dice.random() < 0.05
            else {}
        )


class Doors:
    """Every way to enqueue a job.

    Each method enqueues a hostile input and returns the ids of its jobs.
    """

    def __init__(self, dsn: str, oddities: Oddities) -> None:
        self.dsn = dsn
        self.odd = oddities
        self.connection = psycopg.connect(dsn, autocommit=True)
        self.client = Client(dsn)
        self.ways: tuple[tuple[Callable[[], list[int]], int], ...] = (
            (self.by_client, 30), (self.by_async_client, 5), (self.by_many, 10), (self.by_stream, 5), (self.by_function, 20), (self.by_row, 20),
            (self.by_copy, 8), (self.by_command, 0), (self.by_lines, 0),
        )  # fmt: skip

    def close(self) -> None:
        self.client.close()
        self.connection.close()

    def payload(self) -> Any:
        return (
            {"value": self.odd.value(), "how": self.odd.dice.choice(WAYS)}
            if self.odd.dice.random() < 0.8
            else self.odd.value()
        )

    def by_client(self) -> list[int]:
        return [self.client.enqueue(self.odd.kind(), self.payload(), **self.odd.options())]

    def by_async_client(self) -> list[int]:
        kind, payload, options = self.odd.kind(), self.payload(), self.odd.options()

        async def put() -> list[int]:
            async with AsyncClient(self.dsn) as client:
                return [await client.enqueue(kind, payload, **options)]

        return asyncio.run(put())

    def by_many(self) -> list[int]:
        good: dict[str, Any] = {"value": self.odd.dice.choice(TEXTS[6:20])}
        return self.client.enqueue_many(
            self.odd.kind(),
            [good, self.payload()] if self.odd.dice.random() < 0.5 else [good] * 600,
            **self.odd.options(),
        )[:2]

    def by_stream(self) -> list[int]:
        ids: list[int] = []
        self.client.enqueue_stream(self.odd.kind(), [self.payload()], on_chunk=ids.extend, **self.odd.options())
        return ids

    def by_function(self) -> list[int]:
        options = json.dumps(self.odd.options(), default=str)
        return [
            row[0]
            for row in self.connection.execute(
                "SELECT jobherd.enqueue(%s, %s::jsonb, %s::jsonb)", [self.odd.kind(), self.odd.document(), options]
            )
        ]

    def by_row(self) -> list[int]:
        table = self.odd.dice.choice(("ready", "scheduled"))
        dice = self.odd.dice
        columns: dict[str, Any] = {"kind": self.odd.kind(), "payload": self.odd.document()}
        if dice.random() < 0.3:
            name, value = dice.choice(
                (("priority", -32768), ("attempts", 32767), ("max_attempts", 32767), ("crashes", 32767), ("timeout", -1), ("timeout", 1e300), ("timeout", math.inf),
                 ("timeout", math.nan), ("run_at", "8999-12-31"), ("run_at", "infinity"), ("created_at", "1901-01-01"), ("expires_at", "1901-01-01"), ("alone", True),
                 ("last_error", '"no object"'), ("last_error", '{"code": 5}'), ("queue", dice.choice(NAMES)))
            )  # fmt: skip
            columns[name] = value
        names = ", ".join(columns)
        return [
            row[0]
            for row in self.connection.execute(
                f"INSERT INTO jobherd.{table} ({names}) VALUES ({', '.join(['%s'] * len(columns))}) RETURNING id",
                list(columns.values()),
            )
        ]

    def by_copy(self) -> list[int]:
        with self.connection.transaction():
            [(job,)] = self.connection.execute("SELECT nextval('jobherd.job_ids')")
            with self.connection.cursor().copy("COPY jobherd.ready (id, kind, payload) FROM STDIN") as copy:
                copy.write_row((job, self.odd.kind(), self.odd.document()))
        return [job]

    def by_command(self) -> list[int]:
        return self._command([self.odd.kind().replace("\0", ""), self.odd.document().replace("\0", "")], b"")

    def by_lines(self) -> list[int]:
        lines = [self.odd.document().encode(errors="surrogatepass") for _ in range(20)] + [b"\xff\xfe{}", b""]
        self.odd.dice.shuffle(lines)
        return self._command(["hostile:says", "-"], b"\n".join(lines))

    def _command(self, words: list[str], given: bytes) -> list[int]:
        encoded = [word.encode(errors="surrogateescape" if word.isascii() else "replace")[:100_000] for word in words]
        done = subprocess.run(
            [sys.executable, "-m", "jobherd.supervisor", "enqueue", "--dsn", self.dsn, "--", *encoded], input=given, capture_output=True, cwd=ROOT, check=False, timeout=120
        )  # fmt: skip
        assert b"Traceback" not in done.stderr, done.stderr.decode(errors="replace")[-3000:]
        return [int(line) for line in done.stdout.split()]


def put(doors: Doors, count: int, *, commands: int = 0) -> tuple[dict[int, str], Counter[str]]:
    """Enqueue `count` inputs, and `commands` by each of the two commands.

    Returns:
        The method of each job, and how many inputs were rejected by method.
    """
    jobs: dict[int, str] = {}
    refused: Counter[str] = Counter()
    ways, weights = zip(*doors.ways, strict=True)
    chosen = doors.odd.dice.choices(ways, weights, k=count) + [doors.by_command, doors.by_lines] * commands
    for way in chosen:
        try:
            jobs |= dict.fromkeys(way(), way.__name__)
        except REFUSALS as problem:
            refused[way.__name__] += 1
            assert str(problem).strip(), f"rejected without a message: {problem!r}"
    return jobs, refused


def wait_over(stage: Stage, limit: float) -> list[tuple[Any, ...]]:
    """Wait until no job is ready or running; return those left when no row has changed for `limit` seconds.

    A limit from the start would measure the machine: a seed makes 200,000 jobs.
    """
    left = """SELECT id, 'ready', kind, left(payload::text, 200), attempts FROM jobherd.waiting UNION ALL
              SELECT j.id, 'running', j.kind, left(j.payload::text, 200), j.attempts + 1 FROM jobherd.running r, unnest(r.jobs) AS j LIMIT 20"""
    moved = stage.call(MOVES)
    until = time.monotonic() + limit
    while (rows := stage.run(left)) and time.monotonic() < until:
        if (now := stage.call(MOVES)) != moved:
            moved, until = now, time.monotonic() + limit
        with suppress(TimeoutError):
            stage.wait(lambda: not stage.run(left), "the end of all", limit=min(5.0, limit))
    return rows


def harm(
    stage: Stage, fleet: Fleet, jobs: dict[int, str], *, before: dict[int, int], limit: float
) -> dict[str, object]:
    """Return everything that went wrong; the campaign fails if it is not empty."""
    found: dict[str, object] = {}
    if stuck := wait_over(stage, limit):
        found["stuck"] = [(row, jobs.get(row[0])) for row in stuck]
    if deaths := fleet.said(
        lambda event: event.get("level") in {"warning", "critical"} and " died " in event["message"]
    ):
        found["deaths"] = deaths[:5]
    if errors := fleet.said(lambda event: "an error of Jobherd's own" in event.get("message", "")):
        found["errors of our own"] = errors[:5]
    if fleet.workers() != before or len(fleet.said(is_ready)) != len(before):
        found["replaced"] = (before, fleet.workers(), [event["message"] for event in fleet.said("to be replaced")])
    lost = stage.run(
        "SELECT id FROM unnest(%s::bigint[]) AS j (id) WHERE NOT EXISTS (SELECT FROM jobherd.jobs WHERE jobs.id = j.id)",
        list(jobs),
    )
    if lost:
        found["lost"] = lost[:20]
    if twice := stage.completed_twice():
        found["completed twice"] = twice[:20]
    crashed = "SELECT id, error FROM jobherd.history WHERE error_code = 'WORKER_CRASHED' OR (crashes > 0 AND crashes < 32767) LIMIT 5"
    if crashes := stage.run(crashed):
        found["crashed"] = [(row, jobs.get(row[0])) for row in crashes]
    torn = "SELECT to_jsonb(j) - 'history' FROM jobherd.jobs j WHERE error_code = 'JOB_TIMEOUT' LIMIT 3"
    if late := stage.run(torn):  # Whatever the input, these handlers never take a minute.
        found["late"] = [(str(row)[:3000], jobs.get(row["id"])) for (row,) in late]
    after = stage.enqueue("hostile:says", '{"value": "as if nothing had been"}')
    try:
        row = stage.wait_state(after, "completed", "failed")
    except TimeoutError as problem:
        found["the next job"] = (str(problem), fleet.text())
    else:
        if row["result"] != "as if nothing had been":
            found["the next job"] = row
    return found


def main() -> int:
    given = arguments(__doc__, count=10_000, workers=2, commands=20)
    report = Report(f"hostile data: {given.count} through every door", given.seed)
    with tempfile.TemporaryDirectory() as folder, ground() as (_, dsn), Stage(dsn, Path(folder)) as stage:
        report.on(dsn)
        fleet = stage.run_fleet(workers=given.workers, handlers=WORK)
        before = fleet.workers()
        doors = Doors(dsn, Oddities(given.seed))
        jobs, refused = put(doors, given.count, commands=given.commands)
        doors.close()
        found = harm(stage, fleet, jobs, before=before, limit=120.0)
        report.fact("accepted, by door", dict(Counter(jobs.values())))
        report.fact("refused, by door", dict(refused))
        # Jobherd's error codes are in capitals. Handlers return hundreds of other codes, which are
        # counted as one.
        became = r"CASE WHEN error_code IS NULL THEN state WHEN error_code ~ '^[A-Z]+(_[A-Z]+)*$' THEN error_code ELSE 'a code of its own' END"
        report.fact("became", dict(stage.run(f"SELECT {became}, count(*) FROM jobherd.jobs GROUP BY 1 ORDER BY 1")))
        report.holds(
            "no stuck row, no dead child process, no lost job, no effect on the next job", not found, found or ""
        )
        report.holds("the supervisor exited with 0", fleet.stop() == 0)
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
