"""Keys and ciphers for each module of a file, and the AADs of one column chunk.

Column keys are resolved before the first page is processed, so a missing key wastes no work.
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
"""The ways in which a column can be encrypted."""

Question: TypeAlias = "tuple[Key | None, bytes | None, str | None]"
"""The inputs that a key retriever's answer depends on."""


@dataclass(frozen=True, slots=True)
class ColumnKey:
    """The key of one encrypted column, and whether it is the column's own key or the footer key."""

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
        """Return the GCM cipher of a key, created on first use."""
        cipher = self._gcm.get(key)
        if cipher is None:
            cipher = self._gcm[key] = GcmCipher(key)
        return cipher

    def page_cipher(self, key: Key) -> GcmCipher | CtrCipher:
        """Return the cipher of page bodies: CTR under AES_GCM_CTR_V1 (PME 4.2.2), else GCM."""
        if self.algorithm != GCM_CTR_V1:
            return self.gcm(key)
        cipher = self._ctr.get(key)
        if cipher is None:
            cipher = self._ctr[key] = CtrCipher(key)
        return cipher

    def seal(self, key: Key, module: ModuleId, plaintext: bytes) -> bytes:
        """Encrypt one metadata module, including its framing."""
        return self.gcm(key).seal(plaintext, module_aad(self.file_aad, module))

    def open(self, key: Key, module: ModuleId, data: bytes | memoryview, hint: str = "") -> bytes:
        """Decrypt one metadata module that fills `data` exactly.

        Args:
            key: Key of the module.
            module: Address of the module.
            data: Bytes of the module, including its framing.
            hint: Possible cause, added to the error for a wrong tag.

        Raises:
            TruncationError: The module's length field and `data` disagree.
            TagMismatchError: The module does not authenticate.
        """
        view = memoryview(data)
        size = len(view) - 4
        if size < GcmCipher.overhead - 4 or int.from_bytes(view[:4], "little") != size:
            raise TruncationError(
                f"{module}: its length field does not match the {len(view)} bytes it has"
            )
        try:
            return self.gcm(key).open(view, module_aad(self.file_aad, module))
        except TagError:
            raise TagMismatchError(module, hint) from None


class ChunkCipher:
    """The ciphers and AADs of one encrypted column chunk.

    The AADs of the four page modules are computed once; data pages add their ordinal (PME 4.4.2).
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
        self.levels: Levels | None = None  # against which plaintext levels are checked
        self.header, self.page = file.gcm(key), file.page_cipher(key)
        prefix, suffix = file.file_aad, module_aad(b"", self.id(ModuleType.COLUMN_METADATA))[1:]
        self.data = prefix + bytes((ModuleType.DATA_PAGE,)) + suffix
        self.data_header = prefix + bytes((ModuleType.DATA_PAGE_HEADER,)) + suffix
        self.dictionary = prefix + bytes((ModuleType.DICTIONARY_PAGE,)) + suffix
        self.dictionary_header = prefix + bytes((ModuleType.DICTIONARY_PAGE_HEADER,)) + suffix

    def copy_for_thread(self) -> ChunkCipher:
        """Return a copy with separate cipher objects, for another thread."""
        file = FileCipher(self.file.file_aad, self.file.algorithm)
        twin = ChunkCipher(file, self.key, self.row_group, self.column, self.path, self.tag_hint)
        twin.levels = self.levels
        return twin

    def id(self, module_type: ModuleType, page: int | None = None) -> ModuleId:
        """Return the address of one of the chunk's modules."""
        return ModuleId(module_type, self.row_group, self.column, page, self.path)

    def seal(self, module_type: ModuleType, plaintext: bytes) -> bytes:
        """Encrypt one of the chunk's metadata modules."""
        return self.file.seal(self.key, self.id(module_type), plaintext)

    def open(self, module_type: ModuleType, data: bytes | memoryview) -> bytes:
        """Decrypt one of the chunk's metadata modules."""
        return self.file.open(self.key, self.id(module_type), data)


def assign_keys(
    leaves: list[tuple[str, ...]], properties: FileEncryptionProperties, *, checked: bool = False
) -> list[ColumnKey | None]:
    """Return the key of each leaf; None for plaintext.

    Args:
        leaves: Paths of the file's leaves.
        properties: Keys by names of columns and groups.
        checked: Whether `check_names` has already accepted these names.

    Raises:
        ValueError: The properties name a column that the file does not have, or use a name that
            matches several columns.
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
    """Raise if a name matches no column or group of a file, or several.

    Raises:
        ValueError: As for `assign_keys`.
    """
    groups: dict[str, set[tuple[str, ...]]] = {}
    for path in leaves:
        for length in range(1, len(path) + 1):
            groups.setdefault(".".join(path[:length]), set()).add(path[:length])
    if ambiguous := sorted(name for name in names if len(groups.get(name, ())) > 1):
        raise ValueError(
            f"names match several columns because column names contain dots: "
            f"{', '.join(ambiguous)}; omit them, so that the footer key encrypts these columns"
        )
    if unknown := sorted(set(names) - groups.keys()):
        known = ", ".join(printable(".".join(path), MAX_NAME) for path in leaves[:20])
        raise ValueError(
            f"the file does not have these columns: {', '.join(unknown)}; it has "
            f"{known}{', ...' * (len(leaves) > 20)}"
        )


def check_kind(properties: FileDecryptionProperties, leaf: tuple[str, ...], kind: str) -> None:
    """Raise unless a column is encrypted as the caller's names or policy require.

    Args:
        properties: Requirements of the caller, bound to the file.
        leaf: Path of the column.
        kind: How the column is encrypted: `PLAINTEXT`, `FOOTER_KEY` or `COLUMN_KEY`.

    Raises:
        PlaintextError: The column is plaintext, or encrypted with the footer key instead of its
            own key.
    """
    names, path = properties.require_encrypted, ".".join(leaf)
    if not isinstance(names, bool) and covering_name(leaf, names) is not None:
        if kind == PLAINTEXT:
            raise PlaintextError(f"column {path} is plaintext, but must be encrypted")
        # Anyone who holds only the footer key could replace it with a forged column.
        if kind == FOOTER_KEY and covering_name(leaf, properties.column_keys):
            raise PlaintextError(
                f"column {path} is encrypted with the footer key, but must have its own key"
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
    """Return the inputs of a key lookup, so that each lookup runs only once.

    A retriever that is bound to the file checks which master key may protect a column, so another
    column with the same key metadata is another lookup.
    """
    bound = isinstance(properties.key_retriever, BoundRetriever)
    return given, metadata, column if bound else None


def find_key(
    properties: FileDecryptionProperties, given: Key | None, metadata: bytes | None, what: str,
    column: str | None = None,
) -> Key | None:  # fmt: skip
    """Return the key that the caller gave, or the retriever's key for the key metadata.

    Args:
        properties: Properties with the key retriever.
        given: Key that the caller gave; None for none.
        metadata: Key metadata from the file.
        what: Name of the key for error messages.
        column: Dotted name of the column; None for the footer key.

    Raises:
        KeyRetrievalError: The retriever failed; its own KeyRetrievalErrors pass through.
    """
    # Arrow C++ writes empty key metadata if it has none, so there is nothing to look up.
    if given is not None or properties.key_retriever is None or not metadata:
        return given
    retriever = properties.key_retriever
    if isinstance(retriever, BoundRetriever):  # its errors already name the key
        return _check_answer(retriever(metadata, column), what)
    assert callable(retriever)
    # No local variable holds the key, so that no traceback frame shows it.
    return _check_answer(_call_retriever(lambda: retriever(metadata), what, column), what)


@hide_frames
def _check_answer(answer: KeyLike | None, what: str) -> Key | None:
    try:
        return None if answer is None else as_key(answer)
    except (TypeError, ValueError) as error:
        raise KeyMaterialError(
            f"{what}: the key retriever did not return a valid key: {error}"
        ) from None


T = TypeVar("T")


def _call_retriever(call: Callable[[], T], what: str, column: str | None) -> T:
    """Call the key retriever; if it fails, raise an error that names the requested key.

    The retriever's own message may contain key material, so the error repeats only its type.
    """
    try:
        return call()
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
