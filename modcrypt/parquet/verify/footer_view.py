"""View a footer as far as possible: with all keys, some keys, wrong keys or none.

A view opens the footer as verification does. If that finds a fault, the view contains only what is
visible without keys, and states the reason. It does not decide whether a file can be trusted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from modcrypt.aad import MAX_ORDINAL, module_aad
from modcrypt.aead import GCM_OVERHEAD, GcmCipher, TagError
from modcrypt.errors import FormatError, KeyNotFoundError, KmsUnavailableError, PlaintextError
from modcrypt.io.sources import Source
from modcrypt.parquet.crypto.chunk_opening import Chunk, ChunkOpening
from modcrypt.parquet.crypto.column_kinds import COLUMN_KEY, FOOTER_KEY
from modcrypt.parquet.crypto.crypto_fields import CryptoFields
from modcrypt.parquet.crypto.footer import FOOTER
from modcrypt.parquet.crypto.footer_opening import Footer, bind_and_report, open_footer
from modcrypt.parquet.crypto.properties import ALGORITHMS, FileDecryptionProperties
from modcrypt.parquet.format.byte_map import Region, State
from modcrypt.parquet.format.findings import MAX_FINDINGS, Report
from modcrypt.parquet.format.framing import MAGIC_SIZE, read_tail
from modcrypt.parquet.format.idl import ThriftStruct, decode
from modcrypt.parquet.format.schema import Leaf, leaf_elements

__all__ = ["FooterView", "view_chunks", "view_footer"]


@dataclass(slots=True)
class FooterView:
    """A footer as far as the keys reveal it.

    Attributes:
        footer: Open footer; without `metadata` if that is encrypted and no key opens it.
        properties: Keys for this file.
        fields: Fields that are readable before the footer is authenticated.
        regions: Regions of the footer and of the bytes around it.
        is_usable: Whether the footer key and the file AAD open modules.
        unbound: Whether the footer was opened without any AAD, as DuckDB encrypts it.
        has_parquet_go_signature: Whether the signature is parquet-go/parquet-go's own, which no
            other reader verifies.
        reasons: Reasons why parts are hidden or unverified, in words.
        unavailable: Whether the key service was unavailable.
    """

    footer: Footer
    properties: FileDecryptionProperties
    fields: CryptoFields
    regions: list[Region]
    is_usable: bool = False
    unbound: bool = False
    has_parquet_go_signature: bool = False
    reasons: tuple[str, ...] = ()
    unavailable: bool = False

    @property
    def metadata(self) -> ThriftStruct | None:
        """FileMetaData; None if it is encrypted and no key opens it."""
        metadata: ThriftStruct | None = self.footer.metadata
        return metadata

    @property
    def state(self) -> State:
        """State of the footer's tag or signature; "plaintext" if there is none."""
        return next(region.state for region in reversed(self.regions) if region.kind in _JUDGED)

    def set_state(self, state: State) -> None:
        """Change the state of an encrypted footer."""
        self.regions = [
            replace(region, state=state) if region.kind == "footer" else region
            for region in self.regions
        ]

    @property
    def authenticated(self) -> bool:
        """Whether the footer's tag or signature was verified."""
        return self.state == "authentic"

    @property
    def has_encrypted_footer(self) -> bool:
        """Whether the footer is encrypted."""
        return not self.footer.plaintext_footer


_JUDGED = "footer", "footer signature"


def view_footer(source: Source, properties: FileDecryptionProperties | None) -> FooterView:
    """Return as much of a file's footer as the keys reveal.

    Raises:
        FormatError, LimitError: The file is not a Parquet file, or its footer breaks the format.
    """
    tail, report = read_tail(source), Report(MAX_FINDINGS, regions=True)
    given = bind_and_report(_relax_properties(properties), source, report)
    reasons = tuple(finding.message for finding in report.findings)
    footer = open_footer(tail, given, source.name, report)
    new = report.findings[len(reasons) :]
    fault = next((finding for finding in new if finding.severity == "fault"), None)
    if footer.fields is None or (footer.plaintext_footer and footer.metadata is None):
        assert fault is not None
        raise fault.error()
    # Unless the metadata is readable, the bytes before the footer are one region.
    regions = [r for r in report.regions or () if not MAGIC_SIZE <= r.start < tail.start]
    view = FooterView(footer, given, footer.fields, regions, reasons=reasons)
    encrypted = not footer.plaintext_footer
    if encrypted and footer.algorithm is not None and footer.algorithm.aad_file_unique is None:
        _open_without_aad(view)
        return view
    view.is_usable = footer.has_cipher and fault is None
    if encrypted and fault is not None:
        footer.metadata = None
        if view.authenticated:
            view.set_state("unchecked")
    if fault is None and footer.signature_fault is not None:
        view.reasons += (str(footer.signature_fault),)
        view.has_parquet_go_signature = _verify_parquet_go_signature(view)
    elif fault is not None and fault.word != PlaintextError.word:
        view.reasons += (fault.message,)
    _add_missing_key(view)
    return view


def _relax_properties(properties: FileDecryptionProperties | None) -> FileDecryptionProperties:
    """Return properties that require only keys and AAD prefix."""
    if properties is None:
        return FileDecryptionProperties(algorithms=ALGORITHMS, require_encrypted=False)
    # No page is opened, so a forged name of an algorithm is harmless.
    return replace(properties, algorithms=ALGORITHMS, require_encrypted=True)


def _add_missing_key(view: FooterView) -> None:
    """Add why there is no footer key; a key that nobody passed needs no reason."""
    answer = view.footer.answer
    unasked = answer.word == KeyNotFoundError.word and view.properties.key_retriever is None
    if answer.message and not unasked and answer.message not in view.reasons:
        view.reasons += (answer.message,)
    view.unavailable = answer.word == KmsUnavailableError.word


def _open_without_aad(view: FooterView) -> None:
    """Open a footer that DuckDB encrypted: with GCM, and without AAD."""
    footer, properties = view.footer, view.properties
    if properties.aad_prefix is not None or properties.aad_prefix_verifier is not None:
        view.reasons += ("an AAD prefix is required, but DuckDB encrypts without any AAD",)
        view.set_state("unchecked")
        return
    if footer.footer_key is None:
        _add_missing_key(view)
        return
    view.set_state("fault")
    module = memoryview(footer.tail.data)[view.fields.end :]
    if len(module) < GCM_OVERHEAD:
        view.reasons += ("the footer's module is truncated",)
        return
    try:
        plain = GcmCipher(footer.footer_key).open(module, b"")
        footer.metadata, _ = decode("FileMetaData", plain)
    except TagError:
        reason = "the footer does not authenticate with the given key, without AAD as DuckDB does"
        view.reasons += (reason,)
    except FormatError as error:
        view.reasons += (str(error),)
    else:
        view.unbound = True
        view.set_state("authentic")


def _verify_parquet_go_signature(view: FooterView) -> bool:
    """Return whether a signature is over no bytes, with the footer in the AAD (parquet-go 0.32)."""
    footer = view.footer
    assert footer.footer_key is not None
    data, signature = footer.tail.data[: view.fields.end], footer.tail.data[view.fields.end :]
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
    opening.name_key(chunk)
    if view.unbound:
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
