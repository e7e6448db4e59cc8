"""Other keepers of data keys that a compromised key opens: recipients, copies, old snapshots."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

import modcrypt as mc
from modcrypt import iceberg
from modcrypt.lake.lake import Lake
from tests.support.iceberg.sales import DECLARATION as SALES
from tests.support.iceberg.sales import declare, make_sales
from tests.support.lake_folder import DECLARATION, make_lake
from tests.support.recipients import identity

ME = identity()


def leak(config: Path, text: str = DECLARATION) -> None:
    mc.Keyring(config.parent / "lake.keyring").rotate_key("pii")
    config.write_text(f'compromised = ["pii@1"]\n{text}')


def reach(config: Path) -> dict[str, Any]:
    (status,) = Lake.open(config).status()
    found: dict[str, Any] = status.fields()["reach"]
    return found


def test_recipients_of_exposed_files_are_named(tmp_path: Path) -> None:
    text = DECLARATION.replace("partitions =", f'recipients = ["{ME.recipient}"]\npartitions =')
    config = make_lake(tmp_path, declaration=text)
    Lake.open(config).apply()
    assert reach(config)["recipients"] == []  # nothing is exposed
    leak(config, text)
    me = ME.recipient.hex_id
    assert reach(config) == {"recipients": [me], "gone": [], "snapshots": []}
    (status,), (impact,) = Lake.open(config).status(), Lake.open(config).impact("pii@1")
    assert f"; exposed files open to 1 recipient: {me}" in status.summary()
    assert impact.recipients == (me,)
    assert impact.describe()[-1] == f"  exposed files open to 1 recipient: {me}"
    Lake.open(config).apply()
    assert reach(config)["recipients"] == []
    assert Lake.open(config).impact("pii@1")[0].describe() == ["orders: the key protects no file"]
    assert Lake.open(config).status()[0].counts == {"declared": 4}  # under the same recipient


def test_files_that_the_record_names_and_that_are_gone_are_copies(tmp_path: Path) -> None:
    config = make_lake(tmp_path)
    Lake.open(config).apply()
    leak(config)
    Lake.open(config).apply()
    assert reach(config)["gone"] == []
    part = tmp_path / "orders/day=2026-11-01/part-0.parquet"
    part.unlink()
    name = "day=2026-11-01/part-0.parquet"
    assert reach(config)["gone"] == [name]
    (impact,) = Lake.open(config).impact("pii@1")
    assert (impact.files, impact.rewrapped, impact.gone) == (0, 0, (name,))
    assert impact.fields()["gone"] == [name]
    assert impact.describe() == [
        "orders: the key protects no file",
        f"  copies of 1 file that are gone would open: {name}",
    ]
    assert Lake.open(config).status()[0].is_declared  # nothing is left to do here
    assert Lake.open(config).impact("footer")[0].gone == ()


def test_key_material_without_its_file_names_a_copy(tmp_path: Path) -> None:
    text = DECLARATION.replace("partitions =", "internal_key_material = false\npartitions =")
    config = make_lake(tmp_path, declaration=text)
    Lake.open(config).apply()
    (tmp_path / "orders/day=2026-11-02/part-1.parquet").rename(tmp_path / "elsewhere.parquet")
    (tmp_path / "orders/day=2026-11-02/_KEY_MATERIAL_FOR_odd.parquet.json").write_text("{")
    assert reach(config)["gone"] == []
    leak(config, text)
    name = "day=2026-11-02/part-1.parquet"
    assert reach(config)["gone"] == [name]
    assert Lake.open(config).impact("pii@1")[0].gone == (name,)
    assert Lake.open(config).impact("pii@2")[0].gone == ()


def current_id(table: iceberg.IcebergTable) -> int:
    snapshot = table.snapshot()
    assert snapshot is not None
    return snapshot.id


def test_older_snapshots_that_open_are_named(tmp_path: Path) -> None:
    keyring, table = make_sales(tmp_path, pa.table({"id": [1, 2]}))
    kms, ids = f"file:{tmp_path}/lake.keyring", table.snapshots()["snapshot_id"].to_pylist()[::-1]
    keyring.rotate_key("sales")
    config = declare(tmp_path, text=f'compromised = ["sales@1"]\n{SALES}')
    assert reach(config)["snapshots"] == sorted(ids[1:], reverse=True)
    Lake.open(config).apply()
    assert set(ids) <= set(reach(config)["snapshots"])
    (impact,) = Lake.open(config).impact("sales@1")
    assert set(ids) <= set(impact.rewrapped_snapshots)
    assert impact.describe()[-1].startswith("  exposed files are in ")
    opened = iceberg.open_table(tmp_path / "sales", kms)
    iceberg.expire_history(opened, keep=[current_id(opened)])
    assert reach(config)["snapshots"] == []
    assert Lake.open(config).impact("sales@1")[0].rewrapped_snapshots == ()
