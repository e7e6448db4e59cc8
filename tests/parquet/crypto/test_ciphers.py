"""How a column must be encrypted, and what a key retriever's errors become."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import modcrypt as mc
from modcrypt.errors import KeyAccessDeniedError, KeyNotFoundError, KeyRetrievalError
from modcrypt.parquet.crypto.ciphers import COLUMN_KEY as OWN_KEY
from modcrypt.parquet.crypto.ciphers import FOOTER_KEY as UNIFORM
from modcrypt.parquet.crypto.ciphers import PLAINTEXT, check_kind, find_key
from tests.support.keys import COLUMN_KEY, FOOTER_KEY

NAMED = mc.FileDecryptionProperties(
    footer_key=FOOTER_KEY, column_keys={"a": COLUMN_KEY}, require_encrypted=["a", "b"]
)


@pytest.mark.parametrize(
    ("column", "kind"),
    [("a", OWN_KEY), ("b", OWN_KEY), ("b", UNIFORM), ("c", UNIFORM), ("c", PLAINTEXT)],
)
def test_columns_may_be_encrypted_at_least_as_required(column: str, kind: str) -> None:
    check_kind(NAMED, (column,), kind)


def test_a_required_column_must_be_encrypted() -> None:
    for column in ("a", "b"):
        with pytest.raises(mc.PlaintextError, match=f"column {column} is plaintext"):
            check_kind(NAMED, (column,), PLAINTEXT)


def test_a_column_whose_key_is_given_must_have_its_own() -> None:
    """Whoever holds the footer key could replace the column otherwise."""
    with pytest.raises(mc.PlaintextError, match=r"column a .* must have its own key"):
        check_kind(NAMED, ("a",), UNIFORM)


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (LookupError(), KeyNotFoundError),
        (PermissionError(), KeyAccessDeniedError),
        (ValueError(), KeyRetrievalError),
        (mc.KmsUnavailableError("busy"), mc.KmsUnavailableError),
    ],
    ids=repr,
)
def test_errors_of_a_retriever_become_those_of_keys(
    raised: Exception, expected: type[Exception]
) -> None:
    with pytest.raises(expected) as caught:
        find_key(retrieving(lambda _: fail(raised)), None, b"metadata", "footer key")
    assert type(caught.value) is expected


def test_a_retriever_is_asked_where_no_key_is_given_but_metadata_alone() -> None:
    properties, own = retrieving(lambda _: COLUMN_KEY), mc.Key(FOOTER_KEY)
    assert find_key(properties, own, b"metadata", "footer key") is own
    assert find_key(properties, None, b"metadata", "footer key") == mc.Key(COLUMN_KEY)
    assert find_key(properties, None, b"", "footer key") is None
    assert find_key(properties, None, None, "footer key") is None
    assert find_key(retrieving(lambda _: None), None, b"metadata", "footer key") is None
    with pytest.raises(mc.KeyMaterialError, match="footer key: the key retriever did not return"):
        find_key(retrieving(lambda _: b"short"), None, b"metadata", "footer key")


def retrieving(retriever: Callable[[bytes], bytes | None]) -> mc.FileDecryptionProperties:
    """Return properties with a key retriever alone."""
    return mc.FileDecryptionProperties(key_retriever=retriever)


def fail(error: Exception) -> bytes:
    """Raise an error instead of returning a key."""
    raise error
