"""Which tests `--touching` keeps, and that no other makes a server."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tests.support import postgres
from tests.support.touching import touches


def test_who_has_not_said_so_makes_no_server(request: pytest.FixtureRequest):
    assert not touches(request.node)
    assert not postgres.told
    with pytest.raises(RuntimeError, match="does not say so"):
        postgres.Cluster()


@pytest.mark.server
def test_a_mark_says_so(request: pytest.FixtureRequest):
    assert touches(request.node)
    assert postgres.told


def test_a_fixture_and_what_a_module_imports_say_so(request: pytest.FixtureRequest):
    item = request.node
    said = {"fixturenames": ["cluster"], "module": None, "get_closest_marker": item.get_closest_marker}
    assert touches(SimpleNamespace(**said))
    said["fixturenames"] = []
    assert not touches(SimpleNamespace(**said))
    said["module"] = SimpleNamespace(Cluster=postgres.Cluster)
    assert touches(SimpleNamespace(**said))
