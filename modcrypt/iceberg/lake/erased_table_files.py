"""The erased files of a table: a statement names them, and their keys are gone.

Their locations name their partition. A KEK is gone if neither the table, nor its key store, nor an
older metadata.json has it, or if its master key is destroyed. While one of these cannot be read,
nothing is known to be gone.
"""

from __future__ import annotations

import posixpath
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, TypeAlias

from modcrypt.errors import KeyNotFoundError, ModcryptError
from modcrypt.iceberg.format.deletion import JOBS
from modcrypt.iceberg.format.manifest_rows.file_entries import FileEntry
from modcrypt.iceberg.format.table_versions import read_metadata
from modcrypt.iceberg.keys.key_policies import KEKS_SINCE, KeyPolicy
from modcrypt.iceberg.keys.key_resolver import encrypting_key
from modcrypt.iceberg.keys.wrapping_keys import IcebergKey
from modcrypt.iceberg.read.inventory import Keys, known_encrypting_key, take_inventory
from modcrypt.iceberg.read.table_version import metadata_files
from modcrypt.iceberg.rotate.rotation_report import older_versions
from modcrypt.iceberg.verify.key_checks import master_key_version
from modcrypt.lake.declarations.declaration import TableDeclaration
from modcrypt.lake.erasure.erasures import Erasure
from modcrypt.lake.files.file_states import KeyUse
from modcrypt.lake.key_ages import KeyAges
from modcrypt.report.text import format_count
from modcrypt.runtime.fork_safety import cached_property
from modcrypt.runtime.log import LOGGER

if TYPE_CHECKING:
    from modcrypt.iceberg.tables.table import IcebergTable

OnErased: TypeAlias = Literal["skip", "raise"]
"""Treatment of erased files: leave them out with a warning, or raise."""

Key: TypeAlias = tuple[str, bool]
"""The id of the key that encrypts the key metadata of a file, and whether it is a master key."""


@dataclass(frozen=True)
class ErasedTableFiles:
    """The erased files of one version of a table."""

    declared: TableDeclaration
    table: IcebergTable
    ages: KeyAges
    _known: dict[Key, bool] = field(default_factory=dict, init=False, repr=False)

    def find(self, location: str) -> Erasure | None:
        """Return the first statement that a file is erased; None if there is none."""
        if not self.declared.erased:
            return None
        base = f"{self.table.metadata.location.rstrip('/')}/"
        return self.declared.erasures.find(location.removeprefix(base))

    def is_erased(self, location: str, above: Iterable[Key]) -> bool:
        """Return whether all keys of a file are gone, in all snapshots.

        `above` are the keys of the manifest lists that lead to it.
        """
        lists = set(above)
        if lists and all(map(self.is_gone, lists)):
            return True
        keys = self._keys_of_files.get(location)
        return bool(keys) and all(map(self.is_gone, keys or ()))

    def find_copy(self, location: str) -> str:
        """Return where a key of a file still is; empty if nothing is known of one."""
        for key in self._keys_of_files.get(location, ()):
            if key is None:
                return "a manifest has its key in plaintext"
            if key[1] or self.is_gone(key):
                continue
            if any(map(self._opens, self._find_kek(key[0]))):
                return f"another snapshot has its key under {key[0]}"
            if any(map(self._opens, (self._copies or {}).get(key[0], ()))):
                return (
                    f"an older metadata.json has its KEK {key[0]}: remove it, as with modcrypt "
                    "iceberg shred"
                )
        return ""

    def _opens(self, kek: IcebergKey) -> bool:
        """Return whether the key service unwraps a KEK."""
        with suppress(ModcryptError):  # it may return: the file is unreadable, and no fault
            self.table.resolver.masters.open_key(kek)
            return True
        return False

    @cached_property
    def _keys_of_files(self) -> dict[str, set[Key | None]]:
        """The keys that encrypt the key metadata of each named file, in all of its manifests."""
        walk, snapshots = self.table.walk, self.table.metadata.snapshots
        reached = take_inventory(Keys(walk, {}), snapshots, JOBS)
        return {
            file.location: {known_encrypting_key(entry.key_metadata) for entry in file.entries}
            for file in reached.files if self.find(file.location) is not None
        }  # fmt: skip

    def is_gone(self, key: Key | None) -> bool:
        """Return whether the key that encrypts the key metadata of a file is gone.

        None stands for key metadata that its manifest has in plaintext.
        """
        if key is None:
            return False
        if key not in self._known:
            self._known[key] = self._find_gone(*key)
        return self._known[key]

    def _find_gone(self, key_id: str, is_master: bool) -> bool:
        if self._copies is None:
            return False
        if is_master:  # the key of a file that it wraps may be under others in older versions
            singles = {key.master_key_id for key in self._copies.get("", ())}
            return all(self._is_destroyed(IcebergKey.single(id_)) for id_ in {*singles, key_id})
        return all(
            map(self._is_destroyed, [*self._find_kek(key_id), *self._copies.get(key_id, ())])
        )

    def _find_kek(self, key_id: str) -> list[IcebergKey]:
        """Return the KEK of an id in a list; an empty one if neither table nor store has it."""
        return [
            kek for id_, kek in self.table.resolver.keks(self.table.metadata).items()
            if id_ == key_id
        ]  # fmt: skip

    def _is_destroyed(self, key: IcebergKey) -> bool:
        version = None if key.wrapped is None else master_key_version(key.wrapped)
        return self.ages.is_destroyed(KeyUse(None, key.master_key_id, version, key.id))

    @cached_property
    def _copies(self) -> dict[str, list[IcebergKey]] | None:
        """The KEKs that metadata.json files have, by id, and master keys that wrap others under "".

        None if others may be elsewhere.
        """
        table, found = self.table, defaultdict[str, list[IcebergKey]](list)
        uses_store = KeyPolicy.of(table.metadata).store == "key-store"
        if table.resolver.store is None and (uses_store or KEKS_SINCE in table.metadata.properties):
            return None
        names = metadata_files(table)
        if {posixpath.basename(each) for each in older_versions(table)} - set(names):
            return None  # they are in other folders
        try:
            for name in names:
                metadata = read_metadata(table.place.beside(name))
                for id_ in metadata.kek_ids():
                    found[id_].append(IcebergKey.of(metadata.keys[id_]))
                found[""] += [
                    IcebergKey.single(entry.encrypted_by)
                    for entry in metadata.keys.values() if entry.is_single
                ]  # fmt: skip
        except (ModcryptError, OSError):
            return None
        return found


def read_without_erased(erased: ErasedTableFiles, on_erased: OnErased = "skip") -> LeftOut:
    """Return the table to read without its erased files.

    Raise ValueError if `on_erased` is neither "skip" nor "raise".
    """
    if on_erased not in ("skip", "raise"):
        raise ValueError('on_erased must be "skip" or "raise"')
    return LeftOut(erased, on_erased)


@dataclass
class LeftOut:
    """A reading of a table without its erased files."""

    erased: ErasedTableFiles
    on_erased: OnErased
    _locations: set[str] = field(default_factory=set, init=False, repr=False)

    @property
    def table(self) -> IcebergTable:
        """The table, whose scans leave erased files out; for reading alone."""
        table = self.erased.table
        if not self.erased.declared.erased:
            return table
        return replace(table, walk=replace(table.walk, leaves_out=self._leaves_out))

    def _leaves_out(self, entry: FileEntry) -> bool:
        statement = self.erased.find(entry.location)
        if statement is None or not self.erased.is_gone(encrypting_key(entry.key_metadata)):
            return False
        if self.on_erased == "raise":
            raise KeyNotFoundError(
                f'{entry.location}: erased {statement}; pass on_erased="skip" to leave it out'
            )
        self._locations.add(entry.location)
        return True

    def warn(self) -> None:
        """Log a warning with the number of files that were left out, if there are any."""
        if self._locations:
            count = format_count(len(self._locations), "file")
            LOGGER.warning("%s: %s left out as erased", self.erased.declared.name, count)

    def warn_after(self, batches: Iterator[object]) -> Iterator[object]:
        """Yield batches, and warn when there are no more."""
        yield from batches
        self.warn()
