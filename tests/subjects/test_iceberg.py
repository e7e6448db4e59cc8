"""Iceberg tables with subject columns: appended, scanned, erased, and read by other libraries."""

from __future__ import annotations

import json
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as pe
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.transforms import IdentityTransform

from modcrypt.errors import FormatError, KeyNotFoundError, UnsupportedFormatError
from modcrypt.iceberg import (
    IcebergTable,
    create_table,
    encrypt_table,
    load_table,
    open_table,
    rotate_table,
    verify_table,
)
from modcrypt.kms.key_tools import KeyTools
from modcrypt.kms.policy import Policy
from modcrypt.parquet.crypto.properties import CELLS
from modcrypt.subjects import Subjects
from modcrypt.subjects.vault import SubjectVault
from tests.support.iceberg import by_hand
from tests.support.iceberg.java_judge import Judge, plain_rows, why_unavailable
from tests.support.iceberg.sample_kms import MASTERS, SampleKms
from tests.support.sample_vault import POLICY, SampleVault, make_rows

ROWS = make_rows()
KMS = SampleKms()
OTHERS = ["customer_id", "tags", "amount"]


def subjects(vault: SampleVault, **more: Any) -> Subjects:
    columns = ["name", "born", "address.*"]
    return Subjects(
        vault=vault, **{"key": "customer_id", "columns": columns, "dataset": "d", **more}
    )


def make(folder: Path | None, known: Subjects, **options: Any) -> IcebergTable:
    options = {"schema": ROWS.schema, "master_key_id": "keyA", **options}
    return create_table(folder, kms=KMS, subjects=known, **options)


def reopen(table: IcebergTable, vault: SampleVault | None, **options: Any) -> IcebergTable:
    known = None if vault is None else Subjects(vault=vault, **options)
    return open_table(Path(table.place.path).parents[1], KMS, subjects=known)


def rows_of(scan: Any) -> pa.Table:
    return scan.to_arrow().sort_by([("amount", "ascending")])


def part(source: int) -> PartitionSpec:
    return PartitionSpec(PartitionField(source, 1000, IdentityTransform(), "part"))


@pytest.fixture
def vault() -> SampleVault:
    return SampleVault()


@pytest.fixture
def table(tmp_path: Path, vault: SampleVault) -> IcebergTable:
    return make(tmp_path / "t", subjects(vault)).append(ROWS)


@pytest.fixture(scope="module")
def java(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Judge]:
    if reason := why_unavailable():
        pytest.skip(reason)
    with Judge(MASTERS, tmp_path_factory.mktemp("java") / "java.log") as running:
        yield running


# --- rows ----------------------------------------------------------------------------------------


def test_values_are_read_as_they_were_appended(table: IcebergTable, vault: SampleVault) -> None:
    for each in (table, reopen(table, vault)):
        scan = each.scan()
        assert scan.schema.types == ROWS.schema.types
        assert scan.to_arrow().cast(ROWS.schema).equals(ROWS)
        assert pa.table(each.scan()).cast(ROWS.schema).equals(ROWS)
        assert pa.Table.from_batches(each.scan_batches()).cast(ROWS.schema).equals(ROWS)
        assert each.scan().num_rows == 4
        assert verify_table(each).ok


@pytest.mark.parametrize(
    "columns", [["name"], ["amount", "name"], ["address.street"], ["amount"], ["address", "born"]]
)
def test_columns_are_read_without_their_key_column(
    table: IcebergTable, vault: SampleVault, columns: list[str]
) -> None:
    found = reopen(table, vault).scan(columns=columns).to_arrow()
    for name in columns:
        top, _, inner = name.partition(".")
        wanted, values = ROWS.column(top), found.column(top)
        if inner:
            wanted, values = (pc.struct_field(column, inner) for column in (wanted, values))
        assert values.to_pylist() == wanted.to_pylist()
    assert set(found.column_names) == {name.partition(".")[0] for name in columns}


def test_types_that_iceberg_lacks_come_back(tmp_path: Path, vault: SampleVault) -> None:
    values = {
        "u": pa.array([None, 1], pa.uint8()),
        "i": pa.array([None, 1], pa.int16()),
        "f": pa.array([None, 1.5], pa.float16()),
        "t": pa.array([None, "text"], pa.large_string()),
        "d": pa.array([None, 1], pa.duration("s")),
        "b": pa.array([None, b"abc"], pa.binary(3)),
        "n": pa.array([None, Decimal("1.25")], pa.decimal128(9, 2)),
        "w": pa.array([None, 1], pa.timestamp("us", "UTC")),
        "x": pa.array([None, b"bytes"]),
    }
    rows = pa.table({"id": ["a", "b"], **values})
    known = Subjects(vault=vault, key="id", columns=list(values), dataset="d")
    made = make(tmp_path / "t", known, schema=rows.schema).append(rows)
    assert made.scan().to_arrow().equals(rows.cast(made.scan().schema))
    assert made.scan().schema.types == rows.schema.types


def test_erased_values_are_null_or_an_error(table: IcebergTable, vault: SampleVault) -> None:
    vault.forget(b"1")
    found = reopen(table, vault)
    assert found.scan().to_arrow()["name"].to_pylist() == [None, "Bob", None, None]
    assert found.scan().to_arrow()["amount"].to_pylist() == [1.5, 2.5, 3.5, 4.5]
    strict = reopen(table, vault, on_erased="raise")
    with pytest.raises(KeyNotFoundError, match="belong to erased subjects"):
        strict.scan().to_arrow()
    assert strict.scan(columns=OTHERS).to_arrow().equals(ROWS.select(OTHERS))


def test_without_the_vault_columns_are_binary(table: IcebergTable) -> None:
    found = reopen(table, None).scan().to_arrow()
    assert found.select(OTHERS).equals(ROWS.select(OTHERS))
    assert found["name"].type == pa.binary()
    assert pc.binary_length(found["name"]).to_pylist() == [31, 31, 31, None]


def test_another_vault_opens_nothing(table: IcebergTable) -> None:
    stranger = reopen(table, SampleVault())
    assert stranger.scan(columns=OTHERS).to_arrow().equals(ROWS.select(OTHERS))
    with pytest.raises(KeyNotFoundError, match="under keys of the subject vault"):
        stranger.scan().to_arrow()


def test_the_newest_file_decides_about_types(tmp_path: Path, vault: SampleVault) -> None:
    narrow = pa.table({"id": [1], "n": pa.array([7], pa.int32())})
    known = Subjects(vault=vault, key="id", columns=["n"], dataset="d")
    table = make(tmp_path / "t", known, schema=narrow.schema).append(narrow)
    wide = narrow.cast(pa.schema([("id", pa.int64()), ("n", pa.int64())]))
    both = table.append(wide).scan().to_arrow()
    assert both["n"].combine_chunks().equals(pa.array([7, 7]))
    texts = pa.table({"id": [2], "n": ["seven"]})
    with pytest.raises(FormatError, match="has the type int64, which its column never had"):
        table.append(texts).scan().to_arrow()


# --- filters and changes -------------------------------------------------------------------------


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize(
    "filters", ["name is null", "born is not null", "amount > 2 or name is null",
                "address.street is null"]
)  # fmt: skip
def test_filters_on_cells_are_refused(
    table: IcebergTable, vault: SampleVault, filters: str, known: bool
) -> None:
    scan = reopen(table, vault if known else None).scan(filters=filters)
    with pytest.raises(UnsupportedFormatError, match=r"cannot be compared.*after reading"):
        scan.to_arrow()
    with pytest.raises(UnsupportedFormatError, match="cannot be compared"):
        reopen(table, vault).scan(filters=filters).num_rows  # noqa: B018
    with pytest.raises(UnsupportedFormatError, match="cannot be compared"):
        table.delete(filters)


def test_filters_on_other_columns_work(table: IcebergTable, vault: SampleVault) -> None:
    found = reopen(table, vault).scan(columns=["name"], filters="amount > 2 and customer_id < 3")
    assert found.to_arrow()["name"].to_pylist() == ["Bob", "Ada"]
    assert reopen(table, vault).scan(filters="amount > 99").to_arrow().num_rows == 0
    assert reopen(table, vault).scan(filters="amount > 2", limit=1).to_arrow().num_rows == 1


def test_whole_files_are_deleted_and_overwritten(tmp_path: Path, vault: SampleVault) -> None:
    table = make(tmp_path / "t", subjects(vault), partition_spec=part(1)).append(ROWS)
    assert rows_of(table.scan()).cast(ROWS.schema).equals(ROWS)
    table = table.delete("customer_id = 1")
    assert rows_of(table.scan())["name"].to_pylist() == ["Bob", None]
    table = table.overwrite(ROWS.slice(0, 1), "customer_id = 2")
    assert rows_of(table.scan())["name"].to_pylist() == ["Ada", None]
    table = table.overwrite(ROWS)
    assert rows_of(table.scan()).cast(ROWS.schema).equals(ROWS)


@pytest.mark.parametrize("what", ["dek", "kek", "mek"])
def test_rotated_tables_keep_their_cells(
    table: IcebergTable, vault: SampleVault, what: Any
) -> None:
    options: Any = {"new_master_key_id": "keyB"} if what == "mek" else {}
    rotated = rotate_table(table, what, **options).table.append(ROWS)
    assert rotated.scan().to_arrow().cast(ROWS.schema).equals(pa.concat_tables([ROWS, ROWS]))
    assert reopen(rotated, vault).scan(columns=["name"]).to_arrow().num_rows == 8


# --- mistakes of writers -------------------------------------------------------------------------


def test_writers_are_checked(tmp_path: Path, vault: SampleVault) -> None:
    known = subjects(vault)
    table = make(tmp_path / "p", known, partition_spec=part(2))
    with pytest.raises(ValueError, match="the partition field part is of a column in subject_col"):
        table.append(ROWS)
    plain = make(tmp_path / "q", Subjects(vault=vault))
    writer = open_table(plain.place.path, KMS, subjects=known)
    with pytest.raises(ValueError, match=r"address\.city is in subject_columns, so it must be"):
        writer.append(ROWS)
    table = make(tmp_path / "r", known)
    with pytest.raises(ValueError, match="there is no column customer_id"):
        table.append(ROWS.drop_columns(["customer_id"]))
    with pytest.raises(ValueError, match=r"subject_columns: .*born"):
        table.append(ROWS.drop_columns(["born"]))
    street, city, _ = ROWS["address"].combine_chunks().flatten()
    less = pa.StructArray.from_arrays([street, city], ["street", "city"])
    at = ROWS.schema.get_field_index("address")
    with pytest.raises(ValueError, match=r"the data lacks address\.floor"):
        table.append(ROWS.set_column(at, "address", less))
    unknown = ROWS.set_column(0, "customer_id", pa.nulls(4, pa.int64()))
    with pytest.raises(ValueError, match="values in rows without a subject"):
        table.append(unknown)
    assert table.refreshed().scan().num_rows == 0
    assert not list((tmp_path / "r").rglob("*.parquet"))


# --- policies, catalogs and other libraries ------------------------------------------------------


def test_a_policy_declares_the_columns(tools: KeyTools, vault_file: SubjectVault) -> None:
    Path("policy.toml").write_text(POLICY)
    policy = Policy.load("policy.toml")
    keys = KeyTools.from_policy(policy)
    Path("lake").mkdir()
    catalog = SqlCatalog(
        "c", uri="sqlite:///lake/c.db", warehouse=f"file://{Path('lake').absolute()}"
    )
    catalog.create_namespace("n")
    create_table(
        None, ROWS.schema, keys, master_key_id="people", catalog=catalog, identifier="n.people"
    ).append(ROWS)  # fmt: skip
    table = load_table(catalog, "n.people", keys)
    assert table.scan().to_arrow().cast(ROWS.schema).equals(ROWS)
    stored = catalog.load_table("n.people").schema()
    assert str(stored.find_type("name")) == str(stored.find_type("address.floor")) == "binary"
    assert str(stored.find_type("born")) == "date"
    vault_file.erase(vault_file.references([b"1"]), "R1")
    erased = load_table(catalog, "n.people", KeyTools.from_policy(policy)).scan()
    assert erased.to_arrow()["name"].to_pylist() == [None, "Bob", None, None]
    catalog.close()
    with pytest.raises(ValueError, match="copies of tables have no columns under keys of subj"):
        encrypt_table("lake/x", "lake/y", keys, master_key_id="people")


@pytest.fixture
def vault_file(tools: KeyTools) -> SubjectVault:
    from modcrypt.subjects.vault import create_vault

    return create_vault("subjects.db", tools, "people")


def test_pyarrow_reads_the_rest_and_finds_no_statistics_of_cells(
    tmp_path: Path, vault: SampleVault
) -> None:
    make(tmp_path / "t", subjects(vault)).append(ROWS)
    ((entry,),) = by_hand.open_table(tmp_path / "t").entries
    file = entry["data_file"]
    found = by_hand.pyarrow_rows(file)
    assert found.select(OTHERS).cast(ROWS.select(OTHERS).schema).equals(ROWS.select(OTHERS))
    assert json.loads(found.schema.field("name").metadata[CELLS])["dataset"] == "d"
    schema = open_table(tmp_path / "t", KMS).metadata.document["schemas"][0]["fields"]
    ids = {field["name"]: field["id"] for field in schema}
    for part_of in ("lower_bounds", "upper_bounds", "null_value_counts", "value_counts"):
        assert ids["amount"] in {pair["key"] for pair in file[part_of]}
        assert ids["name"] not in {pair["key"] for pair in file[part_of]}
    keys = by_hand.parse_key_metadata(file["key_metadata"])
    opening = pe.create_decryption_properties(footer_key=keys.key, aad_prefix=keys.aad_prefix)
    group = pq.read_metadata(file["file_path"], decryption_properties=opening).row_group(0)
    columns = [group.column(number) for number in range(group.num_columns)]
    bare = {c.path_in_schema for c in columns if not (c.is_stats_set or c.has_dictionary_page)}
    assert bare == {"name", "born", "address.street", "address.city", "address.floor"}


def test_java_reads_the_rest_and_changes_the_table(
    java: Judge, table: IcebergTable, vault: SampleVault
) -> None:
    found = java.read(table.place.path, columns=OTHERS)
    assert found == plain_rows(ROWS.select(OTHERS))
    cells = java.read(table.place.path)
    assert cells == plain_rows(reopen(table, None).scan().to_arrow())
    metadata = java.commit(
        table.place.path,
        {"do": "delete", "column": "amount", "values": [2.5]},
        {"do": "schema", "rename": [["name", "full_name"]], "add": [["more", "binary", None]]},
    )
    found = open_table(metadata, KMS, subjects=Subjects(vault=vault)).scan().to_arrow()
    assert found["full_name"].to_pylist() == ["Ada", "Ada", None]
    assert found["born"].to_pylist() == [ROWS["born"][n].as_py() for n in (0, 2, 3)]
    assert found["more"].type == pa.binary()


def test_equality_deletes_apply_unless_they_compare_cells(
    java: Judge, table: IcebergTable, vault: SampleVault
) -> None:
    def newest() -> str:
        return open_table(Path(table.place.path).parents[1], KMS).place.path

    def delete_equal(by: str, value: Any) -> IcebergTable:
        files = [{"by": [by], "rows": [{by: value}]}]
        metadata = java.commit(newest(), {"do": "delete-equal", "files": files})
        return open_table(metadata, KMS, subjects=Subjects(vault=vault))

    kept = delete_equal("amount", 2.5).scan(columns=["name"]).to_arrow()
    assert kept["name"].to_pylist() == ["Ada", "Ada", None]
    compared = delete_equal("born", None)
    with pytest.raises(UnsupportedFormatError, match="column born cannot be compared"):
        compared.scan().to_arrow()


def test_read_restrictions_leave_cells(table: IcebergTable, vault: SampleVault) -> None:
    document = {"required-row-filter": {"type": "gt", "term": "amount", "value": 2}}
    restricted = open_table(
        table.place.path, KMS, read_restrictions=document, subjects=Subjects(vault=vault)
    )
    found = restricted.scan().to_arrow()
    assert found["amount"].to_pylist() == [2.5, 3.5, 4.5]
    assert found["name"].type == pa.binary()
