"""Reading and writing through a lake: the declaration decides."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import modcrypt as mc
from modcrypt.io.places import Place
from modcrypt.lake import LakeDataset
from modcrypt.parquet.crypto.properties import FileDecryptionProperties
from tests.support.cases import each_case
from tests.support.lake_folder import DECLARATION, make_lake, order_table, write_day

FIRST = "orders/day=2026-11-01/part-0.parquet"


def orders(config: Path) -> mc.lake.LakeDataset:
    return mc.Lake.open(config).dataset("orders")


def forge(folder: Path, **policy: object) -> None:
    """Replace a file by one of the same service, which only its policy distinguishes."""
    tools = mc.KeyTools(f"file:{folder}/lake.keyring")
    declared = {
        "footer_key": "footer", "column_keys": {"pii": ["home_ssn", "mail"]},
        "plaintext_columns": ["country"], "aad_prefix": "orders/{path}",
    }  # fmt: skip
    made = mc.Policy(**{**declared, **policy})  # type: ignore[arg-type]
    encryption = tools.encryption(made, root=str(folder / "orders"))
    mc.write_table(order_table(), folder / FIRST, encryption, overwrite=True)


def test_a_dataset_is_read_with_its_partitions(config: Path) -> None:
    table = orders(config).read()
    whole = pa.concat_tables([order_table(2, 0), order_table(2, 2)] * 2)
    assert table.drop_columns(["day"]).equals(whole)
    assert set(table["day"].to_pylist()) == {"2026-11-01", "2026-11-02"}
    batches = list(orders(config).scan(columns=["id"]))
    assert pa.Table.from_batches(batches)["id"].to_pylist() == [0, 1, 2, 3] * 2


@each_case(
    "policy, error",
    [
        ({"footer_key": "other"}, mc.errors.KeyMaterialError),
        ({"column_keys": {"other": ["home_ssn", "mail"]}}, mc.errors.KeyMaterialError),
        ({"column_keys": {}}, mc.errors.PlaintextError),  # no keys of their own
        ({"plaintext_columns": ["country", "id"]}, mc.errors.PlaintextError),
        ({"aad_prefix": "orders/elsewhere"}, mc.errors.AadPrefixError),
        ({"aad_prefix": None}, mc.errors.AadPrefixError),
        ({"encryption_algorithm": "AES_GCM_CTR_V1"}, mc.errors.UnsupportedFormatError),
    ],
)
def test_what_is_not_as_declared_is_not_read(
    policy: dict[str, object], error: type[Exception], tmp_path: Path
) -> None:
    config = make_lake(tmp_path)
    mc.Lake.open(config).apply()
    mc.Keyring(tmp_path / "lake.keyring").create_key("other")
    forge(tmp_path)
    assert orders(config).read().num_rows == 8  # what `forge` makes is right but for the policy
    forge(tmp_path, **policy)
    with pytest.raises(error):
        orders(config).read()
    with pytest.raises(error):
        list(orders(config).scan())
    with pytest.raises(error):
        orders(config).view("day=2026-11-01/part-0.parquet")


def test_a_view_of_a_file_is_plaintext_parquet(config: Path) -> None:
    with orders(config).view("day=2026-11-01/part-1.parquet", columns=["id", "mail"]) as view:
        assert pq.read_table(view).equals(order_table(2, 2).select(["id", "mail"]))


def test_plaintext_is_not_read(config: Path, tmp_path: Path) -> None:
    write_day(tmp_path, "2026-11-03", 1)
    with pytest.raises(mc.errors.PlaintextError):
        orders(config).read()


def test_previous_and_named_master_keys_are_read(config: Path, tmp_path: Path) -> None:
    mc.Keyring(tmp_path / "lake.keyring").create_key("new")
    text = DECLARATION.replace("\npii = [", "\nnew = [")
    config.write_text(text)
    with pytest.raises(mc.errors.KeyMaterialError):
        orders(config).read()
    assert orders(config).read(master_key_ids=["pii"]).num_rows == 8
    config.write_text(text + '\n[dataset.orders.previous]\nmaster_keys = { pii = "new" }\n')
    assert orders(config).read().num_rows == 8


def test_a_column_without_a_key_is_null_only_on_request(config: Path, tmp_path: Path) -> None:
    mc.Keyring(tmp_path / "lake.keyring").disable_key("pii")
    with pytest.raises(mc.errors.KeyDisabledError):
        orders(config).read()
    assert orders(config).read(columns=["id"]).num_rows == 8
    table = orders(config).read(on_missing_key="null")
    assert table["home_ssn"].null_count == 8


def test_what_is_written_is_as_declared(config: Path) -> None:
    day = pa.array(["2026-11-01", "2026-11-09"])
    data = order_table().append_column("day", day)
    paths = orders(config).write(data)
    assert [path.split("/")[0] for path in paths] == ["day=2026-11-01", "day=2026-11-09"]
    (status,) = mc.Lake.open(config).status()
    assert status.counts == {"declared": 6}
    assert mc.Lake.open(config).verify()[0].code == 0
    assert orders(config).read().num_rows == 10


def test_a_partition_value_cannot_choose_another_key(tmp_path: Path) -> None:
    text = DECLARATION.replace('"footer"', '"tenant-{partition.day}"')
    config = make_lake(tmp_path, days=0, declaration=text)
    (tmp_path / "orders").mkdir()
    mc.Keyring(tmp_path / "lake.keyring").create_key("tenant-a")
    data = order_table(1).append_column("day", pa.array(["a"]))
    assert len(orders(config).write(data)) == 1
    for value in ("../evil", "a b", "", None):
        wrong = order_table(1).append_column("day", pa.array([value], pa.string()))
        with pytest.raises(ValueError, match=r"partition|folder|path"):
            orders(config).write(wrong)
    assert len(list((tmp_path / "orders").rglob("*.parquet"))) == 1


def test_strays_are_not_read(config: Path, tmp_path: Path) -> None:
    (tmp_path / "orders" / "notes.txt").write_text("no Parquet")
    assert orders(config).read().num_rows == 8


def test_a_single_file_is_a_dataset_too(tmp_path: Path) -> None:
    text = DECLARATION.replace('"orders"', '"a.parquet"').replace('partitions = ["day"]\n', "")
    config = make_lake(tmp_path, days=0, declaration=text.replace("{path}", "{name}"))
    pq.write_table(order_table(), tmp_path / "a.parquet")
    mc.Lake.open(config).apply()
    assert orders(config).read().equals(order_table())
    assert mc.Lake.open(config).verify()[0].code == 0


def test_unknown_datasets_are_mistakes(config: Path) -> None:
    with pytest.raises(ValueError, match="did you mean orders"):
        mc.Lake.open(config).dataset("order")


def test_the_properties_of_a_file_hold_no_key_in_their_text(config: Path, tmp_path: Path) -> None:
    policies = orders(config).policies
    properties = policies.opening(Place(None, str(tmp_path / FIRST)))
    for each in (properties, orders(config).decryption()):
        assert isinstance(each, FileDecryptionProperties)
        assert "Key(" not in repr(each)


def test_types_may_hold_extension_types(config: Path) -> None:
    """PyArrow makes no empty table of them."""
    kind = pa.list_(pa.struct([("uuid", pa.uuid())]))
    data = order_table().append_column("parts", pa.nulls(2, kind))
    data = data.append_column("day", pa.array(["2026-11-03"] * 2))
    (path,) = orders(config).write(data)
    written = mc.Lake.open(config).dataset("orders").view(path)
    assert pq.read_schema(written).field("parts").type == kind


def test_a_dataset_is_accepted_as_settings(config: Path, tmp_path: Path) -> None:
    lake, file = mc.Lake.open(config), tmp_path / FIRST
    dataset = lake.dataset("orders")
    assert isinstance(lake["orders"], LakeDataset)
    assert mc.read_table(file, dataset).num_rows == 2
    assert mc.verify_parquet(file, dataset).ok
    assert mc.read_table(file, dataset.decryption_of(str(file))).num_rows == 2
    mc.decrypt_parquet(file, tmp_path / "plain.parquet", dataset)
    shutil.copy(file, tmp_path / "away.parquet")
    with pytest.raises(ValueError, match="not in the dataset orders"):
        mc.read_table(tmp_path / "away.parquet", dataset)
    with pytest.raises(ValueError, match="depend on the columns"):
        mc.encrypt_parquet(tmp_path / "plain.parquet", tmp_path / "orders/x.parquet", dataset)
