"""The same random inputs in every `make test`; fresh ones, and more, in `make test-random`."""

from __future__ import annotations

import os
import random

SEED = os.environ.get("MODCRYPT_TEST_SEED")
"""The seed by which `make test-random` varies all random inputs."""


def dice(seed: int | str) -> random.Random:
    """Return a generator of random numbers for a seed; `MODCRYPT_TEST_SEED` gives it another."""
    return random.Random(seed if SEED is None else f"{SEED} {seed}")


def examples(number: int) -> int:
    """Return how many examples Hypothesis tries: a fifth of a number, or five times as many."""
    return max(number // 5, 10) if SEED is None else number * 5
