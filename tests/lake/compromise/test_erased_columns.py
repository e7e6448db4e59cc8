"""New data keys for files with erased columns, which no key opens any more."""

from __future__ import annotations

import json
import pickle
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

import modcrypt as mc
from modcrypt.io.sources import open_source
from modcrypt.jobs.listing import File
from modcrypt.lake.applying.application import AppliedFile
from modcrypt.lake.applying.plan import LakePlan
from modcrypt.lake.lake import Lake
from modcrypt.parquet.crypto.file_plan import OpenFile
from modcrypt.spark.jobs.file_work import VerbJob
from modcrypt.spark.jobs.lake_jobs import APPLY
from tests.support.cases import each_case
from tests.support.lake_folder import DECLARATION, make_lake

PART = "orders/day=2026-11-01/part-0.parquet"
STORE = "_KEY_MATERIAL_FOR_part-0.parquet.json"


def find_pages(path: Path, column: str) -> list[bytes]:
    """Return the encrypted modules of a column of a file that opens."""
    keyring = mc.Keyring(path.parents[2] / "lake.keyring")
    prefix = str(path.relative_to(path.parents[2])).encode()
    properties = mc.KeyTools(keyring).decryption(aad_prefix=prefix)
    content = path.read_bytes()
    with open_source(path) as source:
        file = OpenFile(source, properties)
        ordinal = [".".join(leaf) for leaf in file.leaves].index(column)
        spans = [span for span in file.select().spans if span.column == ordinal]
    return [content[span.start : span.end] for span in spans]


def make_erased(folder: Path, columns: list[str], declaration: str = DECLARATION) -> Path:
    """Make an encrypted lake, and erase columns of all its files."""
    config = make_lake(folder, declaration=declaration)
    Lake.open(config).apply()
    Lake.open(config).shred("orders", columns=columns)
    return config


def declare_leak(config: Path, key: str, declaration: str = DECLARATION) -> None:
    config.write_text(f"compromised = {json.dumps([key])}\n{declaration}")


@each_case("footer", ["", "plaintext_footer = true\n"])
def test_files_with_an_erased_column_get_new_data_keys(tmp_path: Path, footer: str) -> None:
    text = DECLARATION.replace("partitions =", f"{footer}partitions =")
    config = make_lake(tmp_path, declaration=text)
    Lake.open(config).apply()
    pages = find_pages(tmp_path / PART, "home_ssn")
    Lake.open(config).shred("orders", columns=["home_ssn"])
    assert all(page in (tmp_path / PART).read_bytes() for page in pages)
    mc.Keyring(tmp_path / "lake.keyring").rotate_key("pii")
    declare_leak(config, "pii@1", text)
    assert Lake.open(config).status()[0].counts == {"compromised": 4}
    (done,) = Lake.open(config).apply()
    assert (done.code, done.totals.results) == (0, {"renewed": 4})
    assert done.files[0].message == "what was left of erased columns is removed: home_ssn"
    # Whoever kept the column's old data key finds nothing to open with it.
    assert not any(page in (tmp_path / PART).read_bytes() for page in pages)
    assert Lake.open(config).status()[0].counts == {"declared": 4}
    assert Lake.open(config).verify()[0].code == 0
    assert Lake.open(config).impact("pii@1")[0].describe() == ["orders: the key protects no file"]
    table = Lake.open(config).dataset("orders").read()
    assert table["home_ssn"].null_count == table.num_rows == 8
    assert sorted(set(table["mail"].to_pylist())) == [f"{n}@example.com" for n in range(4)]
    assert Lake.open(config).apply()[0].files == []


def test_the_only_column_of_a_compromised_key_may_be_erased(tmp_path: Path) -> None:
    config = make_erased(tmp_path, ["home_ssn", "mail"])
    mc.Keyring(tmp_path / "lake.keyring").rotate_key("footer")
    declare_leak(config, "footer@1")
    assert Lake.open(config).apply()[0].totals.results == {"renewed": 4}
    assert Lake.open(config).status()[0].counts == {"declared": 4}
    assert Lake.open(config).dataset("orders").read()["mail"].null_count == 8


def test_a_column_whose_master_key_is_destroyed_leaves_the_renewed_file(tmp_path: Path) -> None:
    text = DECLARATION.replace("\npii =", '\nmails = ["mail"]\npii =').replace(
        "{ pii = true }", '"id"'
    )
    config = make_lake(tmp_path, declaration=text)
    keyring = mc.Keyring(tmp_path / "lake.keyring")
    keyring.create_key("mails")
    keyring.create_key("mails2")
    Lake.open(config).apply()
    shutil.copytree(tmp_path / "orders", tmp_path / "backup")
    Lake.open(config).shred("orders", master_keys=["mails"], destroy_master_keys=True)
    shutil.copytree(tmp_path / "backup", tmp_path / "orders", dirs_exist_ok=True)
    keyring.rotate_key("pii")
    text = text.replace("\nmails =", "\nmails2 =")
    text += '\n[dataset.orders.previous]\nmaster_keys = { mails = "mails2" }\n'
    declare_leak(config, "pii@1", text)
    assert Lake.open(config).apply()[0].totals.results == {"renewed": 4}
    assert Lake.open(config).status()[0].counts == {"declared": 4}
    assert Lake.open(config).verify()[0].code == 0


def test_another_policy_applies_to_files_with_an_erased_column(tmp_path: Path) -> None:
    config = make_erased(tmp_path, ["home_ssn"])
    config.write_text(DECLARATION.replace('plaintext_columns = ["country"]\n', ""))
    assert Lake.open(config).apply()[0].totals.results == {"rekeyed": 4}
    assert Lake.open(config).status()[0].counts == {"declared": 4}
    assert Lake.open(config).verify()[0].code == 0


def test_a_column_that_is_not_erased_is_never_removed(tmp_path: Path) -> None:
    """Its key is refused, and may return."""
    config = make_erased(tmp_path, ["home_ssn"])
    (tmp_path / "modcrypt.erased.jsonl").unlink()
    keyring = mc.Keyring(tmp_path / "lake.keyring")
    keyring.rotate_key("pii")
    declare_leak(config, "pii@1")
    before = (tmp_path / PART).read_bytes()
    assert Lake.open(config).status()[0].counts == {"unreadable": 4}
    (done,) = Lake.open(config).apply()
    assert (done.code, done.totals.results) == (3, {"refused": 4})
    assert (tmp_path / PART).read_bytes() == before


def test_an_erased_part_of_a_struct_is_refused_by_name(tmp_path: Path) -> None:
    text = DECLARATION.replace('["*_ssn", ', '["person.home_ssn", ')
    config = make_lake(tmp_path, declaration=text, days=0)
    folder = tmp_path / "orders/day=2026-11-01"
    folder.mkdir(parents=True)
    person = pa.array([{"home_ssn": "1", "name": "Ada"}])
    rows = pa.table({"person": person, "country": ["NO"]})
    pq.write_table(rows, folder / "part-0.parquet")
    Lake.open(config).apply()
    Lake.open(config).shred("orders", columns=["person.home_ssn"])
    mc.Keyring(tmp_path / "lake.keyring").rotate_key("footer")
    declare_leak(config, "footer@1", text)
    before = (tmp_path / PART).read_bytes()
    (done,) = Lake.open(config).apply()
    assert (done.code, done.files[0].result) == (3, "no-key")
    assert "person.home_ssn" in done.files[0].message
    assert (tmp_path / PART).read_bytes() == before


def test_no_key_is_wrapped_for_an_erased_column(tmp_path: Path) -> None:
    text = DECLARATION.replace("partitions =", "internal_key_material = false\npartitions =")
    text = text.replace('["*_ssn", { pii = true }]', '["home_ssn", "mail"]')
    config = make_erased(tmp_path, ["home_ssn"], text)
    mc.Keyring(tmp_path / "lake.keyring").rotate_key("pii")
    declare_leak(config, "pii@1", text)
    assert Lake.open(config).apply()[0].totals.results == {"renewed": 4}
    material = json.loads((tmp_path / PART).with_name(STORE).read_text())
    assert sorted(material) == ["columnKey0", "footerKey"]
    assert Lake.open(config).status()[0].counts == {"declared": 4}
    assert Lake.open(config).dataset("orders").read()["mail"].null_count == 0


def test_executors_of_spark_make_new_data_keys_for_these_files(tmp_path: Path) -> None:
    config = make_erased(tmp_path, ["home_ssn"])
    mc.Keyring(tmp_path / "lake.keyring").rotate_key("pii")
    declare_leak(config, "pii@1")
    lake = Lake.open(config)
    reference, arguments = lake.reference("orders"), {"action": "renew", "waits": False}
    job = VerbJob(verb=APPLY, settings=reference, arguments=arguments)

    def carry_out(plan: LakePlan) -> list[AppliedFile]:
        states, policies = [each.state for each in plan.files], reference.policies
        files = [File(each.path, each.size, policies.place_of(each.path)) for each in states]
        rows = pickle.loads(pickle.dumps(job)).rows(files, None)
        return [AppliedFile(path=row["name"].decode(), result=row["result"]) for row in rows]

    (done,) = lake.apply(carry_out=carry_out)
    assert done.totals.results == {"renewed": 4}
    assert Lake.open(config).status()[0].counts == {"declared": 4}
