"""The search for jobs: every state, every field of the filter, pagination, and the time limit."""

from __future__ import annotations

import contextlib
from itertools import count

import psycopg
import pytest

from jobherd.workers.dashboard import job_search
from jobherd.workers.dashboard.database import Database, Reading
from jobherd.workers.dashboard.filters import STATES, Wanted
from tests.cli.rows import child, claim, past, send, supervisor
from tests.dashboard.support import finish


def fill(dsn):
    """Insert one job of each state and a parked one. Return their ids by state."""
    [(running,)] = send(dsn, "SELECT jobherd.enqueue('a:b', '{\"word\": \"running\"}')")
    claim(dsn, child(dsn, supervisor(dsn)))
    declare(dsn, "a:b", "mail:x", "mail:receipt")
    return {
        "running": running,
        "ready": send(dsn, "SELECT jobherd.enqueue('mail:x', '{\"word\": \"50%% off_\"}', '{\"tenant\": \"acme\"}')")[0][0],
        "parked": send(dsn, "INSERT INTO jobherd.parked (kind, queue) VALUES ('a:b', 'full') RETURNING id")[0][0],
        "blocked": send(dsn, "SELECT jobherd.enqueue('a:b', '{}', jsonb_build_object('after', %s::bigint))", running)[0][0],
        "scheduled": send(dsn, "SELECT jobherd.enqueue('a:b', '{}', '{\"delay\": \"1h\"}')")[0][0],
        "retrying": send(
            dsn,
            "INSERT INTO jobherd.scheduled (kind, attempts, run_at, last_error) VALUES ('a:b', 1, now() + '1 min', '{\"code\": \"BOOM\", \"message\": \"Kaputt\"}') RETURNING id",
        )[0][0],
        **{state: past(dsn, state) for state in ("completed", "failed", "cancelled", "expired")},
    }  # fmt: skip


def declare(dsn, *kinds, redact="[]"):
    """Declare kinds like a worker. A search for text covers only jobs of declared kinds."""
    for kind in kinds:
        send(
            dsn,
            "INSERT INTO jobherd.kinds (name, queue, priority, max_attempts, max_crashes, keep_completed, keep_failed, redact)"
            " VALUES (%s, 'default', 0, 5, 3, 7, 30, %s) ON CONFLICT (name) DO UPDATE SET redact = excluded.redact",
            kind,
            redact,
        )


@contextlib.contextmanager
def looks(dsn):
    """Yield a function that searches like the list of jobs and returns the result."""
    yield lambda wanted=Wanted(), **more: finish(_look(dsn, wanted, **more))  # noqa: B008


async def _look(dsn, wanted, **more):
    database = Database(dsn)
    try:
        return await job_search.search_jobs(database, wanted, **more)
    finally:
        await database.close()


def ids(found):
    return [row["id"] for row in found.rows]


def test_search_finds_jobs_by_state_and_lists_all_newest_first(database):
    made = fill(database)
    with looks(database) as look:
        found = look()
        assert ids(found) == sorted(made.values(), reverse=True)
        assert (found.onward, found.floor, found.is_late) == (None, 0, False)
        for state in STATES:
            wanted = [made[state]] + ([made["parked"]] if state == "ready" else [])
            assert sorted(ids(look(Wanted(states=(state,))))) == sorted(wanted), state
        assert [row["parked"] for row in look(Wanted(queue="full")).rows] == [True]


@pytest.mark.parametrize(
    ("wanted", "states"),
    [
        ({"kind": "mail:x"}, ["ready"]),
        ({"queue": "full"}, ["parked"]),
        ({"tenant": "acme"}, ["ready"]),
        ({"code": "BOOM"}, ["retrying", "failed", "cancelled", "expired"]),
        ({"code": "BOOM", "states": ("failed", "running")}, ["failed"]),
        ({"text": "50% OFF_"}, ["ready"]),
        ({"text": "5% off_"}, []),
        ({"text": "kaputt", "since": "-2h"}, []),
        ({"text": "order_id"}, ["completed", "failed", "cancelled", "expired"]),
        ({"text": "it broke"}, ["failed"]),
        ({"since": "-30s"}, ["scheduled", "retrying"]),
        ({"since": "-30s", "until": "-10m"}, ["retrying"]),
        ({"kind": "no:such"}, []),
    ],
)
def test_filter_returns_exactly_the_matching_jobs(database, wanted, states):
    made = fill(database)
    with looks(database) as look:
        assert sorted(ids(look(Wanted(**wanted)))) == sorted(made[state] for state in states)


def test_job_that_finishes_between_two_steps_is_found_once(database, monkeypatch):
    """Regression: such a job was listed twice, and bulk actions counted it twice."""
    waits = [send(database, "SELECT jobherd.enqueue('a:b')")[0][0] for _ in range(3)]
    rows = Database.rows

    async def asking(at, name, *given, **more):
        found = await rows(at, name, *given, **more)
        if name == "dashboard/list_live":
            send(database, "SELECT jobherd.cancel(%s)", waits[1])
        return found

    monkeypatch.setattr(Database, "rows", asking)
    with looks(database) as look:
        found = look()
    assert [(row["id"], row["state"]) for row in found.rows] == [
        (waits[2], "ready"),
        (waits[1], "cancelled"),
        (waits[0], "ready"),
    ]


def test_pages_follow_each_other_without_gap_or_repetition(database):
    past(database, "completed", many=300)
    past(database, "failed", many=40, kind="rare:one")
    send(database, "SELECT jobherd.enqueue('rare:one', '{}') FROM generate_series(1, 25)")
    past(database, "completed", many=300, kind="rare:one")
    for wanted, many in ((Wanted(), 665), (Wanted(kind="rare:one"), 365), (Wanted(states=("failed", "ready")), 65)):
        seen, before = [], job_search.LARGEST
        with looks(database) as look:
            while before is not None:
                found = look(wanted, before=before, limit=17)
                seen += ids(found)
                before = found.onward
        assert seen == sorted(set(seen), reverse=True)
        assert len(seen) == many


def test_search_finds_rare_jobs_far_back_and_lists_frequent_ones_newest_first(database, monkeypatch):
    """Beyond the first rows, the search reads ranges of ids. If a range has too many matches, it must return the newest."""
    monkeypatch.setattr(job_search, "FIRST", 100)
    monkeypatch.setattr(job_search, "MOST", 4_500)
    rare = past(database, "failed", kind="rare:one")
    dense = past(database, "completed", kind="dense:one", many=9_000)
    past(database, "completed", many=12_000)
    with looks(database) as look:
        assert ids(look(Wanted(kind="rare:one"))) == [rare]
        assert ids(look(Wanted(kind="dense:one"), limit=20)) == list(range(dense, dense - 20, -1))
        assert ids(look(Wanted(kind="dense:one"), before=dense - 8_990)) == list(
            range(dense - 8_991, dense - 9_000, -1)
        )
        found = look(Wanted(kind="no:such"))
        assert (ids(found), found.onward) == ([], None)


def test_jobs_of_a_past_time_are_found_in_few_steps_even_with_a_larger_id(database, monkeypatch):
    """One step covers all ids that are newer than the time. Jobs with such an id can still have ended before it."""
    monkeypatch.setattr(job_search, "FIRST", 100)
    monkeypatch.setattr(job_search, "MOST", 4_500)
    past(database, "completed", days=3, many=9_000)
    old = past(database, "completed", days=2, many=300)
    past(database, "completed", many=30_000)
    late = past(database, "completed", days=3)
    past(database, "completed", many=200)
    [(until,)] = send(database, "SELECT (finished_at + interval '1 ms')::text FROM jobherd.history WHERE id = %s", old)
    asked = []
    rows = Reading.rows

    async def note(self, name, parameters=None):
        asked.append(name)
        return await rows(self, name, parameters)

    monkeypatch.setattr(Reading, "rows", note)
    with looks(database) as look:
        assert ids(look(Wanted(until=until), limit=20)) == [late, *range(old, old - 19, -1)]
        assert asked.count("dashboard/list_finished_ranges") == 2
        assert ids(look(Wanted(until="9d"), limit=20)) == []


def test_search_reads_a_limited_number_of_waiting_jobs_and_returns_where_to_continue(database):
    [(rare,)] = send(database, "SELECT jobherd.enqueue('rare:one', '{}')")
    newest = past(database, "completed", kind="rare:one")
    send(database, "INSERT INTO jobherd.ready (kind) SELECT 'a:b' FROM generate_series(1, 500)")
    with looks(database) as look:
        found = look(Wanted(kind="rare:one"), scan=100)
        assert (ids(found), found.floor, found.onward) == ([], newest + 401, newest + 401)
        seen = []
        while found.onward is not None:
            found = look(Wanted(kind="rare:one"), scan=100, before=found.onward)
            seen += ids(found)
        assert seen == [newest, rare]


def test_search_that_runs_out_of_time_returns_where_to_continue(database):
    past(database, "completed", many=20_000)
    ticks = count(0, 0.7)  # 0.7 s pass between two readings of the clock
    with looks(database) as look:
        found = look(Wanted(text="nowhere", since="30d", states=("completed",)), clock=lambda: next(ticks), budget=2.0)
        assert found.is_late
        assert found.rows == []
        assert 0 < found.floor
        assert found.onward == found.floor


def test_search_that_waits_for_a_lock_is_canceled_in_time_without_an_error(database):
    past(database, "completed", many=3)
    with psycopg.connect(database) as other, looks(database) as look:
        other.execute("LOCK TABLE jobherd.history")
        found = look(Wanted(states=("completed",)), budget=0.2)
        assert (found.rows, found.is_late, found.onward) == ([], True, job_search.LARGEST)


def test_text_search_skips_kinds_with_redacted_fields_and_lists_redact_their_errors(database):
    number = past(database, "failed", kind="card:charge", error="card 4111222233334444 is not valid\nline two")
    send(database, 'UPDATE jobherd.history SET payload = \'{"card": "4111222233334444"}\'')
    hidden = {"card:charge": ("$.card",)}
    declare(database, "card:charge", redact='["$.card"]')
    with looks(database) as look:
        assert ids(look(Wanted(text="4111"), hidden=hidden)) == []
        assert ids(look(Wanted(text="not valid"), hidden=hidden)) == []
        [row] = look(Wanted(kind="card:charge"), hidden=hidden).rows
        assert row["id"] == number
        assert "41112222" not in row["error"]
        assert "is not valid" in row["error"]
