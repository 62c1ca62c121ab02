from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap

import pytest

from jobherd import handlers
from jobherd.handlers._load.registry import Loaded, load
from tests.support.patience import LIMIT

HANDLER = """
from jobherd import handler

@handler("{kind}")
def work() -> None: ...
"""


@pytest.fixture
def write(tmp_path):
    """Write modules below a fresh folder and return it."""

    def write(**files):
        for name, text in files.items():
            path = tmp_path / (name.replace("__in__", "/") + ".py")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(textwrap.dedent(text))
        return tmp_path

    return write


def kinds(loaded: Loaded) -> list[str]:
    return list(loaded.kinds)


def told(loaded: Loaded) -> list[str]:
    return [str(problem) for problem in loaded.problems]


@pytest.mark.promise("A20", "A21")
def test_modules_of_a_folder_are_loaded_in_order_of_their_names(write):
    folder = write(
        b=HANDLER.format(kind="b"),
        a=HANDLER.format(kind="a"),
        _private="raise ValueError",
        c__in__d=HANDLER.format(kind="c:d"),
    )
    loaded = load([folder])
    assert kinds(loaded) == ["a", "b", "c:d"]
    assert loaded.problems == ()
    assert all(name.startswith("jobherd_user.") for name in loaded.modules)
    assert loaded.kinds["a"].file == str(folder / "a.py")


def test_default_kinds_come_from_the_file_path_in_the_folder(write):
    folder = write(
        mail="from jobherd import handler\n@handler\ndef send(to: str): ...",
        out__in__post="from jobherd import handler\n@handler\ndef handle(): ...",
        plain="def handle(job, x: int): ...",
        helper="def something(): ...",
    )
    folder = folder.rename(folder.with_name("my_jobs"))
    assert sorted(load([folder]).kinds) == ["mail:send", "my_jobs:plain", "out:post"]


def test_relative_imports_and_packages_work_inside_a_folder(write):
    folder = write(
        _shared="NAME = 'shared'",
        job="from jobherd import handler\nfrom ._shared import NAME\n@handler('uses:' + NAME)\ndef work(): ...",
        inner__in____init__="from jobherd import handler\n@handler('inner:package')\ndef work(): ...",
        inner__in__deep="from jobherd import handler\nfrom .. import _shared\n@handler('inner:' + _shared.NAME)\ndef work(): ...",
    )
    loaded = load([folder])
    assert loaded.problems == ()
    assert sorted(loaded.kinds) == ["inner:package", "inner:shared", "uses:shared"]


def test_folder_with_an_init_file_is_loaded_as_a_package(write):
    folder = write(
        __init__="from jobherd import handler\nX = 5\n@handler('top:one')\ndef work(): ...",
        a="from . import X\nassert X == 5",
    )
    loaded = load([folder])
    assert loaded.problems == ()
    assert kinds(loaded) == ["top:one"]


def test_user_modules_do_not_shadow_other_modules(tmp_path):
    folder = tmp_path / "handlers"
    folder.mkdir()
    (folder / "json.py").write_text(HANDLER.format(kind="my:json"))
    (folder / "handlers.py").write_text(
        "import json; from jobherd import handlers\nfrom jobherd import handler\n@handler('my:own')\ndef work(): json.dumps(1)\n"
    )
    loaded = load([folder])
    assert sorted(loaded.kinds) == ["my:json", "my:own"]
    assert sys.modules["json"] is json
    assert sys.modules["jobherd.handlers"] is handlers
    loaded.kinds["my:own"]()


def test_two_folders_may_contain_modules_of_the_same_name(tmp_path):
    for name in ("one", "two"):
        folder = tmp_path / name / "jobs"
        folder.mkdir(parents=True)
        (folder / "mail.py").write_text(HANDLER.format(kind=name))
    loaded = load([tmp_path / "one" / "jobs", str(tmp_path / "two" / "jobs")])
    assert kinds(loaded) == ["one", "two"]


def test_source_may_be_a_single_file(write):
    folder = write(
        a=HANDLER.format(kind="a"), b="from . import a\nfrom jobherd import handler\n@handler('b')\ndef work(): ..."
    )
    assert kinds(load([folder / "b.py"])) == ["b"]


def test_source_may_be_a_dotted_module_name(tmp_path, monkeypatch):
    package = tmp_path / "registry_app" / "tasks"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").touch()
    (package / "__init__.py").write_text(HANDLER.format(kind="app:init"))
    (package / "mail.py").write_text(HANDLER.format(kind="app:mail"))
    (package / "_no.py").write_text("raise ValueError")
    monkeypatch.syspath_prepend(str(tmp_path))
    loaded = load(["registry_app.tasks"])
    assert kinds(loaded) == ["app:init", "app:mail"]
    assert loaded.modules == ("registry_app.tasks", "registry_app.tasks.mail")
    assert kinds(load(["registry_app.tasks.mail"])) == ["app:mail"]


BROKEN = {
    "raises": ("x = 1\nraise ValueError('broken at import')", 2, "ValueError: broken at import"),
    "exits": ("import sys\n\nsys.exit(3)", 3, "SystemExit: 3"),
    "generator_exit": ("raise GeneratorExit", 1, "GeneratorExit"),
    "syntax": ("def x(:\n", 1, "SyntaxError"),
    "missing": ("import no_such_module_anywhere", 1, "ModuleNotFoundError"),
    "option": (
        "from jobherd import handler\n@handler('x', timeout='soon')\ndef f(): ...",
        2,
        "timeout is not a duration",
    ),
    "kind": ("from jobherd import handler\n\n@handler('Bad Kind')\ndef f(): ...", 3, "kind 'Bad Kind'"),
    "hostile": ("class E(Exception):\n    def __str__(self): raise SystemExit\nraise E", 3, "cannot be shown"),
    "recursive": ("def f(): f()\nf()", 1, "RecursionError"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_module_is_reported_with_file_and_line_and_the_others_load(write, name):
    text, line, says = BROKEN[name]
    folder = write(a=HANDLER.format(kind="a"), z=HANDLER.format(kind="z"))
    (folder / "m.py").write_text(text)
    loaded = load([folder])
    assert kinds(loaded) == ["a", "z"]
    (problem,) = loaded.problems
    assert problem.file == str(folder / "m.py")
    assert problem.line == line
    assert says in problem.message
    assert problem.module.endswith(".m")
    assert str(problem).startswith(f"{folder / 'm.py'}:{line}: does not load: ")


@pytest.mark.parametrize("raw", [b"x = 1\0\n", b"\xff\xfe", b"# coding: nothing\n", b"x = '\xff'"])
def test_file_that_is_not_valid_source_text_is_reported(write, raw):
    folder = write(a=HANDLER.format(kind="a"))
    (folder / "m.py").write_bytes(raw)
    loaded = load([folder])
    assert kinds(loaded) == ["a"]
    assert len(loaded.problems) == 1
    assert "does not load" in loaded.problems[0].message
    assert "\0" not in str(loaded.problems[0])


def test_broken_init_file_is_reported_and_its_folder_is_not_loaded(write):
    folder = write(__init__="raise ValueError('no')", a=HANDLER.format(kind="a"))
    loaded = load([folder])
    assert loaded.kinds == {}
    assert "ValueError: no" in told(loaded)[0]


def test_keyboard_interrupt_during_loading_is_raised(write):
    with pytest.raises(KeyboardInterrupt):
        load([write(a="raise KeyboardInterrupt")])


def test_duplicate_kind_is_reported_with_both_locations(write):
    folder = write(a=HANDLER.format(kind="same"), b="\n" + HANDLER.format(kind="same"))
    loaded = load([folder])
    (problem,) = loaded.problems
    assert (problem.file, problem.line) == (str(folder / "b.py"), 5)
    assert (
        problem.message == f"kind 'same' is declared twice, also at {folder / 'a.py'}:4: give one of them another name"
    )


def test_imported_handler_is_registered_only_by_its_defining_module_or_through_all(write):
    folder = write(
        _defs=HANDLER.format(kind="private:one") + "\n@handler('private:two')\ndef other() -> None: ...",
        a="from ._defs import work",
        b="from ._defs import other\n__all__ = ['other']",
        c="from .d import work",
        d=HANDLER.format(kind="d"),
    )
    loaded = load([folder])
    assert loaded.problems == ()
    assert sorted(loaded.kinds) == ["d", "private:two"]


def test_file_loaded_under_two_names_is_not_a_duplicate(tmp_path, monkeypatch):
    (tmp_path / "registry_twice.py").write_text(HANDLER.format(kind="twice"))
    monkeypatch.syspath_prepend(str(tmp_path))
    loaded = load(["registry_twice", tmp_path / "registry_twice.py", tmp_path])
    assert loaded.problems == ()
    assert kinds(loaded) == ["twice"]


def test_loading_twice_returns_the_same_handlers(write):
    folder = write(a=HANDLER.format(kind="a"))
    assert load([folder]).kinds == load([folder]).kinds


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o702])
def test_world_writable_folder_or_file_is_rejected(write, mode):
    folder = write(a=HANDLER.format(kind="a"), inner__in__b=HANDLER.format(kind="b"))
    folder.chmod(mode)
    loaded = load([folder])
    assert loaded.kinds == {}
    assert f"chmod o-w {folder}" in told(loaded)[0]
    folder.chmod(0o775)
    (folder / "inner").chmod(0o777)
    (folder / "a.py").chmod(0o666)
    loaded = load([folder])
    assert loaded.kinds == {}
    assert [problem.file for problem in loaded.problems] == [str(folder / "a.py"), str(folder / "inner")]


def test_folder_below_a_world_writable_folder_is_rejected_unless_allowed_or_sticky(tmp_path, monkeypatch):
    above = tmp_path / "above"
    folder = above / "between" / "jobs"
    folder.mkdir(parents=True)
    (folder / "a.py").write_text(HANDLER.format(kind="a"))
    above.chmod(0o777)
    for source in (folder, folder / "a.py"):
        loaded = load([source])
        assert loaded.kinds == {}
        assert f"chmod o-w {above}" in told(loaded)[0]
        assert "JOBHERD_ALLOW_WRITABLE_HANDLERS=1" in told(loaded)[0]
    above.chmod(0o1777)
    assert kinds(load([folder])) == ["a"], "the sticky bit keeps other OS users from renaming the folder"
    above.chmod(0o777)
    folder.chmod(0o777)
    monkeypatch.setenv("JOBHERD_ALLOW_WRITABLE_HANDLERS", "1")
    assert kinds(load([folder])) == ["a"]


def test_cyclic_and_dangling_links_are_ignored(write):
    folder = write(a=HANDLER.format(kind="a"), inner__in__b=HANDLER.format(kind="b"))
    (folder / "loop").symlink_to(folder)
    (folder / "inner" / "up").symlink_to(folder)
    (folder / "self").symlink_to(folder / "self")
    (folder / "self.py").symlink_to(folder / "self.py")
    (folder / "gone.py").symlink_to(folder / "nowhere.py")
    loaded = load([folder])
    assert kinds(loaded) == ["a", "b"]
    assert loaded.problems == ()


@pytest.mark.parametrize("source", ["no/such/folder", "no_such_module_at_all", "a\0b", "", "..", "x y", "setup.cfg"])
def test_invalid_source_is_reported(source, tmp_path, monkeypatch):
    folder = tmp_path / "here"
    folder.mkdir()
    (tmp_path / "here" / "setup.cfg").touch()
    monkeypatch.chdir(folder)
    loaded = load([source] if source != ".." else ["../none"])
    assert loaded.kinds == {}
    assert len(loaded.problems) == 1
    assert "\0" not in str(loaded.problems[0])


def test_file_whose_name_cannot_be_imported_is_reported(write):
    folder = write(a=HANDLER.format(kind="a"))
    (folder / "b.c.py").write_text("x = 1")
    loaded = load([folder])
    assert kinds(loaded) == ["a"]
    assert "rename the file" in told(loaded)[0]


def test_jobherds_own_handlers_are_loaded_by_their_real_names_and_only_from_their_folder(write):
    assert not any(name.startswith("jobherd.") for name in load([write(a="")]).modules)
    loaded = load([os.path.dirname(handlers.__file__)])
    assert loaded.problems == ()
    assert all(name.startswith("jobherd.handlers.") for name in loaded.modules)
    assert "jobherd.handlers.testing" not in loaded.modules


def test_module_names_are_the_same_in_every_process(write):
    folder = write(a=HANDLER.format(kind="a"))
    code = "import sys; from jobherd.handlers._load.registry import load; print(load([sys.argv[1]]).modules[0])"
    ran = subprocess.run(
        [sys.executable, "-c", code, str(folder)], capture_output=True, text=True, check=True, timeout=LIMIT
    )
    assert ran.stdout.strip() == load([folder]).modules[0]


def test_importing_handlers_does_not_import_the_registry_or_test_tools():
    code = "import sys; from jobherd import handlers; print([n for n in sys.modules if n in ('pytest', 'jobherd.testing', 'jobherd.handlers.testing', 'jobherd.handlers._load.registry')])"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=LIMIT)
    assert ran.stdout.strip() == "[]"


def test_every_public_name_exists():
    for name in handlers.__all__:
        assert getattr(handlers, name) is not None
