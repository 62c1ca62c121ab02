"""Which tests `--touching` selects; other tests cannot create a server."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tests.support import postgres
from tests.support.touching import touches


def test_undeclared_test_cannot_create_a_server(request: pytest.FixtureRequest):
    assert not touches(request.node)
    assert not postgres.told
    with pytest.raises(RuntimeError, match="without declaring it"):
        postgres.Cluster()


@pytest.mark.server
def test_mark_server_declares_a_test(request: pytest.FixtureRequest):
    assert touches(request.node)
    assert postgres.told


def test_fixture_or_import_declares_a_test(request: pytest.FixtureRequest):
    item = request.node
    said = {"fixturenames": ["cluster"], "module": None, "get_closest_marker": item.get_closest_marker}
    assert touches(SimpleNamespace(**said))
    said["fixturenames"] = []
    assert not touches(SimpleNamespace(**said))
    said["module"] = SimpleNamespace(Cluster=postgres.Cluster)
    assert touches(SimpleNamespace(**said))
