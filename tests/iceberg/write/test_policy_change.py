"""Another key policy for a table that is there: what changes, what stays, what is refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import modcrypt as mc
from modcrypt.iceberg import (
    FileKeyStore,
    IcebergTable,
    KeyPolicy,
    expire_history,
    open_table,
    prune_keys,
    rotate_table,
    set_policy,
    verify_table,
)
from modcrypt.iceberg.rotate import expiry
from modcrypt.iceberg.write import commit as committing
from tests.support.cases import each_case, one_in
from tests.support.folder_contents import files
from tests.support.iceberg.by_hand import document
from tests.support.iceberg.cli_runs import Run, error_line, lines, run
from tests.support.iceberg.concurrent_commits import with_rival_commits
from tests.support.iceberg.java_judge import Judge, plain_rows
from tests.support.iceberg.made_tables import make_table
from tests.support.iceberg.partitioned_table import ROWS, two_appends
from tests.support.iceberg.sample_kms import SampleKms
from tests.support.iceberg.shared_table import both

__all__ = ["run"]  # a fixture

DAILY = KeyPolicy(kek_per="day", kek_lifetime_days=30)


def scopes(table: IcebergTable) -> Counter[str]:
    keks = table.walk.resolver.keks(table.metadata).values()
    return Counter(kek.scope.partition("=2")[0] for kek in keks)


def sealing_scopes(table: IcebergTable) -> set[str | None]:
    """Return what seals the key metadata of data files: scopes of KEKs or a master key's id."""
    keks = table.walk.resolver.keks(table.metadata)
    by = [file["sealed_by"] for file in table.files().to_pylist() if file["kind"] == "data"]
    return {keks[id_].scope if id_ in keks else id_ for id_ in by}


def test_nothing_changes_but_properties_and_no_key_is_asked(
    t16: Path, table: IcebergTable, kms: SampleKms
) -> None:
    before, there = document(t16), files(t16)
    changed = set_policy(table, DAILY)
    assert kms.calls == []
    now = document(t16)
    assert {name for name in now if now[name] != before.get(name)} == {
        "properties", "last-updated-ms", "metadata-log",
    }  # fmt: skip
    assert now["properties"] == {**before["properties"], **DAILY.properties()}
    names = ("metadata/v2.metadata.json", "metadata/version-hint.text")
    assert {name for name in files(t16) if files(t16)[name] != there.get(name)} <= set(names)
    assert KeyPolicy.of(changed.metadata) == DAILY
    assert changed.scan().num_rows == 137
    again = set_policy(changed, DAILY)
    assert again.place == changed.place == table.refreshed().place


AFTER: list[tuple[KeyPolicy, dict[str, int], set[str | None]]] = [
    (KeyPolicy(), {"": 1}, {None}),
    (DAILY, {"day": 1}, {None}),
    (
        KeyPolicy(kek_per="partition"),
        {"": 1, "partition=part=x": 1, "partition=part=y": 1},
        {"partition=part=x", "partition=part=y"},
    ),
    (KeyPolicy(kek_per="files", files=3), {"": 1, "files": 2}, {"files"}),
    (KeyPolicy(kek_per="files", wrapping="single"), {}, {"keyA"}),
]


@each_case(("policy", "keks", "by"), AFTER, quick=one_in(2))
@each_case("before", [KeyPolicy(), KeyPolicy(kek_per="partition")])
def test_what_is_there_stays_until_new_data_keys_bring_it_under_the_policy(
    tmp_path: Path, before: KeyPolicy, policy: KeyPolicy, keks: dict[str, int], by: set[str | None]
) -> None:
    table = two_appends(tmp_path / "t", before)
    old = sealing_scopes(table)
    table = set_policy(table, policy)
    assert sealing_scopes(open_table(tmp_path / "t", SampleKms())) == old
    table = table.append(ROWS)
    assert sealing_scopes(table) == old | by
    table = rotate_table(table, "dek").table
    assert sealing_scopes(table) == by
    table = prune_keys(expire_history(table).table).table
    assert scopes(table) == keks
    assert verify_table(table).ok
    table = open_table(tmp_path / "t", SampleKms())
    assert plain_rows(table.scan()) == plain_rows(pa.concat_tables([ROWS] * 3))


def test_keks_go_to_a_key_store_from_now_on(tmp_path: Path) -> None:
    table = two_appends(tmp_path / "t", KeyPolicy())
    stored, there = KeyPolicy(store="key-store"), files(tmp_path)
    with pytest.raises(ValueError, match="key_store"):
        set_policy(table, stored)
    assert files(tmp_path) == there
    store = FileKeyStore.create(tmp_path / "keks.json")
    table = set_policy(open_table(tmp_path / "t", SampleKms(), key_store=store), stored)
    table = prune_keys(expire_history(table.append(ROWS)).table).table
    assert table.metadata.kek_ids() == []
    assert len(store.keys()) == 1
    assert table.scan().num_rows == 9


class WithoutKeyA(SampleKms):
    """The key service when the old master key is gone."""

    def unwrap(self, wrapped: str, master_key_id: str, *, aad: bytes = b"") -> bytes:
        assert master_key_id != "keyA"
        return super().unwrap(wrapped, master_key_id, aad=aad)


@pytest.mark.parametrize("between", [[], [KeyPolicy(wrapping="single")]])
def test_keys_of_files_that_the_master_key_wraps_are_not_forgotten(
    tmp_path: Path, between: list[KeyPolicy]
) -> None:
    """Their manifests live on, when no entry of `encryption-keys` is in single wrapping."""
    table = two_appends(tmp_path / "t", KeyPolicy(kek_per="files", wrapping="single"))
    for policy in (*between, KeyPolicy()):
        table = set_policy(table, policy)
    table = expire_history(table.append(ROWS)).table
    assert sealing_scopes(table) == {"keyA", None}
    for dry_run in (True, False):
        with pytest.raises(ValueError, match="without KEKs"):
            rotate_table(table, "mek", new_master_key_id="keyB", dry_run=dry_run)
    done = rotate_table(table, "kek", new_master_key_id="keyB")
    assert done.manifests == 2
    assert open_table(done.table.place.path, WithoutKeyA()).scan().num_rows == 9
    table = expire_history(rotate_table(done.table, "dek").table).table
    assert rotate_table(table, "mek").committed
    assert plain_rows(table.scan()) == plain_rows(pa.concat_tables([ROWS] * 3))


@pytest.mark.parametrize("moved", [False, True])
@pytest.mark.parametrize("kind", ["mek", "kek"])
def test_keks_in_a_store_that_was_not_given_keep_a_rotation_up(
    tmp_path: Path, kind: Any, moved: bool
) -> None:
    """They would stay under the old master key, even if only manifests list them."""
    store = FileKeyStore.create(tmp_path / "keks.json")
    given = KeyPolicy(kek_per="partition", store="key-store")
    table = two_appends(tmp_path / "t", given, store)
    if moved:
        table = expire_history(set_policy(table, KeyPolicy()).append(ROWS)).table
    there = files(tmp_path)
    for dry_run in (True, False):
        with pytest.raises(mc.errors.KeyNotFoundError, match="no key_store was given"):
            rotate_table(
                open_table(tmp_path / "t", SampleKms()), kind, new_master_key_id="keyB",
                dry_run=dry_run,
            )  # fmt: skip
    assert files(tmp_path) == there
    done = rotate_table(table, kind, new_master_key_id="keyB").table
    found = open_table(done.place.path, WithoutKeyA(), key_store=store)
    assert found.scan().num_rows == (9 if moved else 6)


def test_keks_that_an_expiry_is_dropping_are_not_taken_up_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A policy goes back to the key store after the commit, before the KEKs go."""
    store = FileKeyStore.create(tmp_path / "keks.json")
    stored = KeyPolicy(store="key-store")
    table = set_policy(two_appends(tmp_path / "t", stored, store), KeyPolicy())
    table = rotate_table(table.append(ROWS), "dek").table
    real = expiry._drop_keks

    def later(expired: IcebergTable, *arguments: Any, **options: Any) -> tuple[str, ...]:
        set_policy(expired, stored).append(ROWS)
        return real(expired, *arguments, **options)

    monkeypatch.setattr(expiry, "_drop_keks", later)
    before = set(store.keys())
    expire_history(table)
    assert len(store.keys()) == 1
    assert before.isdisjoint(store.keys())
    assert open_table(tmp_path / "t", SampleKms(), key_store=store).scan().num_rows == 12


def test_a_policy_that_somebody_else_has_set_is_not_replaced(
    table: IcebergTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(committing, "FIRST_PAUSE", 0)
    files = KeyPolicy(kek_per="files")
    with pytest.raises(mc.errors.CommitConflictError, match="policy"):
        set_policy(with_rival_commits(table, lambda: set_policy(table, files), 1), DAILY)
    with pytest.raises(mc.errors.CommitConflictError, match="policy"):
        set_policy(table, DAILY)  # which does not know of it
    now = table.refreshed()
    assert KeyPolicy.of(now.metadata) == files
    assert set_policy(table, files).place == now.place
    rows = now.scan().slice(0, 1)
    changed = set_policy(with_rival_commits(now, lambda: now.append(rows), 2), DAILY)
    assert changed.scan().num_rows == 139
    assert KeyPolicy.of(changed.metadata) == DAILY


def test_a_table_without_keys_or_of_a_later_policy_is_left_alone(table: IcebergTable) -> None:
    def with_properties(change: Callable[[dict[str, str]], object]) -> IcebergTable:
        properties = dict(table.metadata.properties)
        change(properties)
        return replace(table, metadata=table.metadata.with_members(properties=properties))

    with pytest.raises(mc.errors.PlaintextError):
        set_policy(with_properties(lambda properties: properties.pop("encryption.key-id")), DAILY)
    later = {"modcrypt.encryption.kek-per": "row"}
    with pytest.raises(mc.errors.FormatError):
        set_policy(with_properties(lambda properties: properties.update(later)), DAILY)
    assert table.refreshed().place == table.place


def test_java_goes_on_with_a_table_whose_policy_was_set(java: Judge, tmp_path: Path) -> None:
    made = make_table(tmp_path / "t")
    table = set_policy(made.append(pa.table({"id": [1]})), DAILY).append(pa.table({"id": [2]}))
    assert scopes(table) == {"": 1, "day": 1}
    after = java.commit(table.place.path, {"do": "append", "rows": [{"id": 3}]})
    assert sorted(row["id"] for row in java.read(after)) == [1, 2, 3]
    assert open_table(after, SampleKms()).scan().num_rows == 3


# --- on the command line -------------------------------------------------------------------------


@pytest.fixture
def args(t16: Path) -> list[str]:
    """The shared table as an argument, without a key service: none is needed."""
    return [*(f"--location-map={old}={new}" for old, new in both(t16).items()), str(t16)]


def test_the_command_shows_and_changes_it(run: Run, args: list[str], tmp_path: Path) -> None:
    before = {
        "schema": "modcrypt.iceberg.policy/1", "kek_per": "table", "files": 1000,
        "wrapping": "double", "kek_lifetime_days": 730, "store": "table",
    }  # fmt: skip

    def policy(*options: object) -> dict[str, Any]:
        (found,) = lines(run("admin", "policy", *options, *args, "--json"))
        found.pop("metadata")
        return found

    assert policy() == {**before, "changed": False}
    assert policy("--kek-per", "day") == {**before, "kek_per": "day", "changed": True}
    said = run("admin", "policy", "--kek-lifetime", 30, *args).stdout
    assert said.split() == [
        "kek", "per", "day", "files", "1000", "wrapping", "double", "kek", "lifetime", "days", "30",
        "store", "table", "changed:", str(tmp_path / "t16/metadata/v3.metadata.json"),
    ]  # fmt: skip
    stored = ("--keks-in", "key-store", "--key-store", "keks.db")
    assert policy(*stored)["store"] == "key-store"
    assert (tmp_path / "keks.db").exists()
    assert policy("--kek-per", "files", "--files-per-kek", 5)["files"] == 5
    assert not policy("--files-per-kek", 5)["changed"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--keks-in", "key-store"), "--key-store"),
        (("--files-per-kek", "5"), "--kek-per files"),
        (("--wrapping", "single", "--kek-per", "day"), "no KEKs"),
        (("--kek-lifetime", "99999"), "36500"),
        (("--table-uuid", "x", "--kek-per", "day"), "not x"),
    ],
)
def test_what_does_not_fit_is_refused_and_changes_nothing(
    run: Run, args: list[str], t16: Path, options: tuple[str, ...], said: str
) -> None:
    before = files(t16)
    code = 1 if "--table-uuid" in options else 2
    assert said in error_line(run("admin", "policy", *options, *args, code=code))
    assert files(t16) == before
