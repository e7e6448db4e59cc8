"""The encrypted files that Parquet cases are made from, and what patches to them need.

modcrypt writes the files, with a fixed keystream instead of the operating system's random bits;
tools/verify_pme.py finds their modules.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any
from unittest import mock

from modcrypt import FileEncryptionProperties, encrypt_parquet
from modcrypt.module_ids import ModuleId, ModuleType
from modcrypt.parquet.crypto.ciphers import ChunkCipher, FileCipher
from modcrypt.parquet.format import idl
from modcrypt.parquet.format.page_header import splice
from tools import verify_pme
from tools.case_terms import parquet_terms
from tools.conformance.clients.arrow_rows import tagged_rows
from tools.conformance.rows import row_digest
from tools.module_vectors import KEYS, PREFIX, gcm_module, spec_aad
from tools.vector_patches import FOLDER, Patch, apply, fixed_bytes, replace
from tools.verify_pme import Module

if TYPE_CHECKING:  # only inputs and row digests need it
    import pyarrow as pa

T = ModuleType
GCM_V1, CTR_V1 = "AES_GCM_V1", "AES_GCM_CTR_V1"
Json = dict[str, Any]


def write_inputs() -> None:
    """Write the files of spec-vectors/parquet/plain that do not exist; all are committed."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder = FOLDER / "parquet" / "plain"
    folder.mkdir(parents=True, exist_ok=True)

    def write(name: str, table: pa.Table, **options: Any) -> None:
        if not (folder / f"{name}.parquet").exists():
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
    write("numbers", flat_ids, use_dictionary=False, compression="none")
    write("simple", small, use_dictionary=False, compression="none", row_group_size=4)
    write("types", table_of_types(), use_dictionary=False, compression="none")
    constant = pa.array([7] * 32_769, pa.int32())
    many = pa.table([constant], schema=pa.schema([pa.field("n", pa.int32(), nullable=False)]))
    write("many", many, compression="snappy")

    from tools import unknown_field_vectors as unknown

    if not (FOLDER / unknown.PLAIN).exists():
        (FOLDER / unknown.PLAIN).write_bytes(unknown.write_input())


def table_of_types() -> pa.Table:
    """Return a column for each tag of the canonical rows that other files do not have."""
    import datetime
    from decimal import Decimal

    import pyarrow as pa

    day, noon = datetime.date(1969, 12, 31), datetime.datetime(2026, 2, 28, 12, 0, 0, 1)
    extremes = {f"int{bits}": [-(1 << bits - 1), (1 << bits - 1) - 1] for bits in (8, 16, 32, 64)}
    extremes |= {f"uint{bits}": [0, (1 << bits) - 1] for bits in (8, 16, 32, 64)}
    columns = {
        "flag": pa.array([True, False, None]),
        **{name: pa.array([*ends, None], getattr(pa, name)()) for name, ends in extremes.items()},
        "single": pa.array([-0.0, float("inf"), None], pa.float32()),
        "double": pa.array([float("nan"), 5e-324, None], pa.float64()),
        "text": pa.array(["Straße 部分", "", None]),
        "blob": pa.array([b"\0\xff", b"", None]),
        "day": pa.array([day, day + datetime.timedelta(1), None]),
        "at": pa.array([noon, noon, None], pa.timestamp("us", "UTC")),
        "local": pa.array([noon, noon, None], pa.timestamp("us")),
        "small_decimal": pa.array([Decimal("-1.05"), Decimal("99.99"), None], pa.decimal128(9, 2)),
        "big_decimal": pa.array([Decimal("-0.001"), Decimal(10**16), None], pa.decimal128(20, 3)),
        "lists": pa.array([[[1], [], None], [], None], pa.list_(pa.list_(pa.int32()))),
    }
    return pa.table(columns)


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
    Base("gcm-ef-uniform", "flat", "all columns under the footer key: pages, dictionaries, indexes "
         "and Bloom filters", ("gcm", "encrypted-footer", "uniform")),
    Base("gcm-ef-simple", "simple", "two row groups, a page per chunk, nothing else",
         ("gcm", "encrypted-footer", "uniform"), footer="footer-256"),
    Base("gcm-pf-simple", "simple", "the same with a signed plaintext footer",
         ("gcm", "plaintext-footer", "uniform"), options=PF),
    Base("gcm-ef-numbers", "numbers", "numbers alone, neither null nor compressed: any bytes are "
         "values", ("gcm", "encrypted-footer", "uniform")),
    Base("types", "types", "a column of every common type", ("gcm", "encrypted-footer", "uniform")),
    Base("foreign-extensions", "unknown-fields", "extensions and unknown fields in every struct, "
         "as FlatBuffer footers and jump tables would be",
         ("gcm", "encrypted-footer", "uniform", "extension", "rows-only")),
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
    """Pad every Thrift module before it is encrypted, as parquet-java's growing buffer does."""
    encrypt_footer, encrypt = FileCipher.encrypt, ChunkCipher.encrypt

    def pad(struct: bytes | bytearray) -> bytes:
        size = 100
        while size < len(struct):
            size *= 2
        return bytes(struct).ljust(size, b"\0")

    def padded_footer(self: FileCipher, key: Any, module: ModuleId, plaintext: bytes) -> bytes:
        return encrypt_footer(self, key, module, pad(plaintext))

    def padded_module(self: ChunkCipher, kind: T, plaintext: bytes) -> bytes:
        return encrypt(self, kind, plaintext if kind is T.BLOOM_FILTER_BITSET else pad(plaintext))

    header_writer = "modcrypt.parquet.convert.page_encryption.splice"
    with (
        mock.patch.object(FileCipher, "encrypt", padded_footer),
        mock.patch.object(ChunkCipher, "encrypt", padded_module),
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
    file: str | None = None, opens: str | None = None, **more: Any,
) -> Json:  # fmt: skip
    """Return one case; the base supplies the defaults."""
    of = BY_NAME[base]
    ok = expect == "ok"
    content = plain(of.plain) if payload is None else payload
    exact = ok and not drops and "rows-only" not in (*of.tags, *tags)
    made = {
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
        "payload_sha256": hashlib.sha256(content).hexdigest() if exact else None,
        "rows": describe_rows(content, drops) if ok else None,
        "control": None if name == base else base,
        **more,
    }
    return made | parquet_terms(made, opens)


@cache
def describe_rows(content: bytes, drops: tuple[str, ...] = ()) -> Json | None:
    """Return number and digest of the rows of a plaintext file; None if it can't be decoded."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    file = pq.ParquetFile(io.BytesIO(content))
    paths = [file.schema.column(n).path for n in range(len(file.schema))]
    try:
        table = file.read([path for path in paths if path not in drops])
        found = tagged_rows(table)
    except (pa.ArrowException, OSError, UnicodeDecodeError):
        return None
    return {"count": table.num_rows, "sha256": row_digest(**found)}


# --- walking a base -----------------------------------------------------------------------------


@cache
def modules(name: str) -> tuple[Module, ...]:
    """Return every module of a base, as the independent verifier finds them."""
    base = BY_NAME[name]
    return tuple(
        verify_pme.verify(
            encrypt_base(name), KEYS[base.footer],
            {path: KEYS[key] for path, key in base.columns.items()},
            aad_prefix_of(base.reading), accept_algorithms=(algorithm_of(base.reading),),
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
    nonce = fixed_bytes(f"resealed {name} {module[:6]}", 12)
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


def footer_patch(data: bytes, change: Callable[[Any], None], signature: int) -> Patch:
    """Change the FileMetaData of a plaintext footer; keep `signature` bytes after it."""
    old = data[footer_start(data) :]
    metadata = idl.decode("FileMetaData", old)[0]
    change(metadata)
    new = idl.encode(metadata) + (old[-36:-8] if signature else b"")
    return replace(footer_start(data), old, new + len(new).to_bytes(4, "little") + b"PAR1")


def reorder(metadata: Any) -> None:
    metadata.row_groups.reverse()


def replace_footer(name: str, plaintext: bytes) -> list[Patch]:
    """Return the patches of a footer-key holder who puts another footer into an encrypted file."""
    data, footer = encrypt_base(name), first(name, T.FOOTER)
    assert footer.offset is not None
    nonce = fixed_bytes(f"other footer {name} {hashlib.sha256(plaintext).hexdigest()}", 12)
    aad = spec_aad(file_aad(data), T.FOOTER, ())
    module = gcm_module(KEYS[BY_NAME[name].footer], nonce, aad, plaintext)
    crypto_metadata = footer.offset - footer_start(data)
    tail = module + (crypto_metadata + len(module)).to_bytes(4, "little") + data[-4:]
    return [replace(footer.offset, data[footer.offset :], tail)]
