from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import handlers

MODULES = [found.name for found in pkgutil.iter_modules(handlers.__path__) if found.name.startswith("_")] + ["testing"]


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_in_the_docstrings_are_true(name):
    module = importlib.import_module(f"handlers.{name}")
    before = handlers._default._chosen
    try:
        ran = doctest.testmod(module)
    finally:
        handlers._default._chosen = before
    assert ran.failed == 0
