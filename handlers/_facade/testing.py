"""Run handlers in tests, without a worker. The public name of `jobherd.handlers.testing`."""

from jobherd.handlers.testing import *  # noqa: F403  # the names are those of `__all__` there
