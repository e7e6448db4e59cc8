"""Settings for the whole suite: repeatable examples, no timed verdicts, no keys shown."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

from tests.secret_watch import leftovers, pytest_configure

__all__ = ["leftovers", "pytest_configure"]  # what a session begins and ends with

# Speed depends on the machine, so no health check and no deadline may judge it.
settings.register_profile(
    "repeatable",
    derandomize=True,
    deadline=None,
    max_examples=150,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("repeatable")
