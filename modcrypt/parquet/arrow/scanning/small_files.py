"""Read small files of one schema together.

PyArrow takes longer to open a small file than to decode it, and a scan longer to be planned. So the
chunks of several files are decrypted into one plaintext file, which PyArrow decodes. What is
checked of each file is what a scan checks.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from modcrypt.io.sources import open_source
from modcrypt.parquet.arrow.chunk_loading import MAX_JOINED, JoinedFile
from modcrypt.parquet.arrow.parquet_file import ParquetFile
from modcrypt.parquet.arrow.schema_files import freeze_schema
from modcrypt.parquet.crypto.file_plan import OpenFile
from modcrypt.parquet.crypto.properties import FileDecryptionProperties
from modcrypt.parquet.format.framing import FileIdentity
from modcrypt.parquet.format.schema import leaves_of

SMALL_FILE = 256 << 10  # largest size in bytes of a file that is read with others
_MOST_ROWS = 1 << 16  # most rows that are read together; a quarter of them at most is of one file


class SmallFiles:
    """Small files of one schema, of which some columns are read together.

    Args:
        result: The schema of its rows as `first.read` returns them.
    """

    def __init__(self, first: ParquetFile, columns: Sequence[str], result: pa.Schema) -> None:
        file = first.open_file
        self._schema, self._decoder, self._result = first.frozen_schema, first.decoder, result
        self._leaves = leaves_of(file.leaves, columns)
        # A row may have several values of a nested column, so their number does not show its rows.
        nested = any(file.elements[c].max_repetition for c in self._leaves)
        self._is_usable = not nested and not first.cell_names  # cells are not what PyArrow decodes
        self._joined = JoinedFile()

    @property
    def is_full(self) -> bool:
        """True if the files should be taken before another is added."""
        joined = self._joined
        return joined.expanded >= MAX_JOINED or joined.rows > _MOST_ROWS - _MOST_ROWS // 4

    def add(
        self, path: str, decryption: FileDecryptionProperties, expected: FileIdentity | None
    ) -> bool:
        """Add a file; return False if it has to be read alone.

        The arguments and errors are those of `ParquetFile`; errors of decoding are raised later.
        """
        if not self._is_usable:
            return False
        with open_source(path) as source:
            file = OpenFile(source, decryption, expected)
            counts = [row_group.num_rows for row_group in file.metadata.row_groups]
            if 0 in counts or sum(counts) > _MOST_ROWS // 4:
                return False
            if freeze_schema(file.metadata) != self._schema:
                return False
            plan = file.select(self._leaves, partial_groups=True)
            return not plan.missing and self._joined.add(file.source, plan)

    def take(self) -> list[pa.RecordBatch] | None:
        """Decode the rows of the files since the last call; return None if they are read alone.

        Raises:
            ModcryptError: PyArrow cannot decode a file.
        """
        loaded, self._joined = self._joined.load(), JoinedFile()
        if self._decoder.repeats_long_values(loaded):
            return None
        table = self._decoder.decode_table(loaded, use_threads=False)
        self._is_usable = set(table.column_names).issuperset(self._result.names)
        if self._is_usable:
            table = table.select(self._result.names)
            self._is_usable = table.schema.equals(self._result)
        return table.to_batches() if self._is_usable else None
