"""Finding the keys of a file: those that the caller gave, and those that a key retriever returns.

Each key metadata is looked up once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from modcrypt.errors import (
    FormatError,
    KeyAccessDeniedError,
    KeyDisabledError,
    KeyMaterialError,
    KeyNotFoundError,
    KeyRetrievalError,
    KmsUnavailableError,
    ModcryptError,
)
from modcrypt.keys import Key, KeyLike, as_key
from modcrypt.parquet.crypto.properties import BoundRetriever, FileDecryptionProperties
from modcrypt.parquet.format.report import Report
from modcrypt.parquet.format.schema import Leaf, covering_name
from modcrypt.parquet.format.structs import EncryptionWithColumnKey
from modcrypt.runtime.tracebacks import hide_frames


class KeyAnswer(NamedTuple):
    """A key, or the reason why there is none."""

    key: Key | None
    why: str = ""  # reason in words
    word: str | None = None  # error code of the reason; None if a fault was reported instead
    message: str = ""  # message of the key retriever's error


def look_for_key(
    properties: FileDecryptionProperties, given: Key | None, metadata: bytes | None,
    column: str | None, report: Report,
) -> KeyAnswer:  # fmt: skip
    """Return a key, or why there is none; malformed key material is a fault of the file.

    `given` is the caller's key, `metadata` the file's key metadata, and `column` a dotted name,
    which is None for the footer key. Raise KeyRetrievalError if the report is strict, and the key
    retriever failed.
    """
    missing = "there is no footer key" if column is None else "there is no key for it"
    what = "footer key" if column is None else f"column {column}"
    try:
        key = _find_key(properties, given, metadata, what, column)
    except KeyMaterialError as error:
        report.add_error(error)
        why = "its key material is malformed, or differs from what is expected"
        return KeyAnswer(None, why, message=str(error))
    except KeyRetrievalError as error:
        if report.strict:
            raise
        why = str(error).removeprefix(f"{what}: ")
        if isinstance(error, KmsUnavailableError):
            report.add_warning(error.word, str(error))
        reason = _REASONS.get(error.word, missing)
        return KeyAnswer(None, f"{reason}: {why}", error.word, str(error))
    return KeyAnswer(key) if key is not None else KeyAnswer(None, missing, KeyNotFoundError.word)


_REASONS = {
    KeyAccessDeniedError.word: "access to its key is denied",
    KeyDisabledError.word: "its key cannot be used",
    KmsUnavailableError.word: "its key could not be retrieved",
    KeyRetrievalError.word: "its key could not be retrieved",
}


class ColumnKeys:
    """The keys of columns that have keys of their own; each key metadata is looked up once.

    `report` is about keys that are malformed, or belong to another column; `place` is the range of
    the footer's bytes, for findings.
    """

    def __init__(
        self, properties: FileDecryptionProperties, leaves: Sequence[Leaf], report: Report,
        place: tuple[int, int],
    ) -> None:  # fmt: skip
        self._properties, self._leaves, self._report = properties, leaves, report
        self._place = place
        # By what the answer depends on: key given, key metadata, and perhaps the column.
        self._answers: dict[tuple[Key | None, bytes | None, str | None], KeyAnswer] = {}
        # By column: the last path and key metadata that fit it, and the answer.
        self._known: dict[int, tuple[tuple[list[bytes], bytes | None], KeyAnswer]] = {}
        self._unavailable: KeyAnswer | None = None

    def find(self, column: int, own: EncryptionWithColumnKey) -> KeyAnswer:
        """Return the key of a column, or why there is none.

        `own` is the EncryptionWithColumnKey of one of the column's chunks. Raise FormatError if the
        report is strict, and `own` names another column; and KeyRetrievalError if the report is
        strict, and the key retriever failed.
        """
        asked = own.path_in_schema, own.key_metadata
        known = self._known.get(column)
        if known is not None and known[0] == asked:  # another row group
            return known[1]
        leaf = self._leaves[column]
        path = ".".join(leaf.path)
        fits = own.path_in_schema == leaf.names
        if not fits:
            error = FormatError(f"column {path}: its crypto metadata names another column")
            self._report.add_error(error, *self._place)
        answer = self._look_up(column, path, own.key_metadata)
        if fits:
            self._known[column] = asked, answer
        return answer

    def _look_up(self, column: int, path: str, metadata: bytes | None) -> KeyAnswer:
        given = self.get_given(column)
        # A retriever that is bound to the file checks which master key may protect a column, so
        # another column with the same key metadata is another lookup.
        bound = isinstance(self._properties.key_retriever, BoundRetriever)
        question = given, metadata, path if bound else None
        if question not in self._answers:
            if given is None and self._unavailable is not None:
                return self._unavailable  # another request would wait for the key service as long
            self._answers[question] = answer = look_for_key(
                self._properties, given, metadata, path, self._report
            )
            if answer.word == KmsUnavailableError.word:
                self._unavailable = answer
        return self._answers[question]

    @property
    def messages(self) -> list[str]:
        """The messages of the key retriever's errors."""
        return [answer.message for answer in self._answers.values() if answer.message]

    @property
    def is_unavailable(self) -> bool:
        """True if the key service was unavailable."""
        return self._unavailable is not None

    def get_given(self, column: int) -> Key | None:
        """Return the key that the caller gave for a column."""
        keys = self._properties.column_keys
        name = covering_name(self._leaves[column].path, keys)
        key = None if name is None else keys[name]
        assert key is None or isinstance(key, Key)
        return key


def _find_key(
    properties: FileDecryptionProperties, given: Key | None, metadata: bytes | None, what: str,
    column: str | None,
) -> Key | None:  # fmt: skip
    """Return the key that the caller gave, or the retriever's key for the key metadata."""
    # Key metadata may be empty (PME 4.3), as Arrow C++ writes it: there is nothing to look up.
    if given is not None or properties.key_retriever is None or not metadata:
        return given
    retriever = properties.key_retriever
    if isinstance(retriever, BoundRetriever):  # its errors already name the key
        return _check_answer(retriever(metadata, column), what)
    assert callable(retriever)
    # No local variable holds the key, so that no traceback frame shows it.
    return _check_answer(_call_retriever(retriever, metadata, what, column), what)


@hide_frames
def _check_answer(answer: KeyLike | None, what: str) -> Key | None:
    try:
        return None if answer is None else as_key(answer)
    except (TypeError, ValueError) as error:
        raise KeyMaterialError(
            f"{what}: the key retriever did not return a valid key: {error}"
        ) from None


def _call_retriever(
    retriever: Callable[[bytes], KeyLike | None], metadata: bytes, what: str, column: str | None
) -> KeyLike | None:
    """Call the key retriever; if it fails, raise an error that names the requested key."""
    # The retriever's own message may contain key material, so the error repeats only its type.
    try:
        return retriever(metadata)
    except ModcryptError:
        raise
    except LookupError as error:
        raise KeyNotFoundError(
            f"{what}: the key retriever does not know this key", column
        ) from error
    except PermissionError as error:
        raise KeyAccessDeniedError(f"{what}: the key retriever was denied access") from error
    except Exception as error:
        kind = type(error).__name__
        raise KeyRetrievalError(f"{what}: the key retriever failed with {kind}") from error
