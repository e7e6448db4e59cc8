"""View a footer as far as possible: with all keys, some keys, wrong keys or none.

A view opens the footer as verification does. If that finds a fault, the view contains only what is
visible without keys, and states the reason. It does not decide whether a file can be trusted.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from modcrypt.aad import module_aad
from modcrypt.aead import GCM_OVERHEAD, GcmCipher
from modcrypt.errors import (
    FormatError,
    KeyNotFoundError,
    KmsUnavailableError,
    PlaintextError,
    TagError,
)
from modcrypt.io.sources import Source
from modcrypt.module_ids import ALGORITHMS
from modcrypt.parquet.crypto.column_kinds import FOOTER_KEY
from modcrypt.parquet.crypto.crypto_fields import CryptoFields
from modcrypt.parquet.crypto.footer import FOOTER, Footer
from modcrypt.parquet.crypto.footer_opening import bind_and_report, open_footer
from modcrypt.parquet.crypto.properties import FileDecryptionProperties
from modcrypt.parquet.format.byte_map import Region, State
from modcrypt.parquet.format.findings import MAX_FINDINGS
from modcrypt.parquet.format.framing import MAGIC_SIZE, read_tail
from modcrypt.parquet.format.idl import decode
from modcrypt.parquet.format.report import Report
from modcrypt.parquet.verify.chunk_plan import ChunkPlan


@dataclass(slots=True)
class FooterView:
    """A footer as far as the keys reveal it."""

    footer: Footer  # open footer; without `metadata` if that is encrypted and no key opens it
    properties: FileDecryptionProperties
    fields: CryptoFields  # fields that are readable before the footer is authenticated
    regions: list[Region]
    unbound: bool = False  # whether the footer was opened without any AAD, as DuckDB encrypts it
    # Whether the signature is parquet-go/parquet-go's own, which no other reader verifies.
    has_parquet_go_signature: bool = False
    reasons: tuple[str, ...] = ()
    unavailable: bool = False  # whether the key service was unavailable

    @property
    def state(self) -> State:
        """State of the footer's tag or signature; "plaintext" if there is none."""
        return next(region.state for region in reversed(self.regions) if region.kind in _JUDGED)

    def set_state(self, state: State) -> None:
        """Change the state of the footer's tag or signature."""
        self.regions = [
            replace(region, state=state) if region.kind in _JUDGED else region
            for region in self.regions
        ]

    @property
    def authenticated(self) -> bool:
        """True if the footer's tag or signature was verified."""
        return self.state == "authentic"


_JUDGED = "footer", "footer signature"


def view_footer(source: Source, properties: FileDecryptionProperties | None) -> FooterView:
    """Return as much of a file's footer as the keys reveal.

    Raises:
        FormatError, LimitError: The file is not a Parquet file, or its footer breaks the format.
    """
    tail, report = read_tail(source), Report(MAX_FINDINGS, regions=True)
    # Require nothing but the AAD prefix. No page is opened, so a forged algorithm is harmless.
    given = properties or FileDecryptionProperties()
    relaxed = replace(given, accept_algorithms=ALGORITHMS, require_encrypted=False)
    given = bind_and_report(relaxed, source, report)
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
    if fault is not None:
        footer.accept_cipher(None)
        footer.metadata = None if encrypted else footer.metadata
        if view.authenticated:
            view.set_state("unchecked")
    if fault is None and footer.signature_fault is not None:
        view.reasons += (str(footer.signature_fault),)
        view.has_parquet_go_signature = _verify_parquet_go_signature(view)
    elif fault is not None and fault.word != PlaintextError.word:
        view.reasons += (fault.message,)
    _add_missing_key(view)
    return view


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
        plain = GcmCipher(footer.footer_key).decrypt(module, b"")
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


def view_chunks(view: FooterView, source: Source) -> ChunkPlan:
    """Find the column chunks as far as the keys reveal them.

    The reasons for missing column keys are added to the view.
    """
    plan = ChunkPlan(source, view.properties, view.footer, Report(MAX_FINDINGS))
    if view.footer.metadata is None:
        return plan
    plan.find_chunks()
    for chunk in plan.listed:
        if view.unbound:
            chunk.kind = chunk.kind if chunk.encrypted else FOOTER_KEY
            chunk.key_name, chunk.key_works = chunk.key_name or view.footer.key_name, True
        if chunk.key_works is False:
            chunk.cipher = None
    if plan.listed:
        view.reasons += tuple(plan.opening.keys.messages)
        view.unavailable = view.unavailable or plan.opening.keys.is_unavailable
    return plan
