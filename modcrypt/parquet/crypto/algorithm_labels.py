"""Recognise page bodies of another algorithm than the one that the file names.

Some versions of Arrow C++ and arrow-go wrote AES_GCM_V1 into footers of files whose pages are
under AES_GCM_CTR_V1. Such pages fail whichever check comes first: of sizes, lengths or tags. Their
headers authenticate, so neither the key nor the AAD prefix is wrong.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from modcrypt.aead import CTR_OVERHEAD, CTR_SLACK, CtrCipher
from modcrypt.errors import FormatError
from modcrypt.keys import Key
from modcrypt.parquet.format.idl import varint
from modcrypt.parquet.format.page_header import (
    DATA_PAGE_V2,
    UNCOMPRESSED,
    PageHeader,
    V2Layout,
    v2_layout,
)

WRONG_GCM_LABEL: Final = (
    "It looks like a page of AES_GCM_CTR_V1: some versions of Arrow C++ wrote AES_GCM_V1 into the "
    "footers of such files, as arrow-go 18.8 does"
)
PERHAPS_WRONG_LABEL: Final = (
    "The page's header authenticates, so the key is right: the body was altered, or it is one of "
    "AES_GCM_CTR_V1, as some versions of Arrow C++ and arrow-go 18.8 write it into files that name "
    "AES_GCM_V1"
)

MAX_LEVELS: Final = 4 << 10
"""Most bytes of levels decrypted to recognise the values that follow them."""

_SNAPPY, _GZIP, _ZSTD = 1, 2, 6  # CompressionCodec of the IDL
_MAGICS = {_GZIP: b"\x1f\x8b", _ZSTD: b"\x28\xb5\x2f\xfd"}

RECOGNISED: Final = frozenset({UNCOMPRESSED, _SNAPPY, *_MAGICS})
"""Codecs whose pages `looks_like_ctr` recognises."""

_SEEN = 16  # number of bytes of values that are decrypted and compared

_length = Struct("<I").unpack_from


def looks_like_ctr(key: Key, header: PageHeader, body: memoryview, codec: int) -> bool:
    """Return whether a page body that is not a GCM module seems to be a CTR module.

    An uncompressed body is recognised by its size, a compressed one by the codec's first bytes. Few
    bytes are decrypted, and none is returned.
    """
    layout = V2Layout(0, codec != UNCOMPRESSED)
    if header.type == DATA_PAGE_V2:
        try:
            layout = v2_layout(header.raw)
        except FormatError:
            return False
    levels = layout.levels_size
    whole = len(body) >= 4 and _length(body)[0] == len(body) - 4
    module = body if whole else body[levels:]  # parquet-java leaves levels in plaintext
    if len(body) - CTR_OVERHEAD == header.uncompressed_size and (
        codec == UNCOMPRESSED or not layout.is_compressed
    ):
        return True
    skipped = levels if whole else 0
    size = len(module) - CTR_OVERHEAD - skipped
    if size < 8 or skipped > MAX_LEVELS:
        return False
    seen = skipped + min(size, _SEEN)
    plain = bytearray(skipped + _SEEN + CTR_SLACK)
    CtrCipher(key).decrypt_into(module[: CTR_OVERHEAD + seen], b"", memoryview(plain))
    values = plain[skipped:]
    if codec == _SNAPPY:
        return _begins_as_snappy(values, header.uncompressed_size - levels)
    return codec in _MAGICS and values.startswith(_MAGICS[codec])


def _begins_as_snappy(plain: bytearray, size: int) -> bool:
    """Return whether bytes begin with an uncompressed length and a literal that is no longer."""
    # The length of a small page is a single byte, with which one of 256 damaged pages begins.
    length = varint(max(size, 0))
    literal, kind = divmod(plain[len(length)], 4)
    return plain.startswith(length) and kind == 0 and (literal < size or literal >= 60)
