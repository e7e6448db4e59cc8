"""Examine a file by its footer: compare how it is encrypted with what is declared."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Any

from modcrypt.errors import (
    AadPrefixError,
    FooterSignatureError,
    KeyDisabledError,
    KeyMaterialError,
    KeyNotFoundError,
    KeyRetrievalError,
    KmsUnavailableError,
    ModcryptError,
    PlaintextError,
    TagMismatchError,
    UnsupportedFormatError,
    list_names,
)
from modcrypt.io.places import Place
from modcrypt.io.sources import Source, open_source_at
from modcrypt.jobs.failures import describe_failure
from modcrypt.jobs.idempotence.key_comparison import ExternalMaterial, KeyFacts, gather_key_facts
from modcrypt.jobs.key_scan import parse_wrapped_version
from modcrypt.keys import fingerprint_key
from modcrypt.lake.erased_columns import ErasedColumns, find_open, has_recipients
from modcrypt.lake.erasure.erasures import DESTROYED, GONE, NOT_ERASED
from modcrypt.lake.files.file_policies import DatasetPolicies, is_encrypted, read_columns
from modcrypt.lake.files.file_states import FileState, KeyUse, State, name_recipient
from modcrypt.lake.files.lake_files import LakeFile
from modcrypt.lake.key_ages import KeyAges
from modcrypt.lake.spool import Memo
from modcrypt.parquet.crypto.ciphers import ColumnKey
from modcrypt.parquet.crypto.column_kinds import COLUMN_KEY, PLAINTEXT
from modcrypt.parquet.crypto.crypto_fields import check_border
from modcrypt.parquet.crypto.file_plan import OpenFile
from modcrypt.parquet.crypto.footer import Footer
from modcrypt.parquet.crypto.footer_keys import FooterKey, list_footer_keys, list_key_metadata
from modcrypt.parquet.crypto.footer_opening import read_plain
from modcrypt.parquet.crypto.properties import FileDecryptionProperties
from modcrypt.parquet.format.schema import leaf_paths
from modcrypt.pkmt1.material import (
    SHREDDED,
    KeyMaterial,
    KeyReference,
    split_metadata,
    try_decode_metadata,
)
from modcrypt.pkmt1.recipient_metadata import list_recipient_ids

_REASONS: Mapping[State, str] = {"not-erased": NOT_ERASED, "unreadable": DESTROYED}
"""Reasons of the states in which erased columns leave a file."""


@dataclass(frozen=True)
class FooterExamination:
    """The examination of the files of one dataset.

    Once the key service is unavailable, no further request is made: each would wait as long.
    """

    policies: DatasetPolicies
    ages: KeyAges
    _outages: list[KmsUnavailableError] = field(default_factory=list, init=False, repr=False)
    _keys: Memo[tuple[tuple[KeyUse, ...], KeyFacts]] = field(
        default_factory=Memo, init=False, repr=False
    )

    def run(self, file: LakeFile, opened: Source | None = None) -> FileState:
        """Return the state of a file, which may be open; errors about it are states, too."""
        place = self.policies.place_of(file.path)
        try:
            with nullcontext(opened) if opened else open_source_at(place, stamped=False) as source:
                return self._examine(place, source, file)
        except Exception as error:
            word, message = describe_failure(error)
            return FileState(
                path=file.path, size=file.size, state="unreadable", reason=word, message=message
            )

    def run_waiting(self, file: LakeFile) -> FileState:
        """Return the state of a file in the source folder, which must be plaintext."""
        assert self.policies.source is not None
        try:
            with open_source_at(
                self.policies.source.place.below(file.path), stamped=False
            ) as source:
                footer = read_plain(source)
        except Exception as error:
            word, message = describe_failure(error)
            return FileState(
                path=file.path, size=file.size, state="unreadable", reason=word,
                message=f"the source must have plaintext Parquet files: {message}",
            )  # fmt: skip
        return _describe_plaintext(file, footer)

    def _examine(self, place: Place, source: Source, file: LakeFile) -> FileState:
        if self._outages and is_encrypted(source):
            return self._refuse(source, file, "unreadable", self._outages[0])
        try:
            return self._open(place, source, file)
        except PlaintextError as error:
            return _examine_plaintext(source, file, error)
        except AadPrefixError as error:
            return self._refuse(source, file, "misplaced", error)
        except UnsupportedFormatError as error:
            return self._refuse(source, file, "other-policy", error)
        except KeyMaterialError as error:
            return self._refuse(source, file, "other-keys", error)
        except KeyRetrievalError as error:
            return self._refuse(source, file, "unreadable", error)

    def open_footer(
        self, place: Place, source: Source
    ) -> tuple[OpenFile, FileDecryptionProperties, str]:
        """Open a file with the declared AADs, or else with previous ones.

        Returns:
            The file, the properties that open it, and what of it is previous, if anything.

        Raises:
            ModcryptError: As `OpenFile`, with the declared AADs if the file has no other.
        """
        previous, refused = self.policies.dataset.previous, list[ModcryptError]()
        for kms_aad in (None, *previous.kms_aads):
            for template in (None, *previous.aad_prefixes):
                decryption = self.policies.opening(place, template, kms_aad=kms_aad)
                try:
                    file = OpenFile(source, decryption)
                    check_border(file.footer.file_unique, decryption)
                    return file, decryption, _describe_previous(template, kms_aad)
                except KeyMaterialError as error:  # another prefix does not help
                    refused.append(error)
                    break
                # A file may not store its prefix: then a tag or signature shows that it is another.
                except (AadPrefixError, TagMismatchError, FooterSignatureError) as error:
                    refused.append(error)
        raise refused[0]

    def _open(self, place: Place, source: Source, listed: LakeFile) -> FileState:
        file, _, previous = self.open_footer(place, source)
        kinds = file.find_kinds(range(len(file.leaves)))
        columns = ErasedColumns.find(self.policies, listed.path, file, kinds)
        try:
            own = _retrieve_keys(file, columns.others)
            columns.try_keys(partial(self._is_destroyed, place))
            own |= columns.open
        except KeyRetrievalError as error:
            refused: State = "other-keys" if isinstance(error, KeyMaterialError) else "unreadable"
            listed_keys = list_footer_keys(file.metadata, file.footer.key_metadata)
            uses = tuple(_list_uses(place, listed_keys))
            return self._refuse(source, listed, refused, error, uses)
        plain = [".".join(file.leaves[c]) for c, kind in kinds.items() if PLAINTEXT in kind]
        keys, facts = self._describe_keys(place, file, plain, own)
        facts = facts._replace(erased=tuple(columns.gone))
        state: State = "other-policy"
        message = previous
        if not previous:
            state, message = columns.judge(*self._compare(listed.path, keys, file, facts))
        return FileState(
            path=listed.path, size=listed.size, state=state, message=message, keys=keys,
            reason=_REASONS.get(state, ""), rows=file.metadata.num_rows, columns=len(file.leaves),
            encrypted_columns=len(file.leaves) - len(plain),
            data_keys=_fingerprint(file, own),
        )  # fmt: skip

    def find_erased(self, place: Place, path: str, file: OpenFile) -> list[str]:
        """Return the columns of an open file that are declared as erased, and whose keys are gone.

        Raises:
            KeyRetrievalError: A key is refused, or the service unavailable: it may return.
        """
        kinds = file.find_kinds(range(len(file.leaves)))
        columns = ErasedColumns.find(self.policies, path, file, kinds)
        columns.try_keys(partial(self._is_destroyed, place))
        return columns.gone

    def _is_destroyed(self, place: Place, key: FooterKey) -> bool:
        return any(map(self.ages.is_destroyed, _list_uses(place, [key])))

    def _describe_keys(
        self, place: Place, file: OpenFile, plain: Sequence[str], own: Mapping[str, ColumnKey]
    ) -> tuple[tuple[KeyUse, ...], KeyFacts]:
        """Return the keys of a file and facts about them, which most files of a KEK share."""

        def describe() -> tuple[tuple[KeyUse, ...], KeyFacts]:
            uses = tuple(_list_uses(place, _list_open_keys(file, own)))
            return uses, gather_key_facts(place, file.footer, file.leaves, plain, own)

        common = _find_common(file, plain, own)
        return describe() if common is None else self._keys.get(common, describe)

    def _compare(
        self, path: str, keys: Sequence[KeyUse], file: OpenFile, facts: KeyFacts
    ) -> tuple[State, str]:
        """Compare an open file with its policy, then with the rules for old keys."""
        policies, prefix = self.policies, file.properties.aad_prefix
        assert not callable(prefix)  # it is bound to the file
        columns = read_columns(file.footer, file.leaves)
        found = policies.compare(path, columns, file.footer, prefix, facts)
        if found.under_previous:
            return "old-keys", "its keys are under previous master keys"
        if found.difference:
            return "other-policy", found.difference
        old = self.ages.find_old(keys, policies.dataset.rotation)
        return ("old-keys", old) if old else ("declared", "")

    def _refuse(
        self, source: Source, file: LakeFile, state: State, error: ModcryptError,
        keys: tuple[KeyUse, ...] | None = None,
    ) -> FileState:  # fmt: skip
        """Return the state of a file that an error kept from being opened."""
        # Without its keys, list those that can be seen.
        assert source.place is not None
        if isinstance(error, KmsUnavailableError):
            self._outages.append(error)
        listed = list_key_metadata(source)[0]
        is_whole = self.policies.dataset.erasures.find(file.path) is not None
        if keys is None:
            keys = tuple(_list_uses(source.place, listed))
            destroyed = listed[0].metadata == SHREDDED or self.ages.is_destroyed(keys[0])
        else:  # of a file that is erased as a whole, destroyed keys raise no error
            destroyed = not is_whole and any(map(self.ages.is_destroyed, keys))
        closed = isinstance(error, KeyDisabledError | KeyNotFoundError)
        reason = DESTROYED if closed and destroyed else error.word
        found = FileState(
            path=file.path, size=file.size, state=state, reason=reason, message=str(error),
            keys=keys,
        )  # fmt: skip
        is_gone = is_whole and state == "unreadable" and reason in GONE
        return self._judge_rest(source, listed, found) if is_gone else found

    def _judge_rest(self, source: Source, keys: Sequence[FooterKey], state: FileState) -> FileState:
        """Return the state of a file that is refused; its footer may state the keys of columns."""
        # It is erased only if these keys are gone, too, nothing is in plaintext, and it has no
        # recipients, whose keys no key service destroys.
        to_recipients = has_recipients(keys[0].metadata)
        assert source.place is not None
        is_destroyed = partial(self._is_destroyed, source.place)
        try:
            still = find_open(self.policies, source, keys[1:], is_destroyed)
        except KeyRetrievalError as error:
            return replace(state, reason=error.word, message=str(error))
        if not (still or to_recipients):
            return state
        what = "its recipients open it" if to_recipients else f"columns open: {list_names(still)}"
        message = f"it is declared as erased, but {what}"
        return replace(state, state="not-erased", reason=NOT_ERASED, message=message)


def _describe_previous(template: str | None, kms_aad: str | None) -> str:
    """Return the message about a file with a previous AAD prefix or AAD for the key service."""
    if kms_aad is not None:
        return "its keys are bound to a previous kms_aad"
    if template is None:
        return ""
    bound = f"is the previous one, {template!r}" if template else "is missing"
    return f"its AAD prefix {bound}"


def _fingerprint(file: OpenFile, own: Mapping[str, ColumnKey]) -> bytes:
    footer = file.footer.footer_key
    keys = [*([] if footer is None else [footer]), *(key.key for key in own.values())]
    return b"".join(map(fingerprint_key, keys))


def _retrieve_keys(file: OpenFile, kinds: Mapping[int, set[str]]) -> dict[str, ColumnKey]:
    """Return the keys of all columns; raise KeyNotFoundError if one has no key metadata."""
    columns = [c for c, kind in kinds.items() if COLUMN_KEY in kind]
    found = file.own_keys(columns)
    for name in (".".join(file.leaves[c]) for c in columns):
        if name not in found:
            raise KeyNotFoundError(f"column {name} has no key metadata", name)
    return found


def _list_open_keys(file: OpenFile, own: Mapping[str, ColumnKey]) -> Iterable[FooterKey]:
    """Return the keys of an open file; further row groups may have other key metadata."""
    if len(file.metadata.row_groups) > 1:
        return list_footer_keys(file.metadata, file.footer.key_metadata)
    columns = [FooterKey(name, key.metadata) for name, key in own.items()]
    return [FooterKey(None, file.footer.key_metadata), *columns]


def _find_common(file: OpenFile, plain: Sequence[str], own: Mapping[str, ColumnKey]) -> Any:
    """Return all that files with the same keys share, but DEKs; None if more must be read."""
    # External key material must be read, and further row groups may have other key metadata. DEKs
    # in base64, as in what the others have in common, state no version of a master key.
    footer = file.footer
    if len(file.metadata.row_groups) != 1 or footer.footer_key is None:
        return None
    heads = [split_metadata(footer.key_metadata or b"")]
    heads += [split_metadata(key.metadata or b"") for key in own.values()]
    if None in heads:
        return None
    lengths = (len(footer.footer_key), *(len(key.key) for key in own.values()))
    return *heads, *lengths, *own, *plain, *file.leaves


def _examine_plaintext(source: Source, file: LakeFile, error: PlaintextError) -> FileState:
    """Return the state of a file in plaintext, or one whose encryption was tampered with."""
    try:
        footer = read_plain(source)
    except ModcryptError:
        return FileState(
            path=file.path, size=file.size, state="unreadable", reason=error.word,
            message=str(error),
        )  # fmt: skip
    return _describe_plaintext(file, footer)


def _describe_plaintext(file: LakeFile, footer: Footer) -> FileState:
    return FileState(
        path=file.path, size=file.size, state="plaintext", rows=footer.metadata.num_rows,
        columns=len(leaf_paths(footer.metadata.schema)), encrypted_columns=0,
    )  # fmt: skip


def _list_uses(place: Place, keys: Iterable[FooterKey]) -> Iterator[KeyUse]:
    """Yield the keys of a file, with what their key metadata states."""
    external = ExternalMaterial(place)
    for key in keys:
        material = try_decode_metadata(key.metadata)
        if isinstance(material, KeyReference):
            try:
                material = external.find(material)
            except (ModcryptError, OSError):
                material = None
        if isinstance(material, KeyMaterial):
            wrapped = material.master_key_id, material.master_wrapped, material.kek_id
            yield _make_use(key.column, *wrapped)
        else:
            yield KeyUse(column=key.column)
        if key.column is None:
            yield from _list_recipients(key.metadata)


def _list_recipients(metadata: bytes | None) -> Iterator[KeyUse]:
    """Yield the keys of the recipients that the key metadata of a footer lists."""
    with suppress(ModcryptError):  # it is malformed, which opening the file reports
        for id_ in sorted(list_recipient_ids(metadata or b"")):
            yield KeyUse(column=None, kek_id=name_recipient(id_))


@lru_cache(maxsize=1024)  # files that share a KEK share these
def _make_use(column: str | None, master_key_id: str, wrapped: str, kek_id: bytes | None) -> KeyUse:
    version = parse_wrapped_version(wrapped)
    return KeyUse(column, master_key_id, version, None if kek_id is None else kek_id.hex())
