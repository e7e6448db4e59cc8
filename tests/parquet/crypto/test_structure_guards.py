"""Checks of parsed structures, each on the one value that is wrong.

Files with such faults are not in spec-vectors, as other readers differ in what they do with them.
"""

from __future__ import annotations

from typing import Any

import pytest

from modcrypt import FileDecryptionProperties
from modcrypt.errors import AadPrefixError, FormatError, TruncationError, UnsupportedFormatError
from modcrypt.parquet import ModuleId, ModuleType
from modcrypt.parquet.crypto.bloom_filters import part_modules
from modcrypt.parquet.crypto.ciphers import check_length
from modcrypt.parquet.crypto.crypto_fields import check_border, make_file_aad, read_algorithm
from modcrypt.parquet.format.idl import new
from modcrypt.parquet.format.modules import Part, Span, ordinal_faults
from tests.support.keys import FOOTER_KEY

PAGE = ModuleId(ModuleType.DATA_PAGE, 0, 0, 0)
SIZE = 28
"""Bytes of a module without plaintext, after its length field."""


@pytest.mark.parametrize("declared", [0, SIZE - 1, SIZE + 1, 1 << 30, 0xFFFFFFFF])
def test_a_length_field_that_differs_from_the_module_is_refused(declared: int) -> None:
    check_length(PAGE, SIZE.to_bytes(4, "little") + bytes(SIZE))
    with pytest.raises(TruncationError, match="length field"):
        check_length(PAGE, declared.to_bytes(4, "little") + bytes(SIZE))


@pytest.mark.parametrize("size", [0, SIZE - 1])
def test_a_module_that_is_too_short_for_nonce_and_tag_is_refused(size: int) -> None:
    with pytest.raises(TruncationError, match="length field"):
        check_length(PAGE, size.to_bytes(4, "little") + bytes(size))


@pytest.mark.parametrize("declared", [0, SIZE - 1, 2 * SIZE + 1, 1 << 30, 0xFFFFFFFF])
def test_a_bloom_filter_header_that_leaves_no_bitset_is_refused(declared: int) -> None:
    span = Span(100, 100 + 3 * SIZE, Part.BLOOM_FILTER, 0, 0)
    assert len(part_modules(span, (SIZE + 1).to_bytes(4, "little"))) == 2
    with pytest.raises(TruncationError, match="header module declares"):
        part_modules(span, declared.to_bytes(4, "little"))


@pytest.mark.parametrize("ordinal", [-1, 0, 2, 32_767])
def test_an_ordinal_that_is_not_the_position_is_a_fault(ordinal: int) -> None:
    def metadata(second: int | None) -> Any:
        groups = [new("RowGroup", ordinal=0), new("RowGroup", ordinal=second)]
        return new("FileMetaData", row_groups=groups)

    for right in (1, None):
        assert list(ordinal_faults(metadata(right))) == []
    (fault,) = ordinal_faults(metadata(ordinal))
    assert isinstance(fault, FormatError)
    assert f"row group 1 declares ordinal {ordinal}" in str(fault)


def reader(prefix: bytes | None = b"part", **options: Any) -> FileDecryptionProperties:
    return FileDecryptionProperties(footer_key=FOOTER_KEY, aad_prefix=prefix, **options)


@pytest.mark.parametrize("size", [0, 7, 9, 16])
def test_another_size_of_file_unique_is_refused_where_a_prefix_is_required(size: int) -> None:
    check_border(bytes(8), reader())
    with pytest.raises(AadPrefixError):
        check_border(bytes(size), reader())
    struct = new("AesGcmV1", aad_prefix=b"part", aad_file_unique=bytes(size))
    with pytest.raises(AadPrefixError):
        make_file_aad(struct, reader())
    assert make_file_aad(struct, reader(None)) == b"part" + bytes(size)


def test_an_algorithm_that_the_union_does_not_have_is_refused() -> None:
    gcm, ctr = new("AesGcmV1"), new("AesGcmCtrV1")
    assert read_algorithm(new("EncryptionAlgorithm", AES_GCM_V1=gcm)) == ("AES_GCM_V1", gcm)
    for both in ({}, {"AES_GCM_V1": gcm, "AES_GCM_CTR_V1": ctr}):
        with pytest.raises(UnsupportedFormatError, match="no encryption algorithm"):
            read_algorithm(new("EncryptionAlgorithm", **both))
