"""How long a test waits for what must happen.

One figure for all of them, far beyond what a loaded machine takes.

It matters only when the test fails. No test asserts a time by it, and none waits for it to pass:
what is waited for is an event.
"""

from __future__ import annotations

from typing import Final

LIMIT: Final = 60.0
"""Seconds after which a wait has failed. Never a wait for success."""
GLANCE: Final = 0.5
"""Seconds between two looks of a wait that is told of events, for what no event tells."""
