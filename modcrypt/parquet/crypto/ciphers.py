"""Keys and ciphers for each module of a file, and the AADs of one column chunk.

Column keys are resolved before the first page is processed, so a missing key wastes no work.
"""

from __future__ import annotations

from collections.abc import Collection
from struct import Struct
from typing import Final, NamedTuple

from modcrypt.aad import MAX_ORDINAL, ChunkAads, module_aad
from modcrypt.aead import GCM_OVERHEAD, CtrCipher, GcmCipher, ModuleCipher
from modcrypt.errors import TagError, TagMismatchError, TruncationError
from modcrypt.keys import Key, as_key
from modcrypt.module_ids import GCM_CTR_V1, ModuleId, ModuleType
from modcrypt.parquet.crypto.properties import FileEncryptionProperties
from modcrypt.parquet.format.idl import ThriftStruct
from modcrypt.parquet.format.modules import too_many_pages_error
from modcrypt.parquet.format.schema import Leaf, ambiguous_names, covering_name, leaves_of


class ColumnKey(NamedTuple):
    """The key of one encrypted column, and whether it is the column's own key or the footer key."""

    key: Key
    own: bool
    metadata: bytes | None = None


def check_length(module: ModuleId, stored: bytes | memoryview) -> None:
    """Raise TruncationError if a GCM module is too short or its length does not match (PME 5.1)."""
    if not _is_framed(stored):
        raise _length_error(module, len(stored))


def _is_framed(stored: bytes | memoryview) -> bool:
    size = len(stored) - 4
    return size >= GCM_OVERHEAD - 4 and _length(stored)[0] == size


_length: Final = Struct("<I").unpack_from


def _length_error(module: ModuleId, size: int) -> TruncationError:
    return TruncationError(f"{module}: its length field does not match the {size} bytes it has")


class FileCipher:
    """The keys of one file, bound to its file AAD and algorithm."""

    def __init__(self, file_aad: bytes, algorithm: str) -> None:
        self.file_aad = file_aad
        self.algorithm = algorithm
        # By identity, because comparing keys takes as long as encrypting a page. The ciphers keep
        # the keys alive.
        self._gcm: dict[int, GcmCipher] = {}
        self._ctr: dict[int, CtrCipher] = {}
        self._last: GcmCipher | None = None  # chunks often share a key

    def gcm(self, key: Key) -> GcmCipher:
        """Return the GCM cipher of a key, created on first use (PME 4.2.1)."""
        last = self._last
        if last is not None and last.has_key(key):
            return last
        place = id(key)
        cipher = self._gcm.get(place)
        if cipher is None:
            cipher = self._gcm[place] = GcmCipher(key)
        self._last = cipher
        return cipher

    def page_cipher(self, key: Key, gcm: GcmCipher) -> ModuleCipher:
        """Return the cipher of page bodies: CTR under AES_GCM_CTR_V1 (PME 4.2.2), else `gcm`."""
        if self.algorithm != GCM_CTR_V1:
            return gcm
        cipher = self._ctr.get(id(key))
        if cipher is None:
            cipher = self._ctr[id(key)] = CtrCipher(key)
        return cipher

    def encrypt(self, key: Key, module: ModuleId, plaintext: bytes) -> bytes:
        """Encrypt one metadata module, including its framing."""
        return self.gcm(key).encrypt(plaintext, module_aad(self.file_aad, module))

    def decrypt(self, key: Key, module: ModuleId, data: bytes | memoryview) -> bytes:
        """Decrypt one metadata module that fills `data` exactly, including its framing.

        Raise TruncationError if the module's length field and `data` disagree; and TagMismatchError
        if the module does not authenticate.
        """
        check_length(module, data)
        try:
            return self.gcm(key).decrypt(data, module_aad(self.file_aad, module))
        except TagError:
            raise TagMismatchError(module) from None


class ChunkCipher:
    """The ciphers and AADs of one encrypted column chunk."""

    __slots__ = (
        "_aads",
        "column",
        "file",
        "header",
        "key",
        "level_facts",
        "page",
        "path",
        "row_group",
        "tag_hint",
    )

    def __init__(
        self, file: FileCipher, key: Key, row_group: int, column: int, path: str, hint: str = "",
        aads: ChunkAads | None = None,
    ) -> None:  # fmt: skip
        self.file, self.key, self.row_group, self.column = file, key, row_group, column
        self.path, self.tag_hint = path, hint
        # The column and its metadata, against which plaintext levels are checked.
        self.level_facts: tuple[Leaf, ThriftStruct] | None = None
        self.header = file.gcm(key)
        self.page = file.page_cipher(key, self.header)
        self._aads = aads or ChunkAads(file.file_aad, row_group, column)

    def copy_for_thread(self, file: FileCipher | None = None) -> ChunkCipher:
        """Return a copy with separate cipher objects, for another thread.

        `file` is that thread's cipher for the file, perhaps with another algorithm for pages; None
        creates one. Threads share GCM ciphers, which keep no state: then this is no copy.
        """
        if self.page is self.header and (file or self.file).algorithm == self.file.algorithm:
            return self
        file = file or FileCipher(self.file.file_aad, self.file.algorithm)
        assert file.file_aad == self.file.file_aad
        twin = ChunkCipher(
            file, self.key, self.row_group, self.column, self.path, self.tag_hint, self._aads
        )
        twin.level_facts = self.level_facts
        return twin

    def id(self, module_type: ModuleType, page: int | None = None) -> ModuleId:
        """Return the address of one of the chunk's modules."""
        return ModuleId(module_type, self.row_group, self.column, page, self.path)

    def page_aads(self, is_dictionary: bool, ordinal: int) -> tuple[bytes, bytes]:
        """Return the AADs of a page's header and body (PME 4.4.2).

        The ordinal counts the chunk's data pages; its dictionary has none. Raise LimitError if the
        chunk has more pages than ordinals can number.
        """
        if is_dictionary:
            header = self._aads.of_type(ModuleType.DICTIONARY_PAGE_HEADER)
            return header, self._aads.of_type(ModuleType.DICTIONARY_PAGE)
        if ordinal > MAX_ORDINAL:
            raise too_many_pages_error(f"row group {self.row_group}, column {self.path}")
        return self._aads.of_page(ordinal)

    def encrypt(self, module_type: ModuleType, plaintext: bytes) -> bytes:
        """Encrypt one of the chunk's metadata modules."""
        return self.header.encrypt(plaintext, self._aads.of_type(module_type))

    def decrypt(self, module_type: ModuleType, data: bytes | memoryview) -> bytes:
        """Decrypt one of the chunk's metadata modules; raise the errors of `FileCipher.decrypt`.

        This runs per column chunk, so the module's address is made only for an error.
        """
        if not _is_framed(data):
            raise _length_error(self.id(module_type), len(data))
        try:
            return self.header.decrypt(data, self._aads.of_type(module_type))
        except TagError:
            raise TagMismatchError(self.id(module_type)) from None


def assign_keys(
    leaves: list[tuple[str, ...]], properties: FileEncryptionProperties, *, checked: bool = False
) -> list[ColumnKey | None]:
    """Return the key of each leaf; None for plaintext.

    `checked` skips `check_names`, which has already accepted the names. Raise ValueError if the
    properties name a column that the file does not have, or use a name that matches several
    columns.
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
    """Raise ValueError if a name matches no column or group of a file, or several."""
    if ambiguous := ambiguous_names(leaves, names):
        raise ValueError(
            f"names match several columns because column names contain dots: "
            f"{', '.join(ambiguous)}; omit them, so that the footer key encrypts these columns"
        )
    leaves_of(leaves, names)
