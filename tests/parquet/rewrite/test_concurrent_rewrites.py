"""Files that others replace or alter while they are read: the opened version, or an error."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest

import modcrypt as mc
from tests.support.cases import each_case
from tests.support.keys import FOOTER_KEY
from tests.support.module_spans import list_modules

SEALING = mc.FileEncryptionProperties(footer_key=FOOTER_KEY, aad_prefix=b"f")
OPENING = mc.FileDecryptionProperties(footer_key=FOOTER_KEY, aad_prefix=b"f")
OPTIONS: dict[str, Any] = {
    "row_group_size": 4000, "use_dictionary": False, "compression": "none",
    "write_statistics": False,
}  # fmt: skip


def version(folder: Path, value: str) -> bytes:
    """Make a file whose modules have the same sizes and places as those of another version."""
    path = folder / f"version-{value}"
    mc.write_table(pa.table({"a": [value] * 16_000}), path, SEALING, **OPTIONS)
    return path.read_bytes()


@pytest.fixture(scope="module")
def versions(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, bytes]:
    """Two versions of a file, under the same key and AAD prefix."""
    folder = tmp_path_factory.mktemp("versions")
    first, second = version(folder, "first"), version(folder, "secnd")
    assert len(first) == len(second)
    return first, second


def overwrite(path: Path, data: bytes) -> None:
    with path.open("r+b") as file:
        file.write(data)


def replace(path: Path, data: bytes) -> None:
    path.with_suffix(".new").write_bytes(data)
    path.with_suffix(".new").replace(path)


def in_folder(path: Path) -> tuple[Any, dict[str, Any]]:
    local = pafs.LocalFileSystem()
    return path.name, {"filesystem": pafs.SubTreeFileSystem(str(path.parent), local)}


PLACES: dict[str, Callable[[Path], tuple[Any, dict[str, Any]]]] = {
    "path": lambda path: (path, {}),
    "file URL": lambda path: (path.as_uri(), {}),
    "file object": lambda path: (path.open("rb"), {}),
    "pyarrow's file system": in_folder,
    "fsspec's file system": lambda path: (str(path), {"filesystem": fsspec.filesystem("file")}),
}


def read_by_row_groups(
    source: Any, how: dict[str, Any], change: Callable[[], None]
) -> list[list[str]]:
    with mc.ParquetFile(source, OPENING, **how) as file:
        first = file.read_row_group(0)
        change()
        return [part["a"].unique().to_pylist() for part in (first, file.read_row_group(2))]


def read_by_view(source: Any, how: dict[str, Any], change: Callable[[], None]) -> list[list[str]]:
    with mc.open_parquet(source, OPENING, **how) as view, pq.ParquetFile(view) as file:
        first = file.read_row_group(0)
        change()
        return [part["a"].unique().to_pylist() for part in (first, file.read_row_group(2))]


def read_in_batches(
    source: Any, how: dict[str, Any], change: Callable[[], None]
) -> list[list[str]]:
    batches = mc.iter_batches(source, OPENING, batch_size=1000, **how)
    first = next(batches)
    change()
    return [batch["a"].unique().to_pylist() for batch in (first, *batches)]


@each_case("write", [overwrite, replace])
@each_case("place", PLACES)
@each_case("read", [read_by_row_groups, read_by_view, read_in_batches])
def test_a_file_that_changes_while_it_is_open_gives_its_own_rows_or_an_error(
    read: Callable[..., list[list[str]]],
    place: str,
    write: Callable[[Path, bytes], None],
    versions: tuple[bytes, bytes],
    tmp_path: Path,
) -> None:
    path = tmp_path / "f.parquet"
    path.write_bytes(versions[0])
    source, how = PLACES[place](path)
    try:
        parts = read(source, how, lambda: write(path, versions[1]))
    except (mc.ModcryptError, OSError):
        assert write is overwrite  # a file that was replaced is still there for whoever has it open
    else:
        assert {value for part in parts for value in part} == {"first"}
    finally:
        if hasattr(source, "close"):
            source.close()


@pytest.mark.parametrize("read", [read_by_row_groups, read_by_view, read_in_batches])
def test_an_object_in_memory_that_is_replaced_gives_its_own_rows(
    read: Callable[..., list[list[str]]], versions: tuple[bytes, bytes]
) -> None:
    memory = fsspec.filesystem("memory")
    memory.pipe_file("/f.parquet", versions[0])
    parts = read("memory://f.parquet", {}, lambda: memory.pipe_file("/f.parquet", versions[1]))
    assert {value for part in parts for value in part} == {"first"}


def test_a_file_that_is_half_written_never_gives_rows_of_both_versions(
    versions: tuple[bytes, bytes], tmp_path: Path
) -> None:
    first, second = versions
    borders = {module.start for module in list_modules(first, OPENING)}
    path = tmp_path / "f.parquet"
    for border in sorted(borders | {at + 7 for at in borders} | {len(first) - 8}):
        path.write_bytes(second[:border] + first[border:])
        try:
            found = mc.read_table(path, OPENING)["a"].unique().to_pylist()
        except mc.ModcryptError:
            continue
        assert found in (["first"], ["secnd"])
    assert os.path.getsize(path) == len(first)
