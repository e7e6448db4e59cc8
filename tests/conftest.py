"""Settings for the whole suite: the same examples in every run, and no timed verdicts."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# Speed depends on the machine, so no health check and no deadline may judge it.
settings.register_profile(
    "repeatable",
    derandomize=True,
    deadline=None,
    max_examples=150,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("repeatable")
