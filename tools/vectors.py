"""Build and check spec-vectors/: each case has one fault, which its name describes.

    python tools/vectors.py build    writes everything but the plaintext inputs
    python tools/vectors.py check    rebuilds in memory, compares byte for byte, and has the
                                     independent verifier agree on every case
    python tools/vectors.py inputs   writes the plaintext inputs (once: PyArrow's bytes change)

Expected error codes are written by hand, from the format and the reader's policy. AADs, GCM and CTR
modules are built without modcrypt. modcrypt writes the encrypted files, with a fixed keystream
instead of the operating system's random bits; tools/verify_pme.py opens them.
tools/ags1_vectors.py builds the files under spec-vectors/ags1.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any
from unittest import mock

from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR, GCM

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # for a run as a script

from modcrypt import FileEncryptionProperties, encrypt_parquet  # noqa: E402 (after the path is set)
from modcrypt.module_ids import ModuleId, ModuleType  # noqa: E402
from modcrypt.parquet.crypto.ciphers import FileCipher  # noqa: E402
from modcrypt.parquet.format import idl  # noqa: E402
from modcrypt.parquet.format.page_header import splice  # noqa: E402
from tools import ags1_vectors, verify_pme  # noqa: E402
from tools.vector_patches import FOLDER, Patch, apply, fixed_bytes, flip, replace  # noqa: E402
from tools.verify_pme import Module, VerifyError  # noqa: E402

T = ModuleType
GCM_V1, CTR_V1 = "AES_GCM_V1", "AES_GCM_CTR_V1"
Json = dict[str, Any]

KEYS = {
    f"{name}-{bits}": fixed_bytes(f"key {name}-{bits}", bits // 8)
    for name, bits in [
        ("footer", 128), ("footer", 192), ("footer", 256), ("column-a", 128), ("column-b", 128),
        ("column-c", 192), ("column-d", 256), ("other", 128),
    ]
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


# --- plaintext inputs and the encrypted files made from them ------------------------------------


def write_inputs() -> None:
    """Write spec-vectors/parquet/plain. Run once; the files are committed."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder = FOLDER / "parquet" / "plain"
    folder.mkdir(parents=True, exist_ok=True)

    def write(name: str, table: pa.Table, **options: Any) -> None:
        pq.write_table(table, folder / f"{name}.parquet", store_schema=False, **options)

    n = range(8)
    ids, words = pa.array([10**12 + i for i in n]), pa.array(["ant", "bee"] * 4)
    flat = pa.table(
        {
            "buyer": ids,
            "owner": pa.array([2 * 10**12 + i for i in n]),  # pages as large as those of buyer
            "name": words,
            "kind": pa.array(["cat", "dog"] * 4),  # a dictionary as large as that of name
            "address": pa.array([{"zip": f"{i:05}", "city": "Ulm" if i % 3 else None} for i in n]),
            "code": pa.array([7 * i for i in n], pa.int32()),
            "note": pa.array([i / 4 for i in n]),
        }
    )
    pages = {"max_rows_per_page": 2, "write_batch_size": 2, "write_page_index": True}
    bloom = {"ndv": 4, "fpp": 0.1}
    write(
        "flat", flat, row_group_size=4, use_dictionary=["name", "kind"], compression="none",
        bloom_filter_options={"buyer": bloom, "owner": bloom}, **pages,
    )  # fmt: skip
    small = pa.table({"id": ids, "name": words})
    write("small", small, use_dictionary=["name"], compression="snappy", **pages)
    write("crc", small, use_dictionary=False, compression="none", write_page_checksum=True)
    write("empty", small.slice(0, 0))
    v2 = pa.table(
        {
            "id": ids,
            "value": pa.array([None if i % 2 else i * 1.5 for i in n]),
            "tags": pa.array([["a", "b"][: i % 3] for i in n]),
        }
    )
    write("v2", v2, data_page_version="2.0", use_dictionary=False, compression="snappy", **pages)
    flat_ids = pa.table([ids], schema=pa.schema([pa.field("id", pa.int64(), nullable=False)]))
    write("required", flat_ids, data_page_version="2.0", use_dictionary=False, **pages)

    from tools import unknown_field_vectors as unknown

    (FOLDER / unknown.PLAIN).write_bytes(unknown.write_input())


@dataclass(frozen=True)
class Base:
    """An encrypted file of modcrypt, and how to read it."""

    name: str
    plain: str
    comment: str
    tags: tuple[str, ...]
    footer: str = "footer-128"
    columns: dict[str, str] = field(default_factory=dict)  # leaf path to key name
    options: Json = field(default_factory=dict)  # for FileEncryptionProperties
    reading: Json = field(default_factory=dict)  # properties of the case
    padded: bool = False


MIXED: Json = {
    "columns": {
        **dict.fromkeys(("buyer", "owner", "name", "kind"), "column-a-128"),
        "address.zip": "column-b-128",
        "address.city": "column-b-128",
    },
}  # code is under the footer key, note in plaintext
PLAIN_NOTE: Json = {"plaintext_columns": ["note"]}
CTR_READING: Json = {"algorithms": [CTR_V1]}
CTR_OPTIONS: Json = {"encryption_algorithm": CTR_V1}
PF: Json = {"plaintext_footer": True}
EACH = {"id": "column-c-192", "name": "column-d-256"}

BASES = [
    Base("gcm-ef-mixed", "flat", "column keys, a column under the footer key, one in plaintext",
         ("gcm", "encrypted-footer"), **MIXED, options=PLAIN_NOTE),
    Base("gcm-pf-mixed", "flat", "the same with a signed plaintext footer",
         ("gcm", "plaintext-footer"), **MIXED, options=PLAIN_NOTE | PF),
    Base("ctr-ef-mixed", "flat", "the same in CTR", ("ctr", "encrypted-footer"),
         **MIXED, options=PLAIN_NOTE | CTR_OPTIONS, reading=CTR_READING),
    Base("ctr-pf-mixed", "flat", "CTR and a signed plaintext footer", ("ctr", "plaintext-footer"),
         **MIXED, options=PLAIN_NOTE | CTR_OPTIONS | PF, reading=CTR_READING),
    Base("gcm-ef-uniform-192", "small", "all under a footer key of 192 bits",
         ("gcm", "encrypted-footer", "uniform"), footer="footer-192"),
    Base("ctr-ef-uniform", "small", "all under the footer key, in CTR",
         ("ctr", "encrypted-footer", "uniform"), options=CTR_OPTIONS, reading=CTR_READING),
    Base("gcm-pf-uniform-256", "small", "all under a footer key of 256 bits",
         ("gcm", "plaintext-footer", "uniform"), footer="footer-256", options=PF),
    Base("gcm-ef-columns", "small", "a key for every column, and key metadata",
         ("gcm", "encrypted-footer", "key-metadata"), columns=EACH,
         options={"footer_key_metadata": b"kf", "column_key_metadata": {"id": b"kc"}}),
    Base("gcm-pf-columns", "small", "a key for every column, and key metadata",
         ("gcm", "plaintext-footer", "key-metadata"), columns=EACH,
         options=PF | {"footer_key_metadata": b"kf", "column_key_metadata": {"id": b"kc"}}),
    Base("prefix-stored", "small", "the AAD prefix is in the file",
         ("gcm", "encrypted-footer", "prefix"), options={"aad_prefix": PREFIX}),
    Base("prefix-not-stored", "small", "the reader must supply the AAD prefix",
         ("gcm", "encrypted-footer", "prefix"), reading={"aad_prefix": PREFIX.hex()},
         options={"aad_prefix": PREFIX, "store_aad_prefix": False}),
    Base("prefix-not-stored-pf", "small", "the same with a signed plaintext footer",
         ("gcm", "plaintext-footer", "prefix"), reading={"aad_prefix": PREFIX.hex()},
         options={"aad_prefix": PREFIX, "store_aad_prefix": False} | PF),
    Base("java-padding", "flat", "Thrift modules end in zeros up to 100, 200, 400 ... bytes, as "
         "parquet-java seals them", ("gcm", "encrypted-footer", "java-padding"),
         **MIXED, options=PLAIN_NOTE, padded=True),
    Base("v2-whole", "v2", "data pages V2 sealed whole, as Arrow does",
         ("gcm", "encrypted-footer", "v2")),
    Base("v2-no-levels", "required", "data pages V2 without levels: both layouts are the same",
         ("gcm", "encrypted-footer", "v2")),
    Base("v2-levels-clear", "v2", "data pages V2 with their levels in clear, as parquet-java does",
         ("gcm", "encrypted-footer", "v2", "v2-levels-clear"),
         options={"data_page_v2_levels": "plaintext"}),
    Base("v2-whole-ctr", "v2", "data pages V2 sealed whole, in CTR",
         ("ctr", "encrypted-footer", "v2"), options=CTR_OPTIONS, reading=CTR_READING),
    Base("v2-levels-clear-ctr", "v2", "data pages V2 with their levels in clear, in CTR",
         ("ctr", "encrypted-footer", "v2", "v2-levels-clear"),
         options=CTR_OPTIONS | {"data_page_v2_levels": "plaintext"}, reading=CTR_READING),
    Base("crc", "crc", "page CRCs, over the stored bytes", ("gcm", "encrypted-footer", "crc")),
    Base("crc-ctr", "crc", "page CRCs, in CTR", ("ctr", "encrypted-footer", "crc"),
         options=CTR_OPTIONS, reading=CTR_READING),
    Base("empty", "empty", "no rows", ("gcm", "encrypted-footer", "empty")),
]  # fmt: skip
BY_NAME = {base.name: base for base in BASES}


@contextmanager
def fixed_random(seed: str) -> Iterator[None]:
    """Replace modcrypt's random bits by a keystream; different seeds give different nonces."""
    stream = io.BytesIO(fixed_bytes(f"random {seed}", 1 << 16))
    with ExitStack() as stack:
        for module in ("modcrypt.aead", "modcrypt.parquet.convert.encryptor"):
            stack.enter_context(mock.patch(f"{module}.urandom", stream.read))
        yield


@contextmanager
def java_padding() -> Iterator[None]:
    """Pad every Thrift module before it is sealed, as parquet-java's growing buffer does."""
    seal = FileCipher.seal

    def pad(struct: bytes | bytearray) -> bytes:
        size = 100
        while size < len(struct):
            size *= 2
        return bytes(struct).ljust(size, b"\0")

    def padded_seal(self: FileCipher, key: Any, module: ModuleId, plaintext: bytes) -> bytes:
        thrift = module.type is not T.BLOOM_FILTER_BITSET
        return seal(self, key, module, pad(plaintext) if thrift else plaintext)

    header_writer = "modcrypt.parquet.convert.page_encryption.splice"
    with (
        mock.patch.object(FileCipher, "seal", padded_seal),
        mock.patch(header_writer, lambda *found: pad(splice(*found))),
    ):
        yield


@cache
def encrypt_base(name: str, seed: str = "") -> bytes:
    """Build a base file; another seed gives its twin with another file-unique."""
    base = BY_NAME[name]
    properties = FileEncryptionProperties(
        footer_key=KEYS[base.footer],
        column_keys={path: KEYS[key] for path, key in base.columns.items()},
        **base.options,
    )
    out = io.BytesIO()
    with fixed_random(name + seed), ExitStack() as stack:
        if base.padded:
            stack.enter_context(java_padding())
        encrypt_parquet(plain(base.plain), out, properties, threads=1)
    return out.getvalue()


@cache
def plain(name: str) -> bytes:
    return (FOLDER / "parquet" / "plain" / f"{name}.parquet").read_bytes()


def swap(a: Module, b: Module) -> Patch:
    assert a.offset is not None
    assert b.offset is not None
    assert a.size == b.size
    return {"swap": sorted([a.offset, b.offset]), "size": a.size}


# --- what the cases say -------------------------------------------------------------------------


def slug(kind: ModuleType) -> str:
    return kind.name.lower().replace("_", "-")


@cache
def leaves(name: str) -> list[str]:
    data = plain(BY_NAME[name].plain)
    return verify_pme.leaf_paths(verify_pme.read_struct(data, footer_start(data))[0][2])


def footer_start(data: bytes) -> int:
    return len(data) - 8 - int.from_bytes(data[-8:-4], "little")


def address(name: str, module: Module | tuple[ModuleType, int, int, int | None]) -> Json:
    """Return a module's address in the form of the cases."""
    kind, row_group, column, page = module[:4]
    if kind == T.FOOTER:
        return {"type": "FOOTER"}
    assert column is not None
    place = {"row_group": row_group, "column": column, "path": leaves(name)[column]}
    return {"type": T(kind).name, **place} | ({} if page is None else {"page": page})


def case(
    base: str, name: str, comment: str, patches: list[Patch] | None = None, expect: str = "ok",
    *, module: Json | None = None, column: str | None = None, spec: str = "PME 5.1",
    tags: tuple[str, ...] = (), footer: str | None = "", columns: dict[str, str] | None = None,
    properties: Json | None = None, payload: bytes | None = None, drops: tuple[str, ...] = (),
    file: str | None = None, **more: Any,
) -> Json:  # fmt: skip
    """Return one case; the base supplies the defaults."""
    of = BY_NAME[base]
    ok = expect == "ok"
    content = plain(of.plain) if payload is None else payload
    return {
        "id": name,
        "comment": comment,
        "spec": spec,
        "tags": [*of.tags, *tags],
        "file": file or f"base/{base}.parquet",
        "patches": patches or [],
        "keys": {
            "footer": of.footer if footer == "" else footer,
            "columns": of.columns if columns is None else columns,
        },
        "properties": {**of.reading, **(properties or {})},
        "expect": expect,
        "error": None if ok else {"module": module, "column": column},
        "plain": f"plain/{of.plain}.parquet",
        "drops": list(drops),
        "payload_sha256": hashlib.sha256(content).hexdigest() if ok and not drops else None,
        **more,
    }


# --- walking a base -----------------------------------------------------------------------------


@cache
def modules(name: str) -> tuple[Module, ...]:
    """Return every module of a base, as the independent verifier finds them."""
    base = BY_NAME[name]
    return tuple(
        verify_pme.verify(
            encrypt_base(name), KEYS[base.footer],
            {path: KEYS[key] for path, key in base.columns.items()},
            aad_prefix_of(base.reading), algorithms=(algorithm_of(base.reading),),
        )
    )  # fmt: skip


def aad_prefix_of(properties: Json) -> bytes | None:
    prefix = properties.get("aad_prefix")
    return None if prefix is None else bytes.fromhex(prefix)


def algorithm_of(properties: Json) -> str:
    name: str = properties.get("algorithms", [GCM_V1])[0]
    return name


def first(name: str, kind: ModuleType, **wanted: int) -> Module:
    return next(
        m for m in modules(name)
        if m.type == kind and all(getattr(m, k) == v for k, v in wanted.items())
    )  # fmt: skip


def key_of(name: str, module: Module) -> bytes:
    base = BY_NAME[name]
    path = "" if module.column is None else leaves(name)[module.column]
    return KEYS[base.columns.get(path, base.footer)]


def file_aad(data: bytes) -> bytes:
    """Return prefix and file-unique of a file that stores both, or has no prefix."""
    fields, _ = verify_pme.read_struct(data, footer_start(data))
    union = fields[8] if data[:4] == b"PAR1" else fields[1]
    (algorithm,) = union.values()
    return bytes(algorithm.get(1, b"")) + bytes(algorithm[2])


def open_module(name: str, data: bytes, module: Module) -> bytes:
    assert module.offset is not None
    sealed = data[module.offset : module.offset + module.size]
    aad = verify_pme.module_aad(file_aad(data), *module[:4])
    is_ctr = module.type in (T.DATA_PAGE, T.DICTIONARY_PAGE) and "ctr" in BY_NAME[name].tags
    return verify_pme.open_module(key_of(name, module), aad, sealed, ctr=is_ctr)


def reseal(name: str, module: Module, plaintext: bytes) -> Patch:
    """Return the patch of a key holder who replaces a module by another one of the same size."""
    data, aad = encrypt_base(name), verify_pme.module_aad(file_aad(encrypt_base(name)), *module[:4])
    assert module.offset is not None
    old = data[module.offset : module.offset + module.size]
    nonce = fixed_bytes(f"resealed {name} {module}", 12)
    new = gcm_module(key_of(name, module), nonce, aad, plaintext)
    assert len(new) == len(old)
    return replace(module.offset, old, new)


def resign(name: str, patches: list[Patch]) -> list[Patch]:
    """Return patches of a plaintext footer, and the signature that a key holder then makes."""
    before = encrypt_base(name)
    data = apply(before, patches)
    start, end = footer_start(before), len(data) - 8
    nonce = fixed_bytes(f"resigned {name} {patches}", 12)
    aad = spec_aad(file_aad(before), T.FOOTER, ())
    tag = gcm_module(KEYS[BY_NAME[name].footer], nonce, aad, data[start : end - 28])[-16:]
    length = (end - start).to_bytes(4, "little")
    return [*patches, replace(end - 28, data[end - 28 : end + 4], nonce + tag + length)]


# --- Parquet cases ------------------------------------------------------------------------------

REGIONS = {
    "length": "the length field is one off",
    "nonce": "one bit of the nonce flipped",
    "ciphertext": "one bit of the ciphertext flipped",
    "tag": "one bit of the tag flipped",
}


def region_offset(module: Module, region: str) -> int:
    assert module.offset is not None
    middle = 16 + (module.size - 32) // 2
    places = {"length": 0, "nonce": 4, "ciphertext": middle, "tag": module.size - 1}
    return module.offset + places[region]


# Nothing but its own length field says where a header module ends: the reader takes a byte more
# or less for it, which does not authenticate. All other lengths are stored a second time elsewhere.
TOLD_ONCE = {T.DATA_PAGE_HEADER, T.DICTIONARY_PAGE_HEADER, T.BLOOM_FILTER_HEADER}


def good_cases() -> Iterator[Json]:
    for base in BASES:
        counts = Counter(T(m.type).name for m in modules(base.name))
        yield case(base.name, base.name, base.comment, spec="PME 5", modules=dict(counts))


def region_cases() -> Iterator[Json]:
    """Yield cases with one changed bit for every region of every module type."""
    for kind in T:
        # Column metadata inside a sealed footer can't be reached; in a signed one the signature
        # stands before it, so the holder of the footer key must be the one who altered it.
        in_footer = kind is T.COLUMN_METADATA
        name = "gcm-pf-mixed" if in_footer else "gcm-ef-mixed"
        module = first(name, kind)
        for region, comment in REGIONS.items():
            patches = [flip(encrypt_base(name), region_offset(module, region))]
            told_twice = region == "length" and kind not in TOLD_ONCE
            yield case(
                name, f"{slug(kind)}-{region}-flipped",
                comment + (", and the footer signed again" if in_footer else ""),
                resign(name, patches) if in_footer else patches,
                "truncation" if told_twice else "tag", module=address(name, module),
            )  # fmt: skip


AXES = ("page", "column", "row_group")
# Modules of every type fit another module's place of the same size; these have no such place.
NO_SWAP = {(kind, "page") for kind in T if kind not in WITH_PAGE} | {
    (T.FOOTER, "column"), (T.FOOTER, "row_group"),
}  # fmt: skip


def swap_cases() -> Iterator[Json]:
    """Yield cases that exchange modules of equal size and key, by each ordinal and across files."""
    for kind in T:
        in_footer = kind is T.COLUMN_METADATA
        name = "gcm-pf-mixed" if in_footer else "gcm-ef-mixed"
        for axis in AXES:
            if (kind, axis) in NO_SWAP:
                continue
            a, b = pair(name, kind, axis)
            patches = [swap(a, b)]
            yield case(
                name, f"{slug(kind)}-swapped-across-{axis.replace('_', '-')}s",
                f"two modules that differ in the {axis.replace('_', ' ')} alone, exchanged",
                resign(name, patches) if in_footer else patches,
                "tag", module=address(name, a), spec="PME 4.4.2",
            )  # fmt: skip
        module = first(name, kind)
        start, end = module.offset or 0, (module.offset or 0) + module.size
        twin = encrypt_base(name, " twin")
        patches = [replace(start, encrypt_base(name)[start:end], twin[start:end])]
        yield case(
            name, f"{slug(kind)}-of-another-file", "the same module of a file with the same keys "
            "and content, but another aad_file_unique",
            resign(name, patches) if in_footer else patches, "tag",
            module=address(name, module), spec="PME 4.4.2",
        )  # fmt: skip


def pair(name: str, kind: ModuleType, axis: str) -> tuple[Module, Module]:
    """Return the first two modules of equal size and key whose addresses differ in one ordinal."""
    of_kind = [m for m in modules(name) if m.type == kind and m.offset is not None]
    for a, b in combinations(of_kind, 2):
        differ = [axis for axis in AXES if getattr(a, axis) != getattr(b, axis)]
        if differ == [axis] and a.size == b.size and key_of(name, a) == key_of(name, b):
            return a, b
    raise LookupError(f"{name} has no {slug(kind)} modules to swap across {axis}s")


def signature_cases() -> Iterator[Json]:
    name, spec = "gcm-pf-mixed", "PME 5.5"
    data = encrypt_base(name)
    end = len(data) - 8
    made_by = data.index(b"parquet-cpp", footer_start(data))
    for what, at in (("created-by", made_by), ("nonce", end - 28), ("tag", end - 1)):
        yield case(
            name, f"signed-footer-{what}-flipped", "one bit of what the signature covers or is",
            [flip(data, at)], "signature", spec=spec,
        )  # fmt: skip
    yield case(
        name, "signed-footer-unchecked", "a reader that asks for no check takes an altered footer",
        [flip(data, made_by)], spec=spec, properties={"check_footer_integrity": False},
        tags=("policy",), payload=plain("flat").replace(b"parquet-cpp", b"qarquet-cpp"),
    )  # fmt: skip
    yield case(
        name, "signature-stripped", "encryption algorithm and signature removed: without them "
        "the file looks like a plaintext one",
        [footer_patch(data, strip_algorithm, signature=0)], "plaintext", spec=spec,
    )  # fmt: skip
    yield case(
        name, "column-metadata-removed", "the footer is not signed again",
        [footer_patch(data, drop_column_metadata, signature=28)], "signature", spec="PME 5.3, 5.5",
    )  # fmt: skip
    yield case(
        name, "row-groups-reordered", "by a holder of the footer key: ordinals and positions "
        "disagree, and readers go by one or the other",
        resign(name, [footer_patch(data, reorder, signature=28)]), "format", spec="PME 5.2",
    )  # fmt: skip
    yield case(
        name, "row-groups-reordered-and-renumbered", "by a holder of the footer key",
        resign(name, [footer_patch(data, renumber, signature=28)]), "tag",
        module=address(name, (T.COLUMN_METADATA, 0, 0, None)), spec="PME 4.4.2",
    )  # fmt: skip


def footer_patch(data: bytes, change: Callable[[Any], None], signature: int) -> Patch:
    """Change the FileMetaData of a plaintext footer; keep `signature` bytes after it."""
    old = data[footer_start(data) :]
    metadata = idl.decode("FileMetaData", old)[0]
    change(metadata)
    new = idl.encode(metadata) + (old[-36:-8] if signature else b"")
    return replace(footer_start(data), old, new + len(new).to_bytes(4, "little") + b"PAR1")


def strip_algorithm(metadata: Any) -> None:
    metadata.encryption_algorithm = None


def drop_column_metadata(metadata: Any) -> None:
    metadata.row_groups[0].columns[0].encrypted_column_metadata = None


def reorder(metadata: Any) -> None:
    metadata.row_groups.reverse()


def renumber(metadata: Any) -> None:
    reorder(metadata)
    for position, row_group in enumerate(metadata.row_groups):
        row_group.ordinal = position


def key_cases() -> Iterator[Json]:
    mixed, mixed_pf = BY_NAME["gcm-ef-mixed"].columns, "gcm-pf-mixed"
    without_zip = {path: key for path, key in mixed.items() if path != "address.zip"}
    sealed_id = (T.COLUMN_METADATA, 0, 0, None)
    for name in ("gcm-ef-mixed", mixed_pf):
        mode = name[4:6]
        wrong = "tag" if mode == "ef" else "signature"
        footer = {"type": "FOOTER"} if mode == "ef" else None
        yield case(name, f"footer-key-absent-{mode}", "no footer key is given", expect="no-key",
                   footer=None, spec="PME 4.3")  # fmt: skip
        yield case(name, f"footer-key-wrong-{mode}", "another key of the same length",
                   expect=wrong, footer="other-128", module=footer)  # fmt: skip
        yield case(name, f"column-key-absent-{mode}", "no key for one column", expect="no-key",
                   columns=without_zip, column="address.zip", spec="PME 4.3")  # fmt: skip
        yield case(name, f"column-key-absent-dropped-{mode}", "the reader leaves the column out",
                   columns=without_zip, drops=("address.zip",), tags=("policy",),
                   properties={"on_missing_key": "drop"}, spec="PME 4.3")  # fmt: skip
        yield case(name, f"column-key-wrong-{mode}", "another key of the same length",
                   expect="tag", columns={**mixed, "buyer": "other-128"},
                   module=address(name, sealed_id))  # fmt: skip
        yield case(name, f"column-key-for-plaintext-column-{mode}", "the reader has a key for a "
                   "column that the file has in plaintext", expect="plaintext",
                   columns={**mixed, "note": "column-a-128"}, tags=("policy",))  # fmt: skip
    yield case("gcm-pf-columns", "footer-key-absent-unchecked", "a plaintext footer can be read "
               "without its key, unchecked", footer=None, tags=("policy",), spec="PME 5.5",
               properties={"check_footer_integrity": False})  # fmt: skip
    data = encrypt_base("gcm-ef-columns")
    yield case("gcm-ef-columns", "footer-key-metadata-flipped", "key metadata is not "
               "authenticated; with keys given it carries nothing", tags=("unauthenticated",),
               patches=[flip(data, data.index(b"kf", footer_start(data)))],
               spec="PME 4.3")  # fmt: skip


def prefix_cases() -> Iterator[Json]:
    spec = "PME 4.4.1"
    footer = {"type": "FOOTER"}

    def prefix_of(prefix: bytes | None) -> Json:
        return {"aad_prefix": None if prefix is None else prefix.hex()}

    wrong = b"table/part.11"
    yield case("prefix-stored", "prefix-stored-and-given", "the reader expects the stored prefix",
               properties=prefix_of(PREFIX), spec=spec)  # fmt: skip
    yield case("prefix-stored", "prefix-stored-another-given", "the reader expects another one",
               expect="aad-prefix", properties=prefix_of(wrong), spec=spec)  # fmt: skip
    yield case("prefix-not-stored", "prefix-not-stored-none-given", "the reader must supply it",
               expect="aad-prefix", properties=prefix_of(None), spec=spec)  # fmt: skip
    yield case("prefix-not-stored", "prefix-not-stored-another-given", "a wrong one is supplied",
               expect="tag", properties=prefix_of(wrong), module=footer, spec=spec)  # fmt: skip
    yield case("prefix-not-stored-pf", "prefix-not-stored-none-given-pf", "the reader must "
               "supply it", expect="aad-prefix", properties=prefix_of(None), spec=spec)  # fmt: skip
    yield case("prefix-not-stored-pf", "prefix-not-stored-another-given-pf", "a wrong one is "
               "supplied", expect="signature", properties=prefix_of(wrong), spec=spec)  # fmt: skip
    yield case("gcm-ef-mixed", "prefix-given-but-not-used", "the file was written without one",
               expect="aad-prefix", properties=prefix_of(PREFIX), spec=spec,
               tags=("policy",))  # fmt: skip
    data = encrypt_base("prefix-stored")
    at = data.index(PREFIX, footer_start(data))
    yield case("prefix-stored", "prefix-stored-flipped", "one bit of the stored prefix",
               [flip(data, at)], "tag", module=footer, spec=spec)  # fmt: skip
    # Lengths of the two Thrift binaries, 1 byte each, and the field header between them.
    old = data[at - 1 : at + len(PREFIX) + 10]
    prefix_end = at + len(PREFIX)
    header, unique = data[prefix_end : prefix_end + 1], data[prefix_end + 2 : prefix_end + 10]
    new = (
        bytes([len(PREFIX) - 1]) + PREFIX[:-1] + header + bytes([len(unique) + 1])
        + PREFIX[-1:] + unique
    )  # fmt: skip
    moved = [replace(at - 1, old, new)]
    comment = "a byte moved from the prefix to aad_file_unique: every AAD stays the same, and "
    yield case("prefix-stored", "prefix-border-moved", comment + "part.10 passes for part.1",
               moved, "aad-prefix", properties=prefix_of(PREFIX[:-1]), spec="PME 4.4",
               tags=("policy",))  # fmt: skip
    yield case("prefix-stored", "prefix-border-moved-unchecked", comment + "a reader that expects "
               "no prefix can't tell", moved, spec="PME 4.4", tags=("unauthenticated",),
               )  # fmt: skip
    data = encrypt_base("gcm-ef-mixed")
    at = data.index(UNUSED_PREFIX, footer_start(data)) + 8
    patch = {"at": at, "remove": 1, "insert": "11"}
    yield case("gcm-ef-mixed", "supply-aad-prefix-set", "the file claims that it needs a prefix",
               [patch], "aad-prefix", spec="PME 5.2")  # fmt: skip
    yield case("gcm-ef-mixed", "file-unique-flipped", "one bit of aad_file_unique",
               [flip(data, at - 1)], "tag", module=footer, spec="PME 4.4.2")  # fmt: skip
    start, size = footer_start(data), len(data) - 8 - footer_start(data)
    removed = data[start : at + 1].replace(b"\x28\x08" + UNUSED_PREFIX + b"\x12", b"\x32")
    shorter = (size - (at + 1 - start - len(removed))).to_bytes(4, "little")
    yield case("gcm-ef-mixed", "file-unique-absent", "DuckDB writes such files, with no AAD",
               [replace(len(data) - 8, data[-8:-4], shorter),
                replace(start, data[start : at + 1], removed)],
               "unsupported", spec="PME 4.4.2")  # fmt: skip


UNUSED_PREFIX = fixed_bytes("random gcm-ef-mixed", 8)  # file-unique is the first that is drawn


def algorithm_cases() -> Iterator[Json]:
    spec = "PME 4.2"
    gcm_file, ctr_file = encrypt_base("gcm-ef-mixed"), encrypt_base("ctr-ef-uniform")
    start = footer_start(gcm_file)
    # FileCryptoMetaData begins with field 1, the union; its member's id is the algorithm.
    assert gcm_file[start : start + 2] == b"\x1c\x1c"

    def relabel(data: bytes, member: str) -> list[Patch]:
        return [replace(footer_start(data) + 1, data[footer_start(data) + 1 :][:1],
                        bytes.fromhex(member))]  # fmt: skip

    yield case("ctr-ef-mixed", "ctr-not-accepted", "CTR must be accepted by name",
               expect="unsupported", properties={"algorithms": [GCM_V1]}, spec=spec,
               tags=("policy",))  # fmt: skip
    yield case("gcm-ef-mixed", "gcm-relabelled-ctr", "the name is not authenticated, and CTR "
               "would not look at tags", relabel(gcm_file, "2c"), "unsupported", spec=spec,
               tags=("policy",))  # fmt: skip
    both = {"algorithms": [GCM_V1, CTR_V1]}
    yield case("gcm-ef-mixed", "gcm-relabelled-ctr-accepted", "CTR is accepted, but an "
               "uncompressed page opens to 16 bytes too many", relabel(gcm_file, "2c"),
               "format", properties=both, spec=spec, tags=("policy",),
               module=address("gcm-ef-mixed", (T.DATA_PAGE, 0, 0, 0)))  # fmt: skip
    yield case("ctr-ef-uniform", "ctr-relabelled-gcm", "the first page has no tag",
               relabel(ctr_file, "1c"), "tag", properties=both, spec=spec,
               module=address("ctr-ef-uniform", (T.DATA_PAGE, 0, 0, 0)))  # fmt: skip
    yield case("gcm-ef-mixed", "algorithm-unknown", "a member that the union does not have",
               relabel(gcm_file, "3c"), "unsupported", spec=spec)  # fmt: skip
    pf = encrypt_base("gcm-pf-mixed")
    at = pf.index(fixed_bytes("random gcm-pf-mixed", 8), footer_start(pf)) - 3
    assert pf[at : at + 3] == b"\x1c\x28\x08"
    yield case("gcm-pf-mixed", "gcm-relabelled-ctr-signed", "the signature covers the name",
               [replace(at, b"\x1c", b"\x2c")], "signature", properties=both,
               spec=spec)  # fmt: skip


def ctr_page_cases() -> Iterator[Json]:
    """Yield cases of page bodies with CTR: only changed lengths are detected."""
    name, tags = "ctr-ef-mixed", ("ctr-malleable",)
    data = encrypt_base(name)
    for kind in (T.DATA_PAGE, T.DICTIONARY_PAGE):
        module = first(name, kind)
        at = module.offset or 0
        yield case(name, f"ctr-{slug(kind)}-length-flipped", REGIONS["length"], [flip(data, at)],
                   "truncation", module=address(name, module))  # fmt: skip
        for region, place in (("nonce", at + 4), ("ciphertext", at + module.size - 1)):
            patches = [flip(data, place)]
            payload = other_payload(name, patches, [module])
            yield case(name, f"ctr-{slug(kind)}-{region}-flipped", f"{REGIONS[region]}: nothing "
                       "authenticates it, other values come out", patches, payload=payload,
                       spec="PME 4.2.2", tags=tags)  # fmt: skip
    a, b = pair(name, T.DATA_PAGE, "page")
    patches = [swap(a, b)]
    yield case(name, "ctr-data-page-swapped-across-pages", "CTR pages have no AAD: rows are "
               "exchanged unseen", patches, payload=other_payload(name, patches, [a, b]),
               spec="PME 4.2.2", tags=tags)  # fmt: skip
    header = first(name, T.DATA_PAGE_HEADER)
    yield case(name, "ctr-data-page-header-ciphertext-flipped", "page headers stay under GCM",
               [flip(data, region_offset(header, "ciphertext"))], "tag",
               module=address(name, header), spec="PME 4.2.2")  # fmt: skip
    page = first("crc-ctr", T.DATA_PAGE)
    crc_data = encrypt_base("crc-ctr")
    yield case("crc-ctr", "ctr-data-page-with-crc-flipped", "the CRC in the sealed header shows it",
               [flip(crc_data, (page.offset or 0) + page.size - 1)], "checksum",
               module=address("crc-ctr", page), spec="PME 4.2.2")  # fmt: skip


def other_payload(name: str, patches: list[Patch], changed: list[Module]) -> bytes:
    """Return the plaintext file with other bytes in the pages that `patches` changed."""
    payload, data = plain(BY_NAME[name].plain), encrypt_base(name)
    after = apply(data, patches)
    pieces = []
    for module in changed:
        old = open_module(name, data, module)
        assert module.row_group == 0  # so that the first place is the right one
        pieces.append((payload.index(old), open_module(name, after, module)))
    for at, new in pieces:
        payload = payload[:at] + new + payload[at + len(new) :]
    assert payload != plain(BY_NAME[name].plain)
    return payload


def v2_cases() -> Iterator[Json]:
    name = "v2-levels-clear"
    data = encrypt_base(name)
    tags_column = leaves(name).index("tags.list.element")
    page = first(name, T.DATA_PAGE, column=tags_column, page=0)
    at = page.offset or 0
    header = open_module(name, data, first(name, T.DATA_PAGE_HEADER, column=tags_column, page=0))
    v2 = idl.decode("PageHeader", header)[0].data_page_header_v2
    levels = v2.repetition_levels_byte_length + v2.definition_levels_byte_length
    body = data[at - levels : at] + open_module(name, data, page)  # the first page: the first place
    level = plain("v2").index(body) + levels - 1
    yield case(name, "v2-clear-level-flipped", "levels in clear are not authenticated: rows get "
               "other lengths unseen", [flip(data, at - 1)], payload=flip_bit(plain("v2"), level),
               tags=("unauthenticated",))  # fmt: skip
    yield case(name, "v2-levels-clear-value-flipped", "the values are sealed",
               [flip(data, at + 16)], "tag", module=address(name, page))  # fmt: skip
    whole = first("v2-whole", T.DATA_PAGE, column=tags_column, page=0)
    yield case("v2-whole", "v2-whole-level-flipped", "sealed whole, levels are authenticated",
               [flip(encrypt_base("v2-whole"), (whole.offset or 0) + 16)], "tag",
               module=address("v2-whole", whole))  # fmt: skip
    bare = first("v2-no-levels", T.DATA_PAGE)
    yield case("v2-no-levels", "v2-no-levels-length-flipped", REGIONS["length"],
               [flip(encrypt_base("v2-no-levels"), bare.offset or 0)], "truncation",
               module=address("v2-no-levels", bare))  # fmt: skip


def insider_cases() -> Iterator[Json]:
    """Yield cases in which a key holder encrypts contradictions between parts of the file."""
    name, compressed = "gcm-ef-mixed", "gcm-ef-uniform-192"

    def lie(
        name: str, kind: ModuleType, change: Callable[[Any], None], struct: str
    ) -> list[Patch]:  # fmt: skip
        module = first(name, kind)
        value = idl.decode(struct, open_module(name, encrypt_base(name), module))[0]
        change(value)
        return [reseal(name, module, idl.encode(value))]

    def bigger_page(header: Any) -> None:
        header.uncompressed_page_size += 1

    def longer_page(header: Any) -> None:
        header.compressed_page_size += 1

    def other_place(index: Any) -> None:
        index.page_locations[0].offset += 1

    def bigger_bitset(header: Any) -> None:
        header.numBytes += 1

    page = address(name, (T.DATA_PAGE, 0, 0, 0))
    yield case(name, "page-header-uncompressed-size-lies", "an uncompressed page opens to another "
               "size", lie(name, T.DATA_PAGE_HEADER, bigger_page, "PageHeader"), "format",
               module=page, tags=("insider",))  # fmt: skip
    page = address(compressed, (T.DATA_PAGE, 0, 0, 0))
    yield case(compressed, "page-header-compressed-size-lies", "the page module's length field "
               "says otherwise", lie(compressed, T.DATA_PAGE_HEADER, longer_page, "PageHeader"),
               "truncation", module=page, tags=("insider",))  # fmt: skip
    yield case(name, "offset-index-lies", "a page location is not where the page is",
               lie(name, T.OFFSET_INDEX, other_place, "OffsetIndex"), "format",
               tags=("insider",))  # fmt: skip
    yield case(name, "bloom-filter-header-lies", "the bitset has another size",
               lie(name, T.BLOOM_FILTER_HEADER, bigger_bitset, "BloomFilterHeader"), "format",
               tags=("insider",))  # fmt: skip


def file_cases() -> Iterator[Json]:
    name = "gcm-ef-mixed"
    data = encrypt_base(name)
    size = len(data)
    yield case(name, "plaintext-file", "a plaintext file in the encrypted one's place",
               expect="plaintext", file="plain/flat.parquet", spec="PME 5.4")  # fmt: skip
    yield case(name, "head-magic-par1", "the magics of head and end differ",
               [replace(0, b"PARE", b"PAR1")], "format", spec="PME 5.4")  # fmt: skip
    yield case(name, "tail-magic-par1", "the magics of head and end differ",
               [replace(size - 4, b"PARE", b"PAR1")], "format", spec="PME 5.4")  # fmt: skip
    yield case(name, "last-byte-missing", "the file is cut short",
               [{"at": size - 1, "remove": 1, "insert": ""}], "format", spec="PME 5.4")  # fmt: skip
    yield case(name, "footer-length-huge", "the tail declares more bytes than the file has",
               [replace(size - 8, data[-8:-4], b"\xff\xff\xff\x7f")], "limit",
               spec="PME 5.4")  # fmt: skip
    yield case(name, "empty-file", "no bytes at all",
               [{"at": 0, "remove": size, "insert": ""}], "format", spec="PME 5.4")  # fmt: skip


def parquet_cases() -> list[Json]:
    makers = (
        good_cases, region_cases, swap_cases, signature_cases, key_cases, prefix_cases,
        algorithm_cases, ctr_page_cases, v2_cases, insider_cases, file_cases,
    )  # fmt: skip
    return [made for maker in makers for made in maker()]


# --- reading cases, building, checking ----------------------------------------------------------


def load(name: str) -> list[Json]:
    """Read the cases of one committed file."""
    cases: list[Json] = json.loads((FOLDER / name).read_text())["cases"]
    return cases


def case_bytes(made: Json) -> bytes:
    """Return the file of a committed Parquet case."""
    return apply((FOLDER / "parquet" / made["file"]).read_bytes(), made["patches"])


def verdict(made: Json, data: bytes) -> VerifyError | list[Module]:
    """Return the independent verifier's result for the file of a Parquet case."""
    keys, properties = made["keys"], made["properties"]
    lenient = properties.get("on_missing_key") == "drop" or not properties.get(
        "check_footer_integrity", True
    )
    try:
        return verify_pme.verify(
            data,
            KEYS[keys["footer"]] if keys["footer"] else None,
            {path: KEYS[key] for path, key in keys["columns"].items()},
            aad_prefix_of(properties),
            algorithms=tuple(properties.get("algorithms", [GCM_V1])),
            partial=lenient,
        )
    except VerifyError as error:
        return error


# What modcrypt can be asked to let pass, and the verifier always refuses.
STRICTER = {"signed-footer-unchecked": "signature"}


def disagreement(made: Json, data: bytes) -> str | None:
    """Return how the independent verifier differs from a case's expectation; None if it agrees."""
    said = verdict(made, data)
    word = said.word if isinstance(said, VerifyError) else "ok"
    expected = STRICTER.get(made["id"], made["expect"])
    if word != expected:
        return f"{made['id']}: expected {expected}, the verifier says {word} ({said})"
    module = (made["error"] or {}).get("module")
    if module is not None and isinstance(said, VerifyError):
        place = tuple(module.get(name) for name in ("row_group", "column", "page"))
        if said.address != (ModuleType[module["type"]].value, *place):
            return f"{made['id']}: expected {module}, the verifier names {said.address}"
    return None


def documents() -> dict[str, bytes]:
    """Return all generated files under spec-vectors/, by path."""
    from tools import unknown_field_vectors as unknown

    def text(about: str, cases: Iterator[Json] | list[Json]) -> bytes:
        listed = list(cases)
        ids = Counter(made["id"] for made in listed)
        assert max(ids.values()) == 1, ids.most_common(1)
        return (json.dumps({"about": about, "cases": listed}, indent=1) + "\n").encode()

    keys = {name: key.hex() for name, key in KEYS.items()}
    return {
        "keys.json": (json.dumps(keys, indent=1) + "\n").encode(),
        "aad.json": text("AADs of all module types, PME 4.4.2", aad_cases()),
        "gcm.json": text("GCM modules, PME 5.1", gcm_cases()),
        "ctr.json": text("CTR modules, PME 4.2.2 and 5.1", ctr_cases()),
        "parquet/cases.json": text("Encrypted files, PME 5", parquet_cases()),
        "parquet/unknown-fields.json": text(
            "Thrift fields that no IDL has: which files and copies keep them", unknown.cases()
        ),
        **{f"parquet/base/{base.name}.parquet": encrypt_base(base.name) for base in BASES},
        **ags1_vectors.documents(),
    }


def build() -> int:
    for path, content in documents().items():
        (FOLDER / path).parent.mkdir(parents=True, exist_ok=True)
        (FOLDER / path).write_bytes(content)
    return 0


def check() -> int:
    from tools import unknown_field_vectors as unknown

    expected = documents()
    problems = [
        f"spec-vectors/{path} differs from what tools/vectors.py builds"
        for path, content in expected.items()
        if not (FOLDER / path).is_file() or (FOLDER / path).read_bytes() != content
    ]
    kept = {"README.md", unknown.PLAIN, *(f"parquet/plain/{base.plain}.parquet" for base in BASES)}
    by_others = (FOLDER / "by-writer").rglob("*")
    kept |= {str(path.relative_to(FOLDER)) for path in by_others if path.is_file()}
    found = {str(p.relative_to(FOLDER)) for p in FOLDER.rglob("*") if p.is_file()}
    problems += [f"spec-vectors/{path} is built by nobody" for path in found - kept - {*expected}]
    cases = json.loads(expected["parquet/cases.json"])["cases"]
    for made in cases:
        base = made["file"].removeprefix("base/").removesuffix(".parquet")
        whole = encrypt_base(base) if base in BY_NAME else plain(Path(made["file"]).stem)
        if difference := disagreement(made, apply(whole, made["patches"])):
            problems.append(difference)
    problems += ags1_vectors.problems()
    source = (FOLDER / unknown.PLAIN).read_bytes()
    problems += filter(None, (unknown.problem(made, source, KEYS) for made in unknown.cases()))
    print(*problems, sep="\n", end="\n" if problems else "")
    print(
        f"{len(expected)} files, {len(cases)} Parquet cases, {len(ags1_vectors.cases())} AGS1 "
        f"cases, {len(problems)} problems"
    )
    return 1 if problems else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("command", choices=("build", "check", "inputs"))
    command = parser.parse_args().command
    if command == "inputs":
        write_inputs()
        return 0
    return build() if command == "build" else check()


if __name__ == "__main__":
    sys.exit(main())
