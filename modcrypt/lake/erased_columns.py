"""The columns of an open file that are declared as erased: whether their keys are gone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from modcrypt.errors import KeyAccessDeniedError, KeyNotFoundError, ModcryptError, list_names
from modcrypt.io.sources import Source
from modcrypt.kms.key_tools import KeyTools
from modcrypt.lake.erasure.erasures import Erasure, is_gone
from modcrypt.lake.files.file_policies import DatasetPolicies
from modcrypt.lake.files.file_states import State
from modcrypt.parquet.crypto.ciphers import ColumnKey
from modcrypt.parquet.crypto.column_kinds import COLUMN_KEY
from modcrypt.parquet.crypto.file_plan import OpenFile
from modcrypt.parquet.crypto.footer_keys import FooterKey, key_uses
from modcrypt.pkmt1.material import SHREDDED
from modcrypt.pkmt1.recipient_metadata import decode_recipients


@dataclass(frozen=True)
class ErasedColumns:
    """The columns of a file that are declared as erased."""

    file: OpenFile
    kinds: Mapping[int, set[str]]  # how all its columns are encrypted, by their numbers
    erasures: Mapping[str, Erasure]  # the statements about its columns, by dotted name
    # Whether a statement says that the file is erased, and thus all its columns.
    is_whole: bool = False
    # Names of those whose keys are gone, after `try_keys`.
    gone: list[str] = field(default_factory=list)
    # Keys of those that open, by name, after `try_keys`.
    open: dict[str, ColumnKey] = field(default_factory=dict)

    @classmethod
    def find(
        cls, policies: DatasetPolicies, path: str, file: OpenFile, kinds: Mapping[int, set[str]]
    ) -> ErasedColumns:
        """Return the columns of a file that the dataset declares as erased, and that have data."""
        names = [".".join(leaf) for c, leaf in enumerate(file.leaves) if kinds.get(c)]
        erasures = policies.dataset.erasures
        if (whole := erasures.find(path)) is not None:
            return cls(file, kinds, dict.fromkeys(names, whole), is_whole=True)
        return cls(file, kinds, erasures.find_columns(path, names))

    @property
    def others(self) -> Mapping[int, set[str]]:
        """How the columns are encrypted that are not declared as erased."""
        if not self.erasures:
            return self.kinds
        return {c: kind for c, kind in self.kinds.items() if self._name(c) not in self.erasures}

    def _name(self, column: int) -> str:
        return ".".join(self.file.leaves[column])

    def try_keys(self, is_destroyed: Callable[[FooterKey], bool]) -> None:
        """Find out which keys are gone.

        Raises:
            KeyRetrievalError: A key is refused, or the service unavailable: it may return.
        """
        for column, kinds in self.kinds.items():
            if self.erasures and self._name(column) in self.erasures and COLUMN_KEY in kinds:
                self._try_key(column, is_destroyed)

    def _try_key(self, column: int, is_destroyed: Callable[[FooterKey], bool]) -> None:
        name = self._name(column)
        crypto = self.file.metadata.row_groups[0].columns[column].crypto_metadata
        metadata = crypto.ENCRYPTION_WITH_COLUMN_KEY.key_metadata
        try:
            own = self.file.own_keys([column])
            self.open.update(own)
            self.gone.extend([] if own else [name])
        except (KeyNotFoundError, KeyAccessDeniedError) as error:
            if not is_gone(error, is_destroyed=is_destroyed(FooterKey(name, metadata))):
                raise
            self.gone.extend([] if has_recipients(metadata) else [name])

    def judge(self, state: State, message: str) -> tuple[State, str]:
        """Return the state of the file, as it is without erasures, with what is erased."""
        if self.is_whole and not self.gone:
            return state, message
        if still := [name for name in self.erasures if name not in self.gone]:
            return "not-erased", f"columns declared as erased, but open: {list_names(still)}"
        return ("unreadable", "its columns are erased") if self.is_whole else (state, message)


def find_open(
    policies: DatasetPolicies, source: Source, keys: Iterable[FooterKey],
    is_destroyed: Callable[[FooterKey], bool],
) -> list[str]:  # fmt: skip
    """Return the columns that need no key, or whose keys open, as a footer in plaintext states.

    Raises:
        KeyRetrievalError: A key is refused, or the service unavailable: it may return.
    """
    tools = KeyTools(policies.client, kms_aad=policies.dataset.members.get("kms_aad", ""))
    retriever: Any = tools.decryption().key_retriever
    retrieve = retriever.for_file(source, False).retrieve
    found = [
        column.name for column in key_uses(source).columns or () if "plaintext" in column.under
    ]
    for key in keys:
        try:
            retrieve(key.metadata or SHREDDED, key.column)
            found.append(str(key.column))
        except (KeyNotFoundError, KeyAccessDeniedError) as error:
            if not is_gone(error, is_destroyed=is_destroyed(key)):
                raise
            found.extend([str(key.column)] if has_recipients(key.metadata) else [])
    return found


def has_recipients(metadata: bytes | None) -> bool:
    """Return whether recipients open a key, whatever becomes of its master key."""
    with suppress(ModcryptError):  # else nobody opens it
        return decode_recipients(metadata or b"") is not None
    return False
