"""View a footer as far as possible: with all keys, some keys, wrong keys or none.

A view opens the footer as verification does. If that finds a fault, the view contains only what is
visible without keys, and states the reason. It does not decide whether a file can be trusted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from modcrypt.aad import MAX_ORDINAL, module_aad
from modcrypt.aead import GCM_OVERHEAD, GcmCipher, TagError
from modcrypt.errors import (
    FormatError,
    KeyNotFoundError,
    KeyRetrievalError,
    KmsUnavailableError,
    ModcryptError,
)
from modcrypt.io.sources import Source
from modcrypt.parquet.crypto.chunk_opening import Chunk, ChunkOpening
from modcrypt.parquet.crypto.column_kinds import COLUMN_KEY, FOOTER_KEY
from modcrypt.parquet.crypto.footer import FOOTER
from modcrypt.parquet.crypto.footer_opening import Footer, open_footer
from modcrypt.parquet.crypto.properties import ALGORITHMS, FileDecryptionProperties, bind_to_file
from modcrypt.parquet.format.byte_map import State
from modcrypt.parquet.format.findings import Finding, Report
from modcrypt.parquet.format.framing import read_tail
from modcrypt.parquet.format.idl import ThriftStruct, decode, struct_end
from modcrypt.parquet.format.schema import Leaf, leaf_elements

__all__ = ["FooterView", "view_chunks", "view_footer"]


@dataclass(slots=True)
class FooterView:
    """A footer as far as the keys reveal it.

    Attributes:
        footer: Open footer; without `metadata` if that is encrypted and no key opens it.
        properties: Keys for this file.
        struct_end: Offset in the tail at which FileCryptoMetaData, or a plaintext footer, ends.
        union: EncryptionAlgorithm of the file; None if it names none.
        state: State of the footer's tag or signature: "fault" if it does not match under the key
            at hand, "unchecked" if something else prevented verification.
        is_usable: Whether the footer key and the file AAD open modules.
        unbound: Whether the footer was opened without any AAD, as DuckDB encrypts it.
        has_parquet_go_signature: Whether the signature is parquet-go/parquet-go's own, which no
            other reader verifies.
        padding: Number of zero bytes after the encrypted footer's struct, as parquet-java pads it.
        reasons: Reasons why parts are hidden or unverified, in words.
        unavailable: Whether the key service was unavailable.
    """

    footer: Footer
    properties: FileDecryptionProperties
    struct_end: int
    union: ThriftStruct | None = field(repr=False)
    state: State = "locked"
    is_usable: bool = False
    unbound: bool = False
    has_parquet_go_signature: bool = False
    padding: int = 0
    reasons: tuple[str, ...] = ()
    unavailable: bool = False

    @property
    def metadata(self) -> ThriftStruct | None:
        """FileMetaData; None if it is encrypted and no key opens it."""
        metadata: ThriftStruct | None = self.footer.metadata
        return metadata

    @property
    def authenticated(self) -> bool:
        """Whether the footer's tag or signature was verified."""
        return self.state == "authentic"

    @property
    def has_encrypted_footer(self) -> bool:
        """Whether the footer is encrypted."""
        return not self.footer.plaintext_footer


def view_footer(source: Source, properties: FileDecryptionProperties | None) -> FooterView:
    """Return as much of a file's footer as the keys reveal.

    Raises:
        FormatError, LimitError: The file is not a Parquet file, or its footer breaks the format.
    """
    tail, report = read_tail(source), Report(1)
    given, reason = _relax_properties(properties, source)
    footer = open_footer(tail, given, source.name, report)
    fault = next((finding for finding in report.findings if finding.severity == "fault"), None)
    fields = footer.fields
    if fields is None or (footer.plaintext_footer and footer.metadata is None):
        assert fault is not None
        raise fault.error()
    view = FooterView(footer, given, fields.end, fields.algorithm)
    if footer.plaintext_footer:
        _judge_plaintext_footer(view, fault)
    elif footer.algorithm is not None and footer.algorithm.aad_file_unique is None:
        _open_without_aad(view)
    else:
        _judge_encrypted_footer(view, fault)
    view.reasons = (*(() if reason is None else (reason,)), *view.reasons)
    return view


def _relax_properties(
    properties: FileDecryptionProperties | None, source: Source
) -> tuple[FileDecryptionProperties, str | None]:
    """Return properties that require only keys and AAD prefix; or none, and the reason."""
    none = FileDecryptionProperties(algorithms=ALGORITHMS, require_encrypted=False)
    if properties is None:
        return none, None
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
        return none, str(error)


def _add_failure(view: FooterView, fault: Finding | ModcryptError | None) -> None:
    """Add the reason of a failure; a key that nobody passed is no failure."""
    answer = view.footer.answer
    if fault is not None:
        message = str(fault) if isinstance(fault, ModcryptError) else fault.message
        view.reasons += (message,)
        view.state = "unchecked" if fault.word in ("aad-prefix", "unsupported") else "fault"
        if fault.word == answer.word or message == answer.message:
            view.state = "locked"
    elif answer.message and (
        answer.word != KeyNotFoundError.word or view.properties.key_retriever is not None
    ):
        view.reasons += (answer.message,)
    view.unavailable = answer.word == KmsUnavailableError.word


def _judge_encrypted_footer(view: FooterView, fault: Finding | None) -> None:
    footer = view.footer
    if fault is not None or not footer.is_verified:
        footer.metadata = None
        _add_failure(view, fault)
        return
    key = footer.footer_key
    assert key is not None
    plain = footer.cipher.open(key, FOOTER, memoryview(footer.tail.data)[view.struct_end :])
    view.state, view.is_usable, view.padding = "authentic", True, _count_padding(plain)


def _count_padding(plain: bytes) -> int:
    """Count the zero bytes after a struct; 0 if they may belong to the struct itself."""
    return len(plain) - struct_end(plain) if plain.endswith(bytes(5)) else 0


def _open_without_aad(view: FooterView) -> None:
    """Open a footer that DuckDB encrypted: with GCM, and without AAD."""
    footer, properties = view.footer, view.properties
    if properties.aad_prefix is not None or properties.aad_prefix_verifier is not None:
        view.reasons = ("an AAD prefix is required, but DuckDB encrypts without any AAD",)
        view.state = "unchecked"
        return
    if footer.footer_key is None:
        _add_failure(view, None)
        return
    view.state = "fault"
    module = memoryview(footer.tail.data)[view.struct_end :]
    if len(module) < GCM_OVERHEAD:
        view.reasons = ("the footer's module is truncated",)
        return
    try:
        plain = GcmCipher(footer.footer_key).open(module, b"")
        footer.metadata, _ = decode("FileMetaData", plain)
    except TagError:
        reason = "the footer does not authenticate with the given key, without AAD as DuckDB does"
        view.reasons = (reason,)
    except FormatError as error:
        view.reasons = (str(error),)
    else:
        view.state, view.unbound = "authentic", True


def _judge_plaintext_footer(view: FooterView, fault: Finding | None) -> None:
    footer = view.footer
    if not footer.encrypted or view.union is None or fault is not None:
        if fault is not None and fault.word != "plaintext":
            _add_failure(view, fault)
        return
    view.is_usable = footer.has_cipher
    if footer.is_verified:
        view.state = "authentic"
        return
    _add_failure(view, footer.signature_fault)
    view.has_parquet_go_signature = view.state == "fault" and _verify_parquet_go_signature(view)


def _verify_parquet_go_signature(view: FooterView) -> bool:
    """Return whether a signature is over no bytes, with the footer in the AAD (parquet-go 0.32)."""
    footer = view.footer
    assert footer.footer_key is not None
    data, signature = footer.tail.data[: view.struct_end], footer.tail.data[view.struct_end :]
    aad = module_aad(footer.cipher.file_aad, FOOTER) + data
    try:
        footer.cipher.gcm(footer.footer_key).verify(b"", signature, aad)
    except TagError:
        return False
    return True


# --- column chunks -------------------------------------------------------------------------------


def view_chunks(view: FooterView) -> tuple[list[Leaf], list[Chunk]]:
    """Return the leaves and the chunks, by row group and column, as far as the keys reveal them.

    The reasons for missing column keys are added to the view.

    Raises:
        FormatError, LimitError: The schema is invalid, or does not match the row groups.
    """
    if view.metadata is None:
        return [], []
    leaves = leaf_elements(view.metadata.schema)
    opening = ChunkOpening(view.footer, view.properties, leaves, Report())
    chunks = list(_view_row_groups(view, leaves, opening))
    view.reasons += tuple(opening.keys.messages)
    view.unavailable = view.unavailable or opening.keys.is_unavailable
    return leaves, chunks


def _view_row_groups(
    view: FooterView, leaves: list[Leaf], opening: ChunkOpening
) -> Iterator[Chunk]:
    for r, row_group in enumerate(view.footer.metadata.row_groups):
        if len(row_group.columns) != len(leaves):
            raise FormatError(
                f"row group {r} has {len(row_group.columns)} column chunks, but the schema "
                f"has {len(leaves)}"
            )
        for c in range(len(leaves)):
            chunk = opening.chunk(r, c)
            if chunk.encrypted or view.unbound:
                _open_chunk(view, opening, chunk)
            yield chunk


def _open_chunk(view: FooterView, opening: ChunkOpening, chunk: Chunk) -> None:
    """Open a chunk's column metadata, if there is a key, and note whether the key is right."""
    if view.unbound:
        chunk.kind = chunk.kind if chunk.encrypted else FOOTER_KEY
        chunk.key_works = True
        return
    key = opening.find_key(chunk.row_group, chunk.column).key
    if key is None or (chunk.kind == FOOTER_KEY and not view.is_usable):
        chunk.key_works = False
    elif view.is_usable and max(chunk.ordinal, chunk.column) <= MAX_ORDINAL:
        chunk.key = key
        opening.open(chunk)
        if chunk.key_works is False:
            chunk.cipher = None
        elif chunk.stored.encrypted_column_metadata is None:
            # Metadata under the footer key is part of the footer; other keys stay unchecked.
            chunk.key_works = (view.authenticated and chunk.kind != COLUMN_KEY) or None
