"""The AGS1 part of spec-vectors/, built and checked by tools/vectors.py.

Streams are built from Iceberg's AES GCM Stream Spec with plain AES-GCM, with keys and nonces of a
fixed keystream, and without modcrypt. Expected error codes are written by hand;
tools/verify_ags1.py must agree with every case.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from tools import verify_ags1
from tools.case_terms import ags1_terms, key_metadata_terms
from tools.vector_patches import FOLDER, Patch, apply, fixed_bytes, flip, replace
from tools.verify_ags1 import VerifyError

Json = dict[str, Any]

HEADER, FRAME, MIB = 8, 28, 1 << 20
OWN = -1
"""The length of the unaltered stream: what its writer reported, and the reader trusts."""
UNVERIFIED = None

KEYS = {
    name: fixed_bytes(f"key ags1 {name}", size)
    for name, size in [
        ("stream-128", 16), ("stream-192", 24), ("stream-256", 32), ("other-128", 16),
        *((f"of-{size}-bytes", size) for size in (0, 15, 17, 31, 33, 64)),
    ]
}  # fmt: skip
KEYS["longer-256"] = KEYS["stream-128"] + bytes(16)
PREFIX = b"table/file-00001"

FLAGS = {
    "ByDesign": "Accepted although someone changed something: the format can't tell, or the "
    "reader asked for it. A reader that refuses is stricter than the format.",
    "BlockLength": "The header declares another block length. The field is not authenticated; "
    "blocks cut to another length are not those that were sealed.",
    "ChunkReordering": "Blocks are moved, repeated or left out. Their index is in the AAD.",
    "CounterRollover": "The block index passes one byte, or is spelt in another way than as a "
    "little-endian int32.",
    "EmptyBlock": "An empty block: the only one of an empty stream, or one that no writer makes.",
    "HeaderFailure": "Magic or block length are not those of a stream that is read.",
    "InvalidKeySize": "The key has no size that AES has; refused when it is given.",
    "KeyHolder": "Made by a holder of the key, who seals what a conforming writer would not.",
    "ModifiedCiphertext": "One bit of a nonce, ciphertext or tag.",
    "PartialPlaintext": "Blocks before the fault authenticate: a streaming reader may have given "
    "out `released` before it fails.",
    "PlaintextFile": "A file that is not encrypted, in an encrypted one's place.",
    "Splice": "A block of another file. Key, AAD prefix and index tell it apart, nothing else.",
    "TrailingData": "Bytes follow the end of the stream.",
    "Truncation": "Bytes are missing from the end of the stream.",
    "UnverifiedLength": "The reader has no trusted length: loss of whole blocks goes unseen.",
    "ValidFinalChunk": "The last block authenticates, the fault is elsewhere.",
    "WrongContext": "Another AAD prefix than the stream was sealed with, or another block AAD.",
    "WrongKey": "Another key than the stream was sealed with.",
    "WrongLength": "The file is whole, the trusted length is another one.",
}
"""Those that Wycheproof has for chunked streams keep its names; its chunks are our blocks."""

STRUCTURE, BLOCK = "AGS1 File structure", "AGS1 Cipher Block structure"
AAD, LENGTH, KEY = (
    "AGS1 Additional Authenticated Data",
    "AGS1 File length",
    "AGS1 Encryption algorithm",
)


# --- streams, from the text of the spec -----------------------------------------------------------


@dataclass(frozen=True)
class Base:
    """An unmodified stream. Its name seeds the keystreams of plaintext and nonces."""

    name: str
    size: int  # of the plaintext
    comment: str
    block_length: int = 64
    key: str = "stream-128"
    aad_prefix: bytes | None = PREFIX
    flags: tuple[str, ...] = ()
    stored: bool = True  # otherwise to be made from plaintext and nonces

    @property
    def blocks(self) -> int:
        """Number of blocks; an empty stream has one, too."""
        return max(1, -(-self.size // self.block_length))


BASES = [
    Base("empty", 0, "no plaintext: one empty block, which authenticates key and AAD prefix",
         flags=("EmptyBlock",)),
    Base("one-byte", 1, "the shortest block that is not empty"),
    Base("one-short", 63, "a byte less than a block"),
    Base("full", 64, "exactly a block: no empty one follows"),
    Base("full-plus-one", 65, "a byte more than a block"),
    Base("three-full", 192, "exactly three blocks"),
    Base("four", 212, "three whole blocks and a shorter one"),
    Base("twin", 212, "another file of four's key and AAD prefix"),
    Base("other-prefix", 212, "another file of four's key", aad_prefix=b"table/file-00002"),
    Base("other-key", 212, "another file of four's AAD prefix", key="other-128"),
    Base("key-192", 70, "a key of 192 bits", block_length=32, key="stream-192"),
    Base("key-256", 70, "a key of 256 bits", block_length=32, key="stream-256"),
    Base("no-prefix", 70, "no AAD prefix: the block AAD is the index", block_length=32,
         aad_prefix=None),
    Base("no-prefix-empty", 0, "no AAD prefix, no plaintext", aad_prefix=None,
         flags=("EmptyBlock",)),
    Base("prefix-one-byte", 70, "AAD prefixes have any length", 32, aad_prefix=b"x"),
    Base("prefix-300-bytes", 70, "AAD prefixes have any length", 32,
         aad_prefix=fixed_bytes("ags1 long prefix", 300)),
    Base("prefix-utf-8", 70, "AAD prefixes are bytes", 32, aad_prefix="Straße/部分".encode()),
    Base("prefix-of-zeros", 70, "an AAD prefix that looks like the index of block 0", 32,
         aad_prefix=bytes(4)),
    Base("prefix-ends-as-an-index", 70, "an AAD prefix that ends as the AAD of block 1 would", 32,
         aad_prefix=PREFIX + b"\1\0\0\0"),
    Base("blocks-of-1", 5, "the shortest block length", block_length=1),
    Base("blocks-of-17", 52, "a block length that is no multiple of anything", block_length=17),
    Base("blocks-of-64-mib", 20, "the longest block length that is read", block_length=64 * MIB),
    Base("index-past-a-byte", 257, "257 blocks: the index is little-endian", block_length=1,
         flags=("CounterRollover",), stored=False),
    Base("mib-empty", 0, "no plaintext, as Iceberg's Java writes it", block_length=MIB,
         flags=("EmptyBlock",)),
    Base("mib-small", 1000, "a short block", block_length=MIB),
    Base("mib-one-short", MIB - 1, "a byte less than a block", MIB, stored=False),
    Base("mib", MIB, "exactly a block: no empty one follows", MIB, stored=False),
    Base("mib-plus-one", MIB + 1, "a byte more than a block", MIB, stored=False),
    Base("mib-two", 2 * MIB, "exactly two blocks", MIB, stored=False),
]  # fmt: skip
BY_NAME = {base.name: base for base in BASES}


@cache
def plaintext(name: str) -> bytes:
    return fixed_bytes(f"ags1 plaintext {name}", BY_NAME[name].size)


def nonce(name: str, index: int) -> bytes:
    stream = fixed_bytes(f"ags1 nonces {name}", 12 * BY_NAME[name].blocks)
    return stream[12 * index : 12 * index + 12]


def block_aad(prefix: bytes | None, index: int) -> bytes:
    """AAD prefix, and the block's number "as an int in a 4-byte little-endian form"."""
    return (prefix or b"") + bytes([index % 256, index // 256, 0, 0])


def seal(key: bytes, iv: bytes, aad: bytes, data: bytes) -> bytes:
    """Return nonce (12) | ciphertext | tag (16)     (AGS1 "Cipher Block structure")."""
    return iv + AESGCM(key).encrypt(iv, data, aad)


def header(block_length: int, magic: bytes = b"AGS1") -> bytes:
    return magic + (block_length % 2**32).to_bytes(4, "little")


@cache
def stream(name: str) -> bytes:
    """Return magic (4) | block length (4, little-endian) | blocks."""
    base = BY_NAME[name]
    return header(base.block_length) + b"".join(
        seal(KEYS[base.key], nonce(name, n), block_aad(base.aad_prefix, n), block_of(name, n))
        for n in range(base.blocks)
    )


def block_of(name: str, index: int) -> bytes:
    """Return the plaintext of one block."""
    each = BY_NAME[name].block_length
    return plaintext(name)[index * each : (index + 1) * each]


def start(name: str, index: int) -> int:
    """Return the start of a block in its stream; for the block after the last, the end."""
    return min(HEADER + index * (BY_NAME[name].block_length + FRAME), len(stream(name)))


def sealed_block(name: str, index: int) -> bytes:
    return stream(name)[start(name, index) : start(name, index + 1)]


# --- patches ------------------------------------------------------------------------------------


def cut(name: str, size: int) -> Patch:
    """Cut a stream to `size` bytes."""
    return {"at": size, "remove": len(stream(name)) - size, "insert": ""}


def append(name: str, more: bytes) -> Patch:
    return {"at": len(stream(name)), "remove": 0, "insert": more.hex()}


def put(name: str, index: int, block: bytes) -> Patch:
    """Replace a block by other bytes."""
    return replace(start(name, index), sealed_block(name, index), block)


def swap(name: str, a: int, b: int) -> Patch:
    return {"swap": [start(name, a), start(name, b)], "size": len(sealed_block(name, a))}


def reseal(name: str, index: int, aad: bytes) -> Patch:
    """Seal a block's plaintext with its own nonce and another AAD: only the tag changes."""
    key = KEYS[BY_NAME[name].key]
    return put(name, index, seal(key, nonce(name, index), aad, block_of(name, index)))


def extra_block(name: str, index: int, data: bytes) -> bytes:
    """Return a block that a holder of the key seals with the stream's AAD, at any index."""
    base, iv = BY_NAME[name], fixed_bytes(f"ags1 extra {name} {index} {len(data)}", 12)
    return seal(KEYS[base.key], iv, block_aad(base.aad_prefix, index), data)


# --- what the cases say -------------------------------------------------------------------------


def summarize(data: bytes) -> Json:
    return {"sha256": hashlib.sha256(data).hexdigest(), "length": len(data)}


def case(
    base: str, name: str, comment: str, patches: list[Patch] | None = None, expect: str = "ok",
    *, flags: tuple[str, ...] = (), spec: str = STRUCTURE, length: int | None = OWN,
    faulty: list[int] | None = None, whole: int = 0, content: bytes | None = None,
    key: str | None = None, prefix: bytes | str | None = "own",
) -> Json:  # fmt: skip
    """Return one case; the base supplies the defaults.

    `faulty` are the blocks whose tag fails, `whole` the intact blocks before any other fault;
    `content` is the plaintext if it differs from the base's.
    """
    of, faulty = BY_NAME[base], faulty or []
    ok = expect == "ok"
    before = plaintext(base)[: (faulty[0] if faulty else whole) * of.block_length]
    more = {
        "PartialPlaintext": not ok and bool(before),
        "UnverifiedLength": length is None,
        "ValidFinalChunk": bool(faulty) and last_block(base, patches or []) not in faulty,
    }
    found = {*flags, *(flag for flag, holds in more.items() if holds)}
    aad_prefix = of.aad_prefix if isinstance(prefix, str) else prefix
    assert found <= FLAGS.keys()
    return {
        "id": name,
        "comment": comment,
        "flags": sorted(found),
        "spec": spec,
        "base": base,
        "patches": patches or [],
        "block_length": of.block_length,
        "key": key or of.key,
        "aad_prefix": None if aad_prefix is None else aad_prefix.hex(),
        "length": len(stream(base)) if length == OWN else length,
        "expect": expect,
        "plaintext": summarize(plaintext(base) if content is None else content) if ok else None,
        "block": faulty[0] if faulty else None,
        "faulty": faulty,
        "released": None if ok else summarize(before),
    }


def last_block(base: str, patches: list[Patch]) -> int:
    """Return the index of a patched stream's last block, according to its header."""
    data = apply(stream(base), patches)
    return (len(data) - HEADER - 1) // (int.from_bytes(data[4:8], "little") + FRAME)


# --- cases --------------------------------------------------------------------------------------


def good_cases() -> Iterator[Json]:
    for base in BASES:
        yield case(base.name, base.name, base.comment, flags=base.flags)
        yield case(base.name, f"{base.name}-unverified", f"{base.comment}; no trusted length",
                   flags=base.flags, length=UNVERIFIED, spec=LENGTH)  # fmt: skip
    yield case("no-prefix", "prefix-empty-for-none", "an empty AAD prefix is the same as none",
               prefix=b"", spec=AAD)  # fmt: skip
    yield case("no-prefix-empty", "prefix-empty-for-none-empty", "the same without plaintext",
               prefix=b"", spec=AAD, flags=("EmptyBlock",))  # fmt: skip


def modified_cases() -> Iterator[Json]:
    """Yield cases with one changed bit in the first and last byte of each region of a block."""
    blocks = [("four", n) for n in range(4)] + [("three-full", n) for n in range(3)]
    blocks += [("one-byte", 0), ("empty", 0), ("no-prefix", 2), ("twin", 0), ("key-192", 0)]
    blocks += [("mib-two", 0), ("mib-plus-one", 1), ("index-past-a-byte", 256)]
    for name, index in blocks:
        at, size = start(name, index), len(block_of(name, index))
        regions = {
            "nonce": range(at, at + 12),
            "ciphertext": range(at + 12, at + 12 + size),
            "tag": range(at + 12 + size, at + 28 + size),
        }
        for region, places in regions.items():
            for which, place in {"first": places[:1], "last": places[1:][-1:]}.items():
                for byte in place:  # none, where the region has no such byte
                    yield case(
                        name, f"{name}-block-{index}-{region}-{which}-byte", "one bit in the "
                        f"{which} byte of the {region}", [flip(stream(name), byte)], "tag",
                        faulty=[index], flags=("ModifiedCiphertext",), spec=BLOCK,
                    )  # fmt: skip


def key_cases() -> Iterator[Json]:
    for name in ("four", "empty", "mib-small"):
        every = list(range(BY_NAME[name].blocks))
        yield case(name, f"{name}-wrong-key", "another key of the same size", expect="tag",
                   faulty=every, flags=("WrongKey",), spec=KEY, key="other-128")  # fmt: skip
    yield case("four", "wrong-key-longer", "a key of 256 bits that begins as the right one",
               expect="tag", faulty=[0, 1, 2, 3], flags=("WrongKey",), spec=KEY,
               key="longer-256")  # fmt: skip
    for key in KEYS:
        if key.startswith("of-"):
            yield case("four", f"key-{key}", "AES has keys of 16, 24 and 32 bytes",
                       expect="usage", flags=("InvalidKeySize",), spec=KEY, key=key)  # fmt: skip


def context_cases() -> Iterator[Json]:
    """Yield cases of readers with another AAD prefix, and streams sealed with another block AAD."""

    def wrong(name: str, id_: str, comment: str, prefix: bytes | None) -> Json:
        return case(
            name, id_, comment, expect="tag", faulty=list(range(BY_NAME[name].blocks)),
            flags=("WrongContext",), spec=AAD, prefix=prefix,
        )  # fmt: skip

    another = b"table/file-00009"
    for name in ("four", "empty", "mib-small"):
        yield wrong(name, f"{name}-wrong-prefix", "another AAD prefix of the same size", another)
        yield wrong(name, f"{name}-prefix-absent", "the reader gives no AAD prefix", None)
    for name in ("no-prefix", "no-prefix-empty"):
        yield wrong(name, f"{name}-prefix-given", "the stream was sealed without one", PREFIX)
    yield wrong("four", "prefix-a-byte-short", "the AAD prefix without its last byte", PREFIX[:-1])
    yield wrong("four", "prefix-a-byte-long", "a zero after the AAD prefix", PREFIX + b"\0")
    yield wrong("four", "prefix-in-hex", "its text in hex for the AAD prefix",
                PREFIX.hex().encode())  # fmt: skip
    border = "the border between AAD prefix and index moved: "
    yield wrong("four", "prefix-with-index-0", border + "the reader's prefix is the AAD of block 0",
                PREFIX + bytes(4))  # fmt: skip
    yield wrong("prefix-ends-as-an-index", "prefix-without-index-1", border + "the writer's prefix "
                "is the AAD of the reader's block 1", PREFIX)  # fmt: skip
    yield wrong("prefix-of-zeros", "prefix-of-zeros-absent", border + "the writer's prefix is the "
                "AAD of the reader's block 0", None)  # fmt: skip
    yield wrong("no-prefix", "prefix-of-zeros-given", border + "the reader's prefix is the AAD of "
                "the writer's block 0", bytes(4))  # fmt: skip
    ways: dict[str, tuple[str, bytes, list[int]]] = {
        "big-endian": ("is big-endian", b"%(prefix)b\0\0\0%(index)b", [1, 2, 3]),
        "of-8-bytes": ("has 8 bytes", b"%(prefix)b%(index)b" + bytes(7), [0, 1, 2, 3]),
        "of-2-bytes": ("has 2 bytes", b"%(prefix)b%(index)b\0", [0, 1, 2, 3]),
        "before-prefix": ("stands before the prefix", b"%(index)b\0\0\0%(prefix)b", [0, 1, 2, 3]),
        "absent": ("is left out", b"%(prefix)b", [0, 1, 2, 3]),
        "always-0": ("is 0 in all blocks", b"%(prefix)b" + bytes(4), [1, 2, 3]),
    }
    for what, (comment, form, faulty) in ways.items():
        patches = [
            reseal("four", n, form % {b"prefix": PREFIX, b"index": bytes([n])}) for n in faulty
        ]
        yield misnumbered_case("four", f"index-{what}", comment, patches, faulty)
    patches = [reseal("four", n, block_aad(PREFIX, n + 1)) for n in range(4)]
    yield misnumbered_case("four", "index-from-1", "counts from 1", patches, [0, 1, 2, 3])
    for what, comment, index in (
        ("rolls-over", "has one byte: block 256 is 0 again", bytes(4)),
        ("past-a-byte-big-endian", "is big-endian in block 256", b"\0\0\1\0"),
    ):
        patches = [reseal("index-past-a-byte", 256, PREFIX + index)]
        yield misnumbered_case("index-past-a-byte", f"index-{what}", comment, patches, [256])


def misnumbered_case(
    base: str, name: str, comment: str, patches: list[Patch], faulty: list[int]
) -> Json:  # fmt: skip
    return case(
        base, name, f"the index in the AAD {comment}", patches, "tag", faulty=faulty, spec=AAD,
        flags=("WrongContext", "CounterRollover", "KeyHolder"),
    )  # fmt: skip


def reordering_cases() -> Iterator[Json]:
    flags = ("ChunkReordering",)
    for name, a, b in (
        ("four", 0, 1), ("four", 1, 2), ("three-full", 0, 2), ("three-full", 1, 2),
        ("mib-two", 0, 1),
    ):  # fmt: skip
        yield case(name, f"{name}-blocks-{a}-and-{b}-swapped", "two blocks exchanged",
                   [swap(name, a, b)], "tag", faulty=[a, b], flags=flags, spec=AAD)  # fmt: skip
    blocks = [sealed_block("four", n) for n in range(4)]
    yield case("four", "blocks-rotated", "block 0 goes behind block 2", [
               put("four", n, blocks[(n + 1) % 3]) for n in range(3)],
               "tag", faulty=[0, 1, 2], flags=flags, spec=AAD)  # fmt: skip
    yield case("four", "block-0-repeated", "block 0 also stands in the place of block 1",
               [put("four", 1, blocks[0])], "tag", faulty=[1], flags=flags, spec=AAD)  # fmt: skip
    inserted = [{"at": start("four", 1), "remove": 0, "insert": blocks[0].hex()}]
    yield case("four", "block-0-inserted-again", "block 0 stands twice, all others follow",
               inserted, "truncation", whole=1, flags=flags, spec=LENGTH)  # fmt: skip
    yield case("four", "block-0-inserted-again-unverified", "block 0 stands twice, all others "
               "follow", inserted, "tag", faulty=[1, 2, 3, 4], flags=flags, spec=AAD,
               length=UNVERIFIED)  # fmt: skip
    for index, faulty in ((0, [0, 1, 2]), (1, [1, 2]), (2, [2])):
        left = [{"at": start("four", index), "remove": 64 + FRAME, "insert": ""}]
        comment = f"block {index} is left out, those after it move up"
        yield case("four", f"block-{index}-left-out", comment, left, "truncation", whole=index,
                   flags=flags, spec=LENGTH)  # fmt: skip
        yield case("four", f"block-{index}-left-out-unverified", comment, left, "tag",
                   faulty=faulty, flags=flags, spec=AAD, length=UNVERIFIED)  # fmt: skip


def splice_cases() -> Iterator[Json]:
    flags, by_design = ("Splice",), ("Splice", "ByDesign")
    same = "another file's block of the same key, AAD prefix and index: nothing tells it apart"
    for n in (0, 1, 3):
        yield case(
            "four", f"block-{n}-of-twin", same, [put("four", n, sealed_block("twin", n))],
            spec=AAD, flags=by_design,
            content=b"".join(block_of("twin" if i == n else "four", i) for i in range(4)),
        )  # fmt: skip
    whole = [replace(0, stream("four"), stream("twin"))]
    yield case("four", "replaced-by-twin", "another file of the same key, AAD prefix and size, "
               "such as an older version", whole, content=plaintext("twin"), spec=AAD,
               flags=by_design)  # fmt: skip
    yield case("four", "block-2-of-twin-as-block-1", "another file's block of the same key and "
               "AAD prefix, but another index", [put("four", 1, sealed_block("twin", 2))], "tag",
               faulty=[1], flags=flags, spec=AAD)  # fmt: skip
    for other, what in (("other-prefix", "AAD prefix"), ("other-key", "key")):
        for n in (0, 1, 3):
            yield case("four", f"block-{n}-of-{other}", f"a block of a file with another {what}",
                       [put("four", n, sealed_block(other, n))], "tag", faulty=[n], flags=flags,
                       spec=AAD)  # fmt: skip
        yield case("four", f"replaced-by-{other}", f"a whole file of another {what}, of the same "
                   "size", [replace(0, stream("four"), stream(other))], "tag",
                   faulty=[0, 1, 2, 3], flags=flags, spec=AAD)  # fmt: skip


# Bytes that are left of "four" (blocks start at 8, 100, 192 and 284; it ends at 332), what a
# reader without a trusted length says, and how many whole blocks are left.
CUTS = [
    (0, "truncation", 0), (1, "truncation", 0), (3, "truncation", 0), (4, "truncation", 0),
    (5, "truncation", 0), (7, "truncation", 0), (8, "truncation", 0), (9, "truncation", 0),
    (19, "truncation", 0), (20, "truncation", 0), (35, "truncation", 0), (36, "tag", 0),
    (37, "tag", 0), (99, "tag", 0), (100, "ok", 1), (101, "truncation", 1),
    (111, "truncation", 1), (112, "truncation", 1), (113, "truncation", 1),
    (127, "truncation", 1), (128, "tag", 1), (129, "tag", 1), (175, "tag", 1), (176, "tag", 1),
    (177, "tag", 1), (191, "tag", 1), (192, "ok", 2), (193, "truncation", 2),
    (219, "truncation", 2), (220, "tag", 2), (283, "tag", 2), (284, "ok", 3),
    (285, "truncation", 3), (296, "truncation", 3), (311, "truncation", 3), (312, "tag", 3),
    (315, "tag", 3), (316, "tag", 3), (317, "tag", 3), (331, "tag", 3),
]  # fmt: skip


def truncation_cases() -> Iterator[Json]:
    flags, seen = ("Truncation",), "no block says that it is the last"
    for size, word, whole in CUTS:
        comment, patches = f"the first {size} of 332 bytes", [cut("four", size)]
        yield case("four", f"cut-to-{size}", comment, patches, "truncation", whole=whole,
                   flags=flags, spec=LENGTH)  # fmt: skip
        ok = word == "ok"
        yield case(
            "four", f"cut-to-{size}-unverified", f"{comment}: {seen}" if ok else comment, patches,
            word, whole=whole, faulty=[whole] if word == "tag" else None, length=UNVERIFIED,
            flags=(*flags, "ByDesign") if ok else flags, spec=LENGTH,
            content=plaintext("four")[: whole * 64],
        )  # fmt: skip
    yield case("four", "header-only-and-trusted", "the trusted length too is that of a header "
               "alone: every stream has a block", [cut("four", 8)], "truncation", length=8,
               flags=flags)  # fmt: skip
    for name, size in (("empty", 8), ("empty", 35), ("mib-two", 2 * (MIB + FRAME) + 7)):
        whole = (size - 8) // (BY_NAME[name].block_length + FRAME)
        yield case(name, f"{name}-cut-to-{size}", "cut short", [cut(name, size)], "truncation",
                   whole=whole, flags=flags, spec=LENGTH)  # fmt: skip
    for size in (8, 35):
        yield case("empty", f"empty-cut-to-{size}-unverified", "cut short", [cut("empty", size)],
                   "truncation", flags=flags, length=UNVERIFIED)  # fmt: skip
    instead = [replace(0, stream("four"), stream("empty"))]
    yield case("four", "replaced-by-empty", "an empty stream of the same key and AAD prefix",
               instead, "truncation", flags=(*flags, "Splice"), spec=LENGTH)  # fmt: skip
    yield case("four", "replaced-by-empty-unverified", "an empty stream of the same key and AAD "
               "prefix", instead, content=b"", length=UNVERIFIED, spec=LENGTH,
               flags=(*flags, "Splice", "ByDesign"))  # fmt: skip


def trailing_cases() -> Iterator[Json]:
    flags = ("TrailingData",)
    for size in (1, 27, 28, 29, 92):
        for name in ("full", "four", "empty"):
            yield case(
                name, f"{name}-and-{size}-bytes", f"{size} bytes after the end",
                [append(name, bytes(size))], "truncation", whole=BY_NAME[name].blocks,
                flags=flags, spec=LENGTH,
            )  # fmt: skip
    for size in range(1, 28):
        yield case("full", f"full-and-{size}-bytes-unverified", "too few bytes for one more block",
                   [append("full", bytes(size))], "truncation", whole=1, flags=flags, spec=BLOCK,
                   length=UNVERIFIED)  # fmt: skip
    for size in (28, 29, 92):
        yield case("full", f"full-and-{size}-bytes-unverified", "a block more, of zeros",
                   [append("full", bytes(size))], "tag", faulty=[1], flags=flags, spec=BLOCK,
                   length=UNVERIFIED)  # fmt: skip
    for name, size in (("four", 1), ("four", 28), ("empty", 1), ("empty", 28)):
        last = BY_NAME[name].blocks - 1
        yield case(name, f"{name}-and-{size}-bytes-unverified", "the last block grows",
                   [append(name, bytes(size))], "tag", faulty=[last], flags=flags, spec=BLOCK,
                   length=UNVERIFIED)  # fmt: skip
    for length, more in ((OWN, ""), (UNVERIFIED, "-unverified")):
        yield case("full", f"full-twice{more}", "the whole stream again after the end",
                   [append("full", stream("full"))], "truncation", whole=1, flags=flags,
                   length=length, spec=LENGTH)  # fmt: skip
    yield case("full", "full-and-block-0-again-unverified", "its own block 0 after the end",
               [append("full", sealed_block("full", 0))], "tag", faulty=[1], spec=AAD,
               flags=(*flags, "ChunkReordering"), length=UNVERIFIED)  # fmt: skip


def length_cases() -> Iterator[Json]:
    """Yield cases of a whole file and a wrong trusted length: old, plaintext's, another file's."""
    for name, length, comment, whole in (
        ("four", 331, "a byte less", 3), ("four", 333, "a byte more", 4),
        ("four", 360, "an empty block more", 4), ("four", 424, "a block more", 4),
        ("four", 100, "ends with block 0, as an older version may have", 1),
        ("four", 284, "ends with block 2, as an older version may have", 3),
        ("four", 150, "ends within block 1", 1), ("four", 110, "ends within a nonce", 1),
        ("four", 212, "that of the plaintext", 2), ("four", 36, "that of an empty stream", 0),
        ("four", 0, "none at all", 0), ("four", 8, "that of a header", 0),
        ("four", 2**32 + 332, "equal in its lower 32 bits", 4), ("four", 2**63 - 1, "huge", 4),
        ("full", 128, "an empty block more", 1), ("empty", 8, "that of a header", 0),
        ("empty", 37, "a byte more", 1),
    ):  # fmt: skip
        yield case(name, f"{name}-trusted-length-{length}", f"the trusted length is another: "
                   f"{comment}", expect="truncation", whole=whole, length=length, spec=LENGTH,
                   flags=("WrongLength",))  # fmt: skip


def header_cases() -> Iterator[Json]:
    def magic(id_: str, comment: str, to: bytes, word: str = "format") -> Json:
        flags = ("HeaderFailure", "PlaintextFile") if word == "plaintext" else ("HeaderFailure",)
        return case("four", id_, comment, [replace(0, b"AGS1", to)], word, flags=flags)

    for n in range(4):
        to = bytes(byte ^ (i == n) for i, byte in enumerate(b"AGS1"))
        yield magic(f"magic-byte-{n}-flipped", "one bit of the magic", to)
    yield magic("magic-ags2", "a version that does not exist", b"AGS2")
    yield magic("magic-lower-case", "the magic in lower case", b"ags1")
    yield magic("magic-big-endian", "the magic backwards", b"1SGA")
    yield magic("magic-zeros", "zeros for a magic", bytes(4))
    yield magic("magic-json", "text, as table metadata is", b'{"fo')
    yield magic("magic-encrypted-parquet", "encrypted, but in Parquet's own way", b"PARE")
    for name, to in (("avro", b"Obj\1"), ("puffin", b"PFA1"), ("parquet", b"PAR1")):
        yield magic(f"magic-{name}", "begins as a file that is not encrypted", to, "plaintext")
        instead = [replace(0, stream("four"), to + fixed_bytes(f"ags1 {name}", 996))]
        yield case("four", f"replaced-by-{name}-unverified", "a file that is not encrypted in the "
                   "stream's place", instead, "plaintext", length=UNVERIFIED,
                   flags=("HeaderFailure", "PlaintextFile"))  # fmt: skip


def block_length_cases() -> Iterator[Json]:
    def length_case(
        name: str, id_: str, comment: str, to: bytes, expect: str,
        faulty: list[int] | None = None, *flags: str,
    ) -> Json:  # fmt: skip
        return case(
            name, f"{name}-block-length-{id_}", comment, [replace(4, stream(name)[4:8], to)],
            expect, faulty=faulty, flags=("BlockLength", *flags),
        )  # fmt: skip

    for id_, to, word in (
        ("0", bytes(4), "format"), ("minus-1", b"\xff" * 4, "format"),
        ("least", b"\0\0\0\x80", "format"), ("greatest", b"\xff\xff\xff\x7f", "limit"),
        ("64-mib-and-1", b"\1\0\0\4", "limit"), ("big-endian", b"\0\0\0\x40", "limit"),
    ):  # fmt: skip
        yield length_case("four", id_, "not one that is read", to, word, None, "HeaderFailure")
    yield length_case(
        "empty", "0", "not one that is read", bytes(4), "format", None, "HeaderFailure"
    )
    moved = "the blocks are cut in other places"
    for other, count in ((26, 6), (63, 4), (65, 4), (MIB, 1)):
        yield length_case("four", f"{other}", moved, header(other)[4:], "tag",
                       list(range(count)))  # fmt: skip
    for name, other in (("four", 1), ("four", 32), ("four", 128), ("full", 63)):
        yield length_case(name, f"{other}", f"{moved}, and the last has no room for a tag",
                       header(other)[4:], "truncation")  # fmt: skip
    for name, other in (
        ("one-short", 63), ("one-short", MIB), ("full", 65), ("full", 64 * MIB), ("empty", 1),
        ("mib-small", 64 * MIB),
    ):  # fmt: skip
        yield length_case(name, f"{other}", "the field is not authenticated, and a single block "
                          "stays the same", header(other)[4:], "ok", None, "ByDesign")  # fmt: skip


def odd_block_cases() -> Iterator[Json]:
    """Yield cases that a holder of the key can make, but no conforming writer makes."""
    flags, odd = ("KeyHolder",), ("KeyHolder", "EmptyBlock")
    for name in ("full", "three-full"):
        size, at = len(stream(name)) + FRAME, BY_NAME[name].blocks
        patches = [append(name, extra_block(name, at, b""))]
        comment = "an empty block after whole ones, with the right AAD: no writer makes it"
        for length, more in ((size, ""), (UNVERIFIED, "-unverified")):
            yield case(name, f"{name}-and-an-empty-block{more}", comment, patches, length=length,
                       flags=(*odd, "ByDesign"), spec=BLOCK)  # fmt: skip
        yield case(name, f"{name}-and-an-empty-block-untold", f"{comment}, and the trusted length "
                   "is without it", patches, "truncation", whole=at, flags=odd,
                   spec=LENGTH)  # fmt: skip
    for id_, comment, block in (
        ("index-0", "its index is 0", extra_block("full", 0, b"")),
        ("index-2", "its index is 2", extra_block("full", 2, b"")),
        ("other-prefix", "it has another AAD prefix", extra_block("other-prefix", 1, b"")),
        ("other-key", "it has another key", extra_block("other-key", 1, b"")),
    ):
        yield case("full", f"full-and-an-empty-block-{id_}", f"an empty block after a whole one, "
                   f"but {comment}", [append("full", block)], "tag", faulty=[1], length=128,
                   flags=odd, spec=AAD)  # fmt: skip
    two = extra_block("full", 1, b"") + extra_block("full", 2, b"")
    yield case("full", "full-and-two-empty-blocks", "the two are read as one",
               [append("full", two)], "tag", faulty=[1], length=156, flags=odd,
               spec=BLOCK)  # fmt: skip
    yield case("four", "four-and-an-empty-block", "after a shorter block, it is read as a part of "
               "that one", [append("four", extra_block("four", 4, b""))], "tag", faulty=[3],
               length=360, flags=odd, spec=BLOCK)  # fmt: skip
    inserted = {"at": 100, "remove": 0, "insert": extra_block("four", 1, b"").hex()}
    yield case("four", "empty-block-in-the-middle", "after block 0, with the AAD of block 1",
               [inserted], "tag", faulty=[1, 2, 3], length=360, flags=odd, spec=BLOCK)  # fmt: skip
    short = extra_block("four", 1, block_of("four", 1)[:60])
    yield case("four", "short-block-in-the-middle", "block 1 has 60 bytes of plaintext",
               [put("four", 1, short)], "tag", faulty=[1, 2, 3], length=328, flags=flags,
               spec=BLOCK)  # fmt: skip
    long = extra_block("full", 0, fixed_bytes("ags1 long block", 100))
    yield case("full", "block-longer-than-block-length", "the only block has 100 bytes of "
               "plaintext", [put("full", 0, long)], "tag", faulty=[0, 1], length=136, flags=flags,
               spec=BLOCK)  # fmt: skip


def cases() -> list[Json]:
    makers = (
        good_cases, modified_cases, key_cases, context_cases, reordering_cases, splice_cases,
        truncation_cases, trailing_cases, length_cases, header_cases, block_length_cases,
        odd_block_cases,
    )  # fmt: skip
    return [made for maker in makers for made in maker()]


# --- key metadata -------------------------------------------------------------------------------


def avro_bytes(data: bytes) -> bytes:
    """Return a length below 64 in one byte (zigzag: twice the value), and the bytes."""
    return bytes([2 * len(data)]) + data


def key_metadata_cases() -> Iterator[Json]:
    """Version 1, and {bytes key; union{null, bytes} prefix; union{null, long} length} in Avro."""

    def good(
        id_: str, comment: str, data: bytes, key: str = "stream-128",
        prefix: bytes | None = None, length: int | None = None,
    ) -> Json:  # fmt: skip
        return {
            "id": id_, "comment": comment, "flags": [], "expect": "ok", "hex": data.hex(),
            "key": KEYS[key].hex(), "aad_prefix": None if prefix is None else prefix.hex(),
            "file_length": length,
        }  # fmt: skip

    def bad(id_: str, comment: str, data: bytes, flag: str) -> Json:
        return {
            "id": id_, "comment": comment, "flags": [flag], "expect": "format", "hex": data.hex(),
        }  # fmt: skip

    key, none, one = avro_bytes(KEYS["stream-128"]), b"\0", b"\2"
    prefix, only = one + avro_bytes(PREFIX), b"\1" + key + none + none
    head = b"\1" + key + none + one
    yield good("key-only", "no AAD prefix, no length", only)
    for name in ("stream-192", "stream-256"):
        yield good(f"key-{name[-3:]}", "a longer key", b"\1" + avro_bytes(KEYS[name]) + b"\0\0",
                   name)  # fmt: skip
    yield good("prefix", "an AAD prefix, no length", b"\1" + key + prefix + none, prefix=PREFIX)
    yield good("prefix-and-length", "all three", b"\1" + key + prefix + b"\2\x98\5",
               prefix=PREFIX, length=332)  # fmt: skip
    yield good("prefix-empty", "an AAD prefix that is there and empty", b"\1" + key + b"\2\0\0",
               prefix=b"")  # fmt: skip
    yield good("prefix-64-bytes", "its length takes two bytes",
               b"\1" + key + b"\2\x80\1" + bytes(64) + none, prefix=bytes(64))  # fmt: skip
    for number, spelt in (
        (0, "00"), (1, "02"), (36, "48"), (63, "7e"), (64, "8001"), (8191, "fe7f"),
        (8192, "808001"), (2**31, "8080808010"), (5_000_000_000, "80c8afa025"),
        (2**63 - 1, "feffffffffffffffff01"), (-1, "01"), (-64, "7f"), (-65, "8101"),
        (-(2**63), "ffffffffffffffffff01"),
    ):  # fmt: skip
        yield good(f"length-{number}", "zigzag, seven bits a byte, the lowest first",
                   head + bytes.fromhex(spelt), length=number)  # fmt: skip

    whole = b"\1" + key + prefix + b"\2\x98\5"
    for size, comment in (
        (0, "no bytes"), (1, "the version alone"), (2, "a key of no bytes"),
        (17, "a key cut short"), (19, "a prefix without length"), (20, "a prefix of no bytes"),
        (35, "a prefix cut short"), (37, "a length of no bytes"), (38, "a length cut short"),
    ):  # fmt: skip
        yield bad(f"cut-to-{size}", f"cut short: {comment}", whole[:size], "Truncation")
    for version in (0, 2, 0x80, 0xFF):
        yield bad(f"version-{version}", "no such version", bytes([version]) + only[1:], "Version")
    yield bad("raw-key", "the bytes of a key alone", KEYS["stream-128"], "Version")
    for branch, spelt in ((2, "04"), (-1, "01"), (2**48, "8080808080808001")):
        yield bad(f"prefix-branch-{branch}", "a union has branches 0 and 1",
                  b"\1" + key + bytes.fromhex(spelt) + prefix[1:] + none, "UnionIndex")  # fmt: skip
        yield bad(f"length-branch-{branch}", "a union has branches 0 and 1",
                  b"\1" + key + none + bytes.fromhex(spelt) + b"\x48", "UnionIndex")  # fmt: skip
    for place, data in (("prefix", b"\4\0"), ("length", b"\0\4")):
        yield bad(f"{place}-branch-2-for-null", "a union has branches 0 and 1", b"\1" + key + data,
                  "UnionIndex")  # fmt: skip
    for id_, comment, spelt in (
        ("minus-1", "is negative", "01"),
        ("minus-17", "is negative", "21"),
        ("passes-end", "passes the bytes that exist", "40"),
        ("huge", "passes the bytes that exist", "80808080808080807e"),
        ("greatest", "passes the bytes that exist", "feffffffffffffffff01"),
    ):
        length = bytes.fromhex(spelt)
        yield bad(f"key-length-{id_}", f"the key's length {comment}", b"\1" + length + only[2:],
                  "Length")  # fmt: skip
        yield bad(f"prefix-length-{id_}", f"the AAD prefix's length {comment}",
                  b"\1" + key + one + length + PREFIX + none, "Length")  # fmt: skip
    yield bad("prefix-length-minus-2", "the AAD prefix's length is negative: a reader that goes "
              "back by it finds a length of the file, and the end", b"\1" + key + b"\2\3",
              "Length")  # fmt: skip
    yield bad("length-11-bytes", "an Avro long has at most 10 bytes", head + b"\xff" * 10 + b"\1",
              "Varint")  # fmt: skip
    yield bad("length-endless", "a number that does not end", head + b"\xff" * 100, "Varint")


# --- reading cases, building, checking ----------------------------------------------------------


def base_bytes(base: Json) -> bytes:
    """Return a committed base's stream: the file, or one made from plaintext and nonces."""
    if base["file"] is not None:
        stored: bytes = (FOLDER / "ags1" / base["file"]).read_bytes()
        return stored
    content, nonces = seeded_bytes(base["plaintext"]), seeded_bytes(base["nonces"])
    prefix = None if base["aad_prefix"] is None else bytes.fromhex(base["aad_prefix"])
    each, key = base["block_length"], KEYS[base["key"]]
    return header(each) + b"".join(
        seal(key, nonces[12 * n : 12 * n + 12], block_aad(prefix, n), content[at : at + each])
        for n, at in enumerate(range(0, len(content), each))
    )


def seeded_bytes(seeded: Json) -> bytes:
    """Return the bytes of a base's plaintext or nonces."""
    found: bytes = hashlib.shake_128(seeded["shake_128"].encode()).digest(seeded["length"])
    return found


def describe_base(base: Base) -> Json:
    """Return the description of a base for the file of cases."""

    def keystream(what: str, length: int) -> Json:
        return {"shake_128": f"modcrypt spec-vectors: ags1 {what} {base.name}", "length": length}

    return {
        "file": f"base/{base.name}.ags1" if base.stored else None,
        **summarize(stream(base.name)),
        "block_length": base.block_length,
        "key": base.key,
        "aad_prefix": None if base.aad_prefix is None else base.aad_prefix.hex(),
        "plaintext": keystream("plaintext", base.size),
        "nonces": keystream("nonces", 12 * base.blocks),
    }


def prefix_of(made: Json) -> bytes | None:
    return None if made["aad_prefix"] is None else bytes.fromhex(made["aad_prefix"])


def disagreement(made: Json, data: bytes) -> str | None:
    """Return how the independent verifier differs from a case's expectation; None if it agrees."""
    key, prefix = KEYS[made["key"]], prefix_of(made)
    said: Json = {"expect": "ok", "plaintext": None, "block": None, "released": None}
    try:
        said["plaintext"] = summarize(verify_ags1.verify(data, key, prefix, made["length"]))
    except VerifyError as error:
        said |= {"expect": error.word, "block": error.block}
    except ValueError:
        said["expect"] = "usage"
    if said["expect"] != "ok":
        said["released"] = summarize(plaintext_before_fault(data[: made["length"]], key, prefix))
    if made["block"] is not None:
        opened = each_block(data, key, prefix)
        said["faulty"] = [index for index, block in enumerate(opened) if block is None]
    wrong = {name: value for name, value in said.items() if made[name] != value}
    return f"{made['id']}: the verifier says {wrong}" if wrong else None


def plaintext_before_fault(data: bytes, key: bytes, prefix: bytes | None) -> bytes:
    """Return the output of a sequential reader before it fails."""
    out = []
    with suppress(VerifyError, ValueError):
        for block in verify_ags1.blocks(data, key, prefix or b""):
            out.append(block)  # noqa: PERF402 (list() would lose them all)
    return b"".join(out)


def each_block(data: bytes, key: bytes, prefix: bytes | None) -> list[bytes | None]:
    """Open every block independently of the others; None for a block that does not open."""
    size, cipher = verify_ags1.block_length(data) + FRAME, AESGCM(key)
    found: list[bytes | None] = []
    for index, at in enumerate(range(HEADER, len(data), size)):
        iv, sealed = data[at : at + 12], data[at + 12 : at + size]
        try:
            found.append(cipher.decrypt(iv, sealed, block_aad(prefix, index)))
        except InvalidTag:
            found.append(None)
    return found


def key_metadata_disagreement(made: Json) -> str | None:
    """Return how the independent verifier differs from a case of key metadata."""
    try:
        found = verify_ags1.read_key_metadata(bytes.fromhex(made["hex"]))
    except VerifyError as error:
        return None if error.word == made["expect"] else f"{made['id']}: {error}"
    if made["expect"] != "ok":
        return f"{made['id']}: the verifier takes it"
    expected = (bytes.fromhex(made["key"]), prefix_of(made), made["file_length"])
    return None if found == expected else f"{made['id']}: the verifier reads something else"


def documents() -> dict[str, bytes]:
    """Return all files under spec-vectors/ags1, by their paths in spec-vectors."""

    def text(content: Json) -> bytes:
        return (json.dumps(content, indent=1) + "\n").encode()

    made = [case | ags1_terms(case) | {"control": control_of(case)} for case in cases()]
    key_metadata = [case | key_metadata_terms(case) for case in key_metadata_cases()]
    for listed in (made, key_metadata):
        ids = Counter(case["id"] for case in listed)
        assert max(ids.values()) == 1, ids.most_common(1)
    assert {flag for case in made for flag in case["flags"]} == FLAGS.keys()
    return {
        "ags1/keys.json": text({name: key.hex() for name, key in KEYS.items()}),
        "ags1/cases.json": text(
            {
                "about": "AGS1 streams, Iceberg's AES GCM Stream Spec",
                "flags": FLAGS,
                "bases": {base.name: describe_base(base) for base in BASES},
                "cases": made,
            }
        ),
        "ags1/key_metadata.json": text(
            {"about": "Iceberg's standard key metadata, version 1", "cases": key_metadata}
        ),
        **{f"ags1/base/{base.name}.ags1": stream(base.name) for base in BASES if base.stored},
    }


def control_of(case: Json) -> str | None:
    """Return the case of the unmodified stream, read in the same way."""
    control = case["base"] + ("-unverified" if case["length"] is None else "")
    return None if case["id"] == control else control


def problems() -> list[str]:
    """Return the cases with which the independent verifier disagrees."""
    found = [disagreement(made, apply(stream(made["base"]), made["patches"])) for made in cases()]
    found += [key_metadata_disagreement(made) for made in key_metadata_cases()]
    return [problem for problem in found if problem is not None]
