"""The signature of a file's writer in the footer, where every other reader skips it.

It is the end of the footer's last field, the extension 32767, after the extension that the footer
would have without it:

    other extension | list | signature | length of the list (4) | length of the signature (2)
        | version (1) | scheme (1) | id of the verifying key (16) | identifier (16)

Numbers are little-endian. `docs/explanation/signatures.md` explains the construction.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterable
from struct import Struct
from typing import NamedTuple

from modcrypt.parquet.format.idl import ThriftStruct, copy, encode, extension, set_extension, varint
from modcrypt.parquet.signatures.leaf_list import ENTRY_SIZE
from modcrypt.parquet.signatures.signers import Signer, Verifier

IDENTIFIER = uuid.UUID("c4d2f6a1-90be-4b37-8e5c-6d6f64637279").bytes
VERSION = 1
SCHEMES = {"ed25519": 1, "mldsa65": 2}
ALGORITHM_NUMBERS = {"AES_GCM_V1": 0, "AES_GCM_CTR_V1": 1}

MAX_SIGNATURE = 8192
"""Limit of a signature's size in bytes: those of ML-DSA-65 have 3,309."""

_TRAILER = Struct("<IHBB16s16s")
_MESSAGE_PREFIX = b"modcrypt-signature\x00\x01"
_EXTENSION_HEAD = b"\x08\xfe\xff\x03"  # a binary field whose id, 32767, is written in full


class SignedContext(NamedTuple):
    """The statements of a signature besides the footer and the list.

    `file_aad` is AAD prefix and file-unique, `algorithm` the name of the encryption algorithm.
    """

    file_aad: bytes
    algorithm: str
    plaintext_footer: bool


class SignatureBlock(NamedTuple):
    """The signature of a file, as read from its footer; nothing in it is verified."""

    entries: memoryview  # the list of hashes
    signature: bytes
    scheme: int  # number of the signature scheme
    key_id: bytes  # id of the verifying key
    before: memoryview  # bytes of the footer before the extension
    other: bytes  # the rest of the extension, before the list


def find_signature_fault(
    block: SignatureBlock, keys: Iterable[Verifier], context: SignedContext
) -> str | None:
    """Return why none of some writers vouches for a file; None if one does."""
    name = block.key_id.hex()
    known = [key for key in keys if key.hex_id == name]
    if not known:
        return f"it is signed by another key, {name}"
    for key in known:
        if SCHEMES.get(key.scheme) == block.scheme:
            message = _make_message(key, context, block.before, block.other, block.entries)
            if key.verify(block.signature, message):
                return None
    return f"the signature of key {name} does not match: the footer, AAD or signature was altered"


def _make_message(
    key: Verifier, context: SignedContext, before: bytes | memoryview, other: bytes,
    entries: bytes | memoryview,
) -> bytes:  # fmt: skip
    head = bytes((SCHEMES[key.scheme],)) + bytes.fromhex(key.hex_id)
    modes = bytes((context.plaintext_footer, ALGORITHM_NUMBERS[context.algorithm]))
    aad = len(context.file_aad).to_bytes(4, "little") + context.file_aad
    hashes = [hashlib.sha256(part).digest() for part in (before, other, entries)]
    return b"".join((_MESSAGE_PREFIX, head, modes, aad, *hashes))


def encode_signed(
    metadata: ThriftStruct, entries: bytes, key: Signer, context: SignedContext
) -> bytes:
    """Return an encoded footer with a signature."""
    other, bare = extension(metadata) or b"", copy(metadata)
    set_extension(bare, None)
    before = encode(bare)[:-1]  # without the end of the struct
    signature = key.sign(_make_message(key.verifier, context, before, other, entries))
    trailer = _TRAILER.pack(
        len(entries), len(signature), VERSION, SCHEMES[key.verifier.scheme],
        bytes.fromhex(key.verifier.hex_id), IDENTIFIER,
    )  # fmt: skip
    data = other + entries + signature + trailer
    return before + _EXTENSION_HEAD + varint(len(data)) + data + b"\0"


def take_signature(metadata: ThriftStruct, data: bytes, end: int) -> SignatureBlock | None:
    """Remove the signature from a decoded footer and return it; None if there is none.

    `data[:end]` is the encoded footer. A block that is malformed, or not at its end, stays.
    """
    content = extension(metadata)
    if content is None or not content.endswith(IDENTIFIER) or len(content) < _TRAILER.size:
        return None
    lists, size, version, scheme, key_id, _ = _TRAILER.unpack(content[-_TRAILER.size :])
    start = len(content) - _TRAILER.size - size - lists
    field = _EXTENSION_HEAD + varint(len(content)) + content + b"\0"
    if start < 0 or lists % ENTRY_SIZE or version != VERSION or size > MAX_SIGNATURE:
        return None
    if data[max(0, end - len(field)) : end] != field:
        return None
    other, view = content[:start], memoryview(content)
    set_extension(metadata, other or None)
    return SignatureBlock(
        entries=view[start : start + lists],
        signature=content[start + lists : start + lists + size],
        scheme=scheme,
        key_id=key_id,
        before=memoryview(data)[: end - len(field)],
        other=other,
    )
