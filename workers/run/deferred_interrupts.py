"""Defers interrupts of the running job while its own session is used: an interrupt would leave a commit in doubt."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from jobherd.workers.process.interrupt import Interrupts


@contextmanager
def deferred_interrupts(interrupts: Interrupts, is_over: Callable[[], bool]) -> Iterator[None]:
    """Defer interrupts, and raise those that arrived meanwhile. An expired deadline raises again automatically.

    is_over: whether the job is completed, so that nothing is to be raised.
    """
    was, interrupts.open = interrupts.open, False
    try:
        yield
    finally:
        interrupts.open = was
    if was and interrupts.pending and not is_over():
        interrupts.check()
