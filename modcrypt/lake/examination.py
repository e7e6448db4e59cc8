"""Examine a file by its footer: compare how it is encrypted with what is declared."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from modcrypt.errors import (
    AadPrefixError,
    KeyDisabledError,
    KeyMaterialError,
    KeyNotFoundError,
    KeyRetrievalError,
    KmsUnavailableError,
    ModcryptError,
    PlaintextError,
    UnsupportedFormatError,
)
from modcrypt.io.places import Place
from modcrypt.io.sources import Source, open_source_at
from modcrypt.jobs.failures import describe_failure
from modcrypt.jobs.key_scan import parse_wrapped_version
from modcrypt.jobs.listing import File
from modcrypt.lake.file_policies import DatasetPolicies, read_columns, read_plain_columns
from modcrypt.lake.file_states import FileState, KeyUse, State
from modcrypt.lake.key_ages import KeyAges
from modcrypt.parquet.crypto.crypto_fields import check_border
from modcrypt.parquet.crypto.file_plan import OpenFile
from modcrypt.parquet.crypto.footer_keys import FooterKey, list_footer_keys, list_key_metadata
from modcrypt.parquet.crypto.footer_opening import read_plain
from modcrypt.pkmt1.external import find_material, read_store
from modcrypt.pkmt1.material import SHREDDED, KeyMaterial, KeyReference, try_decode_metadata


@dataclass(frozen=True)
class FooterExamination:
    """The examination of the files of one dataset.

    Args:
        policies: Policies of the files.
        ages: Ages of the master keys of the key service.

    Once the key service is unavailable, no further request is made: each would wait as long.
    """

    policies: DatasetPolicies
    ages: KeyAges
    _outages: list[KmsUnavailableError] = field(default_factory=list, init=False, repr=False)

    def run(self, file: File) -> FileState:
        """Return the state of a file; errors about it are states, too."""
        path = self.policies.path_of(file.place)
        try:
            with open_source_at(file.place, file.name) as source:
                state = self._examine(file.place, source, path)
        except Exception as error:
            word, message = describe_failure(error)
            state = FileState(path=path, state="unreadable", reason=word, message=message)
        return replace(state, size=file.size)

    def _examine(self, place: Place, source: Source, path: str) -> FileState:
        """Try the declared AAD prefix first, then the previous ones."""
        if self._outages and _is_encrypted(source):
            return self._refuse(source, path, "unreadable", self._outages[0])
        misplaced: FileState | None = None
        for template in (None, *self.policies.dataset.previous.aad_prefixes):
            try:
                return self._open(place, source, path, template)
            except PlaintextError as error:
                return _examine_plaintext(source, path, error)
            except AadPrefixError as error:
                misplaced = misplaced or self._refuse(source, path, "misplaced", error)
            except UnsupportedFormatError as error:
                return self._refuse(source, path, "other-policy", error)
            except KeyMaterialError as error:
                return self._refuse(source, path, "other-keys", error)
            except KeyRetrievalError as error:
                return self._refuse(source, path, "unreadable", error)
        assert misplaced is not None
        return misplaced

    def _open(self, place: Place, source: Source, path: str, template: str | None) -> FileState:
        decryption = self.policies.opening(place, template)
        file = OpenFile(source, decryption)
        keys = tuple(_list_uses(place, list_footer_keys(file.metadata, file.footer.key_metadata)))
        try:
            _retrieve_keys(file, keys)
        except KeyRetrievalError as error:
            state: State = "other-keys" if isinstance(error, KeyMaterialError) else "unreadable"
            return self._refuse(source, path, state, error, keys)
        check_border(file.footer.file_unique, decryption)
        facts = _count(file)
        found = FileState(path=path, state="declared", keys=keys, **facts)
        if template is not None:
            message = f"its AAD prefix is the previous one, {template!r}"
            return replace(found, state="other-policy", message=message, previous_prefix=template)
        return self._compare(found, place, file)

    def _compare(self, state: FileState, place: Place, file: OpenFile) -> FileState:
        """Compare an open file with its policy, then with the rules for old keys."""
        policies = self.policies
        policy = policies.policy(state.path, read_columns(file.footer, file.leaves))
        why = policies.new_keys(policy).compare_encryption(place, file)
        if why is not None and policies.dataset.previous.master_keys:
            previous = policies.previous_policy(policy)
            if policies.new_keys(previous).compare_encryption(place, file) is None:
                message = "its keys are under previous master keys"
                return replace(state, state="old-keys", message=message)
        if why is not None:
            return replace(state, state="other-policy", message=why)
        if old := self.ages.find_old(state.keys, policies.dataset.rotation):
            return replace(state, state="old-keys", message=old)
        return state

    def _refuse(
        self, source: Source, path: str, state: State, error: ModcryptError,
        keys: tuple[KeyUse, ...] | None = None,
    ) -> FileState:  # fmt: skip
        """Return the state of a file that an error kept from being opened.

        Without its keys, list those that can be seen.
        """
        assert source.place is not None
        if isinstance(error, KmsUnavailableError):
            self._outages.append(error)
        listed = list_key_metadata(source)[0]
        keys = tuple(_list_uses(source.place, listed)) if keys is None else keys
        destroyed = listed[0].metadata == SHREDDED or any(map(self.ages.is_destroyed, keys))
        closed = isinstance(error, KeyDisabledError | KeyNotFoundError)
        reason = "destroyed" if closed and destroyed else error.word
        return FileState(path=path, state=state, reason=reason, message=str(error), keys=keys)


def _retrieve_keys(file: OpenFile, uses: Sequence[KeyUse]) -> None:
    """Retrieve the keys of all columns; raise KeyNotFoundError if one has no key metadata."""
    found = file.own_keys(range(len(file.leaves) if file.metadata.row_groups else 0))
    for name in (use.column for use in uses if use.column is not None):
        if name not in found:
            raise KeyNotFoundError(f"column {name} has no key metadata", name)


def _is_encrypted(source: Source) -> bool:
    try:
        list_key_metadata(source)
    except PlaintextError:
        return False
    return True


def _examine_plaintext(source: Source, path: str, error: PlaintextError) -> FileState:
    """Return the state of a file in plaintext, or one whose encryption was tampered with."""
    try:
        metadata = read_plain(source).metadata
    except ModcryptError:
        return FileState(path=path, state="unreadable", reason=error.word, message=str(error))
    columns = len(read_plain_columns(source).leaves)
    return FileState(
        path=path, state="plaintext", rows=metadata.num_rows, columns=columns, encrypted_columns=0
    )


def _count(file: OpenFile) -> dict[str, Any]:
    plaintext = len(file.plaintext_columns(range(len(file.leaves))))
    return {
        "rows": file.metadata.num_rows,
        "columns": len(file.leaves),
        "encrypted_columns": len(file.leaves) - plaintext,
    }


def _list_uses(place: Place, keys: list[FooterKey] | Iterator[FooterKey]) -> Iterator[KeyUse]:
    """Yield the keys of a file, with what their key metadata states."""
    store: dict[str, str] | None = None
    for key in keys:
        material = try_decode_metadata(key.metadata)
        if isinstance(material, KeyReference):
            try:
                store = read_store(place) if store is None else store
                material = find_material(store, material)
            except (ModcryptError, OSError):
                material = None
        yield _make_use(key.column, material if isinstance(material, KeyMaterial) else None)


def _make_use(column: str | None, material: KeyMaterial | None) -> KeyUse:
    if material is None:
        return KeyUse(column=column)
    return KeyUse(
        column=column,
        master_key_id=material.master_key_id,
        version=parse_wrapped_version(material.master_wrapped),
        kek_id=None if material.kek_id is None else material.kek_id.hex(),
    )
