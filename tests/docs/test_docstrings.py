"""Tests that the docstring of each public function and method has its parameters, or names the one that has them."""

from __future__ import annotations

import inspect
import re

import pytest

from jobherd import handlers

EXCLUDED = {
    "Handler": {"binding", "problems", "split_bytes"},
    "Producer": {"split_bytes"},
    "Job": {"on_progress", "on_entry", "on_cancelled", "transaction_host"},
}
"""Methods that the reference omits, because only Jobherd calls them."""
INTERNAL = {
    "AsyncClient.run",
    "AsyncClient.put",
    "AsyncClient.start",
    "Client.run",
    "Client.put",
    "Client.start",
    "Schedule.definition",
    "Unique.pick",
    "Hook.call_with",
}
"""Methods with public names that only other modules of Jobherd call."""


def functions():
    """Return every public function and method, by name."""
    found = {}
    for name in handlers.__all__:
        public = getattr(handlers, name)
        if inspect.isfunction(public):
            found[name] = public
        if inspect.isclass(public):
            for own in dir(public):
                method = inspect.unwrap(getattr(public, own)) if not own.startswith("_") else None
                if inspect.isroutine(method) and (getattr(method, "__module__", None) or "").startswith("jobherd"):
                    found[f"{name}.{own}"] = method
    return {
        name: each
        for name, each in found.items()
        if name not in INTERNAL and name.rpartition(".")[2] not in EXCLUDED.get(name.partition(".")[0], ())
    }


FUNCTIONS = functions()


def undocumented(name, seen=()):
    """Return the parameters that neither the docstring nor one that it names has."""
    text = inspect.getdoc(FUNCTIONS[name]) or ""
    names = [each for each in inspect.signature(FUNCTIONS[name]).parameters if each not in {"self", "cls"}]
    left = {
        each
        for each in names
        if not re.search(rf"^\s+\*{{0,2}}{each}(?:, \w+)*:|^\s+(?:\w+, )+{each}(?:, \w+)*:", text, re.MULTILINE)
    }
    owner = name.rpartition(".")[0]
    named = {each for word in re.findall(r"`([\w.]+)`", text) for each in (word, f"{owner}.{word}")}
    for other in (named & FUNCTIONS.keys()) - {name, *seen}:
        left &= undocumented(other, (*seen, name)) | (left - set(inspect.signature(FUNCTIONS[other]).parameters))
    return left


@pytest.mark.parametrize("name", FUNCTIONS)
def test_public_function_documents_its_parameters(name):
    assert (inspect.getdoc(FUNCTIONS[name]) or "").strip(), "the function has no docstring"
    assert undocumented(name) == set()
