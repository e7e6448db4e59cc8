"""Opening footers in both footer modes: algorithm, AAD prefix, key, tag or signature.

Each check exists once and reports to a `Report`. A strict report raises at the first fault, before
the next byte is used: so files are read. A collecting report goes on as far as the bytes allow: so
files are verified, and an altered plaintext footer still says where pages are.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from modcrypt.aad import module_aad
from modcrypt.errors import (
    AadPrefixError,
    FooterSignatureError,
    FormatError,
    KeyNotFoundError,
    ModcryptError,
    PlaintextError,
    TagError,
    TagMismatchError,
    TruncationError,
    UnsupportedFormatError,
    WriterSignatureError,
    list_names,
)
from modcrypt.io.sources import Source
from modcrypt.keys import Key
from modcrypt.parquet.crypto.ciphers import FileCipher
from modcrypt.parquet.crypto.column_kinds import has_encrypted_chunks
from modcrypt.parquet.crypto.crypto_fields import (
    CryptoFields,
    check_algorithm,
    declared_aad,
    make_file_aad,
    needs_prefix,
    other_aads,
    read_algorithm,
    read_crypto_fields,
)
from modcrypt.parquet.crypto.footer import FOOTER, Footer, find_key_fault
from modcrypt.parquet.crypto.key_lookup import look_for_key
from modcrypt.parquet.crypto.properties import (
    BoundRetriever,
    FileDecryptionProperties,
    bind_to_file,
)
from modcrypt.parquet.format.framing import (
    MAGIC_ENCRYPTED,
    MAGIC_SIZE,
    SIGNATURE_SIZE,
    TAIL_SIZE,
    Tail,
    close_tail,
    read_tail,
)
from modcrypt.parquet.format.idl import CHUNKS, STATISTICS, ThriftStruct, decode, extension
from modcrypt.parquet.format.report import ALWAYS_OPEN, Report
from modcrypt.parquet.signatures.signers import SealedFooter

if TYPE_CHECKING:
    from modcrypt.parquet.format.byte_map import State

_OPEN_BY_DESIGN = (
    "the format encrypts it in no file: the algorithm's name, the border between AAD prefix and "
    "file-unique, and the key metadata can be altered; AADs and tags depend on the rest"
)

_SMALL_FOOTER = 4 << 10
"""Size in bytes up to which decoding all chunks takes no longer than locating them."""


def read_plain(source: Source) -> Footer:
    """Read the footer of a plaintext file.

    Raise UnsupportedFormatError if the file is already encrypted; and FormatError if the file is
    not Parquet, or is damaged.
    """
    tail = read_tail(source)
    refusal = UnsupportedFormatError(
        f"{source.name} is encrypted already; change its keys with rekey"
    )
    if tail.magic == MAGIC_ENCRYPTED:
        raise refusal
    metadata, end = decode("FileMetaData", tail.data, lazy=STATISTICS)
    if metadata.encryption_algorithm is not None or has_encrypted_chunks(metadata):
        raise refusal
    if end != len(tail.data):
        raise FormatError(f"{source.name}: {len(tail.data) - end} bytes follow the footer")
    return Footer(tail, metadata=metadata, encrypted=False, start=tail.start)


def bind_and_report(
    properties: FileDecryptionProperties, source: Source, report: Report
) -> FileDecryptionProperties:
    """Return the properties bound to a file that is verified or inspected.

    If binding the key retriever fails, this is reported, and the properties have none.
    """
    strict = properties
    if properties.on_missing_key != "error" or not properties.check_footer_integrity:
        # A retriever bound to its file must report why it has no key for a column.
        strict = replace(properties, on_missing_key="error", check_footer_integrity=True)
    try:
        return bind_to_file(strict, source)
    except ModcryptError as error:  # the key material file beside the file cannot be read
        report.add_error(error)
        return bind_to_file(replace(strict, key_retriever=None, seal=None), source)


def open_footer(
    tail: Tail, properties: FileDecryptionProperties, name: str, report: Report | None = None,
    *, whole: bool = False,
) -> Footer:  # fmt: skip
    """Authenticate and decode the footer in a file's tail.

    The properties are bound to the file. `name` is for messages. A report of None is strict: the
    first fault is raised. If a strict report is about a file of which all chunks will be used,
    `whole` decodes them at once, which is quicker than to locate them first; so is a small footer.

    Raises:
        PlaintextError: The file is not encrypted, or its signature was stripped.
        KeyNotFoundError: The footer key is missing.
        AadPrefixError: The AAD prefix is missing, unused or different.
        TagMismatchError, FooterSignatureError: The footer does not authenticate.
        UnsupportedFormatError: The properties do not accept the file's algorithm.
        WriterSignatureError: None of the required writers signed the file, or it is not the one
            that was sealed.
        FormatError: The bytes violate the format.
    """
    footer, report = Footer(tail, start=tail.start), report or Report(strict=True)
    report.add_region(0, MAGIC_SIZE, "magic", "plaintext")
    report.add_region(tail.end, tail.end + TAIL_SIZE - MAGIC_SIZE, "footer length", "plaintext")
    report.add_region(tail.end + TAIL_SIZE - MAGIC_SIZE, tail.end + TAIL_SIZE, "magic", "plaintext")
    whole = whole or len(tail.data) <= _SMALL_FOOTER
    lazy = 0 if not report.strict else STATISTICS if whole else CHUNKS
    opening = _Opening(tail, properties, name, report, footer, lazy)
    opening.compare_seal()
    if tail.magic == MAGIC_ENCRYPTED:
        opening.open_encrypted()
    else:
        opening.open_plaintext()
    if properties.signed_by and footer.metadata is not None:
        opening.verify_writer()
    return footer


class _Opening:
    """The opening of one footer, in an order that lets no unauthenticated byte decide.

    1. The end of the file is compared with the seal of its dataset before it is interpreted.
    2. Only the fields that authentication needs are read (PME 5.4, 5.5). Algorithm and AAD prefix
       are judged by what the caller accepts, since attackers who alter the file can alter them.
    3. The footer key is looked up. Key metadata is not authenticated either: it may lead to no key,
       or to a wrong one.
    4. The tag (PME 5.4) or the signature (PME 5.5) is verified over the bytes as read, and only
       then are they decoded. A collecting report also decodes a plaintext footer that does not
       authenticate, to locate the modules, after it has noted the fault.
    5. The caller's verifier gets the AAD prefix, which is authentic by now.
    6. Last, a required writer must have signed the footer, and committed to this footer key.
    """

    def __init__(
        self, tail: Tail, properties: FileDecryptionProperties, name: str, report: Report,
        footer: Footer, lazy: int,
    ) -> None:  # fmt: skip
        self.tail, self.properties, self.name = tail, properties, name
        self.report, self.footer, self.lazy = report, footer, lazy

    # --- encrypted footer ------------------------------------------------------------------------

    def open_encrypted(self) -> None:
        tail, report, footer = self.tail, self.report, self.footer
        try:
            footer.fields = fields = read_crypto_fields(tail)
        except FormatError as error:
            report.add_error(error, tail.start, tail.end)
            self._give_up("its crypto metadata cannot be read")
            return
        footer.start = tail.start + fields.end
        report.add_region(tail.start, footer.start, "file crypto metadata", "plaintext")
        report.add_note(ALWAYS_OPEN, None, _OPEN_BY_DESIGN, by_design=True)
        aads = self._prepare(fields, footer.start)
        if footer.footer_key is None or not aads:
            if report.strict:
                raise KeyNotFoundError(f"the footer is encrypted and {self._describe_lack()}")
            self._add_region("unchecked" if footer.footer_key else "locked")
            self._give_up(footer.locked or footer.answer.why)
            return
        plain = self._open_module(aads, memoryview(tail.data)[fields.end :])
        if plain is None:
            self._add_region("fault")
            self._give_up("the footer, which says where they are, did not open")
            return
        self._add_region("authentic")
        report.count_verified(tail.end - footer.start)
        # parquet-java pads the modules that it encrypts: bytes may follow the struct's STOP.
        end = self._decode(plain)
        if end is not None:
            footer.padding = len(plain) - end
            self._verify_prefix()

    def _open_module(self, aads: list[tuple[bytes, str]], module: memoryview) -> bytes | None:
        """Open the footer with the first AAD that fits; if none does, report the first error."""
        assert self.footer.footer_key is not None
        first: ModcryptError | None = None
        for aad, finding in aads:
            cipher = self._make_cipher(aad)
            try:
                plain = cipher.decrypt(self.footer.footer_key, FOOTER, module)
            except TruncationError as error:
                first = first or error
                continue
            except TagMismatchError:
                first = first or TagMismatchError(FOOTER, self._find_hint())
                continue
            self._accept_cipher(cipher, finding)
            return plain
        assert first is not None
        self.report.add_error(self._empty_prefix_error() or first, *self.footer.inside, FOOTER)
        return None

    def _find_hint(self) -> str:
        """Return a possible cause of a wrong tag."""
        if self.properties.aad_prefix:
            return "The given AAD prefix is part of the AAD"
        if self.footer.key_metadata is None or self.properties.footer_key is None:
            return ""
        from modcrypt.pkmt1.key_info import key_info

        name = key_info(self.footer.key_metadata).master_key_id
        return f"The file names master key {name[:200]!r}: pass its policy or URI" if name else ""

    def _empty_prefix_error(self) -> AadPrefixError | None:
        """Return the error of a footer that the empty prefix does not open; None if not given."""
        if self.properties.aad_prefix != b"" or not needs_prefix(self.footer.algorithm, None):
            return None
        return AadPrefixError(
            "the file was written with an AAD prefix that it does not store, and its footer does "
            "not authenticate with the empty one: pass aad_prefix, unless the key is wrong"
        )

    # --- plaintext footer ------------------------------------------------------------------------

    def open_plaintext(self) -> None:
        footer = self.footer
        try:
            # Before the signature is verified, read only the fields that its verification needs.
            footer.fields = fields = read_crypto_fields(self.tail)
        except FormatError as error:
            footer.encrypted = False
            self._refuse_metadata(error)
            return
        if fields.algorithm is None:
            self._open_unsigned()
            return
        if (after := len(self.tail.data) - fields.end) != SIGNATURE_SIZE:
            message = (
                f"{self.name}: {after} bytes follow the footer, not the {SIGNATURE_SIZE} of its "
                "signature"
            )
            self.report.add_fault("format", message, *footer.inside, FOOTER)
        aads = self._prepare(fields, self.tail.end)
        if not self.properties.check_footer_integrity or footer.footer_key is None or not aads:
            self._leave_unverified(aads)
        else:
            self._verify_signature(footer.footer_key, aads)
        if self._decode(self.tail.data) is not None and footer.signature_fault is None:
            self._verify_prefix()

    def _leave_unverified(self, aads: list[tuple[bytes, str]]) -> None:
        """Note that the signature is not verified: an error, unless the caller waives it."""
        footer = self.footer
        if self.properties.check_footer_integrity and self.report.strict:
            raise KeyNotFoundError(
                f"the plaintext footer is signed, and {self._describe_lack()}; pass it to verify "
                "the signature, or check_footer_integrity=False to read it unverified"
            )
        if aads:
            footer.accept_cipher(self._make_cipher(aads[0][0]))
        why = footer.locked or footer.answer.why
        note = f"its signature was not verified: {why}"
        self.report.add_note("footer", None, note, footer.answer.word)
        self._add_signature_regions("unchecked" if footer.footer_key else "locked")

    def _verify_signature(self, key: Key, aads: list[tuple[bytes, str]]) -> None:
        """Verify the signature over the bytes as read, not over a new encoding (PME 5.5)."""
        data = self.tail.data
        for aad, finding in aads:
            cipher = self._make_cipher(aad)
            try:
                cipher.gcm(key).verify(
                    data[:-SIGNATURE_SIZE], data[-SIGNATURE_SIZE:], module_aad(aad, FOOTER)
                )
            except TagError:
                continue
            self._accept_cipher(cipher, finding)
            self.report.count_verified(len(data))
            self._add_signature_regions("authentic")
            return
        self._refuse_signature(aads[0][0])

    def _refuse_signature(self, aad: bytes) -> None:
        error = self._empty_prefix_error() or FooterSignatureError(
            "the plaintext footer's signature does not match: wrong footer key, wrong AAD prefix "
            "or an altered footer"
        )
        if self.report.strict:
            raise error
        # The finding is added later, when it is known whether the modules authenticate.
        self.footer.signature_fault = error
        self.footer.accept_cipher(self._make_cipher(aad))
        self._add_signature_regions("fault")
        self.report.add_note("footer", None, "its signature does not match")

    def _add_signature_regions(self, state: State) -> None:
        border, end = max(self.tail.start, self.tail.end - SIGNATURE_SIZE), self.tail.end
        key = self.footer.key_name
        if state in ("authentic", "fault"):
            self.report.add_region(self.tail.start, border, "footer", state, key=key)
        else:
            self.report.add_region(self.tail.start, border, "footer", "plaintext")
        self.report.add_region(border, end, "footer signature", state, key=key)

    def _open_unsigned(self) -> None:
        """Open a plaintext file, or a file that was altered to look like one."""
        footer, report = self.footer, self.report
        footer.encrypted = False
        end = self._decode(self.tail.data)
        if end is None:
            return
        report.add_region(*footer.inside, "footer", "plaintext")
        if has_encrypted_chunks(footer.metadata):
            footer.encrypted = True
            footer.locked = "the footer names no encryption algorithm, and no AAD"
            error = PlaintextError(
                f"{self.name} has encrypted columns but an unsigned footer: its encryption "
                "algorithm was removed, perhaps to make readers trust an altered footer"
            )
            report.add_error(error, *footer.inside, FOOTER)
            report.add_note("footer", None, "it is not signed")
            return
        if after := len(self.tail.data) - end:
            report.add_warning("format", f"{after} bytes follow the footer", self.tail.end)
        report.add_note("file", None, "it is a plaintext file: nothing in it is authenticated")
        demands = self.properties.aad_prefix, self.properties.aad_prefix_verifier
        if self.properties.require_encrypted is not False or demands != (None, None):
            error = PlaintextError(
                f"{self.name} is a plaintext file where an encrypted one is expected; if that is "
                "intended, pass require_encrypted=False and no AAD prefix to read it"
            )
            report.add_error(error, 0, self.tail.end + TAIL_SIZE)

    # --- both modes ------------------------------------------------------------------------------

    def _prepare(self, fields: CryptoFields, end: int) -> list[tuple[bytes, str]]:
        """Judge algorithm and AAD prefix, then find the footer key; return possible file AADs."""
        footer, place = self.footer, (self.tail.start, end)
        aads, missing_prefix = self._list_file_aads(fields.algorithm, place)
        given = self.properties.footer_key
        assert given is None or isinstance(given, Key)
        footer.key_metadata = fields.key_metadata
        retriever = self.properties.key_retriever
        if isinstance(retriever, BoundRetriever) and aads:
            retriever.accept_file(fields.key_metadata, aads[0][0])
        footer.answer = look_for_key(self.properties, given, fields.key_metadata, None, self.report)
        if missing_prefix is not None and footer.footer_key is not None:
            self.report.add_error(missing_prefix, *place)
        return aads

    def _list_file_aads(
        self, union: ThriftStruct, place: tuple[int, int]
    ) -> tuple[list[tuple[bytes, str]], AadPrefixError | None]:
        """Return possible file AADs, the likeliest first, with the finding to report if one fits.

        There are none if neither the file nor the caller determines the AAD. If only the prefix is
        missing, return the error, too: it is a fault if there is a key.
        """
        footer, report, properties = self.footer, self.report, self.properties
        try:
            footer.algorithm_name, footer.algorithm = read_algorithm(union)
        except UnsupportedFormatError as error:
            report.add_error(error, *place)
            footer.locked = str(error)
            return [], None
        try:
            check_algorithm(footer.algorithm_name, properties)
        except UnsupportedFormatError as error:
            report.add_error(error, *place)
        try:
            aads = [(make_file_aad(footer.algorithm, properties), "")]
        except AadPrefixError as error:
            if needs_prefix(footer.algorithm, properties.aad_prefix) and not report.strict:
                footer.locked = (
                    "it needs an AAD prefix that the file does not store; pass aad_prefix, or if "
                    "it belongs to an Iceberg table, read the table with modcrypt.iceberg"
                )
                return [], error
            report.add_error(error, *place)
            aads = [(declared_aad(footer.algorithm, properties), "")]
        except FormatError as error:
            report.add_error(error, *place)
            footer.locked = "its AAD is unknown"
            return [], None
        return aads if report.strict else aads + other_aads(footer.algorithm, properties), None

    def _make_cipher(self, aad: bytes) -> FileCipher:
        return FileCipher(aad, str(self.footer.algorithm_name))

    def _accept_cipher(self, cipher: FileCipher, finding: str) -> None:
        """Note that the footer authenticates under the cipher's AAD."""
        if finding:
            self.report.add_fault("aad-prefix", finding, *self.footer.inside, FOOTER)
        self.footer.accept_cipher(cipher)
        self.footer.is_verified = True

    def compare_seal(self) -> None:
        """Check that the end of the file is the one that the seal of its dataset names."""
        seal, tail = self.properties.seal, self.tail
        if not isinstance(seal, SealedFooter):
            return
        if why := seal.find_fault(close_tail(tail.data, tail.magic)):
            error = WriterSignatureError(f"{self.name}: {why}")
            self.report.add_error(error, *self.footer.inside, FOOTER)

    def verify_writer(self) -> None:
        """Check that a required key signed the footer and its list of hashes."""
        # This comes last: nothing but the metadata's structure has been used before.
        footer = self.footer
        error: WriterSignatureError | None = None
        why = self._find_writer_fault()
        if why is not None:
            ids = list_names(key.hex_id for key in self.properties.signed_by)
            error = WriterSignatureError(f"{self.name}: {why}; signatures are accepted of {ids}")
        elif footer.footer_key is not None:
            error = find_key_fault(footer, None, footer.footer_key)
        if error is not None:
            self.report.add_error(error, *footer.inside, FOOTER)

    def _find_writer_fault(self) -> str | None:
        """Return why no required key vouches for the file, or note the key that does."""
        from modcrypt.parquet.signatures.signature_block import SignedContext, find_signature_fault

        footer, block = self.footer, self.footer.signature
        if not footer.encrypted:
            return "it is a plaintext file, and these have no signature"
        if block is None:
            return "no writer has signed it, or the signature was removed"
        if footer.padding or not footer.has_cipher:
            return f"its signature cannot be checked: {footer.locked or 'bytes follow the footer'}"
        cipher = footer.cipher
        context = SignedContext(cipher.file_aad, cipher.algorithm, footer.plaintext_footer)
        why = find_signature_fault(block, self.properties.signed_by, context)
        if why is None:
            footer.signed_by, footer.signed = block.key_id.hex(), block.entries
        return why

    def _verify_prefix(self) -> None:
        """Pass the stored AAD prefix, which is authenticated by now, to the caller's verifier."""
        verifier, prefix = self.properties.aad_prefix_verifier, self.footer.stored_prefix
        if verifier is None or prefix is None or verifier(prefix) is True:
            return
        message = (
            f"aad_prefix_verifier refuses the file's AAD prefix {prefix[:200]!r}; it must return "
            "True to accept a prefix"
        )
        self.report.add_fault("aad-prefix", message, *self.footer.inside)

    def _decode(self, data: bytes) -> int | None:
        """Decode the metadata; return where it ends, or None if it cannot be decoded."""
        try:
            self.footer.metadata, end = decode("FileMetaData", data, lazy=self.lazy)
            if extension(self.footer.metadata) is not None:
                from modcrypt.parquet.signatures.signature_block import take_signature

                self.footer.signature = take_signature(self.footer.metadata, data, end)
        except FormatError as error:
            self._refuse_metadata(error)
            return None
        return end

    def _refuse_metadata(self, error: FormatError) -> None:
        self.report.add_error(error, *self.footer.inside, FOOTER)
        if not self.footer.encrypted:
            self._add_region("fault")
        self._give_up("the footer cannot be decoded")

    def _add_region(self, state: State) -> None:
        if self.report.regions is None:  # The name of a key takes time to decode.
            return
        key = self.footer.key_name if self.footer.encrypted else None
        self.report.add_region(*self.footer.inside, "footer", state, key=key)

    def _describe_lack(self) -> str:
        """Return which key the caller would have to give."""
        from modcrypt.pkmt1.key_info import key_info

        if key_info(self.footer.key_metadata).kind == "recipients":
            return "no identity of its recipients is given"
        if self.properties.key_retriever is not None and not self.footer.key_metadata:
            return "no footer key is given, nor does the file say where to retrieve it"
        return "no footer key is given"

    def _give_up(self, why: str) -> None:
        """Note that the modules could not be checked."""
        footer, report = self.footer, self.report
        note = f"its modules could not be checked: {why}"
        report.add_note("file", None, note, footer.answer.word)
        state: State = "locked" if footer.encrypted and footer.footer_key is None else "unchecked"
        kind = "pages" if footer.plaintext_footer else "modules"
        report.add_region(MAGIC_SIZE, footer.body_end, kind, state)
        footer.locked = why
