"""`read_table` and `read_pandas` as in `pyarrow.parquet`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from modcrypt.parquet.pyarrow_api.arguments import is_for_pyarrow, take_arguments_of
from modcrypt.parquet.pyarrow_api.datasets import ParquetDataset


@take_arguments_of(pq.read_table)
def read_table(
    source: Any,
    *,
    columns: Sequence[str] | None = None,
    use_threads: bool = True,
    use_pandas_metadata: bool = False,
    decryption_properties: Any = None,
    **options: Any,
) -> pa.Table:
    """Read a file or a dataset as a table, as `pyarrow.parquet.read_table`.

    Args:
        source: Path or URL of a file or folder, a list of paths, bytes or a file object.
        columns: Names of columns, in the order wanted; None for all.
        use_threads: Decode on several threads.
        use_pandas_metadata: Also read the columns of a pandas frame's index.
        decryption_properties: Properties of modcrypt, Settings or properties of PyArrow, or a
            function that returns them for a path; None for plaintext.
        options: Arguments of `ParquetDataset`: `filters`, `filesystem`, `partitioning`, `schema`
            and PyArrow's other options.

    Returns:
        The table. Only the keys of the columns that it needs are retrieved.

    Raises:
        TypeError: An option is unknown or cannot be honoured.
        ModcryptError, ValueError, OSError: As `modcrypt.read_table`.

    Example:
        >>> import pyarrow as pa, modcrypt.parquet as pq
        >>> key = bytes(range(16))
        >>> encryption = pq.FileEncryptionProperties(footer_key=key)
        >>> pq.write_table(pa.table({"n": [1, 2]}), "n.parquet", encryption_properties=encryption)
        >>> decryption = pq.FileDecryptionProperties(footer_key=key)
        >>> pq.read_table("n.parquet", decryption_properties=decryption)["n"].to_pylist()
        [1, 2]
    """
    if is_for_pyarrow(decryption_properties):
        return pq.read_table(
            source, columns=columns, use_threads=use_threads,
            use_pandas_metadata=use_pandas_metadata, decryption_properties=decryption_properties,
            **options,
        )  # fmt: skip
    dataset = ParquetDataset(source, decryption_properties=decryption_properties, **options)
    return dataset.read(columns, use_threads, use_pandas_metadata)


@take_arguments_of(pq.read_pandas)
def read_pandas(source: Any, columns: Sequence[str] | None = None, **options: Any) -> pa.Table:
    """Read a table with the columns of a pandas frame's index, as `pyarrow.parquet.read_pandas`.

    `options` are those of `read_table`, which raises the same errors.

    Example:
        >>> import pandas as pd, modcrypt.parquet as pq, pyarrow as pa
        >>> key = bytes(range(16))
        >>> table = pa.Table.from_pandas(pd.DataFrame({"n": [1, 2]}, index=["a", "b"]))
        >>> encryption = pq.FileEncryptionProperties(footer_key=key)
        >>> pq.write_table(table, "n.parquet", encryption_properties=encryption)
        >>> decryption = pq.FileDecryptionProperties(footer_key=key)
        >>> frame = pq.read_pandas("n.parquet", ["n"], decryption_properties=decryption).to_pandas()
        >>> list(frame.index)
        ['a', 'b']
    """
    return read_table(source, columns=columns, use_pandas_metadata=True, **options)
