"""Whether a file is already what a job would make of another: the look before the work.

No record is kept. What a file says of itself, opened with the keys that it is to have, tells what
an earlier run, or an earlier attempt at the same task, has done.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from modcrypt.errors import FormatError, KmsUnavailableError, ModcryptError, PlaintextError
from modcrypt.io.storage import Place
from modcrypt.kms.key_tools import KeyedEncryption
from modcrypt.parquet.crypto.ciphers import assign_keys
from modcrypt.parquet.crypto.file_plan import OpenFile
from modcrypt.parquet.crypto.footer import EncryptedFooter, read_plain
from modcrypt.parquet.crypto.footer_keys import check_border
from modcrypt.parquet.crypto.properties import (
    Encryption,
    FileDecryptionProperties,
    FileEncryptionProperties,
)
from modcrypt.parquet.format.idl import ThriftStruct
from modcrypt.parquet.format.mask_note import MaskNote, hash_key_check, read_note
from modcrypt.parquet.format.schema import covering_name, leaf_paths, leaves_of
from modcrypt.parquet.rewrite.file_rewrite import Change, Choice, as_it_was
from modcrypt.pkmt1.external import find_in, read_store
from modcrypt.pkmt1.material import KeyMaterial, decode_metadata
from modcrypt.spark.settings import Settings

__all__ = [
    "Masked",
    "NewKeys",
    "Shape",
    "decrypted_shape",
    "is_newer",
    "plain_shape",
    "remade",
    "why_not_opened",
    "why_not_plain",
]


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
    """How many rows a file has, and which columns: by these a file is known to be of another.

    Attributes:
        masked: which of the columns are masked; None where that is not asked.
    """

    rows: int
    leaves: list[tuple[str, ...]]
    masked: MaskNote | None = None

    def why_not(self, found: Shape) -> str | None:
        """Say why another file is not of this shape; None where it is."""
        if found.rows != self.rows:
            return f"it has {found.rows} rows, its source {self.rows}"
        return None if found.leaves == self.leaves else "it has other columns than its source"

    def why_not_opened(self, file: OpenFile) -> str | None:
        """Say why an open file is not of this shape."""
        if why := self.why_not(Shape(file.metadata.num_rows, file.leaves)):
            return why
        if self.masked is None:
            return None
        found = _masks_of(file)
        names = dict.fromkeys(found.lacks(self.masked) + self.masked.lacks(found))
        return f"it has other masks, or none, in {', '.join(names)}" if names else None


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


# --- masks ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Masked:
    """What masks make of a file in its place, which has no source to be held against."""

    change: Change

    def why_not_opened(self, file: OpenFile) -> str | None:
        """Say what is still to be masked in an open file; None where nothing is.

        Raises:
            ValueError: columns that the file doesn't have.
        """
        change, leaves = self.change, file.leaves
        left = [".".join(leaf) for leaf in leaves if covering_name(leaf, change.drop)]
        if left:
            return f"it still has {', '.join(left)}"
        check = "" if change.hash_key is None else hash_key_check(change.hash_key)
        asked = MaskNote(
            frozenset(leaves[c] for c in leaves_of(leaves, change.null)),
            frozenset((leaves[c], check) for c in leaves_of(leaves, change.hashed)),
        )
        names = _masks_of(file, asked).lacks(asked)
        return f"it is not, or not so, masked in {', '.join(names)}" if names else None


def why_not_opened(
    place: Place, decryption: FileDecryptionProperties, expected: Masked
) -> str | None:
    """Say why a file under its own keys is not as expected; None where it is.

    Raises:
        ModcryptError: it can't be opened.
        ValueError: as `Masked`.
    """
    with place.open() as source:
        return expected.why_not_opened(OpenFile(source, _strict(decryption)))


def remade(
    place: Place, destination: Place | None, decryption: FileDecryptionProperties, change: Change,
    new: NewKeys | None,
) -> tuple[Shape, NewKeys]:  # fmt: skip
    """Give the shape and the keys that a file will have by a change; None for its own keys.

    Raises:
        ValueError, ModcryptError: as `mask_parquet`, before its first page.
    """
    with place.open() as source:
        file = OpenFile(source, _strict(decryption))
        choice = Choice(file, change)
        if new is None:
            new = NewKeys(as_it_was(file, choice.plan, destination), decryption)
    shown = [file.leaves[c] for c in choice.plan.shown]
    return Shape(file.metadata.num_rows, shown, choice.note), new


def _strict(decryption: FileDecryptionProperties) -> FileDecryptionProperties:
    return replace(decryption, check_footer_integrity=True)


def _masks_of(file: OpenFile, asked: MaskNote | None = None) -> MaskNote:
    """Give the masks that a file tells of, those that are asked for, if its statistics agree.

    Other tools copy pairs to files with other values: by the note alone these would pass for
    masked.
    """
    try:
        note = read_note(file.metadata)
    except FormatError:
        return MaskNote()
    if asked is not None:
        note = MaskNote(note.nulls & asked.nulls, note.hashed & asked.hashed)
    ordinal = {path: c for c, path in enumerate(file.leaves)}
    note = note.of(ordinal)
    named = {*note.nulls, *(path for path, _ in note.hashed)}
    plan = file.select(ordinal[path] for path in named)

    def agree(path: tuple[str, ...], fits: Callable[[ThriftStruct], bool]) -> bool:
        return all(fits(plan.chunks[r, ordinal[path]].meta_data) for r in plan.row_groups)

    return MaskNote(
        frozenset(path for path in note.nulls if agree(path, _is_null)),
        frozenset(one for one in note.hashed if agree(one[0], _is_hashed)),
    )


_HASH = re.compile(rb"[0-9a-f]{64}")


def _is_null(md: ThriftStruct) -> bool:
    """Tell whether a chunk has no values, as far as its statistics say."""
    statistics = md.statistics
    return md.num_values == 0 or (statistics is not None and statistics.null_count == md.num_values)


def _is_hashed(md: ThriftStruct) -> bool:
    """Tell whether a chunk may have no values but hashes, as far as its statistics say."""
    if _is_null(md):
        return True
    statistics = md.statistics
    bounds = () if statistics is None else (statistics.min_value, statistics.max_value)
    return bool(bounds) and all(_HASH.fullmatch(bound or b"") for bound in bounds)


# --- keys ----------------------------------------------------------------------------------------


class NewKeys:
    """The keys that files are to have, and how they are to be encrypted.

    Args:
        encryption: of the files.
        decryption: that opens them.
    """

    def __init__(self, encryption: Encryption, decryption: FileDecryptionProperties) -> None:
        self.encryption = encryption
        # Whatever readers put up with: here it says that the work is done.
        self._decryption = replace(
            decryption,
            on_missing_key="error",
            require_encrypted=True,
            check_footer_integrity=True,
        )

    @classmethod
    def of(cls, settings: Settings) -> NewKeys:
        """Give the keys of settings.

        Raises:
            ValueError, KeyRetrievalError: as `Settings.encryption`.
        """
        return cls(settings.encryption(), settings.decryption())

    def why_not(self, place: Place, expected: Shape | Masked | None = None) -> str | None:
        """Say why a file is not encrypted so, or is another one; None where it is the one.

        Args:
            place: of a file that is there.
            expected: what it must be.

        Raises:
            KmsUnavailableError: it can't be told.
            OSError: it can't be read.
            ValueError: as `Masked`.
        """
        try:
            return self._why_not(place, expected)
        except KmsUnavailableError:
            raise
        except PlaintextError:
            return "it is in plaintext"
        except ModcryptError as error:
            return f"it does not open with the new keys: {error}"

    def _why_not(self, place: Place, expected: Shape | Masked | None) -> str | None:
        with place.open() as source:
            file = OpenFile(source, self._decryption)
            file.select()  # finds all keys, and opens what they seal of the footer
            check_border(file.footer, self._decryption)
            why = None if expected is None else expected.why_not_opened(file)
        wanted = self._wanted()
        return (
            why
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
            return self.encryption.prefix_at(place)
        return self._wanted().aad_prefix

    def _why_not_keys(
        self, place: Place, file: OpenFile, wanted: FileEncryptionProperties
    ) -> str | None:
        everything = range(len(file.leaves))
        masters = _Masters(self.encryption, place)
        if fault := masters.why_not(None, file.footer.key_metadata):
            return f"its footer key is {fault}"
        given = isinstance(self.encryption, FileEncryptionProperties)
        if given and file.footer.footer_key != wanted.footer_key:
            return "its footer key is another one"
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
                if given and own[name].key != rule.key:
                    fault = "another one"
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
