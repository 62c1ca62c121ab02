"""ProducerService with a real supervisor: enqueue with and without a key, stream, show, wait and cancel."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from tests.gateway.caller import Caller, Rejected
from tests.gateway.conftest import Served, serve
from tests.support.checkout import import_path
from tests.support.fleet import Stage

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.lending import Lending

TOKENS = {name: f"{name}-token-{'x' * 20}" for name in ("all", "some", "acme", "works")}
ACCESS = "".join(
    f'[principals.{name}]\ntoken_sha256 = "{hashlib.sha256(token.encode()).hexdigest()}"\n{more}\n'
    for (name, token), more in zip(
        TOKENS.items(),
        (
            "",
            'role = "enqueue"\nkinds = ["mail:*"]\nqueues = ["out"]',
            'role = "enqueue"\ntenants = ["acme"]',
            'role = "work"',
        ),
        strict=True,
    )
)


LISTENERS = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid >= 64"
"""Counts the calls that wait for jobs, once the listening session has announced them."""


def start(stage: Stage, folder: Path) -> Served:
    access = folder / "access.toml"
    access.write_text(ACCESS)
    return serve(stage, gateway_access=access, queues="default")


@pytest.fixture(scope="module")
def shared(staged: Lending, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("producer")
    with staged.database() as dsn, Stage(dsn, folder, audit=False) as stage:
        yield start(stage, folder)
        stage.show()


@pytest.fixture
def served(shared: Served) -> Served:
    """The supervisor of the module, without the jobs of an earlier test."""
    shared.stage.wait(lambda: not shared.stage.call(LISTENERS), "the end of calls that wait")
    for table in ("ready", "scheduled", "blocked", "edges", "history", "attempts", "enqueue_keys", "audit"):
        shared.stage.run(f"DELETE FROM jobherd.{table}")
    return shared


@pytest.fixture
def client(served: Served) -> Iterator[Caller]:
    with Caller(served.where, token=TOKENS["all"]) as one:
        yield one


def job(kind: str = "r:job", payload: object = None, **more: Any) -> dict[str, Any]:
    """Return a new job, in a queue that no worker serves unless `more` names another one."""
    shown = {} if payload is None else {"payload": base64.b64encode(json.dumps(payload).encode()).decode()}
    return {"kind": kind, "queue": "out", **shown, **more}


def ids(answer: dict[str, Any]) -> list[int]:
    return [int(each) for each in answer["ids"]]


def shown(answer: dict[str, Any]) -> dict[str, Any]:
    return json.loads(base64.b64decode(answer["job"]))


def rejected(client: Caller, method: str, **fields: Any) -> tuple[str, str]:
    with pytest.raises(Rejected) as caught:
        client.call(method, **fields)
    return caught.value.code, caught.value.details


def test_jobs_of_several_kinds_are_enqueued_in_their_order_with_their_options(served: Served, client: Caller):
    more = {"priority": -5, "max_attempts": 3, "timeout_seconds": 9.5, "tenant": "acme", "data": "AAEC"}
    answer = client.call("Enqueue", jobs=[job("b:one", {"n": 1}), job("a:two", **more), job("b:one", {"n": 3})])
    one, two, three = ids(answer)
    assert one < two < three
    rows = {number: served.stage.job(number) for number in (one, two, three)}
    assert [rows[number]["kind"] for number in (one, two, three)] == ["b:one", "a:two", "b:one"]
    assert (rows[one]["payload"], rows[two]["payload"], rows[three]["payload"]) == ({"n": 1}, {}, {"n": 3})
    found = rows[two]
    assert (found["priority"], found["max_attempts"], found["timeout"], found["tenant"]) == (-5, 3, 9.5, "acme")
    assert served.stage.call("SELECT (extras).payload_bytes FROM jobherd.ready WHERE id = %s", two) == b"\0\1\2"


def test_request_enqueues_all_its_jobs_or_none(served: Served, client: Caller):
    code, why = rejected(client, "Enqueue", jobs=[job(), job(priority=99999)])
    assert code == "INVALID_ARGUMENT"
    assert why.startswith("jobs[1]: priority")
    for jobs, words in (
        ([], "jobs is empty"),
        ([job("no kind")], "jobs[0]: "),
        ([{**job(), "payload": "e3s="}], "jobs[0]: "),
        ([job(delay_seconds=1, run_at_micros=1_900_000_000_000_000)], "jobs[0]: delay and run_at exclude each other"),
        ([job(run_at_micros=9_000_000_000_000_000_000)], "jobs[0]: run_at_micros must lie between"),
        ([job(webhook="ftp://x")], "jobs[0]: webhook"),
    ):
        code, why = rejected(client, "Enqueue", jobs=jobs)
        assert (code, why.startswith(words)) == ("INVALID_ARGUMENT", True), why
    assert served.stage.call("SELECT count(*) FROM jobherd.jobs") == 0


def test_job_waits_for_the_jobs_named_in_after(served: Served, client: Caller):
    [first] = ids(client.call("Enqueue", jobs=[job()]))
    [later] = ids(client.call("Enqueue", jobs=[job(after=[first], when="ended")]))
    assert shown(client.call("GetJob", id=later))["state"] == "blocked"
    for more, words in (
        ({"after": [later + 10**6]}, 'PostgreSQL rejects these jobs: jobherd.enqueue: option "after" names job'),
        ({"after": [first], "when": "never"}, "jobs[0]: when is 'completed', 'failed', 'ended'"),
        ({"when": "failed"}, "jobs[0]: when requires after"),
        ({"after": [first], "unique": {"key": "k"}}, "jobs[0]: after excludes"),
    ):
        code, why = rejected(client, "Enqueue", jobs=[job(**more)])
        assert (code, why.startswith(words)) == ("INVALID_ARGUMENT", True), why
    client.call("CancelJob", id=first)
    served.stage.wait(lambda: served.stage.job(later)["state"] == "ready", "the job that waits for the end")


def test_job_of_a_tenant_can_wait_only_for_jobs_of_that_tenant(served: Served, client: Caller):
    [other] = ids(client.call("Enqueue", jobs=[job(tenant="globex")]))
    with Caller(served.where, token=TOKENS["acme"]) as acme:
        for _ in range(2):  # a rejected request leaves no key
            code, why = rejected(acme, "Enqueue", jobs=[job(after=[other])], idempotency_key="k-1")
            assert (code, f"names job {other}, which does not exist" in why) == ("INVALID_ARGUMENT", True), why
        [own] = ids(acme.call("Enqueue", jobs=[job()]))
        later = acme.call("Enqueue", jobs=[job(after=[own])], idempotency_key="k-2")
        assert served.stage.job(ids(later)[0])["state"] == "blocked"
        served.stage.run(f"DELETE FROM jobherd.ready WHERE id = {own}")
        again = acme.call("Enqueue", jobs=[job(after=[own])], idempotency_key="k-2")
        assert again == {"ids": later["ids"], "already_enqueued": True}


def test_request_repeated_with_its_idempotency_key_enqueues_nothing(served: Served, client: Caller):
    jobs = [job(payload={"n": 1}), job(payload={"n": 2})]
    first = client.call("Enqueue", jobs=jobs, idempotency_key="k-1")
    again = client.call("Enqueue", jobs=jobs, idempotency_key="k-1")
    assert "already_enqueued" not in first
    assert again == {"ids": first["ids"], "already_enqueued": True}
    code, why = rejected(client, "Enqueue", jobs=jobs[:1], idempotency_key="k-1")
    assert (code, why.startswith("idempotency_key")) == ("INVALID_ARGUMENT", True)
    with Caller(served.where, token=TOKENS["acme"]) as other:
        # The same key of another principal is a different key.
        assert "already_enqueued" not in other.call("Enqueue", jobs=jobs, idempotency_key="k-1")
    served.stage.run("UPDATE jobherd.enqueue_keys SET created_at = created_at - interval '24 hours 1 second'")
    assert "already_enqueued" not in client.call("Enqueue", jobs=jobs[:1], idempotency_key="k-1")
    assert served.stage.call("SELECT count(*) FROM jobherd.jobs") == 5
    assert rejected(client, "Enqueue", jobs=jobs, idempotency_key="k\n")[0] == "INVALID_ARGUMENT"


def test_concurrent_requests_with_the_same_idempotency_key_enqueue_once(served: Served, client: Caller):
    calls = [client.begin("Enqueue", jobs=[job()], idempotency_key="k") for _ in range(8)]
    answers = [client.wait(call) for call in calls]
    assert len({answer["ids"][0] for answer in answers}) == 1
    assert sum("already_enqueued" not in answer for answer in answers) == 1
    assert served.stage.call("SELECT count(*) FROM jobherd.jobs") == 1


def unique(number: int = 1, **more: Any) -> dict[str, Any]:
    return job(payload={"n": number, "items": [number]}, unique={"by": ["n"], **more})


def test_unique_jobs_share_their_keys_with_all_other_producers(served: Served, client: Caller):
    [there] = served.stage.call(
        'SELECT ARRAY[jobherd.enqueue(\'r:job\', \'{"n": 1}\', \'{"unique": ["n"], "queue": "out"}\')]'
    )
    first = client.call("Enqueue", jobs=[unique(), unique(2), unique(2)], idempotency_key="u-1")
    assert ids(first) == [there, there + 1, there + 1]
    assert first["existing"] == [0, 2]
    again = client.call("Enqueue", jobs=[unique(), unique(2), unique(2)], idempotency_key="u-1")
    assert again == {**first, "already_enqueued": True}
    keyed = [job(payload={"n": n}, unique={"key": "k", "for_seconds": 60}) for n in (1, 2)]
    assert len(set(ids(client.call("Enqueue", jobs=keyed)))) == 1
    secret = [job(payload={"n": n}, unique={"secret_key": text}) for n, text in ((1, "x"), (2, "x"), (3, "y"))]
    one, two, three = ids(client.call("Enqueue", jobs=secret))
    assert (one == two, one == three) == (True, False)
    assert served.stage.run("SELECT count(*) FROM jobherd.keys WHERE shown IS NULL") == [(2,)]


def test_repeated_request_returns_its_new_and_existing_jobs_whatever_their_ids(served: Served, client: Caller):
    """PostgreSQL's integer types differ for these ids: 100 fits into a smallint, 40000 does not."""
    served.stage.run("SELECT setval('jobherd.job_ids', 99)")
    assert ids(client.call("Enqueue", jobs=[unique(1)])) == [100]
    served.stage.run("SELECT setval('jobherd.job_ids', 39999)")
    answer = client.call("Enqueue", jobs=[unique(2), unique(1)], idempotency_key="wide")
    assert (ids(answer), answer["existing"]) == ([40000, 100], [1])
    again = client.call("Enqueue", jobs=[unique(2), unique(1)], idempotency_key="wide")
    assert again == {**answer, "already_enqueued": True}


def test_unique_jobs_are_collected_debounced_and_throttled(served: Served, client: Caller):
    collect = {"conflict": "collect", "collect": "items", "debounce_seconds": 60}
    first = ids(client.call("Enqueue", jobs=[unique(**collect)]))
    assert ids(client.call("Enqueue", jobs=[unique(**collect)])) == first
    row = served.stage.job(first[0])
    assert (row["state"], row["payload"]["items"]) == ("scheduled", [1, 1])
    throttled = unique(7, throttle_seconds=60, edge="trailing")
    assert ids(client.call("Enqueue", jobs=[throttled])) == ids(client.call("Enqueue", jobs=[throttled]))


def test_duplicate_with_conflict_raise_enqueues_nothing_and_names_the_holder(client: Caller):
    [there] = ids(client.call("Enqueue", jobs=[unique()]))
    must = {"conflict": "raise"}
    assert client.call("Enqueue", jobs=[unique(5), unique(**must)]) == {"holder": str(there)}
    assert client.call("Enqueue", jobs=[unique(6, **must), unique(6, **must)]) == {"holder": "0"}
    stream = client.open("EnqueueStream")
    client.put(stream, number=1, jobs=[unique(**must)])
    client.put(stream, number=2, jobs=[unique(5, **must)])
    assert client.next(stream) == {"number": "1", "holder": str(there)}
    assert "holder" not in client.next(stream)


def test_error_names_the_invalid_option_of_a_unique_job(served: Served, client: Caller):
    for wrong, words in (
        ({"during": "later"}, "during must be"),
        ({"conflict": "collect"}, "conflict='collect' and collect="),
        ({"during": "never"}, "during='never' requires unique_for"),
        ({"throttle_seconds": 1, "for_seconds": 1}, "throttle excludes"),
        ({"secret_key": "x"}, "unique.secret_key excludes by"),
        ({"for_seconds": -1}, "unique_for"),
    ):
        code, why = rejected(client, "Enqueue", jobs=[unique(**wrong)])
        assert (code, why.startswith("jobs[0]: ")) == ("INVALID_ARGUMENT", True), why
        assert words in why
    with_queues = {"conflict": "replace"}
    with Caller(served.where, token=TOKENS["some"]) as some:
        mail = {**unique(**with_queues), "kind": "mail:x"}
        assert "set unique.per_queue" in rejected(some, "Enqueue", jobs=[mail])[1]
        mail["unique"]["per_queue"] = True
        assert len(ids(some.call("Enqueue", jobs=[mail]))) == 1


def test_principal_can_enqueue_only_its_kinds_queues_and_tenants(served: Served, client: Caller):
    with Caller(served.where, token=TOKENS["some"]) as some:
        assert len(ids(some.call("Enqueue", jobs=[job("mail:receipt")]))) == 1
        assert rejected(some, "Enqueue", jobs=[job("r:job")])[0] == "PERMISSION_DENIED"
        assert rejected(some, "Enqueue", jobs=[job("mail:x", queue="default")])[0] == "PERMISSION_DENIED"
        assert rejected(some, "Enqueue", jobs=[job("mail:x", queue="")])[0] == "INVALID_ARGUMENT"
    with Caller(served.where, token=TOKENS["acme"]) as acme:
        [mine] = ids(acme.call("Enqueue", jobs=[job()]))
        assert served.stage.job(mine)["tenant"] == "acme"
        assert rejected(acme, "Enqueue", jobs=[job(tenant="other")])[0] == "PERMISSION_DENIED"
        [others] = ids(client.call("Enqueue", jobs=[job(tenant="other")]))
        for method in ("GetJob", "CancelJob"):
            assert rejected(acme, method, id=others) == ("NOT_FOUND", f"job {others} not found")
        assert served.stage.job(others)["state"] == "ready"
        assert shown(acme.call("GetJob", id=mine))["state"] == "ready"
    with Caller(served.where, token=TOKENS["works"]) as works:
        for method, fields in (("Enqueue", {"jobs": [job()]}), ("GetJob", {"id": mine}), ("CancelJob", {"id": mine})):
            assert rejected(works, method, **fields)[0] == "PERMISSION_DENIED"
    with Caller(served.where, token="wrong" * 5) as stranger:
        assert rejected(stranger, "Enqueue", jobs=[job()])[0] == "UNAUTHENTICATED"


def test_get_job_returns_the_same_json_as_the_command_line(served: Served, client: Caller):
    numbers = ids(client.call("Enqueue", jobs=[job("t:noop", {"n": 7}, queue="default"), job(data="AAEC")]))
    served.stage.wait_state(numbers[0], "completed")
    for number in numbers:
        command = [sys.executable, "-m", "supervisor", "job", str(number), "--json", "--dsn", served.stage.dsn]
        done = subprocess.run(
            command, env=os.environ | {"PYTHONPATH": import_path()}, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        assert shown(client.call("GetJob", id=number)) == json.loads(done.stdout)
    assert rejected(client, "GetJob", id=10**9) == ("NOT_FOUND", "job 1000000000 not found")


def test_get_job_waits_until_the_job_has_finished(served: Served, client: Caller):
    numbers = ids(client.call("Enqueue", jobs=[job(), job()]))
    calls = [client.begin("GetJob", id=number, wait_seconds=60) for number in numbers]
    # Both calls wait once the listening session has announced them.
    served.stage.wait(
        lambda: served.stage.call(LISTENERS) >= 2,
        "both calls to wait",
    )
    served.stage.call("SELECT jobherd.cancel(%s)", numbers[1])
    assert shown(client.wait(calls[1]))["state"] == "cancelled"
    served.stage.call("SELECT jobherd.cancel(%s)", numbers[0])
    assert shown(client.wait(calls[0]))["state"] == "cancelled"
    assert shown(client.call("GetJob", id=numbers[0], wait_seconds=60))["state"] == "cancelled"


def test_get_job_returns_after_its_wait_even_if_the_job_has_not_finished(client: Caller):
    [number] = ids(client.call("Enqueue", jobs=[job()]))
    assert shown(client.call("GetJob", id=number, wait_seconds=0.1))["state"] == "ready"


def test_cancel_job_cancels_the_job_and_writes_an_audit_entry(served: Served, client: Caller):
    [number] = ids(client.call("Enqueue", jobs=[job()]))
    assert client.call("CancelJob", id=number, reason="sent by mistake") == {"state": "cancelled"}
    assert client.call("CancelJob", id=number) == {"state": "cancelled"}
    assert served.stage.run("SELECT actor, reason FROM jobherd.audit ORDER BY id LIMIT 1") == [
        ("all", "sent by mistake")
    ]
    assert rejected(client, "CancelJob", id=10**9)[0] == "NOT_FOUND"


def test_producer_that_waits_for_a_lock_delays_no_claim(served: Served, client: Caller):
    stage = served.stage
    with stage.connection.transaction():
        stage.run("INSERT INTO jobherd.enqueue_keys (principal, key, digest) VALUES ('all', 'k', '')")
        blocked: list[int] = []

        def waits() -> bool:
            """Return whether a call waits. Start another if none does: each waits only 2 s, and checks can miss it."""
            if stage.call("SELECT count(*) FROM pg_locks WHERE NOT granted"):
                return True
            blocked.append(client.begin("Enqueue", jobs=[job()], idempotency_key="k"))
            return False

        stage.wait(waits, "the call to wait for the key")
        with Caller(served.where, token=TOKENS["all"]) as other:
            [number] = ids(other.call("Enqueue", jobs=[job()]))
            task = other.call("ClaimJobs", ready={"queues": ["out"]}, wait_seconds=30)["tasks"][0]
            assert int(task["id"]) == number
    for call in blocked:
        with pytest.raises(Rejected):
            client.wait(call)


def test_enqueue_is_rejected_while_another_transaction_holds_its_key(served: Served, client: Caller):
    with psycopg.connect(served.stage.dsn) as user:
        user.execute('SELECT jobherd.enqueue(\'r:job\', \'{"n": 1}\', \'{"unique": ["n"], "queue": "out"}\')')
        code, why = rejected(client, "Enqueue", jobs=[unique()])
        assert (code, why) == ("UNAVAILABLE", "another transaction holds a key of these jobs: send them again")
        assert len(ids(client.call("Enqueue", jobs=[unique(2)]))) == 1
        user.rollback()
    assert len(ids(client.call("Enqueue", jobs=[unique()]))) == 1


def test_stream_ends_when_its_principal_is_removed_or_restricted(stage: Stage, tmp_path: Path):
    served, access = start(stage, tmp_path), tmp_path / "access.toml"
    for rest in (ACCESS.replace('tenants = ["acme"]', 'tenants = ["else"]'), ACCESS.partition("[principals.acme]")[0]):
        with Caller(served.where, token=TOKENS["acme"]) as client:
            stream = client.open("EnqueueStream")
            client.put(stream, number=1, jobs=[job()])
            assert len(ids(client.next(stream))) == 1
            access.write_text(rest)
            client.put(stream, number=2, jobs=[job()])
            with pytest.raises(Rejected) as caught:
                client.next(stream)
            assert caught.value.code == "UNAUTHENTICATED"
        access.write_text(ACCESS)
    assert stage.call("SELECT count(*) FROM jobherd.ready") == 2


def test_gateway_with_a_waiting_producer_exits_without_an_error(stage: Stage, tmp_path: Path):
    served = start(stage, tmp_path)
    with Caller(served.where, token=TOKENS["all"]) as client:
        [number] = ids(client.call("Enqueue", jobs=[job()]))
        waiting = client.begin("GetJob", id=number, wait_seconds=60)
        stage.wait(lambda: stage.call(LISTENERS) >= 1, "the call to wait")
        assert served.fleet.stop() == 0
        with pytest.raises(Rejected):
            client.wait(waiting)
    assert not served.fleet.said("gets SIG")
    assert not [event for event in served.fleet.said("") if event.get("level") in {"error", "critical"}]
