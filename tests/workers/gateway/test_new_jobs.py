"""Tests how the gateway translates and validates a producer's request."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from jobherd.handlers._enqueue.bulk import Chunk
from jobherd.handlers._enqueue.options import Options, check_options
from jobherd.handlers._policy.unique import Unique
from jobherd.handlers._remote import messages as m
from jobherd.handlers._remote.new_jobs import request_of
from jobherd.workers.gateway.access import Principal, Role
from jobherd.workers.gateway.new_jobs import (
    MOST_JOBS,
    NewJobsError,
    NotAllowedError,
    check_key,
    chunks_of,
    digest_of,
    merged,
)

ANYONE = Principal("p")


def new(kind: str = "a:b", **fields: Any) -> m.NewJob:
    return m.NewJob(kind=kind, **fields)


def test_consecutive_jobs_that_differ_only_in_payload_form_one_chunk_in_order():
    jobs = [new(payload=b'{"n":1}'), new(payload=b'{"n":2}'), new(priority=0), new(), new("a:c")]
    chunks = chunks_of(jobs, ANYONE)
    assert [(chunk.kind, chunk.texts, chunk.options.priority) for chunk in chunks] == [
        ("a:b", ['{"n":1}', '{"n":2}'], None),
        ("a:b", ["{}"], 0),
        ("a:b", ["{}"], None),
        ("a:c", ["{}"], None),
    ]


MOMENT = datetime(2030, 1, 1, tzinfo=UTC)
SENT = (
    {
        "queue": "q", "priority": -5, "delay": 2.5, "max_attempts": 3, "timeout": 9.5, "expires_at": MOMENT, "tenant": "acme",
        "webhook": "https://a.example/b", "payload_bytes": b"\0\1", "parent_id": 7, "unique_for": 60,
        "partition": "north",
        "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "unique": Unique(by=("n",), queue=True),
    },
    {"run_at": MOMENT, "priority": 0, "unique_key": "k", "unique": Unique(during="waiting")},
    {"debounce": 5, "max_wait": 20, "unique": Unique(by=("id",), conflict="collect", collect="n")},
    {"throttle": 5, "edge": "trailing", "unique": Unique()},
    {"cost": {"memory_mb": 900.0, "gpus": 1.0}},
    {"cost": {}},
    {"after": [7, 2**62], "when": "failed"},
)  # fmt: skip


@pytest.mark.parametrize("options", SENT)
def test_options_of_a_python_client_arrive_unchanged(options: dict[str, Any]):
    sent = Chunk("a:b", ['{"n":[1]}', '{"n":[2]}'], check_options(**options))
    [arrived] = chunks_of(request_of([sent]).jobs, ANYONE)
    cost = options.get("cost")
    expected = check_options(**options | {"cost": None})
    assert arrived == Chunk("a:b", sent.texts, expected, None if cost is None else [cost, cost])


def test_tested_options_include_every_option():
    assert {name for options in SENT for name in options} == set(Options.__slots__)


def test_costs_of_single_jobs_arrive_unchanged():
    costs = [{"memory_mb": 1.0}, {"memory_mb": 2.0}, {}]
    sent = Chunk("a:b", ["{}"] * 3, check_options(), costs)
    jobs = request_of([sent]).jobs
    assert [(chunk.texts, chunk.costs) for chunk in chunks_of(jobs, ANYONE)] == [(["{}"] * 3, costs)]
    both = chunks_of([*jobs, new()], ANYONE)
    assert [chunk.costs for chunk in both] == [costs, None]
    assert [chunk.costs for chunk in merged([*both[:1], *both])] == [costs * 2, None]
    assert both[0].costs == costs


def test_large_payloads_are_split_into_chunks():
    text = b'"' + b"x" * 900_000 + b'"'
    assert [len(chunk.texts) for chunk in chunks_of([new(payload=text)] * 6, ANYONE)] == [4, 2]


def test_chunks_of_several_requests_are_merged_up_to_the_limits_of_a_statement():
    def merge(*requests: list[m.NewJob]) -> list[tuple[str, int]]:
        found = merged(chunk for jobs in requests for chunk in chunks_of(jobs, ANYONE))
        return [(chunk.kind, len(chunk.texts)) for chunk in found]

    assert merge([new(), new()], [new()], [new("a:c")], [new()]) == [("a:b", 3), ("a:c", 1), ("a:b", 1)]
    assert merge([new()], [new(priority=1)], [new(priority=1)]) == [("a:b", 1), ("a:b", 2)]
    assert merge([new()] * 6000, [new()] * 4000, [new()]) == [("a:b", 10_000), ("a:b", 1)]
    large = new(payload=b'"' + b"x" * 900_000 + b'"')
    assert merge([large] * 3, [large], [large]) == [("a:b", 4), ("a:b", 1)]
    chunks = chunks_of([new()], ANYONE)
    merged([*chunks, *chunks])
    assert chunks[0].texts == ["{}"], (
        "the merge must not change the chunks of a request, which may be enqueued separately later"
    )


@pytest.mark.parametrize(
    ("job", "words"),
    [
        (new(""), "kind"),
        (new(payload=b"{"), "payload"),
        (new(payload=b'{"n":1e999}'), "payload"),
        (new(queue="No Queue"), "queue"),
        (new(priority=40_000), "priority"),
        (new(max_attempts=100_000), "max_attempts"),
        (new(timeout_seconds=-1), "timeout"),
        (new(delay_seconds=float("nan")), "delay"),
        (new(delay_seconds=1, run_at_micros=1), "delay and run_at exclude each other"),
        (new(run_at_micros=-(2**63)), "run_at_micros must lie between"),
        (new(expires_at_micros=2**62), "expires_at_micros must lie between"),
        (new(expires_at_micros=-3_000_000_000_000_000), "expires_at must lie between"),
        (new(tenant="a b"), "tenant"),
        (new(webhook="ftp://x"), "webhook"),
        (new(traceparent="x"), "traceparent"),
        (new(cost=m.Cost(amounts=[m.Amount(resource="no name", amount=1)])), "cost"),
        (new(cost=m.Cost(amounts=[m.Amount(resource="gpus", amount=-1)])), "cost"),
    ],
)
def test_error_names_the_invalid_job_and_its_field(job: m.NewJob, words: str):
    with pytest.raises(NewJobsError) as caught:
        chunks_of([new(), job], ANYONE)
    assert str(caught.value).startswith("jobs[1]: ")
    assert words in str(caught.value)


@pytest.mark.parametrize("count", [0, MOST_JOBS + 1])
def test_request_without_jobs_or_with_too_many_is_rejected(count: int):
    with pytest.raises(NewJobsError, match="^jobs "):
        chunks_of([new()] * count, ANYONE)


@pytest.mark.parametrize(
    ("rights", "job", "words"),
    [
        ({"kinds": ("mail:*",)}, new("a:b"), "may not enqueue the kind"),
        ({"role": Role.ENQUEUE}, new("jobs:purge"), "may not enqueue the kind"),
        ({"queues": ("out",)}, new(queue="in"), "into the queue 'in'"),
        ({"tenants": ("acme",)}, new(tenant="other"), "for the tenant 'other'"),
    ],
)
def test_principal_cannot_enqueue_outside_its_rights(rights: dict[str, Any], job: m.NewJob, words: str):
    with pytest.raises(NotAllowedError, match=words):
        chunks_of([job], Principal("p", **rights))


@pytest.mark.parametrize(
    ("rights", "words"), [({"queues": ("out",)}, "name the queue"), ({"tenants": ("a", "b")}, "name the tenant")]
)
def test_restricted_principal_must_name_the_queue_or_tenant(rights: dict[str, Any], words: str):
    with pytest.raises(NewJobsError, match=words) as caught:
        chunks_of([new()], Principal("p", **rights))
    assert not isinstance(caught.value, NotAllowedError)


def test_principal_can_enqueue_within_its_rights():
    [chunk] = chunks_of(
        [new("mail:x", queue="out")], Principal("p", kinds=("mail:*",), queues=("o*",), tenants=("acme",))
    )
    assert (chunk.options.tenant, chunk.options.queue) == ("acme", "out")
    assert chunks_of([new("jobs:purge")], Principal("p", role=Role.ENQUEUE, kinds=("jobs:*",)))
    assert chunks_of([new("jobs:purge")], ANYONE)


def test_digests_are_equal_only_for_the_same_jobs_in_the_same_order():
    one, two = new(payload=b"1"), new(payload=b"2")
    assert digest_of([one, two]) == digest_of([new(payload=b"1"), new(payload=b"2")])
    different = [[one], [two, one], [new("a:b1", payload=b"1"), two], [one, two, new()]]
    assert digest_of([one, two]) not in [digest_of(jobs) for jobs in different]


@pytest.mark.parametrize("key", ["", "k", "~" * 200, "550e8400-e29b-41d4-a716-446655440000"])
def test_short_printable_ascii_key_is_valid(key: str):
    assert check_key(key) == key


@pytest.mark.parametrize("key", ["~" * 201, "é", "a\n", "\0"])
def test_long_or_unprintable_or_non_ascii_key_is_invalid(key: str):
    with pytest.raises(NewJobsError, match="^idempotency_key"):
        check_key(key)


def test_partition_of_a_principal_with_one_tenant_is_that_tenant():
    jobs = [new(partition="other"), new(), new(tenant="acme", partition="acme")]
    chunks = chunks_of(jobs, Principal("p", tenants=("acme",)))
    assert {chunk.options.partition for chunk in chunks} == {"acme"}
    assert chunks_of(jobs[:1], ANYONE)[0].options.partition == "other"
