"""How long a test waits for an event: one limit for all tests, far longer than a loaded machine needs.

The limit matters only if the test fails. A test waits for events, so no passing test waits until
LIMIT has passed, and none asserts a duration by it.
"""

from __future__ import annotations

from typing import Final

LIMIT: Final = 60.0
"""Seconds after which a wait fails. A passing test never waits this long."""
GLANCE: Final = 0.5
"""Seconds between two checks of a wait for events, in case a change causes no event."""
