"""What a key retriever is asked, and what its errors become."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import modcrypt as mc
from modcrypt.errors import KeyAccessDeniedError, KeyNotFoundError, KeyRetrievalError
from modcrypt.parquet.crypto.key_lookup import find_key
from tests.support.keys import COLUMN_KEY, FOOTER_KEY


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
