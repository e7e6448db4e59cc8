"""How columns must be encrypted."""

from __future__ import annotations

import pytest

import modcrypt as mc
from modcrypt.parquet.crypto.column_kinds import COLUMN_KEY as OWN_KEY
from modcrypt.parquet.crypto.column_kinds import FOOTER_KEY as UNIFORM
from modcrypt.parquet.crypto.column_kinds import PLAINTEXT, requirement_faults
from tests.support.keys import COLUMN_KEY, FOOTER_KEY

NAMED = mc.FileDecryptionProperties(
    footer_key=FOOTER_KEY, column_keys={"a": COLUMN_KEY}, require_encrypted=["a", "b"]
)


def find_faults(column: str, kind: str) -> list[str]:
    """Return the messages about one column."""
    return [str(fault) for fault in requirement_faults(NAMED, [(column,)], {0: {kind}})]


@pytest.mark.parametrize(
    ("column", "kind"),
    [("a", OWN_KEY), ("b", OWN_KEY), ("b", UNIFORM), ("c", UNIFORM), ("c", PLAINTEXT)],
)
def test_columns_may_be_encrypted_at_least_as_required(column: str, kind: str) -> None:
    assert find_faults(column, kind) == []


def test_a_required_column_must_be_encrypted() -> None:
    for column in ("a", "b"):
        assert find_faults(column, PLAINTEXT) == [
            f"column {column} is plaintext, but must be encrypted"
        ]


def test_a_column_whose_key_is_given_must_have_its_own() -> None:
    """Whoever holds the footer key could replace the column otherwise."""
    (message,) = find_faults("a", UNIFORM)
    assert "must have its own key" in message
