"""Tests what a worker without a database declares, rejects, and stores for the next uplink."""

from __future__ import annotations

import pytest

from jobherd import Backoff, handler
from jobherd.handlers._define.hook_calls import Hooks
from jobherd.handlers._define.hooks import before_claim, on_death
from jobherd.handlers._remote.events import Ref
from jobherd.workers.gateway.results import rules_of
from jobherd.workers.remote.client import UplinkClient
from jobherd.workers.remote.declaration import declared
from jobherd.workers.remote.held_file import read_held, write_held
from jobherd.workers.remote.requirements import notes_of, problems_of


def test_gateway_receives_the_rules_of_a_kind_except_its_timeout():
    @handler(
        "mail:send", queue="mail", max_attempts=3, max_crashes=2, backoff=Backoff(5.0), timeout="1m", max_running=4
    )
    def send() -> None: ...

    (policy,) = declared({"mail:send": send})
    rules = rules_of(policy)
    assert (rules.policy.max_attempts, rules.policy.max_crashes, rules.policy.queue) == (3, 2, "mail")
    assert (rules.policy.backoff, rules.policy.max_running, rules.timeout) == (Backoff(5.0), 4, 0.0)
    assert rules.keep_completed == send.policy.keep_completed_days


def test_handler_or_hook_that_needs_the_database_is_rejected_with_its_location():
    @handler("pay:book", transactional=True)
    def book() -> None: ...

    @handler("mail:send")
    def send() -> None: ...

    @before_claim
    def choose() -> None: ...

    kind, hook = problems_of({"pay:book": book, "mail:send": send}, Hooks([choose]))
    assert kind.startswith(f"{book.file}:{book.line}: kind 'pay:book' is transactional")
    assert hook.startswith(f"{choose.file}:{choose.line}: `before_claim`")


def test_option_or_hook_without_effect_is_reported_with_its_location():
    @handler("crm:push", rate="10/min", cron="0 3 * * *")
    def push() -> None: ...

    @handler("mail:send")
    def send() -> None: ...

    @on_death
    def tell(_death: object) -> None: ...

    handlers = {"crm:push": push, "mail:send": send}
    assert problems_of(handlers, Hooks([tell])) == []
    rate, schedules, hook = notes_of(handlers, Hooks([tell]))
    assert rate.startswith(f"{push.file}:{push.line}: kind 'crm:push' declares a rate")
    assert schedules.startswith(f"{push.file}:{push.line}: kind 'crm:push' declares schedules")
    assert hook.startswith(f"{tell.file}:{tell.line}: `jobherd work` does not call `on_death`")


def test_next_uplink_reads_which_tasks_a_worker_holds(tmp_path):
    assert read_held(tmp_path, 4) == []
    write_held(tmp_path, 4, {9: [1, 2], 10: [3]})
    assert read_held(tmp_path, 4) == [Ref(1, 9), Ref(2, 9), Ref(3, 10)]
    write_held(tmp_path, 4, {})
    assert read_held(tmp_path, 4) == []


def test_handler_can_only_enqueue(tmp_path):
    client = UplinkClient(tmp_path, schema="jobherd")
    with pytest.raises(RuntimeError, match="no database"):
        client.job(1)
    with pytest.raises(ConnectionError, match="the uplink does not answer"):
        client.enqueue("mail:send")
    assert client.enqueue_many("mail:send", []) == []
