"""The sentence that explains the death of a child process, and the other fields of a post-mortem."""

from __future__ import annotations

import os
import signal

import pytest

from jobherd.supervisor.crash.postmortem import examine
from jobherd.supervisor.policy.child_exit import Death, Exit
from jobherd.supervisor.policy.exits import death_of
from jobherd.supervisor.policy.limits import Limits
from jobherd.supervisor.policy.slot_table import SlotTable
from jobherd.supervisor.policy.stop_sequence import Stage, StopReason, StopSequence
from jobherd.workers.ipc.current_work import CurrentWork, Phase
from jobherd.workers.ipc.status_board import StatusBoard

MIB = 2**20
ASKED = b'Current thread 0x1 (most recent call first):\n  File "/srv/app/resize.py", line 41 in shrink\n'
RAN = CurrentWork(Phase.RUNNING, 1, 9, 5, 1, 1, 5, 0, started=100.0, deadline=160.0)
IDLE = CurrentWork(Phase.IDLE, 1)


@pytest.fixture
def board():
    found = StatusBoard("test")
    yield found
    found.close()


def look(board, *, cause, exit_, now=RAN, **more):
    death = Death(3, "worker", 77, 1, 1, exit_, cause, True, None, 170.0, 60.0)
    return examine(death, board, now, "image:resize", **more)


@pytest.mark.parametrize(
    ("cause", "exit_", "now", "asked", "sentence"),
    [
        ("timeout", Exit(None, signal.SIGKILL), RAN, ASKED,
         "It ran past its timeout of 60 s and did not stop when it was interrupted: its process was ended by SIGKILL. It was executing shrink at /srv/app/resize.py:41."),
        ("timeout", Exit(0, None), RAN._replace(deadline=float("inf")), b"",
         "It ran past its timeout and did not stop when it was interrupted: its process was ended by the supervisor."),
        ("cancel", Exit(None, signal.SIGTERM), RAN, b"", "It was cancelled and did not stop when it was interrupted: its process was ended by SIGTERM."),
        ("drain", Exit(None, signal.SIGKILL), RAN, ASKED,
         "The supervisor was draining and it did not stop in time: its process was ended by SIGKILL. It was executing shrink at /srv/app/resize.py:41."),
        ("claim_lost", Exit(None, signal.SIGKILL), RAN, b"", "Its claim was lost to another supervisor: process 77 was ended while it ran image:resize #5."),
        ("quit", Exit(None, signal.SIGKILL), RAN, b"", "The supervisor exited at once: process 77 was killed while it ran image:resize #5."),
        ("signal", Exit(None, signal.SIGKILL, rss=33 * MIB), RAN, b"", "Process 77 died of SIGKILL (not sent by the supervisor) at 33 MiB while it ran image:resize #5."),
        ("signal", Exit(None, signal.SIGKILL), IDLE, b"", "Process 77 died of SIGKILL (not sent by the supervisor) while it was idle."),
        ("signal", Exit(None, signal.SIGXCPU), RAN, b"",
         "Process 77 died of SIGXCPU (it had used all its processor time, RLIMIT_CPU) while it ran image:resize #5."),
        ("signal", Exit(None, signal.SIGABRT), RAN, b"", "Process 77 died of SIGABRT while it ran image:resize #5."),
        ("signal", Exit(None, signal.SIGRTMIN + 3), RAN, b"", f"Process 77 died of signal {signal.SIGRTMIN + 3} while it ran image:resize #5."),
        ("exit", Exit(3, None), RAN, b"", "Process 77 exited with code 3 while it ran image:resize #5."),
        ("spawn", Exit(None, signal.SIGKILL), CurrentWork(Phase.BOOTING), b"",
         "Process 77 was not ready in time and was killed. The setting spawn_timeout limits the start, and importing the handlers is part of it."),
        ("stopped", Exit(None, signal.SIGKILL), IDLE, b"",
         "Process 77 was stopped by a signal and not continued: the supervisor killed it while it was idle."),
        ("handlers", Exit(78, None), CurrentWork(Phase.BOOTING), b"", "Process 77 could not load the handlers."),
    ],
)  # fmt: skip
def test_sentence_of_a_post_mortem_for_each_cause(board, cause, exit_, now, asked, sentence):
    assert look(board, cause=cause, exit_=exit_, now=now, asked=asked).sentence == sentence


def test_post_mortem_of_a_crash_names_the_line_and_keeps_the_end_of_the_log(board):
    crash = board.open_trace()
    os.write(
        crash,
        b'Fatal Python error: Segmentation fault\n\nCurrent thread 0x1 (most recent call first):\n  File "/srv/app/resize.py", line 41 in shrink\n',
    )
    os.close(crash)
    board.log(b"about to shrink\n")
    report = look(
        board,
        cause="signal",
        exit_=Exit(None, signal.SIGSEGV, core=True, rss=64 * MIB, user=1.25),
        asked=b"older",
        lease_age=2.5,
        code_version="v7",
    )
    assert (
        report.sentence
        == "Process 77 died of SIGSEGV at 64 MiB while it ran image:resize #5, in shrink at /srv/app/resize.py:41."
    )
    kept = report.as_dict()
    assert kept["stack"].startswith("Fatal Python error: Segmentation fault")
    assert (kept["signal"], kept["core_dumped"], kept["phase"], kept["cause"]) == ("SIGSEGV", True, "running", "signal")
    assert (kept["max_rss"], kept["cpu_user"], kept["lease_age"], kept["code_version"]) == (64 * MIB, 1.25, 2.5, "v7")
    assert (kept["job_age"], kept["child_age"], kept["log_tail"]) == (70.0, 60.0, "about to shrink\n")
    assert kept["core"], "the path of core files on this host is missing"
    assert not kept["oom"]
    assert "exit_code" not in kept, "unknown fields are left out"
    assert "memory" not in kept


def test_log_of_a_post_mortem_has_no_lines_about_other_jobs(board):
    for line in (
        "    ValueError: payload of job 4",
        "10:00:00.000 INFO    worker 1: starts",
        "10:00:01.000 ERROR   worker 1: job failed  job=4 kind=shop:receipt attempt=1",
        "    Traceback (most recent call last):",
        "10:00:02.000 INFO    worker 1: a line of the handler  job=5 kind=image:resize attempt=1",
        "    Traceback of the handler",
        "10:00:03.000 INFO    worker 1: another job  job=55 kind=image:resize attempt=1",
    ):
        board.log(f"{line}\n".encode())
    report = look(board, cause="signal", exit_=Exit(None, signal.SIGSEGV))
    assert [line.strip() for line in report.log_tail.splitlines()] == [
        "10:00:00.000 INFO    worker 1: starts",
        "10:00:02.000 INFO    worker 1: a line of the handler  job=5 kind=image:resize attempt=1",
        "Traceback of the handler",
    ]


def test_post_mortem_of_an_oom_kill_names_the_memory_limit(board):
    memory = {
        "counted": "control group",
        "oom_kills": 4,
        "version": 2,
        "group": "/web",
        "limit": 2048 * MIB,
        "peak": 2048 * MIB,
        "used": 9,
    }
    report = look(board, cause="oom", exit_=Exit(None, signal.SIGKILL, rss=1946 * MIB, oom=True), memory=memory)
    assert report.sentence == (
        "The out-of-memory killer killed process 77 at 1946 MiB, of 2048 MiB allowed by its control group, while it ran image:resize #5."
    )
    assert report.oom
    assert report.as_dict()["memory"] == memory


def test_oom_death_counts_as_oom_unless_the_supervisor_killed_the_process():
    slot_table = SlotTable(Limits(workers=2))
    for number, stop_sequence in ((0, None), (1, StopSequence(StopReason.TIMEOUT, 0.0, 9, 5, stage=Stage.KILLED))):
        slot = slot_table.slots[number]
        slot_table.on_fork(slot, pid=number + 10, incarnation=number, now=0.0, started=0, jitter=0.0)
        slot.sent.stop = stop_sequence
        killed = Exit(None, signal.SIGKILL, oom=True)
        slot_table.on_exit(
            slot, death_of(slot_table, slot, killed, work=slot.seen.work, now=9.0, started=0, jitter=0.0)
        )
    assert slot_table.deaths == {"oom": 1, "timeout": 1}
