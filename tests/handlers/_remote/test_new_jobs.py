"""How unique jobs are encoded in a request of ProducerService, and how its response is decoded."""

from __future__ import annotations

import pytest

from jobherd import DuplicateJob, Unique
from jobherd.handlers._enqueue.bulk import Chunk
from jobherd.handlers._enqueue.options import check_options
from jobherd.handlers._remote import messages as m
from jobherd.handlers._remote.new_jobs import ids_of, request_of


def unique_of(*, keys: list[str] | None = None, **options: object) -> list[m.Unique]:
    chunk = Chunk("a:b", ['{"n":1}', '{"n":2}'], check_options(**options), keys=keys)
    return [job.unique for job in request_of([chunk]).jobs]


def test_request_contains_the_unique_options():
    rule = Unique(by=("n",), queue=True, conflict="collect", collect="items")
    one, two = unique_of(unique=rule, debounce="30s", max_wait="5m")
    assert one == two == m.Unique(
        by=["n"], per_queue=True, during="live", conflict="collect", collect="items", debounce_seconds=30, max_wait_seconds=300
    )  # fmt: skip
    assert unique_of(unique_key="k", unique_for="1h")[0] == m.Unique(
        key="k", during="live", conflict="ignore", for_seconds=3600
    )
    assert not request_of([Chunk("a:b", ["{}"], check_options(unique=False))]).jobs[0].HasField("unique")


def test_request_with_an_encrypted_unique_key_omits_its_fields_and_key():
    one, two = unique_of(unique=("n",), unique_key="secret text", keys=["x", "y"])
    assert (one.secret_key, two.secret_key) == ("x", "y")
    assert (list(one.by), one.key) == ([], "")


def test_response_flags_new_jobs_and_names_the_job_with_the_same_unique_key():
    found = ids_of(m.EnqueueResponse(ids=[4, 5, 4], existing=[1, 2]))
    assert [(int(job), getattr(job, "new", None)) for job in found] == [(4, True), (5, False), (4, False)]
    for holder, id_ in ((7, 7), (0, None)):
        with pytest.raises(DuplicateJob) as raised:
            ids_of(m.EnqueueStreamResponse(number=1, holder=holder))
        assert raised.value.id == id_
