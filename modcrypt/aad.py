"""Additional authenticated data (AAD): the bytes that bind a PME module or block to its place.

    module AAD = AAD prefix | file-unique | type (1) | row group (2) | column (2) | page (2)
                 '---- file AAD ---------'   '----------- AAD suffix ----------------------'
    block AAD  = AAD prefix | block index (4)

Module AADs (PME 4.4): ordinals are little-endian int16. The AAD suffix of the footer is only the
type byte; modules without a page ordinal end after the column. Block AADs (AGS1 "Additional
Authenticated Data"): the index is a little-endian int32. This file only computes bytes; it contains
no ciphers and no IO.
"""

from __future__ import annotations

from typing import Final

from modcrypt.errors import LimitError
from modcrypt.module_ids import ModuleId, ModuleType

MAX_ORDINAL: Final = 32_767
"""The largest row group, column or page ordinal: they are int16 in the AAD (PME 4.4.2)."""


MAX_BLOCK_INDEX: Final = 2**31 - 1
"""The largest block index: it is an int32 in the AAD (AGS1 "Additional Authenticated Data")."""


def ordinal_bytes(ordinal: int) -> bytes:
    """Encode an ordinal for the AAD: int16, little-endian (PME 4.4.2).

    Raise LimitError if the ordinal is not in 0..32767.
    """
    if not 0 <= ordinal <= MAX_ORDINAL:
        raise LimitError(
            f"ordinal {ordinal} is not in 0..{MAX_ORDINAL}: ordinals of row groups, "
            "columns and pages are int16 (PME 4.4.2); write fewer, larger ones"
        )
    return _BYTES[ordinal & 255] + _BYTES[ordinal >> 8]


_BYTES: Final = [bytes((byte,)) for byte in range(256)]
_DATA_PAGE: Final = bytes((ModuleType.DATA_PAGE,))
_DATA_PAGE_HEADER: Final = bytes((ModuleType.DATA_PAGE_HEADER,))


def module_aad(file_aad: bytes, module: ModuleId) -> bytes:
    """Return the AAD of a module (PME 4.4.2).

    The file AAD is the AAD prefix followed by the file-unique bytes. Raise ValueError if an ordinal
    is missing, or the type does not use it; and LimitError if an ordinal is not in 0..32767.
    """
    in_chunk = module.type is not ModuleType.FOOTER
    given = (module.row_group is not None, module.column is not None, module.page is not None)
    if given != (in_chunk, in_chunk, module.type.has_page):
        raise ValueError(f"the ordinals do not fit the module type: {module!r}")
    ordinals = (module.row_group, module.column, module.page)
    return aad_of_type(file_aad, module.type, *[n for n in ordinals if n is not None])


def aad_of_type(file_aad: bytes, type_number: int, *ordinals: int) -> bytes:
    """Return the AAD of a module whose type number or ordinals may differ from PME's.

    Some other writers number the module types differently. Raise LimitError if an ordinal is not in
    0..32767.
    """
    return file_aad + bytes((type_number,)) + b"".join(map(ordinal_bytes, ordinals))


class ChunkAads:
    """The AADs of one column chunk's modules (PME 4.4.2).

    The file AAD is the AAD prefix followed by the file-unique bytes. Raise LimitError if an ordinal
    is not in 0..32767.
    """

    __slots__ = ("_data", "_data_header", "_file", "_place")

    def __init__(self, file_aad: bytes, row_group: int, column: int) -> None:
        self._file: bytes = file_aad
        self._place: bytes = ordinal_bytes(row_group) + ordinal_bytes(column)
        self._data_header: bytes = file_aad + _DATA_PAGE_HEADER + self._place
        self._data: bytes = file_aad + _DATA_PAGE + self._place

    def of_type(self, kind: ModuleType) -> bytes:
        """Return the AAD of a module without a page ordinal."""
        return self._file + _BYTES[kind] + self._place

    def of_page(self, ordinal: int) -> tuple[bytes, bytes]:
        """Return the AADs of a data page's header and body.

        Raise LimitError if the ordinal is not in 0..32767.
        """
        page = ordinal_bytes(ordinal)
        return self._data_header + page, self._data + page


def block_aad(aad_prefix: bytes, index: int) -> bytes:
    """Return the AAD of a block (AGS1 "Additional Authenticated Data").

    Raise LimitError if the index is not in 0..2**31 - 1.
    """
    if not 0 <= index <= MAX_BLOCK_INDEX:
        raise LimitError(
            f"block index {index} is not in 0..{MAX_BLOCK_INDEX}: AGS1 block indexes are int32; "
            "use longer blocks"
        )
    return aad_prefix + index.to_bytes(4, "little")
