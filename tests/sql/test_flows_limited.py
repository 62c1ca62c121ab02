"""Flows of roles that are limited to their tenants, and the effects of one user's flows on those of others."""

from __future__ import annotations

import json

import psycopg
import pytest
from psycopg import errors

from jobherd import Client
from tests.sql.test_after import end, resolve
from tests.sql.test_flows import CALLBACKS, GROUP, MAP, payload, places, run, start, state
from tests.support.queue import Queue

ROLE = "flows_tenant"
TENANTS = ("us",)


@pytest.fixture
def queue(database):
    with Queue(database) as queue:
        yield queue


@pytest.fixture
def tenant(queue):
    """A connection of the role of tenant `us`."""
    queue.run(f"DROP ROLE IF EXISTS {ROLE}")
    queue.run(f"CREATE ROLE {ROLE}")
    queue.run("SELECT jobherd.grant_tenant(%s, 'us')", ROLE)
    with psycopg.connect(queue.dsn, autocommit=True) as connection:
        connection.execute(f"SET ROLE {ROLE}")
        yield connection
    for name in [row[0] for row in queue.run("SELECT tenant FROM jobherd.tenants WHERE role = %s", ROLE)]:
        queue.run("SELECT jobherd.revoke_tenant(%s, %s)", ROLE, name)
    queue.run(f"DROP OWNED BY {ROLE}")
    queue.run(f"DROP ROLE {ROLE}")


def begin(connection, *nodes, **options):
    nodes = [{"kind": f"a:{node['node']}", **node} for node in nodes]
    return connection.execute(
        "SELECT jobherd.start_flow('own', %s::jsonb, %s::jsonb)", [json.dumps(nodes), json.dumps(options)]
    ).fetchone()[0]


ONE = {"node": "one"}


def test_flow_of_a_tenant_role_has_its_tenant_and_partition(queue, tenant):
    flow = begin(tenant, ONE, {"node": "two", "after": "one", "options": {"partition": "another"}})
    assert queue.run("SELECT tenant FROM jobherd.flows WHERE id = %s", flow) == [("us",)]
    assert queue.run("SELECT tenant, partition FROM jobherd.jobs") == [("us", "us")] * 2


@pytest.mark.parametrize("nodes", [[], [ONE]])
def test_tenant_cannot_start_a_flow_of_another_tenant(queue, tenant, nodes):
    with pytest.raises(errors.InsufficientPrivilege):
        begin(tenant, *nodes, tenant="them")
    assert queue.count("flows") == 0


def test_role_of_two_tenants_must_name_one_to_start_a_flow(queue, tenant):
    queue.run("SELECT jobherd.grant_tenant(%s, 'them')", ROLE)
    with pytest.raises(errors.InsufficientPrivilege):
        begin(tenant, ONE)
    assert queue.run("SELECT tenant FROM jobherd.flows WHERE id = %s", begin(tenant, ONE, tenant="them")) == [("them",)]


def test_read_only_role_cannot_start_or_seal_a_flow(queue):
    with psycopg.connect(queue.dsn) as reader:
        reader.execute("SET ROLE jobherd_read")
        with pytest.raises(errors.InsufficientPrivilege):
            begin(reader)
        reader.rollback()
        flow = start(queue, sealed=False)
        reader.execute("SET ROLE jobherd_read")
        with pytest.raises(errors.InsufficientPrivilege):
            reader.execute("SELECT jobherd.seal_flow(%s)", [flow])
    queue.run("DELETE FROM jobherd.flows")
    assert queue.count("flows") == 0


@pytest.mark.parametrize("nodes", [[], [{"node": "x", "kind": "a:x", "item": None}]])
def test_tenant_cannot_tell_a_flow_of_another_tenant_from_a_missing_one(queue, tenant, nodes):
    theirs = start(queue, ONE, tenant="them")
    said = []
    for flow in (theirs, 999999):
        with pytest.raises(errors.InvalidParameterValue, match="does not exist") as caught:
            tenant.execute("SELECT jobherd.extend_flow(%s, %s::jsonb)", [flow, json.dumps(nodes)])
        said.append(str(caught.value).replace(str(flow), "N"))
        calls = "SELECT jobherd.cancel_flow(%(flow)s), jobherd.retry_flow(%(flow)s), jobherd.seal_flow(%(flow)s)"
        assert tenant.execute(calls, {"flow": flow}).fetchone() == (None, None, None)
    assert said[0] == said[1]
    assert state(queue, theirs) == ("open", 1, 0, 0, 0)
    assert queue.count("ends") == 0


def test_a_tenant_cancels_and_retries_its_flow(queue, tenant):
    flow = begin(tenant, ONE, {"node": "two", "after": "one"})
    assert tenant.execute("SELECT jobherd.cancel_flow(%s)", [flow]).fetchone() == ("cancelling",)
    resolve(queue)
    assert state(queue, flow) == ("cancelled", 0, 0, 0, 2)
    assert tenant.execute("SELECT jobherd.retry_flow(%s)", [flow]).fetchone() == (2,)
    resolve(queue)
    assert places(queue) == {"a:one": "ready", "a:two": "blocked"}


def test_a_tenant_seals_its_flow(queue, tenant):
    flow = begin(tenant, sealed=False)
    resolve(queue)
    assert state(queue, flow)[0] == "open"
    assert tenant.execute("SELECT jobherd.seal_flow(%s)", [flow]).fetchone() == ("sealed",)
    resolve(queue)
    assert state(queue, flow)[0] == "completed"


def test_tenant_can_wait_for_its_own_flow_but_not_for_one_of_another_tenant(queue, tenant):
    theirs, own = start(queue, ONE, tenant="them"), begin(tenant, ONE)
    enqueue = "SELECT jobherd.enqueue('a:late', '{}', jsonb_build_object('after', %s::bigint, 'tenant', 'us'))"
    with pytest.raises(errors.InvalidParameterValue, match="does not exist"):
        tenant.execute(enqueue, [theirs])
    assert queue.state(tenant.execute(enqueue, [own]).fetchone()[0]) == "blocked"


@pytest.mark.parametrize("field", ["after", "bind"])
def test_a_node_cannot_wait_for_the_job_of_another_tenant(queue, tenant, field):
    theirs = Client(connection=queue.connection).enqueue("a:b", tenant="them")
    with pytest.raises(errors.InvalidParameterValue, match="does not exist"):
        begin(tenant, {**ONE, field: [theirs] if field == "after" else {"n": theirs}})
    with pytest.raises(errors.InvalidParameterValue, match="does not exist"):
        tenant.execute("SELECT jobherd.enqueue_after('a:b', '{\"{}\"}', %s, tenant => 'us')", [[theirs]])


def test_tenant_can_run_only_its_own_flow_again_from_a_node(queue, tenant):
    own = begin(tenant, *MAP)
    for _ in range(len(MAP) + 1):
        run(queue, result=["x", "y"])
    theirs = start(queue, *MAP, tenant="them")
    for _ in range(len(MAP) + 1):
        run(queue, result=["x", "y"])
    before = queue.run("SELECT id, state FROM jobherd.jobs WHERE tenant = 'them' ORDER BY id")
    retry = "SELECT jobherd.retry_flow(%s, from_node => 'index')"
    assert tenant.execute(retry, [theirs]).fetchone() == (None,), "as if it did not exist"
    assert tenant.execute(retry, [own]).fetchone() == (len(MAP),)
    run(queue, result=["z"])
    rows = queue.run("SELECT kind, tenant, partition FROM jobherd.jobs WHERE state IN ('ready', 'blocked') ORDER BY id")
    assert rows == [("a:sum", "us", "us"), ("a:page", "us", "us")]
    assert queue.run("SELECT id, state FROM jobherd.jobs WHERE tenant = 'them' ORDER BY id") == before


@pytest.mark.parametrize("table", ["ready", "scheduled"])
@pytest.mark.parametrize("attribute", ["flow", "node", "item"])
def test_tenant_cannot_insert_a_job_into_a_flow_directly(queue, tenant, table, attribute):
    """The job's end would count in another tenant's flow, and its result would go into that tenant's payloads."""
    theirs = start(queue, GROUP, *CALLBACKS, tenant="them")
    value = {"flow": theirs, "node": "one", "item": 0}[attribute]
    extras = "jsonb_populate_record(NULL::jobherd.extras, %s::jsonb)"
    insert = f"INSERT INTO jobherd.{table} (kind, extras, lane) VALUES ('a:b', {extras}, jobherd.lane_of('us'))"
    own = {"tenant": "us", "partition": "us"}
    tenant.execute(insert, [json.dumps(own)])
    with pytest.raises(errors.InsufficientPrivilege):
        tenant.execute(insert, [json.dumps(own | {attribute: value})])


# -- open transactions


def resolve_at_once(queue):
    """Resolve ends as a maintenance process does, which must not wait for a lock."""
    warnings = []
    queue.connection.add_notice_handler(lambda notice: warnings.append(notice.message_primary))
    queue.run("SET lock_timeout = '5s'")
    resolve(queue)
    assert warnings == [], "a flow was skipped because its resolution failed"


def test_uncommitted_cancel_of_a_blocked_job_does_not_delay_other_flows(queue, tenant):
    flow = begin(tenant, ONE, {"node": "two", "after": "one"}, {"node": "three", "after": "one"})
    other = start(queue, {"node": "lone"})
    [[two]] = queue.run("SELECT id FROM jobherd.blocked WHERE kind = 'a:two'")
    with tenant.transaction():
        tenant.execute("SELECT jobherd.cancel(%s)", [two])
        queue.run("SELECT jobherd.cancel_flow(%s), jobherd.cancel_flow(%s)", flow, other)
        resolve_at_once(queue)
        assert state(queue, other) == ("cancelled", 0, 0, 0, 1)
        assert state(queue, flow)[:2] == ("open", 1)
    resolve(queue)
    assert state(queue, flow) == ("cancelled", 0, 0, 0, 3)


def test_uncommitted_cancel_of_a_running_job_does_not_delay_other_flows(queue, tenant):
    flow = begin(tenant, ONE, {"node": "two"})
    other = start(queue, {"node": "lone", "options": {"delay": "1h"}})
    child = queue.child()
    jobs = [child.claim(1)[0].id, child.claim(1)[0].id]
    with tenant.transaction():
        assert tenant.execute("SELECT jobherd.cancel(%s)", [jobs[0]]).fetchone() == ("cancelling",)
        queue.run("SELECT jobherd.cancel_flow(%s), jobherd.cancel_flow(%s)", flow, other)
        resolve_at_once(queue)
        assert state(queue, other)[0] == "cancelled"
        assert {row[0] for row in queue.run("SELECT job FROM jobherd.cancels")} == set(jobs)


def test_uncommitted_cancel_of_an_inner_flow_does_not_block_the_maintenance_process(queue):
    flow = start(queue, *MAP)
    end(queue, result='["x"]')
    resolve(queue)
    [[inner]] = queue.run("SELECT id FROM jobherd.flows WHERE outer_flow = %s", flow)
    with psycopg.connect(queue.dsn) as user:
        user.execute("SELECT jobherd.cancel_flow(%s)", [inner])
        queue.run("SELECT jobherd.cancel_flow(%s)", flow)
        resolve_at_once(queue)
        assert state(queue, flow)[0] == "open"
    resolve(queue)
    assert state(queue, flow)[0] == "cancelled"


def test_ends_of_jobs_with_locked_downstream_jobs_do_not_block_later_ends(queue):
    client = Client(connection=queue.connection)
    ups = [client.enqueue("a:b", delay="1h") for _ in range(4)]
    later = [client.enqueue("a:b", after=up, when="ended") for up in ups]
    resolve(queue)
    with psycopg.connect(queue.dsn) as user:
        user.execute("SELECT FROM jobherd.blocked WHERE id = ANY (%s) FOR UPDATE", [later[:3]])
        for up in ups:
            client.cancel(up)
        for _ in range(200):  # the chance to begin at each end is 1 to 8
            queue.run("SELECT jobherd.resolve_ends(2)")
            if queue.state(later[3]) == "ready":
                break
        assert queue.states(later) == ["blocked"] * 3 + ["ready"]
    resolve(queue)
    assert queue.states(later) == ["ready"] * 4


# -- failures in one flow


def test_result_that_cannot_be_stored_fails_only_the_job_that_gets_it(queue):
    """The kind takes the partition from a field, and the name of a partition must not contain a line break."""
    queue.run(
        "INSERT INTO jobherd.kinds (name, queue, priority, max_attempts, max_crashes, keep_completed, keep_failed, partition_by)"
        " VALUES ('a:page', 'default', 0, 5, 3, 7, 30, '{url}')"
    )
    bad, good = start(queue, *MAP), start(queue, *MAP)
    for url in ("a\nb", "c"):
        end(queue, result=json.dumps([url]))
    resolve(queue)
    assert [state(queue, flow)[0] for flow in (bad, good)] == ["failed", "open"]
    assert queue.run("SELECT (extras).partition FROM jobherd.ready") == [("c",)]
    [(code, error)] = queue.run("SELECT error_code, error FROM jobherd.history WHERE kind = 'a:page'")
    assert code == "RESULTS_INVALID"
    assert "cannot be stored" in error


def test_flow_whose_resolution_raises_an_error_does_not_block_other_flows(queue):
    bad, good = start(queue, {"node": "one"}), start(queue, {"node": "two"})
    queue.run("ALTER TABLE jobherd.flows ADD CONSTRAINT bad CHECK (id <> %s OR completed = 0)" % bad)  # noqa: UP031
    end(queue), end(queue)
    for _ in range(100):  # a call ends after 0.2 s, perhaps with the flow that raises
        queue.run("SELECT jobherd.resolve_flows(1000)")
        if state(queue, good)[0] == "completed":
            break
    assert [state(queue, flow)[0] for flow in (bad, good)] == ["open", "completed"]
    queue.run("ALTER TABLE jobherd.flows DROP CONSTRAINT bad")
    resolve(queue)
    assert state(queue, bad) == ("completed", 0, 1, 0, 0)


def test_results_that_are_too_large_fail_the_job_that_gets_them(queue):
    flow = start(queue, GROUP, CALLBACKS[0], policy="continue")
    for _ in range(3):
        end(queue, result=json.dumps("x" * 4_000_000))
    resolve(queue)
    assert state(queue, flow) == ("completed", 0, 3, 0, 0)
    [(code, error)] = queue.run("SELECT error_code, error FROM jobherd.history WHERE kind = 'a:good'")
    assert code == "RESULTS_INVALID"
    assert "more than 10000000 bytes" in error


def test_mapped_node_fails_if_its_jobs_would_repeat_a_large_value(queue):
    start(queue, {"node": "index"}, {"node": "page", "payload": {"same": "x" * 200_000}, "bind": {"n": "index"}, "map": "n"})  # fmt: skip
    end(queue, result=json.dumps(list(range(1000))))
    resolve(queue)
    [(code, error)] = queue.run("SELECT error_code, error FROM jobherd.history WHERE kind = 'a:page'")
    assert code == "RESULTS_INVALID"
    assert "1000 jobs" in error


def test_outer_flow_waits_for_an_inner_flow_that_is_run_again_by_hand(queue):
    flow = start(queue, *MAP, {"node": "long", "options": {"delay": "1h"}}, policy="continue")
    end(queue, result='["x"]')
    resolve(queue)
    [[inner]] = queue.run("SELECT id FROM jobherd.flows WHERE outer_flow = %s", flow)
    end(queue, "failed")
    resolve(queue)
    assert state(queue, flow) == ("open", 1, 1, 1, 1)
    assert queue.run("SELECT jobherd.retry_flow(%s)", inner) == [(1,)]
    resolve(queue)
    assert state(queue, flow) == ("open", 2, 1, 0, 1)
    end(queue)
    resolve(queue)
    assert state(queue, flow) == ("open", 1, 2, 0, 1)


# -- oversize


def test_a_group_of_100_000_jobs_can_have_a_callback(queue):
    flow = start(queue, {"node": "x", "payloads": ["1"] * 100_000}, *CALLBACKS)
    assert state(queue, flow)[1] == 100_000


@pytest.mark.parametrize(
    "nodes",
    [
        [{"node": "x", "payloads": ["1"] * 100_001}],
        [{"node": f"n{n}", "kind": "a:b"} for n in range(10_001)],
        [{"node": "x", "after": list(range(1, 1002))}],
        [{"node": f"n{n}", "kind": "a:b"} for n in range(101)]
        + [{"node": "x", "payloads": ["1"] * 10_000, "after": [f"n{n}" for n in range(101)]}],
    ],
    ids=["jobs", "nodes", "edges of a node", "edges"],
)
def test_a_flow_that_is_too_large_is_rejected(queue, nodes):
    queue.run("SELECT setval('jobherd.job_ids', 2000)")
    with pytest.raises(errors.ProgramLimitExceeded, match="too large at node"):
        start(queue, *nodes)
    assert queue.count("flows") == 0


# -- errors name the node and the field


@pytest.mark.parametrize(
    ("node", "words"),
    [
        ({"options": {"priority": "soon"}}, r'node \'two\' has a bad option "priority" "soon"'),
        ({"options": {"priority": 40000}}, r'node \'two\' has a bad option "priority" 40000'),
        ({"options": {"queue": "No Name"}}, r'node \'two\' has a bad option "queue" "No Name": not a queue name'),
        ({"options": {"max_attempts": 0}}, r'node \'two\' has a bad option "max_attempts" 0: must be at least 1'),
        ({"options": {"timeout": "never"}}, r'node \'two\' has a bad option "timeout" "never"'),
        ({"options": {"timeout": 0}}, r'bad option "timeout" 0: must be more'),
        ({"options": {"delay": "later"}}, r'node \'two\' has a bad option "delay" "later"'),
        ({"options": {"run_at": "infinity"}}, r'node \'two\' has a bad option "run_at" "infinity": out of range'),
        ({"options": {"expires_at": "1066-10-14"}}, r'bad option "expires_at" "1066-10-14": out of range'),
        ({"options": {"webhook": "mailto:x"}}, r'node \'two\' has a bad option "webhook"'),
        ({"options": {"partition": "a\nb"}}, r'node \'two\' has a bad option "partition"'),
        ({"options": {"colour": 1}}, r'node \'two\' has the unknown option "colour"'),
        ({"options": {"delay": 1, "run_at": "2030-01-01"}}, r"exclude each other"),
        ({"options": [1]}, r'node \'two\' has a bad field "options" \[1\]: it must be object, not array'),
        ({"colour": 1}, r'node \'two\' has the unknown field "colour"'),
        ({"kind": 7}, r'node \'two\' has a bad field "kind" 7: it must be string, not number'),
        ({"payloads": "x"}, r'node \'two\' has a bad field "payloads" "x"'),
        ({"payloads": ["{"]}, r"node \'two\' has a payload that is not JSON"),
        ({"text": "[" * 200 + "]" * 200}, r"node \'two\' has a payload .*nested deeper than 100"),
        ({"text": '"' + "x" * 1_000_001 + '"'}, r"node \'two\' has a payload of 1000003 bytes"),
        ({"after": {"one": 1}}, r'node \'two\' has a bad field "after"'),
        ({"after": [1.5]}, r"node \'two\' waits for 1.5, which is not a node before it"),
        ({"after": [True]}, r"node \'two\' waits for true, which is not a node before it"),
        ({"after": [10**30]}, r"node \'two\' waits for 10+, which is not a node before it"),
        ({"bind": {"n": None}}, r"node \'two\' waits for null, which is not a node before it"),
        ({"bind": {"n": "one"}, "map": "m"}, r'node \'two\' "map" must name a parameter of "bind"'),
        ({"bind": {"n": "one"}, "payload": [1]}, r'node \'two\' gets results, so its "payload" must be an object'),
        ({"when": "sometimes", "after": "one"}, r'node \'two\' has a wrong "when".*"sometimes"'),
        ({"on": "monday"}, r'node \'two\' has a wrong "on".*"monday"'),
        ({"item": -1}, r'node \'two\' has a bad field "item" -1'),
    ],
)  # fmt: skip
def test_an_error_names_the_node_and_the_field(queue, node, words):
    with pytest.raises(psycopg.Error, match=words) as caught:
        start(queue, ONE, {"node": "two", **node})
    assert caught.value.sqlstate == "22023"
    assert queue.count("flows") == 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"deadline": "soon"}, r'option "deadline" has a bad value "soon"'),
        ({"parent_id": "me"}, r'option "parent_id" has a bad value "me"'),
        ({"keeps": "perhaps"}, r'option "keeps" has a bad value "perhaps"'),
        ({"tenant": "a b"}, r'option "tenant" has a bad value "a b"'),
        ({"policy": "perhaps"}, r'option "policy" must be cancel or continue, not "perhaps"'),
    ],
)
def test_an_error_names_the_option_of_the_flow(queue, options, words):
    with pytest.raises(psycopg.Error, match=words) as caught:
        start(queue, ONE, **options)
    assert caught.value.sqlstate == "22023"


def test_a_member_cannot_wait_for_its_own_flow(queue):
    """The node would wait for itself, and the flow would never end."""
    [[last]] = queue.run("SELECT nextval('jobherd.job_ids')")
    with pytest.raises(psycopg.Error, match="waits for"):
        start(queue, {"node": "two", "after": [last + 1]})


def test_a_payload_with_a_zero_character_is_accepted(queue):
    start(queue, {"node": "two", "text": json.dumps({"n": "a\0b", "deep": "[" * 150})})
    assert payload(queue, "a:two")["n"] == "a\0b"
