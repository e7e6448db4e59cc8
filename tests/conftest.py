"""Settings for the whole suite: the same examples in every run, no timed verdicts, no keys shown."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

from tests.secret_watch import pytest_configure

__all__ = ["pytest_configure"]  # a hook: what a session of tests begins with

# Speed depends on the machine, so no health check and no deadline may judge it.
settings.register_profile(
    "repeatable",
    derandomize=True,
    deadline=None,
    max_examples=150,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("repeatable")
