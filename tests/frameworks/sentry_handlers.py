"""Handlers that fail and die, for tests/frameworks/test_sentry.py."""

from __future__ import annotations

import os

import sentry_sdk

from jobherd import Job, handler

# Otherwise the SDK imports every framework that is installed for the tests.
sentry_sdk.init(auto_enabling_integrations=False, traces_sample_rate=1.0)


@handler("sentry:fails", max_attempts=1)
def fails(number: int) -> None:
    raise ValueError(f"number {number}")


@handler("sentry:retries", max_attempts=2, backoff="1s")
def retries(job: Job) -> None:
    raise OSError(f"attempt {job.attempt}")


@handler("sentry:dies", max_attempts=1)
def dies() -> None:
    os._exit(3)


@handler("sentry:yearly", cron="30 3 29 2 *", tz="Europe/Berlin")
def yearly() -> None: ...
