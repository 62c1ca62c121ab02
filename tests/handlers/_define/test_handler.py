from __future__ import annotations

import functools

import pytest

from jobherd import Backoff, BindingError, Handler, Job, PayloadError, Poison, handler
from jobherd.handlers._define.handler import kind_of


@handler("mail:receipt", queue="mail", priority=-5)
def receipt(order_id: int, copies: int = 1) -> str:
    """Send a receipt."""
    return f"{copies} of {order_id}"


def test_a_handler_can_be_called_like_its_function():
    assert receipt(7) == "1 of 7"
    assert receipt(order_id=7, copies=2) == "2 of 7"
    assert receipt.__name__ == "receipt"
    assert receipt.__doc__ == "Send a receipt."
    assert isinstance(receipt, Handler)


def test_handler_has_the_file_and_line_of_its_function():
    assert receipt.file == __file__
    assert receipt.line > 1
    assert repr(receipt) == f"<Handler mail:receipt at {__file__}:{receipt.line}>"


@pytest.mark.promise("A23", "A24", "A25", "A30", "A48")
def test_default_policy_has_the_documented_values():
    policy = handler("demo:x")(lambda: None).policy
    assert (policy.queue, policy.priority, policy.timeout, policy.max_attempts, policy.max_crashes) == (
        "default",
        0,
        300,
        5,
        3,
    )
    assert policy.backoff == Backoff("30s", 2, 0.2, "1h")
    assert (policy.retry_on, policy.poison_on, policy.backoff_on, policy.exclusive) == (None, (), (), False)
    assert (policy.keep_completed_days, policy.keep_failed_days) == (7, 30)


def test_handler_stores_checked_options_in_its_policy():
    policy = handler(
        "demo:x",
        timeout="2m",
        max_attempts=8,
        poison_on=FileNotFoundError,
        backoff=["1s"],
        keep_completed="25h",
        keep_failed=0,
        exclusive=True,
    )(lambda: None).policy
    assert (policy.timeout, policy.max_attempts, policy.poison_on, policy.backoff) == (
        120,
        8,
        (FileNotFoundError,),
        (1.0,),
    )
    assert (policy.keep_completed_days, policy.keep_failed_days, policy.exclusive) == (2, 0, True)


@pytest.mark.parametrize(
    "kind",
    [
        "",
        "Mail",
        "mail receipt",
        "a" * 101,
        ":a",
        "-a",
        "os.system()",
        "../../x",
        "a;drop table",
        "<script>",
        "x" * 10_000,
        "mäil",
        "a\n",
        "a\0",
    ],
)
@pytest.mark.promise("A18")
def test_invalid_kind_is_rejected_and_the_error_shows_the_rule(kind):
    with pytest.raises(ValueError, match="is not a name like 'mail:receipt'") as caught:
        handler(kind)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("kind", ["a", "0", "_x", "a" * 100, "os.system", "mail:receipt", "a-b.c:d_e"])
@pytest.mark.promise("A18")
def test_valid_kind_is_accepted(kind):
    assert handler(kind)(lambda: None).kind == kind


@pytest.mark.parametrize(
    ("options", "problem", "says"),
    [
        ({"queue": "Media"}, ValueError, "queue 'Media' is not a name"),
        ({"queue": "a:b"}, ValueError, "queue 'a:b'"),
        ({"queue": "q" * 64}, ValueError, "at most 63"),
        ({"queue": None}, ValueError, "queue None"),
        ({"priority": 40_000}, ValueError, "priority must be a whole number from -32768 to 32767, not 40000"),
        ({"priority": "high"}, ValueError, "priority"),
        ({"priority": True}, ValueError, "priority"),
        ({"timeout": 0}, ValueError, "timeout must be more than 0"),
        ({"timeout": "soon"}, ValueError, "timeout is not a duration"),
        ({"timeout": None}, TypeError, "timeout"),
        ({"max_attempts": 0}, ValueError, "max_attempts must be a whole number from 1"),
        ({"max_attempts": 2.5}, ValueError, "max_attempts"),
        ({"max_crashes": 0}, ValueError, "max_crashes"),
        ({"max_running": 0}, ValueError, "max_running"),
        ({"backoff": "never"}, ValueError, "backoff is not a duration"),
        ({"backoff": []}, ValueError, "backoff is an empty list"),
        ({"poison_on": (ValueError, "x")}, TypeError, "poison_on takes exception classes.*'x'"),
        ({"poison_on": ValueError("x")}, TypeError, "poison_on"),
        ({"retry_on": int}, TypeError, "retry_on"),
        ({"backoff_on": [ValueError]}, TypeError, "backoff_on must be a dict"),
        ({"backoff_on": {"x": 1}}, TypeError, "backoff_on takes exception classes"),
        ({"backoff_on": {"BUSY": "x"}}, ValueError, r"backoff_on\[BUSY\]"),
        ({"retry_on": ("BUSY", "busy")}, TypeError, "retry_on takes exception classes and error codes.*'busy'"),
        ({"backoff_on": {ValueError: "x"}}, ValueError, r"backoff_on\[ValueError\]"),
        ({"exclusive": 1}, TypeError, "exclusive must be True or False"),
        ({"transactional": "yes"}, TypeError, "transactional must be True or False"),
        ({"transactional": True, "batch": 5}, ValueError, "transactional and batch exclude each other"),
        ({"attempts_per_step": True, "batch": 5}, ValueError, "attempts_per_step excludes transactional and batch"),
        ({"keep_completed": "x"}, ValueError, "keep_completed"),
        ({"keep_failed": "999999w"}, ValueError, "keep_failed is out of range"),
        ({"time_out": 5}, TypeError, "time_out"),
    ],
    ids=str,
)
def test_error_at_the_decorator_names_the_invalid_option(options, problem, says):
    with pytest.raises(problem, match=says):
        handler("demo:x", **options)


def generator():
    yield 1


async def async_generator():
    yield 1


def starred(*args): ...


def positional(x, /): ...


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (generator, "generator has a yield"),
        (async_generator, "async_generator has a yield"),
        (starred, "parameter 'args' has no name"),
        (positional, "parameter 'x' has no name"),
    ],
)
def test_function_that_cannot_be_a_handler_is_rejected(function, says):
    with pytest.raises(TypeError, match=says):
        handler("demo:x")(function)


@pytest.mark.parametrize(
    ("file", "name", "kind"),
    [
        ("/srv/jobs/mail.py", "send", "mail:send"),
        ("/srv/jobs/mail/receipt.py", "send", "receipt:send"),
        ("/srv/jobs/mail/receipt.py", "handle", "mail:receipt"),
        ("/srv/jobs/mail/__init__.py", "send", "mail:send"),
        ("/srv/jobs/mail/__init__.py", "handle", "jobs:mail"),
        ("/srv/app.zip/mail.py", "send", "mail:send"),
        ("<stdin>", "send", "send"),
        ("<stdin>", "handle", "handle"),
    ],
)
@pytest.mark.parametrize("module", ["__main__", "mail", "my_handlers.mail", "jobherd_user.jobs_1a2b.mail"])
def test_default_kind_comes_from_file_and_function_and_not_from_the_module_name(file, name, kind, module):
    space = {"__name__": "__main__" if file == "<stdin>" else module}
    exec(compile(f"def {name}(): ...", file, "exec"), space)
    function = space[name]
    assert kind_of(function) == kind
    assert handler(function).kind == handler()(function).kind == handler(queue="q")(function).kind == kind


def test_error_for_an_invalid_default_kind_shows_how_to_name_it():
    def Send(): ...

    with pytest.raises(ValueError, match=r"name it yourself: @handler\('mail:receipt'\)"):
        handler(Send)


def test_handler_rejects_a_kind_that_is_neither_text_nor_a_function():
    with pytest.raises(TypeError, match="kind must be a name"):
        handler(5)


def test_wrapped_function_keeps_its_signature_and_file():
    def twice(function):
        @functools.wraps(function)
        def wrapper(*args, **kwargs):
            return function(*args, **kwargs) * 2

        return wrapper

    @handler("demo:wrapped")
    @twice
    def wrapped(text: str) -> str:
        return text

    assert wrapped(text="a") == "aa"
    assert wrapped.binding.bind({"text": "a"}) == {"text": "a"}
    with pytest.raises(BindingError):
        wrapped.binding.bind({"text": 5})
    assert wrapped.file == __file__


def test_payload_contains_only_the_given_arguments():
    assert receipt.payload(7) == {"order_id": 7}
    assert receipt.payload(order_id=7, copies=2) == {"order_id": 7, "copies": 2}
    assert receipt.payload(7, copies=2) == {"order_id": 7, "copies": 2}


def test_job_parameter_is_not_part_of_the_payload():
    @handler("demo:job")
    def with_job(job: Job, order_id: int) -> None: ...

    assert with_job.payload(7) == {"order_id": 7}


@pytest.mark.parametrize(
    ("arguments", "named", "says"),
    [
        ((), {}, "needs 'order_id'"),
        ((1, 2, 3), {}, "takes 2 arguments, 3 were given"),
        ((1,), {"order_id": 1}, "got 'order_id' twice"),
        ((), {"oder_id": 1}, "has no parameter 'oder_id'; it has copies, order_id"),
    ],
)
def test_enqueue_with_wrong_arguments_raises_type_error(arguments, named, says):
    with pytest.raises(TypeError, match=says):
        receipt.enqueue(*arguments, **named)


def test_invalid_value_is_rejected_before_it_reaches_the_database():
    with pytest.raises(BindingError, match=r"\$\.order_id must be int, not str"):
        receipt.enqueue(order_id="7")
    with pytest.raises(PayloadError, match="NUL"):
        receipt.enqueue(order_id="\0")


def test_options_returns_a_new_producer_and_does_not_change_the_handler():
    later = receipt.options(delay="10m", priority=3)
    urgent = later.options(priority=-9)
    assert (later.set_options.delay, later.set_options.priority, later.set_options.queue) == (600, 3, "mail")
    assert (urgent.set_options.delay, urgent.set_options.priority) == (600, -9)
    assert receipt.set_options.delay is None
    assert receipt.set_options.priority == -5


def test_enqueue_many_accepts_only_dicts_and_tuples():
    with pytest.raises(TypeError, match="takes a dict or a tuple of arguments, not an int"):
        receipt.enqueue_many([7])


def test_poison_is_exported_and_raisable():
    with pytest.raises(Poison):
        raise Poison("x")
