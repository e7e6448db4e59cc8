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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from modcrypt.aad import block_aad
from modcrypt.aead import BLOCK_OVERHEAD, GcmCipher, ValueCipher, decrypt_values, keyed_hash
from modcrypt.ags1.files import decrypt_ags1, encrypt_ags1
from modcrypt.ags1.layout import HEADER_SIZE, make_header
from modcrypt.errors import LimitError, TagError
from modcrypt.io.destinations import open_sink_at
from modcrypt.io.places import Place
from modcrypt.io.sources import open_source_at
from modcrypt.io.store_errors import name_path_in_errors
from modcrypt.keys import Key, key_bytes
from modcrypt.keys.metadata import StandardKeyMetadata
from modcrypt.kms.key_tools import KeyTools
from modcrypt.kms.wrapped_key_metadata import parse_wrapped_metadata
from modcrypt.runtime.fork_safety import cached_property
from modcrypt.runtime.tracebacks import hide_frames

KEY_LENGTH, REFERENCE_SIZE = 32, 16
"""Lengths in bytes of keys, and of references: no two of 2**40 subjects share one by chance."""
_HEADER, _FIRST_BLOCK = make_header(KEY_LENGTH), block_aad(b"", 0)
_BLOCK_SIZE = KEY_LENGTH + BLOCK_OVERHEAD
_STREAM_SIZE = HEADER_SIZE + _BLOCK_SIZE
MAX_KEY_FILE = 64 << 20
"""Size limit of a key file in bytes: that of 1.7 million subjects erased since a rotation."""


@dataclass(frozen=True, kw_only=True)
class KeyFile:
    """The content of a key file."""

    vault: bytes  # id, which the database has, too
    master_key_id: str
    references: Key = field(repr=False)
    keks: Mapping[int, Key] = field(repr=False)  # by generation
    # Requests by reference of the subjects erased since the last rotation.
    erased: Mapping[bytes, str] = field(default_factory=dict, repr=False)
    erasures: int = 0  # number of subjects that were ever erased
    line: bytes = b""  # encrypted key metadata of the file that was read

    @property
    def newest(self) -> int:
        """Number of the newest generation."""
        return max(self.keks)

    @cached_property
    def hash_subject(self) -> Callable[[bytes], bytes]:
        """The HMAC of subjects, whose references are its first `REFERENCE_SIZE` bytes."""
        return keyed_hash(self.references, b"modcrypt subject reference")

    @cached_property
    def _hash_erasure(self) -> Callable[[bytes], bytes]:
        return keyed_hash(self.references, b"modcrypt erased subject")

    def proof(self, reference: bytes, request: str, time: str) -> str:
        """Return the HMAC that shows that the vault has erased a subject."""
        erasure = [self.vault.hex(), reference.hex(), request, time]
        return self._hash_erasure(json.dumps(erasure).encode()).hex()

    def wrap(self, keys: Mapping[bytes, bytes]) -> list[tuple[bytes, int, bytes]]:
        """Return rows of the database for data keys by reference, under the newest KEK."""
        number, encrypt = self.newest, GcmCipher(self.keks[self.newest]).encrypt_block
        head = self._aad(number)
        return [
            (each, number, _HEADER + encrypt(key, head + each + _FIRST_BLOCK))
            for each, key in keys.items()
        ]

    def unwrap(self, rows: Sequence[Sequence[Any]]) -> list[bytes]:
        """Return the data keys of rows of the database, which may be any values.

        Raise TagError or TypeError if they are not what `wrap` returned.
        """
        numbers, streams = [row[1] for row in rows], [row[2] for row in rows]
        sizes, headers = {*map(len, streams)}, {stream[:HEADER_SIZE] for stream in streams}
        if sizes - {_STREAM_SIZE} or headers - {_HEADER} or {*map(type, numbers)} - {int}:
            raise TagError
        heads = {number: self._aad(number) for number in self.keks}
        keks = {number: ValueCipher(key_bytes(kek)) for number, kek in self.keks.items()}
        aads = [heads[row[1]] + row[0] + _FIRST_BLOCK for row in rows]
        blocks = b"".join([stream[HEADER_SIZE:] for stream in streams])
        ends = list(range(_BLOCK_SIZE, len(blocks) + 1, _BLOCK_SIZE))
        ciphers, stops = [keks[number] for number in numbers], list(range(1, len(rows) + 1))
        keys = b"".join(decrypt_values(ciphers, aads, stops, blocks, ends))
        return [keys[at : at + KEY_LENGTH] for at in range(0, len(keys), KEY_LENGTH)]

    def _aad(self, generation: int) -> bytes:
        return self.vault + b"%08x" % generation


@hide_frames
def write_key_file(
    place: Place, keys: KeyFile, tools: KeyTools, *, overwrite: bool = True
) -> KeyFile:
    """Write a key file, which appears as a whole or not at all, once the key service opens it.

    Return what it reads as. Raise LimitError if too many subjects were erased since the last
    rotation, and KeyRetrievalError or OSError as the key service, or if it cannot be written.
    """
    erased: dict[str, list[str]] = {}
    for reference, request in keys.erased.items():
        erased.setdefault(request, []).append(reference.hex())
    members = {
        "vault": keys.vault.hex(), "references": key_bytes(keys.references).hex(),
        "keks": {number: key_bytes(kek).hex() for number, kek in keys.keks.items()},
        "erased": erased, "erasures": keys.erasures,
    }  # fmt: skip
    metadata, stream = StandardKeyMetadata.generate(KEY_LENGTH), io.BytesIO()
    own = metadata.with_length(encrypt_ags1(json.dumps(members).encode(), stream, metadata))
    line = tools.encrypt_key_metadata(own, keys.master_key_id, file=place.address)
    data = line + stream.getvalue()
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

    Raise KeyRetrievalError if it is another one, or the key service refuses the master key, and
    IntegrityError, LimitError or OSError if it was altered, is too long, or cannot be read.
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
    line, text = line + end, io.BytesIO()
    with name_path_in_errors(f"key file {place.address}"):
        metadata = tools.decrypt_key_metadata(line, file=place.address, is_data=False)
        decrypt_ags1(stream, text, metadata)
    members = json.loads(text.getvalue())  # modcrypt wrote it, as its tags show
    erased = members["erased"].items()
    return KeyFile(
        vault=bytes.fromhex(members["vault"]), references=Key.from_hex(members["references"]),
        master_key_id=parse_wrapped_metadata(line).master_key_id,
        keks={int(number): Key.from_hex(kek) for number, kek in members["keks"].items()},
        erased={bytes.fromhex(text): name for name, texts in erased for text in texts},
        erasures=members.get("erasures", 0),  # missing in the earliest vaults
        line=line,
    )  # fmt: skip
