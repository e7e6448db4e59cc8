"""Checks whether a destination is already up to date, so that jobs can be repeated.

No record is needed; it only caches the answer. modcrypt opens the destination with the keys that it
should have; the contents show whether an earlier run, or an earlier attempt at the same task, has
done the work.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, NamedTuple, TypeAlias

from modcrypt.errors import (
    FormatError,
    IntegrityError,
    KeyRetrievalError,
    KmsUnavailableError,
    ModcryptError,
    PlaintextError,
)
from modcrypt.io.places import Place
from modcrypt.io.sources import open_source_at
from modcrypt.keys import Key
from modcrypt.kms.keyed_encryption import KeyedEncryption
from modcrypt.kms.policy import Policy
from modcrypt.kms.recipients.recipient_encryption import RecipientEncryption
from modcrypt.parquet.crypto.ciphers import ColumnKey, assign_keys
from modcrypt.parquet.crypto.crypto_fields import check_border
from modcrypt.parquet.crypto.file_plan import OpenFile, ReadPlan
from modcrypt.parquet.crypto.footer_opening import Footer, read_plain
from modcrypt.parquet.crypto.properties import (
    ALGORITHMS,
    Encryption,
    FileDecryptionProperties,
    FileEncryptionProperties,
)
from modcrypt.parquet.format.idl import ThriftStruct
from modcrypt.parquet.format.mask_note import MaskNote, hash_key_check, read_note
from modcrypt.parquet.format.schema import covering_name, leaf_paths, leaves_of
from modcrypt.parquet.rewrite.changes import Change
from modcrypt.parquet.rewrite.file_rewrite import Choice, restore_properties
from modcrypt.pkmt1.external import find_material, read_store
from modcrypt.pkmt1.material import KeyMaterial, decode_metadata
from modcrypt.pkmt1.recipient_metadata import list_recipient_ids

MAX_COMPARED = 1000
"""Maximum number of compared files that are remembered, as far as their keys differ."""


@dataclass(frozen=True, slots=True)
class Difference:
    """The difference between an existing file and the expected result."""

    why: str  # the difference, as a clause about "it"
    of_encryption: bool = False  # whether the file is encrypted, but not as expected


@dataclass(frozen=True, slots=True)
class Shape:
    """The shape of a file, by which a destination is matched with its source."""

    rows: int
    leaves: list[tuple[str, ...]]
    # Marks of the chunks of each column; only for columns that are compared.
    marks: dict[tuple[str, ...], list[Mark]]
    masked: MaskNote | None = None  # masks of the columns; None if masks are not compared

    def find_difference(self, other: Shape) -> str | None:
        """Return how another file's shape differs from this one; None if it does not."""
        if other.rows != self.rows:
            return f"it has {other.rows} rows, but its source has {self.rows}"
        if other.leaves != self.leaves:
            return "it has other columns than its source"
        names = [".".join(path) for path, marks in self.marks.items() if other.marks[path] != marks]
        return f"it has other values than its source in {', '.join(names)}" if names else None

    def find_open_difference(self, file: OpenFile) -> str | None:
        """Return how the shape and masks of an open file differ; None if they do not."""
        everything = range(len(file.leaves))
        actual = Shape(
            file.metadata.num_rows, file.leaves, _marks_of(file, file.select(), everything)
        )
        if why := self.find_difference(actual):
            return why
        if self.masked is None:
            return None
        masks = _masks_of(file)
        names = dict.fromkeys(masks.lacks(self.masked) + self.masked.lacks(masks))
        return f"it has other masks, or none, in {', '.join(names)}" if names else None


def _read_plain_shape(place: Place) -> Shape:
    """Return the shape of a plaintext file."""
    with open_source_at(place) as source:
        metadata = read_plain(source).metadata
    leaves = leaf_paths(metadata.schema)
    marks = {
        path: [_mark(group.columns[c].meta_data) for group in metadata.row_groups]
        for c, path in enumerate(leaves)
    }
    return Shape(metadata.num_rows, leaves, marks)


def read_decrypted_shape(place: Place, decryption: FileDecryptionProperties) -> Shape:
    """Return the shape of a file after decryption, without columns that are left out."""
    with open_source_at(place) as source:
        file = OpenFile(source, decryption)
        plan = file.select()
        shown = plan.footer_leaves
    leaves = [file.leaves[c] for c in shown]
    return Shape(file.metadata.num_rows, leaves, _marks_of(file, plan, shown))


Mark: TypeAlias = "tuple[object, ...]"
"""The number of values of a chunk and its statistics, which encryption does not change."""


def _marks_of(
    file: OpenFile, plan: ReadPlan, columns: Iterable[int]
) -> dict[tuple[str, ...], list[Mark]]:
    """Return the marks of columns of an open file, as far as they have a key."""
    return {
        file.leaves[c]: [_mark(plan.chunks[r, c].meta_data) for r in plan.row_groups]
        for c in columns
        if plan.keep[c]
    }


def _mark(md: ThriftStruct) -> Mark:
    statistics = md.statistics
    if statistics is None:
        return (md.num_values,)
    return md.num_values, statistics.null_count, statistics.min_value, statistics.max_value


def _find_plaintext_difference(place: Place, shape: Shape | None) -> Difference | None:
    """Return why a file is not plaintext of this shape; None if it is."""
    try:
        actual = _read_plain_shape(place)
    except ModcryptError as error:
        return Difference(f"it is not a plaintext Parquet file: {error}")
    why = None if shape is None else shape.find_difference(actual)
    return None if why is None else Difference(why)


def find_difference(
    source: Place, target: Place, *, encryption: Encryption | None,
    decryption: FileDecryptionProperties | None, change: Change | None, in_place: bool,
) -> Difference | None:  # fmt: skip
    """Return how an existing destination differs from a job's result; None if it does not.

    `encryption` is None for plaintext or, with a change, for the file's own; `decryption` is None
    for a plaintext source. Raise ModcryptError, ValueError or OSError if the source can't be opened
    or changed this way.
    """
    new = None if encryption is None else NewKeys(encryption)
    if in_place:
        masked = None if change is None else ExpectedMasks(change)
        if new is not None:
            return new.find_difference(target, masked)
        if masked is not None and decryption is not None:
            with open_source_at(target) as opened:
                why = masked.find_open_difference(OpenFile(opened, _strict(decryption)))
            return None if why is None else Difference(why)
        return _find_plaintext_difference(target, None)
    _check_apart(source, target)
    before, after = source.modified(), target.modified()
    if before is not None and after is not None and after < before:
        return Difference("it is older than its source")
    if change is not None and decryption is not None:
        shape, new = _plan_change(source, target, decryption, change, new)
    elif decryption is not None:
        shape = read_decrypted_shape(source, decryption)
    else:
        shape = _read_plain_shape(source)
    if new is None:
        return _find_plaintext_difference(target, shape)
    return new.find_difference(target, shape)


def _check_apart(source: Place, destination: Place) -> None:
    """Raise OSError if a link makes a destination the same file as its source."""
    if source.resolve() == destination.resolve():
        raise OSError(
            errno.EINVAL,
            "destination is a link to the source; choose another destination",
            destination.path,
        )


# --- masks ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ExpectedMasks:
    """The expected masks of a file that is masked in place, without a source to compare with."""

    change: Change

    def find_open_difference(self, file: OpenFile) -> str | None:
        """Return what is still to be masked in an open file; None if nothing is.

        Raise ValueError if the change names columns that the file does not have.
        """
        change, leaves = self.change, file.leaves
        remaining = [".".join(leaf) for leaf in leaves if covering_name(leaf, change.drop)]
        if remaining:
            return f"it still has {', '.join(remaining)}"
        check = "" if change.hash_key is None else hash_key_check(change.hash_key)
        expected = MaskNote(
            frozenset(leaves[c] for c in leaves_of(leaves, change.null)),
            frozenset((leaves[c], check) for c in leaves_of(leaves, change.hashed)),
        )
        names = _masks_of(file, expected).lacks(expected)
        return f"columns not masked, or masked differently: {', '.join(names)}" if names else None


def _plan_change(
    place: Place, destination: Place, decryption: FileDecryptionProperties, change: Change,
    new: NewKeys | None,
) -> tuple[Shape, NewKeys]:  # fmt: skip
    """Return the shape and the keys of a file after a change; its own keys without new ones."""
    with open_source_at(place) as source:
        file = OpenFile(source, _strict(decryption))
        choice = Choice(file, change)
        if new is None:
            new = NewKeys(restore_properties(file, choice.plan, destination))
    shown = choice.plan.footer_leaves
    unchanged = [c for c in shown if c not in choice.masks and c not in choice.nulls]
    leaves = [file.leaves[c] for c in shown]
    marks = _marks_of(file, choice.plan, unchanged)
    return Shape(file.metadata.num_rows, leaves, marks, choice.note), new


def _strict(decryption: FileDecryptionProperties) -> FileDecryptionProperties:
    return replace(decryption, check_footer_integrity=True)


def _masks_of(file: OpenFile, expected: MaskNote | None = None) -> MaskNote:
    """Return the masks that a file notes, limited to `expected`, if its statistics agree.

    Other tools copy key-value metadata to files with other values; the note alone would make such
    files look masked.
    """
    try:
        note = read_note(file.metadata)
    except FormatError:
        return MaskNote()
    if expected is not None:
        note = MaskNote(note.nulls & expected.nulls, note.hashed & expected.hashed)
    ordinal = {path: c for c, path in enumerate(file.leaves)}
    note = note.restrict_to(ordinal)
    named = {*note.nulls, *(path for path, _ in note.hashed)}
    plan = file.select(ordinal[path] for path in named)

    def agree(path: tuple[str, ...], fits: Callable[[ThriftStruct], bool]) -> bool:
        return all(fits(plan.chunks[r, ordinal[path]].meta_data) for r in plan.row_groups)

    return MaskNote(
        frozenset(path for path in note.nulls if agree(path, _is_null)),
        frozenset(entry for entry in note.hashed if agree(entry[0], _is_hashed)),
    )


_HASH = re.compile(rb"[0-9a-f]{64}")


def _is_null(md: ThriftStruct) -> bool:
    """Return whether a chunk has only nulls, according to its statistics."""
    statistics = md.statistics
    return md.num_values == 0 or (statistics is not None and statistics.null_count == md.num_values)


def _is_hashed(md: ThriftStruct) -> bool:
    """Return whether a chunk may have only hashes and nulls, according to its statistics."""
    if _is_null(md):
        return True
    statistics = md.statistics
    bounds = () if statistics is None else (statistics.min_value, statistics.max_value)
    return bool(bounds) and all(_HASH.fullmatch(bound or b"") for bound in bounds)


# --- keys ----------------------------------------------------------------------------------------


class NewKeys:
    """The keys and the encryption that the destination files must have."""

    def __init__(self, encryption: Encryption) -> None:
        self.encryption = encryption
        if not isinstance(encryption, FileEncryptionProperties):
            encryption = encryption.for_check()
        self._wanted = encryption
        self._compared: dict[KeyFacts, str | None] = {}

    def find_difference(
        self, place: Place, expected: Shape | ExpectedMasks | None = None
    ) -> Difference | None:
        """Return how a file differs from the expected encryption or content; None if it does not.

        Raise KmsUnavailableError if the key service is unavailable, so the result is unknown.
        """
        try:
            return self._compare(place, expected)
        except KmsUnavailableError:
            raise
        except PlaintextError as error:
            if _find_plaintext_difference(place, None) is None:
                return Difference("it is not encrypted")
            return Difference(str(error), of_encryption=True)
        except (KeyRetrievalError, IntegrityError) as error:
            why = f"it can't be decrypted with the new keys: {error}"
            if isinstance(self.encryption, RecipientEncryption):
                why = "only its recipients can compare it; a record of the run skips finished files"
            return Difference(why, of_encryption=True)
        except ModcryptError as error:
            return Difference(f"it can't be opened: {error}")

    def _compare(self, place: Place, expected: Shape | ExpectedMasks | None) -> Difference | None:
        decryption = self._make_decryption(place)
        with open_source_at(place) as source:
            file = OpenFile(source, decryption)
            file.select()  # retrieves all keys and decrypts the column metadata
            check_border(file.footer.file_unique, decryption)
            why = None if expected is None else expected.find_open_difference(file)
        if why is not None:
            return Difference(why)
        how = self.compare_encryption(place, file)
        return None if how is None else Difference(how, of_encryption=True)

    def compare_encryption(self, place: Place, file: OpenFile) -> str | None:
        """Return how the encryption of an open file differs; None if it does not.

        Raise ModcryptError if external key material cannot be read, or lacks a key.
        """
        prefix = self._resolve_prefix(place)
        return self._compare_modes(file.footer, prefix) or self._compare_keys(place, file)

    def compare_facts(self, footer: Footer, prefix: bytes | None, facts: KeyFacts) -> str | None:
        """Return how a file differs from a policy; None if it does not.

        Args:
            footer: Open footer of the file.
            prefix: AAD prefix of the file by the policy.
            facts: Facts about the keys of the file.
        """
        return self._compare_modes(footer, prefix) or self._compare_key_facts(facts)

    def _make_decryption(self, place: Place) -> FileDecryptionProperties:
        """Return properties that are stricter than readers': success means the work is done."""
        strict: dict[str, Any] = {
            "require_encrypted": True,
            "algorithms": ALGORITHMS,
            "aad_prefix": self._resolve_prefix(place),
        }
        if self._wanted.signing_key is not None:
            strict["signed_by"] = (self._wanted.signing_key.verifier,)
        if isinstance(self.encryption, KeyedEncryption):
            return FileDecryptionProperties(key_retriever=self.encryption.retriever, **strict)
        wanted = self._wanted
        return FileDecryptionProperties(
            footer_key=wanted.footer_key, column_keys=wanted.column_keys, **strict
        )

    def _compare_modes(self, footer: Footer, prefix: bytes | None) -> str | None:
        wanted = self._wanted
        if footer.cipher.algorithm != wanted.encryption_algorithm:
            return f"its algorithm is {footer.cipher.algorithm}"
        if footer.plaintext_footer != wanted.plaintext_footer:
            return "its footer is " + ("in plaintext" if footer.plaintext_footer else "encrypted")
        stored = prefix is not None and wanted.store_aad_prefix
        if footer.aad_prefix != prefix or bool(footer.algorithm.aad_prefix) != stored:
            return "its AAD prefix, or whether it stores the prefix, differs"
        return None

    def _resolve_prefix(self, place: Place) -> bytes | None:
        if isinstance(self.encryption, KeyedEncryption):
            return self.encryption.prefix_at(place)
        return self._wanted.aad_prefix

    def _compare_keys(self, place: Place, file: OpenFile) -> str | None:
        if not isinstance(self.encryption, KeyedEncryption):
            return self._compare_explicit_keys(file)
        footer = file.footer
        if not file.metadata.row_groups:
            columns: dict[str, ColumnKey] = {}
        else:
            columns = file.own_keys(range(len(file.leaves)))
        plain = file.plaintext_columns(range(len(file.leaves)))
        facts = gather_key_facts(place, footer, file.leaves, plain, columns)
        return self._compare_key_facts(facts)

    def _compare_key_facts(self, facts: KeyFacts) -> str | None:
        """Compare the keys of a file; most files of a dataset have the same facts."""
        if facts not in self._compared:
            if len(self._compared) >= MAX_COMPARED:
                self._compared.clear()
            self._compared[facts] = self._compare_with_policy(facts)
        return self._compared[facts]

    def _compare_with_policy(self, facts: KeyFacts) -> str | None:
        assert isinstance(self.encryption, KeyedEncryption)
        policy = self.encryption.policy
        if fault := _compare_wrapping(policy, policy.footer_key, facts.footer):
            return f"its footer key is {fault}"
        if facts.recipients != {recipient.id for recipient in self.encryption.recipients}:
            return "its footer key is encrypted to other recipients"
        if fault := _compare_length(policy, facts.footer):
            return f"its footer key has {fault}"
        if not facts.has_rows:
            return None  # without row groups, no column has a key
        own = dict(facts.columns)
        if fault := self._compare_kinds(facts.leaves, facts.plain, own):
            return fault
        for leaf in facts.leaves:
            name = ".".join(leaf)
            given = covering_name(leaf, policy.key_of_column)
            if name not in own or given is None:
                continue
            key, master = own[name], policy.key_of_column[given]
            length = _compare_length(policy, key)
            fault = _compare_wrapping(policy, master, key) or (f"one of {length}" if length else "")
            if fault:
                return f"the key of column {name} is {fault}"
        return None

    def _compare_kinds(
        self, leaves: Sequence[tuple[str, ...]], plain: Collection[str], own: Collection[str]
    ) -> str | None:
        """Return which column is plaintext, or under the footer key or its own, unexpectedly."""
        try:
            rules = assign_keys(list(leaves), self._wanted)
        except ValueError as error:
            return str(error)
        for leaf, rule in zip(leaves, rules, strict=True):
            name = ".".join(leaf)
            if (name in plain, name in own) != (rule is None, rule is not None and rule.own):
                return f"column {name} is encrypted differently, or not encrypted"
        return None

    def _compare_explicit_keys(self, file: OpenFile) -> str | None:
        """Compare a file with keys that the caller gave, not a policy."""
        wanted = self._wanted
        if file.footer.footer_key != wanted.footer_key:
            return "it has another footer key"
        if file.footer.key_metadata != wanted.footer_key_metadata:
            return "its footer key has other key metadata"
        if not file.metadata.row_groups:
            return None
        own = file.own_keys(range(len(file.leaves)))
        plain = file.plaintext_columns(range(len(file.leaves)))
        if fault := self._compare_kinds(file.leaves, plain, own):
            return fault
        for leaf in file.leaves:
            name, given = ".".join(leaf), covering_name(leaf, wanted.column_keys)
            if name not in own or given is None:
                continue
            if own[name].key != wanted.column_keys[given]:
                return f"the key of column {name} is another one"
            if own[name].metadata != wanted.column_key_metadata.get(given):
                return f"the key of column {name} is stored with other key metadata"
        return None


class WrappedKey(NamedTuple):
    """How a data key is wrapped, and its length."""

    master_key_id: str
    double_wrapping: bool
    internal: bool
    bits: int | None


class KeyFacts(NamedTuple):
    """What decides whether the keys of a file are as a policy says.

    Attributes:
        has_rows: Whether the file has row groups.
        leaves: Paths of its leaf columns.
        plain: Dotted names of the plaintext columns.
        footer: The footer key.
        columns: The keys of columns that have one of their own, by dotted name.
        recipients: Ids of the recipients to whom the file is encrypted, too.
    """

    has_rows: bool
    leaves: tuple[tuple[str, ...], ...]
    plain: tuple[str, ...]
    footer: WrappedKey
    columns: tuple[tuple[str, WrappedKey], ...]
    recipients: frozenset[bytes] = frozenset()


def gather_key_facts(
    place: Place, footer: Footer, leaves: Sequence[tuple[str, ...]], plain: Iterable[str],
    columns: Mapping[str, ColumnKey],
) -> KeyFacts:  # fmt: skip
    """Return the facts about the keys of an open file.

    Args:
        place: Place of the file, for its external key material.
        footer: Footer of the file.
        leaves: Paths of its leaf columns.
        plain: Dotted names of the plaintext columns.
        columns: The keys of columns that have one of their own, by dotted name.

    Raises:
        ModcryptError: Key metadata is malformed, or external key material cannot be read.
    """
    read = cache(partial(read_store, place))
    return KeyFacts(
        bool(footer.metadata.row_groups),
        tuple(leaves),
        tuple(plain),
        _describe_key(footer.key_metadata, footer.footer_key, read),
        tuple((name, _describe_key(key.metadata, key.key, read)) for name, key in columns.items()),
        list_recipient_ids(footer.key_metadata or b""),
    )


def _describe_key(
    metadata: bytes | None, key: Key | None, read: Callable[[], dict[str, str]]
) -> WrappedKey:
    """Describe a key; `read` reads the external key material of the file."""
    decoded = decode_metadata(metadata or b"")
    internal = isinstance(decoded, KeyMaterial)
    material = decoded if isinstance(decoded, KeyMaterial) else find_material(read(), decoded)
    bits = None if key is None else 8 * len(key)
    return WrappedKey(material.master_key_id, material.double_wrapping, internal, bits)


def _compare_length(policy: Policy, key: WrappedKey) -> str | None:
    """Return how the length of a key differs from the policy; None if it does not."""
    bits = policy.data_key_length_bits
    return None if key.bits in (None, bits) else f"{key.bits} bits, not {bits}"


def _compare_wrapping(policy: Policy, master_key_id: str, key: WrappedKey) -> str | None:
    """Return how the wrapping of a key differs from the policy; None if it does not."""
    if key.master_key_id != master_key_id:
        return f"under the master key {key.master_key_id}, not {master_key_id}"
    if key.double_wrapping != policy.double_wrapping:
        return "not wrapped (single or double) as in the policy"
    if key.internal != policy.internal_key_material:
        return "not stored (internally or externally) as in the policy"
    return None
