"""Messages from the supervisor to the maintenance process about jobs that died with their process."""

from __future__ import annotations

import json
import os
from dataclasses import replace

import pytest

from jobherd.supervisor.crash.crash_outcome import CrashOutcome
from jobherd.supervisor.crash.dead_child import DeadChild
from jobherd.supervisor.crash.death_messages import DeathMessages
from jobherd.supervisor.crash.postmortem import PostMortem
from tests.supervisor.crash.test_recovery import POLICY, death, now


def case() -> DeadChild:
    said = PostMortem(
        sentence="Process 7 died of SIGSEGV.", cause="signal", exit_code=None, signal="SIGSEGV", core_dumped=False, core=None, phase="running",
        max_rss=1, cpu_user=0.1, cpu_system=0.1, oom=False, memory=None, child_age=1.0, job_age=0.5, lease_age=None, code_version=None,
        stack="", log_tail="",
    )  # fmt: skip
    return DeadChild(death(), now(), POLICY, said)


@pytest.fixture
def post():
    post = DeathMessages()
    yield post
    post.close()


def told(post):
    return json.loads(os.read(post.reading, 1 << 18))


def test_death_message_contains_the_job_and_its_post_mortem(post):
    dead = case()
    assert post.send(dead, dead.now, CrashOutcome("retry", "WORKER_CRASHED", crash=1))
    message = told(post)
    assert (message["job"], message["kind"], message["crashes"]) == (
        dead.now.job,
        dead.policy.name,
        dead.now.crashes + 1,
    )
    assert (message["post_mortem"]["sentence"], message["post_mortem"]["outcome"]) == (
        dead.post_mortem.sentence,
        "retry",
    )


@pytest.mark.parametrize("outcome", ["cancelled", "abandoned"])
def test_no_death_message_is_sent_after_a_drain_or_cancel(post, outcome):
    dead = case()
    assert not post.send(dead, dead.now, CrashOutcome(outcome, None))
    with pytest.raises(BlockingIOError):
        os.read(post.reading, 1)


def test_death_message_of_an_encrypted_job_omits_payload_and_log(post):
    dead = case()
    dead.policy = replace(dead.policy, sealed=True)
    dead.post_mortem = replace(dead.post_mortem, log_tail="secret")
    post.send(dead, dead.now, CrashOutcome("failed", "WORKER_CRASHED", crash=1))
    message = told(post)
    assert not message["payload"]
    assert "secret" not in json.dumps(message)


def test_full_socket_drops_the_death_message_with_a_log_entry_and_does_not_block(post, caplog):
    dead = case()
    dead.post_mortem = replace(dead.post_mortem, stack="x" * 100_000, log_tail="y" * 100_000)
    sent = 0
    while post.send(dead, dead.now, CrashOutcome("retry", "WORKER_CRASHED", crash=1)):
        sent += 1
    assert sent > 20, "stack and log must be cut, so that more than 20 messages fit"
    assert "on_death hooks are not called for a job" in caplog.text
