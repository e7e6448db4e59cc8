"""The columns of a file, and whether it is encrypted, by its footer."""

from __future__ import annotations

import functools

from modcrypt.errors import PlaintextError
from modcrypt.io.sources import Source
from modcrypt.lake.declarations.columns import FileColumns, Path
from modcrypt.parquet.arrow.field_metadata import get_arrow_schema, parse_field_metadata
from modcrypt.parquet.crypto.footer_keys import list_key_metadata
from modcrypt.parquet.crypto.footer_opening import Footer, read_plain
from modcrypt.parquet.format.schema import leaf_paths


def read_columns(footer: Footer, leaves: list[Path] | None = None) -> FileColumns:
    """Return the columns of a file with an open footer.

    Files with the same columns share the result.
    """
    found = tuple(leaf_paths(footer.metadata.schema) if leaves is None else leaves)
    return _make_columns(found, get_arrow_schema(footer.metadata))


@functools.lru_cache(maxsize=256)
def _make_columns(leaves: tuple[Path, ...], arrow_schema: bytes | None) -> FileColumns:
    return FileColumns(leaves, parse_field_metadata(arrow_schema))


def is_encrypted(source: Source) -> bool:
    """Return whether a file is encrypted, at least by its own account."""
    try:
        list_key_metadata(source)
    except PlaintextError:
        return False
    return True


def read_plain_columns(source: Source) -> FileColumns:
    """Return the columns of a plaintext file.

    Raises:
        ModcryptError: As `read_plain`.
    """
    return read_columns(read_plain(source))
