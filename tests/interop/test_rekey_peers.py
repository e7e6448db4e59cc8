"""Files that were re-keyed, masked or shared, in the hands of parquet-java, PyArrow and Polars.

And the files of all writers, re-keyed: what they decrypt to stays the same, byte for byte.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as pe
import pytest

import modcrypt as mc
from tests.support.cases import each_case, one_in
from tests.support.forging import plain_file
from tests.support.in_memory import decrypt, decrypt_with, encrypt
from tests.support.java.key_tools_java import MemoryKms
from tests.support.java.parquet_java import ParquetJava, ParquetJavaError
from tests.support.keys import COLUMN_KEY, FOOTER_KEY, OTHER_KEY
from tests.support.kms.pyarrow_key_tools import MASTERS, pyarrow_reads, pyarrow_writes
from tests.support.mask_hash import HASH_KEY, hash_value
from tests.support.pairwise import Case, case_name, pairwise
from tests.support.shared_vectors import (
    PUBLISHED_COLUMN_KEYS,
    entry_params,
    expected_error,
    keys_of,
    read_published,
    reader_of,
    shared_vectors,
    table,
    tampered_reader,
)
from tests.support.tables import nested_table, small_table
from tools.verify_pme import verify

GCM, CTR = "AES_GCM_V1", "AES_GCM_CTR_V1"
NEW_KEY, NEW_COLUMN_KEY = bytes(range(1, 33)), bytes(range(1, 17))
OLD: dict[str, Any] = {
    "footer_key": FOOTER_KEY,
    "column_keys": {"id": COLUMN_KEY, "address": OTHER_KEY},
}
OLD_READER = mc.FileDecryptionProperties(**OLD)


def rekey(source: Any, decryption: mc.FileDecryptionProperties, **properties: Any) -> bytes:
    out = io.BytesIO()
    mc.rekey_parquet(source, out, decryption, mc.FileEncryptionProperties(**properties))
    return out.getvalue()


# --- files of other writers -----------------------------------------------------------------------


def leaves_of(data: bytes) -> list[str]:
    schema = pq.ParquetFile(io.BytesIO(data)).schema
    return [schema.column(n).path for n in range(len(schema))]


def check_rekeyed(sealed: bytes, reader: dict[str, Any], some: slice = slice(None)) -> bytes:
    """Re-key a file to some of three modes and back into its plaintext; return that."""
    decryption = mc.FileDecryptionProperties(**reader)
    expected = decrypt(sealed, **reader)
    first, *_, last = leaves_of(expected)
    modes: tuple[dict[str, Any], ...] = (
        {"column_keys": {first: NEW_COLUMN_KEY}, "plaintext_footer": True, "aad_prefix": b"new"},
        {"data_page_v2_levels": "plaintext", "plaintext_columns": [last]},
        {"encryption_algorithm": CTR},
    )
    for new in modes[some]:
        made = rekey(sealed, decryption, footer_key=NEW_KEY, **new)
        algorithm = new.get("encryption_algorithm", GCM)
        keys = {"footer_key": NEW_KEY, "column_keys": new.get("column_keys", {})}
        assert decrypt(made, **keys, accept_algorithms=[algorithm]) == expected
        verify(
            made,
            NEW_KEY,
            keys["column_keys"],
            new.get("aad_prefix"),
            accept_algorithms=(algorithm,),
        )
    return expected


def with_a_mode(entries: list[Any]) -> list[Any]:
    """Return the entries with one of the three modes each, in turn."""
    return [pytest.param(*each.values, n % 3, id=each.id) for n, each in enumerate(entries)]


@each_case(("folder", "entry", "mode"), with_a_mode(entry_params("entries")), quick=one_in(2))
def test_every_shared_file_decrypts_to_the_same_bytes_when_it_is_rekeyed(
    folder: str, entry: dict[str, Any], mode: int
) -> None:
    root = shared_vectors() / folder
    reader = keys_of(entry["enc"]) | reader_of(entry["enc"])
    found = check_rekeyed((root / entry["file"]).read_bytes(), reader, slice(mode, mode + 1))
    assert table(found).equals(table(root / entry["twin"]))


@pytest.mark.parametrize(
    ("name", "column_keys", "prefix"),
    [
        ("uniform_encryption", {}, None),
        ("encrypt_columns_and_footer", PUBLISHED_COLUMN_KEYS, None),
        ("encrypt_columns_plaintext_footer", PUBLISHED_COLUMN_KEYS, None),
        ("encrypt_columns_and_footer_aad", PUBLISHED_COLUMN_KEYS, b"tester"),
        ("encrypt_columns_and_footer_disable_aad_storage", PUBLISHED_COLUMN_KEYS, b"tester"),
        ("encrypt_columns_and_footer_ctr", PUBLISHED_COLUMN_KEYS, None),
    ],
)
def test_every_published_file_decrypts_to_the_same_bytes_when_it_is_rekeyed(
    name: str, column_keys: dict[str, bytes], prefix: bytes | None
) -> None:
    reader = {
        "footer_key": FOOTER_KEY,
        "column_keys": column_keys,
        "aad_prefix": prefix,
        "accept_algorithms": [GCM, CTR],
    }
    check_rekeyed(read_published(name), reader)


def is_detectable(entry: dict[str, Any]) -> bool:
    return bool(entry["expect"] != "undetectable")


@each_case(("folder", "entry"), entry_params("tampered", is_detectable), quick=one_in(3))
def test_no_tampered_file_is_sealed_anew(
    folder: str, entry: dict[str, Any], tmp_path: Path
) -> None:
    sealed = (shared_vectors() / folder / entry["file"]).read_bytes()
    decryption = mc.FileDecryptionProperties(**tampered_reader(entry))
    new = mc.FileEncryptionProperties(footer_key=NEW_KEY)
    with pytest.raises(expected_error(entry["tamper"])):
        mc.rekey_parquet(sealed, tmp_path / "out.parquet", decryption, new)
    assert list(tmp_path.iterdir()) == []


@each_case(("folder", "entry"), entry_params("entries"), quick=one_in(4))
def test_the_columns_of_every_shared_file_are_masked_one_by_one(
    folder: str, entry: dict[str, Any]
) -> None:
    """Whoever wrote them: a hashed column, a null one, and the others as they were."""
    root = shared_vectors() / folder
    reader = keys_of(entry["enc"]) | reader_of(entry["enc"])
    sealed, twin = (root / entry["file"]).read_bytes(), table(root / entry["twin"])
    flat = [f.name for f in twin.schema if not pa.types.is_nested(f.type)]
    decryption, out = mc.FileDecryptionProperties(**reader), io.BytesIO()
    new = mc.FileEncryptionProperties(footer_key=NEW_KEY)
    masks: dict[str, Any] = {"null": flat[1:2], "hashed": flat[:1], "hash_key": HASH_KEY}
    if (entry.get("kms") or {}).get("key_material_file"):
        with pytest.raises(ValueError, match="stored beside it"):
            mc.mask_parquet(sealed, out, decryption, **masks)
        mc.mask_parquet(sealed, out, decryption, new, **masks)
        found = table(decrypt(out.getvalue(), footer_key=NEW_KEY))
    else:
        mc.mask_parquet(sealed, out, decryption, **masks)
        found = table(decrypt(out.getvalue(), **reader))
    assert found.column(flat[0]).null_count == twin.column(flat[0]).null_count
    assert found.schema.field(flat[0]).type == pa.string()
    if pa.types.is_integer(twin.schema.field(flat[0]).type):
        values = twin.column(flat[0]).to_pylist()
        assert found.column(flat[0]).to_pylist() == [hash_value(value) for value in values]
    for name in flat[1:2]:
        assert found.column(name).null_count == twin.num_rows
        assert found.schema.field(name).type == twin.schema.field(name).type
    rest = [name for name in twin.column_names if name not in flat[:2]]
    assert found.select(rest).equals(twin.select(rest))
    shared = io.BytesIO()
    mc.share_parquet(sealed, shared, decryption, new, rest[-2:])
    verify(shared.getvalue(), NEW_KEY, {})
    assert table(decrypt(shared.getvalue(), footer_key=NEW_KEY)).equals(twin.select(rest[-2:]))


@pytest.mark.parametrize("plaintext_footer", [False, True])
def test_a_file_that_polars_encrypted(plaintext_footer: bool) -> None:
    for rows in (small_table(60), nested_table(), small_table(60).slice(0, 0)):
        out = io.BytesIO()
        encryption = pl.ParquetEncryptionProperties(
            footer_key=FOOTER_KEY,
            plaintext_footer=plaintext_footer,
            aad_prefix=b"theirs",
            store_aad_prefix=True,
        )
        pl.from_arrow(rows).write_parquet(out, encryption=encryption, row_group_size=20)  # type: ignore[union-attr]  # a table gives no Series
        expected = check_rekeyed(out.getvalue(), {"footer_key": FOOTER_KEY})
        assert table(expected).num_rows == rows.num_rows


def test_a_file_that_duckdb_wrote(tmp_path: Path) -> None:
    """In plaintext: what DuckDB encrypts has no AAD, and is refused."""
    duckdb = pytest.importorskip("duckdb")
    path = tmp_path / "plain.parquet"
    duckdb.sql(
        "select i as id, 'n' || i % 7 as name, [i, null] as tags, {'zip': i} as address,"
        " i::decimal(9, 2) as price from range(3000) t(i)"
    ).write_parquet(str(path), row_group_size=2048)
    sealed = encrypt(path.read_bytes(), footer_key=FOOTER_KEY)
    assert check_rekeyed(sealed, {"footer_key": FOOTER_KEY}) == path.read_bytes()
    out = io.BytesIO()
    mc.mask_parquet(
        sealed, out, mc.FileDecryptionProperties(footer_key=FOOTER_KEY),
        hashed=["price", "name"], null=["address.zip"], hash_key=HASH_KEY,
    )  # fmt: skip
    found = tmp_path / "found.parquet"
    found.write_bytes(decrypt(out.getvalue(), footer_key=FOOTER_KEY))
    rows = duckdb.sql(f"select name, price, address.zip, tags from '{found}' order by id limit 2")
    assert rows.fetchall() == [
        (hash_value("n0"), hash_value("0"), None, [0, None]),
        (hash_value("n1"), hash_value("1"), None, [1, None]),
    ]


# --- parquet-java ---------------------------------------------------------------------------------

INDEXED: dict[str, Any] = {
    "write_page_index": True,
    "max_rows_per_page": 5,
    "write_batch_size": 5,
    "row_group_size": 20,
}
JAVA_KEYS = {
    "id": NEW_COLUMN_KEY,
    "tags.list.element": NEW_COLUMN_KEY,
}


@each_case("case", pairwise(
    old_algorithm=(GCM, CTR), algorithm=(GCM, CTR), old_footer=(False, True),
    footer=(False, True), prefix=(None, b"new prefix"), version=("1.0", "2.0"),
    checksum=(False, True), rows=(60, 0),
), ids=case_name)  # fmt: skip
def test_parquet_java_reads_what_we_rekey(java: ParquetJava, tmp_path: Path, case: Case) -> None:
    path, made = tmp_path / "plain.parquet", tmp_path / "made.parquet"
    pq.write_table(
        small_table(60).slice(0, case["rows"]), path, data_page_version=case["version"],
        write_page_checksum=case["checksum"], bloom_filter_options={"id": {"ndv": 60}}, **INDEXED,
    )  # fmt: skip
    sealed = encrypt(
        path.read_bytes(), **OLD, plaintext_footer=case["old_footer"], aad_prefix=b"old",
        encryption_algorithm=case["old_algorithm"],
    )  # fmt: skip
    decryption = mc.FileDecryptionProperties(
        **OLD,
        accept_algorithms=[case["old_algorithm"]],
    )
    made.write_bytes(rekey(
        sealed, decryption, footer_key=NEW_KEY, plaintext_footer=case["footer"],
        column_keys={"id": NEW_COLUMN_KEY, "tags": NEW_COLUMN_KEY}, aad_prefix=case["prefix"],
        encryption_algorithm=case["algorithm"], data_page_v2_levels="plaintext",
    ))  # fmt: skip
    how: dict[str, Any] = {"footer_key": NEW_KEY, "column_keys": JAVA_KEYS, "verify_crc": True}
    text = java.read_text(made, **how)
    assert text == java.read_text(path, verify_crc=True)
    assert text.count("\n") == case["rows"]
    assert java.column_indexes(made, **how) == java.column_indexes(path)
    with pytest.raises(ParquetJavaError):
        java.read_text(made, footer_key=FOOTER_KEY, column_keys={"id": COLUMN_KEY})


@pytest.mark.parametrize("keep", [False, True])
def test_parquet_java_skips_by_the_indexes_of_a_rekeyed_file(
    java: ParquetJava, tmp_path: Path, keep: bool
) -> None:
    numbers = [(n * 7919) % 3000 for n in range(3000)]
    rows = pa.table({"id": numbers, "name": [f"n{n}" for n in numbers], "at": range(3000)})
    path, made = tmp_path / "plain.parquet", tmp_path / "made.parquet"
    pq.write_table(
        rows, path, row_group_size=1000, max_rows_per_page=50, write_batch_size=50,
        write_page_index=True, use_dictionary=False,
        bloom_filter_options={"id": {"ndv": 1000}, "name": {"ndv": 1000}},
    )  # fmt: skip
    sealed = encrypt(path.read_bytes(), footer_key=FOOTER_KEY, column_keys={"id": COLUMN_KEY})
    decryption = mc.FileDecryptionProperties(footer_key=FOOTER_KEY, column_keys={"id": COLUMN_KEY})
    new = mc.FileEncryptionProperties(
        footer_key=FOOTER_KEY if keep else NEW_KEY, column_keys={"id": NEW_COLUMN_KEY}
    )
    result = mc.rekey_parquet(sealed, made, decryption, new, keep_unchanged=keep)
    assert result.kept == (("name", "at") if keep else ())
    how: dict[str, Any] = {"footer_key": new.footer_key, "column_keys": {"id": NEW_COLUMN_KEY}}
    how["footer_key"] = FOOTER_KEY if keep else NEW_KEY
    assert java.column_indexes(made, **how) == java.column_indexes(path)
    assert java.read(made, where=("at", 1234), **how) == [
        {"id": numbers[1234], "name": f"n{numbers[1234]}", "at": 1234}
    ]
    assert len(java.read(made, where=("name", "n77"), **how)) == 1
    assert java.read(made, where=("id", 3001), **how) == []


@pytest.mark.parametrize("version", ["v1", "v2"])
@pytest.mark.parametrize("footer", [False, True])
def test_parquet_java_reads_its_own_file_when_it_is_rekeyed(
    java: ParquetJava, tmp_path: Path, version: str, footer: bool
) -> None:
    schema = "message m { required int64 id; optional binary name (STRING); repeated int32 n; }"
    rows = [{"id": n, "name": f"n{n}" if n % 3 else None, "n": [n] * (n % 3)} for n in range(99)]
    theirs, made = tmp_path / "theirs.parquet", tmp_path / "made.parquet"
    java.write(
        theirs, schema, rows, footer_key=FOOTER_KEY, column_keys={"id": COLUMN_KEY},
        columns_with_footer_key=["name", "n"], plaintext_footer=footer, page_version=version,
        page_row_count_limit=10, row_group_row_count_limit=40, page_checksums=True,
        bloom_columns=["name"], aad_prefix=b"theirs", store_aad_prefix=False,
    )  # fmt: skip
    old = mc.FileDecryptionProperties(
        footer_key=FOOTER_KEY, column_keys={"id": COLUMN_KEY}, aad_prefix=b"theirs"
    )
    made.write_bytes(rekey(theirs, old, footer_key=NEW_KEY, data_page_v2_levels="plaintext"))
    before: dict[str, Any] = {
        "footer_key": FOOTER_KEY, "column_keys": {"id": COLUMN_KEY}, "aad_prefix": b"theirs",
    }  # fmt: skip
    after: dict[str, Any] = {"footer_key": NEW_KEY}
    text = java.read_text(made, verify_crc=True, **after)
    assert text == java.read_text(theirs, **before)
    assert java.column_indexes(made, **after) == java.column_indexes(theirs, **before)
    # With no other keys named, masks keep the layout of levels that this file has.
    out = io.BytesIO()
    mc.mask_parquet(theirs, out, old, hashed=["name"], hash_key=HASH_KEY)
    made.write_bytes(out.getvalue())
    found = java.read(made, verify_crc=True, **before)
    assert [row["name"] for row in found] == [hash_value(row["name"]) for row in rows]
    assert [(row["id"], row["n"]) for row in found] == [(row["id"], row["n"]) for row in rows]


MASKS: dict[str, Any] = {
    "null": ["price", "address.city", "flag"],
    "hashed": ["id", "name", "address.zip", "tags"],
    "drop": ["day"],
    "hash_key": HASH_KEY,
}


def masked_rows() -> list[dict[str, Any]]:
    return [
        {
            "id": hash_value(row["id"]),
            "name": hash_value(row["name"]),
            "price": None,
            "score": row["score"],
            "flag": None,
            "address": {"zip": hash_value(row["address"]["zip"]), "city": None},
            "tags": [hash_value(tag) for tag in row["tags"]],
        }
        for row in small_table(60).to_pylist()
    ]


def masked_file(**encryption: Any) -> bytes:
    sealed = encrypt(plain_file(small_table(60), **INDEXED), **OLD)
    out = io.BytesIO()
    new = mc.FileEncryptionProperties(**encryption) if encryption else None
    mc.mask_parquet(sealed, out, OLD_READER, new, **MASKS)
    return out.getvalue()


def shared_file(**encryption: Any) -> bytes:
    sealed = encrypt(plain_file(small_table(60), **INDEXED), **OLD)
    out = io.BytesIO()
    new = mc.FileEncryptionProperties(footer_key=NEW_KEY, **encryption)
    mc.share_parquet(sealed, out, OLD_READER, new, ["tags", "address.city", "score"])
    return out.getvalue()


SHARED = [
    {"score": row["score"], "address": {"city": row["address"]["city"]}, "tags": row["tags"]}
    for row in small_table(60).to_pylist()
]


@pytest.mark.parametrize("footer", [False, True])
def test_parquet_java_reads_what_we_mask(java: ParquetJava, tmp_path: Path, footer: bool) -> None:
    path, bare = tmp_path / "masked.parquet", tmp_path / "bare.parquet"
    keys = {"address": NEW_COLUMN_KEY}
    path.write_bytes(masked_file(footer_key=NEW_KEY, column_keys=keys, plaintext_footer=footer))
    bare.write_bytes(decrypt(path.read_bytes(), footer_key=NEW_KEY, column_keys=keys))
    leaves = dict.fromkeys(("address.zip", "address.city"), NEW_COLUMN_KEY)
    how: dict[str, Any] = {"footer_key": NEW_KEY, "column_keys": leaves}
    rows = java.read(path, **how)
    assert [without_levels(row) for row in rows] == masked_rows()
    assert java.read_text(path, **how) == java.read_text(bare)
    assert java.column_indexes(path, **how) == java.column_indexes(bare)
    wanted = hash_value(41)
    assert wanted is not None
    (row,) = java.read(path, where=("id", wanted), **how)
    assert row["score"] == 41 * 1.5


def without_levels(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row without the list groups that parquet-java shows."""
    return row | {"tags": [group["element"] for group in row["tags"]["list"]]}


@pytest.mark.parametrize("footer", [False, True])
def test_parquet_java_reads_what_we_share(java: ParquetJava, tmp_path: Path, footer: bool) -> None:
    path, bare = tmp_path / "shared.parquet", tmp_path / "bare.parquet"
    path.write_bytes(shared_file(plaintext_footer=footer, aad_prefix=b"for them"))
    bare.write_bytes(decrypt(path.read_bytes(), footer_key=NEW_KEY))
    rows = java.read(path, footer_key=NEW_KEY)
    assert [without_levels(row) for row in rows] == SHARED
    indexes = java.column_indexes(path, footer_key=NEW_KEY)
    assert indexes == java.column_indexes(bare)
    assert all(index["column_index"] and index["offset_index"] for index in indexes.values())


# --- PyArrow --------------------------------------------------------------------------------------


def read_with_pyarrow(data: bytes) -> pa.Table:
    properties = pe.create_decryption_properties(footer_key=NEW_KEY)
    return pq.read_table(io.BytesIO(data), decryption_properties=properties)


@pytest.mark.parametrize("footer", [False, True])
@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_pyarrow_reads_what_we_rekey_mask_and_share(footer: bool, version: str) -> None:
    sealed = encrypt(plain_file(small_table(60), data_page_version=version, **INDEXED), **OLD)
    new = {"footer_key": NEW_KEY, "plaintext_footer": footer}
    assert read_with_pyarrow(rekey(sealed, OLD_READER, **new)).equals(small_table(60))
    assert read_with_pyarrow(masked_file(**new)).to_pylist() == masked_rows()
    assert read_with_pyarrow(shared_file(plaintext_footer=footer)).to_pylist() == SHARED


def test_pyarrow_prunes_by_the_statistics_of_masked_columns() -> None:
    data = masked_file(footer_key=NEW_KEY)
    properties = pe.create_decryption_properties(footer_key=NEW_KEY)
    with pq.ParquetFile(io.BytesIO(data), decryption_properties=properties) as file:
        for r in range(file.num_row_groups):
            ids = [hash_value(n) for n in range(20 * r, 20 * r + 20)]
            chunk = file.metadata.row_group(r).column(0)
            assert (chunk.statistics.min, chunk.statistics.max) == (
                min(map(str, ids)),
                max(map(str, ids)),
            )
    found = pq.read_table(
        io.BytesIO(data), decryption_properties=properties, filters=[("id", "==", hash_value(33))]
    )
    assert found.column("score").to_pylist() == [33 * 1.5]


KEY_TOOLS = pairwise(
    material=("internal", "external"), wrapping=("double", "single"),
    footer=("encrypted", "plaintext"), algorithm=(GCM, CTR), bits=(128, 256),
    layout=("columns", "uniform"),
)  # fmt: skip


@pytest.mark.parametrize("case", KEY_TOOLS, ids=case_name)
def test_pyarrows_key_tools_on_both_sides(tmp_path: Path, case: Case) -> None:
    """PyArrow writes; we re-key to fresh data keys under a policy; PyArrow reads."""
    service = MemoryKms.of(MASTERS)
    path, copy = tmp_path / "a.parquet", tmp_path / "b.parquet"
    pyarrow_writes(path, small_table(60), service, case, row_group_size=20)
    before = decrypt_with(path, mc.KeyTools(service), case)
    policy = mc.Policy(
        footer_key="kc2", column_keys={"kc1": ["address"]}, aad_prefix="{name}",
        internal_key_material=case["material"] == "external",
    )  # fmt: skip
    tools = mc.KeyTools(service)
    old = tools.decryption(accept_algorithms=[case["algorithm"]])
    for destination in (copy, path):
        mc.rekey_parquet(path, destination, old, tools.encryption(policy))
        assert pyarrow_reads(destination, service.without("kf")).equals(small_table(60))
        remaining = mc.KeyTools(service.without("kf"))
        assert decrypt_with(destination, remaining, {"algorithm": GCM}) == before
        old = mc.KeyTools(service).decryption(accept_algorithms=[case["algorithm"]])


@pytest.mark.parametrize(
    "case", [case for case in KEY_TOOLS if case["algorithm"] == GCM], ids=case_name
)
def test_pyarrows_key_tools_read_what_we_mask_under_the_same_keys(
    tmp_path: Path, case: Case
) -> None:
    service = MemoryKms.of(MASTERS)
    path = tmp_path / "a.parquet"
    pyarrow_writes(path, small_table(60), service, case)
    wraps = service.count("wrap")
    mc.mask_parquet(path, path, mc.KeyTools(service).decryption(), **MASKS)
    assert service.count("wrap") == wraps, "no key was wrapped anew"
    assert pyarrow_reads(path, service).to_pylist() == masked_rows()


def test_pyarrows_key_tools_need_the_key_of_the_copy_alone(tmp_path: Path) -> None:
    service = MemoryKms.of(MASTERS)
    path = tmp_path / "shared.parquet"
    tools = mc.KeyTools(service)
    sealed = encrypt(plain_file(small_table(60)), **OLD)
    theirs = tools.encryption(mc.Policy(footer_key="kc1"))
    mc.share_parquet(sealed, path, OLD_READER, theirs, ["tags", "address.city", "score"])
    assert pyarrow_reads(path, service.without("kf", "kc2")).to_pylist() == SHARED
    with pytest.raises(Exception, match="kc1"):
        pyarrow_reads(path, service.without("kc1"))


# --- Polars ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("footer", [False, True])
def test_polars_reads_what_we_rekey_mask_and_share(footer: bool) -> None:
    keys = pl.ParquetDecryptionProperties(
        footer_key=NEW_KEY, column_keys={"tags.list.element": NEW_COLUMN_KEY}
    )
    new: dict[str, Any] = {
        "footer_key": NEW_KEY,
        "column_keys": {"tags": NEW_COLUMN_KEY},
        "plaintext_footer": footer,
    }
    sealed = encrypt(plain_file(small_table(60), **INDEXED), **OLD)
    made = pl.read_parquet(rekey(sealed, OLD_READER, **new), decryption=keys)
    assert made.equals(pl.from_arrow(small_table(60)))  # type: ignore[arg-type]  # no Series
    assert pl.read_parquet(masked_file(**new), decryption=keys).to_dicts() == masked_rows()
    copy = shared_file(column_keys={"tags": NEW_COLUMN_KEY}, plaintext_footer=footer)
    assert pl.read_parquet(copy, decryption=keys).to_dicts() == SHARED
    scan = pl.scan_parquet(io.BytesIO(masked_file(**new)), decryption=keys)
    found = scan.filter(pl.col("id") == hash_value(33)).collect()
    assert found["score"].to_list() == [33 * 1.5]


# --- pandas ---------------------------------------------------------------------------------------


def test_pandas_reads_what_we_mask_through_a_view() -> None:
    """Its own metadata names categories, an index and zones that are text or null by now."""
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame(
        {
            "kind": pd.Categorical(["SECRET", "b", "SECRET"]),
            "at": pd.date_range("2026-01-01", periods=3, tz="Europe/Berlin"),
            "n": pd.array([1, None, 3], dtype="Int64"),
            "other": pd.Categorical(["x", "y", "x"]),
        },
        index=pd.Index(["i", "j", "k"], name="key"),
    )
    sealed = encrypt(plain_file(pa.Table.from_pandas(frame)), footer_key=FOOTER_KEY)
    reader = mc.FileDecryptionProperties(footer_key=FOOTER_KEY)
    out = io.BytesIO()
    mc.mask_parquet(
        sealed, out, reader, hashed=["kind", "key"], null=["at", "n"], hash_key=HASH_KEY
    )
    with mc.open_parquet(out.getvalue(), reader) as view:
        found = pd.read_parquet(view)
    assert list(found["kind"]) == [hash_value("SECRET"), hash_value("b"), hash_value("SECRET")]
    assert found["at"].isna().all()
    assert found["n"].isna().all()
    assert str(found["at"].dtype) == str(frame["at"].dtype)
    assert str(found["n"].dtype) == "Int64"
    assert list(found["other"]) == ["x", "y", "x"]
    assert list(found["key"]) == [hash_value("i"), hash_value("j"), hash_value("k")]
