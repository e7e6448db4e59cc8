"""Verify a file's footer, continuing after faults as far as its bytes allow.

Reading a file stops at the first fault. Verification reports every fault and goes on: a plaintext
footer whose signature does not match still says where pages are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

from modcrypt.aad import module_aad
from modcrypt.aead import TagError
from modcrypt.errors import (
    AadPrefixError,
    FooterSignatureError,
    FormatError,
    KeyAccessDeniedError,
    KeyDisabledError,
    KeyMaterialError,
    KeyNotFoundError,
    KeyRetrievalError,
    KmsUnavailableError,
    ModcryptError,
    PlaintextError,
    TagMismatchError,
    TruncationError,
    UnsupportedFormatError,
)
from modcrypt.io.sources import Source
from modcrypt.keys import Key
from modcrypt.parquet.crypto.ciphers import FileCipher, find_key
from modcrypt.parquet.crypto.footer import (
    FOOTER,
    SIGNATURE_FIELDS,
    check_algorithm,
    file_aad_of,
    has_encrypted_chunks,
    read_algorithm,
)
from modcrypt.parquet.crypto.key_info import key_name
from modcrypt.parquet.crypto.properties import FileDecryptionProperties
from modcrypt.parquet.format.byte_map import State
from modcrypt.parquet.format.framing import (
    MAGIC_ENCRYPTED,
    MAGIC_SIZE,
    SIGNATURE_SIZE,
    Tail,
    read_tail,
)
from modcrypt.parquet.format.idl import ThriftStruct, decode, decode_some
from modcrypt.parquet.verify.findings import ALWAYS_OPEN, Report

__all__ = ["CheckedFooter", "KeyAnswer", "check_footer", "look_for_key"]

_OPEN_BY_DESIGN = (
    "the format encrypts it in no file: the algorithm's name, the border between AAD prefix and "
    "file-unique, and the key metadata can be altered; AADs and tags depend on the rest"
)
_GIVEN_PREFIX_FITS = (
    "the footer authenticates with the AAD prefix that was given, but the file contradicts it: its "
    "crypto metadata was altered"
)
_EMPTY_PREFIX_FITS = (
    "the footer authenticates without an AAD prefix, but the file, or the caller, has one: it was "
    "added later"
)


@dataclass(slots=True)
class CheckedFooter:
    """The contents of a file's end, and the results of their verification.

    Without `metadata` the modules cannot be located; without `cipher` none can be opened, and
    `locked` states the reason. `missing` states why there is no footer key; `word` is the error
    code for that.
    """

    mode: Literal["encrypted", "plaintext", "none"] = "none"
    encrypted: bool = False
    algorithm: str | None = None
    metadata: ThriftStruct = None  # None if it could not be read
    body_end: int = 0
    inside: tuple[int, int] = (0, 0)  # range of the bytes that hold the metadata
    data: bytes = b""  # bytes of a plaintext footer
    cipher: FileCipher | None = None
    key: Key | None = None
    key_name: str = "footer key"
    locked: str = ""
    missing: str = ""
    word: str | None = None
    prefix: bytes | None = None  # AAD prefix that the file stores
    unique: bytes | None = None  # aad_file_unique
    signature_fault: FooterSignatureError | None = None

    @property
    def is_verified(self) -> bool:
        """Whether the footer's tag or signature was verified."""
        if self.mode == "encrypted":
            return self.metadata is not None
        return self.encrypted and self.key is not None and self.signature_fault is None


def check_footer(
    source: Source, properties: FileDecryptionProperties, report: Report, *, with_keys: bool
) -> CheckedFooter:
    """Read a file's footer and report what is wrong with it.

    Args:
        source: File to verify.
        properties: Decryption properties, bound to the file.
        report: Report that collects the findings.
        with_keys: Whether the caller passed properties; otherwise nothing is required of the file.
    """
    try:
        tail = read_tail(source)
    except ModcryptError as error:
        report.add_error(error, 0, source.size)
        report.add_note("file", None, "it could not be read as a Parquet file")
        return CheckedFooter()
    report.add_region(0, MAGIC_SIZE, "magic", "plaintext")
    report.add_region(source.size - 8, source.size - 4, "footer length", "plaintext")
    report.add_region(source.size - 4, source.size, "magic", "plaintext")
    check = _FooterCheck(source, tail, properties, report, with_keys)
    return (
        check.check_encrypted_footer()
        if tail.magic == MAGIC_ENCRYPTED
        else check.check_plaintext_footer()
    )


class KeyAnswer(NamedTuple):
    """A key, or the reason why there is none.

    Attributes:
        key: Key; None if there is none.
        why: Reason in words.
        word: Error code of the reason; None if a fault was reported instead.
    """

    key: Key | None
    why: str = ""
    word: str | None = None


def look_for_key(
    properties: FileDecryptionProperties, given: Key | None, metadata: bytes | None, what: str,
    column: str | None, report: Report,
) -> KeyAnswer:  # fmt: skip
    """Return a key, or why there is none; malformed key material is a fault of the file."""
    missing = "there is no footer key" if column is None else "there is no key for it"
    try:
        key = find_key(properties, given, metadata, what, column)
    except KeyMaterialError as error:
        report.add_error(error)
        return KeyAnswer(None, "its key material is malformed, or differs from what is expected")
    except KeyRetrievalError as error:
        why = str(error).removeprefix(f"{what}: ")
        if isinstance(error, KmsUnavailableError):
            report.add_warning(error.word, str(error))
        return KeyAnswer(None, f"{_REASONS.get(error.word, missing)}: {why}", error.word)
    return KeyAnswer(key) if key is not None else KeyAnswer(None, missing, KeyNotFoundError.word)


_REASONS = {
    KeyAccessDeniedError.word: "access to its key is denied",
    KeyDisabledError.word: "its key cannot be used",
    KmsUnavailableError.word: "its key could not be retrieved",
    KeyRetrievalError.word: "its key could not be retrieved",
}


@dataclass(slots=True)
class _FooterCheck:
    """The verification of one footer."""

    source: Source
    tail: Tail
    properties: FileDecryptionProperties
    report: Report
    with_keys: bool

    # --- encrypted footer ------------------------------------------------------------------------

    def check_encrypted_footer(self) -> CheckedFooter:
        tail, report, size = self.tail, self.report, self.source.size
        out = CheckedFooter("encrypted", True, body_end=tail.start)
        try:
            crypto, end = decode("FileCryptoMetaData", tail.data)
        except FormatError as error:
            report.add_error(error, tail.start, size - 8)
            return self._mark_unreadable(out, "its crypto metadata cannot be read")
        start = tail.start + end
        report.add_region(tail.start, start, "file crypto metadata", "plaintext")
        report.add_note(ALWAYS_OPEN, None, _OPEN_BY_DESIGN, by_design=True)
        out.inside = start, size - 8
        out.key, out.missing, out.word = self._find_footer_key(crypto.key_metadata)
        out.key_name = key_name(crypto.key_metadata, "footer key")
        aads = list(self._list_file_aads(crypto.encryption_algorithm, out, tail.start, start))
        if out.key is None or not aads:
            out.locked = out.locked or out.missing
            state: State = "unchecked" if out.key else "locked"
            report.add_region(start, size - 8, "footer", state, key=out.key_name)
            return self._mark_unreadable(out, out.locked)
        footer = self._open_footer(out, aads, start, memoryview(tail.data)[end:])
        if footer is None:
            report.add_region(start, size - 8, "footer", "fault", key=out.key_name)
            return self._mark_unreadable(out, "the footer, which says where they are, did not open")
        report.add_region(start, size - 8, "footer", "authentic", key=out.key_name)
        report.count_verified(size - 8 - start)
        try:
            # parquet-java pads the modules that it encrypts: bytes may follow the struct's STOP.
            out.metadata, _ = decode("FileMetaData", footer)
        except FormatError as error:
            report.add_error(error, start, size - 8, FOOTER)
            return self._mark_unreadable(out, "the footer cannot be decoded")
        self._verify_prefix(out)
        return out

    def _open_footer(
        self, out: CheckedFooter, aads: list[tuple[bytes, str]], start: int, module: memoryview
    ) -> bytes | None:
        """Open the footer with the first AAD that fits; if none does, report the first error."""
        assert out.key is not None
        assert out.algorithm is not None
        end = self.source.size - 8
        first: ModcryptError | None = None
        for aad, hint in aads:
            cipher = FileCipher(aad, out.algorithm)
            try:
                footer = cipher.open(out.key, FOOTER, module)
            except TruncationError as error:
                self.report.add_error(error, start, end, FOOTER)
                return None
            except TagMismatchError as error:
                first = first or error
                continue
            if hint:
                self.report.add_fault("aad-prefix", hint, start, end, FOOTER)
            out.cipher = cipher
            return footer
        assert first is not None
        self.report.add_error(first, start, end, FOOTER)
        return None

    def _mark_unreadable(self, out: CheckedFooter, why: str) -> CheckedFooter:
        """Note that the modules could not be checked."""
        self.report.add_note("file", None, f"its modules could not be checked: {why}", out.word)
        state: State = "locked" if out.encrypted and out.key is None else "unchecked"
        kind = "modules" if out.mode == "encrypted" else "pages"
        self.report.add_region(MAGIC_SIZE, out.body_end, kind, state)
        out.locked = why
        return out

    # --- plaintext footer ------------------------------------------------------------------------

    def check_plaintext_footer(self) -> CheckedFooter:
        tail, report, end = self.tail, self.report, self.source.size - 8
        inside = tail.start, end
        out = CheckedFooter("plaintext", body_end=tail.start, inside=inside, data=tail.data)
        try:
            crypto, _ = decode_some("FileMetaData", tail.data, SIGNATURE_FIELDS)
            out.metadata, stop = decode("FileMetaData", tail.data)
        except FormatError as error:
            report.add_error(error, tail.start, end, FOOTER)
            report.add_region(tail.start, end, "footer", "fault")
            return self._mark_unreadable(out, "the footer cannot be decoded")
        if crypto.encryption_algorithm is None:
            return self._check_unsigned_footer(out, stop)
        out.encrypted = True
        if stop != len(tail.data) - SIGNATURE_SIZE:
            after = len(tail.data) - stop
            message = f"{after} bytes follow the footer, but a signature has {SIGNATURE_SIZE} bytes"
            report.add_fault("format", message, tail.start, end, FOOTER)
        out.key, out.missing, out.word = self._find_footer_key(crypto.footer_signing_key_metadata)
        out.key_name = key_name(crypto.footer_signing_key_metadata, "footer key")
        aads = list(self._list_file_aads(crypto.encryption_algorithm, out, tail.start, end))
        if out.key is None or not aads:
            why = out.locked or out.missing
            report.add_note("footer", None, f"its signature was not verified: {why}", out.word)
            if aads:
                assert out.algorithm is not None
                out.cipher = FileCipher(aads[0][0], out.algorithm)
            self._add_signature_regions(out, "plaintext")
            return out
        self._verify_signature(out, aads)
        return out

    def _verify_signature(self, out: CheckedFooter, aads: list[tuple[bytes, str]]) -> None:
        assert out.key is not None
        assert out.algorithm is not None
        data, end = self.tail.data, self.source.size - 8
        for aad, hint in aads:
            cipher = FileCipher(aad, out.algorithm)
            try:
                cipher.gcm(out.key).verify(
                    data[:-SIGNATURE_SIZE], data[-SIGNATURE_SIZE:], module_aad(aad, FOOTER)
                )
            except TagError:
                continue
            if hint:
                self.report.add_fault("aad-prefix", hint, self.tail.start, end, FOOTER)
            out.cipher = cipher
            self.report.count_verified(len(data))
            self._add_signature_regions(out, "authentic")
            self._verify_prefix(out)
            return
        out.cipher = FileCipher(aads[0][0], out.algorithm)
        self._add_signature_regions(out, "fault")
        # The finding is added later, when it is known whether the modules authenticate.
        out.signature_fault = FooterSignatureError(
            "the plaintext footer's signature does not match: wrong footer key, wrong AAD prefix "
            "or an altered footer"
        )
        self.report.add_note("footer", None, "its signature does not match")

    def _add_signature_regions(self, out: CheckedFooter, state: State) -> None:
        border, end = self.source.size - 8 - SIGNATURE_SIZE, self.source.size - 8
        key = None if state == "plaintext" else out.key_name
        self.report.add_region(self.tail.start, border, "footer", state, key=key)
        self.report.add_region(border, end, "footer signature", state, key=key)

    def _check_unsigned_footer(self, out: CheckedFooter, stop: int) -> CheckedFooter:
        """Check a plaintext file, or a file that was altered to look like one."""
        tail, report, end = self.tail, self.report, self.source.size - 8
        report.add_region(tail.start, end, "footer", "plaintext")
        out.encrypted = has_encrypted_chunks(out.metadata)
        if out.encrypted:
            out.locked = "the footer names no encryption algorithm, and no AAD"
            error = PlaintextError(
                f"{self.source.name} has encrypted columns but an unsigned footer: its encryption "
                "algorithm was removed, perhaps to make readers trust an altered footer"
            )
            report.add_error(error, tail.start, end, FOOTER)
            report.add_note("footer", None, "it is not signed")
            return out
        if stop != len(tail.data):
            report.add_warning("format", f"{len(tail.data) - stop} bytes follow the footer", end)
        report.add_note("file", None, "it is a plaintext file: nothing in it is authenticated")
        demanded = self.properties.aad_prefix or self.properties.aad_prefix_verifier
        if self.with_keys and (self.properties.require_encrypted is not False or demanded):
            error = PlaintextError(
                f"{self.source.name} is a plaintext file where an encrypted one is expected"
            )
            report.add_error(error, 0, self.source.size)
        return out

    # --- keys, algorithm, AAD --------------------------------------------------------------------

    def _find_footer_key(self, metadata: bytes | None) -> KeyAnswer:
        given = self.properties.footer_key
        assert given is None or isinstance(given, Key)
        return look_for_key(self.properties, given, metadata, "footer key", None, self.report)

    def _list_file_aads(
        self, union: ThriftStruct, out: CheckedFooter, start: int, end: int
    ) -> Iterator[tuple[bytes, str]]:
        """Yield possible file AADs, the likeliest first, with the finding to report if one fits.

        Yield nothing if neither the file nor the caller determines the AAD.
        """
        report, properties = self.report, self.properties
        try:
            out.algorithm, struct = read_algorithm(union)
        except UnsupportedFormatError as error:
            report.add_error(error, start, end)
            out.locked = "the file names no encryption algorithm that modcrypt knows"
            return
        if self.with_keys:
            try:
                check_algorithm(out.algorithm, properties)
            except UnsupportedFormatError as error:
                report.add_error(error, start, end)
        out.prefix, out.unique = struct.aad_prefix or None, struct.aad_file_unique
        stored, given, unique = out.prefix, properties.aad_prefix, out.unique
        assert not callable(given)  # it is bound to the file
        try:
            yield file_aad_of(struct, properties), ""
        except AadPrefixError as error:
            if struct.supply_aad_prefix and not stored and not given:
                out.locked = "it needs an AAD prefix that the file does not store; pass aad_prefix"
                if out.key is not None:
                    report.add_error(error, start, end)
                    return
            else:
                report.add_error(error, start, end)
                assert unique is not None
                yield (stored or (given if struct.supply_aad_prefix else b"") or b"") + unique, ""
        except FormatError as error:
            report.add_error(error, start, end)
            out.locked = "its AAD is unknown"
            return
        if unique is None:
            return
        if given:
            yield given + unique, _GIVEN_PREFIX_FITS
        if given or stored:
            yield unique, _EMPTY_PREFIX_FITS

    def _verify_prefix(self, out: CheckedFooter) -> None:
        """Pass the stored AAD prefix, which is authenticated by now, to the caller's verifier."""
        verifier = self.properties.aad_prefix_verifier
        if verifier is None or out.prefix is None or verifier(out.prefix) is True:
            return
        self.report.add_fault(
            "aad-prefix",
            f"aad_prefix_verifier refuses the file's AAD prefix {out.prefix[:200]!r}; it accepts "
            "one by returning True",
            *out.inside,
        )
