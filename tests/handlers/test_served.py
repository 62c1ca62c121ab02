"""Each @handler is served, or reported by name, however the handler was created."""

from __future__ import annotations

import textwrap

import pytest

from jobherd import handler
from jobherd.handlers._load.registry import HOOKS, Loaded, load, notes_of
from jobherd.handlers._load.unchecked import unchecked

TOOLS = """
import functools
from jobherd import handler

def bare(function):
    def inner(**given): return function(**given)
    return inner

def wrapping(function):
    @functools.wraps(function)
    def inner(*given, **named): return function(*given, **named)
    return inner

def make(kind):
    @handler(kind)
    def made(n: int) -> int: return n
    return made
"""


@pytest.fixture
def loads(tmp_path):
    """Write a module next to `_tools.py` and load the folder."""

    def loads(text: str, name: str = "b", **more: str) -> Loaded:
        (tmp_path / "_tools.py").write_text(TOOLS)
        for each, content in {name: text, **more}.items():
            path = tmp_path / (each.replace("__in__", "/") + ".py")
            path.parent.mkdir(exist_ok=True)
            path.write_text("import functools\nfrom jobherd import handler\n" + textwrap.dedent(content))
        return load([tmp_path])

    return loads


@pytest.mark.parametrize(
    "text",
    [
        "x = handler('b:x')(functools.partial(lambda n, m: n + m, m=5))",
        "from ._tools import bare\n@handler('b:x')\n@bare\ndef x(n): return n + 5",
        "from ._tools import wrapping\n@handler('b:x')\n@wrapping\ndef x(n): return n + 5",
        "@handler('b:x')\n@functools.lru_cache\ndef x(n): return n + 5",
        "class Mail:\n    @handler('b:x')\n    @staticmethod\n    def x(n): return n + 5",
        "class Mail:\n    @staticmethod\n    @handler('b:x')\n    def x(n): return n + 5",
        "class Mail:\n    class Inner:\n        @handler('b:x')\n        @staticmethod\n        def x(n): return n + 5",
        "class Adder:\n    def __call__(self, n): return n + 5\nx = handler('b:x')(Adder())",
        "class Adder:\n    def add(self, n): return n + 5\nx = handler('b:x')(Adder().add)",
        "same = lambda handler: handler\n@same\n@handler('b:x')\ndef x(n): return n + 5",
    ],
)
def test_handler_that_a_module_name_refers_to_is_served(loads, text):
    loaded = loads(text)
    assert loaded.problems == loaded.notes == ()
    one = loaded.kinds["b:x"]
    assert one(**one.binding.bind({"n": 1})) == 6
    assert one.file.endswith("b.py")


def test_static_method_may_be_a_coroutine(loads):
    loaded = loads("class Mail:\n    @handler('b:x')\n    @staticmethod\n    async def x(n): return n")
    assert loaded.kinds["b:x"].signature.is_async


def test_handler_from_a_factory_is_served_by_the_module_that_calls_it(loads):
    loaded = loads("from ._tools import make\none = make('b:one')\ntwo = make('b:two')", c="from .b import one")
    assert loaded.problems == ()
    assert {kind: (each.file.rpartition("/")[2], each.line) for kind, each in loaded.kinds.items()} == {
        "b:one": ("b.py", 4), "b:two": ("b.py", 5),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("from ._tools import wrapping\n@wrapping\n@handler('b:lost')\ndef x(n): ...", 4),
        ("from ._tools import bare\n@bare\n@handler('b:lost')\ndef x(n): ...", 4),
        ("@handler('b:lost')\ndef x(n): ...\n@handler('b:x')\ndef x(n): ...", 3),
        ("for kind in ['b:lost']:\n    handler(kind)(functools.partial(lambda n, m: 5, m=5))", 4),
        ("HANDLERS = [handler('b:lost')(lambda n: n)]", 3),
        ("lambda handler: 5\n@(lambda handler: 5)\n@handler('b:lost')\ndef x(n): ...", 4),
    ],
)
def test_handler_without_a_module_name_is_reported(loads, text, line):
    (problem,) = loads(text + "\n@handler('b:good')\ndef good(): ...").problems
    assert problem.file.endswith("b.py")
    assert problem.line == line
    assert problem.message.startswith(
        "kind 'b:lost' would not be served: no name of its module holds it. A decorator outside of it"
    )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "class Mail:\n    @handler('b:x')\n    def x(self, n): ...",
            "Mail.x is a method, and a job has no 'self' to call it with",
        ),
        (
            "class Mail:\n    @classmethod\n    @handler('b:x')\n    def x(cls, n): ...",
            "Mail.x is a method, and a job has no 'cls'",
        ),
        (
            "class Mail:\n    @handler('b:x')\n    @classmethod\n    def x(cls, n): ...",
            "Mail.x is a class method, and a job has no class",
        ),
        (
            "class Mail:\n    @handler\n    @classmethod\n    def x(cls, n): ...",
            "Mail.x is a class method, and a job has no class",
        ),
    ],
)
def test_methods_are_rejected_with_the_reason(loads, text, says):
    (problem,) = loads(text).problems
    assert says in problem.message
    assert "use a function or a static method" in problem.message


def test_hook_without_a_module_name_is_reported(loads):
    loaded = loads(
        """
        from jobherd import before_job
        from ._tools import wrapping
        part = before_job(functools.partial(lambda said, job: None, 5)) if False else before_job(lambda job: None)
        @wrapping
        @before_job
        def lost(job): ...
        def make():
            @before_job
            def made(job): ...
            return made
        first, second = make(), make()
        """
    )
    assert len(loaded.hooks) == 3
    (problem,) = loaded.problems
    assert problem.message.startswith("the hook before_job would not be called: no name of its module holds it")


def test_hook_of_a_private_module_is_reported_unless_loaded_for_its_hooks(loads, tmp_path):
    text = "from jobherd import before_job\n@before_job\ndef noted(job): ...\n@handler('b:lost')\ndef lost(): ...\ndel lost"
    loaded = loads("from . import _hooks", _hooks=text)
    assert ["the hook before_job" in str(note) for note in loaded.notes] == [True, False]
    hooks = load([tmp_path / "_hooks.py"], named=HOOKS)
    assert (len(hooks.hooks), hooks.problems) == (1, ()), (
        "handlers in a module loaded for its hooks are neither served nor reported"
    )
    assert [note.about for note in notes_of(loaded, hooks)] == [loaded.notes[1].about]


def test_handlers_of_a_private_module_are_reported(loads):
    loaded = loads(
        "from ._defs import work", _defs="@handler('b:private')\ndef work(): ...\n@handler('b:other')\ndef other(): ..."
    )
    assert loaded.kinds == {}
    assert [str(note).rpartition("/")[2].split(": ")[:2] for note in loaded.notes] == [
        ["_defs.py:3", "kind 'b:private' would not be served"], ["_defs.py:5", "kind 'b:other' would not be served"],
    ]  # fmt: skip
    assert "begins with an underscore" in loaded.notes[0].message


def test_handler_imported_from_an_unnamed_module_is_reported_separately(loads, tmp_path_factory, monkeypatch):
    place = tmp_path_factory.mktemp("elsewhere")
    (place / "served_elsewhere.py").write_text("from jobherd import handler\n@handler('else:where')\ndef work(): ...\n")
    monkeypatch.syspath_prepend(place)
    loaded = loads("from served_elsewhere import work")
    assert loaded.notes == ()
    (told,) = loaded.elsewhere
    assert told.message == (
        "kind 'else:where' would not be served here: its module served_elsewhere is imported here, "
        "and --handlers and JOBHERD_HANDLERS do not name it"
    )


def test_duplicate_kind_is_reported_with_both_places_even_if_one_line_made_them(loads):
    loaded = loads("from ._tools import make\none = make('b:same')\ntwo = make('b:same')")
    (problem,) = loaded.problems
    assert (problem.file.rpartition("/")[2], problem.line) == ("b.py", 5)
    assert problem.message.startswith("kind 'b:same' is declared twice, also at ")
    assert "b.py:4: " in problem.message
    loaded = loads(
        "same = [handler('b:same') for _ in range(2)]\none, two = (each(lambda n: n) for each in same)", name="c", b=""
    )
    assert "declared twice" in loaded.problems[0].message


def test_folder_with_a_dash_is_loaded_and_one_with_a_dot_is_reported(loads, tmp_path):
    (tmp_path / "v1.2").mkdir()
    (tmp_path / "v1.2" / "a.py").touch()
    (tmp_path / "notes.d").mkdir()
    loaded = loads(
        "",
        **{
            "billing-v2__in__a": "from .c import N\n@handler(f'billing:{N}')\ndef a(): ...",
            "billing-v2__in__c": "N = 'a'",
        },
    )
    assert list(loaded.kinds) == ["billing:a"]
    (problem,) = loaded.problems
    assert str(problem).endswith("v1.2: a folder of modules cannot have a dot in its name: rename the folder")


@pytest.mark.parametrize(
    "call", ["function('DB', *a, **k)", "function(*a, db='DB', **k)", "(0, function(make(), *a, **k))[1]"]
)
@pytest.mark.parametrize("begin", ["def inner(*a, **k): return", "async def inner(*a, **k): return"])
def test_argument_that_a_decorator_passes_itself_is_reported(loads, call, begin):
    loaded = loads(
        f"make = lambda: 'DB'\ndef with_db(function):\n    @functools.wraps(function)\n    {begin} {call}\n    return inner\n"
        "@handler('b:x')\n@with_db\ndef x(db, order_id: int): ..."
    )
    (problem,) = loaded.problems
    assert "b.py:5 passes 'db' itself, so no payload can have it and every job of 'b:x' would fail" in problem.message


@pytest.mark.parametrize(
    "inner",
    [
        "def inner(*a, **k): return function(*a, **k)",
        "def inner(order_id, *a, **k): return function(order_id, *a, **k)",
        "def inner(*a, **k): return function(*a, **k) if a else function('DB', *a, **k)",
        "def inner(*a, order_id=None, **k): return function(*a, order_id=order_id or 5, **k)",
    ],
)
def test_decorator_that_passes_on_its_arguments_is_accepted(loads, inner):
    loaded = loads(
        f"def passing(function):\n    @functools.wraps(function)\n    {inner}\n    return inner\n"
        "@handler('b:x')\n@passing\ndef x(order_id: int): return order_id"
    )
    assert loaded.problems == ()


def test_explicit_parameters_of_a_wrapper_define_the_payload(loads):
    loaded = loads(
        """
        def with_db(function):
            @functools.wraps(function)
            def inner(order_id): return function("DB", order_id)
            return inner
        def passing(function):
            @functools.wraps(function)
            def inner(*a, **k): return function(*a, **k)
            return inner
        @handler("b:x")
        @passing
        @with_db
        def x(db: object, order_id: "int"): return f"{db} {order_id}"
        """
    )
    assert loaded.problems == ()
    one = loaded.kinds["b:x"]
    assert one(**one.binding.bind({"order_id": 5})) == "DB 5"
    assert one.payload(order_id=5) == {"order_id": 5}
    with pytest.raises(ValueError, match="order_id must be int"):
        one.binding.bind({"order_id": "5"})


def test_annotations_of_partials_and_callables_are_checked():
    import functools

    def work(client: str, n: int) -> int:
        return n

    class Adder:
        def __call__(self, n: int) -> int:
            return n

    for function in (functools.partial(work, "secret"), Adder()):
        one = handler("b:x")(function)
        with pytest.raises(ValueError, match="n must be int"):
            one.binding.bind({"n": "5"})
        assert "secret" not in one.signature.name


def test_unchecked_annotations_are_reported(loads):
    loaded = loads(
        """
        from dataclasses import dataclass
        from typing import TYPE_CHECKING, Any, Literal
        if TYPE_CHECKING:
            from decimal import Decimal
        @dataclass
        class Line:
            price: "Decimal"
        @handler("b:x")
        def x(amount: "Decimal", lines: list[Line]): ...
        @handler("b:sound")
        def sound(a: int, b: "list[str] | None", c: Any, d: tuple[int, ...], e: Literal["x"], f=5, **more): ...
        """
    )
    assert list(unchecked(loaded.kinds["b:sound"])) == []
    amount, lines = unchecked(loaded.kinds["b:x"])
    assert amount.startswith("parameter 'amount' of b:x is not checked or converted: its annotation cannot be resolved")
    assert "the annotation of a field of Line cannot be resolved" in lines


def test_class_whose_metaclass_raises_is_searched_and_hides_no_handler(loads):
    loaded = loads(
        """
        class Hides(type):
            def __getattribute__(cls, name): raise KeyError(name)
        class Masked(metaclass=Hides):
            @staticmethod
            @handler("b:x")
            def x(): ...
        @handler("b:y")
        def y(): ...
        """
    )
    assert loaded.problems == ()
    assert sorted(loaded.kinds) == ["b:x", "b:y"]
