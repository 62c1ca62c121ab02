"""Extras (tenant, webhook, binary payload) stay with the job in every state. A tenant's role can access only its tenant's jobs."""

from __future__ import annotations

import json

import psycopg
import pytest
from psycopg import sql as names

from jobherd import Client
from jobherd.handlers import jobs_webhook
from jobherd.workers.job.row import claimed_jobs
from tests.support.queue import NOTHING, Queue

OPTIONS = '{"tenant": "acme", "webhook": "https://example.com/done"}'
BYTES = b"\x00\xff\x89PNG, which is not UTF-8"
ROLES = ("jobherd_test_acme", "jobherd_test_globex", "jobherd_test_member")


@pytest.fixture
def queue(database):
    with Queue(database) as queue:
        queue.run("SELECT jobherd.enable_webhooks()")
        yield queue


def put(queue, kind="a:b", options=OPTIONS, data=BYTES):
    return queue.run("SELECT jobherd.enqueue_bytes(%s, %s, %s::jsonb)", kind, data, options)[0][0]


def extras(queue, job):
    """Return the extras of a job in any state."""
    rows = queue.run(
        """SELECT (extras).tenant, (extras).webhook, (extras).payload_bytes FROM (
               SELECT id, extras FROM jobherd.ready UNION ALL SELECT id, extras FROM jobherd.scheduled UNION ALL
               SELECT id, extras FROM jobherd.history UNION ALL SELECT j.id, j.extras FROM jobherd.running, unnest(jobs) AS j) AS all_of_them
            WHERE id = %s""",
        job,
    )
    assert len(rows) == 1
    return rows[0]


WHOLE = ("acme", "https://example.com/done", BYTES)


def test_claim_returns_extras_directly_unless_the_job_has_other_rare_options(queue):
    plain, rich = put(queue), put(queue, options='{"tenant": "acme", "max_attempts": 7}')
    child = queue.child()
    rows = child.connection.execute(queue.text("claim/claim_jobs"), child.parameters(2)).fetchall()
    seen = {row[0]: json.loads(row[-1]) for row in rows[1:]}
    assert (seen[plain]["tenant"], seen[rich]["max_attempts"]) == ("acme", 7)
    assert [(one.max_attempts, json.loads(one.extras)["tenant"]) for one in claimed_jobs(rows)] == [
        (None, "acme"),
        (7, "acme"),
    ]


@pytest.mark.promise("D36", "D40")
def test_extras_stay_with_the_job_in_every_state(queue):
    job = put(queue, options='{"tenant": "acme", "webhook": "https://example.com/done", "delay": 3600}')
    assert extras(queue, job) == WHOLE
    queue.run("UPDATE jobherd.scheduled SET run_at = now() - interval '1 s'")
    queue.connection.execute(queue.text("maintenance/promote_due"), {"most": 10})
    assert extras(queue, job) == WHOLE
    child = queue.child()
    for outcome in ("retry", "snoozed", "abandoned", "failed"):
        token = child.claim(10)[0].token
        assert extras(queue, job) == WHOLE
        child.settle(token, [job], outcome, error="why")
        assert extras(queue, job) == WHOLE
        queue.run("SELECT jobherd.retry(%s)", job)
        assert extras(queue, job) == WHOLE
    assert queue.run("SELECT jobherd.cancel(%s)", job) == [("cancelled",)]
    assert extras(queue, job) == WHOLE
    shown = queue.run("SELECT tenant, webhook, payload_bytes FROM jobherd.jobs WHERE id = %s", job)
    assert shown == [("acme", "https://example.com/done", f"{len(BYTES)} bytes, {BYTES[:16].hex()}...")]


def test_job_without_extras_stores_null(queue):
    plain, with_options = (
        queue.enqueue("a:b"),
        queue.run("SELECT jobherd.enqueue('a:b', '{}', '{\"priority\": 3}')")[0][0],
    )
    many = queue.enqueue_many("a:b", 2)
    assert queue.run("SELECT count(*) FROM jobherd.ready WHERE extras IS DISTINCT FROM NULL") == [(0,)]
    assert queue.run("SELECT count(*) FROM jobherd.ready WHERE id = ANY (%s)", [plain, with_options, *many]) == [(4,)]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ('{"tenant": "no spaces"}', 'option "tenant"'),
        ('{"tenant": ""}', 'option "tenant"'),
        ('{"webhook": "ftp://example.com"}', 'option "webhook"'),
        ('{"webhook": "https://user:secret@example.com/"}', 'option "webhook"'),
        ('{"webhook": "https://example.com/a b"}', 'option "webhook"'),
    ],
)
def test_enqueue_rejects_an_invalid_tenant_or_webhook_and_names_the_option(queue, options, says):
    with pytest.raises(psycopg.errors.InvalidParameterValue, match=says):
        put(queue, options=options)


def test_binary_payload_has_a_size_limit_and_must_not_be_null(queue):
    with pytest.raises(psycopg.errors.ProgramLimitExceeded, match="payload_bytes are 1000001 bytes"):
        put(queue, data=b"x" * 1_000_001)
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="must not be null"):
        put(queue, data=None)
    assert extras(queue, put(queue, data=b""))[2] == b""


@pytest.fixture
def tenants(queue):
    """Provide roles of two tenants and a member of the first. Roles belong to the server, so they are dropped."""
    with psycopg.connect(queue.dsn, autocommit=True) as connection:
        for role in ROLES:
            connection.execute(names.SQL("CREATE ROLE {}").format(names.Identifier(role)))
        connection.execute("GRANT jobherd_test_acme TO jobherd_test_member")
        connection.execute(
            "SELECT jobherd.grant_tenant('jobherd_test_acme', 'acme'), jobherd.grant_tenant('jobherd_test_globex', 'globex')"
        )
        try:
            yield connection
        finally:
            connection.execute("RESET ROLE")
            connection.execute(f"DROP OWNED BY {', '.join(ROLES)}")
            connection.execute(f"DROP ROLE {', '.join(ROLES)}")


def ask(connection, statement, *parameters):
    return connection.execute(statement, parameters).fetchall()


@pytest.mark.promise("D8", "D34", "D40")
@pytest.mark.parametrize("role", ["jobherd_test_acme", "jobherd_test_member"])
def test_tenant_role_can_access_only_jobs_of_its_tenant(queue, tenants, role):
    other = ask(tenants, "SELECT jobherd.enqueue('a:b', '{}', '{\"tenant\": \"globex\"}')")[0][0]
    nobodys = ask(tenants, "SELECT jobherd.enqueue('a:b')")[0][0]
    running = ask(tenants, 'SELECT jobherd.enqueue(\'a:c\', \'{}\', \'{"tenant": "globex", "queue": "c"}\')')[0][0]
    assert [job.id for job in queue.child().claim(10, ["c"])] == [running]
    tenants.execute(names.SQL("SET ROLE {}").format(names.Identifier(role)))
    own = [
        ask(tenants, "SELECT jobherd.enqueue('a:b')")[0][0],
        ask(tenants, "SELECT jobherd.enqueue('a:b', '{}', '{\"tenant\": \"acme\", \"delay\": 60}')")[0][0],
        ask(tenants, "SELECT jobherd.enqueue_bytes('a:b', 'x')")[0][0],
    ]
    for table in ("tenant_jobs", "ready"):
        seen = ask(tenants, f"SELECT id FROM jobherd.{table} ORDER BY id")
        assert {number for (number,) in seen} <= set(own), table
    assert ask(tenants, "SELECT id, tenant FROM jobherd.tenant_jobs ORDER BY id") == [(job, "acme") for job in own]
    for options in ('{"tenant": "globex"}', '{"tenant": "globex", "delay": 60}'):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            ask(tenants, "SELECT jobherd.enqueue('a:b', '{}', %s::jsonb)", options)
    for job in (other, nobodys, running):
        assert ask(tenants, "SELECT jobherd.cancel(%s), jobherd.retry(%s), jobherd.cancel_own(%s)", job, job, job) == [
            (None, None, None)
        ]
    for statement in (
        "SELECT * FROM jobherd.jobs",
        "SELECT * FROM jobherd.history",
        "SELECT * FROM jobherd.running",
        "SELECT * FROM jobherd.tenants",
        "DELETE FROM jobherd.ready",
        "UPDATE jobherd.ready SET priority = -9",
        "SELECT jobherd.grant_tenant('jobherd_test_acme', 'globex')",
        "SELECT jobherd.pause('default')",
    ):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            tenants.execute(statement)
    assert ask(tenants, "SELECT jobherd.retry(%s)", own[1]) == [("ready",)]
    assert ask(tenants, "SELECT jobherd.cancel(%s)", own[0]) == [("cancelled",)]
    assert ask(tenants, "SELECT id FROM jobherd.tenant_jobs WHERE state = 'cancelled'") == [(own[0],)]
    tenants.execute("RESET ROLE")
    assert ask(tenants, "SELECT count(*) FROM jobherd.jobs WHERE id = ANY (%s)", [other, nobodys, running]) == [(3,)]
    assert ask(tenants, "SELECT count(*) FROM jobherd.jobs WHERE state = 'cancelled'") == [(1,)]


@pytest.mark.parametrize("table", ["ready", "scheduled"])
def test_tenant_role_cannot_choose_the_id_of_a_job(queue, tenants, table):
    """Attempts are found by the id of the job only.

    With the id of another tenant's job, a tenant would see that job's errors.
    """
    job = queue.enqueue("a:b", tenant="globex")
    child = queue.child()
    child.settle(child.claim(1)[0].token, [job], "retry", error="globex has failed", delay=0.0)
    tenants.execute("SET ROLE jobherd_test_acme")
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        tenants.execute(
            f"INSERT INTO jobherd.{table} (id, kind, extras) VALUES (%s, 'a:b', jobherd.extras_of('acme', NULL, NULL))",
            [job],
        )
    assert ask(tenants, "SELECT id FROM jobherd.tenant_jobs") == []


@pytest.mark.parametrize("delay", [None, 60.0])
def test_ids_follow_the_order_of_payloads_that_a_tenant_role_enqueues(queue, tenants, delay):
    tenants.execute("SET ROLE jobherd_test_acme")
    payloads = [f'{{"n": {number}}}' for number in range(2_500)]
    rows = tenants.execute(
        queue.text("enqueue/enqueue_jobs"), NOTHING | {"kind": "a:b", "payloads": payloads, "delay": delay}
    ).fetchall()
    table = "ready" if delay is None else "scheduled"
    assert rows == queue.run(f"SELECT id FROM jobherd.{table} ORDER BY (payload ->> 'n')::integer")
    assert rows == sorted(rows)


def test_tenant_role_cannot_suppress_audit_entries(queue, tenants):
    tenants.execute("SET ROLE jobherd_test_acme")
    tenants.execute("SET jobherd.noted = 'yes'")  # as note_audit sets it for parts of a larger action
    job = ask(tenants, "SELECT jobherd.enqueue('a:b')")[0][0]
    assert ask(tenants, "SELECT jobherd.cancel(%s), jobherd.retry(%s)", job, job) == [("cancelled", "ready")]
    tenants.execute("RESET ROLE")
    assert ask(tenants, "SELECT action, target FROM jobherd.audit ORDER BY id") == [
        ("cancel", {"job": job}),
        ("retry", {"job": job}),
    ]


def test_function_in_a_tenants_query_gets_no_rows_of_other_tenants(queue, tenants):
    tenants.execute("SELECT jobherd.enqueue('a:b', '{\"secret\": 1}', '{\"tenant\": \"globex\"}')")
    tenants.execute("CREATE FUNCTION public.tell(document json) RETURNS boolean LANGUAGE plpgsql COST 0.0001 AS $$"
                    " BEGIN RAISE EXCEPTION 'saw %', document; END $$")  # fmt: skip
    tenants.execute("SET ROLE jobherd_test_acme")
    assert ask(tenants, "SELECT id FROM jobherd.tenant_jobs WHERE public.tell(payload)") == []
    assert ask(tenants, "SELECT id FROM jobherd.ready WHERE public.tell(payload)") == []


def test_role_of_several_tenants_must_name_one_and_a_role_of_none_has_no_access(queue, tenants):
    assert ask(tenants, "SELECT jobherd.grant_tenant('jobherd_test_acme', 'initech')") == [(True,)]
    assert ask(tenants, "SELECT jobherd.grant_tenant('jobherd_test_acme', 'initech')") == [(False,)]
    tenants.execute("SET ROLE jobherd_test_acme")
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        tenants.execute("SELECT jobherd.enqueue('a:b')")
    tenants.execute("SELECT jobherd.enqueue('a:b', '{}', '{\"tenant\": \"initech\"}')")
    tenants.execute("RESET ROLE")
    for tenant in ("acme", "initech"):
        assert ask(tenants, "SELECT jobherd.revoke_tenant('jobherd_test_acme', %s)", tenant) == [(True,)]
    tenants.execute("SET ROLE jobherd_test_acme")
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        tenants.execute("SELECT * FROM jobherd.tenant_jobs")


def test_grant_tenant_rejects_missing_roles_superusers_and_invalid_names(queue, tenants):
    with pytest.raises(psycopg.errors.UndefinedObject, match="there is no role"):
        tenants.execute("SELECT jobherd.grant_tenant('nobody_at_all', 'acme')")
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="superuser"):
        tenants.execute("SELECT jobherd.grant_tenant(session_user, 'acme')")
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="not the name of a tenant"):
        tenants.execute("SELECT jobherd.grant_tenant('jobherd_test_acme', 'a b')")


def test_row_security_is_off_until_a_tenant_is_granted(queue):
    assert queue.run("SELECT count(*) FROM pg_class WHERE relrowsecurity") == [(0,)]


def told(queue):
    return [row[0] for row in queue.run("SELECT payload FROM jobherd.ready WHERE kind = 'jobs:webhook' ORDER BY id")]


def sent_for(queue, event):
    """Return the URL and the event that the webhook handler would send, or None."""
    with Client(queue.dsn) as client, pytest.MonkeyPatch.context() as patch:
        patch.setattr(jobs_webhook, "default_client", lambda: client)
        found = jobs_webhook.find_end(event)
    return None if found is None else (found[0], json.loads(found[1]))


HOOKED = '{"webhook": "https://example.com/done", "tenant": "acme", "queue": "mail"}'


@pytest.mark.promise("D40")
@pytest.mark.parametrize("outcome", ["ok", "failed", "poison", "cancelled", "expired"])
def test_every_final_outcome_enqueues_one_webhook_job(queue, outcome):
    job = queue.run("SELECT jobherd.enqueue('a:b', '{}', %s::jsonb)", HOOKED)[0][0]
    plain = queue.enqueue("a:b", queue="mail")
    child = queue.child()
    claimed = child.claim(10)
    assert [one.id for one in claimed] == [job, plain]
    child.settle(
        claimed[0].token, [job, plain], outcome, error="why", result='{"pages": 3}' if outcome == "ok" else None, keep=0
    )
    ((message,), (row,)) = told(queue), queue.run("SELECT queue, tenant FROM jobherd.jobs WHERE kind = 'jobs:webhook'")
    assert row == ("mail", "acme")
    assert message["url"] == "https://example.com/done"
    event = message["event"]
    assert (event["id"], event["kind"], event["queue"], event["tenant"], event["attempts"]) == (
        job,
        "a:b",
        "mail",
        "acme",
        1,
    )
    assert event["state"] == {"ok": "completed", "poison": "failed"}.get(outcome, outcome)
    assert "result" not in event, "the webhook handler reads the result from the history"
    (url, sent) = sent_for(queue, event)
    assert url == "https://example.com/done"
    assert sent == event | {"result": {"pages": 3} if outcome == "ok" else None, "result_omitted": False}


def test_settle_completed_enqueues_a_webhook_job_even_if_the_job_is_not_kept(queue):
    put(queue)
    child = queue.child()
    (one,) = child.claim(10)
    parameters = child.settlement(one.token, [one.id], "ok") | {"keeps": [0], "ago": [0.0]}
    child.connection.execute(queue.text("settle/settle_completed"), parameters)
    assert [message["event"]["state"] for message in told(queue)] == ["completed"]


def test_retry_enqueues_no_webhook_job_and_a_large_result_is_omitted(queue):
    job = put(queue)
    child = queue.child()
    child.settle(child.claim(10)[0].token, [job], "retry", error="why")
    assert told(queue) == []
    child.settle(child.claim(10)[0].token, [job], "ok", result='"' + "x" * 10_000 + '"')
    (message,) = told(queue)
    (_, sent) = sent_for(queue, message["event"])
    assert (sent["result"], sent["result_omitted"]) == (None, True)


@pytest.mark.parametrize(
    "event", [{}, {"id": 1}, {"id": "1", "finished_at": "now"}, {"id": -1, "finished_at": "2026-01-01T00:00:00+00:00"}]
)
def test_webhook_event_without_a_match_in_the_history_is_not_sent(queue, event):
    put(queue)
    child = queue.child()
    child.settle(child.claim(1)[0].token, [1], "ok")
    assert sent_for(queue, event) is None


def test_webhook_event_of_a_job_that_was_retried_or_deleted_since_is_not_sent(queue):
    job = put(queue)
    child = queue.child()
    for end in ("retry", "delete"):
        child.settle(child.claim(1)[0].token, [job], "failed", error="why")
        event = told(queue)[-1]["event"]
        assert sent_for(queue, event) is not None
        queue.run(f"SELECT jobherd.{end}(%s)", job)
        assert sent_for(queue, event) is None
        queue.run("DELETE FROM jobherd.ready WHERE kind = 'jobs:webhook'")


@pytest.mark.parametrize(
    "how", ["cancelled while it waits", "its host is lost", "its child is lost", "its child is not registered"]
)
def test_end_without_a_settlement_enqueues_a_webhook_job(queue, how):
    job = put(queue, options='{"webhook": "https://example.com/done", "max_attempts": 1}')
    supervisor, child = queue.supervisor(), None
    if how == "cancelled while it waits":
        queue.run("SELECT jobherd.cancel(%s)", job)
    else:
        child = supervisor.child()
        child.claim(1)
        if how == "its host is lost":
            queue.supervisor().reclaim(dead=[supervisor.id])
        elif how == "its child is lost":
            queue.run("SELECT jobherd.cancel(%s)", job)
            child.release()
        else:
            queue.run("DELETE FROM jobherd.children WHERE id = %s", child.id)
            queue.connection.execute(queue.text("recover/requeue_orphans"))
    (message,) = told(queue)
    assert (message["event"]["id"], message["event"]["state"]) == (
        job,
        "failed" if how in {"its host is lost", "its child is not registered"} else "cancelled",
    )


def test_rolled_back_transaction_enqueues_no_webhook_job(queue):
    job = put(queue)
    with queue.connection.transaction(force_rollback=True):
        queue.run("SELECT jobherd.cancel(%s)", job)
        assert len(told(queue)) == 1
    assert told(queue) == []


def test_webhooks_are_rejected_and_have_no_trigger_until_they_are_enabled(database):
    with Queue(database) as queue:
        triggers = "SELECT tgname FROM pg_trigger WHERE tgrelid = 'jobherd.history'::regclass ORDER BY tgname"
        assert queue.run(triggers) == [("forget_steps",), ("note_end",), ("stop_children",)]
        with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match="webhooks are not enabled"):
            put(queue)
        with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match="webhooks are not enabled"):
            queue.enqueue("a:b", webhook="https://example.com/done")
        assert queue.run("SELECT jobherd.enable_webhooks(), jobherd.enable_webhooks()") == [(True, False)]
        assert queue.run(
            "SELECT webhook FROM jobherd.jobs WHERE id = %s", queue.enqueue("a:b", webhook="https://example.com/done")
        ) == [("https://example.com/done",)]


def test_end_in_a_new_history_partition_enqueues_a_webhook_job(queue):
    queue.run("SELECT jobherd.keep_partitions(40)")
    job = put(queue)
    queue.run("SELECT jobherd.cancel(%s)", job)
    assert queue.run(
        "SELECT tableoid::regclass::text <> 'jobherd.history_default' FROM jobherd.history WHERE id = %s", job
    ) == [(True,)]
    assert [message["event"]["id"] for message in told(queue)] == [job]


def test_client_can_enqueue_and_cancel_jobs_with_a_tenant_role(queue, tenants):
    tenants.execute("SET ROLE jobherd_test_acme")
    with Client(connection=tenants) as client:
        one = client.enqueue("a:b", {"n": 1}, webhook="https://example.com/done")
        many = client.enqueue_many("a:b", ({"n": n} for n in range(2100)), tenant="acme")
        many += client.enqueue_many("a:b", ({"n": n} for n in range(2100)))
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            client.enqueue("a:b", tenant="globex")
        assert client.cancel(one) == "cancelled"
    assert ask(tenants, "SELECT count(*) FROM jobherd.tenant_jobs WHERE tenant = 'acme' AND kind = 'a:b'") == [
        (1 + len(many),)
    ]
    assert ask(tenants, "SELECT count(*) FROM jobherd.tenant_jobs WHERE kind = 'jobs:webhook'") == [(1,)], (
        "the webhook job belongs to the tenant too"
    )
