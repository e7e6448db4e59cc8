"""The answer to a leak, killed at each step: nothing is lost, and nothing exposed seems safe."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import modcrypt as mc
from modcrypt import iceberg
from modcrypt.lake.files.file_states import EXPOSED
from modcrypt.lake.lake import Lake
from tests.support.cases import each_case
from tests.support.crash import kill_at_every_step
from tests.support.iceberg.sales import DECLARATION as SALES
from tests.support.iceberg.sales import declare, make_sales
from tests.support.lake_folder import DECLARATION, make_lake

pytestmark = pytest.mark.slow  # it kills a process at each of dozens of steps

REPLACED = DECLARATION.replace("\npii =", "\npii2 =") + (
    '\n[dataset.orders.previous]\nmaster_keys = { pii = "pii2" }\n'
)

ANSWER = """
from modcrypt.lake.lake import Lake

def job(step):
    (done,) = Lake.open(step / "lake" / "modcrypt.toml").apply(jobs=1)
    results = done.totals.results  # older snapshots of a table are refused
    return results["renewed"] >= 2 and not results.keys() - {"renewed", "refused"}
"""


@each_case("erased", [(), ("home_ssn",)])
def test_an_answer_that_is_killed_is_taken_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, erased: tuple[str, ...]
) -> None:
    lake = tmp_path / "lake"
    lake.mkdir()
    config = make_lake(lake, days=1)
    keyring = mc.Keyring(lake / "lake.keyring")
    keyring.create_key("pii2")
    Lake.open(config).apply()
    if erased:
        Lake.open(config).shred("orders", columns=erased)
    config.write_text(REPLACED)
    Lake.open(config).apply()  # rewrapped: only the record will tell old data keys
    config.write_text(f'compromised = ["pii"]\n{REPLACED}')
    rows = Lake.open(config).dataset("orders").read().sort_by("id")
    old = {path.name: path.read_bytes() for path in lake.rglob("*.parquet")}
    for number, folder in enumerate(kill_at_every_step(ANSWER, lake, least=30)):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / f"cache-{number}"))  # it knows nothing
        check_step(folder / "modcrypt.toml", rows, old)


def check_step(config: Path, rows: object, old: dict[str, bytes]) -> None:
    """Check that a killed run lost nothing, calls each old file exposed, and is taken up."""
    found = Lake.open(config)
    assert found.dataset("orders").read().sort_by("id").equals(rows)
    for file in found.status()[0].files:
        unchanged = (config.parent / "orders" / file.path).read_bytes() == old[Path(file.path).name]
        assert unchanged == (file.state in EXPOSED), file
    (done,) = found.apply()
    assert done.code == 0
    assert Lake.open(config).status()[0].counts == {"declared": 2}
    assert Lake.open(config).verify()[0].code == 0
    assert Lake.open(config).impact("pii")[0].rewrapped == 0


# --- Iceberg tables ------------------------------------------------------------------------------

TABLE = f"""
compromised = ["sales@1"]
{SALES}location_map = {{ "s3://lake/sales" = "sales" }}
"""


def test_an_answer_in_a_table_that_is_killed_is_taken_up(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    lake.mkdir()
    keyring, _ = make_sales(lake, pa.table({"id": [1, 2]}), location="s3://lake/sales")
    keyring.rotate_key("sales")
    declare(lake, text=TABLE)
    old = {path.name for path in (lake / "sales/data").rglob("*.parquet")}
    for folder in kill_at_every_step(ANSWER, lake, stride=3, least=30):
        check_table(folder / "modcrypt.toml", old)


def check_table(config: Path, old: set[str]) -> None:
    """Check that a killed run lost no row, calls each old file exposed, and is taken up."""
    found = Lake.open(config)
    assert found.table("sales").read().num_rows == 4
    for file in found.status()[0].files:
        if Path(file.path).name in old:
            assert file.state in EXPOSED, file
    (done,) = found.apply()
    if set(done.totals.results) != {"refused"}:  # of older snapshots alone
        assert done.totals.results["renewed"] >= 2, [file.message for file in done.files]
    opened = Lake.open(config).table("sales").open()
    assert opened.scan().to_arrow().num_rows == 4
    current = opened.snapshot()
    assert current is not None
    iceberg.expire_history(opened, keep=[current.id])
    (status,) = Lake.open(config).status()
    assert status.counts == {"declared": len(status.files)}
    assert not old.intersection(Path(file.path).name for file in status.files)
    (impact,) = Lake.open(config).impact("sales@1")
    assert (impact.files, impact.rewrapped) == (0, 0)
    assert Lake.open(config).verify()[0].code == 0
