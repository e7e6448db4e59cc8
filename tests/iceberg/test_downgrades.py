"""What somebody who can write files, but has no key, may try: older states, and plaintext."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from modcrypt.errors import IntegrityError, KeyNotFoundError, PlaintextError
from modcrypt.iceberg import KeyPolicy, create_table, open_table, rotate_table, verify_table
from tests.iceberg.builder import Builder, arrow, field, struct
from tests.iceberg.conftest import SampleKms, both

UUID = "8b19a876-2225-48ad-a5f4-1c191de63807"
SCHEMA = struct(field(1, "id", "long"))
ARROW = arrow([(1, "id", pa.int64())])


def built(folder: Path, *, encrypted: bool = True) -> Builder:
    builder = Builder(folder, SCHEMA, encrypted=encrypted)
    rows = pa.table([[1, 2, 3]], schema=ARROW)
    builder.snapshot([builder.manifest([builder.parquet("a.parquet", rows)])])
    builder.write()
    return builder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return built(tmp_path / "t").folder


def edit(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    path = folder / "metadata" / "v1.metadata.json"
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))


def no_key_id(document: dict[str, Any]) -> None:
    document["snapshots"][0].pop("key-id")


def no_keys(document: dict[str, Any]) -> None:
    no_key_id(document)
    document.pop("encryption-keys")


def no_property(document: dict[str, Any]) -> None:
    document["properties"].clear()


def an_older_format(document: dict[str, Any]) -> None:
    no_keys(document)
    document["format-version"] = 2


def another_key(document: dict[str, Any]) -> None:
    document["snapshots"][0]["key-id"] = "nobody"


@pytest.mark.parametrize("change", [no_key_id, no_keys, no_property, an_older_format])
def test_keys_that_are_gone_from_metadata_json(folder: Path, change: Any) -> None:
    edit(folder, change)
    with pytest.raises(PlaintextError):
        open_table(folder, SampleKms()).scan()


@pytest.mark.parametrize("change", [no_key_id, no_keys])
def test_a_sealed_file_without_its_key_is_never_taken_for_plaintext(
    folder: Path, change: Any
) -> None:
    edit(folder, change)
    with pytest.raises(KeyNotFoundError):
        open_table(folder, SampleKms(), require_encrypted=False).scan()


def test_a_key_that_is_not_there(folder: Path) -> None:
    edit(folder, another_key)
    with pytest.raises(KeyNotFoundError):
        open_table(folder, SampleKms()).scan()


def test_a_table_in_plaintext_in_the_place_of_the_encrypted(folder: Path, tmp_path: Path) -> None:
    """With its key property, so that it looks like one; at each step of the walk."""
    plain = built(tmp_path / "plain", encrypted=False)
    plain.document["properties"]["encryption.key-id"] = "keyA"
    plain.write()
    shutil.rmtree(folder)
    shutil.copytree(plain.folder, folder)
    with pytest.raises(PlaintextError):
        open_table(folder, SampleKms()).scan()
    assert open_table(folder, SampleKms(), require_encrypted=False).scan().num_rows == 3


@pytest.mark.parametrize("what", ["manifest", "parquet", "vector", "deletes"])
def test_files_without_key_metadata_in_an_encrypted_table(tmp_path: Path, what: str) -> None:
    """Only who has the keys can write such a manifest; it is an error nevertheless."""
    builder = Builder(tmp_path, SCHEMA)
    rows = pa.table([[1, 2, 3]], schema=ARROW)
    data = builder.parquet("a.parquet", rows)
    builder.encrypted = what not in ("parquet",)
    if what == "parquet":
        data = builder.parquet("a.parquet", rows)
    builder.encrypted = False
    manifest = builder.manifest([data]) if what == "manifest" else None
    deletes = []
    if what == "vector":
        deletes = builder.vectors("dv.puffin", {data["file_path"]: [1]})
    if what == "deletes":
        positions = pa.table({"file_path": [data["file_path"]], "pos": [1]})
        deletes = [builder.parquet("d.parquet", positions, content=1)]
    builder.encrypted = True
    manifests = [manifest or builder.manifest([data])]
    if deletes:
        manifests.append(builder.manifest(deletes, content=1))
    builder.snapshot(manifests)
    builder.write()
    with pytest.raises(PlaintextError):
        open_table(tmp_path, SampleKms()).scan()
    expected = 2 if deletes else 3
    assert open_table(tmp_path, SampleKms(), require_encrypted=False).scan().num_rows == expected


def test_the_way_is_shown_for_a_parquet_file_that_lost_its_key(tmp_path: Path) -> None:
    builder = Builder(tmp_path, SCHEMA)
    file = builder.parquet("a.parquet", pa.table([[1]], schema=ARROW))
    builder.snapshot([builder.manifest([{**file, "key_metadata": None}])])
    builder.write()
    with pytest.raises(PlaintextError):
        open_table(tmp_path, SampleKms()).scan()
    with pytest.raises(KeyNotFoundError, match=r"a\.parquet"):
        open_table(tmp_path, SampleKms(), require_encrypted=False).scan()


# --- what the reader knows -----------------------------------------------------------------------


def test_expectations_that_hold(folder: Path) -> None:
    table = open_table(
        folder, SampleKms(), table_uuid=UUID, at_least=1, master_key_ids=["keyB", "keyA"]
    )
    assert table.scan().num_rows == 3


@pytest.mark.parametrize(
    "expected",
    [{"table_uuid": UUID[:-1] + "0"}, {"at_least": 2}, {"master_key_ids": ["keyB"]},
     {"master_key_ids": []}],
)  # fmt: skip
def test_expectations_that_do_not(folder: Path, expected: dict[str, Any]) -> None:
    with pytest.raises(IntegrityError):
        open_table(folder, SampleKms(), **expected)


def test_an_older_metadata_json_is_caught_by_its_sequence_number(t16: Path) -> None:
    path = t16 / "metadata" / "v1.metadata.json"
    table = open_table(t16, SampleKms(), location_map=both(t16), at_least=3)
    document = json.loads(path.read_text())
    document["last-sequence-number"] = 2
    path.write_text(json.dumps(document))
    with pytest.raises(IntegrityError, match="older state"):
        table.refreshed()


def test_another_table_that_takes_the_place_of_one(folder: Path) -> None:
    table = open_table(folder, SampleKms())
    edit(folder, lambda document: document.update({"table-uuid": UUID[:-1] + "0"}))
    with pytest.raises(IntegrityError, match="another table"):
        table.refreshed()


def test_expectations_hold_for_every_version(folder: Path) -> None:
    table = open_table(folder, SampleKms(), master_key_ids=["keyA"])
    edit(folder, lambda document: document["properties"].update({"encryption.key-id": "keyB"}))
    with pytest.raises(IntegrityError, match="master key"):
        table.refreshed()


@pytest.mark.parametrize("current", ["first", None, -1])
def test_an_older_snapshot_made_the_current_one_is_what_at_least_is_for(
    tmp_path: Path, current: Any
) -> None:
    """Nobody signs metadata.json, and an older snapshot, or none, reads without an error."""
    builder = Builder(tmp_path, SCHEMA)
    first = builder.manifest([builder.parquet("a.parquet", pa.table([[1]], schema=ARROW))])
    one = builder.snapshot([first])
    builder.snapshot(
        [first, builder.manifest([builder.parquet("b.parquet", pa.table([[2]], schema=ARROW))])]
    )
    builder.write()
    assert open_table(tmp_path, SampleKms(), at_least=2).scan().num_rows == 2
    id_ = one if current == "first" else current
    edit(tmp_path, lambda document: document.update({"current-snapshot-id": id_}))
    assert open_table(tmp_path, SampleKms()).scan().num_rows == (current == "first")
    with pytest.raises(IntegrityError, match="older state"):
        open_table(tmp_path, SampleKms(), at_least=2)


def swapped(document: dict[str, Any]) -> None:
    """Give the current snapshot the manifest list of the one before."""
    one, two = document["snapshots"]
    two |= {name: one[name] for name in ("manifest-list", "key-id")}


def renumbered(document: dict[str, Any]) -> None:
    """Have the first snapshot be taken for a newer one."""
    document["current-snapshot-id"] = document["snapshots"][0]["snapshot-id"]
    document["snapshots"][0]["sequence-number"] = document["snapshots"][1]["sequence-number"]


@pytest.mark.parametrize("change", [swapped, renumbered])
@pytest.mark.parametrize("kek_per", ["table", "files"])
def test_a_manifest_list_in_the_place_of_another(
    tmp_path: Path, change: Callable[[dict[str, Any]], None], kek_per: Any
) -> None:
    """What it says of itself is sealed, by Java, too; what metadata.json says of it is not."""
    rows = pa.table([[1, 2, 3]], schema=ARROW)
    table = create_table(
        tmp_path, rows.schema, SampleKms(), master_key_id="keyA", policy=KeyPolicy(kek_per=kek_per)
    )
    newest = table.append(rows).append(rows).place
    document = json.loads(Path(newest.path).read_text())
    change(document)
    Path(newest.path).write_text(json.dumps(document))
    table = open_table(tmp_path, SampleKms(), at_least=2)
    uses: list[Callable[[], Any]] = [table.scan, table.files, lambda: table.append(rows)]
    if kek_per == "files":  # whose manifests are looked into
        uses.append(lambda: rotate_table(table, "kek"))
    for use in uses:
        with pytest.raises(IntegrityError, match="put in the place of another manifest list"):
            use()
    assert not verify_table(table).ok
