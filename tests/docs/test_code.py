"""Tests that the packages have no code that could execute data of a database, a file or a request.

Celery executed pickled messages, and rebuilt exceptions from stored names. Jobherd uses JSON and a registry.
"""

from __future__ import annotations

import ast

import pytest

from tests.docs.pages import ROOT

PACKAGES = ("supervisor", "workers", "handlers", "sql")
FORBIDDEN_MODULES = frozenset(
    {
        "pickle",
        "cPickle",
        "_pickle",
        "dill",
        "cloudpickle",
        "marshal",
        "shelve",
        "yaml",
        "jsonpickle",
        "joblib",
        "code",
        "codeop",
    }
)
FORBIDDEN_CALLS = frozenset({"eval", "exec", "compile", "__import__", "execfile"})
BY_NAME = frozenset(
    {"import_module", "spec_from_file_location", "exec_module", "run_path", "run_module", "load_module", "resolve_name"}
)
MAY_IMPORT = {
    # what --handlers and --hooks name
    "handlers/_load/importer.py": {"import_module", "spec_from_file_location", "exec_module"},
    "handlers/_facade/__init__.py": {"import_module"},  # one name, which is in the file
    "handlers/_facade/django/versions.py": {"import_module"},  # of django.tasks or django_tasks
    "supervisor/cli/__init__.py": {"import_module"},  # the commands, from a list in the file
    "supervisor/cli/schedule_import.py": {"import_module"},  # what --celery names
}
"""Modules that may import by name, and how. An operator gives the names; none comes from stored data."""
FILES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


def offences(text: str, allowed: frozenset[str] | set[str] = frozenset()) -> list[str]:
    """Return the forbidden imports and calls of a module, each with its line."""
    found = []
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Import(names=names):
                told = [each.name for each in names if each.name.split(".")[0] in FORBIDDEN_MODULES]
            case ast.ImportFrom(module=str(module), level=0) if module.split(".")[0] in FORBIDDEN_MODULES:
                told = [module]
            case ast.ImportFrom(names=names):
                told = [each.name for each in names if each.name in BY_NAME - allowed]
            case ast.Call(func=ast.Name(id=name)) if name in FORBIDDEN_CALLS | BY_NAME - allowed:
                told = [name]
            case ast.Call(func=ast.Attribute(attr=name, value=value)) if name in BY_NAME - allowed:
                told = [f"{ast.unparse(value)}.{name}"]
            case ast.Call(keywords=keywords) if any(
                each.arg == "shell" and not (isinstance(each.value, ast.Constant) and each.value.value is False)
                for each in keywords
            ):
                told = ["shell=True"]
            case ast.Call(func=ast.Attribute(attr="system" | "popen", value=ast.Name(id="os"))):
                told = ["os.system"]
            case ast.Subscript(value=ast.Call(func=ast.Name(id="globals" | "vars" | "locals")), slice=index) if (
                not isinstance(index, ast.Constant)
            ):
                told = ["a global by a name that is worked out"]
            case _:
                told = []
        found += [f"line {getattr(node, 'lineno', 0)}: {each}" for each in told]
    return found


@pytest.mark.parametrize("path", FILES, ids=[str(path.relative_to(ROOT)) for path in FILES])
def test_module_has_no_code_that_could_execute_stored_data(path):
    name = str(path.relative_to(ROOT))
    assert offences(path.read_text(encoding="utf-8"), MAY_IMPORT.get(name, set())) == []


@pytest.mark.parametrize(
    "text",
    [
        "import pickle", "from pickle import loads", "import yaml", "eval('1')", "exec('1')", "__import__('os')", "compile('1', '', 'eval')",
        "import importlib\nimportlib.import_module(name)", "from importlib import import_module", "subprocess.run('ls', shell=True)",
        "os.system('ls')", "globals()[name]()",
    ],
)  # fmt: skip
def test_each_forbidden_import_or_call_is_found(text):
    assert offences(text)


def test_modules_that_may_import_by_name_still_do():
    for name, allowed in MAY_IMPORT.items():
        text = (ROOT / name).read_text(encoding="utf-8")
        assert all(f".{word}" in text for word in allowed), name
