"""Seeded random edits of recipients, identities, key metadata and files for recipients."""

from __future__ import annotations

import pytest

from tests.support.randomness import SEED, examples
from tools import fuzz_recipients


@pytest.mark.seeded
def test_whatever_is_changed_is_refused_or_harmless() -> None:
    number = examples(10_000)
    assert fuzz_recipients.run(int(SEED or 6), number, None) == number - 1
