"""A footer as far as it can be seen: with all keys, with some, with wrong ones or with none.

Reading a file stops at the first thing that is not as the caller insists on; looking at one goes
on with what is left and says what stopped. Nothing here decides whether a file may be trusted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from modcrypt.aad import MAX_ORDINAL, module_aad
from modcrypt.aead import GCM_OVERHEAD, GcmCipher, TagError
from modcrypt.errors import (
    AadPrefixError,
    FormatError,
    KeyNotFoundError,
    KeyRetrievalError,
    KmsUnavailableError,
    ModcryptError,
    PlaintextError,
    TruncationError,
    UnsupportedFormatError,
)
from modcrypt.io.storage import Source
from modcrypt.keys import Key
from modcrypt.parquet.crypto.ciphers import ChunkCipher, FileCipher, Question, find_key, question_of
from modcrypt.parquet.crypto.footer import (
    FOOTER,
    EncryptedFooter,
    has_encrypted_chunks,
    open_column_metadata,
    open_footer,
)
from modcrypt.parquet.crypto.properties import ALGORITHMS, FileDecryptionProperties, bound
from modcrypt.parquet.format.byte_map import State
from modcrypt.parquet.format.framing import MAGIC_ENCRYPTED, SIGNATURE_SIZE, Tail, read_tail
from modcrypt.parquet.format.idl import ThriftStruct, decode, struct_end
from modcrypt.parquet.format.schema import Leaf, covering_name, leaf_elements

__all__ = ["ChunkView", "FooterView", "view_chunks", "view_footer"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FooterView:
    """What is known of a footer.

    Attributes:
        tail: the file's last bytes.
        struct_end: where in them FileCryptoMetaData, or a plaintext footer, ends.
        union: the file's EncryptionAlgorithm, None where it names none.
        key_metadata: of the footer key.
        metadata: FileMetaData; None where it is sealed and there is no key that opens it.
        encrypted: whether something in the file is.
        authenticated: whether the footer's tag was verified.
        state: of what authenticates the footer: "fault" where it does not with the key at hand,
            "unchecked" where something else stood in the way.
        unbound: whether it was opened without any AAD, as DuckDB seals it.
        properties: keys for this file; None where there are none.
        cipher: what modules are opened with; None without keys.
        footer_key: where there is one.
        signed_otherwise: whether its signature is parquet-go/parquet-go's, which no other reader
            verifies.
        padding: zero bytes after the sealed footer's struct, as parquet-java has them.
        reasons: what stood in the way, in words.
        unavailable: Whether the key service was.
    """

    tail: Tail = field(repr=False)
    struct_end: int
    union: ThriftStruct | None = field(default=None, repr=False)
    key_metadata: bytes | None = field(default=None, repr=False)
    metadata: ThriftStruct | None = field(default=None, repr=False)
    encrypted: bool = True
    authenticated: bool = False
    state: State = "locked"
    unbound: bool = False
    properties: FileDecryptionProperties | None = field(default=None, repr=False)
    cipher: FileCipher | None = field(default=None, repr=False)
    footer_key: Key | None = None
    signed_otherwise: bool = False
    padding: int = 0
    reasons: tuple[str, ...] = ()
    unavailable: bool = False

    @property
    def sealed(self) -> bool:
        """Whether the footer is encrypted."""
        return self.tail.magic == MAGIC_ENCRYPTED

    @property
    def algorithm(self) -> str | None:
        """Name of the algorithm; None where the file names none that modcrypt knows."""
        names = [name for name in ALGORITHMS if self._struct(name) is not None]
        return names[0] if len(names) == 1 else None

    @property
    def parameters(self) -> ThriftStruct | None:
        """AAD prefix and file-unique of the algorithm."""
        return None if self.algorithm is None else self._struct(self.algorithm)

    @property
    def stored_prefix(self) -> bytes | None:
        """AAD prefix that the file stores."""
        return None if self.parameters is None else self.parameters.aad_prefix or None

    def _struct(self, name: str) -> ThriftStruct | None:
        return None if self.union is None else getattr(self.union, name)


def view_footer(source: Source, properties: FileDecryptionProperties | None) -> FooterView:
    """See as much of a file's footer as the keys allow.

    Raises:
        FormatError, LimitError: no Parquet file, or its footer breaks the format.
    """
    tail = read_tail(source)
    properties, reason = _lenient(properties, source)
    view = (_view_sealed if tail.magic == MAGIC_ENCRYPTED else _view_readable)(
        tail, properties, source.name
    )
    return view if reason is None else replace(view, reasons=(reason, *view.reasons))


def _lenient(
    properties: FileDecryptionProperties | None, source: Source
) -> tuple[FileDecryptionProperties | None, str | None]:
    """Give properties that insist on keys and AAD prefix alone; or why there are none."""
    if properties is None:
        return None, None
    lenient = replace(
        properties,
        algorithms=ALGORITHMS,  # no page is opened, so a forged name does no harm
        require_encrypted=True,
        check_footer_integrity=True,
        on_missing_key="drop",
    )
    try:
        return bound(lenient, source), None
    except KeyRetrievalError as error:
        return None, str(error)


# --- sealed footers ------------------------------------------------------------------------------


def _view_sealed(tail: Tail, properties: FileDecryptionProperties | None, name: str) -> FooterView:
    crypto, end = decode("FileCryptoMetaData", tail.data)
    view = FooterView(
        tail=tail,
        struct_end=end,
        union=crypto.encryption_algorithm,
        key_metadata=crypto.key_metadata,
        properties=properties,
    )
    if properties is None:
        return view
    if view.parameters is not None and view.parameters.aad_file_unique is None:
        return _view_unbound(view, properties)
    try:
        opened = open_footer(tail, properties, name)
    except ModcryptError as error:
        return _not_opened(view, error)
    key = opened.footer_key
    assert key is not None
    plain = opened.cipher.open(key, FOOTER, memoryview(tail.data)[end:])
    return replace(
        view,
        metadata=opened.metadata,
        authenticated=True,
        cipher=opened.cipher,
        footer_key=key,
        state="authentic",
        padding=_padding(plain),
    )


def _padding(plain: bytes) -> int:
    """Count the zero bytes after a struct, if they are more than its own end may have."""
    return len(plain) - struct_end(plain) if plain.endswith(bytes(5)) else 0


def _not_opened(view: FooterView, error: ModcryptError) -> FooterView:
    """Say why a footer stays closed; that nobody gave a key is no reason worth a word."""
    asked = view.properties is not None and view.properties.key_retriever is not None
    if isinstance(error, KeyNotFoundError) and not asked:
        return view
    state: State = "fault"
    if isinstance(error, KeyRetrievalError):
        state = "locked"
    elif isinstance(error, AadPrefixError | UnsupportedFormatError):
        state = "unchecked"
    away = isinstance(error, KmsUnavailableError)
    return replace(view, state=state, reasons=(*view.reasons, str(error)), unavailable=away)


def _view_unbound(view: FooterView, properties: FileDecryptionProperties) -> FooterView:
    """Open a footer that DuckDB sealed: under GCM, and without AAD."""
    if properties.aad_prefix is not None or properties.aad_prefix_verifier is not None:
        reason = "an AAD prefix is demanded, and DuckDB seals without any AAD"
        return replace(view, state="unchecked", reasons=(reason,))
    try:
        given = properties.footer_key
        assert given is None or isinstance(given, Key)
        key = find_key(properties, given, view.key_metadata, "footer key")
        if key is None:
            return view
        module = memoryview(view.tail.data)[view.struct_end :]
        if len(module) < GCM_OVERHEAD:
            raise TruncationError("the footer's module is cut short")
        plain = GcmCipher(key).open(module, b"")
        metadata, _ = decode("FileMetaData", plain)
    except TagError:
        reason = "the footer does not authenticate with the key given, without AAD as DuckDB does"
        return replace(view, state="fault", reasons=(reason,))
    except ModcryptError as error:
        return _not_opened(view, error)
    return replace(
        view,
        metadata=metadata,
        authenticated=True,
        state="authentic",
        footer_key=key,
        unbound=True,
    )


# --- readable footers ----------------------------------------------------------------------------


def _view_readable(
    tail: Tail, properties: FileDecryptionProperties | None, name: str
) -> FooterView:
    opened, error = _open_readable(tail, properties, name)
    if opened is None:
        metadata, end = decode("FileMetaData", tail.data)
    else:  # it was decoded, and its signature stands there
        metadata, end = opened.metadata, len(tail.data) - SIGNATURE_SIZE
    view = FooterView(
        tail=tail,
        struct_end=end,
        union=metadata.encryption_algorithm,
        key_metadata=metadata.footer_signing_key_metadata,
        metadata=metadata,
        encrypted=metadata.encryption_algorithm is not None or has_encrypted_chunks(metadata),
        properties=properties,
        cipher=None if opened is None else opened.cipher,
        footer_key=None if opened is None else opened.footer_key,
    )
    if opened is not None and error is None:
        return replace(view, authenticated=True, state="authentic")
    if error is None or isinstance(error, PlaintextError):
        return view
    view = _not_opened(view, error)
    return replace(view, signed_otherwise=view.state == "fault" and _is_signed_otherwise(view))


def _open_readable(
    tail: Tail, properties: FileDecryptionProperties | None, name: str
) -> tuple[EncryptedFooter | None, ModcryptError | None]:
    """Open a readable footer, unverified if it must be: columns have keys of their own."""
    if properties is None:
        return None, None
    try:
        return open_footer(tail, properties, name), None
    except ModcryptError as error:
        found = error
    try:
        return open_footer(tail, replace(properties, check_footer_integrity=False), name), found
    except ModcryptError:
        return None, found


def _is_signed_otherwise(view: FooterView) -> bool:
    """Tell a signature over no bytes, with the footer in the AAD (seen in parquet-go 0.32)."""
    if view.cipher is None or view.footer_key is None:
        return False
    footer, signature = view.tail.data[: view.struct_end], view.tail.data[view.struct_end :]
    aad = module_aad(view.cipher.file_aad, FOOTER) + footer
    try:
        view.cipher.gcm(view.footer_key).verify(b"", signature, aad)
    except TagError:
        return False
    return True


# --- column chunks -------------------------------------------------------------------------------


@dataclass(slots=True)
class ChunkView:
    """What is known of one column chunk.

    Attributes:
        chunk: as the footer has it.
        leaf, path: its column, and that one's dotted name.
        row_group, column: ordinals.
        own: whether it has a key of its own; None for plaintext.
        md: its ColumnMetaData as far as the keys open it; None where it is hidden.
        cipher: of its modules; None where there is no key, or one that does not fit.
        opened: whether a key is known to fit; None where nothing tells, and for plaintext.
        refused: whether there was a key that does not fit.
    """

    chunk: ThriftStruct = field(repr=False)
    leaf: Leaf
    path: str
    row_group: int
    column: int
    own: bool | None
    md: ThriftStruct | None = field(repr=False)
    cipher: ChunkCipher | None = field(default=None, repr=False)
    opened: bool | None = None
    refused: bool = False


def view_chunks(view: FooterView) -> tuple[list[Leaf], list[ChunkView], FooterView]:
    """See as much of each column chunk as the keys allow.

    Returns:
        The leaves, the chunks by row group and column, and the footer's view with what stood in the
        way of the columns' keys.

    Raises:
        FormatError, LimitError: the schema makes no sense, or does not fit the row groups.
    """
    if view.metadata is None:
        return [], [], view
    leaves = leaf_elements(view.metadata.schema)
    keys = _ColumnKeys(view, leaves)
    chunks = list(_chunks(view, leaves, keys))
    reasons, unavailable = (*view.reasons, *keys.reasons), view.unavailable or keys.unavailable
    return leaves, chunks, replace(view, reasons=reasons, unavailable=unavailable)


def _chunks(view: FooterView, leaves: list[Leaf], keys: _ColumnKeys) -> Iterator[ChunkView]:
    # Modules are bound to the ordinal: where row groups were moved, the position opens nothing.
    columns = [(c, leaf, ".".join(leaf.path)) for c, leaf in enumerate(leaves)]
    for r, row_group in enumerate(view.metadata.row_groups):  # type: ignore[union-attr]  # is there
        ordinal = row_group.ordinal
        if len(row_group.columns) != len(leaves):
            raise FormatError(
                f"row group {r} has {len(row_group.columns)} column chunks, the schema "
                f"{len(leaves)}"
            )
        for chunk, (c, leaf, path) in zip(row_group.columns, columns, strict=True):
            seen = ChunkView(chunk, leaf, path, r, c, _has_own_key(view, chunk), chunk.meta_data)
            if seen.own is not None:
                _open(view, seen, keys.key_of(seen), r if ordinal is None else ordinal)
            yield seen


def _has_own_key(view: FooterView, chunk: ThriftStruct) -> bool | None:
    crypto = chunk.crypto_metadata
    if crypto is None:
        return False if view.unbound else None
    return crypto.ENCRYPTION_WITH_COLUMN_KEY is not None


def _open(view: FooterView, seen: ChunkView, key: Key | None, ordinal: int) -> None:
    """Open a chunk's column metadata, if there is a key for it, and note whether the key fits."""
    if key is None:
        seen.opened = False
        return
    if view.unbound or view.cipher is None:
        seen.opened = True if view.unbound else None
        return
    if not 0 <= ordinal <= MAX_ORDINAL or seen.column > MAX_ORDINAL:
        return
    seen.cipher = ChunkCipher(view.cipher, key, ordinal, seen.column, seen.path)
    if seen.chunk.encrypted_column_metadata is None:
        # Under the footer key it lies in the sealed footer. Else nothing tells.
        seen.opened = True if view.authenticated and not seen.own else None
        return
    try:
        seen.md = open_column_metadata(seen.chunk, seen.cipher)
        seen.opened = True
    except ModcryptError:
        seen.opened, seen.cipher, seen.refused = False, None, True


class _ColumnKeys:
    """Finds the keys of columns, asking once for each key metadata."""

    def __init__(self, view: FooterView, leaves: list[Leaf]) -> None:
        self._view = view
        self._found: dict[Question, Key | None] = {}
        self.reasons: list[str] = []
        self.unavailable = False
        given = {} if view.properties is None else view.properties.column_keys
        names = [covering_name(leaf.path, given) if given else None for leaf in leaves]
        self._given = [None if name is None else given[name] for name in names]

    def key_of(self, seen: ChunkView) -> Key | None:
        if not seen.own:
            return self._view.footer_key
        metadata = seen.chunk.crypto_metadata.ENCRYPTION_WITH_COLUMN_KEY.key_metadata
        given = self._given[seen.column]
        assert given is None or isinstance(given, Key)
        if self._view.properties is None:
            return given
        question = question_of(self._view.properties, given, metadata, seen.path)
        if question not in self._found:
            self._found[question] = self._ask(seen, given, metadata)
        return self._found[question]

    def _ask(self, seen: ChunkView, given: Key | None, metadata: bytes | None) -> Key | None:
        properties = self._view.properties
        assert properties is not None
        if given is None and self.unavailable:
            return given
        try:
            return find_key(properties, given, metadata, f"column {seen.path}", seen.path)
        except KeyRetrievalError as error:
            self.unavailable = isinstance(
                error, KmsUnavailableError
            )  # each question would take as long
            self.reasons.append(str(error))
            return None
