"""AADs and modules of spec-vectors/, built from the text of PME with plain AES."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR, GCM

from modcrypt.module_ids import ModuleType
from tools.vector_patches import fixed_bytes

T = ModuleType
Json = dict[str, Any]

KEYS = {
    f"{name}-{bits}": fixed_bytes(f"key {name}-{bits}", bits // 8)
    for name, bits in [
        ("footer", 128), ("footer", 192), ("footer", 256), ("column-a", 128), ("column-b", 128),
        ("column-c", 192), ("column-d", 256), ("other", 128),
    ]
} | {
    "signed-footer-128": b"0123456789012345", "signed-column-128": b"1234567890123450",
}  # fmt: skip
"""Every key by its name; keys.json has them in hex."""


# --- AADs, from the text of PME 4.4.2 ---------------------------------------------------------

# | all modules: internal file identifier, module type (1 byte)
# | all except footer: row group ordinal, column ordinal (2 byte short, little endian)
# | data page and header only: page ordinal (2 byte short, little endian)
WITHOUT_ORDINALS = {T.FOOTER}
WITH_PAGE = {T.DATA_PAGE, T.DATA_PAGE_HEADER}
PREFIX, UNIQUE = b"table/part.10", fixed_bytes("file unique", 8)


def spec_aad(file_aad: bytes, kind: ModuleType, ordinals: tuple[int, ...]) -> bytes:
    short = b"".join(bytes([n % 256, n // 256]) for n in ordinals)
    return file_aad + bytes([kind.value]) + short


def ordinals_of(kind: ModuleType, row_group: int, column: int, page: int) -> tuple[int, ...]:
    if kind in WITHOUT_ORDINALS:
        return ()
    return (row_group, column, page) if kind in WITH_PAGE else (row_group, column)


def aad_cases() -> Iterator[Json]:
    def case(
        name: str, comment: str, kind: ModuleType, ordinals: tuple[int, ...],
        prefix: bytes = PREFIX, unique: bytes = UNIQUE, expect: str = "ok",
    ) -> Json:  # fmt: skip
        aad = spec_aad(prefix + unique, kind, ordinals).hex() if expect == "ok" else None
        names = ("row_group", "column", "page")
        return {
            "id": name, "comment": comment, "spec": "PME 4.4.2", "expect": expect,
            "aad_prefix": prefix.hex(), "aad_file_unique": unique.hex(),
            "module": {"type": kind.name, **dict(zip(names, ordinals, strict=False))},
            "aad": aad,
        }  # fmt: skip

    edges = {
        "first": ((0, 0, 0), "all ordinals are 0"),
        "apart": ((1, 2, 3), "each ordinal in its own place"),
        "second-byte": ((255, 256, 511), "ordinals are little-endian"),
        "last": ((32_767, 32_767, 32_767), "the largest ordinals of an int16"),
    }
    for kind in T:
        for edge, (numbers, comment) in edges.items():
            ordinals = ordinals_of(kind, *numbers)
            if ordinals or edge == "first":
                yield case(f"{slug(kind)}-{edge}", comment, kind, ordinals)
    for place in range(3):
        ordinals = tuple(32_768 if n == place else 0 for n in range(3))
        what = ("row-group", "column", "page")[place]
        yield case(
            f"{what}-ordinal-32768", "one more than an int16 can number", T.DATA_PAGE, ordinals,
            expect="limit",
        )  # fmt: skip
    yield case("no-prefix", "the AAD begins with file-unique", T.FOOTER, (), prefix=b"")
    yield case("prefix-one-byte", "prefixes have any length", T.FOOTER, (), prefix=b"x")
    yield case("prefix-utf-8", "prefixes are bytes", T.FOOTER, (), prefix="Straße/部分".encode())
    yield case("unique-16-bytes", "file-unique has any length", T.FOOTER, (), unique=bytes(16))
    yield case(
        "border-moved", "a digit moved from the prefix to file-unique gives the AAD of "
        "data-page-first: the border between the two is not authenticated",
        T.DATA_PAGE, (0, 0, 0), prefix=PREFIX[:-1], unique=PREFIX[-1:] + UNIQUE,
    )  # fmt: skip


# --- modules, with plain AES --------------------------------------------------------------------


def gcm_module(key: bytes, nonce: bytes, aad: bytes, plaintext: bytes) -> bytes:
    """Return length (4, little-endian) | nonce (12) | ciphertext | tag (16)     (PME 5.1)."""
    sealer = Cipher(AES(key), GCM(nonce)).encryptor()
    sealer.authenticate_additional_data(aad)
    ciphertext = sealer.update(plaintext) + sealer.finalize()
    body = nonce + ciphertext + sealer.tag
    return len(body).to_bytes(4, "little") + body


def ctr_module(key: bytes, nonce: bytes, plaintext: bytes) -> bytes:
    """Return length (4, little-endian) | nonce (12) | ciphertext     (PME 5.1)."""
    body = nonce + ctr(key, nonce, plaintext)
    return len(body).to_bytes(4, "little") + body


def ctr(key: bytes, nonce: bytes, data: bytes) -> bytes:
    return Cipher(AES(key), CTR(ctr_iv(nonce))).encryptor().update(data)


def ctr_iv(nonce: bytes) -> bytes:
    """Return nonce and a 4-byte counter: 31 bits of 0, then a 1 (PME 4.2.2)."""
    return nonce + bytes([0, 0, 0, 1])


def flip_bit(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


PLAINTEXTS = {
    "empty": b"", "one-byte": b"m", "one-block": fixed_bytes("block", 16),
    "block-plus-one": fixed_bytes("block", 17), "many-blocks": fixed_bytes("blocks", 300),
}  # fmt: skip
NONCE = fixed_bytes("nonce", 12)


def gcm_cases() -> Iterator[Json]:
    file_aad = PREFIX + UNIQUE

    def case(
        name: str, comment: str, module: bytes, plaintext: bytes | None, expect: str = "ok",
        key: str = "column-a-128", place: tuple[int, ...] = (1, 2, 3),
    ) -> Json:  # fmt: skip
        return {
            "id": name, "comment": comment, "spec": "PME 5.1", "expect": expect, "key": key,
            "nonce": module[4:16].hex(), "aad": spec_aad(file_aad, T.DATA_PAGE, place).hex(),
            "file_aad": file_aad.hex(),
            "module_id": dict(
                zip(("type", "row_group", "column", "page"), ("DATA_PAGE", *place), strict=True)
            ),
            "plaintext": None if plaintext is None else plaintext.hex(), "module": module.hex(),
        }  # fmt: skip

    aad = spec_aad(file_aad, T.DATA_PAGE, (1, 2, 3))
    for name, plaintext in PLAINTEXTS.items():
        module = gcm_module(KEYS["column-a-128"], NONCE, aad, plaintext)
        yield case(f"gcm-{name}", f"a plaintext of {len(plaintext)} bytes", module, plaintext)
    plaintext = PLAINTEXTS["block-plus-one"]
    for key in ("column-c-192", "column-d-256"):
        module = gcm_module(KEYS[key], NONCE, aad, plaintext)
        yield case(f"gcm-{key[-3:]}-bits", "a longer key", module, plaintext, key=key)
    good = gcm_module(KEYS["column-a-128"], NONCE, aad, plaintext)
    grown = (len(good) - 3).to_bytes(4, "little") + good[4:]
    shrunk = (len(good) - 5).to_bytes(4, "little") + good[4:]
    for name, comment, module, expect in (
        ("length-one-more", "the length field counts one byte too many", grown, "truncation"),
        ("length-one-less", "the length field leaves a byte over", shrunk, "truncation"),
        ("nonce-flipped", "one bit of the nonce", flip_bit(good, 4), "tag"),
        ("ciphertext-flipped", "one bit of the ciphertext", flip_bit(good, 20), "tag"),
        ("tag-flipped", "one bit of the tag", flip_bit(good, len(good) - 1), "tag"),
        ("truncated", "the last byte is missing", good[:-1], "truncation"),
        ("no-room-for-a-tag", "an honest length that is too short for nonce and tag",
         (27).to_bytes(4, "little") + good[4:31], "truncation"),
    ):  # fmt: skip
        yield case(f"gcm-{name}", comment, module, None, expect)
    yield case("gcm-wrong-key", "sealed with column-a-128", good, None, "tag", key="other-128")
    yield case("gcm-wrong-aad", "sealed as page 3", good, None, "tag", place=(1, 2, 4))


def ctr_cases() -> Iterator[Json]:
    def case(
        name: str, comment: str, module: bytes, plaintext: bytes | None, expect: str = "ok",
        key: str = "column-a-128",
    ) -> Json:  # fmt: skip
        return {
            "id": name, "comment": comment, "spec": "PME 4.2.2, 5.1", "expect": expect,
            "key": key, "nonce": module[4:16].hex(), "iv": ctr_iv(module[4:16]).hex(),
            "plaintext": None if plaintext is None else plaintext.hex(), "module": module.hex(),
        }  # fmt: skip

    key = KEYS["column-a-128"]
    # 257 blocks carry the counter into its second byte, which tells big-endian from little.
    for name, plaintext in {**PLAINTEXTS, "257-blocks": bytes(257 * 16)}.items():
        module = ctr_module(key, NONCE, plaintext)
        yield case(f"ctr-{name}", f"a plaintext of {len(plaintext)} bytes", module, plaintext)
    plaintext = PLAINTEXTS["block-plus-one"]
    for name in ("column-c-192", "column-d-256"):
        module = ctr_module(KEYS[name], NONCE, plaintext)
        yield case(f"ctr-{name[-3:]}-bits", "a longer key", module, plaintext, key=name)
    good = ctr_module(key, NONCE, plaintext)
    grown = (len(good) - 3).to_bytes(4, "little") + good[4:]
    yield case("ctr-length-one-more", "a byte that is not there", grown, None, "truncation")
    yield case("ctr-truncated", "the last byte is missing", good[:-1], None, "truncation")
    unseen = "nothing authenticates a CTR module: it opens to another plaintext"
    module, nonce = flip_bit(good, 4), flip_bit(NONCE, 0)
    yield case("ctr-nonce-flipped", unseen, module, ctr(key, nonce, good[16:]))
    yield case("ctr-ciphertext-flipped", unseen, flip_bit(good, 20), flip_bit(plaintext, 4))
    other = ctr(KEYS["other-128"], NONCE, good[16:])
    yield case("ctr-wrong-key", unseen, good, other, key="other-128")


def slug(kind: ModuleType) -> str:
    return kind.name.lower().replace("_", "-")
