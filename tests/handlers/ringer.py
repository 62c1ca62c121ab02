"""An alarm in a module of its own, as the worker's is: it does not say what it has interrupted."""

from __future__ import annotations

from jobherd import JobTimeout
from jobherd.handlers._run.call import interrupt


def ring(number, frame):
    _deeper()


def _deeper():
    interrupt(JobTimeout("time is up"))
