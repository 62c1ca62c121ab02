from __future__ import annotations

from hypothesis import HealthCheck, settings

# Nothing here is about speed, and the machine that runs this may be busy: a slow example is not a
# failure.
settings.register_profile("jobherd", deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("jobherd")
