from __future__ import annotations

import time
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobherd import JobTimeout, handlers
from jobherd.handlers._values.payload import PayloadError, decode_payload
from jobherd.handlers._values.sanitize import describe_exception, loading, sanitize


@given(st.text(st.characters()), st.integers(-5, 60))
def test_sanitized_text_is_storable_and_within_the_limit(text, limit):
    clean = sanitize(text, limit)
    assert "\0" not in clean
    assert len(clean.encode()) <= max(0, limit)
    if len(text.encode("utf-8", "surrogatepass")) <= limit and text.isascii() and "\0" not in text:
        assert clean == text


def test_nul_and_surrogates_become_replacement_characters():
    assert sanitize("a\0b\ud800c", 100) == "a\ufffdb\ufffdc"


def test_long_text_is_cut_at_a_whole_character_with_a_marker():
    assert sanitize("é" * 100, 20) == "é" * 7 + " [cut]"


class Odd(str):  # noqa: SLOT000
    def __getitem__(self, item):
        raise SystemExit

    def __str__(self):
        raise SystemExit

    def encode(self, *args):
        return 5


class Mute:
    def __str__(self):
        raise ValueError

    __repr__ = __str__


class Wrong:
    def __str__(self):
        return 5  # noqa: PLE0307


class Endless:
    def __str__(self):
        return str(self)


@pytest.mark.parametrize(
    "odd", [Mute(), Wrong(), Endless(), None, 5, b"\xff", object], ids=lambda odd: type(odd).__name__
)
def test_sanitize_accepts_objects_that_are_not_text(odd):
    assert sanitize(odd, 200).encode()


def test_sanitize_converts_a_hostile_subclass_of_str_to_str():
    clean = sanitize(Odd("hello\0"), 100)
    assert clean == "hello\ufffd"
    assert type(clean) is str


def failing(exception):
    try:
        raise exception
    except BaseException as problem:
        return problem


def test_exception_is_described_with_file_line_and_source():
    message, trace = describe_exception(failing(ValueError("no such order")))
    assert message == "ValueError: no such order"
    assert trace.startswith("Traceback (most recent call last):\n  File ")
    assert __file__ in trace
    assert "    raise exception" in trace
    assert trace.endswith("ValueError: no such order")


def test_an_exception_of_a_module_is_described_with_the_module_name():
    class Local(Exception):
        pass

    assert describe_exception(Local())[0].startswith(
        "tests.handlers._values.test_sanitize.test_an_exception_of_a_module"
    )


class Hostile(Exception):
    def __str__(self):
        raise SystemExit("no")

    __repr__ = __str__


class NotText(Exception):
    def __str__(self):
        return b"bytes"  # noqa: PLE0307


class Looping(Exception):
    def __str__(self):
        return str(self)


class Interrupting(Exception):
    def __str__(self):
        raise JobTimeout


class Liar(Exception):
    @property
    def __cause__(self):
        raise SystemExit

    @property
    def __traceback__(self):
        return 5

    @property
    def __notes__(self):
        raise SystemExit


class Meta(type):
    def __getattribute__(cls, name):
        if name in {"__name__", "__qualname__", "__module__"}:
            raise SystemExit
        return super().__getattribute__(name)


class Nameless(Exception, metaclass=Meta):
    pass


HOSTILE = [
    Hostile(),
    NotText(),
    Looping(),
    Interrupting(),
    Liar("x"),
    Nameless("x"),
    UnicodeDecodeError("x", b"", 0, 1, "\0\ud800"),
]


@pytest.mark.parametrize(
    "exception", HOSTILE, ids=lambda one: type(one).__qualname__ if type(one) is not Nameless else "Nameless"
)
def test_hostile_exception_is_still_described(exception):
    message, trace = describe_exception(failing(exception))
    assert message.encode()
    assert "\0" not in message + trace
    assert "Traceback" in trace


def test_description_says_why_the_exception_text_is_missing():
    assert (
        describe_exception(Hostile())[0]
        == "tests.handlers._values.test_sanitize.Hostile: <its text cannot be shown: __str__ raised SystemExit>"
    )


def test_exception_text_of_100_mb_is_not_copied():
    exception = ValueError("x" * 100_000_000)
    tracemalloc.start()
    message, trace = describe_exception(exception)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2_000_000, "the text of the exception was copied"
    assert len(message) == 10_000
    assert len(trace.encode()) <= 64_000


def test_chain_of_causes_is_described_oldest_first():
    try:
        try:
            raise KeyError("inner")
        except KeyError as problem:
            raise ValueError("outer") from problem
    except ValueError as problem:
        trace = describe_exception(problem)[1]
    assert trace.index("KeyError: 'inner'") < trace.index("direct cause") < trace.index("ValueError: outer")


def test_context_is_described_unless_suppressed():
    def chained(suppressed):
        try:
            try:
                raise KeyError("inner")
            except KeyError:
                if suppressed:
                    raise ValueError("outer") from None
                raise ValueError("outer")
        except ValueError as problem:
            return describe_exception(problem)[1]

    assert "During handling" in chained(suppressed=False)
    assert "KeyError" not in chained(suppressed=True)


def test_chain_of_100000_causes_is_described_in_bounded_space_and_time():
    exception = ValueError("0")
    for number in range(1, 100_000):
        following = ValueError(str(number))
        following.__cause__ = exception
        exception = following
    begun = time.process_time()
    trace = describe_exception(exception)[1]
    assert time.process_time() - begun < 60, "code that walks the whole chain for each exception needs an hour"
    assert len(trace) < 10_000
    assert "(99,988 exceptions of the chain are not shown)" in trace
    assert trace.startswith("ValueError: 0\n")
    assert trace.endswith("ValueError: 99999")
    while exception is not None:  # frees the chain one exception at a time: deep recursion would crash
        exception = exception.__cause__


def test_cyclic_chain_of_exceptions_is_described_once():
    first, second = ValueError("first"), ValueError("second")
    first.__context__, second.__context__ = second, first
    assert describe_exception(first)[1].count("ValueError: second") == 1


def test_exception_group_is_described_up_to_a_limit():
    group = ExceptionGroup("several", [failing(ValueError(f"number {n}")) for n in range(50)])
    trace = describe_exception(group)[1]
    assert "ValueError: number 9" in trace
    assert "number 10" not in trace
    assert "40 more are not shown" in trace
    for _ in range(1000):
        group = ExceptionGroup("deeper", [group])
    assert len(describe_exception(group)[1]) < 20_000


def test_deep_traceback_shows_the_innermost_30_frames():
    def down(levels):
        if levels == 0:
            raise ValueError("bottom")
        down(levels - 1)

    try:
        down(200)
    except ValueError as problem:
        trace = describe_exception(problem)[1]
    assert "172 frames are not shown" in trace
    assert trace.count("  File ") == 30


def test_notes_of_an_exception_are_described():
    exception = ValueError("x")
    exception.add_note("while sending mail 7\0")
    assert "while sending mail 7\ufffd" in describe_exception(exception)[1]


def test_long_traceback_is_cut_in_the_middle():
    exception = failing(ValueError("y" * 5000))
    trace = describe_exception(exception, traceback_bytes=500)[1]
    assert len(trace.encode()) <= 500
    assert trace.startswith("Traceback")
    assert "\n(cut)\n" in trace
    assert trace.endswith("[cut]")


def test_jobherds_frames_before_the_handler_are_omitted():
    ours: dict = {}
    place = Path(handlers.__file__).parents[1] / "workers" / "run" / "executor.py"
    exec(compile("def step(handler):\n    handler()\n", str(place), "exec"), ours)

    def of_somebody():
        ours["step"](lambda: next(iter([])))  # frames after the handler's own are shown

    try:
        ours["step"](of_somebody)
    except StopIteration as problem:
        problem.__traceback__ = problem.__traceback__.tb_next  # makes the worker's frame the outermost
        trace = describe_exception(problem)[1]
    assert trace.startswith(f'Traceback (most recent call last):\n  File "{__file__}", line')
    assert trace.count("executor.py") == 1


def test_traceback_of_an_interrupted_handler_ends_with_the_handlers_line():
    ours: dict = {}
    folder = Path(handlers.__file__).parents[1]
    for place, text in (
        ("handlers/_run/call.py", "def interrupt():\n    raise TimeoutError('ran longer than 2 s')\n"),
        ("workers/process/interrupt.py", "def on_alarm():\n    interrupt()\n"),
    ):
        exec(compile(text, str(folder / place), "exec"), ours)
    with pytest.raises(TimeoutError) as caught:
        ours["on_alarm"]()
    lines = describe_exception(caught.value)[1].splitlines()
    assert f'"{__file__}"' in lines[-3]
    assert lines[-2:] == ['    ours["on_alarm"]()', "TimeoutError: ran longer than 2 s"]


def test_exception_raised_by_jobherd_alone_keeps_its_frames():
    with pytest.raises(PayloadError) as caught:
        decode_payload("{")
    problem = caught.value
    problem.__traceback__ = problem.__traceback__.tb_next  # drops the frame of this test
    trace = describe_exception(problem)[1]
    assert trace.startswith("Traceback (most recent call last):\n  File ")
    assert "handlers/_values/payload.py" in trace


def test_description_names_a_file_changed_after_it_was_loaded(tmp_path, monkeypatch):
    file = tmp_path / "mail.py"
    file.write_text("def send():\n    raise ValueError('no such order')\n")
    names: dict = {}
    exec(compile(file.read_text(), str(file), "exec"), names)

    def trace():
        try:
            names["send"]()
        except ValueError as problem:
            return describe_exception(problem)[1]

    # another test in this process may have loaded handlers
    monkeypatch.setattr("jobherd.handlers._values.sanitize._loaded_at", float("inf"))
    assert "was changed" not in trace(), "the time of loading is unknown"
    loading(file.stat().st_mtime)
    assert "was changed" not in trace()
    loading(file.stat().st_mtime - 1)
    assert trace().endswith(
        f"ValueError: no such order\n({file} was changed after this process had loaded it: reload the workers to run the new code)"
    )
    file.unlink()
    assert "was changed" not in trace()
