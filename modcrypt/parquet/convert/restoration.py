"""Keep what encryption cannot keep in its place, so that decryption restores every byte.

Encryption drops bytes that no field of the footer names (copies of column metadata, padding),
spells Thrift in one way, and corrects offsets. Where that changes a file, one module before the
footer keeps the original bytes:

    JSON, one line: {"parts": [[row group, column, part, bytes before it, bytes instead of it or
                    null, [[page, bytes of its header], ...]], ...], "end": bytes before the footer,
                    "footer": bytes of the footer or null, "size": bytes of the file}
    these bytes, in that order

It is compressed, and encrypted with AES GCM (framed as PME 5.1) under the footer key, or a key that
HKDF derives from all keys of the file: the bytes may hold statistics of any column. Other readers
find no field that leads to it. The list of added fields (`footer.mark_absent`) names its place and
its hash, so the footer's tag, and the writer's signature, protect it.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from modcrypt.aead import GcmCipher, combine_keys
from modcrypt.errors import FormatError, IntegrityError, LimitError, ModcryptError, TagError
from modcrypt.io.sources import Source
from modcrypt.keys import Key
from modcrypt.parquet.crypto.file_plan import OpenFile, ReadPlan
from modcrypt.parquet.crypto.relocation import Relocation
from modcrypt.parquet.format.framing import MAGIC_SIZE
from modcrypt.parquet.format.kept_place import MAX_KEPT, find_place
from modcrypt.parquet.format.modules import Part, Span
from modcrypt.pkmt1.strict_json import strict_json
from modcrypt.runtime.log import LOGGER

_LABEL = b"modcrypt restoration 1"
"""Begins with no module type of PME (0 to 9), so that no other module has this AAD."""


@dataclass(slots=True)
class KeptPart:
    """The original bytes before and inside a part of a file."""

    before: bytes = b""  # bytes before it that no field names
    # The original bytes of an index or filter; None if decryption restores them.
    instead: bytes | None = None
    # The original page headers that decryption would not restore, by page.
    headers: dict[int, bytes] = field(default_factory=dict)


@dataclass(slots=True)
class Kept:
    """The original bytes of a file that decryption would not restore."""

    # Those before and inside its parts, by row group, column and part.
    parts: dict[tuple[int, int, int], KeptPart] = field(default_factory=dict)
    end: bytes = b""  # those between the last part and the footer
    footer: bytes | None = None  # the footer; None if decryption restores it
    size: int = 0  # size of the file in bytes

    def part(self, span: Span) -> KeptPart | None:
        """Return what is kept for a part of the file."""
        return self.parts.get((span.row_group, span.column, int(span.part)))

    def encode(self) -> bytes:
        """Return the content of the module."""
        rows: list[Any] = []
        blobs: list[bytes] = []
        for place, kept in self.parts.items():
            headers = [[page, len(raw)] for page, raw in kept.headers.items()]
            instead = None if kept.instead is None else len(kept.instead)
            rows.append([*place, len(kept.before), instead, headers])
            blobs += [kept.before, kept.instead or b"", *kept.headers.values()]
        footer = None if self.footer is None else len(self.footer)
        head = {"parts": rows, "end": len(self.end), "footer": footer, "size": self.size}
        text = json.dumps(head, separators=(",", ":")).encode()
        return zlib.compress(b"\n".join([text, b"".join([*blobs, self.end, self.footer or b""])]))

    @classmethod
    def decode(cls, data: bytes) -> Kept:
        """Return what a module keeps; raise FormatError or LimitError if it is malformed."""
        unpack = zlib.decompressobj()
        try:
            plain = unpack.decompress(data, MAX_KEPT)
        except zlib.error:
            raise FormatError("the module that restores the file is damaged") from None
        if not (unpack.eof or unpack.unconsumed_tail):
            raise FormatError("the module that restores the file is cut off")
        if not unpack.eof:
            raise LimitError(f"the module that restores the file has more than {MAX_KEPT} bytes")
        text, _, rest = plain.partition(b"\n")
        try:
            return cls._parse(strict_json(text), _Cutter(rest))
        except (ModcryptError, ValueError, TypeError, KeyError):
            raise FormatError("the module that restores the file is malformed") from None

    @classmethod
    def _parse(cls, head: Any, cutter: _Cutter) -> Kept:
        kept = cls(size=cutter.count(head["size"]))
        for row_group, column, part, before, instead, headers in head["parts"]:
            place = cutter.count(row_group), cutter.count(column), cutter.count(part)
            own = KeptPart(cutter.cut(before), None if instead is None else cutter.cut(instead))
            own.headers = {cutter.count(page): cutter.cut(size) for page, size in headers}
            kept.parts[place] = own
        kept.end = cutter.cut(head["end"])
        kept.footer = None if head["footer"] is None else cutter.cut(head["footer"])
        cutter.finish()
        return kept


class _Cutter:
    """Cuts bytes into pieces of declared sizes; raises ValueError for others."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def count(self, number: Any) -> int:
        if type(number) is not int or number < 0:
            raise ValueError("not a count")
        return number

    def cut(self, size: Any) -> bytes:
        start, self._at = self._at, self._at + self.count(size)
        if self._at > len(self._data):
            raise ValueError("too few bytes")
        return self._data[start : self._at]

    def finish(self) -> None:
        if self._at != len(self._data):
            raise ValueError("too many bytes")


def find_kept(
    source: Source, moves: Relocation, respelt: Sequence[Span], body_end: int, *,
    keeps_footer: bool,
) -> Kept | None:  # fmt: skip
    """Return the bytes of a source that decryption of the new file would not restore.

    Args:
        moves: Its parts, in the order in which they were written.
        respelt: Those of its indexes and filters whose bytes decryption would not restore.
        body_end: Offset of its footer.
        keeps_footer: Whether decryption would restore another footer.

    Returns:
        None if decryption restores the file as it is; or if too many bytes would be kept, as a
            warning in the log says.
    """
    if not (keeps_footer or respelt or _leaves_anything(moves, body_end)):
        return None
    try:
        return _collect(_Budget(source), moves, set(respelt), body_end, keeps_footer)
    except LimitError as error:
        LOGGER.warning("%s: decryption will not restore every byte: %s", source.name, error)
        return None


def _collect(
    budget: _Budget, moves: Relocation, changed: set[Span], body_end: int, keeps_footer: bool
) -> Kept | None:
    kept, at = Kept(size=budget.source.size), MAGIC_SIZE
    for span, _, _ in moves.spans:
        own = KeptPart()
        if span.start < at:  # written behind its place, where it is kept as bytes without a name
            own.instead, keeps_footer = b"", True
        else:
            own.before = budget.read(at, span.start)
            at = span.end
            if span in changed:
                own.instead = budget.read(span.start, span.end)
        move = moves.chunks[span.row_group].get(span.column)
        if span.part is Part.PAGES and move is not None:
            own.headers = {n: budget.read(start, end) for n, start, end in move.respelt}
        if own != _NOTHING:
            kept.parts[span.row_group, span.column, int(span.part)] = own
    kept.end = budget.read(at, body_end)
    if keeps_footer:
        kept.footer = budget.read(body_end, kept.size)
    return kept if kept.parts or kept.end or keeps_footer else None


_NOTHING = KeptPart()


def _leaves_anything(moves: Relocation, body_end: int) -> bool:
    """Return whether there are bytes between the parts, or headers that are spelt otherwise."""
    at = MAGIC_SIZE
    for (start, end, _, _, _), _, _ in moves.spans:
        if start != at:
            return True
        at = end
    respelt = (move.respelt for of_group in moves.chunks for move in of_group.values())
    return at != body_end or any(respelt)


class _Budget:
    """Reads bytes of a source until they are too many."""

    def __init__(self, source: Source) -> None:
        self.source, self._left = source, MAX_KEPT >> 1  # the rest is for the description

    def read(self, start: int, end: int) -> bytes:
        self._left -= end - start
        if self._left < 0:
            raise LimitError(f"more than {MAX_KEPT >> 1} bytes to keep")
        return self.source.read_at(start, end - start) if start < end else b""


def encrypt_kept(kept: Kept, keys: Sequence[Key], file_aad: bytes) -> bytes:
    """Return the module that keeps the bytes, under all keys of a file, the footer key first."""
    return _cipher(keys).encrypt(kept.encode(), file_aad + _LABEL)


def read_kept(file: OpenFile, plan: ReadPlan) -> Kept | None:
    """Return what an encrypted file keeps to restore every byte of the plaintext file.

    Returns:
        None if it keeps nothing, or the plan has not all of the file, as keys are missing.

    Raises:
        IntegrityError, FormatError, LimitError: It was altered, or is malformed.
        UnsupportedFormatError: A newer version of modcrypt wrote it.
    """
    place = find_place(plan.footer.absent, plan.footer.body_end)
    footer_key = plan.footer.footer_key
    if place is None or footer_key is None:
        return None
    if plan.missing or not all(plan.keep) or len(plan.row_groups) < len(file.metadata.row_groups):
        LOGGER.info("%s: not every byte is restored, as keys are missing", file.source.name)
        return None
    keys = [footer_key, *(cipher.key for cipher in plan.ciphers.values())]
    return decrypt_kept(place.read(file.raw), keys, plan.footer.cipher.file_aad)


def decrypt_kept(module: bytes, keys: Sequence[Key], file_aad: bytes) -> Kept:
    """Return what a module keeps.

    Raises:
        IntegrityError: It does not authenticate under these keys.
        FormatError: It is malformed.
        LimitError: It is too large.
    """
    try:
        return Kept.decode(_cipher(keys).decrypt(module, file_aad + _LABEL))
    except TagError:
        raise IntegrityError(
            "the module by which decryption restores every byte does not authenticate; to decrypt "
            "the rows without it, pass exact=False"
        ) from None


def _cipher(keys: Sequence[Key]) -> GcmCipher:
    return GcmCipher(combine_keys(list(dict.fromkeys(keys)), _LABEL))
