"""Seeded random edits of recipients, identities, key metadata and files for recipients."""

from __future__ import annotations

import pytest

from tests.support.randomness import SEED, examples
from tools import fuzz_recipients, fuzz_targets


@pytest.mark.seeded
def test_whatever_is_changed_is_refused_or_harmless() -> None:
    number = examples(10_000)
    targets = fuzz_recipients.targets()
    assert fuzz_targets.run("recipients", int(SEED or 6), targets, number, None) == number
