"""The footer of a file that is verified: read as far as its bytes allow, whatever is wrong.

Reading a file stops at the first fault; here each is told, and what comes after it is looked at as
well as it can be: a plaintext footer whose signature does not match still says where pages are.
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
from modcrypt.io.storage import Source
from modcrypt.keys import Key
from modcrypt.parquet.crypto.ciphers import FileCipher, find_key
from modcrypt.parquet.crypto.footer import (
    FOOTER,
    SIGNATURE_FIELDS,
    check_algorithm,
    file_aad_of,
    has_encrypted_chunks,
    named_algorithm,
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

_OPEN = (
    "the format seals it in no file: the algorithm's name, the border between AAD prefix and "
    "file-unique, and the key metadata can be altered; AADs and tags depend on the rest"
)
_GIVEN = (
    "the footer authenticates with the AAD prefix that was given, but the file says otherwise: its "
    "crypto metadata was altered"
)
_WITHOUT = (
    "the footer authenticates without an AAD prefix, but the file, or the caller, has one: it was "
    "added later"
)


@dataclass(slots=True)
class CheckedFooter:
    """What is known of a file from its end.

    Without `metadata` its modules can't be found; without `cipher` none can be opened, and `locked`
    says why. `missing` says why there is no footer key, and `word` is the error code of that.
    """

    mode: Literal["encrypted", "plaintext", "none"] = "none"
    encrypted: bool = False
    algorithm: str | None = None
    metadata: ThriftStruct = None  # None where it could not be read
    body_end: int = 0
    inside: tuple[int, int] = (0, 0)  # the bytes that hold the metadata
    data: bytes = b""  # of a plaintext footer
    cipher: FileCipher | None = None
    key: Key | None = None
    key_name: str = "footer key"
    locked: str = ""
    missing: str = ""
    word: str | None = None
    prefix: bytes | None = None  # that it stores
    unique: bytes | None = None
    signature_fault: FooterSignatureError | None = None

    @property
    def is_verified(self) -> bool:
        """Whether its tag or signature fits."""
        if self.mode == "encrypted":
            return self.metadata is not None
        return self.encrypted and self.key is not None and self.signature_fault is None


def check_footer(
    source: Source, properties: FileDecryptionProperties, report: Report, *, with_keys: bool
) -> CheckedFooter:
    """Read a file's end and say what is wrong with it.

    Args:
        properties: bound to the file.
        with_keys: whether the caller gave properties; else nothing is insisted on.
    """
    try:
        tail = read_tail(source)
    except ModcryptError as error:
        report.error(error, 0, source.size)
        report.note("file", None, "it could not be read as a Parquet file")
        return CheckedFooter()
    report.region(0, MAGIC_SIZE, "magic", "plaintext")
    report.region(source.size - 8, source.size - 4, "footer length", "plaintext")
    report.region(source.size - 4, source.size, "magic", "plaintext")
    reading = _Reading(source, tail, properties, report, with_keys)
    return reading.sealed() if tail.magic == MAGIC_ENCRYPTED else reading.signed()


class KeyAnswer(NamedTuple):
    """A key, or why there is none.

    Attributes:
        key: None where there is none.
        why: The reason, in words.
        word: Its error code; None where a fault was reported.
    """

    key: Key | None
    why: str = ""
    word: str | None = None


def look_for_key(
    properties: FileDecryptionProperties, given: Key | None, metadata: bytes | None, what: str,
    column: str | None, report: Report,
) -> KeyAnswer:  # fmt: skip
    """Find a key, or say why there is none; malformed key material is a fault of the file."""
    missing = "there is no footer key" if column is None else "there is no key for it"
    try:
        key = find_key(properties, given, metadata, what, column)
    except KeyMaterialError as error:
        report.error(error)
        return KeyAnswer(None, "its key material is malformed, or not what is expected")
    except KeyRetrievalError as error:
        why = str(error).removeprefix(f"{what}: ")
        if isinstance(error, KmsUnavailableError):
            report.warn(error.word, str(error))
        return KeyAnswer(None, f"{_REASONS.get(error.word, missing)}: {why}", error.word)
    return KeyAnswer(key) if key is not None else KeyAnswer(None, missing, KeyNotFoundError.word)


_REASONS = {
    KeyAccessDeniedError.word: "its key is refused",
    KeyDisabledError.word: "its key is refused",
    KmsUnavailableError.word: "its key could not be had",
    KeyRetrievalError.word: "its key could not be had",
}


@dataclass(slots=True)
class _Reading:
    source: Source
    tail: Tail
    properties: FileDecryptionProperties
    report: Report
    with_keys: bool

    # --- encrypted footer ------------------------------------------------------------------------

    def sealed(self) -> CheckedFooter:
        tail, report, size = self.tail, self.report, self.source.size
        out = CheckedFooter("encrypted", True, body_end=tail.start)
        try:
            crypto, end = decode("FileCryptoMetaData", tail.data)
        except FormatError as error:
            report.error(error, tail.start, size - 8)
            return self._unreadable(out, "its crypto metadata can't be read")
        start = tail.start + end
        report.region(tail.start, start, "file crypto metadata", "plaintext")
        report.note(ALWAYS_OPEN, None, _OPEN, by_design=True)
        out.inside = start, size - 8
        out.key, out.missing, out.word = self._footer_key(crypto.key_metadata)
        out.key_name = key_name(crypto.key_metadata, "footer key")
        aads = list(self._aads(crypto.encryption_algorithm, out, tail.start, start))
        if out.key is None or not aads:
            out.locked = out.locked or out.missing
            state: State = "unchecked" if out.key else "locked"
            report.region(start, size - 8, "footer", state, key=out.key_name)
            return self._unreadable(out, out.locked)
        footer = self._open(out, aads, start, memoryview(tail.data)[end:])
        if footer is None:
            report.region(start, size - 8, "footer", "fault", key=out.key_name)
            return self._unreadable(out, "the footer, which says where they are, did not open")
        report.region(start, size - 8, "footer", "authentic", key=out.key_name)
        report.verified(size - 8 - start)
        try:
            # parquet-java pads the modules that it seals: bytes may follow the struct's STOP.
            out.metadata, _ = decode("FileMetaData", footer)
        except FormatError as error:
            report.error(error, start, size - 8, FOOTER)
            return self._unreadable(out, "the footer can't be decoded")
        self._judge_prefix(out)
        return out

    def _open(
        self, out: CheckedFooter, aads: list[tuple[bytes, str]], start: int, module: memoryview
    ) -> bytes | None:
        """Open the footer's module with the first AAD that fits; else the first one's error."""
        assert out.key is not None
        assert out.algorithm is not None
        end = self.source.size - 8
        first: ModcryptError | None = None
        for aad, hint in aads:
            cipher = FileCipher(aad, out.algorithm)
            try:
                footer = cipher.open(out.key, FOOTER, module)
            except TruncationError as error:
                self.report.error(error, start, end, FOOTER)
                return None
            except TagMismatchError as error:
                first = first or error
                continue
            if hint:
                self.report.fault("aad-prefix", hint, start, end, FOOTER)
            out.cipher = cipher
            return footer
        assert first is not None
        self.report.error(first, start, end, FOOTER)
        return None

    def _unreadable(self, out: CheckedFooter, why: str) -> CheckedFooter:
        """Say that nothing is known of the modules."""
        self.report.note("file", None, f"its modules could not be checked: {why}", out.word)
        state: State = "locked" if out.encrypted and out.key is None else "unchecked"
        kind = "modules" if out.mode == "encrypted" else "pages"
        self.report.region(MAGIC_SIZE, out.body_end, kind, state)
        out.locked = why
        return out

    # --- plaintext footer ------------------------------------------------------------------------

    def signed(self) -> CheckedFooter:
        tail, report, end = self.tail, self.report, self.source.size - 8
        inside = tail.start, end
        out = CheckedFooter("plaintext", body_end=tail.start, inside=inside, data=tail.data)
        try:
            crypto, _ = decode_some("FileMetaData", tail.data, SIGNATURE_FIELDS)
            out.metadata, stop = decode("FileMetaData", tail.data)
        except FormatError as error:
            report.error(error, tail.start, end, FOOTER)
            report.region(tail.start, end, "footer", "fault")
            return self._unreadable(out, "the footer can't be decoded")
        if crypto.encryption_algorithm is None:
            return self._unsigned(out, stop)
        out.encrypted = True
        if stop != len(tail.data) - SIGNATURE_SIZE:
            after = len(tail.data) - stop
            message = (
                f"{after} bytes stand after the footer, not the {SIGNATURE_SIZE} of a signature"
            )
            report.fault("format", message, tail.start, end, FOOTER)
        out.key, out.missing, out.word = self._footer_key(crypto.footer_signing_key_metadata)
        out.key_name = key_name(crypto.footer_signing_key_metadata, "footer key")
        aads = list(self._aads(crypto.encryption_algorithm, out, tail.start, end))
        if out.key is None or not aads:
            why = out.locked or out.missing
            report.note("footer", None, f"its signature was not verified: {why}", out.word)
            if aads:
                assert out.algorithm is not None
                out.cipher = FileCipher(aads[0][0], out.algorithm)
            self._signature_regions(out, "plaintext")
            return out
        self._verify(out, aads)
        return out

    def _verify(self, out: CheckedFooter, aads: list[tuple[bytes, str]]) -> None:
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
                self.report.fault("aad-prefix", hint, self.tail.start, end, FOOTER)
            out.cipher = cipher
            self.report.verified(len(data))
            self._signature_regions(out, "authentic")
            self._judge_prefix(out)
            return
        out.cipher = FileCipher(aads[0][0], out.algorithm)
        self._signature_regions(out, "fault")
        # What it means is said when it is known whether the modules authenticate.
        out.signature_fault = FooterSignatureError(
            "the plaintext footer's signature does not match: wrong footer key, wrong AAD prefix "
            "or an altered footer"
        )
        self.report.note("footer", None, "its signature does not match")

    def _signature_regions(self, out: CheckedFooter, state: State) -> None:
        border, end = self.source.size - 8 - SIGNATURE_SIZE, self.source.size - 8
        key = None if state == "plaintext" else out.key_name
        self.report.region(self.tail.start, border, "footer", state, key=key)
        self.report.region(border, end, "footer signature", state, key=key)

    def _unsigned(self, out: CheckedFooter, stop: int) -> CheckedFooter:
        """Judge a plaintext file, or one that was made to look like it."""
        tail, report, end = self.tail, self.report, self.source.size - 8
        report.region(tail.start, end, "footer", "plaintext")
        out.encrypted = has_encrypted_chunks(out.metadata)
        if out.encrypted:
            out.locked = "the footer names no encryption algorithm, and no AAD"
            error = PlaintextError(
                f"{self.source.name} has encrypted columns but an unsigned footer: its encryption "
                "algorithm was removed, perhaps to make readers trust an altered footer"
            )
            report.error(error, tail.start, end, FOOTER)
            report.note("footer", None, "it is not signed")
            return out
        if stop != len(tail.data):
            report.warn("format", f"{len(tail.data) - stop} bytes stand after the footer", end)
        report.note("file", None, "it is a plaintext file: nothing in it is authenticated")
        demanded = self.properties.aad_prefix or self.properties.aad_prefix_verifier
        if self.with_keys and (self.properties.require_encrypted is not False or demanded):
            error = PlaintextError(
                f"{self.source.name} is a plaintext file where an encrypted one is expected"
            )
            report.error(error, 0, self.source.size)
        return out

    # --- keys, algorithm, AAD --------------------------------------------------------------------

    def _footer_key(self, metadata: bytes | None) -> KeyAnswer:
        given = self.properties.footer_key
        assert given is None or isinstance(given, Key)
        return look_for_key(self.properties, given, metadata, "footer key", None, self.report)

    def _aads(
        self, union: ThriftStruct, out: CheckedFooter, start: int, end: int
    ) -> Iterator[tuple[bytes, str]]:
        """Give what may be the file AAD, the likeliest first, and what it means if it is.

        Nothing where the file, or the caller, leaves it open.
        """
        report, properties = self.report, self.properties
        try:
            out.algorithm, struct = named_algorithm(union)
        except UnsupportedFormatError as error:
            report.error(error, start, end)
            out.locked = "the file names no encryption algorithm that modcrypt knows"
            return
        if self.with_keys:
            try:
                check_algorithm(out.algorithm, properties)
            except UnsupportedFormatError as error:
                report.error(error, start, end)
        out.prefix, out.unique = struct.aad_prefix or None, struct.aad_file_unique
        stored, given, unique = out.prefix, properties.aad_prefix, out.unique
        assert not callable(given)  # it is bound to the file
        try:
            yield file_aad_of(struct, properties), ""
        except AadPrefixError as error:
            if struct.supply_aad_prefix and not stored and not given:
                out.locked = "it needs an AAD prefix that the file does not store"
                if out.key is not None:
                    report.error(error, start, end)
                    return
            else:
                report.error(error, start, end)
                assert unique is not None
                yield (stored or (given if struct.supply_aad_prefix else b"") or b"") + unique, ""
        except FormatError as error:
            report.error(error, start, end)
            out.locked = "its AAD is not known"
            return
        if unique is None:
            return
        if given:
            yield given + unique, _GIVEN
        if given or stored:
            yield unique, _WITHOUT

    def _judge_prefix(self, out: CheckedFooter) -> None:
        """Let the caller judge the stored AAD prefix, which is authenticated by now."""
        verifier = self.properties.aad_prefix_verifier
        if verifier is None or out.prefix is None or verifier(out.prefix) is True:
            return
        self.report.fault(
            "aad-prefix",
            f"aad_prefix_verifier refuses the file's AAD prefix {out.prefix[:200]!r}; it accepts "
            "one by returning True",
            *out.inside,
        )
