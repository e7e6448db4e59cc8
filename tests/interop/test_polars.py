"""Polars reads what we write, and we read what Polars writes.

Polars 2.1 has Parquet encryption of its own (`read_parquet(decryption=)`,
`write_parquet(encryption=)`): AES_GCM_V1 with keys of 128 and 256 bits, both footer modes,
column keys by leaf path, AAD prefix. It has no AES_GCM_CTR_V1, no 192-bit keys and does not read
parquet-java's layout of data pages V2. Columns that it is given no key for stay plaintext once
another has one.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import modcrypt as mc
from tests.support.cases import each_case
from tests.support.cli.program import KEY, private
from tests.support.cli.program import run as run_command
from tests.support.forging import plain_file
from tests.support.in_memory import decrypt, encrypt
from tests.support.keys import COLUMN_KEY, FOOTER_KEY, OTHER_KEY
from tests.support.module_spans import list_modules
from tests.support.pairwise import Case, case_name, pairwise
from tests.support.parquet_parser import modules_of
from tests.support.tables import nested_table, small_table

pl = pytest.importorskip("polars")
if not hasattr(pl, "ParquetDecryptionProperties"):
    pytest.skip("this Polars has no Parquet encryption", allow_module_level=True)

FOOTERS = ("encrypted", "plaintext")
PREFIXES = ("none", "stored", "unstored")
PREFIX = b"employees_23May2018.part0"
KEYS = {16: FOOTER_KEY, 32: bytes(range(1, 33))}
COLUMN_KEYS = {"id": COLUMN_KEY, "address.zip": OTHER_KEY, "address.city": OTHER_KEY}


def properties_of(case: Case) -> dict[str, Any]:
    """The names are the same in Polars and here."""
    return {
        "footer_key": KEYS[case["key_size"]],
        "plaintext_footer": case["footer"] == "plaintext",
        "aad_prefix": None if case["prefix"] == "none" else PREFIX,
        "store_aad_prefix": case["prefix"] == "stored",
        "column_keys": COLUMN_KEYS if case["columns"] else {},
    }


def reader_of(case: Case) -> dict[str, Any]:
    return {
        "footer_key": KEYS[case["key_size"]],
        "column_keys": COLUMN_KEYS if case["columns"] else {},
        "aad_prefix": PREFIX if case["prefix"] == "unstored" else None,
    }


def read(sealed: bytes, **properties: Any) -> Any:
    return pl.read_parquet(sealed, decryption=pl.ParquetDecryptionProperties(**properties))


def polars_file(frame: Any, encryption: Any = None, **options: Any) -> bytes:
    out = io.BytesIO()
    frame.write_parquet(out, encryption=encryption, **options)
    return out.getvalue()


ENCRYPTION: dict[str, Any] = {
    "footer": FOOTERS, "prefix": PREFIXES, "key_size": (16, 32), "columns": (False, True),
}  # fmt: skip


@each_case("case", pairwise(
    **ENCRYPTION, version=("1.0", "2.0"), checksum=(False, True), index=(False, True),
    bloom=(False, True), dictionary=(True, False),
    codec=("none", "snappy", "gzip", "brotli", "zstd", "lz4"),
    shape=("small", "empty", "row groups", "pages"),
), ids=case_name)  # fmt: skip
def test_polars_reads_what_we_encrypt(case: Case) -> None:
    table = small_table(60).slice(0, 0 if case["shape"] == "empty" else 60)
    options: dict[str, Any] = {"row groups": {"row_group_size": 7}}.get(case["shape"], {})
    if case["shape"] == "pages":
        options = {"max_rows_per_page": 5, "write_batch_size": 5}
    if case["bloom"]:
        options["bloom_filter_options"] = {"id": {"ndv": 100}}
    plain = plain_file(
        table, data_page_version=case["version"], write_page_checksum=case["checksum"],
        write_page_index=case["index"], use_dictionary=case["dictionary"],
        compression=case["codec"], **options,
    )  # fmt: skip

    sealed = encrypt(plain, **properties_of(case))

    assert read(sealed, **reader_of(case)).equals(pl.from_arrow(table))


@each_case("case", pairwise(
    **ENCRYPTION, codec=("uncompressed", "snappy", "gzip", "brotli", "zstd", "lz4"),
    statistics=(True, "full", False), shape=("small", "empty", "row groups", "pages"),
), ids=case_name)  # fmt: skip
def test_we_decrypt_what_polars_encrypts_to_its_own_plaintext_file(case: Case) -> None:
    frame = pl.from_arrow(small_table(60).slice(0, 0 if case["shape"] == "empty" else 60))
    shapes = {"row groups": {"row_group_size": 7}, "pages": {"data_page_size": 100}}
    options = {
        "compression": case["codec"],
        "statistics": case["statistics"],
        **shapes.get(case["shape"], {}),
    }
    encryption = pl.ParquetEncryptionProperties(**properties_of(case))

    plain = decrypt(polars_file(frame, encryption, **options), **reader_of(case))

    assert pl.read_parquet(plain).equals(frame)
    assert pl.from_arrow(pq.read_table(pa.BufferReader(plain))).equals(frame)
    assert modules_of(plain) == modules_of(polars_file(frame, **options))


@pytest.mark.parametrize("footer", FOOTERS)
def test_nested_values_both_ways(footer: str) -> None:
    frame = pl.from_arrow(nested_table())
    properties = {"footer_key": FOOTER_KEY, "plaintext_footer": footer == "plaintext"}
    sealed = encrypt(polars_file(frame), **properties)
    assert read(sealed, footer_key=FOOTER_KEY).equals(frame)
    theirs = polars_file(frame, pl.ParquetEncryptionProperties(**properties))
    assert pl.read_parquet(decrypt(theirs, footer_key=FOOTER_KEY)).equals(frame)


def test_polars_skips_by_the_statistics_and_page_index_that_we_moved() -> None:
    table = pa.table({"id": range(1000), "s": [f"s{n}" for n in range(1000)]})
    plain = plain_file(
        table, row_group_size=100, max_rows_per_page=10, write_batch_size=10, write_page_index=True
    )
    sealed = encrypt(plain, footer_key=FOOTER_KEY)
    found = (
        pl.scan_parquet(
            io.BytesIO(sealed),
            decryption=pl.ParquetDecryptionProperties(footer_key=FOOTER_KEY),
        )
        .filter(pl.col("id") == 777)
        .collect()
    )
    assert found.to_dicts() == [{"id": 777, "s": "s777"}]


def test_polars_without_keys_reads_the_plaintext_columns_of_our_plaintext_footer() -> None:
    table = small_table()
    sealed = encrypt(
        plain_file(table), footer_key=FOOTER_KEY, plaintext_footer=True,
        column_keys={"name": OTHER_KEY}, plaintext_columns=["id", "tags"],
    )  # fmt: skip
    columns = ["id", "tags"]
    assert pl.read_parquet(sealed, columns=columns).equals(pl.from_arrow(table.select(columns)))
    for column in ("name", "price"):  # under its own key, under the footer key
        with pytest.raises(pl.exceptions.ComputeError, match="encrypted"):
            pl.read_parquet(sealed, columns=[column])


@pytest.mark.parametrize("wrong", [
    {"footer_key": OTHER_KEY},
    {"column_keys": {"id": OTHER_KEY}},
    {"column_keys": {}},
    {"aad_prefix": b"employees_23May2018.part1"},
    {"aad_prefix": None},
])  # fmt: skip
def test_polars_refuses_our_file_with_a_wrong_key_or_prefix(wrong: dict[str, Any]) -> None:
    table = small_table()
    sealed = encrypt(
        plain_file(table), footer_key=FOOTER_KEY, column_keys={"id": COLUMN_KEY},
        aad_prefix=PREFIX, store_aad_prefix=False,
    )  # fmt: skip
    right = {
        "footer_key": FOOTER_KEY,
        "column_keys": {"id": COLUMN_KEY},
        "aad_prefix": PREFIX,
    }
    assert read(sealed, **right).equals(pl.from_arrow(table))
    with pytest.raises(pl.exceptions.ComputeError, match=r"[Ee]ncrypt"):
        read(sealed, **(right | wrong))


@pytest.mark.parametrize(("properties", "message"), [
    ({"encryption_algorithm": "AES_GCM_CTR_V1"}, "AES_GCM_CTR_V1"),
    ({"data_page_v2_levels": "plaintext"}, "Encryption error"),
    ({"footer_key": bytes(range(1, 25))}, "key length: 24"),
])  # fmt: skip
def test_what_polars_does_not_read(properties: dict[str, Any], message: str) -> None:
    properties = {"footer_key": FOOTER_KEY} | properties
    sealed = encrypt(plain_file(small_table(), data_page_version="2.0"), **properties)
    with pytest.raises(pl.exceptions.ComputeError, match=message):
        read(sealed, footer_key=properties["footer_key"])


def test_polars_leaves_columns_without_a_key_in_plaintext() -> None:
    frame = pl.from_arrow(small_table())
    encryption = pl.ParquetEncryptionProperties(footer_key=FOOTER_KEY, column_keys=COLUMN_KEYS)
    sealed = polars_file(frame, encryption, compression="uncompressed")
    assert b"name-10" in sealed
    sealed_columns = {
        span.module.path
        for span in list_modules(
            sealed, mc.FileDecryptionProperties(footer_key=FOOTER_KEY, column_keys=COLUMN_KEYS)
        )
    }
    assert sealed_columns == {None, *COLUMN_KEYS}  # None is the footer


# --- the empty prefix ----------------------------------------------------------------------------


def write_with_empty_prefix(path: Path, footer: str, *, store: bool) -> pa.Table:
    """Have Polars write a file with the AAD prefix b""."""
    encryption = pl.ParquetEncryptionProperties(
        footer_key=FOOTER_KEY, aad_prefix=b"", store_aad_prefix=store,
        plaintext_footer=footer == "plaintext",
    )  # fmt: skip
    frame = pl.DataFrame({"a": [1, 2, 3], "b": ["x", None, "z"]})
    frame.write_parquet(path, encryption=encryption)
    return frame.to_arrow(compat_level=pl.CompatLevel.oldest())


@pytest.mark.parametrize("footer", FOOTERS)
def test_an_empty_prefix_that_is_given_is_used(footer: str, tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    table = write_with_empty_prefix(path, footer, store=False)
    without = mc.FileDecryptionProperties(footer_key=FOOTER_KEY)
    empty = mc.FileDecryptionProperties(footer_key=FOOTER_KEY, aad_prefix=b"")
    by_name = mc.FileDecryptionProperties(footer_key=FOOTER_KEY, aad_prefix=lambda name: b"")
    other = mc.FileDecryptionProperties(footer_key=FOOTER_KEY, aad_prefix=b"x")
    with pytest.raises(mc.errors.AadPrefixError, match="pass aad_prefix"):
        mc.read_table(path, without)
    assert not mc.verify_parquet(path, without).ok
    with pytest.raises(mc.errors.IntegrityError):
        mc.read_table(path, other)
    for reader in (empty, by_name):
        assert mc.read_table(path, reader).equals(table)
        assert mc.verify_parquet(path, reader).ok
        assert pa.Table.from_batches(mc.iter_batches(path, reader)).equals(table)
        assert mc.inspect_parquet(path, reader).footer_authenticated
        with mc.open_parquet(path, reader) as view:
            assert pq.read_table(view).equals(table)
        ours = mc.FileEncryptionProperties(footer_key=FOOTER_KEY)
        for function, options in ((mc.decrypt_parquet, ()), (mc.rekey_parquet, (ours,))):
            function(path, tmp_path / "copy", reader, *options)
            given = mc.FileDecryptionProperties(require_encrypted=False, footer_key=FOOTER_KEY)
            assert mc.read_table(tmp_path / "copy", given).equals(table)
            (tmp_path / "copy").unlink()
    mc.mask_parquet(path, tmp_path / "copy", empty, null=["a"])
    assert mc.read_table(tmp_path / "copy", without)["b"].equals(table["b"])


@pytest.mark.parametrize("footer", FOOTERS)
def test_the_empty_prefix_of_a_data_set_is_no_shared_one(footer: str, tmp_path: Path) -> None:
    tables = [write_with_empty_prefix(tmp_path / f"{n}.parquet", footer, store=False) for n in "ab"]
    empty = mc.FileDecryptionProperties(footer_key=FOOTER_KEY, aad_prefix=b"")
    assert mc.read_table(tmp_path, empty).equals(pa.concat_tables(tables))
    assert mc.verify_dataset(tmp_path, empty).ok


@pytest.mark.parametrize("footer", FOOTERS)
def test_files_that_need_no_prefix_are_open_to_the_empty_one(footer: str, tmp_path: Path) -> None:
    table = write_with_empty_prefix(tmp_path / "stored", footer, store=True)
    mc.encrypt_parquet(
        mc_plain(table), tmp_path / "ours", mc.FileEncryptionProperties(footer_key=FOOTER_KEY)
    )
    named = mc.FileEncryptionProperties(footer_key=FOOTER_KEY, aad_prefix=PREFIX)
    mc.encrypt_parquet(mc_plain(table), tmp_path / "named", named)
    (tmp_path / "plain").write_bytes(mc_plain(table))
    for prefix in (None, b""):
        reader = mc.FileDecryptionProperties(footer_key=FOOTER_KEY, aad_prefix=prefix)
        assert mc.read_table(tmp_path / "stored", reader).equals(table)
        assert mc.read_table(tmp_path / "ours", reader).equals(table)
    with pytest.raises(mc.errors.AadPrefixError, match="another AAD prefix"):
        mc.read_table(tmp_path / "named", reader)
    lenient = mc.FileDecryptionProperties(aad_prefix=b"", require_encrypted=False)
    with pytest.raises(mc.errors.PlaintextError):
        mc.read_table(tmp_path / "plain", lenient)


def mc_plain(table: pa.Table) -> bytes:
    out = io.BytesIO()
    pq.write_table(table, out)
    return out.getvalue()


def test_settings_and_the_command_line_take_the_empty_prefix(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    table = write_with_empty_prefix(path, "encrypted", store=False)
    private(tmp_path / "footer.key", FOOTER_KEY)
    for prefix in ("", b""):
        settings = mc.Settings(footer_key=f"file:{tmp_path / 'footer.key'}", aad_prefix=prefix)
        assert mc.read_table(path, settings.decryption()).equals(table)
        with pytest.raises(ValueError, match="aad_prefix is empty"):
            settings.encryption()
    for option in (("--aad-prefix", ""), ("--aad-prefix", "hex:")):
        answer = run_command(tmp_path, "verify", *KEY, *option, "a.parquet")
        assert answer.returncode == 0, answer.stderr
    assert run_command(tmp_path, "verify", *KEY, "a.parquet").returncode == 1
