"""The modules of an encrypted file and their positions, by the independent verifier."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from modcrypt import FileDecryptionProperties, inspect_parquet
from modcrypt.keys import as_key, key_bytes
from modcrypt.parquet import ModuleId, ModuleType
from tools import verify_pme


@dataclass(frozen=True, slots=True)
class ModuleSpan:
    """One module and the bytes [start, end) that it occupies in the file, framing included."""

    module: ModuleId
    start: int
    end: int


def list_modules(
    source: Path | bytes | bytearray, reader: FileDecryptionProperties
) -> list[ModuleSpan]:
    """Return the modules of a file in file order, without those inside the footer.

    `tools/verify_pme.py` opens every module and finds its position; inspection adds the names of
    columns. With levels in clear, a page's span begins with them.
    """
    data = source.read_bytes() if isinstance(source, Path) else bytes(source)
    columns = inspect_parquet(data, reader).columns or ()
    spans = []
    reached = 0
    for module in sorted(_verified_modules(data, reader), key=lambda module: module.offset or 0):
        kind = ModuleType(module.type)
        assert module.offset is not None
        end = module.offset + module.size
        path = None if module.column is None else columns[module.column].path
        address = ModuleId(kind, module.row_group, module.column, module.page, path)
        start = reached if kind is ModuleType.DATA_PAGE else module.offset  # levels come first
        spans.append(ModuleSpan(address, start, end))
        reached = end
    return spans


def _verified_modules(data: bytes, reader: FileDecryptionProperties) -> list[verify_pme.Module]:
    assert not callable(reader.aad_prefix)
    columns = inspect_parquet(data, reader).columns or ()
    modules = verify_pme.verify(
        data,
        None if reader.footer_key is None else key_bytes(as_key(reader.footer_key)),
        {
            column.path: key_bytes(as_key(key))
            for name, key in reader.column_keys.items()
            for column in columns
            if f"{column.path}.".startswith(f"{name}.")
        },
        reader.aad_prefix,
        accept_algorithms=tuple(reader.accept_algorithms),
    )
    return [module for module in modules if module.type != ModuleType.COLUMN_METADATA]
