from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

from jobherd import handlers
from jobherd.handlers._enqueue import default

MODULES = [
    *(
        found.name
        for found in pkgutil.walk_packages(handlers.__path__, "jobherd.handlers.")
        # modules for Django need its settings: tests/frameworks tests them
        if found.name.split(".")[2].startswith("_") and "._facade.django." not in found.name
    ),
    "jobherd.handlers.testing",
]


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples_are_correct(name):
    module = importlib.import_module(name)
    before = default._chosen
    try:
        ran = doctest.testmod(module)
    finally:
        default._chosen = before
    assert ran.failed == 0
