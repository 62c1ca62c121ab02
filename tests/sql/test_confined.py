"""Each hot statement touches only the rows of one queue, or of one child and its token.

So the cost of a queue does not depend on other queues, and queues can be distributed over several
databases or nodes (docs/explanation/scaling.md).
"""

from __future__ import annotations

import psycopg
import pytest

from jobherd.workers.claim.scan_start import SOUGHT
from tests.support.queue import Queue

NOWHERE = {"past_queue": None, "past_priority": None, "past_id": None, "back": True}


@pytest.fixture
def queue(database):
    with Queue(database) as queue:
        queue.enqueue_many("a:b", 5, queue="aside")
        queue.enqueue_many("a:b", 50, queue="own")
        queue.enqueue_many("a:b", 5, queue="other")
        yield queue


def plan_of(connection, text, parameters):
    row = connection.execute("EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) " + text, parameters).fetchone()
    connection.rollback()
    return row[0][0]["Plan"]


def looks(node, table, within=()):
    """Yield the plan nodes that read a table, each with the names of the subplans around it."""
    within = (*within, node.get("Subplan Name", ""))
    if node.get("Relation Name") == table and node["Node Type"] != "ModifyTable":
        yield node, within
    for part in node.get("Plans", ()):
        yield from looks(part, table, within)


@pytest.mark.parametrize("statement", ["claim/claim_jobs", "claim/claim_job", SOUGHT])
def test_claim_reads_only_rows_of_its_queue(queue, statement):
    child = queue.child()
    with psycopg.connect(queue.dsn) as connection:
        connection.execute(queue.text("session/force_index_plans"), {"local": False})
        connection.commit()
        plan = plan_of(connection, queue.text(statement), child.parameters(10, ["own"]) | NOWHERE)
    found = list(looks(plan, "ready"))
    assert len(found) >= 4
    for node, within in found:
        if within[-1:] == ("CTE head",) or {"CTE head", "CTE way"} & set(within):
            assert node["Actual Rows"] <= 1, "the search for a queue reads one row of each queue"
        else:
            assert "TID Cond" in node or "(queue =" in node["Index Cond"], node
    sought = [node for node, within in found if "CTE way" in within and node["Actual Loops"]]
    assert all("queue <=" in node["Index Cond"] or "queue =" in node["Index Cond"] for node in sought)


def test_settlement_reads_only_the_row_of_its_claim(queue):
    child, other = queue.child(), queue.child()
    batch = child.claim(10, ["own"])
    other.claim(5, ["other"])
    with psycopg.connect(queue.dsn) as connection:
        connection.execute(queue.text("session/force_index_plans"), {"local": False})
        connection.commit()
        parameters = child.settlement(batch[0].token, [job.id for job in batch], "ok")
        plan = plan_of(connection, queue.text("settle/settle_jobs"), parameters)
    found = list(looks(plan, "running"))
    assert found
    for node, _ in found:
        assert "TID Cond" in node or ("(child =" in node["Index Cond"] and "(token =" in node["Index Cond"]), node


def test_claim_cost_does_not_depend_on_the_backlog_of_other_queues(queue):
    child = queue.child()
    with psycopg.connect(queue.dsn) as connection:
        connection.execute(queue.text("session/force_index_plans"), {"local": False})
        connection.commit()

        def buffers():
            plan = plan_of(connection, queue.text("claim/claim_jobs"), child.parameters(10, ["own"]))
            return plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]

        alone = [buffers(), buffers()][1]
        queue.enqueue_many("a:b", 20_000, queue="aside")
        queue.enqueue_many("a:b", 20_000, queue="other")
        beside = [buffers(), buffers()][1]
    assert beside <= alone * 1.15 + 10  # the index may be one level deeper
