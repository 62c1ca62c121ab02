"""Stacks that faulthandler writes: how they are read and shown, and that they overwrite nothing. Flame graphs."""

from __future__ import annotations

import os
import re
import xml.etree.ElementTree as ET
from pathlib import Path

from jobherd import workers
from jobherd.workers.inspect import flamegraph
from jobherd.workers.inspect.stacks import MAIN, Frame, read, thread_of
from jobherd.workers.ipc.current_work import CurrentWork, Phase
from jobherd.workers.ipc.status_board import StatusBoard

OURS = str(Path(workers.__file__).parent)
LIBRARY = os.path.dirname(os.__file__)
CRASH = f"""Fatal Python error: Segmentation fault

Thread 0x00007f1 [feeder] (most recent call first):
  File "/srv/app/feed.py", line 3 in pump

Current thread 0x00007f2 (most recent call first):
  File "{LIBRARY}/ctypes/__init__.py", line 519 in string_at
  File "/srv/app/mail.py", line 41 in send
  File "{OURS}/execute.py", line 7 in run
  File "{OURS}/main.py", line 60 in main
  File "/opt/supervisor/process/children.py", line 9 in do

Extension modules: psycopg_binary._psycopg (total: 1)
"""


def test_crash_stack_is_shown_without_frames_of_the_supervisor_and_worker():
    stacks = read(CRASH)
    assert stacks.said == "Fatal Python error: Segmentation fault"
    assert [(thread.name, thread.current, len(thread.frames)) for thread in stacks.threads] == [
        (MAIN, True, 2),
        ("thread feeder", False, 1),
    ]
    assert stacks.current.frames[0] == Frame("send", "/srv/app/mail.py", 41)
    assert stacks.place() == f"string_at at {LIBRARY}/ctypes/__init__.py:519, called from send at /srv/app/mail.py:41"
    shown = stacks.show(16384)
    assert shown.endswith("line 519, in string_at"), "the innermost call of the crashed thread is the last line"
    assert shown.index("in pump") < shown.index("Segmentation fault") < shown.index("in send")
    assert stacks.show(200).endswith("in string_at"), "the end is never cut off"
    assert "(1 more threads)" in stacks.show(len(shown) - 20)
    assert [thread_of(thread.document()) for thread in stacks.threads] == list(stacks.threads)


def test_stack_without_user_code_keeps_the_frames_of_the_worker():
    [thread] = read(
        f'Thread 0x1 (most recent call first):\n  File "{OURS}/wake.py", line 5 in wait\n  File "{OURS}/main.py", line 6 in main\n'
    ).threads
    assert [frame.function for frame in thread.frames] == ["wait"]


def test_truncated_or_foreign_text_is_read_without_an_error():
    assert read("").show(100) == ""
    assert read("Traceback (most recent call last):\n  boom").show(100) == "Traceback (most recent call last):\n  boom"
    for end in range(len(CRASH)):
        read(CRASH[:end]).show(100)
    assert read("Current thread 0x1 (most recent call first):\n  File ???, line ??? in ???\n").place() == "??? at ???:0"


def test_c_frames_are_kept_if_the_interpreter_writes_them():
    text = CRASH.partition("\nExtension")[0] + (
        "\nCurrent thread's C stack trace (most recent call first):\n"
        '  Binary file "/lib/libc.so.6", at +0x42520 [0x7f1]\n  <truncated rest of calls>\n\nExtension modules: a (total: 1)\n'
    )
    stacks = read(text)
    assert stacks.native == ('  Binary file "/lib/libc.so.6", at +0x42520 [0x7f1]', "  <truncated rest of calls>")
    assert "libc.so.6" in stacks.show(16384)


def test_stack_of_100_frames_of_one_function_counts_as_endless_recursion():
    head = "Fatal Python error: Segmentation fault\n\nCurrent thread 0x1 (most recent call first):\n"
    frame = '  File "/srv/a.py", line 2 in again\n'
    assert read(head + frame * 100 + "  ...\n").endless() == "again"
    assert read(head + frame * 100).endless() == "again", "Python 3.13 does not mark a cut stack"
    assert read(head + frame * 99).endless() == "", (
        "faulthandler would have written another frame, so the stack is not cut"
    )


def test_stacks_of_any_length_overwrite_nothing_else_on_the_status_board():
    board = StatusBoard("test")
    try:
        board.say(CurrentWork(Phase.RUNNING, 1, 2, 3))
        board.log(b"the last line\n")
        board.publish_output(5, b"hello")
        crash = board.open_trace()
        for fd in (crash, board.fd):
            for _ in range(40):
                try:
                    os.write(fd, b"x" * 65536)
                except OSError:  # The file does not grow.
                    break
            else:
                raise AssertionError("it took more than two megabytes")
        os.close(crash)
        assert (board.now().job, board.log_tail(), board.drained()) == (3, b"the last line\n", (5, b"hello"))
        board.open_stacks()
        assert board.stacks() == b""
        os.write(board.fd, b"anew")
        assert board.stacks() == b"anew"
        board.clear()
        assert board.stacks() == b""
        os.close(board.open_trace())
        assert board.trace() == ""
    finally:
        board.close()


# -- flame graphs

SEND, OTHER = Frame("send", "/srv/app/mail.py", 41), Frame("<lambda>", "/srv/app/a&b;c.py", 7)
COUNTS = {(MAIN, (SEND,)): 3, (MAIN, (SEND, OTHER)): 6, ("thread feeder", (OTHER,)): 1}


def test_profile_is_folded_and_is_read_back_from_its_document():
    assert flamegraph.folded(COUNTS).splitlines() == [
        "main thread;send (/srv/app/mail.py:41) 3",
        "main thread;send (/srv/app/mail.py:41);<lambda> (/srv/app/a&b:c.py:7) 6",
        "thread feeder;<lambda> (/srv/app/a&b:c.py:7) 1",
    ]
    assert flamegraph.counts_of(flamegraph.document(COUNTS, 10_000)) == COUNTS
    assert flamegraph.hottest(COUNTS, 5) == [(OTHER, 6 / 9), (SEND, 3 / 9)]


def test_document_over_the_size_limit_keeps_the_most_frequent_stacks():
    many = {
        (MAIN, (SEND, Frame(f"f{number}", "/srv/long/name/of/a/file.py", number))): number for number in range(1, 500)
    }
    short = flamegraph.counts_of(flamegraph.document(many, 5_000))
    assert 10 < len(short) < 200
    assert sum(short.values()) == sum(many.values())
    assert (MAIN, (SEND, Frame("f499", "/srv/long/name/of/a/file.py", 499))) in short
    assert ("(other stacks)", ()) in short


def test_flame_graph_is_well_formed_loads_nothing_and_escapes_hostile_names():
    hostile = Frame('<script>alert("x")</script>', 'a".py', 1)
    drawn = flamegraph.picture(
        {**COUNTS, (MAIN, (hostile,)): 5}, title="job 7 <b>", about='"a" & b \x1b[31m', seconds=10.0
    )
    tree = ET.fromstring(drawn)
    spaces = {"s": "http://www.w3.org/2000/svg"}
    assert len(tree.findall("s:script", spaces)) == 1
    assert tree.find("s:script", spaces).text == flamegraph.SCRIPT
    assert not tree.findall(".//s:script/..[@class='b']", spaces)
    assert not re.search(r"(href|src|url\()", drawn)
    boxes = {box.find("s:title", spaces).text: box.find("s:rect", spaces) for box in tree.findall("s:g", spaces)}
    root = next(rect for title, rect in boxes.items() if title.startswith("all:"))
    send = next(rect for title, rect in boxes.items() if title.startswith("send "))
    assert abs(float(send.get("width")) / float(root.get("width")) - 9 / 15) < 0.01
    assert any("60.0% of all, 6.0 s, seen 9 times" in title for title in boxes)
    assert any(title.startswith('<script>alert("x")</script> (a".py:1)') for title in boxes)
    bottom = max(float(rect.get("y")) + float(rect.get("height")) for rect in boxes.values())
    assert bottom < float(tree.get("height"))
