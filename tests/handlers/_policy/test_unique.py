from __future__ import annotations

import pickle

import pytest

from jobherd import DuplicateJob, JobId, Unique, handler
from jobherd.handlers._enqueue.options import check_options
from jobherd.handlers._enqueue.rule import fields_of, rule_of
from jobherd.handlers._policy.unique import check_unique
from jobherd.handlers._values.job_id import job_id, known_id


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("order_id", ["order_id"]),
        ("a b", ["a b"]),
        ("$.doc.id", ["doc", "id"]),
        ("$.items[0].code", ["items", "0", "code"]),
        ("$[2]", ["2"]),
    ],
)
def test_unique_field_is_a_name_or_a_path(name, path):
    assert Unique(by=(name,)).paths == {name: path}
    assert check_unique(name, field="unique") == check_unique([name], field="unique") == Unique(by=(name,))


@pytest.mark.parametrize("wrong", ["", "$", "$.", "$.a..b", "a.b", "$.a[x]", "$..a", 7, None])
def test_invalid_unique_field_is_rejected(wrong):
    with pytest.raises(ValueError, match="by takes names of fields and paths"):
        Unique(by=(wrong,))


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"by": ()}, "by must name 1 to 20 fields"),
        ({"during": "running"}, "during must be 'live', 'waiting' or 'never', not 'running'"),
        ({"conflict": "drop"}, "conflict must be "),
        ({"queue": 1}, "queue must be True or False"),
        ({"conflict": "collect"}, "belong together"),
        ({"collect": "items"}, "belong together"),
        ({"by": ("items",), "conflict": "collect", "collect": "items"}, "a field of the payload that is not in by"),
        ({"conflict": "replace", "during": "never"}, "excludes during='never'"),
    ],
)
def test_invalid_unique_value_is_rejected_by_the_constructor(values, says):
    with pytest.raises((ValueError, TypeError), match=says):
        Unique(**values)


def test_unique_option_accepts_a_boolean_or_fields():
    assert check_unique(False, field="unique") is None
    assert check_unique(True, field="unique") == Unique()
    with pytest.raises(TypeError, match="unique must be True, the fields of the payload"):
        check_unique(7, field="unique")


def test_unique_picks_the_same_payload_fields_as_the_database():
    unique = Unique(by=("$.doc.id", "$.tags[1]", "gone", "$.doc[0]"))
    assert unique.pick({"doc": {"id": 3}, "tags": ["a", "b"]}) == {
        "$.doc.id": 3, "$.tags[1]": "b", "gone": None, "$.doc[0]": None
    }  # fmt: skip
    assert Unique().pick([1, 2]) == [1, 2]


def test_unique_during_never_requires_unique_for():
    with pytest.raises(ValueError, match="requires unique_for"):
        handler("a:b", unique=Unique(during="never"))(lambda n: None)
    with pytest.raises(ValueError, match="requires unique_for"):
        check_options(unique=Unique(during="never"))
    assert rule_of(check_options(unique=Unique(during="never"), unique_for="1m"))["for"] == 60.0


def test_unique_options_of_a_call_replace_those_of_the_handler():
    @handler("a:b", unique=("n",), unique_for="1h")
    def work(n: int) -> None: ...

    assert work.set_options.is_unique
    assert fields_of(work.set_options) == (["n"], ['{"n"}'])
    assert not work.options(unique=False).set_options.is_unique
    keyed = work.options(unique_key="n:1").set_options
    assert (rule_of(keyed)["key"], fields_of(keyed)) == ("n:1", (None, None))
    assert fields_of(check_options(unique='$.a"b')) == (['$.a"b'], ['{"a\\"b"}'])
    with pytest.raises(ValueError, match="unique=False excludes"):
        work.options(unique=False, unique_key="x")


@pytest.mark.parametrize("key", ["", "x" * 1001, "a\0b", "a\nb"])
def test_unique_key_is_1_to_1000_printable_characters(key):
    with pytest.raises(ValueError, match="unique_key must be 1 to 1000 printable characters"):
        check_options(unique_key=key)


def test_job_id_has_a_flag_for_new_jobs():
    assert job_id(7) == 7
    assert job_id(7).new
    assert repr(known_id(7, new=False)) == "7"
    assert not job_id(known_id(7, new=False)).new
    assert isinstance(job_id(7), JobId)
    assert pickle.loads(pickle.dumps(DuplicateJob(7))).id == 7


COLLECT = Unique(by=("n",), conflict="collect", collect="items")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"throttle": "1m", "debounce": "1s"}, "throttle excludes debounce"),
        ({"throttle": "1m", "unique_for": "1s"}, "throttle excludes debounce and unique_for"),
        ({"edge": "trailing"}, "edge requires throttle"),
        ({"max_wait": "1m"}, "max_wait requires debounce"),
        ({"debounce": "1m", "max_wait": "1s"}, "max_wait requires debounce, and must not be shorter"),
        ({"debounce": "1m", "delay": "1s"}, "exclude delay and run_at"),
        ({"debounce": "1m", "unique": Unique(conflict="raise")}, "exclude conflict='raise'"),
        ({"throttle": "1m", "unique": Unique(conflict="replace")}, "requires edge='trailing'"),
        ({"unique": Unique(conflict="collect", collect="items")}, "requires by or unique_key"),
        ({"unique": COLLECT, "payload_bytes": b""}, "excludes payload_bytes"),
        ({"unique": False, "debounce": "1s"}, "unique=False excludes"),
        ({"throttle": "1m", "edge": "both"}, "edge must be 'leading' or 'trailing', not 'both'"),
    ],
)
def test_contradictory_unique_options_are_rejected(options, says):
    with pytest.raises(ValueError, match=says):
        check_options(**options)
    if "payload_bytes" not in options and "delay" not in options and options.get("unique") is not False:
        with pytest.raises(ValueError, match=says):
            handler("a:b", **options)(lambda n, items: None)


def test_debounce_and_throttle_become_the_rule_for_the_database():
    def rule(**options):
        return {
            name: value for name, value in rule_of(check_options(**options)).items() if name not in {"queue", "keep"}
        }

    assert rule(debounce="2s") == {"during": "waiting", "conflict": "replace", "debounce": 2.0, "max_wait": 20.0}
    assert rule(debounce="2s", max_wait="3s", unique=COLLECT) == {
        "during": "waiting", "conflict": "collect", "collect": "items", "debounce": 2.0, "max_wait": 3.0
    }  # fmt: skip
    assert rule(throttle="1m") == {"during": "never", "conflict": "ignore", "for": 60.0}
    assert rule_of(check_options(throttle="1m", edge="trailing"))["keep"] is True
