"""What the interop tests share: a JVM, an S3 server, matrices, PKMT1, a look into files.

The look into files is written from the format's field ids alone, without `modcrypt` and
without its IDL, so that it can judge both.
"""

from __future__ import annotations

import base64
import io
import itertools
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa
import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

import modcrypt as mc
from tests.support.java import iceberg_java
from tests.support.java.iceberg_java import IcebergJava
from tests.support.java.jvm import why_unavailable
from tests.support.java.parquet_java import ParquetJava

if TYPE_CHECKING:
    from tests.support.object_store import ObjectStore

Case: TypeAlias = dict[str, Any]

#: Leaves of `tests.support.small_table`, as Parquet names them.
SMALL_TABLE_LEAVES = (
    "id", "name", "price", "score", "day", "flag", "address.zip", "address.city",
    "tags.list.element",
)  # fmt: skip


@pytest.fixture(scope="session")
def java() -> Iterator[ParquetJava]:
    """The real parquet-java."""
    if reason := why_unavailable():
        pytest.skip(reason)
    with ParquetJava() as running:
        yield running


@pytest.fixture(scope="session")
def iceberg() -> Iterator[IcebergJava]:
    """Iceberg's own Java."""
    if reason := iceberg_java.why_unavailable():
        pytest.skip(reason)
    with IcebergJava() as running:
        yield running


@pytest.fixture(scope="session")
def store() -> Iterator[ObjectStore]:
    """Run an S3 server on the loopback interface; no client is led anywhere else."""
    from tests.support.object_store import object_store  # moto takes a while to load

    with pytest.MonkeyPatch.context() as patch:
        for name in list(os.environ):
            if name.upper().endswith("_PROXY") or name.startswith("AWS_"):
                patch.delenv(name)
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        patch.setenv("AWS_CONFIG_FILE", os.devnull)
        patch.setenv("AWS_SHARED_CREDENTIALS_FILE", os.devnull)
        with object_store() as running:
            yield running


# --- matrices ------------------------------------------------------------------------------------


def pairwise(**axes: Sequence[Any]) -> list[Case]:
    """Give few cases in which every value of an axis meets every value of every other axis."""
    names = list(axes)
    open_pairs = {
        (a, i, b, j)
        for a, b in itertools.combinations(range(len(names)), 2)
        for i in range(len(axes[names[a]]))
        for j in range(len(axes[names[b]]))
    }
    cases: list[Case] = []
    while open_pairs:
        a, i, b, j = min(open_pairs)
        chosen = {a: i, b: j}
        for axis in range(len(names)):
            if axis not in chosen:
                size = len(axes[names[axis]])
                useful = _usefulness(axis, chosen, open_pairs)
                turned = [(value + len(cases)) % size for value in range(size)]
                chosen[axis] = max(turned, key=useful)
        open_pairs -= {(a, chosen[a], b, chosen[b]) for a, b in itertools.combinations(chosen, 2)}
        open_pairs -= {(b, chosen[b], a, chosen[a]) for a, b in itertools.combinations(chosen, 2)}
        cases.append({name: axes[name][chosen[n]] for n, name in enumerate(names)})
    return cases


def _usefulness(
    axis: int, chosen: Mapping[int, int], open_pairs: set[tuple[int, int, int, int]]
) -> Callable[[int], int]:
    def newly_met(value: int) -> int:
        pairs = ((axis, value, other, at) for other, at in chosen.items())
        return sum(p in open_pairs or (*p[2:], *p[:2]) in open_pairs for p in pairs)

    return newly_met


def case_name(case: Case) -> str:
    """Name a case by its values."""
    return "-".join(str(value) for value in case.values())


# --- encrypting and decrypting in memory ---------------------------------------------------------


def encrypt(plain: bytes, **properties: Any) -> bytes:
    """Encrypt a file in memory."""
    out = io.BytesIO()
    mc.encrypt_parquet(plain, out, mc.FileEncryptionProperties(**properties))
    return out.getvalue()


def decrypt(encrypted: bytes, **properties: Any) -> bytes:
    """Decrypt a file in memory."""
    out = io.BytesIO()
    mc.decrypt_parquet(encrypted, out, mc.FileDecryptionProperties(**properties))
    return out.getvalue()


# --- key material of the key tools ---------------------------------------------------------------


def seal_base64(key: bytes, value: bytes, aad: bytes) -> str:
    """Wrap a key as the key tools do locally: base64 of nonce, ciphertext and tag."""
    nonce = os.urandom(12)
    return base64.b64encode(nonce + AESGCM(key).encrypt(nonce, value, aad)).decode()


def open_base64(key: bytes, wrapped: str, aad: bytes) -> bytes:
    """Unwrap what `seal_base64` made."""
    raw = base64.b64decode(wrapped, validate=True)
    return AESGCM(key).decrypt(raw[:12], raw[12:], aad)


def pkmt1_retriever(
    masters: Mapping[str, bytes], external: Mapping[str, str] | None = None
) -> Callable[[bytes], bytes]:
    """Give a key retriever for PKMT1 key metadata.

    `masters` is the KMS: it wraps with the master key's id as AAD. `external` is the object that a
    key material file holds.
    """

    def unwrap(wrapped: str, master_id: str) -> bytes:
        return open_base64(masters[master_id], wrapped, master_id.encode())

    def retrieve(metadata: bytes) -> bytes:
        material = json.loads(metadata)
        assert material["keyMaterialType"] == "PKMT1"
        if not material["internalStorage"]:
            assert external is not None
            material = json.loads(external[material["keyReference"]])
        if not material["doubleWrapping"]:
            return unwrap(material["wrappedDEK"], material["masterKeyID"])
        kek = unwrap(material["wrappedKEK"], material["masterKeyID"])
        kek_id = base64.b64decode(material["keyEncryptionKeyID"])
        return open_base64(kek, material["wrappedDEK"], kek_id)

    return retrieve


# --- an independent look into Parquet files ------------------------------------------------------


def _varint(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        number |= (data[at] & 127) << shift
        shift += 7
        at += 1
        if data[at - 1] < 128:
            return number, at


def _value(data: bytes, at: int, kind: int) -> tuple[Any, int]:
    if kind in (1, 2):  # booleans are in the field's type
        return kind == 1, at
    if kind in (4, 5, 6):  # i16, i32, i64
        number, at = _varint(data, at)
        return (number >> 1) ^ -(number & 1), at
    if kind == 8:  # binary
        size, at = _varint(data, at)
        return data[at : at + size], at + size
    if kind == 9:
        return _list(data, at)
    if kind == 12:
        return thrift_struct(data, at)
    size = {3: 1, 7: 8}[kind]  # byte, double
    return data[at : at + size], at + size


def _list(data: bytes, at: int) -> tuple[list[Any], int]:
    size, kind = data[at] >> 4, data[at] & 15
    at += 1
    if size == 15:
        size, at = _varint(data, at)
    values = []
    for _ in range(size):
        value, at = (data[at] == 1, at + 1) if kind in (1, 2) else _value(data, at, kind)
        values.append(value)
    return values, at


def thrift_struct(data: bytes, at: int = 0) -> tuple[dict[int, Any], int]:
    """Decode a struct of the compact protocol: field id to value, and where it ends."""
    fields: dict[int, Any] = {}
    number = 0
    while data[at]:
        delta, kind = data[at] >> 4, data[at] & 15
        at += 1
        if delta:
            number += delta
        else:
            number, at = _value(data, at, 4)
        fields[number], at = _value(data, at, kind)
    return fields, at + 1


def footer_of(plain: bytes) -> dict[int, Any]:
    """Decode the footer of a plaintext file."""
    assert plain[:4] == plain[-4:] == b"PAR1"
    size = int.from_bytes(plain[-8:-4], "little")
    return thrift_struct(plain, len(plain) - 8 - size)[0]


def modules_of(plain: bytes) -> dict[str, Any]:
    """Everything a plaintext file holds, without where it stands.

    The footer loses its offsets; every page, index and Bloom filter is there with its bytes,
    found through the offsets. So two files are module-identical exactly when these are equal.
    """
    footer = footer_of(plain)
    parts = {}
    for r, row_group in enumerate(footer[4]):
        row_group.pop(5, None)  # file_offset
        for c, chunk in enumerate(row_group[1]):
            parts[r, c] = _parts(plain, chunk)
    return {"footer": footer, "parts": parts}


def _parts(plain: bytes, chunk: dict[int, Any]) -> dict[str, Any]:
    """Take the parts of one chunk out of a file, and their offsets out of its metadata."""
    md = chunk[3]
    chunk.pop(2, None)  # file_offset, which no reader relies on
    data_offset, dictionary_offset = md.pop(9), md.pop(11, None)
    start = dictionary_offset or data_offset
    pages, offsets = _pages(plain, start, start + md[7])
    parts: dict[str, Any] = {"pages": pages, "dictionary": bool(dictionary_offset)}
    data_pages = [o for o, (header, _) in zip(offsets, pages, strict=True) if header[1] != 2]
    assert data_offset in data_pages[:1] or not data_pages
    if 4 in chunk:
        at = chunk.pop(4)
        index, end = thrift_struct(plain, at)
        assert end - at == chunk.pop(5)  # its length depends on the offsets in it
        assert [location.pop(1) for location in index[1]] == data_pages
        parts["offset index"] = index
    if 6 in chunk:
        at = chunk.pop(6)
        parts["column index"] = plain[at : at + chunk[7]]
    if 14 in md:
        at = md.pop(14)
        header, end = thrift_struct(plain, at)
        parts["bloom filter"] = plain[at : end + header[1]]
    return parts


def _pages(plain: bytes, at: int, end: int) -> tuple[list[tuple[dict[int, Any], bytes]], list[int]]:
    pages, offsets = [], []
    while at < end:
        offsets.append(at)
        header, body = thrift_struct(plain, at)
        at = body + header[3]
        pages.append((header, plain[body:at]))
    assert at == end
    return pages, offsets


# --- tables --------------------------------------------------------------------------------------


def nested_table(rows: int = 60) -> pa.Table:
    """Give lists of structs with maps in them, with nulls and empties at every level."""
    item = pa.struct(
        [
            pa.field("k", pa.int32(), nullable=False),
            pa.field("m", pa.map_(pa.string(), pa.list_(pa.int64()))),
        ]
    )

    def value(n: int) -> list[dict[str, Any] | None] | None:
        if n % 7 == 0:
            return None
        maps = [None, [], [("a", None)], [("a", []), ("b", [n, None, -n])]]
        return [None if k == 3 else {"k": k, "m": maps[(n + k) % 4]} for k in range(n % 5)]

    return pa.table({"id": range(rows), "deep": pa.array(map(value, range(rows)), pa.list_(item))})
