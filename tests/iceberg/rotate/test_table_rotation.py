"""Rotation of master keys and KEKs: what changes, what does not, and who can read it afterwards."""

from __future__ import annotations

import base64
import json
import uuid
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from fsspec.implementations.memory import MemoryFileSystem
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.transforms import IdentityTransform

import modcrypt as mc
from modcrypt.iceberg import (
    FileKeyStore,
    IcebergTable,
    KeyPolicy,
    SqliteKeyStore,
    append,
    expire_history,
    load_table,
    open_table,
    prune_keys,
    verify_table,
)
from modcrypt.iceberg.format.avro_files import read_avro, write_avro
from modcrypt.iceberg.format.encrypted_files import write_ags1
from modcrypt.iceberg.format.table_metadata import SCOPE, EncryptedKey
from modcrypt.iceberg.keys.key_resolver import KeyResolver
from modcrypt.iceberg.keys.wrapping_keys import IcebergKey
from modcrypt.iceberg.rotate.table_rotation import rotate_table
from modcrypt.iceberg.write import commit as committing
from modcrypt.kms.client import Capabilities
from tests.support.cases import each_case
from tests.support.folder_contents import files
from tests.support.iceberg.by_hand import (
    document,
    keks,
    manifest_lists,
    parse_key_metadata,
    unwrap_entry,
)
from tests.support.iceberg.concurrent_commits import with_rival_commits
from tests.support.iceberg.dry_runs import with_planned_values
from tests.support.iceberg.java_judge import Judge
from tests.support.iceberg.made_tables import make_table
from tests.support.iceberg.resealed_tables import file_keys, reseal, seal_singly, sealer_under
from tests.support.iceberg.sample_kms import MASTERS, Refusing, SampleKms
from tests.support.iceberg.shared_table import SNAPSHOTS, all_rows, both, reopen


class Store:
    """A key store in memory."""

    def __init__(self, *keys: IcebergKey) -> None:
        self.held = {key.id: key for key in keys}

    def keys(self) -> dict[str, IcebergKey]:
        return dict(self.held)

    def replace(self, keys: Any, drop: Any = ()) -> None:
        held = {**self.held, **{key.id: key for key in keys}}
        self.held = {id_: key for id_, key in held.items() if id_ not in set(drop)}


def plain_kek(entry: dict[str, Any]) -> bytes:
    wrapped = base64.b64decode(entry["encrypted-key-metadata"])
    master = AESGCM(MASTERS[entry["encrypted-by-id"]])
    return master.decrypt(wrapped[:12], wrapped[12:], None)


# --- the master key ------------------------------------------------------------------------------


@pytest.mark.parametrize("new_id", ["keyB", None, "keyA"])
def test_mek_changes_nothing_but_the_wrapping_of_keks(
    t16: Path, table: IcebergTable, kms: SampleKms, new_id: str | None
) -> None:
    before, files_before, master = document(t16), files(t16), new_id or "keyA"

    done = rotate_table(table, "mek", new_master_key_id=new_id)

    assert kms.calls == [("unwrap", "keyA"), ("wrap", master), ("unwrap", master)]
    assert (done.what, done.keks, done.kms_calls, done.committed) == ("mek", 1, 3, True)
    assert done.proved == {master: 1}
    assert done.master_key_id == master
    after = document(t16)
    (old,), (new,) = keks(before).values(), keks(after).values()
    assert plain_kek(old) == plain_kek(new)
    assert new["encrypted-key-metadata"] != old["encrypted-key-metadata"]
    assert new["encrypted-by-id"] == after["properties"]["encryption.key-id"] == master
    changed = {"encryption-keys", "properties", "metadata-log", "last-updated-ms"}
    assert {k: v for k, v in after.items() if k not in changed} == {
        k: v for k, v in before.items() if k not in changed
    }
    assert [key for key in after["encryption-keys"] if key != new] == [
        key for key in before["encryption-keys"] if key != old
    ]
    assert new.keys() == old.keys()
    assert new["properties"] == old["properties"]
    same = files(t16)
    assert {name: same[name] for name in files_before} == files_before
    assert same.keys() - files_before.keys() == {
        "metadata/v2.metadata.json", "metadata/version-hint.text",
    }  # fmt: skip


def test_after_mek_the_old_master_key_is_needed_for_no_snapshot(
    t16: Path, table: IcebergTable
) -> None:
    rows = all_rows(table)
    done = rotate_table(table, "mek", new_master_key_id="keyB")
    without = Refusing("keyA")
    assert all_rows(reopen(t16, without)) == rows
    assert without.calls == [("unwrap", "keyB")]
    assert all_rows(done.table) == rows  # by the client that the table was opened with
    older = open_table(t16 / "metadata/v1.metadata.json", without, location_map=both(t16))
    with pytest.raises(mc.errors.KeyAccessDeniedError):
        older.scan().to_arrow()


def test_a_service_that_wraps_anew_by_itself_gives_keys_out_for_the_proof_alone(t16: Path) -> None:
    class Able(SampleKms):
        capabilities = Capabilities(rewrap=True)

        def rewrap(self, wrapped: str, master_key_id: str, *, aad: bytes = b"") -> str:
            key = self.unwrap(wrapped, master_key_id)
            again = self.wrap(key, master_key_id)
            self.calls[-2:] = [("rewrap", master_key_id)]
            return again

    kms = Able()
    done = rotate_table(reopen(t16, kms), "mek")
    assert kms.calls == [("rewrap", "keyA"), ("unwrap", "keyA")]  # the proof
    assert done.kms_calls == 2
    assert manifest_lists(t16)


def test_a_service_that_unwraps_to_something_else_is_found_out(t16: Path) -> None:
    class Confused(SampleKms):
        def unwrap(self, wrapped: str, master_key_id: str, *, aad: bytes = b"") -> bytes:
            return bytes(16)

    before = files(t16)
    with pytest.raises(mc.errors.KeyMaterialError):
        rotate_table(reopen(t16, Confused()), "mek", new_master_key_id="keyB")
    assert files(t16) == before


# --- KEKs ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("new_id", ["keyB", None])
def test_kek_seals_entries_anew_and_drops_the_old_one(
    t16: Path, table: IcebergTable, kms: SampleKms, new_id: str | None
) -> None:
    before, lists, files_before = document(t16), manifest_lists(t16), files(t16)
    rows = all_rows(table)
    kms.calls.clear()

    done = rotate_table(table, "kek", new_master_key_id=new_id)

    master = new_id or "keyA"
    proof = ("unwrap", master)
    assert Counter(kms.calls) == Counter([("unwrap", "keyA"), ("wrap", master), proof])
    assert (done.keks, done.new_keks, done.entries, done.kms_calls) == (1, 1, 3, 3)
    assert (done.manifests, done.manifest_lists, done.data_files) == (0, 0, 0)
    after = document(t16)
    (old,), (new,) = keks(before).values(), keks(after).values()
    assert new["key-id"] != old["key-id"]
    assert plain_kek(new) != plain_kek(old)
    assert int(new["properties"]["KEY_TIMESTAMP"]) > int(old["properties"]["KEY_TIMESTAMP"])
    assert old["key-id"] not in (t16 / "metadata" / "v2.metadata.json").read_text()
    assert after["snapshots"] == before["snapshots"]
    assert manifest_lists(t16) == lists
    assert {key["key-id"] for key in after["encryption-keys"]} - {new["key-id"]} == {
        key["key-id"] for key in before["encryption-keys"]
    } - {old["key-id"]}
    for entry in after["encryption-keys"]:
        if entry != new:
            sealed = base64.b64decode(entry["encrypted-key-metadata"])
            with pytest.raises(InvalidTag):
                AESGCM(plain_kek(old)).decrypt(
                    sealed[:12], sealed[12:], old["properties"]["KEY_TIMESTAMP"].encode()
                )
    same = files(t16)
    assert {name: same[name] for name in files_before} == files_before
    assert all_rows(done.table) == rows == all_rows(reopen(t16))


def test_keks_of_one_scope_become_one_and_scopes_stay_apart(
    t16: Path, table: IcebergTable, kms: SampleKms
) -> None:
    lists = manifest_lists(t16)
    resolver, metadata = table.walk.resolver, table.metadata
    opened = {
        s.key_id or "": resolver.decrypt_entry(metadata.keys[s.key_id or ""], metadata)
        for s in metadata.snapshots
    }
    made = resolver.masters.new_keks("keyA", 16, ["", "", "day=2026-01-01", "day=2026-01-02"])
    entries = [
        replace(resolver.encrypt_entry(plain, kek), id=id_)
        for (id_, plain), kek in zip(opened.items(), made[1:], strict=True)
    ]
    table.versions.commit(
        table.place, metadata.with_keys([*(opened.key.entry() for opened in made), *entries])
    )
    assert manifest_lists(t16) == lists
    table, before = table.refreshed(), document(t16)
    kms.calls.clear()

    planned = rotate_table(table, "kek", dry_run=True)
    assert kms.calls == []
    done = rotate_table(table, "kek")

    assert Counter(kms.calls) == Counter({("unwrap", "keyA"): 4, ("wrap", "keyA"): 3})
    assert (done.keks, done.new_keks, done.entries, done.kms_calls) == (4, 3, 3, 7)
    assert with_planned_values(done, planned) == planned
    after = document(t16)
    assert not keks(before).keys() & keks(after).keys()
    scopes = [entry["properties"].get(SCOPE, "") for entry in keks(after).values()]
    assert sorted(scopes) == ["", "day=2026-01-01", "day=2026-01-02"]
    assert manifest_lists(t16) == lists


# --- single wrapping, and key metadata in manifests ----------------------------------------------


@pytest.mark.parametrize("seal", [seal_singly, sealer_under("partition=a"), sealer_under("files")])
def test_manifests_are_written_anew_only_where_keys_are_sealed_in_them(
    t16: Path, table: IcebergTable, seal: Any
) -> None:
    rows, names_before = all_rows(table), set(files(t16))
    table = reseal(table, seal)
    assert all_rows(table) == rows
    before, keys_before, files_before = document(t16), file_keys(table), files(t16)
    planned = rotate_table(table, "kek", new_master_key_id="keyB", dry_run=True)
    assert files(t16) == files_before
    kms = SampleKms()

    done = rotate_table(reopen(t16, kms), "kek", new_master_key_id="keyB")

    assert done.kms_calls == len(kms.calls) == planned.kms_calls
    assert (done.entries, done.manifest_lists, done.manifests) == (0, 3, 3)
    assert done.keks == (0 if seal is seal_singly else 2) == done.new_keks
    if seal is seal_singly:  # three lists, five files
        expected = {("unwrap", "keyA"): 8, ("wrap", "keyB"): 8}
    else:
        expected = {("unwrap", "keyA"): 2, ("wrap", "keyB"): 2}
    assert Counter(kms.calls) == Counter({**expected, ("unwrap", "keyB"): 1})
    assert with_planned_values(done, planned) == planned
    without = reopen(t16, Refusing("keyA"))
    assert all_rows(without) == rows
    keys_after = file_keys(without)
    assert {name: plain for name, (_, plain) in keys_after.items()} == {
        name: plain for name, (_, plain) in keys_before.items()
    }
    assert not {sealed for sealed, _ in keys_after.values()} & {
        sealed for sealed, _ in keys_before.values()
    }
    after = document(t16)
    assert not keks(after).keys() & keks(before).keys()
    but_list = [
        {k: v for k, v in snapshot.items() if k != "manifest-list"}
        for snapshot in after["snapshots"]
    ]
    assert but_list == [
        {k: v for k, v in snapshot.items() if k != "manifest-list"}
        for snapshot in before["snapshots"]
    ]
    # Three manifests and three lists, and nothing of what was there changed.
    assert len(set(files(t16)) - set(files_before)) == 3 + 3 + 1
    assert {k: v for k, v in files(t16).items() if k in names_before and "hint" not in k} == {
        k: v for k, v in files_before.items() if k in names_before and "hint" not in k
    }
    if seal is seal_singly:
        with pytest.raises(ValueError, match='"kek"'):
            rotate_table(without, "mek")


@pytest.mark.parametrize("scope", ["partition=a", "files"])
def test_manifest_lists_come_away_from_keks_that_are_for_some_files(
    scope: str, t16: Path, table: IcebergTable
) -> None:
    """Java seals a list under whichever KEK it finds; who shreds that one would lose a snapshot."""

    def seal(table: IcebergTable) -> Any:
        (made,) = table.walk.resolver.masters.new_keks("keyA", 16, [scope])
        return made, made, [made.key.entry()]

    rows, table = all_rows(table), reseal(table, seal)
    planned, kms = rotate_table(table, "kek", dry_run=True), SampleKms()
    done = rotate_table(reopen(t16, kms), "kek")
    assert (done.keks, done.new_keks, done.kms_calls) == (1, 2, 4)
    assert with_planned_values(done, planned) == planned
    assert len(kms.calls) == 4
    new = {kek["properties"].get(SCOPE, ""): id_ for id_, kek in keks(document(t16)).items()}
    assert new.keys() == {"", scope}
    by = {key["encrypted-by-id"] for key in document(t16)["encryption-keys"]}
    assert by == {"keyA", new[""]}
    (sealed,) = {row["sealed_by"] for row in done.table.files().to_pylist() if row["records"]}
    assert sealed == new[scope]
    assert all_rows(reopen(t16)) == rows


# --- a key store ---------------------------------------------------------------------------------


def move_kek_to_store(folder: Path, table: IcebergTable) -> Store:
    """Move the table's KEK to a store."""
    (id_,) = table.metadata.kek_ids()
    store = Store(IcebergKey.of(table.metadata.keys[id_]))
    rest = [key for key in table.metadata.keys.values() if key.id != id_]
    table.versions.commit(table.place, table.metadata.with_keys(rest))
    assert reopen(folder, key_store=store).scan().num_rows == 137
    return store


def test_mek_of_a_store_needs_no_version_of_the_table(t16: Path, table: IcebergTable) -> None:
    store = move_kek_to_store(t16, table)
    before, held = files(t16), store.keys()
    kms = SampleKms()
    done = rotate_table(reopen(t16, kms, key_store=store), "mek")
    assert files(t16) == before
    assert (done.committed, done.keks, kms.calls) == (
        False, 1, [("unwrap", "keyA"), ("wrap", "keyA"), ("unwrap", "keyA")]
    )  # fmt: skip
    assert store.keys().keys() == held.keys()
    assert store.keys() != held
    assert reopen(t16, key_store=store).scan().num_rows == 137

    done = rotate_table(reopen(t16, key_store=store), "mek", new_master_key_id="keyB")
    assert done.committed
    assert document(t16)["properties"]["encryption.key-id"] == "keyB"
    assert reopen(t16, Refusing("keyA"), key_store=store).scan().num_rows == 137
    old = t16 / "metadata" / "v2.metadata.json"  # a store has no versions
    old_table = open_table(old, SampleKms(), location_map=both(t16), key_store=store)
    assert old_table.scan().num_rows == 137


def test_kek_of_a_store_is_for_the_newest_version_and_the_old_one_for_older_ones(
    t16: Path, table: IcebergTable
) -> None:
    store = move_kek_to_store(t16, table)
    (old,) = store.keys()
    done = rotate_table(reopen(t16, key_store=store), "kek")
    (new,) = (key for key in store.keys().values() if key.id != old)
    before = open_table(
        t16 / "metadata" / "v2.metadata.json", SampleKms(), location_map=both(t16), key_store=store
    )
    assert before.scan().num_rows == 137
    store.replace([], [old])  # no more than the older versions are under it
    assert new.properties["modcrypt.table"] == table.metadata.uuid
    assert (done.keks, done.new_keks, done.kms_calls) == (1, 1, 3)
    assert not document(t16)["encryption-keys"][0].get("properties")
    assert reopen(t16, key_store=store).scan().num_rows == 137


def test_a_rotation_that_fails_leaves_the_store_as_it_was(t16: Path, table: IcebergTable) -> None:
    store = move_kek_to_store(t16, table)
    before = store.keys()
    for what in ("mek", "kek"):
        with pytest.raises(mc.errors.KeyAccessDeniedError):
            rotate_table(
                reopen(t16, Refusing("keyB"), key_store=store), what, new_master_key_id="keyB"
            )  # fmt: skip
        assert store.keys() == before


CASES = (
    (KeyPolicy(kek_per="day"), None),
    (KeyPolicy(kek_per="partition"), None),
    (KeyPolicy(kek_per="files", files=1), None),
    (KeyPolicy(kek_per="files", wrapping="single"), None),
    (KeyPolicy(kek_per="table", store="key-store"), SqliteKeyStore),
    (KeyPolicy(kek_per="partition", store="key-store"), FileKeyStore),
    (KeyPolicy(kek_per="files", files=2, store="key-store"), SqliteKeyStore),
)


@pytest.mark.parametrize(
    ("policy", "kind"), CASES, ids=lambda value: getattr(value, "kek_per", None)
)
def test_tables_of_every_policy(policy: KeyPolicy, kind: Any, tmp_path: Path) -> None:
    store = None if kind is None else kind.create(tmp_path / "store")
    schema = pa.schema([("id", pa.int64()), ("kind", pa.string())])
    rows = pa.table({"id": range(6), "kind": ["a", "b", "c"] * 2}, schema=schema)
    spec = PartitionSpec(
        PartitionField(source_id=2, field_id=1000, transform=IdentityTransform(), name="kind")
    )
    table = make_table(
        tmp_path / "table", schema, partition_spec=spec, policy=policy, key_store=store
    )
    table = append(append(table, rows), rows)
    before = table.walk.resolver.keks(table.metadata)
    old = set(before)

    def open_now(*refused: str) -> IcebergTable:
        return open_table(tmp_path / "table", Refusing(*refused), key_store=store)

    done = rotate_table(open_now(), "kek", new_master_key_id="keyB")
    every = done.table.walk.resolver.keks(done.table.metadata)
    new = {id_: kek for id_, kek in every.items() if id_ not in old}
    assert old & every.keys() == (old if policy.store == "key-store" else set())
    scopes = [Counter(kek.scope for kek in some.values()) for some in (new, before)]
    assert scopes[0] == scopes[1]
    assert done.keks == len(old)
    assert open_now("keyA").scan().num_rows == 12
    table = append(open_now("keyA"), rows)
    if policy.wrapping == "double":
        count = rotate_table(open_now("keyB"), "mek", new_master_key_id="keyA", dry_run=True).keks
        done = rotate_table(open_now(), "mek", new_master_key_id="keyA")
        assert done.left == ()
        assert done.keks == count == len(table.walk.resolver.keks(table.metadata))
        assert open_now("keyB").scan().num_rows == 18
    done = rotate_table(open_now(), "dek")
    assert done.data_files == 9
    assert append(done.table, rows).scan().num_rows == 24
    gone = prune_keys(expire_history(open_now()).table)
    assert old.isdisjoint(gone.table.walk.resolver.keks(gone.table.metadata))
    assert not verify_table(gone.table).orphans
    assert gone.table.scan().num_rows == 24
    assert verify_table(gone.table).ok


# --- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["mek", "kek"])
def test_what_can_not_be_rotated_is_refused_before_anything_changes(
    what: Any, t16: Path, kms: SampleKms
) -> None:
    before = files(t16)
    bound = reopen(t16, kms, master_key_ids=["keyA"])
    with pytest.raises(ValueError, match="master_key_ids"):
        rotate_table(bound, what, new_master_key_id="keyB")
    with pytest.raises(mc.errors.KeyRetrievalError):
        rotate_table(reopen(t16, kms), what, new_master_key_id="missing")
    with pytest.raises(ValueError, match="mek"):
        rotate_table(bound, "all")  # type: ignore[arg-type]
    assert files(t16) == before


def test_a_kek_that_somebody_smuggled_in_is_not_laundered(
    t16: Path, table: IcebergTable, kms: SampleKms
) -> None:
    """It is under a master key that the table is not under, and would be under the right one."""
    other = table.walk.resolver.masters.new_keks("keyB", 16, [""])[0]
    table.versions.commit(
        table.place, table.metadata.with_keys([other.key.entry(), *table.metadata.keys.values()])
    )
    before = files(t16)
    with pytest.raises(mc.errors.KeyMaterialError):
        rotate_table(reopen(t16, kms), "mek")
    assert files(t16) == before


@pytest.mark.parametrize("what", ["mek", "kek"])
def test_a_dry_run_changes_nothing_and_reports_what_would_be_done(
    what: Any, t16: Path, table: IcebergTable, kms: SampleKms
) -> None:
    before = files(t16)
    planned = rotate_table(table, what, new_master_key_id="keyB", dry_run=True)
    assert (files(t16), kms.calls) == (before, [])
    assert planned.table is table
    done = rotate_table(table, what, new_master_key_id="keyB")
    assert with_planned_values(done, planned) == planned
    assert done.older_versions == ("wh:/t16/metadata/v1.metadata.json",)
    assert "expire_history" in str(done.advice)
    assert planned.advice is None
    reported = json.loads(json.dumps(done.fields()))
    assert reported["keks"] == 1
    assert "table" not in reported


def test_nothing_that_is_shown_has_a_key(t16: Path, table: IcebergTable) -> None:
    def show(thing: object) -> str:
        return repr(thing) + json.dumps(getattr(thing, "fields", dict)())

    old = plain_kek(next(iter(keks(document(t16)).values())))
    done = rotate_table(table, "mek", new_master_key_id="keyB")
    text = show(done) + show(rotate_table(done.table, "kek"))
    new = plain_kek(next(iter(keks(document(t16)).values())))
    deks = [parse_key_metadata(unwrap_entry(document(t16), s["key-id"])).key
            for s in document(t16)["snapshots"]]  # fmt: skip
    for key in (old, new, *deks):
        for spelt in (key.hex(), base64.b64encode(key).decode(), repr(key)[2:-1]):
            assert spelt not in text


# --- others who commit meanwhile -----------------------------------------------------------------


@pytest.mark.parametrize("what", ["mek", "kek"])
def test_what_somebody_else_commits_meanwhile_is_kept_and_rotated(
    what: Any, t16: Path, table: IcebergTable, kms: SampleKms, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(committing, "FIRST_PAUSE", 0)

    def add_snapshot() -> None:
        """Commit a snapshot with the manifests of the last one, sealed under the present KEK."""
        now = reopen(t16)
        last = now.metadata.snapshots[-1]
        entry = now.metadata.keys[last.key_id or ""]
        resolver: KeyResolver = now.walk.resolver
        kek = resolver.open_key(resolver.find(entry.encrypted_by, now.metadata))
        number, before = last.sequence_number + 1, last.manifest_list
        avro = read_avro(now.walk.read(before, resolver.decrypt_entry(entry, now.metadata)), before)
        header = {**avro.metadata, "snapshot-id": str(last.id + 1), "sequence-number": str(number)}
        location = f"{before.rpartition('/')[0]}/other-{uuid.uuid4()}.avro"
        data = write_avro(avro.schema, avro.records, header)
        keys = write_ags1(now.walk.locations, location, data, 16)
        new: EncryptedKey = resolver.encrypt_entry(keys, kek)
        reported = {**last.document, "snapshot-id": last.id + 1, "sequence-number": number,
                "parent-snapshot-id": last.id, "key-id": new.id,
                "manifest-list": location}  # fmt: skip
        documents = [*(snapshot.document for snapshot in now.metadata.snapshots), reported]
        now.versions.commit(now.place, now.metadata.with_keys(
            [*now.metadata.keys.values(), new], snapshots=documents,
            last_sequence_number=number, current_snapshot_id=last.id + 1,
            refs={"main": {"snapshot-id": last.id + 1, "type": "branch"}},
        ))  # fmt: skip

    old_kek = set(keks(document(t16)))
    slow = with_rival_commits(table, add_snapshot, 2)
    done = rotate_table(slow, what, new_master_key_id="keyB")
    metadata = document(t16)
    ids = [snapshot["snapshot-id"] for snapshot in metadata["snapshots"]]
    assert ids == [*SNAPSHOTS, 1004, 1005]
    assert len(manifest_lists(t16)) == 5
    # Nobody asked the key service for anything twice, and one wrap was proved.
    asked = [("unwrap", "keyA"), ("wrap", "keyB"), ("unwrap", "keyB")]
    assert Counter(kms.calls) == Counter(asked)
    assert done.table.scan(1005).num_rows == 137
    assert (set(keks(metadata)) == old_kek) == (what == "mek")
    assert reopen(t16, Refusing("keyA")).scan(1005).num_rows == 137

    before = files(t16)
    with pytest.raises(mc.errors.CommitConflictError):
        rotate_table(with_rival_commits(done.table, add_snapshot, 99), what)
    new = {name for name in files(t16) if name not in before and "/other-" not in name}
    assert len(new) == committing.ATTEMPTS  # the other's commits
    assert reopen(t16).scan().num_rows == 137


def test_files_that_a_first_attempt_wrote_for_nothing_are_removed(
    t16: Path, table: IcebergTable
) -> None:
    """Somebody else has rotated the same: all manifests are others by now."""
    table, rows = reseal(table, sealer_under("partition=a")), all_rows(table)
    before = files(t16)
    slow = with_rival_commits(table, lambda: rotate_table(reopen(t16), "kek"), 1)
    done = rotate_table(slow, "kek")
    new = [path for path in files(t16) if path not in before and path.endswith(".avro")]
    assert len(new) == 2 * (3 + 3)  # the other's and ours
    assert all_rows(done.table) == rows


def test_singly_wrapped_keys_are_asked_for_once_however_often_the_commit_is_tried(
    t16: Path, table: IcebergTable
) -> None:
    reseal(table, seal_singly)

    def set_property() -> None:
        now = reopen(t16)
        reported = {**now.metadata.properties, "x": now.place.name}
        now.versions.commit(now.place, now.metadata.with_members(properties=reported))

    kms = SampleKms()
    rotate_table(with_rival_commits(reopen(t16, kms), set_property, 2), "kek")
    assert Counter(kms.calls) == Counter({("unwrap", "keyA"): 9, ("wrap", "keyA"): 8})
    assert document(t16)["properties"]["x"] == "v3.metadata.json"


def test_keks_that_come_into_a_store_meanwhile_are_moved_too(
    t16: Path, table: IcebergTable
) -> None:
    store = move_kek_to_store(t16, table)
    made = table.walk.resolver.masters.new_keks("keyA", 16, ["late"])[0].key

    slow = with_rival_commits(reopen(t16, key_store=store), lambda: store.replace([made]), 1)
    done = rotate_table(slow, "mek", new_master_key_id="keyB")
    assert {key.master_key_id for key in store.keys().values()} == {"keyB"}
    assert (done.keks, len(store.keys())) == (2, 2)


def test_a_store_that_fails_after_the_commit_is_reported_and_done_the_next_time(
    t16: Path, table: IcebergTable
) -> None:
    store = move_kek_to_store(t16, table)
    late = table.walk.resolver.masters.new_keks("keyA", 16, ["late"])[0].key

    class Failing(Store):
        def replace(self, keys: Any, drop: Any = ()) -> None:
            if late.id in self.held:
                raise OSError("full")
            super().replace(keys, drop)

    failing = Failing(*store.keys().values())
    slow = with_rival_commits(
        reopen(t16, key_store=failing), lambda: failing.held.update({late.id: late}), 1
    )
    done = rotate_table(slow, "mek", new_master_key_id="keyB")
    assert done.committed
    assert done.left == (late.id,)
    assert "rotate again" in str(done.advice)
    assert reopen(t16, key_store=failing).scan().num_rows == 137
    again = Store(*failing.held.values())
    done = rotate_table(reopen(t16, key_store=again), "mek")
    assert done.left == ()
    assert {key.master_key_id for key in again.keys().values()} == {"keyB"}
    assert reopen(t16, Refusing("keyA"), key_store=again).scan().num_rows == 137


# --- catalogs and stores of files ---------------------------------------------------------------


def test_a_table_of_a_catalog(tmp_path: Path, kms: SampleKms) -> None:
    catalog = SqlCatalog(
        "lake", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}/lake"
    )
    catalog.create_namespace("n")
    rows = pa.table({"id": range(5)})
    table = make_table(None, rows.schema, kms, catalog=catalog, identifier="n.t")
    append(append(table, rows), rows)
    table = load_table(catalog, "n.t", kms, master_key_ids=["keyA", "keyB"])
    for what in ("mek", "kek", "dek"):
        new_id = None if what == "dek" else "keyB"
        rotate_table(table, what, new_master_key_id=new_id)
        assert load_table(catalog, "n.t", Refusing("keyA")).scan().num_rows == 10
    stale = rotate_table(table, "kek", dry_run=True).table
    assert stale is table
    done = expire_history(table)
    assert load_table(catalog, "n.t", Refusing("keyA")).scan().num_rows == 10
    folder = Path(done.table.place.path).parent
    assert [file.name for file in folder.glob("*.json")] == [Path(done.table.place.path).name]
    assert len(list(folder.parent.rglob("*.parquet"))) == 2
    assert verify_table(done.table).ok
    catalog.close()


def test_a_table_in_a_store(t16: Path) -> None:
    store = MemoryFileSystem()
    store.store.clear()
    store.put(str(t16), "/wh/t16", recursive=True)
    where = {"wh:/t16": "/wh/t16", "/warehouse/t16": "/wh/t16"}

    def open_now(*refused: str) -> IcebergTable:
        return open_table("/wh/t16", Refusing(*refused), location_map=where, filesystem=store)

    for what in ("mek", "kek", "dek"):
        new_id = None if what == "dek" else "keyB"
        rotate_table(open_now(), what, new_master_key_id=new_id)
        assert open_now("keyA").scan().num_rows == 137
    done = expire_history(open_now())
    assert done.left == ()
    assert open_now("keyA").scan().num_rows == 137
    assert [path for path in store.find("/wh/t16") if path.endswith(".json")] == [
        "/wh/t16/metadata/v5.metadata.json"
    ]
    store.store.clear()


# --- Iceberg's Java ------------------------------------------------------------------------------


def test_java_reads_rotated_tables_and_goes_on_with_them(t16: Path, java: Judge) -> None:
    where = {**both(t16), str(t16): str(t16)}  # as which Java names what it writes
    table = open_table(t16, SampleKms(), location_map=where)
    rows = {
        snapshot: java.read(table.place.path, where, snapshot=snapshot) for snapshot in SNAPSHOTS
    }
    for what, new_id in (("mek", "keyB"), ("kek", None), ("kek", "keyA"), ("mek", None)):
        table = rotate_table(table, what, new_master_key_id=new_id).table  # type: ignore[arg-type]
        for snapshot in SNAPSHOTS:
            assert java.read(table.place.path, where, snapshot=snapshot) == rows[snapshot]
    added = {"id": 7, "name": "seven", "salary": 1.5}
    java.commit(table.place.path, {"do": "append", "rows": [added]}, location_map=where)
    assert added in table.refreshed().scan().to_pylist()
    # Java goes on with the KEK that was made here, until it is 730 days old.
    assert len(keks(document(t16))) == 1
    table = rotate_table(table, "kek", new_master_key_id="keyB").table
    assert added in java.read(table.place.path, where)


@each_case("dry_run", [True, False])
@each_case("what", ["mek", "kek"])
@each_case("lost", ["list", "kek"])
def test_a_key_that_is_lost_is_reported(
    t16: Path, table: IcebergTable, what: Any, lost: str, dry_run: bool
) -> None:
    """Iceberg's Java 1.11 commits snapshots whose keys it doesn't keep."""
    metadata = table.metadata
    id_ = metadata.snapshots[0].key_id or ""
    keys = [key for key in metadata.keys.values() if key.id != id_]
    if lost == "kek":
        id_ = "nowhere"
        keys = [*keys, replace(metadata.keys[metadata.snapshots[0].key_id], encrypted_by=id_)]  # type: ignore[index]
    table.versions.commit(table.place, metadata.with_keys(keys))
    table = reopen(t16, key_store=Store())
    if (what, lost) == ("kek", "kek"):
        with pytest.raises(mc.errors.KeyNotFoundError, match="nowhere"):
            rotate_table(table, what)
        return
    if not dry_run:
        with pytest.raises(mc.errors.KeyNotFoundError, match=r"\): restore them with repair_table"):
            rotate_table(table, what)
        assert table.refreshed().place == table.place
    done = rotate_table(table, what, dry_run=True)
    assert done.lost == (id_,)
    assert f"1 key that snapshots need cannot be found ({id_})" in str(done.advice)
    assert done.fields()["lost"] == [id_]
