"""The recipients of files: `list_recipients`, `add_recipients` and `remove_recipients`.

Listing needs no key, and repeats what the files state; nothing authenticates it. Both changes write
a copy of a file with a new footer over the file; pages stay the same bytes. Data keys stay, too:
anyone who could open a file may have kept them. With `new_recipients`, the removal encrypts every
page again, under fresh keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from modcrypt.errors import KeyMaterialError, KeyNotFoundError
from modcrypt.io.places import Place
from modcrypt.io.sources import Source, open_source_at
from modcrypt.jobs.engine import FileResult, Job, run_job
from modcrypt.jobs.file_changes import replace_file
from modcrypt.keys import as_key, hide_keys
from modcrypt.kms.recipients.file_recipients import FileRecipients
from modcrypt.kms.recipients.identity_retriever import IdentityKeys
from modcrypt.kms.recipients.recipient import Recipient, check_recipients
from modcrypt.kms.recipients.recipient_encryption import RecipientEncryption
from modcrypt.kms.signing.signing_keys import SigningKey
from modcrypt.module_ids import ALGORITHMS
from modcrypt.parquet.crypto.file_plan import OpenFile
from modcrypt.parquet.crypto.footer_keys import (
    Change,
    list_key_metadata,
    new_tail,
    refuse_lost_signature,
)
from modcrypt.parquet.crypto.properties import (
    AnyDecryption,
    BoundRetriever,
    FileDecryptionProperties,
    as_decryption,
)
from modcrypt.parquet.datasets.discovery import list_files
from modcrypt.parquet.rewrite.rekey import rekey_in_place
from modcrypt.pkmt1.key_info import key_info
from modcrypt.pkmt1.material import KeyMaterial, decode_metadata
from modcrypt.pkmt1.recipient_metadata import (
    MAX_RECIPIENTS,
    RecipientMaterial,
    decode_recipients,
    replace_recipients,
)
from modcrypt.runtime.former_names import accept_former_names


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedRecipients(FileResult):
    """The result of a change of recipients for one file.

    Attributes:
        path: Path of the file.
        result: `"changed"`; `"rotated"`, changed and encrypted again; `"current"`, nothing to do;
            or an error code.
        recipients: Number of recipients afterwards.
        message: Message of the error.
        lost_signature: Whether the file was signed by its writer, and no longer is.
    """

    recipients: int = 0
    lost_signature: bool = False

    @property
    def failed(self) -> bool:
        """True if an error left the file unchanged."""
        return self.result not in ("changed", "rotated", "current")


@hide_keys
@accept_former_names(where="source", threads="jobs")
def add_recipients(
    source: Any,
    recipients: Iterable[Recipient],
    decryption: AnyDecryption,
    *,
    signing_key: SigningKey | None = None,
    filesystem: Any = None,
    jobs: int | None = None,
    progress: Callable[[ChangedRecipients, int], object] | None = None,
) -> list[ChangedRecipients]:
    """Let further recipients open a file, or all files of folders; no page changes.

    A file that fails is not changed, and the run continues with the others.

    Args:
        source: Path or URL of a file or a folder, or a list of them.
        recipients: Recipients to add; those that a file has already are skipped.
        decryption: Properties, or Settings, with an identity that opens the files. A file without
            recipients whose keys a key service wraps also opens with that service.
        signing_key: Key that signed the files, which signs those again whose signature would else
            be lost; with `signed_by` in the properties, these are refused without it.
        filesystem: The pyarrow or fsspec filesystem of `source`.
        jobs: Number of files processed concurrently, 4 by default.
        progress: Function called in the calling thread with each result and the number of files.

    Raises:
        FileNotFoundError: `source` does not exist.
        ValueError, TypeError: An argument has a wrong value or type.
    """
    change = partial(_add, check_recipients(recipients))
    return _run(change, source, decryption, signing_key, filesystem, jobs, progress)


@hide_keys
@accept_former_names(where="source", threads="jobs")
def remove_recipients(
    source: Any,
    ids: Iterable[bytes],
    decryption: AnyDecryption,
    *,
    new_recipients: Iterable[Recipient] = (),
    signing_key: SigningKey | None = None,
    filesystem: Any = None,
    jobs: int | None = None,
    progress: Callable[[ChangedRecipients, int], object] | None = None,
) -> list[ChangedRecipients]:
    """Remove recipients from a file, or from all files of folders.

    A removed recipient can't open the changed file, but may have kept the old one, or its data
    keys, which also open the changed file. Pass `new_recipients` to replace the data keys.

    Args:
        source, decryption, signing_key, filesystem, jobs, progress: As for `add_recipients`.
        ids: Ids of the recipients to remove, as in `Recipient.id`.
        new_recipients: All recipients that remain. With these, every page is encrypted again under
            fresh keys. A file does not contain the public keys of its recipients, only their ids.

    Raises:
        FileNotFoundError, ValueError, TypeError: As `add_recipients`.
    """
    removed, to = frozenset(ids), tuple(new_recipients)
    if not removed:
        raise ValueError("no recipients to remove; pass their ids")
    remaining = check_recipients(to) if to else None
    change = partial(_remove, removed, remaining)
    return _run(change, source, decryption, signing_key, filesystem, jobs, progress)


def _run(
    change: Callable[[_OpenedFile], ChangedRecipients], source: Any, decryption: AnyDecryption,
    signing_key: SigningKey | None,
    filesystem: Any, jobs: int | None,
    progress: Callable[[ChangedRecipients, int], object] | None,
) -> list[ChangedRecipients]:  # fmt: skip
    # Never encrypt or sign a forgery again: check the footer even if the caller waived that.
    properties = replace(
        as_decryption(decryption), check_footer_integrity=True, require_encrypted=True,
        on_missing_key="error",
    )  # fmt: skip

    def process(place: Place) -> ChangedRecipients:
        place.check_writable()
        with open_source_at(place) as opened:
            return change(_OpenedFile(place, opened, properties, signing_key))

    job = Job(process, ChangedRecipients.of_failure)
    return list(run_job(job, list_files(source, filesystem), jobs=jobs, progress=progress))


class _OpenedFile:
    """A file whose recipients are to change."""

    def __init__(
        self, place: Place, source: Source, properties: FileDecryptionProperties,
        signing_key: SigningKey | None,
    ) -> None:  # fmt: skip
        if signing_key is not None:  # it signs again only what it had signed
            properties = replace(properties, signed_by=(signing_key.verifier,))
        self.place, self.source, self.properties = place, source, properties
        self.signing_key = signing_key
        # No page is opened, so any page algorithm is acceptable.
        self.file = OpenFile(source, replace(properties, accept_algorithms=ALGORITHMS))
        self.key_metadata: bytes = self.file.footer.key_metadata or b""
        self.file_aad = self.file.footer.cipher.file_aad
        self.material = decode_recipients(self.key_metadata)

    @property
    def ids(self) -> tuple[bytes, ...]:
        """Ids of the recipients."""
        wraps = () if self.material is None else self.material.recipients or ()
        return tuple(wrap.id for wrap in wraps)

    @property
    def is_wrapped_by_service(self) -> bool:
        """True if a key service wraps the footer key, too."""
        try:
            return isinstance(decode_metadata(self.key_metadata), KeyMaterial)
        except KeyMaterialError:
            return False

    @property
    def keys(self) -> BoundRetriever | None:
        """Retriever of the file's keys."""
        retriever = self.file.properties.key_retriever
        return retriever if isinstance(retriever, BoundRetriever) else None

    def get_kek(self) -> FileRecipients:
        """Return the KEK that an identity opened; raise KeyNotFoundError if none did."""
        keys = None if self.keys is None else self.keys.keys
        kek = keys.kek if isinstance(keys, IdentityKeys) else None
        if kek is None:
            raise KeyNotFoundError(
                "only an identity that opens the file can add recipients to those that it has; "
                "pass one, or encrypt the file again for all recipients with rekey"
            )
        return kek

    def write_footer(self, change: Change, recipients: int) -> ChangedRecipients:
        """Replace the file by a copy with a new footer."""
        properties = replace(self.properties, accept_algorithms=ALGORITHMS)
        if (tail := new_tail(self.source, properties, change, self.signing_key)) is None:
            return self.describe("current", recipients)
        refuse_lost_signature(self.properties, self.place.address, lost=tail.lost_signature)
        replace_file(self.place, self.source, tail.data, keep=tail.start)
        return self.describe("changed", recipients, lost_signature=tail.lost_signature)

    def describe(
        self, result: str, recipients: int, *, lost_signature: bool = False
    ) -> ChangedRecipients:
        """Return a result."""
        return ChangedRecipients(
            path=self.place.listed_name, result=result, recipients=recipients,
            lost_signature=lost_signature,
        )  # fmt: skip


def _add(recipients: Sequence[Recipient], opened: _OpenedFile) -> ChangedRecipients:
    new = [recipient for recipient in recipients if recipient.id not in opened.ids]
    count = len(opened.ids) + len(new)
    if count > MAX_RECIPIENTS:
        raise KeyMaterialError(f"a file has at most {MAX_RECIPIENTS} recipients")
    if not new:
        return opened.describe("current", count)
    if opened.material is None:
        return opened.write_footer(_share_with(tuple(new), opened), count)
    wraps = opened.get_kek().wrap_kek(new, opened.file_aad)
    material = replace(opened.material, recipients=(*(opened.material.recipients or ()), *wraps))
    return opened.write_footer(_replace_footer_part(material), count)


def _replace_footer_part(material: RecipientMaterial) -> Change:
    def change(metadata: bytes, column: str | None) -> bytes:
        return metadata if column is not None else replace_recipients(metadata, material)

    return change


def _share_with(recipients: tuple[Recipient, ...], opened: _OpenedFile) -> Change:
    """Return the change that wraps all keys of a file for its first recipients."""
    if not opened.is_wrapped_by_service or opened.keys is None:
        raise KeyMaterialError(
            "the file has no recipients, and no key service wraps its keys inside the file; "
            "encrypt it again for recipients with rekey"
        )
    keys, shared = opened.keys, FileRecipients.create(recipients)

    def change(metadata: bytes, column: str | None) -> bytes:
        if (answer := keys(metadata, column)) is None:
            raise KeyNotFoundError("a key of the file is missing", column)
        key = as_key(answer)
        if column is None:
            return replace_recipients(metadata, shared.wrap_footer_key(key, opened.file_aad))
        return replace_recipients(metadata, shared.wrap_column_key(key))

    return change


def _remove(
    removed: frozenset[bytes], remaining: tuple[Recipient, ...] | None, opened: _OpenedFile
) -> ChangedRecipients:
    left = [id_ for id_ in opened.ids if id_ not in removed]
    if remaining is not None:
        return _rotate(remaining, left, opened)
    if len(left) == len(opened.ids):
        return opened.describe("current", len(left))
    if not left and not opened.is_wrapped_by_service:
        raise KeyMaterialError(
            "nobody could open the file without these recipients; add others first, or delete it"
        )
    assert opened.material is not None
    wraps = tuple(w for w in opened.material.recipients or () if w.id not in removed)
    material = replace(opened.material, recipients=wraps) if wraps else None
    if material is None:
        return opened.write_footer(lambda metadata, _: replace_recipients(metadata, None), 0)
    return opened.write_footer(_replace_footer_part(material), len(left))


def _rotate(
    remaining: tuple[Recipient, ...], left: Sequence[bytes], opened: _OpenedFile
) -> ChangedRecipients:
    """Encrypt the whole file again, with fresh keys for the remaining recipients."""
    if {recipient.id for recipient in remaining} != set(left):
        raise KeyMaterialError(
            "the new recipients must be exactly those that remain; the file lists "
            f"{', '.join(id_.hex() for id_ in left[:5]) or 'none'}"
        )
    if opened.is_wrapped_by_service:
        raise KeyMaterialError(
            "a key service wraps the file's keys, too; use rekey with its policy and the recipients"
        )
    footer = opened.file.footer
    encryption = RecipientEncryption(
        recipients=remaining,
        plaintext_columns=opened.file.plaintext_columns(range(len(opened.file.leaves))),
        aad_prefix=footer.aad_prefix,
        options={
            "encryption_algorithm": footer.cipher.algorithm,
            "plaintext_footer": footer.plaintext_footer,
            "store_aad_prefix": footer.stored_prefix is not None,
            "signing_key": opened.signing_key,
        },
    )
    lost = footer.signature is not None and opened.signing_key is None
    refuse_lost_signature(opened.properties, opened.place.address, lost=lost)
    rekey_in_place(opened.source, opened.place, opened.properties, encryption)
    return opened.describe("rotated", len(left), lost_signature=lost)


@dataclass(frozen=True, slots=True)
class ListedRecipient:
    """One recipient of a file.

    Attributes:
        id: Id of the recipient, in hex.
        kind: Kind of its public key.
    """

    id: str
    kind: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedRecipients(FileResult):
    """The recipients of one file.

    Attributes:
        path: Path of the file.
        result: `"listed"`, or an error code.
        message: Message of the error.
        recipients: Recipients that the file lists.
        master_key_id: Id of the master key that wraps the footer key, too; None if none does.
    """

    recipients: tuple[ListedRecipient, ...] = field(default=())
    master_key_id: str | None = None

    @property
    def failed(self) -> bool:
        """True if the file could not be read."""
        return self.result != "listed"


@accept_former_names(where="source")
def list_recipients(source: Any, *, filesystem: Any = None) -> Iterator[ListedRecipients]:
    """Yield the recipients of a file, or of all files of folders.

    Args:
        source: Path or URL of a file or a folder, or a list of them.
        filesystem: The pyarrow or fsspec filesystem of `source`.

    Raises:
        FileNotFoundError: `source` does not exist.
    """
    return run_job(Job(_list_file, ListedRecipients.of_failure), list_files(source, filesystem))


def _list_file(place: Place) -> ListedRecipients:
    with open_source_at(place) as source:
        metadata = list_key_metadata(source)[0][0].metadata or b""
    material = decode_recipients(metadata)
    wraps = () if material is None else material.recipients or ()
    return ListedRecipients(
        path=place.listed_name,
        result="listed",
        recipients=tuple(ListedRecipient(wrap.id.hex(), wrap.kind) for wrap in wraps),
        master_key_id=key_info(metadata).master_key_id,
    )
