"""Files that parquet-java, Spark, PyArrow and the Parquet project wrote, and tampered ones.

The manifests say what each file holds and which tampering a reader has to notice.
"""

from __future__ import annotations

import datetime
import io
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import modcrypt as mc
from tests.support.cases import each_case
from tests.support.in_memory import decrypt
from tests.support.keys import COLUMN_KEY, FOOTER_KEY, OTHER_KEY
from tests.support.parquet_parser import footer_of
from tests.support.pkmt1 import pkmt1_retriever
from tests.support.shared_vectors import (
    PUBLISHED_COLUMN_KEYS,
    entry_params,
    expected_error,
    keys_of,
    manifest,
    metadata_bytes,
    read_published,
    reader_of,
    shared_vectors,
    table,
    tampered_reader,
)

# --- files as they were written ------------------------------------------------------------------


@each_case(("folder", "entry"), entry_params("entries"))
def test_every_file_decrypts_to_its_twin(folder: str, entry: dict[str, Any]) -> None:
    root = shared_vectors() / folder
    assert entry["expect"] == "ok"
    enc, sealed = entry["enc"], (root / entry["file"]).read_bytes()

    plain = decrypt(sealed, **keys_of(enc), **reader_of(enc))

    assert table(plain).equals(table(root / entry["twin"]))
    assert len(footer_of(plain)[4]) == entry["row_groups"]
    if enc["algorithm"] == "AES_GCM_CTR_V1":  # must be asked for by name
        with pytest.raises(mc.errors.UnsupportedFormatError, match="AES_GCM_CTR_V1"):
            decrypt(
                sealed, **(keys_of(enc) | reader_of(enc) | {"accept_algorithms": ["AES_GCM_V1"]})
            )
    if enc["aad_prefix"] and not enc["aad_prefix_stored"]:
        with pytest.raises(mc.errors.AadPrefixError):
            decrypt(sealed, **(keys_of(enc) | reader_of(enc) | {"aad_prefix": None}))


def has_key_metadata(entry: dict[str, Any]) -> bool:
    return entry["enc"]["footer_key_metadata"] is not None


@each_case(("folder", "entry"), entry_params("entries", has_key_metadata))
def test_every_file_decrypts_by_its_key_metadata(folder: str, entry: dict[str, Any]) -> None:
    root = shared_vectors() / folder
    enc = entry["enc"]
    named = {metadata_bytes(enc["footer_key_metadata"]): bytes.fromhex(enc["footer_key"])}
    nameless: dict[str, bytes] = {}  # columns for which the writer gave no key metadata
    for path, column in (enc["columns"] or {}).items():
        if column["key"] is not None:
            key, name = bytes.fromhex(column["key"]), metadata_bytes(column["key_metadata"])
            named[name] = key
            nameless |= {path: key} if name is None else {}
    retrieve = kms_retriever(root, entry["kms"]) if entry.get("kms") else named.__getitem__

    plain = decrypt(
        (root / entry["file"]).read_bytes(), key_retriever=retrieve, column_keys=nameless,
        **reader_of(enc),
    )  # fmt: skip

    assert table(plain).equals(table(root / entry["twin"]))


def kms_retriever(root: Path, kms: dict[str, Any]) -> Any:
    masters = {name: bytes.fromhex(key) for name, key in kms["master_keys"].items()}
    path = kms["key_material_file"]
    return pkmt1_retriever(masters, json.loads((root / path).read_text()) if path else None)


def test_empty_key_metadata_is_not_looked_up() -> None:
    """Arrow C++ writes empty key metadata where it was given none."""
    folder = shared_vectors() / "pyarrow"
    sealed = (folder / "enc" / "cpp_crc_gcm.parquet").read_bytes()
    asked: list[bytes] = []

    def retrieve(metadata: bytes) -> None:
        asked.append(metadata)

    entries = {entry["file"]: entry for entry in manifest(folder)["entries"]}
    footer_key = bytes.fromhex(entries["enc/cpp_crc_gcm.parquet"]["enc"]["footer_key"])
    plain = decrypt(sealed, footer_key=footer_key, key_retriever=retrieve, on_missing_key="drop")
    assert {b"kc_a", b"kc_b"} == set(asked)
    assert not {"id", "name", "f64", "flag", "fx"} & set(table(plain).column_names)


# --- tampered files ------------------------------------------------------------------------------


@each_case(("folder", "entry"), entry_params("tampered"))
def test_every_tampered_file_is_refused_where_it_can_be(folder: str, entry: dict[str, Any]) -> None:
    sealed = (shared_vectors() / folder / entry["file"]).read_bytes()
    reader = tampered_reader(entry)
    if entry["expect"] == "undetectable":
        check_undetectable(sealed, reader, entry, folder)
        return
    with pytest.raises(expected_error(entry["tamper"])) as caught:
        decrypt(sealed, **reader)
    check_that_the_place_is_named(entry, caught.value)


def check_that_the_place_is_named(entry: dict[str, Any], error: mc.ModcryptError) -> None:
    columns = entry["scope"].rpartition(" ")[2].split(",")
    if isinstance(error, mc.errors.TagMismatchError) and entry["scope"].startswith(
        ("column", "Column")
    ):
        assert isinstance(error.module, mc.parquet.ModuleId)
        assert error.module.path in columns
    if entry["scope"].startswith(("ColumnIndex", "OffsetIndex", "BloomBitset")):
        kind = {"C": "column index", "O": "offset index", "B": "bloom filter bitset"}
        assert kind[entry["scope"][0]] in str(error)


def check_undetectable(
    sealed: bytes, reader: dict[str, Any], entry: dict[str, Any], folder: str
) -> None:
    """Page bodies under AES_GCM_CTR_V1 carry no tag: altered, they come out as other values."""
    if sealed[:4] == sealed[-4:] == b"PAR1" and entry["tamper"].startswith("substitute"):
        with pytest.raises(mc.errors.PlaintextError):
            decrypt(sealed, **reader)
        return
    assert reader["accept_algorithms"] == ["AES_GCM_CTR_V1"]
    with pytest.raises(mc.errors.UnsupportedFormatError, match="does not authenticate page bodies"):
        decrypt(sealed, **(reader | {"accept_algorithms": ["AES_GCM_V1"]}))
    altered = decrypt(sealed, **reader)
    twin = table(shared_vectors() / folder / entry["twin"])
    ideal = entry["ideal_reader"]
    wrong = {*ideal["silently_wrong_columns_in_references"], *ideal["fail_columns"]}
    for name in twin.column_names:
        assert (name in wrong) is not reads_as(altered, name, twin[name])


def reads_as(plain: bytes, name: str, column: pa.ChunkedArray) -> bool:
    try:
        return bool(pq.read_table(io.BytesIO(plain), columns=[name])[name].equals(column))
    except OSError:  # a body that was garbled may not even decode
        return False


def is_no_substitute(entry: dict[str, Any]) -> bool:
    """A plaintext file put in the place of another has no untampered form."""
    return not entry["tamper"].startswith("substitute")


def list_bases() -> list[Any]:
    """Return a parameter for each file that was tampered with, by its first tampering."""
    bases: dict[Any, Any] = {}
    for parameter in entry_params("tampered", is_no_substitute):
        folder, entry = parameter.values
        base = entry.get("base") or entry.get("file")  # without the vectors, there is neither
        bases.setdefault((folder, base), parameter)
    return [*bases.values()]


@each_case(("folder", "entry"), list_bases())
def test_what_was_tampered_with_opens_before_the_tampering(
    folder: str, entry: dict[str, Any]
) -> None:
    """Otherwise a refusal could come from wrong keys."""
    root = shared_vectors() / folder
    base = root / (entry["base"] or entry["file"])
    enc = entry["enc"]
    plain = decrypt(base.read_bytes(), **keys_of(enc), **reader_of(enc))
    assert table(plain).equals(table(root / entry["twin"]))


# --- the files of apache/parquet-testing ---------------------------------------------------------

ROWS = 50
GCM, CTR = "AES_GCM_V1", "AES_GCM_CTR_V1"


@pytest.mark.parametrize(("name", "column_keys", "algorithm", "prefix"), [
    ("uniform_encryption", {}, GCM, None),
    ("encrypt_columns_and_footer", PUBLISHED_COLUMN_KEYS, GCM, None),
    ("encrypt_columns_plaintext_footer", PUBLISHED_COLUMN_KEYS, GCM, None),
    ("encrypt_columns_and_footer_aad", PUBLISHED_COLUMN_KEYS, GCM, None),
    ("encrypt_columns_and_footer_aad", PUBLISHED_COLUMN_KEYS, GCM, b"tester"),
    ("encrypt_columns_and_footer_disable_aad_storage", PUBLISHED_COLUMN_KEYS, GCM, b"tester"),
    ("encrypt_columns_and_footer_ctr", PUBLISHED_COLUMN_KEYS, CTR, None),
])  # fmt: skip
def test_every_published_file_decrypts(
    name: str, column_keys: dict[str, bytes], algorithm: str, prefix: bytes | None
) -> None:
    plain = decrypt(
        read_published(name), footer_key=FOOTER_KEY, column_keys=column_keys,
        accept_algorithms=[algorithm], aad_prefix=prefix,
    )  # fmt: skip
    check_published_values(plain)


def check_published_values(plain: bytes) -> None:
    """Hold them against the formulas of Arrow C++'s own tests (test_encryption_util.cc)."""
    found = table(plain)
    moments = found["int96_field"].cast(pa.int64()).to_pylist()
    values = found.drop_columns(["int96_field"]).to_pydict()
    numbers = range(ROWS)
    assert moments == [nanoseconds_of_int96(n, n + 1, n + 2) for n in numbers]
    assert values == {
        "boolean_field": [n % 2 == 0 for n in numbers],
        "int32_field": [datetime.time(microsecond=n * 1000) for n in numbers],
        "int64_field": [[k * 1_000_000_000_000 for k in (2 * n, 2 * n + 1)] for n in numbers],
        "float_field": [pytest.approx(n * 1.1, rel=1e-6) for n in numbers],
        "double_field": [n * 1.1111111 for n in numbers],
        "ba_field": [None if n % 2 else f"parquet{n:03}".encode() for n in numbers],
        "flba_field": [bytes([n]) * 10 for n in numbers],
    }


def nanoseconds_of_int96(low: int, high: int, julian_day: int) -> int:
    """Compute as Arrow does, in 64 bits that overflow."""
    since_epoch = (julian_day - 2_440_588) * 86_400 * 10**9 + (low | high << 32)
    return (since_epoch + 2**63) % 2**64 - 2**63


@pytest.mark.parametrize(("name", "prefix", "error"), [
    ("encrypt_columns_and_footer_disable_aad_storage", None, mc.errors.AadPrefixError),
    ("encrypt_columns_and_footer_disable_aad_storage", b"another", mc.errors.TagMismatchError),
    ("encrypt_columns_and_footer_aad", b"another", mc.errors.AadPrefixError),
    ("encrypt_columns_and_footer", b"tester", mc.errors.AadPrefixError),
])  # fmt: skip
def test_published_files_are_refused_with_another_prefix(
    name: str, prefix: bytes | None, error: type[Exception]
) -> None:
    with pytest.raises(error):
        decrypt(
            read_published(name), footer_key=FOOTER_KEY, column_keys=PUBLISHED_COLUMN_KEYS,
            aad_prefix=prefix,
        )  # fmt: skip


def test_a_published_file_without_column_keys_gives_its_other_columns() -> None:
    sealed = read_published("encrypt_columns_plaintext_footer")
    with pytest.raises(mc.errors.KeyNotFoundError) as caught:
        decrypt(sealed, footer_key=FOOTER_KEY)
    assert caught.value.column in PUBLISHED_COLUMN_KEYS
    rest = decrypt(sealed, footer_key=FOOTER_KEY, on_missing_key="drop")
    whole = decrypt(sealed, footer_key=FOOTER_KEY, column_keys=PUBLISHED_COLUMN_KEYS)
    assert table(rest).equals(table(whole).drop_columns(list(PUBLISHED_COLUMN_KEYS)))


def test_the_published_file_with_external_key_material_decrypts() -> None:
    material = shared_vectors() / "parquet-testing" / (
        "_KEY_MATERIAL_FOR_external_key_material_java.parquet.encrypted.json"
    )  # fmt: skip
    masters = {"kf": FOOTER_KEY, "kc1": COLUMN_KEY, "kc2": OTHER_KEY}
    retrieve = pkmt1_retriever(masters, json.loads(material.read_text()))
    plain = decrypt(read_published("external_key_material_java"), key_retriever=retrieve)
    numbers = range(100)
    assert table(plain).to_pydict() == {
        "integers": list(numbers),
        "strings": [f"{'abcdefghij'[n % 10]}{n}" for n in numbers],
    }
