"""The keys of all files of a dataset in one object: each file gets what is declared for it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

from modcrypt.errors import KeyNotFoundError, ModcryptError
from modcrypt.io.places import Place
from modcrypt.io.sources import Source
from modcrypt.keys import FileKeys, KeyLike
from modcrypt.kms.recipients.file_recipients import PrivateKey
from modcrypt.kms.recipients.identity_retriever import open_also
from modcrypt.lake.files.file_policies import DatasetPolicies
from modcrypt.parquet.crypto.path_prefix import require_place
from modcrypt.parquet.crypto.properties import FileDecryptionProperties


class ErasedParts(Protocol):
    """The erased files and columns of a dataset: see `modcrypt.lake.erased_files.ErasedFiles`."""

    def find_erased(self, places: Iterable[Place]) -> set[str]:
        """Return the paths of those files that are erased."""

    def is_erased(self, place: Place) -> bool:
        """Return whether a file is erased."""

    def has_erased_columns(self, place: Place) -> bool:
        """Return whether columns of a file are erased, and nothing else is missing."""

    def must_open(self, place: Place, column: str) -> bool:
        """Return whether a column without its key is an error, whatever else may be missing."""


def declared_decryption(
    policies: DatasetPolicies, *, master_key_ids: Collection[str] = (),
    identities: tuple[PrivateKey, ...] = (), exactly: bool = True,
    erased: ErasedParts | None = None, **properties: Any,
) -> FileDecryptionProperties:  # fmt: skip
    """Return the properties that open every file of a dataset, each as declared.

    `properties` are further arguments of `FileDecryptionProperties`; see `DeclaredKeys`.
    """
    demands: dict[str, Any] = {
        "accept_algorithms": policies.algorithms,
        "signed_by": policies.writers,
        "seal": policies.required_seal,
    }
    keys = DeclaredKeys(policies, tuple(master_key_ids), identities, exactly, erased)
    return FileDecryptionProperties(**{**demands, **properties, "key_retriever": keys})


@dataclass(frozen=True)
class DeclaredKeys:
    """A key retriever that opens each file of a dataset as declared."""

    policies: DatasetPolicies
    # Ids of further master keys to accept, although they are not declared.
    master_key_ids: Collection[str] = ()
    identities: tuple[PrivateKey, ...] = ()  # identities that open the files, too
    # Whether each key must be under the master key that is declared for its use; else any that the
    # declaration has for the file may protect anything, to change its keys.
    exactly: bool = True
    erased: ErasedParts | None = None  # what readers leave out; None to leave out nothing

    def find_erased(self, places: Iterable[Place]) -> set[str]:
        """Return the paths of those files that readers of the dataset leave out."""
        return set() if self.erased is None else self.erased.find_erased(places)

    def is_erased(self, place: Place) -> bool:
        """Return whether readers of the dataset leave out a file."""
        return self.erased is not None and self.erased.is_erased(place)

    def properties_of(
        self, source: Source, given: FileDecryptionProperties
    ) -> FileDecryptionProperties:
        """Return the declared properties of a file, with what the caller demands in addition.

        Raise ValueError as `DatasetPolicies.reading`, or the file is outside the dataset.
        """
        place = require_place(source.place)
        declared = replace(
            self._properties_at(place, source),
            on_missing_key=given.on_missing_key,
            check_footer_integrity=given.check_footer_integrity,
        )
        erased = self.erased if given.on_missing_key == "error" else None
        if erased is not None and erased.has_erased_columns(place):
            declared = replace(declared, on_missing_key="null")
        if given.require_encrypted is not True:
            declared = replace(declared, require_encrypted=given.require_encrypted)
        if given.aad_prefix is not None:
            declared = replace(declared, aad_prefix=given.aad_prefix)
        accepted = [a for a in given.accept_algorithms if a in self.policies.algorithms]
        if accepted and set(accepted) < set(declared.accept_algorithms):
            declared = replace(declared, accept_algorithms=accepted)
        if given.signed_by and set(declared.signed_by) >= set(given.signed_by):
            declared = replace(declared, signed_by=given.signed_by)
        elif given.signed_by and not declared.signed_by:
            declared = replace(declared, signed_by=given.signed_by, seal=given.seal)
        opened = open_also(declared, self.identities)
        if self.erased is None or given.on_missing_key == "error":
            return opened
        must_open = partial(self.erased.must_open, place)
        return replace(opened, key_retriever=_Demanding(opened.key_retriever, must_open))

    def for_file(self, source: Source, lenient: bool) -> FileKeys:
        """Return the retriever of one file's keys; see `KmsKeyRetriever.for_file`."""
        declared = self.properties_of(source, FileDecryptionProperties())
        retriever: Any = declared.key_retriever
        keys: FileKeys = retriever.for_file(source, lenient)
        return keys

    def _properties_at(self, place: Place, source: Source) -> FileDecryptionProperties:
        """Return the declared properties; if the columns are needed and closed, nothing opens."""
        policies = self.policies
        if policies.find_listed(place) is None:
            raise ValueError(f"{place.address} is not in the dataset {policies.dataset.name}")
        path, columns = policies.path_of(place), None
        ids = {*self.master_key_ids, *policies.dataset.previous.master_keys}
        if not self.exactly:
            return policies.opening(place, master_key_ids=ids)
        if policies.dataset.needs_columns:
            opening = open_also(policies.opening(place, master_key_ids=ids), self.identities)
            try:
                columns = policies.open_columns(source, opening)
            except ModcryptError as error:
                # Opening it again reports the error as for any file, but must not succeed.
                return replace(opening, key_retriever=_Refusal(error))
        return policies.reading(path, columns, ids)


@dataclass(frozen=True)
class _Demanding:
    """A key retriever whose missing keys of some columns are errors."""

    retriever: Any
    must_open: Callable[[str], bool]

    def for_file(self, source: Source, lenient: bool) -> _DemandedKeys:
        """Return the retriever of one file's keys."""
        return _DemandedKeys(self.retriever.for_file(source, lenient), self.must_open)


@dataclass(frozen=True)
class _DemandedKeys:
    keys: Any
    must_open: Callable[[str], bool]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.keys, name)

    def check_missing(self, columns: Iterable[str]) -> None:
        for column in filter(self.must_open, columns):
            raise KeyNotFoundError(
                f'column {column} is erased; pass on_erased="skip" to read nulls', column
            )


@dataclass(frozen=True)
class _Refusal:
    """A key retriever that repeats an error."""

    error: ModcryptError

    def __call__(self, key_metadata: bytes, column: str | None = None) -> KeyLike | None:
        """Raise the error."""
        raise self.error
