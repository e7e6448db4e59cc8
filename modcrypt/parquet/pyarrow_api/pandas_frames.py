"""Read encrypted files as pandas does."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from modcrypt.io.sources import SourceLike
from modcrypt.keys import hide_keys
from modcrypt.parquet.arrow.filters import Filters
from modcrypt.parquet.datasets.dataset_reader import Decryption
from modcrypt.parquet.pyarrow_api.datasets import read_table

if TYPE_CHECKING:
    import pandas as pd


@hide_keys
def read_parquet(
    path: SourceLike | Sequence[str | os.PathLike[str]],
    decryption: Decryption,
    *,
    columns: Sequence[str] | None = None,
    filters: Filters | None = None,
    filesystem: Any = None,
    **options: Any,
) -> pd.DataFrame:
    """Read an encrypted Parquet file, or a dataset of such files, as `pandas.read_parquet` does.

    For a frame of Polars, pass the table: `polars.from_arrow(modcrypt.read_table(path, key))`.

    Args:
        path: Path or URL of a file or folder, a list of paths, bytes or a file object.
        decryption: Keys, and the caller's requirements, as for `read_table`.
        columns: Names of columns, in the order wanted; None for all. The index of the frame that
            was written is read, too.
        filters: Condition for the rows to keep, as for `read_table`.
        filesystem: Filesystem of pyarrow or fsspec that contains the path.
        options: Further arguments of `modcrypt.parquet.read_table`.

    Raises:
        ModuleNotFoundError: pandas is not installed.
        TypeError: `decryption` is None, or an option is unknown.
        ModcryptError, ValueError, OSError: As `read_table`.

    Example:
        >>> import modcrypt as mc, pandas as pd
        >>> key = mc.Key.generate()
        >>> mc.write_table(pd.DataFrame({"n": [1, 2]}, index=["a", "b"]), "n.parquet", key)
        >>> mc.read_parquet("n.parquet", key)
           n
        a  1
        b  2
    """
    try:
        import pandas  # noqa: F401
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            "read_parquet returns a frame of pandas: pip install pandas; without it, use "
            "modcrypt.read_table, whose result polars.from_arrow takes, too"
        ) from None
    if decryption is None:
        raise TypeError("decryption is missing; pandas.read_parquet reads plaintext files")
    table = read_table(
        path, columns=columns, filters=filters, filesystem=filesystem, use_pandas_metadata=True,
        decryption_properties=decryption, **options,
    )  # fmt: skip
    frame: pd.DataFrame = table.to_pandas()
    return frame
