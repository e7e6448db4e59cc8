"""The key file of a subject vault: what opens its rows, and which subjects are erased.

    encrypted key metadata, one line | AGS1 stream of {"vault": "...", "references": "...",
     "keks": {"7": "..."}, "erased": {"GDPR-17": ["..."]}, "erasures": 12}

It has the key of references, and a KEK for each generation, usually one. Only who may use the
master key can read or change it. The KEKs are not in the database, so that a backup of it alone
opens nothing once `rotate` has replaced them. `erased` has the subjects erased since then, whose
keys a backup could bring back; `erasures` counts all that ever were, so that a proof that was
removed from the database is missed.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from secrets import token_bytes

from modcrypt.aad import block_aad
from modcrypt.aead import GcmCipher, keyed_hash
from modcrypt.ags1.files import decrypt_ags1, encrypt_ags1
from modcrypt.ags1.layout import HEADER_SIZE, make_header
from modcrypt.errors import LimitError, ModcryptError, TagError
from modcrypt.io.destinations import open_sink_at
from modcrypt.io.places import Place
from modcrypt.io.sources import open_source_at
from modcrypt.keys import Key, key_bytes
from modcrypt.keys.metadata import StandardKeyMetadata
from modcrypt.kms.key_tools import KeyTools
from modcrypt.kms.wrapped_key_metadata import parse_wrapped_metadata
from modcrypt.runtime.fork_safety import cached_property
from modcrypt.runtime.tracebacks import hide_frames

KEY_LENGTH, REFERENCE_SIZE = 32, 16
"""Lengths in bytes of keys, and of references: no two of 2**40 subjects share one by chance."""
_HEADER, _FIRST_BLOCK = make_header(KEY_LENGTH), block_aad(b"", 0)
MAX_KEY_FILE = 64 << 20
"""Size limit of a key file in bytes: that of 1.7 million subjects erased since a rotation."""


@dataclass(frozen=True, kw_only=True)
class KeyFile:
    """The content of a key file."""

    vault: bytes = field(default_factory=lambda: token_bytes(16))  # the database has it, too
    master_key_id: str
    references: Key = field(default_factory=lambda: Key.generate(KEY_LENGTH), repr=False)
    keks: Mapping[int, Key] = field(
        default_factory=lambda: {1: Key.generate(KEY_LENGTH)}, repr=False
    )  # fmt: skip
    # Requests by reference of the subjects erased since the last rotation.
    erased: Mapping[bytes, str] = field(default_factory=dict, repr=False)
    erasures: int = 0  # number of subjects that were ever erased
    line: bytes = b""  # encrypted key metadata of the file that was read

    @cached_property
    def ciphers(self) -> dict[int, GcmCipher]:
        """The cipher of each generation's KEK."""
        return {number: GcmCipher(kek) for number, kek in self.keks.items()}

    @property
    def newest(self) -> int:
        """Number of the newest generation."""
        return max(self.keks)

    def reference(self, subject: bytes) -> bytes:
        """Return the reference of a subject."""
        return bytes.fromhex(self._hash(subject)[: 2 * REFERENCE_SIZE])

    @cached_property
    def _hash(self) -> Callable[[bytes], str]:
        return keyed_hash(self.references, b"modcrypt subject reference")

    def proof(self, reference: bytes, request: str, time: str) -> str:
        """Return the HMAC that shows that the vault has erased a subject."""
        erasure = [self.vault.hex(), reference.hex(), request, time]
        return self._hash_erasure(json.dumps(erasure).encode())

    @cached_property
    def _hash_erasure(self) -> Callable[[bytes], str]:
        return keyed_hash(self.references, b"modcrypt erased subject")

    def wrap(self, reference: bytes, key: bytes) -> bytes:
        """Return the AGS1 stream of a subject's data key under the newest KEK."""
        aad = self._aad(self.newest, reference)
        return _HEADER + self.ciphers[self.newest].encrypt_block(key, aad)

    def unwrap(self, reference: bytes, generation: int, stream: bytes) -> bytes:
        """Return the data key of a row of the database, which may be any values.

        Raises:
            TagError, TypeError: It is not what `wrap` returned.
        """
        if stream[:HEADER_SIZE] != _HEADER:
            raise TagError
        aad = self._aad(generation, reference)
        return self.ciphers[generation].decrypt_block(stream[HEADER_SIZE:], aad)

    def _aad(self, generation: int, reference: bytes) -> bytes:
        return self.vault + b"%08x" % generation + reference + _FIRST_BLOCK


@hide_frames
def write_key_file(
    place: Place, keys: KeyFile, tools: KeyTools, *, overwrite: bool = True
) -> KeyFile:
    """Write a key file, which appears as a whole or not at all, once the key service opens it.

    Return what it reads as.

    Raises:
        LimitError: Too many subjects were erased since the last rotation.
        KeyRetrievalError, OSError: As the key service; or the file cannot be written.
    """
    erased: dict[str, list[str]] = {}
    for reference, request in keys.erased.items():
        erased.setdefault(request, []).append(reference.hex())
    keks = {number: key_bytes(kek).hex() for number, kek in keys.keks.items()}
    references = key_bytes(keys.references).hex()
    members = {
        "vault": keys.vault.hex(), "references": references, "keks": keks, "erased": erased,
        "erasures": keys.erasures,
    }  # fmt: skip
    metadata, stream = StandardKeyMetadata.generate(KEY_LENGTH), io.BytesIO()
    length = encrypt_ags1(json.dumps(members).encode(), stream, metadata)
    own = metadata.with_length(length)
    data = tools.encrypt_key_metadata(own, keys.master_key_id, file=place.address)
    data += stream.getvalue()
    if len(data) > MAX_KEY_FILE:
        raise LimitError(
            f"{place.address} would be longer than {MAX_KEY_FILE} bytes, for the subjects erased "
            "since the last rotation; run modcrypt subjects rotate"
        )
    written = _parse(data, place, tools)
    with open_sink_at(place, overwrite=overwrite) as sink:
        sink.append(data)
    return written


def read_key_file(place: Place, tools: KeyTools) -> KeyFile:
    """Return a key file.

    Raises:
        KeyRetrievalError: The file is another one, or the key service refuses the master key.
        IntegrityError, LimitError, OSError: It was altered, is too long, or cannot be read.
    """
    with open_source_at(place) as source:
        if source.size > MAX_KEY_FILE:
            raise LimitError(f"{place.address} is longer than {MAX_KEY_FILE} bytes")
        data = source.read_at(0, source.size)
    return _parse(data, place, tools)


def is_current(place: Place, keys: KeyFile) -> bool:
    """Return whether a key file is the one that was read; each that is written has a new line."""
    with open_source_at(place) as source:
        return source.read_at(0, min(len(keys.line), source.size)) == keys.line


@hide_frames
def _parse(data: bytes, place: Place, tools: KeyTools) -> KeyFile:
    line, end, stream = data.partition(b"\n")
    try:
        name, text = place.address, io.BytesIO()
        metadata = tools.decrypt_key_metadata(line + end, file=name, is_data=False)
        decrypt_ags1(stream, text, metadata)
    except ModcryptError as error:
        error.args = (f"key file {place.address}: {error}",)
        raise
    members = json.loads(text.getvalue())  # modcrypt wrote it, as its tags show
    erased = members["erased"].items()
    return KeyFile(
        vault=bytes.fromhex(members["vault"]), references=Key.from_hex(members["references"]),
        master_key_id=parse_wrapped_metadata(line + end).master_key_id,
        keks={int(number): Key.from_hex(kek) for number, kek in members["keks"].items()},
        erased={bytes.fromhex(text): name for name, texts in erased for text in texts},
        erasures=members["erasures"],
        line=line + end,
    )  # fmt: skip
