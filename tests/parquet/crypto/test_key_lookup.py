"""What a key retriever is asked, and what its errors become."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import modcrypt as mc
from modcrypt.errors import KeyAccessDeniedError, KeyNotFoundError, KeyRetrievalError
from modcrypt.parquet.crypto.key_lookup import look_for_key
from modcrypt.parquet.format.report import Report
from tests.support.keys import COLUMN_KEY, FOOTER_KEY


def find_footer_key(
    properties: mc.FileDecryptionProperties, given: mc.Key | None, metadata: bytes | None
) -> mc.Key | None:
    return look_for_key(properties, given, metadata, None, Report(strict=True)).key


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (LookupError(), KeyNotFoundError),
        (PermissionError(), KeyAccessDeniedError),
        (ValueError(), KeyRetrievalError),
        (mc.errors.KmsUnavailableError("busy"), mc.errors.KmsUnavailableError),
    ],
    ids=repr,
)
def test_errors_of_a_retriever_become_those_of_keys(
    raised: Exception, expected: type[Exception]
) -> None:
    with pytest.raises(expected) as caught:
        find_footer_key(retrieving(lambda _: fail(raised)), None, b"metadata")
    assert type(caught.value) is expected


def test_a_retriever_is_asked_where_no_key_is_given_but_metadata_alone() -> None:
    properties, own = retrieving(lambda _: COLUMN_KEY), mc.Key(FOOTER_KEY)
    assert find_footer_key(properties, own, b"metadata") is own
    assert find_footer_key(properties, None, b"metadata") == mc.Key(COLUMN_KEY)
    assert find_footer_key(properties, None, b"") is None
    assert find_footer_key(properties, None, None) is None
    assert find_footer_key(retrieving(lambda _: None), None, b"metadata") is None
    with pytest.raises(
        mc.errors.KeyMaterialError, match="footer key: the key retriever did not return"
    ):
        find_footer_key(retrieving(lambda _: b"short"), None, b"metadata")


def retrieving(retriever: Callable[[bytes], bytes | None]) -> mc.FileDecryptionProperties:
    """Return properties with a key retriever alone."""
    return mc.FileDecryptionProperties(key_retriever=retriever)


def fail(error: Exception) -> bytes:
    """Raise an error instead of returning a key."""
    raise error
