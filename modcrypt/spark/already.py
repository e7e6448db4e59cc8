"""Whether a file is already what a job would make of another: the look before the work.

No record is kept. What a file says of itself, opened with the keys that it is to have, tells what
an earlier run, or an earlier attempt at the same task, has done.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, replace

from modcrypt.errors import KmsUnavailableError, ModcryptError, PlaintextError
from modcrypt.kms.external import find_in, read_store
from modcrypt.kms.key_tools import KeyedEncryption
from modcrypt.kms.material import KeyMaterial, decode_metadata
from modcrypt.parquet.ciphers import assign_keys
from modcrypt.parquet.footer import EncryptedFooter, read_plain
from modcrypt.parquet.footer_keys import check_border
from modcrypt.parquet.plan import OpenFile
from modcrypt.parquet.properties import (
    Encryption,
    FileDecryptionProperties,
    FileEncryptionProperties,
)
from modcrypt.parquet.schema import covering_name, leaf_paths
from modcrypt.spark.settings import Settings
from modcrypt.storage import Place

__all__ = ["NewKeys", "Shape", "decrypted_shape", "is_newer", "plain_shape", "why_not_plain"]


def is_newer(destination: Place, source: Place) -> bool:
    """Tell whether a destination was written after its source, where the file system can tell."""
    times = [_modified(place) for place in (destination, source)]
    return None in times or times[0] >= times[1]  # type: ignore[operator]  # None is none of them


def _modified(place: Place) -> float | None:
    filesystem = place.filesystem
    if filesystem is None:
        return os.stat(place.path).st_mtime_ns / 1e9
    if hasattr(filesystem, "get_file_info"):
        told = filesystem.get_file_info(place.path).mtime
    else:
        told = None
        with contextlib.suppress(NotImplementedError):
            told = filesystem.modified(place.path)
    return None if told is None else told.timestamp()


@dataclass(frozen=True, slots=True)
class Shape:
    """How many rows a file has, and which columns: by these a file is known to be of another."""

    rows: int
    leaves: list[tuple[str, ...]]

    def why_not(self, found: Shape) -> str | None:
        """Say why another file is not of this shape; None where it is."""
        if found.rows != self.rows:
            return f"it has {found.rows} rows, its source {self.rows}"
        return None if found.leaves == self.leaves else "it has other columns than its source"


def plain_shape(place: Place) -> Shape:
    """Give the shape of a plaintext file.

    Raises:
        ModcryptError: as `read_plain`.
    """
    with place.open() as source:
        metadata = read_plain(source).metadata
    return Shape(metadata.num_rows, leaf_paths(metadata.schema))


def decrypted_shape(place: Place, decryption: FileDecryptionProperties) -> Shape:
    """Give the shape of what is decrypted of a file: without columns that are left out.

    Raises:
        ModcryptError: as `decrypt_parquet`, before its first page.
    """
    with place.open() as source:
        file = OpenFile(source, decryption)
        shown = file.select().shown
    return Shape(file.metadata.num_rows, [file.leaves[c] for c in shown])


def why_not_plain(place: Place, shape: Shape | None) -> str | None:
    """Say why a file is not the plaintext of this shape; None where it is."""
    try:
        found = plain_shape(place)
    except ModcryptError as error:
        return f"it is no plaintext Parquet file: {error}"
    return None if shape is None else shape.why_not(found)


class NewKeys:
    """The keys that files are to have, and how they are to be encrypted.

    Raises:
        ValueError, KeyRetrievalError: as `Settings.encryption`.
    """

    def __init__(self, settings: Settings) -> None:
        self.encryption = settings.encryption()
        # Whatever readers put up with: here it says that the work is done.
        self._decryption = replace(
            settings.decryption(),
            on_missing_key="error",
            require_encrypted=True,
            check_footer_integrity=True,
        )

    def why_not(self, place: Place, shape: Shape | None = None) -> str | None:
        """Say why a file is not encrypted so, or is another one; None where it is the one.

        Args:
            place: of a file that is there.
            shape: that it must have.

        Raises:
            KmsUnavailableError: it can't be told.
            OSError: it can't be read.
        """
        try:
            return self._why_not(place, shape)
        except KmsUnavailableError:
            raise
        except PlaintextError:
            return "it is in plaintext"
        except ModcryptError as error:
            return f"it does not open with the new keys: {error}"

    def _why_not(self, place: Place, shape: Shape | None) -> str | None:
        with place.open() as source:
            file = OpenFile(source, self._decryption)
            file.select()  # finds all keys, and opens what they seal of the footer
            check_border(file.footer, self._decryption)
        wanted = self._wanted()
        return (
            (shape and shape.why_not(Shape(file.metadata.num_rows, file.leaves)))
            or self._why_not_modes(place, file.footer, wanted)
            or self._why_not_keys(place, file, wanted)
        )

    def _why_not_modes(
        self, place: Place, footer: EncryptedFooter, wanted: FileEncryptionProperties
    ) -> str | None:
        if footer.cipher.algorithm != wanted.encryption_algorithm:
            return f"its algorithm is {footer.cipher.algorithm}"
        if footer.plaintext_footer != wanted.plaintext_footer:
            return "its footer is " + ("in plaintext" if footer.plaintext_footer else "sealed")
        prefix = self._prefix(place)
        stored = prefix is not None and wanted.store_aad_prefix
        if footer.aad_prefix != prefix or bool(footer.algorithm.aad_prefix) != stored:
            return "it has another AAD prefix, or does not store it as it should"
        return None

    def _wanted(self) -> FileEncryptionProperties:
        encryption = self.encryption
        if isinstance(encryption, FileEncryptionProperties):
            return encryption
        return encryption.for_check()

    def _prefix(self, place: Place) -> bytes | None:
        if isinstance(self.encryption, KeyedEncryption):
            return self.encryption.policy.prefix_of(place.name)
        return self._wanted().aad_prefix

    def _why_not_keys(
        self, place: Place, file: OpenFile, wanted: FileEncryptionProperties
    ) -> str | None:
        everything = range(len(file.leaves))
        masters = _Masters(self.encryption, place)
        if fault := masters.why_not(None, file.footer.key_metadata):
            return f"its footer key is {fault}"
        if not file.metadata.row_groups:
            return None  # nothing that could be under a key
        own, plain = file.own_keys(everything), set(file.plaintext_columns(everything))
        try:
            rules = assign_keys(file.leaves, wanted)
        except ValueError as error:
            return str(error)
        for leaf, rule in zip(file.leaves, rules, strict=True):
            name = ".".join(leaf)
            kind = (name in plain, name in own)
            if kind != (rule is None, rule is not None and rule.own):
                return f"column {name} is encrypted otherwise, or not at all"
            if rule is not None and rule.own:
                fault = masters.why_not(covering_name(leaf, wanted.column_keys), own[name].metadata)
                if fault:
                    return f"the key of column {name} is {fault}"
        return None


class _Masters:
    """Which master keys the keys of one file are to be under."""

    def __init__(self, encryption: Encryption, place: Place) -> None:
        self._place = place
        self._policy = encryption.policy if isinstance(encryption, KeyedEncryption) else None
        self._store: dict[str, str] | None = None

    def why_not(self, name: str | None, metadata: bytes | None) -> str | None:
        """Say why the key of a column or group, None for the footer, is not under its own."""
        if self._policy is None:
            return None
        found = decode_metadata(metadata or b"")
        if isinstance(found, KeyMaterial):
            material = found
        else:
            self._store = read_store(self._place) if self._store is None else self._store
            material = find_in(self._store, found)
        policy = self._policy
        master = policy.footer_key if name is None else policy.key_of_column[name]
        if material.master_key_id != master:
            return f"under the master key {material.master_key_id}, not {master}"
        if material.double_wrapping != policy.double_wrapping:
            return "wrapped otherwise"
        if isinstance(found, KeyMaterial) != policy.internal_key_material:
            return "kept elsewhere"
        return None
