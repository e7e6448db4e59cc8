"""Downgrades by an attacker who can write files but has no key: older states, plaintext."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.transforms import IdentityTransform

from modcrypt import Keyring, KeyTools, Policy
from modcrypt.ags1 import StandardKeyMetadata
from modcrypt.errors import (
    FormatError,
    IntegrityError,
    KeyMaterialError,
    KeyNotFoundError,
    PlaintextError,
)
from modcrypt.iceberg import (
    FileKeyStore,
    IcebergTable,
    KeyPolicy,
    expire_history,
    load_table,
    open_table,
    prune_keys,
    rotate_table,
    set_policy,
    verify_table,
)
from modcrypt.iceberg.write import commit as committing
from modcrypt.kms import open_kms
from tests.support.cases import each_case
from tests.support.iceberg.altered_documents import GONE, Change, alter
from tests.support.iceberg.builder import Builder, arrow, field, struct
from tests.support.iceberg.concurrent_commits import with_rival_commits
from tests.support.iceberg.made_tables import make_table
from tests.support.iceberg.sample_kms import SampleKms
from tests.support.iceberg.shared_table import both

UUID = "8b19a876-2225-48ad-a5f4-1c191de63807"
SCHEMA = struct(field(1, "id", "long"))
ARROW = arrow([(1, "id", pa.int64())])
ROWS = pa.table([[1, 2, 3]], schema=ARROW)


def build_table(folder: Path, *, encrypted: bool = True) -> Builder:
    builder = Builder(folder, SCHEMA, encrypted=encrypted)
    builder.snapshot([builder.manifest([builder.parquet("a.parquet", ROWS)])])
    builder.write()
    return builder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return build_table(tmp_path / "t").folder


def edit(folder: Path, change: Change) -> None:
    path = folder / "metadata" / "v1.metadata.json"
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))


drop_key_id = alter({"snapshots/0/key-id": GONE})
drop_keys = alter({"snapshots/0/key-id": GONE, "encryption-keys": GONE})
drop_property = alter({"properties": {}})
lower_format = alter({"snapshots/0/key-id": GONE, "encryption-keys": GONE, "format-version": 2})


@pytest.mark.parametrize("change", [drop_key_id, drop_keys, drop_property, lower_format])
def test_keys_that_are_gone_from_metadata_json(folder: Path, change: Any) -> None:
    edit(folder, change)
    with pytest.raises(PlaintextError):
        open_table(folder, SampleKms()).scan().to_arrow()


@pytest.mark.parametrize("change", [drop_key_id, drop_keys])
def test_a_sealed_file_without_its_key_is_never_taken_for_plaintext(
    folder: Path, change: Any
) -> None:
    edit(folder, change)
    with pytest.raises(KeyNotFoundError):
        open_table(folder, SampleKms(), require_encrypted=False).scan().to_arrow()


def test_a_key_that_is_not_there(folder: Path) -> None:
    edit(folder, alter({"snapshots/0/key-id": "nobody"}))
    with pytest.raises(KeyNotFoundError):
        open_table(folder, SampleKms()).scan().to_arrow()


def test_a_table_in_plaintext_in_the_place_of_the_encrypted(folder: Path, tmp_path: Path) -> None:
    """With its key property, so that it looks like one; at each step of the walk."""
    plain = build_table(tmp_path / "plain", encrypted=False)
    plain.document["properties"]["encryption.key-id"] = "keyA"
    plain.write()
    shutil.rmtree(folder)
    shutil.copytree(plain.folder, folder)
    with pytest.raises(PlaintextError):
        open_table(folder, SampleKms()).scan().to_arrow()
    assert open_table(folder, SampleKms(), require_encrypted=False).scan().num_rows == 3


@pytest.mark.parametrize("what", ["manifest", "parquet", "vector", "deletes"])
def test_files_without_key_metadata_in_an_encrypted_table(tmp_path: Path, what: str) -> None:
    """Only who has the keys can write such a manifest; it is an error nevertheless."""
    builder = Builder(tmp_path, SCHEMA)
    data = builder.parquet("a.parquet", ROWS)
    builder.encrypted = what not in ("parquet",)
    if what == "parquet":
        data = builder.parquet("a.parquet", ROWS)
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
        open_table(tmp_path, SampleKms()).scan().to_arrow()
    expected = 2 if deletes else 3
    assert open_table(tmp_path, SampleKms(), require_encrypted=False).scan().num_rows == expected


def test_the_way_is_shown_for_a_parquet_file_that_lost_its_key(tmp_path: Path) -> None:
    builder = Builder(tmp_path, SCHEMA)
    file = builder.parquet("a.parquet", pa.table([[1]], schema=ARROW))
    builder.snapshot([builder.manifest([{**file, "key_metadata": None}])])
    builder.write()
    with pytest.raises(PlaintextError):
        open_table(tmp_path, SampleKms()).scan().to_arrow()
    with pytest.raises(KeyNotFoundError, match=r"a\.parquet"):
        open_table(tmp_path, SampleKms(), require_encrypted=False).scan().to_arrow()


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


def tools(policy: Policy | None, declared: list[str] | None, named: str | None) -> KeyTools:
    kms: Any = SampleKms()
    kms.default_key = named
    if policy is None:
        return KeyTools(kms, master_key_ids=declared)
    return KeyTools.from_policy(policy, kms=kms, master_key_ids=declared)


def accepts(read: Callable[[], object]) -> bool:
    try:
        read()
    except (IntegrityError, KeyMaterialError):
        return False
    return True


A, B = Policy(footer_key="keyA"), Policy(footer_key="keyB", column_keys={"keyA": ["id"]})


@each_case("named", [None, "keyA", "keyB"])
@each_case("declared", [None, [], ["keyA"], ["keyB"]])
@each_case("policy", [None, A, B])
def test_key_tools_expect_one_master_key_for_tables_and_streams(
    folder: Path, policy: Policy | None, declared: list[str] | None, named: str | None
) -> None:
    """The master key of a policy's columns vouches for neither."""
    sealed = KeyTools(SampleKms()).encrypt_key_metadata(StandardKeyMetadata(key=bytes(16)), "keyA")
    used = tools(policy, declared, named)
    if policy is not None:
        expected = policy is A
    else:
        ids = {named, *(declared or ())} - {None}
        expected = "keyA" in ids or (not ids and declared is None)
    assert accepts(lambda: used.decrypt_key_metadata(sealed)) is expected
    assert accepts(lambda: open_table(folder, used)) is expected
    assert accepts(lambda: load_table(catalog_of(folder), "n.t", used)) is expected
    assert accepts(lambda: open_table(folder, used, master_key_ids=["keyA"]))
    assert not accepts(lambda: open_table(folder, used, master_key_ids=["keyB"]))


def catalog_of(folder: Path) -> SqlCatalog:
    catalog = SqlCatalog("c", uri="sqlite://", warehouse=str(folder.parent))
    catalog.create_namespace("n")
    catalog.register_table("n.t", str(next((folder / "metadata").glob("*.metadata.json"))))
    return catalog


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
    edit(folder, alter({"table-uuid": UUID[:-1] + "0"}))
    with pytest.raises(IntegrityError, match="another table"):
        table.refreshed()


def test_expectations_hold_for_every_version(folder: Path) -> None:
    table = open_table(folder, SampleKms(), master_key_ids=["keyA"])
    edit(folder, another_master_key)
    with pytest.raises(IntegrityError, match="master key"):
        table.refreshed()


@pytest.mark.parametrize("current", ["first", None, -1])
def test_an_older_snapshot_made_the_current_one_is_what_at_least_is_for(
    tmp_path: Path, current: Any
) -> None:
    """Nobody signs metadata.json, and an older snapshot, or none, reads without an error."""
    builder = Builder(tmp_path, SCHEMA)
    first = builder.manifest([builder.parquet("a.parquet", pa.table([[1]], schema=ARROW))])
    older = builder.snapshot([first])
    builder.snapshot(
        [first, builder.manifest([builder.parquet("b.parquet", pa.table([[2]], schema=ARROW))])]
    )
    builder.write()
    assert open_table(tmp_path, SampleKms(), at_least=2).scan().num_rows == 2
    id_ = older if current == "first" else current
    edit(tmp_path, alter({"current-snapshot-id": id_}))
    assert open_table(tmp_path, SampleKms()).scan().num_rows == (current == "first")
    with pytest.raises(IntegrityError, match="older state"):
        open_table(tmp_path, SampleKms(), at_least=2)


def test_at_least_counts_for_the_branch_main(tmp_path: Path) -> None:
    table = make_table(tmp_path, ROWS.schema)
    table = table.append(ROWS).append(ROWS)

    def move_table(document: dict[str, Any]) -> None:
        document["refs"]["main"]["snapshot-id"] = document["snapshots"][0]["snapshot-id"]

    tamper(table, move_table, "altered")
    table = open_table(tmp_path, SampleKms(), at_least=2)
    for use in (table.scan, table.files):
        with pytest.raises(IntegrityError, match="main"):
            use("main")
    assert table.scan().num_rows == 6


def swap_manifest_lists(document: dict[str, Any]) -> None:
    """Return the current snapshot the manifest list of the one before."""
    older, newer = document["snapshots"]
    newer |= {name: older[name] for name in ("manifest-list", "key-id")}


def renumber(document: dict[str, Any]) -> None:
    """Have the first snapshot be taken for a newer one."""
    document["current-snapshot-id"] = document["snapshots"][0]["snapshot-id"]
    document["snapshots"][0]["sequence-number"] = document["snapshots"][1]["sequence-number"]


@pytest.mark.parametrize("change", [swap_manifest_lists, renumber])
@pytest.mark.parametrize("kek_per", ["table", "files"])
def test_a_manifest_list_in_the_place_of_another(
    tmp_path: Path, change: Change, kek_per: Any
) -> None:
    """A manifest list seals what it says of itself; metadata.json is not sealed."""
    table = make_table(tmp_path, ROWS.schema, policy=KeyPolicy(kek_per=kek_per))
    newest = table.append(ROWS).append(ROWS).place
    document = json.loads(Path(newest.path).read_text())
    change(document)
    Path(newest.path).write_text(json.dumps(document))
    table = open_table(tmp_path, SampleKms(), at_least=2)
    uses: list[Callable[[], Any]] = [
        lambda: table.scan().to_arrow(),
        table.files,
        lambda: table.append(ROWS),
    ]
    if kek_per == "files":  # whose manifests are looked into
        uses.append(lambda: rotate_table(table, "kek"))
    for use in uses:
        with pytest.raises(IntegrityError, match="put in the place of another manifest list"):
            use()
    assert not verify_table(table).ok


# --- what a table object has seen ----------------------------------------------------------------


def drop_history(document: dict[str, Any]) -> None:
    document |= {"current-snapshot-id": -1, "snapshots": [], "snapshot-log": [], "refs": {}}
    document["encryption-keys"] = []


another_master_key = alter({"properties/encryption.key-id": "keyB"})


def another_master_key_and_no_history(document: dict[str, Any]) -> None:
    another_master_key(document)
    drop_history(document)


drop_current_snapshot = alter({"current-snapshot-id": None})


def roll_back(document: dict[str, Any]) -> None:
    document["current-snapshot-id"] = document["snapshots"][0]["snapshot-id"]


# Have the next commit take sequence numbers that deletes and rows have already.
count_again = alter({"last-sequence-number": 1})


TAMPERED: list[Change] = [
    another_master_key, another_master_key_and_no_history, drop_history, drop_current_snapshot,
    roll_back, count_again,
]  # fmt: skip


def tamper(table: IcebergTable, change: Change, how: str) -> None:
    """Alter the newest metadata.json of a table, or put a newer one beside it."""
    path = Path(table.place.path)
    document = json.loads(path.read_text())
    change(document)
    if how == "newer":
        path = path.with_name(f"v{int(path.name[1:].split('.')[0]) + 1}.metadata.json")
    path.write_text(json.dumps(document))


@each_case("how", ["altered", "newer", "catalog"])
@each_case("change", TAMPERED)
def test_a_table_object_remembers_what_it_has_seen(tmp_path: Path, how: str, change: Any) -> None:
    """Whoever writes with it writes under the master key, and after the rows, that it knows."""
    given: dict[str, Any] = {}
    if how == "catalog":
        catalog = SqlCatalog("lake", uri=f"sqlite:///{tmp_path}/catalog.db")
        catalog.create_namespace("n")
        given = {"catalog": catalog, "identifier": "n.t"}
    table = make_table(tmp_path / "t", ROWS.schema, **given)
    table = table.append(ROWS).append(ROWS)
    tamper(table, change, how)
    before = {path for path in (tmp_path / "t").rglob("*") if path.is_file()}
    uses: list[Callable[[], Any]] = [
        table.refreshed,
        lambda: table.append(ROWS),
        lambda: set_policy(table, KeyPolicy(kek_per="day")),
        lambda: rotate_table(table, "mek"),
        lambda: rotate_table(table, "kek", new_master_key_id="keyA"),
        lambda: rotate_table(table, "dek"),
    ]
    for use in uses:
        with pytest.raises(IntegrityError, match=r"open the table again|older state"):
            use()
    if how == "newer":
        for use in (lambda: prune_keys(table), lambda: expire_history(table)):
            with pytest.raises(IntegrityError):
                use()
    assert {path for path in (tmp_path / "t").rglob("*") if path.is_file()} == before
    if how == "catalog":
        catalog.close()


DEFAULTS = [
    ("binary", "00ff", "00FF", "00fe"),
    ("fixed[2]", "00FF", "00ff", "00fe"),
    ("float", 0.1, 0.10000000149011612, 0.2),
    ("float", 0.0, 0, -0.0),
    ("double", 0.0, 0, -0.0),
    ("timestamp", "2026-01-01T00:00:00", "2026-01-01T00:00:00.000000", "2026-01-02T00:00:00"),
    ("decimal(9, 2)", "1.50", "1.50", "1.51"),
]


@each_case("kind, before, same, other", DEFAULTS)
def test_writers_spell_defaults_differently(
    tmp_path: Path, kind: str, before: Any, same: Any, other: Any
) -> None:
    """Java writes bytes in upper case, and the fewest digits of a float."""
    path = Path(make_table(tmp_path / "t", pa.schema([("id", pa.int64())])).place.path)

    def write(default: Any) -> IcebergTable:
        document = json.loads(path.read_text())
        defaults = {"initial-default": default, "write-default": default}
        document["schemas"][0]["fields"][1:] = [field(2, "x", kind, **defaults)]
        path.write_text(json.dumps(document))
        return open_table(path, SampleKms())

    path = Path(write(before).append(pa.table({"id": [1]})).place.path)
    assert write(same).scan(columns=["id"]).num_rows == 1
    with pytest.raises(IntegrityError, match="another schema"):
        write(other).scan(columns=["id"]).to_arrow()


other_transform = alter({"partition-specs/0/fields/0/transform": "void"})
other_name = alter({"schemas/0/fields/0/name": "number"})
other_default = alter({"schemas/0/fields/1/write-default": "EU"})


@pytest.mark.parametrize("change", [other_transform, other_name, other_default])
def test_a_version_that_was_altered_is_not_sealed_by_a_rotation(
    tmp_path: Path, change: Any
) -> None:
    """Manifests that were read before would be written anew, with headers that vouch for it."""
    spec = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "region"))
    rows = pa.table({"id": [1, 2], "region": ["EU", "US"]})
    table = make_table(tmp_path, rows.schema, partition_spec=spec).append(rows)
    tamper(table, change, "altered")
    before = {path for path in tmp_path.rglob("*") if path.is_file()}
    for use in (
        lambda: rotate_table(table, "dek"),
        lambda: rotate_table(table, "kek"),
        table.refreshed,
    ):
        with pytest.raises(IntegrityError, match="altered after the table was opened"):
            use()
    assert {path for path in tmp_path.rglob("*") if path.is_file()} == before


def test_a_master_key_that_is_expected_is_followed_and_its_own_rotation(tmp_path: Path) -> None:
    make_table(tmp_path, ROWS.schema).append(ROWS)
    own = open_table(tmp_path, SampleKms())
    both_keys = open_table(tmp_path, SampleKms(), master_key_ids=["keyA", "keyB"])
    own = rotate_table(own, "mek", new_master_key_id="keyB").table
    assert own.append(ROWS).scan().num_rows == 6
    assert both_keys.append(ROWS).metadata.master_key_id == "keyB"


longer_keys = alter({"properties/encryption.data-key-length": "16"})
one_kek_for_all = alter({"properties/modcrypt.encryption.kek-per": "table"})


@pytest.mark.parametrize("change", [longer_keys, one_kek_for_all])
@pytest.mark.parametrize("first", [0, 1])
def test_how_new_files_are_encrypted_is_not_changed_unseen(
    tmp_path: Path, change: Any, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A KEK per partition is what shredding one is for; before an append, and while it retries."""
    monkeypatch.setattr(committing, "FIRST_PAUSE", 0)
    table = make_table(
        tmp_path, ROWS.schema, key_length=32, policy=KeyPolicy(kek_per="partition")
    ).append(ROWS)
    if first == 0:
        tamper(table, change, "newer")
    else:
        table = with_rival_commits(table, lambda: tamper(table, change, "newer"), 1)
    for use in (lambda: table.append(ROWS), lambda: rotate_table(table, "dek")):
        with pytest.raises(IntegrityError, match="how new files are encrypted"):
            use()


def test_sequence_numbers_are_not_used_again(tmp_path: Path) -> None:
    """Equality deletes apply to rows with lower ones."""
    table = make_table(tmp_path, ROWS.schema)
    tamper(table.append(ROWS).append(ROWS), count_again, "altered")
    fresh = open_table(tmp_path, SampleKms())
    for use in (lambda: fresh.append(ROWS), lambda: rotate_table(fresh, "dek")):
        with pytest.raises(FormatError, match="above last-sequence-number"):
            use()


@pytest.mark.parametrize("change", [{"next-row-id": 0}, {"next-row-id": None}])
def test_row_ids_are_not_used_again(tmp_path: Path, change: dict[str, Any]) -> None:
    table = make_table(tmp_path, ROWS.schema)
    tamper(table.append(ROWS), alter(change), "altered")
    fresh = open_table(tmp_path, SampleKms())
    for use in (lambda: fresh.append(ROWS), lambda: rotate_table(fresh, "dek")):
        with pytest.raises(FormatError, match="above next-row-id"):
            use()


def test_what_a_commit_has_written_goes_if_the_table_is_refused_when_it_tries_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(committing, "FIRST_PAUSE", 0)
    table = make_table(tmp_path, ROWS.schema).append(ROWS)
    before = {path for path in tmp_path.rglob("*") if path.is_file()}

    def another_key() -> None:
        tamper(table, another_master_key, "newer")

    for use in (lambda table: table.append(ROWS), lambda table: rotate_table(table, "dek")):
        with pytest.raises(IntegrityError, match="open the table again"):
            use(with_rival_commits(table, another_key, 1))
        (tmp_path / "metadata/v3.metadata.json").unlink()
        assert {path for path in tmp_path.rglob("*") if path.is_file()} == before


# --- a table that nobody here has seen -----------------------------------------------------------


no_current_snapshot_and_another_master_key = alter(
    {"properties/encryption.key-id": "keyB", "current-snapshot-id": None}
)


@pytest.mark.parametrize("change", [another_master_key, no_current_snapshot_and_another_master_key])
@pytest.mark.parametrize("where", ["table", "key-store"])
def test_no_new_key_is_made_under_a_master_key_that_the_others_are_not_under(
    tmp_path: Path, change: Any, where: Any
) -> None:
    store = FileKeyStore.create(tmp_path / "store.json")
    table = make_table(
        tmp_path / "t", ROWS.schema, key_store=store, policy=KeyPolicy(store=where)
    ).append(ROWS)
    tamper(table, change, "altered")
    kms = SampleKms()
    table = open_table(tmp_path / "t", kms, key_store=store)
    uses: list[Callable[[], Any]] = [
        lambda: table.append(ROWS),
        lambda: rotate_table(table, "mek"),
        lambda: rotate_table(table, "kek"),
        lambda: rotate_table(table, "dek"),
    ]
    for use in uses:
        with pytest.raises(KeyMaterialError, match="keyA"):
            use()
    assert ("wrap", "keyB") not in kms.calls


def test_a_table_whose_history_was_taken_away_is_refused(tmp_path: Path) -> None:
    """Nothing is left that agrees with its master key, and its rows are gone without a word."""
    made = make_table(tmp_path / "t", ROWS.schema)
    tamper(made.append(ROWS), another_master_key_and_no_history, "altered")
    with pytest.raises(IntegrityError, match=r"master_key_ids=\['keyB'\]"):
        open_table(tmp_path / "t", SampleKms())
    reported = open_table(tmp_path / "t", SampleKms(), master_key_ids=["keyB"])
    assert reported.append(ROWS).scan().num_rows == 3


@pytest.mark.parametrize("what", ["mek", "kek"])
def test_a_rotation_that_stopped_after_the_key_store_is_finished_by_naming_the_key(
    tmp_path: Path, what: Any
) -> None:
    store = FileKeyStore.create(tmp_path / "store.json")
    make_table(
        tmp_path / "t", ROWS.schema, key_store=store, policy=KeyPolicy(store="key-store")
    ).append(ROWS)
    table = open_table(tmp_path / "t", SampleKms(), key_store=store)
    masters = table.walk.resolver.masters
    store.replace(
        replace(key, master_key_id="keyB", wrapped=masters.move(key.wrapped or b"", "keyA", "keyB"))
        for key in list(store.keys().values())
    )
    with pytest.raises(KeyMaterialError, match="new_master_key_id"):
        table.append(ROWS)
    expected = open_table(
        tmp_path / "t", SampleKms(), key_store=store, master_key_ids=["keyA", "keyB"]
    )
    assert expected.append(ROWS).scan().num_rows == 6
    table = rotate_table(table, what, new_master_key_id="keyB").table
    assert table.append(ROWS).scan().num_rows == 9


@pytest.mark.parametrize("how", ["uri", "client", "tools"])
def test_the_uri_of_a_key_service_names_the_master_key_that_is_expected(
    tmp_path: Path, how: str
) -> None:
    """So that a writer who has never seen the table makes no key under another one."""
    ring = Keyring.create(tmp_path / "ring", plaintext=True)
    for name in ("payroll", "sandbox"):
        ring.create_key(name)
    table = make_table(tmp_path / "t", ROWS.schema, ring, master_key_id="payroll").append(ROWS)

    def to_sandbox(document: dict[str, Any]) -> None:
        document["properties"]["encryption.key-id"] = "sandbox"
        drop_history(document)

    uri = f"file:{tmp_path}/ring#payroll"
    kms: Any = {"uri": uri, "client": open_kms(uri), "tools": KeyTools(uri)}[how]
    assert open_table(tmp_path / "t", kms).append(ROWS).scan().num_rows == 6
    tamper(table, to_sandbox, "newer")
    with pytest.raises(IntegrityError, match="'sandbox', which is none of those expected"):
        open_table(tmp_path / "t", kms)
    with pytest.raises(IntegrityError, match="'sandbox', which is none of those expected"):
        open_table(tmp_path / "t", ring, master_key_ids=["payroll"])
    assert open_table(tmp_path / "t", kms, master_key_ids=["sandbox"]).scan().num_rows == 0


# --- schemas and partition specs -----------------------------------------------------------------

PEOPLE = struct(field(1, "id", "int"), field(2, "name", "string"), field(3, "region", "string"))
PEOPLE_ARROW = arrow([(1, "id", pa.int32()), (2, "name", pa.string()), (3, "region", pa.string())])
BY_REGION = {"source-id": 3, "field-id": 1000, "transform": "identity", "name": "region"}
REGION: dict[str, Any] = {"name": "region", "field-id": 1000, "type": ["null", "string"]}


def people(*rows: tuple[int, str, str]) -> pa.Table:
    return pa.Table.from_pylist(
        [dict(zip(PEOPLE_ARROW.names, row, strict=True)) for row in rows], PEOPLE_ARROW
    )


@pytest.fixture
def regions(tmp_path: Path) -> Builder:
    """Make a table whose rows go by partitions: some are deleted everywhere, some in one region."""
    builder = Builder(tmp_path, PEOPLE)
    builder.document["partition-specs"].append({"spec-id": 1, "fields": [BY_REGION]})
    builder.partitions[1] = [REGION]
    europe = builder.parquet(
        "a.parquet", people((1, "ann", "EU"), (2, "bob", "EU")), partition={"region": "EU"}
    )
    america = builder.parquet(
        "b.parquet", people((1, "axe", "US"), (3, "cat", "US")), partition={"region": "US"}
    )

    def bounds(region: str) -> dict[str, Any]:
        reported = {"contains_null": False, "contains_nan": False}
        return {**reported, "lower_bound": region.encode(), "upper_bound": region.encode()}

    manifests = [
        builder.manifest(
            [table], spec_id=1, partitions=[bounds(region)], added_rows_count=2
        ) for table, region in ((europe, "EU"), (america, "US"))
    ]  # fmt: skip
    builder.snapshot(manifests)
    for number, spec_id in ((2, 0), (1, 1)):
        keys = pa.Table.from_pylist([{"id": number}], arrow([(1, "id", pa.int32())]))
        where: dict[str, Any] = {} if spec_id == 0 else {"partition": {"region": "EU"}}
        deletes = builder.parquet(f"d{number}.parquet", keys, content=2, equality_ids=[1], **where)
        manifests.append(
            builder.manifest([deletes], content=1, spec_id=spec_id, added_rows_count=1)
        )
    builder.snapshot(manifests)
    builder.write()
    return builder


# Have what is deleted everywhere be deleted nowhere.
a_field_for_the_spec_of_deletes = alter({"partition-specs/0/fields": [BY_REGION]})
# Have what is deleted in one region be deleted in all.
no_field_for_the_spec_of_data = alter({"partition-specs/1/fields": []})
a_void_transform = alter({"partition-specs/1/fields/0/transform": "void"})
# Have filters by name prune by the region.
the_spec_of_another_column = alter({"partition-specs/1/fields/0/source-id": 2})
# Of both members, pyiceberg takes the other one.
a_second_column_for_the_spec = alter(
    {"partition-specs/1/fields": [{**BY_REGION, "source-id": 2, "source-ids": [3]}]}
)


the_spec_in_the_words_of_version_1 = alter(
    {"partition-spec": [{**BY_REGION, "source-id": 2}], "partition-specs": []}
)


def exchange_names(document: dict[str, Any]) -> None:
    fields = document["schemas"][0]["fields"]
    fields[1]["name"], fields[2]["name"] = fields[2]["name"], fields[1]["name"]


def names_exchanged_in_the_words_of_version_1(document: dict[str, Any]) -> None:
    exchange_names(document)
    document["schema"] = document.pop("schemas")[0]


def another_id_and_a_default(document: dict[str, Any]) -> None:
    document["schemas"][0]["fields"][1] = field(
        77, "name", "string", **{"initial-default": "nobody"}
    )


# Have rows of files without the column have a value.
a_default = alter({"schemas/0/fields/1/initial-default": "nobody"})
a_default_as_pyiceberg_names_it = alter({"schemas/0/fields/1/initial_default": "nobody"})


SPECS: list[Change] = [
    a_field_for_the_spec_of_deletes, no_field_for_the_spec_of_data, a_void_transform,
    the_spec_of_another_column, a_second_column_for_the_spec, the_spec_in_the_words_of_version_1,
]  # fmt: skip
SCHEMAS: list[Change] = [
    exchange_names, names_exchanged_in_the_words_of_version_1, another_id_and_a_default, a_default,
    a_default_as_pyiceberg_names_it,
]  # fmt: skip


@each_case("change", [*SPECS, *SCHEMAS])
@each_case("filters", [None, "name = 'axe'", "name = 'cat' and region = 'US'"])
def test_a_schema_or_spec_with_another_meaning(
    regions: Builder, change: Any, filters: str | None
) -> None:
    """It is noticed also where a filter by it leaves no manifest to be read."""
    table = open_table(regions.folder, SampleKms())
    assert sorted(table.scan(columns=["name"])["name"].to_pylist()) == ["axe", "cat"]
    assert verify_table(table).ok
    edit(regions.folder, change)
    what = "partition spec" if change in SPECS else "schema"
    table = open_table(regions.folder, SampleKms())
    if change is the_spec_in_the_words_of_version_1:  # which has one alone
        with pytest.raises((IntegrityError, FormatError), match="partition spec"):
            table.scan(columns=["id"], filters=filters).to_arrow()
        return
    with pytest.raises(IntegrityError, match=f"another {what} under the id"):
        table.scan(columns=["id"], filters=filters).to_arrow()
    found = verify_table(table)
    assert any(f"another {what} under the id" in finding.message for finding in found.findings)
    if filters is None:
        for use in (table.files, lambda: rotate_table(table, "dek")):
            with pytest.raises(IntegrityError, match=f"another {what}"):
                use()


def evolve_schema(document: dict[str, Any]) -> None:
    """Rename a column and add one with a default, under another id; and partition otherwise."""
    fields = [dict(column) for column in document["schemas"][0]["fields"]]
    fields[1]["name"] = "called"
    fields.append(field(4, "team", "string", **{"initial-default": "red"}))
    document["schemas"].append(struct(*fields, schema_id=1))
    document["current-schema-id"] = 1
    document["partition-specs"].append(
        {"spec-id": 2, "fields": [{**BY_REGION, "transform": "truncate[1]", "field-id": 1001}]}
    )
    document["default-spec-id"] = 2


def comment_columns(document: dict[str, Any]) -> None:
    for column in document["schemas"][0]["fields"]:
        column["doc"] = "a comment"


def forget_schema(document: dict[str, Any]) -> None:
    """Drop an older schema that no snapshot needs, as Iceberg's Java may."""
    evolve_schema(document)
    del document["schemas"][0]


@each_case("change", [evolve_schema, comment_columns, forget_schema])
@each_case("filters", [None, "id = 3", "region = 'US'", "region = 'SE'"])
def test_schemas_and_specs_evolve(regions: Builder, change: Any, filters: str | None) -> None:
    edit(regions.folder, change)
    table = open_table(regions.folder, SampleKms())
    found = table.scan(filters=filters)
    expected = {"id = 3": [3], "region = 'SE'": []}.get(filters or "", [1, 3])
    assert sorted(found["id"].to_pylist()) == expected
    assert ("team" in found.column_names) == (change is not comment_columns)
    assert verify_table(table).ok


@pytest.mark.parametrize(
    ("member", "name"), [("schemas", "schema-id"), ("partition-specs", "spec-id")]
)
def test_an_id_that_is_no_whole_number_is_refused(tmp_path: Path, member: str, name: str) -> None:
    """pyiceberg would read "0" as 0, and the comparison with headers would not."""
    rows = pa.table({"id": [1], "region": ["EU"], "name": ["a"]})
    table = make_table(tmp_path, rows.schema).append(rows)

    def as_text(document: dict[str, Any]) -> None:
        exchange_names(document)
        document[member][0][name] = "0"

    tamper(table, as_text, "altered")
    fresh = open_table(tmp_path, SampleKms())
    for use in (lambda: fresh.scan().to_arrow(), lambda: fresh.append(rows)):
        with pytest.raises((FormatError, IntegrityError)):
            use()
    assert not verify_table(fresh).ok


def test_rows_are_not_written_under_a_spec_with_another_meaning(tmp_path: Path) -> None:
    """The header of a new manifest would vouch for it."""
    spec = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "region"))
    rows = pa.table({"id": [1, 2], "region": ["EU", "US"], "name": ["a", "b"]})
    table = make_table(tmp_path, rows.schema, partition_spec=spec).append(rows)

    tamper(table, alter({"partition-specs/0/fields/0/source-id": 3}), "altered")
    with pytest.raises(IntegrityError, match="another partition spec"):
        open_table(tmp_path, SampleKms()).append(rows)
