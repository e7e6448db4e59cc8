"""Seeded random edits of seals, keys of writers, policies and declarations."""

from __future__ import annotations

import pytest

from tests.support.randomness import SEED, examples
from tools import fuzz_documents, fuzz_targets


@pytest.mark.seeded
def test_whatever_is_changed_is_refused_or_harmless() -> None:
    number = examples(3_000)
    targets = fuzz_documents.targets()
    assert fuzz_targets.run("documents", int(SEED or 6), targets, number, None) == number
