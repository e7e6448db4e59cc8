"""Tables of a folder and of an SQL catalog, named so that other processes find them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyiceberg.catalog.sql import SqlCatalog

from modcrypt.iceberg import IcebergTable, open_table
from tests.support.iceberg.catalog_tables import CatalogTable
from tests.support.iceberg.made_tables import make_table
from tests.support.iceberg.sample_kms import SampleKms


@dataclass(frozen=True)
class FolderTable:
    """A table in the folder `uri`, also of a store; its name says nothing."""

    uri: str
    name: str = ""

    def load(self, kms: Any = None, **options: Any) -> IcebergTable:
        return open_table(self.uri, kms or SampleKms(), **options)

    def version(self) -> int:
        """The number of the current version."""
        return int(self.load(master_key_ids=["keyA", "keyB"]).place.name[1:].split(".")[0])

    def locks(self) -> list[Any]:
        return []


class SqlTable(CatalogTable):
    """A table of a catalog in SQLite."""

    @property
    def catalog(self) -> SqlCatalog:
        folder = Path(self.uri.removeprefix("sqlite:///")).parent
        return SqlCatalog("sql", uri=self.uri, warehouse=f"file://{folder}/warehouse")


def make_folder_table(folder: Path | str) -> FolderTable:
    """Make an encrypted table in a folder, or at a URL."""
    make_table(folder)
    return FolderTable(str(folder))


def make_sql_table(folder: Path) -> SqlTable:
    """Make a catalog in a folder, with an encrypted table."""
    folder.mkdir()
    return SqlTable.make(f"sqlite:///{folder}/catalog.db")


def table_files(folder: Path) -> set[str]:
    """Return the paths of the files in a folder, but for a catalog's database."""
    return {str(path) for path in folder.rglob("*") if path.is_file() and path.suffix != ".db"}
