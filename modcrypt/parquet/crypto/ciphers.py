"""Which key and which mode serve which module, and the AADs of one column chunk.

Column keys are resolved before the first page is touched: a missing key costs no work.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from modcrypt.aad import ModuleId, ModuleType, module_aad
from modcrypt.aead import CtrCipher, GcmCipher, TagError
from modcrypt.errors import (
    MAX_NAME,
    KeyAccessDeniedError,
    KeyMaterialError,
    KeyNotFoundError,
    KeyRetrievalError,
    ModcryptError,
    PlaintextError,
    TagMismatchError,
    TruncationError,
    printable,
)
from modcrypt.keys import Key, KeyLike, as_key
from modcrypt.parquet.crypto.properties import (
    GCM_CTR_V1,
    BoundRetriever,
    FileDecryptionProperties,
    FileEncryptionProperties,
)
from modcrypt.parquet.format.levels import Levels
from modcrypt.parquet.format.schema import covering_name
from modcrypt.tracebacks import hide_frames

__all__ = [
    "COLUMN_KEY",
    "FOOTER_KEY",
    "PLAINTEXT",
    "ChunkCipher",
    "ColumnKey",
    "FileCipher",
    "Question",
    "assign_keys",
    "check_kind",
    "check_names",
    "declares_plaintext",
    "find_key",
    "question_of",
]

PLAINTEXT, FOOTER_KEY, COLUMN_KEY = "plaintext", "footer key", "column key"
"""How a column is encrypted."""

Question: TypeAlias = "tuple[Key | None, bytes | None, str | None]"
"""The inputs that a key retriever's answer depends on."""


@dataclass(frozen=True, slots=True)
class ColumnKey:
    """How one column is encrypted: its key, and whether that key is its own or the footer's."""

    key: Key
    own: bool
    metadata: bytes | None = None


class FileCipher:
    """The keys of one file, bound to its file AAD and algorithm."""

    def __init__(self, file_aad: bytes, algorithm: str) -> None:
        self.file_aad = file_aad
        self.algorithm = algorithm
        self._gcm: dict[Key, GcmCipher] = {}
        self._ctr: dict[Key, CtrCipher] = {}

    def gcm(self, key: Key) -> GcmCipher:
        """Give the GCM cipher of a key, made once."""
        cipher = self._gcm.get(key)
        if cipher is None:
            cipher = self._gcm[key] = GcmCipher(key)
        return cipher

    def pages(self, key: Key) -> GcmCipher | CtrCipher:
        """Give the cipher of page bodies: CTR under AES_GCM_CTR_V1 (PME 4.2.2), else GCM."""
        if self.algorithm != GCM_CTR_V1:
            return self.gcm(key)
        cipher = self._ctr.get(key)
        if cipher is None:
            cipher = self._ctr[key] = CtrCipher(key)
        return cipher

    def seal(self, key: Key, module: ModuleId, plaintext: bytes) -> bytes:
        """Seal one metadata module, framing included."""
        return self.gcm(key).seal(plaintext, module_aad(self.file_aad, module))

    def open(self, key: Key, module: ModuleId, data: bytes | memoryview, hint: str = "") -> bytes:
        """Open one metadata module that fills `data` exactly.

        Raises:
            TruncationError: its length field and `data` disagree.
            TagMismatchError: it does not authenticate.
        """
        view = memoryview(data)
        size = len(view) - 4
        if size < GcmCipher.overhead - 4 or int.from_bytes(view[:4], "little") != size:
            raise TruncationError(
                f"{module}: its length field does not agree with the {len(view)} bytes it has"
            )
        try:
            return self.gcm(key).open(view, module_aad(self.file_aad, module))
        except TagError:
            raise TagMismatchError(module, hint) from None


class ChunkCipher:
    """The ciphers and AADs of one encrypted column chunk.

    The AADs of the four page modules are kept ready; data pages add their ordinal (PME 4.4.2).
    """

    __slots__ = (
        "column",
        "data",
        "data_header",
        "dictionary",
        "dictionary_header",
        "file",
        "header",
        "key",
        "levels",
        "page",
        "path",
        "row_group",
        "tag_hint",
    )

    def __init__(
        self, file: FileCipher, key: Key, row_group: int, column: int, path: str, hint: str = ""
    ) -> None:
        self.file, self.key, self.row_group, self.column = file, key, row_group, column
        self.path, self.tag_hint = path, hint
        self.levels: Levels | None = None  # what those in clear are held against
        self.header, self.page = file.gcm(key), file.pages(key)
        prefix, suffix = file.file_aad, module_aad(b"", self.id(ModuleType.COLUMN_METADATA))[1:]
        self.data = prefix + bytes((ModuleType.DATA_PAGE,)) + suffix
        self.data_header = prefix + bytes((ModuleType.DATA_PAGE_HEADER,)) + suffix
        self.dictionary = prefix + bytes((ModuleType.DICTIONARY_PAGE,)) + suffix
        self.dictionary_header = prefix + bytes((ModuleType.DICTIONARY_PAGE_HEADER,)) + suffix

    def apart(self) -> ChunkCipher:
        """Give the same with ciphers of its own, for another thread."""
        file = FileCipher(self.file.file_aad, self.file.algorithm)
        twin = ChunkCipher(file, self.key, self.row_group, self.column, self.path, self.tag_hint)
        twin.levels = self.levels
        return twin

    def id(self, module_type: ModuleType, page: int | None = None) -> ModuleId:
        """Give the address of one of the chunk's modules."""
        return ModuleId(module_type, self.row_group, self.column, page, self.path)

    def seal(self, module_type: ModuleType, plaintext: bytes) -> bytes:
        """Seal one of the chunk's metadata modules."""
        return self.file.seal(self.key, self.id(module_type), plaintext)

    def open(self, module_type: ModuleType, data: bytes | memoryview) -> bytes:
        """Open one of the chunk's metadata modules."""
        return self.file.open(self.key, self.id(module_type), data)


def assign_keys(
    leaves: list[tuple[str, ...]], properties: FileEncryptionProperties, *, checked: bool = False
) -> list[ColumnKey | None]:
    """Say for each leaf how it is encrypted; None is plaintext.

    Args:
        leaves: of the file.
        properties: keys by names of columns and groups.
        checked: whether `check_names` has seen these names.

    Raises:
        ValueError: the properties name columns that the file doesn't have, or by a name that
            fits several.
    """
    assert isinstance(properties.footer_key, Key)
    footer = ColumnKey(properties.footer_key, own=False)
    rules: dict[str, ColumnKey | None] = dict.fromkeys(properties.plaintext_columns)
    for name, key in properties.column_keys.items():
        rules[name] = ColumnKey(as_key(key), True, properties.column_key_metadata.get(name))
    if not checked:
        check_names(leaves, rules)
    names = [covering_name(path, rules) for path in leaves]
    return [footer if name is None else rules[name] for name in names]


def check_names(leaves: list[tuple[str, ...]], names: Collection[str]) -> None:
    """Check names of columns and groups against the leaves of a file; raises as `assign_keys`."""
    groups: dict[str, set[tuple[str, ...]]] = {}
    for path in leaves:
        for length in range(1, len(path) + 1):
            groups.setdefault(".".join(path[:length]), set()).add(path[:length])
    if unclear := sorted(name for name in names if len(groups.get(name, ())) > 1):
        raise ValueError(
            f"names that mean several columns, because some have dots: {', '.join(unclear)}; "
            "such columns can only be left under the footer key"
        )
    if unknown := sorted(set(names) - groups.keys()):
        known = ", ".join(printable(".".join(path), MAX_NAME) for path in leaves[:20])
        raise ValueError(
            f"columns that the file doesn't have: {', '.join(unknown)}; it has "
            f"{known}{', ...' * (len(leaves) > 20)}"
        )


def check_kind(properties: FileDecryptionProperties, leaf: tuple[str, ...], kind: str) -> None:
    """Check that a column is encrypted as the caller insists: by names, or by a policy.

    Args:
        properties: What the caller insists on, bound to the file.
        leaf: Path of the column.
        kind: How the column is encrypted: `PLAINTEXT`, `FOOTER_KEY` or `COLUMN_KEY`.

    Raises:
        PlaintextError: The column is in plaintext, or under the footer key instead of its own.
    """
    names, path = properties.require_encrypted, ".".join(leaf)
    if not isinstance(names, bool) and covering_name(leaf, names) is not None:
        if kind == PLAINTEXT:
            raise PlaintextError(f"column {path} is in plaintext, and must be encrypted")
        # Who holds the footer key alone could put a column of their own in its place.
        if kind == FOOTER_KEY and covering_name(leaf, properties.column_keys):
            raise PlaintextError(
                f"column {path} is encrypted with the footer key, and must be with its own"
            )
    accepted = kind == PLAINTEXT and names is False
    if isinstance(properties.key_retriever, BoundRetriever) and not accepted:
        properties.key_retriever.keys.check_kind(leaf, kind)


def declares_plaintext(properties: FileDecryptionProperties, leaf: tuple[str, ...]) -> bool:
    """Return whether the caller's policy leaves a column in plaintext."""
    retriever = properties.key_retriever
    return isinstance(retriever, BoundRetriever) and retriever.keys.declares_plaintext(leaf)


def question_of(
    properties: FileDecryptionProperties, given: Key | None, metadata: bytes | None, column: str
) -> Question:
    """Return what identifies a question to the key retriever, so that it is asked once.

    A retriever that is bound to the file judges which master key a column may be under, so another
    column with the same key metadata is another question.
    """
    bound = isinstance(properties.key_retriever, BoundRetriever)
    return given, metadata, column if bound else None


def find_key(
    properties: FileDecryptionProperties, given: Key | None, metadata: bytes | None, what: str,
    column: str | None = None,
) -> Key | None:  # fmt: skip
    """Give the key that the caller gave, or what the retriever has for the key metadata.

    Raises:
        KeyRetrievalError: the retriever failed; its own KeyRetrievalErrors pass through.
    """
    # Arrow C++ writes key metadata of no bytes where it has none: nothing to look up by.
    if given is not None or properties.key_retriever is None or not metadata:
        return given
    retriever = properties.key_retriever
    if isinstance(retriever, BoundRetriever):  # says itself what failed
        return _as_key(retriever(metadata, column), what)
    assert callable(retriever)
    # No local variable holds the answer.
    return _as_key(_guarded(lambda: retriever(metadata), what, column), what)


@hide_frames
def _as_key(answer: KeyLike | None, what: str) -> Key | None:
    try:
        return None if answer is None else as_key(answer)
    except (TypeError, ValueError) as error:
        raise KeyMaterialError(f"{what}: the key retriever's answer is no key: {error}") from None


T = TypeVar("T")


def _guarded(call: Callable[[], T], what: str, column: str | None) -> T:
    """Run the caller's callback; name the key it was asked for when it fails.

    The callback's own message may hold key material, so only its type is repeated.
    """
    try:
        return call()
    except ModcryptError:
        raise
    except LookupError as error:
        raise KeyNotFoundError(f"{what}: the key retriever knows no such key", column) from error
    except PermissionError as error:
        raise KeyAccessDeniedError(f"{what}: the key retriever was refused") from error
    except Exception as error:
        kind = type(error).__name__
        raise KeyRetrievalError(f"{what}: the key retriever failed with {kind}") from error
