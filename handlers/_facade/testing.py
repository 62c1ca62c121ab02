"""Run handlers in tests, without a worker: the public name of `jobherd.handlers.testing`, which says how."""

from jobherd.handlers.testing import *  # noqa: F403  # the names are those of `__all__` there
