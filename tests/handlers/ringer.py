"""An alarm in its own module, like the worker's: it does not pass on the interrupted frame."""

from __future__ import annotations

from jobherd import JobTimeout
from jobherd.handlers._run.call import interrupt


def ring(number, frame):
    _deeper()


def _deeper():
    interrupt(JobTimeout("time is up"))
