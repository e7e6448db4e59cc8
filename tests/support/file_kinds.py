"""Encrypted files of every kind, small enough to alter each of their bytes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from modcrypt import FileDecryptionProperties, FileEncryptionProperties
from tests.support.forging import SMALL_FILTER, encrypt_bytes, plain_file
from tests.support.keys import COLUMN_KEY, FOOTER_KEY

BOTH = ("AES_GCM_V1", "AES_GCM_CTR_V1")
READER = FileDecryptionProperties(footer_key=FOOTER_KEY)
KEYED_READER = FileDecryptionProperties(footer_key=FOOTER_KEY, column_keys={"b": COLUMN_KEY})


# Two row groups of two columns whose modules come in equal sizes, so that exchanging them is
# not given away by a length; a third column to leave in plaintext.
TABLE = pa.table({"a": [1, 1, 2, None], "b": ["x", "y", "x", "y"], "c": [1.5, 2.5, 3.5, 3.5]})
RICH: dict[str, Any] = {
    "row_group_size": 2,
    "write_page_index": True,
    "bloom_filter_options": {"a": SMALL_FILTER, "b": SMALL_FILTER, "c": SMALL_FILTER},
    "store_schema": False,
}


@dataclass(frozen=True)
class Case:
    """One kind of file, and its reader."""

    name: str
    options: dict[str, Any] = field(default_factory=dict)
    properties: dict[str, Any] = field(default_factory=dict)

    def write(self, columns: str = "abc") -> bytes:
        """Return an encrypted file with some of the columns."""
        blooms = {"bloom_filter_options": dict.fromkeys(columns, SMALL_FILTER)}
        return encrypt_bytes(
            plain_file(TABLE.select(list(columns)), **(RICH | blooms), **self.options),
            FileEncryptionProperties(footer_key=FOOTER_KEY, **self.properties),
        )

    @property
    def reader(self) -> FileDecryptionProperties:
        return KEYED_READER if "column_keys" in self.properties else READER


MIXED = {"column_keys": {"b": COLUMN_KEY}, "plaintext_columns": ["c"]}
V2 = {"data_page_version": "2.0"}
CRC = {"write_page_checksum": True}
PF = {"plaintext_footer": True}
KEY_METADATA = {"footer_key_metadata": b"kf"}
CASES = [
    Case("ef-uniform-v1", properties=KEY_METADATA),
    Case("ef-uniform-v1-crc", CRC, {"aad_prefix": b"table/part"}),
    Case("ef-uniform-v2", V2),
    Case("ef-mixed-v1-crc", CRC, MIXED),
    Case("ef-mixed-v2-levels-plaintext", V2, MIXED | {"data_page_v2_levels": "plaintext"}),
    Case("pf-uniform-v1", properties=PF | KEY_METADATA),
    Case("pf-uniform-v2-crc", V2 | CRC, PF | {"aad_prefix": b"table/part"}),
    Case("pf-mixed-v1", properties=PF | MIXED),
    Case("pf-mixed-v2-crc", V2 | CRC, PF | MIXED),
]
