"""View a footer as far as possible: with all keys, some keys, wrong keys or none.

Reading a file stops at the first violated requirement. A view goes on with what remains and states
what failed. It does not decide whether a file can be trusted.
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
from modcrypt.io.sources import Source
from modcrypt.keys import Key
from modcrypt.parquet.crypto.ciphers import ChunkCipher, FileCipher
from modcrypt.parquet.crypto.footer import FOOTER
from modcrypt.parquet.crypto.footer_opening import (
    Footer,
    has_encrypted_chunks,
    open_column_metadata,
    open_footer,
)
from modcrypt.parquet.crypto.key_lookup import ColumnKeys, find_key
from modcrypt.parquet.crypto.properties import ALGORITHMS, FileDecryptionProperties, bind_to_file
from modcrypt.parquet.format.byte_map import State
from modcrypt.parquet.format.findings import Report
from modcrypt.parquet.format.framing import MAGIC_ENCRYPTED, SIGNATURE_SIZE, Tail, read_tail
from modcrypt.parquet.format.idl import ThriftStruct, decode, struct_end
from modcrypt.parquet.format.schema import Leaf, leaf_elements

__all__ = ["ChunkView", "FooterView", "view_chunks", "view_footer"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FooterView:
    """A footer as far as the keys reveal it.

    Attributes:
        tail: Last bytes of the file.
        struct_end: Offset in `tail` at which FileCryptoMetaData, or a plaintext footer, ends.
        union: EncryptionAlgorithm of the file; None if it names none.
        key_metadata: Key metadata of the footer key.
        metadata: FileMetaData; None if it is encrypted and no key opens it.
        encrypted: Whether any part of the file is encrypted.
        authenticated: Whether the footer's tag or signature was verified.
        state: State of the footer's tag or signature: "fault" if it does not match under the key
            at hand, "unchecked" if something else prevented verification.
        unbound: Whether the footer was opened without any AAD, as DuckDB encrypts it.
        properties: Keys for this file; None if there are none.
        cipher: Cipher for the file's modules; None without keys.
        footer_key: Footer key; None if there is none.
        has_parquet_go_signature: Whether the signature is parquet-go/parquet-go's own, which no
            other reader verifies.
        padding: Number of zero bytes after the encrypted footer's struct, as parquet-java pads it.
        reasons: Reasons why parts are hidden or unverified, in words.
        unavailable: Whether the key service was unavailable.
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
    has_parquet_go_signature: bool = False
    padding: int = 0
    reasons: tuple[str, ...] = ()
    unavailable: bool = False

    @property
    def has_encrypted_footer(self) -> bool:
        """Whether the footer is encrypted."""
        return self.tail.magic == MAGIC_ENCRYPTED

    @property
    def algorithm(self) -> str | None:
        """Name of the algorithm; None where the file names none that modcrypt knows."""
        names = [name for name in ALGORITHMS if self._get_algorithm_struct(name) is not None]
        return names[0] if len(names) == 1 else None

    @property
    def parameters(self) -> ThriftStruct | None:
        """Struct with the AAD prefix and file-unique; None if the algorithm is unknown."""
        return None if self.algorithm is None else self._get_algorithm_struct(self.algorithm)

    @property
    def stored_prefix(self) -> bytes | None:
        """AAD prefix that the file stores; None if it stores none."""
        return None if self.parameters is None else self.parameters.aad_prefix or None

    def _get_algorithm_struct(self, name: str) -> ThriftStruct | None:
        return None if self.union is None else getattr(self.union, name)


def view_footer(source: Source, properties: FileDecryptionProperties | None) -> FooterView:
    """Return as much of a file's footer as the keys reveal.

    Raises:
        FormatError, LimitError: The file is not a Parquet file, or its footer breaks the format.
    """
    tail = read_tail(source)
    properties, reason = _relax_properties(properties, source)
    view = (_view_encrypted_footer if tail.magic == MAGIC_ENCRYPTED else _view_plaintext_footer)(
        tail, properties, source.name
    )
    return view if reason is None else replace(view, reasons=(reason, *view.reasons))


def _relax_properties(
    properties: FileDecryptionProperties | None, source: Source
) -> tuple[FileDecryptionProperties | None, str | None]:
    """Return properties that require only keys and AAD prefix; or why there are none."""
    if properties is None:
        return None, None
    lenient = replace(
        properties,
        algorithms=ALGORITHMS,  # no page is opened, so a forged name is harmless
        require_encrypted=True,
        check_footer_integrity=True,
        on_missing_key="drop",
    )
    try:
        return bind_to_file(lenient, source), None
    except KeyRetrievalError as error:
        return None, str(error)


# --- encrypted footers ---------------------------------------------------------------------------


def _view_encrypted_footer(
    tail: Tail, properties: FileDecryptionProperties | None, name: str
) -> FooterView:
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
        return _view_footer_without_aad(view, properties)
    try:
        opened = open_footer(tail, properties, name)
    except ModcryptError as error:
        return _add_failure(view, error)
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
        padding=_count_padding(plain),
    )


def _count_padding(plain: bytes) -> int:
    """Count the zero bytes after a struct; 0 if they may belong to the struct itself."""
    return len(plain) - struct_end(plain) if plain.endswith(bytes(5)) else 0


def _add_failure(view: FooterView, error: ModcryptError) -> FooterView:
    """Return the view with the reason of a failure; a key that nobody passed is no failure."""
    has_retriever = view.properties is not None and view.properties.key_retriever is not None
    if isinstance(error, KeyNotFoundError) and not has_retriever:
        return view
    state: State = "fault"
    if isinstance(error, KeyRetrievalError):
        state = "locked"
    elif isinstance(error, AadPrefixError | UnsupportedFormatError):
        state = "unchecked"
    unavailable = isinstance(error, KmsUnavailableError)
    return replace(view, state=state, reasons=(*view.reasons, str(error)), unavailable=unavailable)


def _view_footer_without_aad(view: FooterView, properties: FileDecryptionProperties) -> FooterView:
    """Open a footer that DuckDB encrypted: with GCM, and without AAD."""
    if properties.aad_prefix is not None or properties.aad_prefix_verifier is not None:
        reason = "an AAD prefix is required, but DuckDB encrypts without any AAD"
        return replace(view, state="unchecked", reasons=(reason,))
    try:
        given = properties.footer_key
        assert given is None or isinstance(given, Key)
        key = find_key(properties, given, view.key_metadata, "footer key")
        if key is None:
            return view
        module = memoryview(view.tail.data)[view.struct_end :]
        if len(module) < GCM_OVERHEAD:
            raise TruncationError("the footer's module is truncated")
        plain = GcmCipher(key).open(module, b"")
        metadata, _ = decode("FileMetaData", plain)
    except TagError:
        reason = "the footer does not authenticate with the given key, without AAD as DuckDB does"
        return replace(view, state="fault", reasons=(reason,))
    except ModcryptError as error:
        return _add_failure(view, error)
    return replace(
        view,
        metadata=metadata,
        authenticated=True,
        state="authentic",
        footer_key=key,
        unbound=True,
    )


# --- plaintext footers ---------------------------------------------------------------------------


def _view_plaintext_footer(
    tail: Tail, properties: FileDecryptionProperties | None, name: str
) -> FooterView:
    opened, error = _open_plaintext_footer(tail, properties, name)
    if opened is None:
        metadata, end = decode("FileMetaData", tail.data)
    else:  # its signature follows it
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
    view = _add_failure(view, error)
    return replace(
        view, has_parquet_go_signature=view.state == "fault" and _verify_parquet_go_signature(view)
    )


def _open_plaintext_footer(
    tail: Tail, properties: FileDecryptionProperties | None, name: str
) -> tuple[Footer | None, ModcryptError | None]:
    """Open a plaintext footer, if need be unverified, because columns have keys of their own."""
    if properties is None:
        return None, None
    try:
        return open_footer(tail, properties, name), None
    except ModcryptError as error:
        failure = error
    try:
        return open_footer(tail, replace(properties, check_footer_integrity=False), name), failure
    except ModcryptError:
        return None, failure


def _verify_parquet_go_signature(view: FooterView) -> bool:
    """Return whether a signature is over no bytes, with the footer in the AAD (parquet-go 0.32)."""
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
    """A column chunk as far as the keys reveal it.

    Attributes:
        chunk: ColumnChunk as stored in the footer.
        leaf: Column in the schema.
        path: Dotted name of the column.
        row_group: Ordinal of the row group.
        column: Ordinal of the column.
        own: Whether the column has a key of its own; None for plaintext.
        md: ColumnMetaData, decrypted if a key opens it; None if it is hidden.
        cipher: Cipher for the chunk's modules; None if there is no key, or a wrong one.
        opened: Whether the key is known to be right; None if unknown, and for plaintext.
        refused: Whether there was a wrong key.
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
    """Return as much of each column chunk as the keys reveal.

    Returns:
        The leaves, the chunks by row group and column, and the footer's view, to which the reasons
        for missing column keys were added.

    Raises:
        FormatError, LimitError: The schema is invalid, or does not match the row groups.
    """
    if view.metadata is None:
        return [], [], view
    leaves = leaf_elements(view.metadata.schema)
    properties = view.properties or FileDecryptionProperties()
    keys = ColumnKeys(properties, [leaf.path for leaf in leaves], Report(), (0, 0))
    chunks = list(_view_row_groups(view, leaves, keys))
    reasons = (*view.reasons, *keys.messages)
    unavailable = view.unavailable or keys.is_unavailable
    return leaves, chunks, replace(view, reasons=reasons, unavailable=unavailable)


def _view_row_groups(view: FooterView, leaves: list[Leaf], keys: ColumnKeys) -> Iterator[ChunkView]:
    # Modules are bound to the ordinal, so the position of a moved row group opens nothing.
    columns = [(c, leaf, ".".join(leaf.path)) for c, leaf in enumerate(leaves)]
    for r, row_group in enumerate(view.metadata.row_groups):  # type: ignore[union-attr]  # is there
        ordinal = row_group.ordinal
        if len(row_group.columns) != len(leaves):
            raise FormatError(
                f"row group {r} has {len(row_group.columns)} column chunks, but the schema "
                f"has {len(leaves)}"
            )
        for chunk, (c, leaf, path) in zip(row_group.columns, columns, strict=True):
            seen = ChunkView(chunk, leaf, path, r, c, _has_own_key(view, chunk), chunk.meta_data)
            if seen.own is not None:
                key = view.footer_key
                if seen.own:
                    key = keys.find(c, chunk.crypto_metadata.ENCRYPTION_WITH_COLUMN_KEY).key
                _open_chunk_metadata(view, seen, key, r if ordinal is None else ordinal)
            yield seen


def _has_own_key(view: FooterView, chunk: ThriftStruct) -> bool | None:
    crypto = chunk.crypto_metadata
    if crypto is None:
        return False if view.unbound else None
    return crypto.ENCRYPTION_WITH_COLUMN_KEY is not None


def _open_chunk_metadata(view: FooterView, seen: ChunkView, key: Key | None, ordinal: int) -> None:
    """Open a chunk's column metadata, if there is a key, and note whether the key is right."""
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
        # Metadata under the footer key is part of the encrypted footer; other keys stay unchecked.
        seen.opened = True if view.authenticated and not seen.own else None
        return
    try:
        seen.md = open_column_metadata(seen.chunk, seen.cipher)
        seen.opened = True
    except ModcryptError:
        seen.opened, seen.cipher, seen.refused = False, None, True
