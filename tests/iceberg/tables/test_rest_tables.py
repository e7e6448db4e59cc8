"""Tables of a REST catalog whose server is Iceberg's own Java."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import requests
from pyiceberg.catalog.rest import Capability, RestCatalog

from modcrypt import SigningKey
from modcrypt.errors import (
    CommitConflictError,
    FormatError,
    IntegrityError,
    LimitError,
    UnsupportedFormatError,
)
from modcrypt.iceberg import (
    IcebergTable,
    KeyPolicy,
    expire_history,
    load_table,
    open_table,
    repair_table,
    rotate_catalog,
    rotate_table,
    seal_table,
    set_policy,
    verify_table,
)
from modcrypt.iceberg.rotate import table_rotation
from modcrypt.iceberg.tables import rest_requests, rest_versions
from modcrypt.iceberg.tables.catalogs import list_tables, parse_identifier
from modcrypt.iceberg.tables.rest_versions import RestVersions
from modcrypt.iceberg.write import commit as commits
from tests.support.cases import each_case
from tests.support.iceberg.catalog_tables import CATALOG_CHECKS, check_encryption
from tests.support.iceberg.cli_runs import Run, check_changes, check_seals, run
from tests.support.iceberg.made_tables import make_table
from tests.support.iceberg.rest_catalog import RestTable
from tests.support.iceberg.sample_kms import SampleKms
from tests.support.iceberg.table_changes import CHANGES, ids, rows

__all__ = ["run"]  # a fixture

pytestmark = pytest.mark.slow  # a server takes seconds to start


@pytest.fixture
def rest(server: str) -> RestTable:
    return RestTable.make(server)


Before: TypeAlias = Callable[[Callable[[], object]], None]


@pytest.fixture
def before_commit(monkeypatch: pytest.MonkeyPatch) -> Before:
    """Act once, when the next request to commit is about to be sent."""
    real = rest_requests.commit

    def set_act(act: Callable[[], object]) -> None:
        def commit(*arguments: Any) -> Any:
            monkeypatch.setattr(rest_requests, "commit", real)
            act()
            return real(*arguments)

        monkeypatch.setattr(rest_requests, "commit", commit)

    return set_act


@pytest.mark.parametrize("check", CATALOG_CHECKS)
def test_what_holds_in_every_catalog(rest: RestTable, check: Any) -> None:
    check(rest)


def test_every_change_of_a_folders_table(rest: RestTable) -> None:
    rest.load().append(rows(1)).append(rows(2))
    for name, change in CHANGES.items():
        table = change(rest.load())
        again = rest.load()
        assert again.metadata.document == table.metadata.document, name
        assert again.place.path == table.place.path, name
        assert ids(again) == [1, 2, 9], name
        assert verify_table(again).ok, name
    assert again.metadata.master_key_id == "keyB"
    assert again.snapshots().num_rows == 1


def test_a_plaintext_table_is_encrypted_into_a_catalog(rest: RestTable, tmp_path: Path) -> None:
    check_encryption(rest, tmp_path)


def test_names_are_taken_once(rest: RestTable) -> None:
    with pytest.raises(FileExistsError, match="already has a table"):
        make_table(None, catalog=rest.catalog, identifier=rest.name)
    with pytest.raises(ValueError, match="the catalog has no table"):
        RestTable(rest.uri, "nowhere.orders").load()
    with pytest.raises(ValueError, match="no namespace"):
        make_table(None, catalog=rest.catalog, identifier="nowhere.orders")


def test_readers_take_the_metadata_from_the_server(
    rest: RestTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = rest.load().append(rows(1))
    monkeypatch.setattr("modcrypt.iceberg.format.table_versions.read_metadata", None)
    assert ids(rest.load()) == [1]
    assert ids(table.append(rows(2))) == [1, 2]


def test_the_command_line_opens_a_catalog_by_its_uri(
    rest: RestTable, run: Run, tmp_path: Path
) -> None:
    check_changes(run, tmp_path, rest.uri, rest)
    assert rest.load().metadata.master_key_id == "keyB"


def test_seals(rest: RestTable, run: Run, tmp_path: Path) -> None:
    check_seals(run, tmp_path, rest.uri, rest.name)


def test_the_unsealed_changes_of_another_writer_are_not_sealed(
    rest: RestTable, before_commit: Before
) -> None:
    """The server has put them into the version that would be sealed."""
    writer = SigningKey.generate()
    seal_table(rest.load().append(rows(1)), writer)
    table = rest.load(signing_key=writer, signed_by=[writer.verifier])
    before_commit(lambda: rotate_table(rest.load(), "kek"))
    with pytest.raises(IntegrityError, match="at the same time; the table has been changed"):
        table.append(rows(2))
    with pytest.raises(IntegrityError, match="seal"):
        rest.load(signed_by=[writer.verifier])
    assert ids(rest.load()) == [1, 2]
    seal_table(rest.load(), writer, accept=True)
    table = table.append(rows(3))
    for _ in range(2):  # the second has nothing to commit but the log
        table = expire_history(table).table
    assert ids(rest.load(signed_by=[writer.verifier])) == [1, 2, 3]


def test_each_change_is_sealed_as_the_server_applies_it(rest: RestTable) -> None:
    writer = SigningKey.generate()
    seal_table(rest.load().append(rows(1)).append(rows(2)), writer)
    by: dict[str, Any] = {"signed_by": [writer.verifier], "signing_key": writer}
    for change in CHANGES.values():
        change(rest.load(**by))
    assert ids(rest.load(**by, seal_at_least=2)) == [1, 2, 9]


@each_case("member", ["properties", "schemas"])
def test_what_the_server_adds_to_a_commit_is_not_sealed(
    member: str, rest: RestTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = SigningKey.generate()
    seal_table(rest.load().append(rows(1)), writer)
    table = rest.load(signing_key=writer, signed_by=[writer.verifier])
    real = RestVersions.commit

    def commit(*arguments: Any) -> Any:
        place, done = real(*arguments)
        old = done.document[member]
        other = {**old, "other": "1"} if member == "properties" else [*old, old[0]]
        return place, done.with_members(**{member: other})

    monkeypatch.setattr(RestVersions, "commit", commit)
    with pytest.raises(IntegrityError, match=f"put other {member} there.*has been changed"):
        table.append(rows(2))


# --- races ---------------------------------------------------------------------------------------


def test_an_append_after_a_rotation_brings_its_keks(rest: RestTable, before_commit: Before) -> None:
    """No requirement sees the rotation: no branch has changed."""
    table = rest.load().append(rows(1))
    before_commit(lambda: rotate_table(rest.load(), "kek"))
    table.append(rows(2))
    assert ids(rest.load()) == [1, 2]
    assert verify_table(rest.load()).ok


@pytest.mark.parametrize("second", ["mek", "kek"])
def test_two_rotations_end_under_one_master_key(
    rest: RestTable, before_commit: Before, second: Any
) -> None:
    table = rest.load(master_key_ids=["keyA", "keyB"]).append(rows(1))
    before_commit(lambda: rotate_table(table, "mek", new_master_key_id="keyB"))
    rotate_table(table, second)
    found = rest.load()
    assert ids(found) == [1]
    assert {found.metadata.keys[id_].encrypted_by for id_ in found.metadata.kek_ids()} == {
        found.metadata.master_key_id
    }


@pytest.mark.parametrize("second", ["mek", "kek"])
def test_a_rotation_undoes_one_to_a_master_key_that_it_does_not_expect(
    rest: RestTable, before_commit: Before, second: Any
) -> None:
    """Otherwise readers would refuse the KEKs, or an unsigned property would choose the key."""
    table = rest.load().append(rows(1))
    before_commit(lambda: rotate_table(rest.load(), "mek", new_master_key_id="keyB"))
    with pytest.raises(IntegrityError, match="moved the table to the master key 'keyB'"):
        rotate_table(table, second)
    assert rest.load().metadata.master_key_id == "keyA"
    assert ids(rest.load().append(rows(2))) == [1, 2]


def test_a_rotation_moves_the_keks_of_another_one(rest: RestTable, before_commit: Before) -> None:
    table = rest.load().append(rows(1))
    before_commit(lambda: rotate_table(rest.load(), "kek"))
    rotate_table(table, "mek", new_master_key_id="keyB")
    assert rest.load().metadata.master_key_id == "keyB"
    assert ids(rest.load().append(rows(2))) == [1, 2]


@pytest.mark.parametrize("change", ["append", "dek"])
@pytest.mark.parametrize("what", ["mek", "kek"])
@pytest.mark.parametrize("expected", [None, ["keyA", "keyB"]])
def test_no_snapshot_lands_under_a_former_master_key(
    rest: RestTable, before_commit: Before, change: str, what: Any, expected: Any
) -> None:
    """Its KEK was made, or carried, before the rotation."""
    table = rest.load(master_key_ids=expected).append(rows(1))
    table = set_policy(table, KeyPolicy(kek_per="day"))  # the next snapshot makes a KEK
    before_commit(lambda: rotate_table(rest.load(), what, new_master_key_id="keyB"))
    context = nullcontext() if expected else pytest.raises(IntegrityError, match="is now under")
    with context:
        CHANGES[change](table)
    appended = [1, 9] if change == "append" else [1]
    assert ids(rest.load()) == (appended if expected else [1])
    assert rest.load().metadata.master_key_id == "keyB"
    assert verify_table(rest.load()).ok


def test_two_policies_do_not_mix(rest: RestTable, before_commit: Before) -> None:
    """Single wrapping has no KEK for each day."""
    table = set_policy(rest.load(), KeyPolicy(kek_lifetime_days=7))
    before_commit(lambda: set_policy(rest.load(), KeyPolicy(wrapping="single")))
    set_policy(table, KeyPolicy(kek_per="day"))
    assert KeyPolicy.of(rest.load().metadata) == KeyPolicy(kek_per="day")
    assert ids(rest.load().append(rows(1))) == [1]


def test_a_key_that_a_former_master_key_wraps_is_rotated_by_kek(
    rest: RestTable, before_commit: Before
) -> None:
    both = ["keyA", "keyB"]
    table = set_policy(rest.load(master_key_ids=both), KeyPolicy(wrapping="single"))
    table = table.append(rows(1))
    before_commit(lambda: rotate_table(table, "kek", new_master_key_id="keyB"))
    with pytest.raises(IntegrityError, match="rotate kek with both master keys"):
        table.append(rows(2))
    rotate_table(rest.load(master_key_ids=both), "kek")
    assert ids(rest.load()) == [1, 2]


def test_a_table_remembers_its_master_key_when_a_server_merges_another(
    rest: RestTable, before_commit: Before
) -> None:
    table = rest.load().append(rows(1))
    before_commit(lambda: rotate_table(rest.load(), "mek", new_master_key_id="keyB"))
    table = table.append(rows(2))
    with pytest.raises(IntegrityError, match="is now under 'keyB'"):
        table.append(rows(3))
    assert ids(rest.load()) == [1, 2]


def test_a_snapshot_that_others_have_built_upon_stays(
    rest: RestTable, monkeypatch: pytest.MonkeyPatch, before_commit: Before
) -> None:
    both = ["keyA", "keyB"]
    table, real = rest.load(), commits.check_merged

    def rotate() -> None:
        rotate_table(rest.load(), "mek", new_master_key_id="keyB")
        monkeypatch.setattr(commits, "check_merged", append_first)

    def append_first(*arguments: Any) -> Any:
        monkeypatch.setattr(commits, "check_merged", real)
        rest.load(master_key_ids=both).append(rows(2))
        return real(*arguments)

    before_commit(rotate)
    with pytest.raises(IntegrityError, match="do not repeat the change"):
        table.append(rows(1))
    rotate_table(rest.load(master_key_ids=both), "mek")
    assert ids(rest.load()) == [1, 2]


@pytest.mark.parametrize("earlier", [True, False])
def test_a_snapshot_that_is_undone_keeps_the_files_of_a_new_branch(
    rest: RestTable, monkeypatch: pytest.MonkeyPatch, before_commit: Before, earlier: bool
) -> None:
    """The branch begins before the version to undo is loaded, or just before it is undone."""
    table, real = rest.load().append(rows(1)), commits.check_merged

    def begin() -> None:
        rest.load(master_key_ids=["keyA", "keyB"]).append(rows(3), branch="b")

    def begin_first(*arguments: Any) -> Any:
        monkeypatch.setattr(commits, "check_merged", real)
        begin()
        return real(*arguments)

    def rotate() -> None:
        rotate_table(rest.load(), "kek", new_master_key_id="keyB")
        if earlier:
            monkeypatch.setattr(commits, "check_merged", begin_first)
        else:
            before_commit(begin)

    before_commit(rotate)
    with pytest.raises(IntegrityError, match="while the commit was undone: repeat"):
        table.append(rows(2))
    found = rest.load(master_key_ids=["keyA", "keyB"])
    assert ids(found) == [1]
    assert sorted(found.scan("b")["id"].to_pylist()) == [1, 2, 3]


def test_a_rotation_drops_keks_that_an_append_brings_back(
    rest: RestTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request to append has waited while the rotation was committed."""
    table, real = rest.load().append(rows(1)), rest_requests.commit
    requested, late = list[Any](), list[Any]()

    def commit_rotation(*arguments: Any) -> Any:
        monkeypatch.setattr(rest_requests, "commit", real)
        answer = real(*arguments)
        late.append(real(*requested))
        return answer

    def wait(*arguments: Any) -> Any:
        requested.extend(arguments)
        monkeypatch.setattr(rest_requests, "commit", commit_rotation)
        rotate_table(rest.load(), "kek")
        return late[0]

    monkeypatch.setattr(rest_requests, "commit", wait)
    table.append(rows(2))
    found = rest.load()
    assert ids(found) == [1, 2]
    assert len(found.metadata.kek_ids()) == 1
    assert verify_table(found).ok


def test_an_append_retries_after_another(rest: RestTable, before_commit: Before) -> None:
    table = rest.load()
    before_commit(lambda: rest.load().append(rows(1)))
    table.append(rows(2))
    assert ids(rest.load()) == [1, 2]


def test_changes_of_rows_retry_after_another(rest: RestTable, before_commit: Before) -> None:
    table = rest.load().append(rows(1, 2, 3))
    before_commit(lambda: rest.load().append(rows(4, 5)))
    table.delete("id in (2, 4)")
    assert ids(rest.load()) == [1, 3, 5]
    before_commit(lambda: rest.load().delete("id = 1"))
    done = rest.load().upsert(rows(1, 6), ["id"])
    assert (done.rows_updated, done.rows_inserted, ids(done.table)) == (0, 2, [1, 3, 5, 6])
    assert verify_table(rest.load()).ok


def test_two_writers_begin_a_branch(rest: RestTable, before_commit: Before) -> None:
    table = rest.load().append(rows(1))
    before_commit(lambda: rest.load().append(rows(2), branch="b"))
    table = table.append(rows(3), branch="b")
    assert sorted(table.scan("b")["id"].to_pylist()) == [1, 2, 3]
    before_commit(lambda: rest.load().delete("id = 2", branch="b"))
    table = table.delete("id = 3", branch="b")
    assert table.scan("b")["id"].to_pylist() == ids(table) == [1]


@pytest.mark.parametrize("begun", [True, False])
def test_a_snapshot_of_a_branch_under_a_former_master_key_is_undone(
    rest: RestTable, before_commit: Before, begun: bool
) -> None:
    table = rest.load().append(rows(1))
    if begun:
        table = table.append(rows(2), branch="b")
    table = set_policy(table, KeyPolicy(kek_per="day"))  # the next snapshot makes a KEK
    before_commit(lambda: rotate_table(rest.load(), "mek", new_master_key_id="keyB"))
    with pytest.raises(IntegrityError, match="is now under"):
        table.append(rows(4), branch="b")
    found = rest.load(master_key_ids=["keyB"])
    assert ids(found) == [1]
    assert found.refs()["name"].to_pylist() == (["main", "b"] if begun else ["main"])
    if begun:
        assert sorted(found.scan("b")["id"].to_pylist()) == [1, 2]
    assert verify_table(found).ok


def test_a_table_that_is_dropped_during_a_commit_gets_no_files(
    rest: RestTable, before_commit: Before
) -> None:
    table = rest.load()
    before_commit(lambda: rest.catalog.drop_table(rest.name))
    with pytest.raises(ValueError, match="the catalog has no table"):
        table.append(rows(1))
    assert not list(Path(table.place.path).parents[1].rglob("*.parquet"))


@pytest.mark.parametrize("change", ["kek", "expire"])
def test_keys_are_not_dropped_behind_an_append(
    rest: RestTable, before_commit: Before, change: str
) -> None:
    table = rest.load().append(rows(1)).append(rows(2))
    before_commit(lambda: rest.load().append(rows(3)))
    CHANGES[change](table)
    assert ids(rest.load()) == [1, 2, 3]
    assert verify_table(rest.load()).ok


def set_ref(rest: RestTable, name: str, kind: str, snapshot: int, **more: int) -> None:
    update = {"action": "set-snapshot-ref", "ref-name": name, "type": kind}
    rest_requests.commit(rest.catalog, rest.name, [], [{**update, "snapshot-id": snapshot, **more}])


def test_an_expiry_drops_no_kek_of_a_rotation_that_is_repeated(
    rest: RestTable, before_commit: Before, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A late append brings an old KEK back, and makes the new one unused until the repetition."""
    table, settle = rest.load().append(rows(1)), table_rotation._settle
    real, requested, settled = rest_requests.commit, list[Any](), list[Any]()

    def stop(*arguments: Any) -> None:
        requested.extend(arguments)
        raise KeyboardInterrupt

    def settle_late(*arguments: Any) -> Any:
        real(*requested)
        before_commit(lambda: settled.append(settle(*arguments)))
        expire_history(rest.load())
        return settled[0]

    with monkeypatch.context() as patch:
        patch.setattr(rest_requests, "commit", stop)
        with pytest.raises(KeyboardInterrupt):
            table.append(rows(2))
    monkeypatch.setattr(table_rotation, "_settle", settle_late)
    rotate_table(table, "kek")
    assert ids(rest.load()) == [1, 2]
    assert verify_table(rest.load()).ok


@pytest.mark.parametrize("refused", [True, False])
def test_keks_that_cannot_be_added_again_are_an_error(
    rest: RestTable, before_commit: Before, monkeypatch: pytest.MonkeyPatch, refused: bool
) -> None:
    """The server refuses them, or accepts the request and has no such key afterwards."""
    table = rest.load().append(rows(1))

    def begin() -> None:
        rest.load().append(rows(2), branch="b")
        real = RestVersions._send_updates

        def send(self: Any, before: Any, updates: Any, requirements: Any) -> Any:
            if len(requirements) > 1:
                return real(self, before, updates, requirements)
            if refused:
                raise CommitConflictError("orders: another writer was faster")
            return self._load()

        monkeypatch.setattr(RestVersions, "_send_updates", send)

    before_commit(begin)
    with pytest.raises(IntegrityError, match=r"have repair_table restore them from .*\.json"):
        rotate_table(table, "kek")
    monkeypatch.undo()
    repair_table(rest.load())
    assert ids(rest.load()) == [1]
    assert sorted(rest.load().scan("b")["id"].to_pylist()) == [1, 2]


def test_keks_that_are_added_again_move_to_a_new_master_key(
    rest: RestTable, before_commit: Before
) -> None:
    table = rest.load(master_key_ids=["keyA", "keyB"])
    table = set_policy(table, KeyPolicy(kek_per="partition")).append(rows(1))
    assert table.metadata.current is not None
    first = table.metadata.current.id
    table = set_policy(table, KeyPolicy(kek_per="day")).overwrite(rows(2))

    def begin() -> None:
        set_ref(rest, "b", "branch", first)
        rest.load().append(rows(3), branch="b")
        rotate_table(rest.load(), "mek", new_master_key_id="keyB")

    before_commit(begin)
    expire_history(table)
    found = rest.load(master_key_ids=["keyB"])
    assert sorted(found.scan("b")["id"].to_pylist()) == [1, 3]
    assert verify_table(found).ok


@pytest.mark.parametrize("kind", ["branch", "tag", "under another master key"])
def test_an_expiry_deletes_no_file_that_a_new_branch_or_tag_needs(
    rest: RestTable, before_commit: Before, kind: str
) -> None:
    """The server drops a tag with its snapshot; the version before still leads to the files."""
    first = rest.load().append(rows(1))
    table, versions = first.overwrite(rows(2)), list[Any]()
    assert first.metadata.current is not None
    snapshot = first.metadata.current.id

    def begin() -> None:
        set_ref(rest, "b", "tag" if kind == "tag" else "branch", snapshot)
        if kind != "tag":
            rest.load().append(rows(3), branch="b")
        if kind == "under another master key":
            rotate_table(rest.load(), "mek", new_master_key_id="keyB")
        versions.append(rest.load())

    before_commit(begin)
    done = expire_history(table)
    assert len([name for name in done.left if name.endswith(".parquet")]) == 1
    named = open_table(versions[0].place.path, SampleKms()) if kind == "tag" else rest.load()
    assert sorted(named.scan("b")["id"].to_pylist()) == ([1] if kind == "tag" else [1, 3])
    assert ids(rest.load()) == [2]
    assert verify_table(rest.load()).ok
    assert expire_history(rest.load()).left == ()


# --- failures ------------------------------------------------------------------------------------


@pytest.mark.parametrize("done", [True, False])
def test_a_lost_answer_is_looked_up(
    rest: RestTable, monkeypatch: pytest.MonkeyPatch, done: bool
) -> None:
    table, real = rest.load(), rest_requests._send

    def send(catalog: Any, method: str, *arguments: Any) -> Any:
        if method == "GET":
            return real(catalog, method, *arguments)
        monkeypatch.setattr(rest_requests, "_send", real)
        if done:
            real(catalog, method, *arguments)
        raise OSError("the REST catalog failed: ReadTimeout")

    monkeypatch.setattr(rest_requests, "_send", send)
    if done:
        assert ids(table.append(rows(1))) == [1]
    else:
        with pytest.raises(OSError, match="ReadTimeout"):
            table.append(rows(1))
        assert ids(rest.load()) == []
        # The server might still carry it out, so its files stay.
        assert len(list(Path(table.place.path).parents[1].rglob("*.parquet"))) == 1


class Answers(requests.Session):
    """A session that always gives one answer."""

    def __init__(self, status: int, content: bytes) -> None:
        super().__init__()
        self.response = requests.Response()
        self.response.status_code, self.response._content = status, content

    def request(self, *arguments: Any, **options: Any) -> requests.Response:
        return self.response


def answer_commits(monkeypatch: pytest.MonkeyPatch, answer: Any, *, done: bool) -> None:
    """Answer each commit with `answer`; the server carries it out only if `done` is set."""
    real = rest_requests._send

    def send(catalog: Any, method: str, *arguments: Any) -> Any:
        if done or method == "GET":
            given = real(catalog, method, *arguments)
        return given if method == "GET" else answer

    monkeypatch.setattr(rest_requests, "_send", send)


@pytest.mark.parametrize("status", [200, 204, 302, 404, 408, 409, 429])
def test_answers_of_gateways_prove_nothing(
    rest: RestTable, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    """They repeat requests, whose second try conflicts with the first, and answer by themselves."""
    table = rest.load().append(rows(1))
    answer = Answers(status, b"<html>").response
    with monkeypatch.context() as patch:
        answer_commits(patch, answer, done=True)
        table = table.append(rows(2))
    assert ids(rest.load()) == [1, 2]
    if status not in {404, 409}:
        answer_commits(monkeypatch, answer, done=False)
        with pytest.raises(OSError, match=rf"{status}|not that of a table"):
            table.append(rows(3))
        # The server might still carry it out, so its files stay.
        assert len(list(Path(table.place.path).parents[1].rglob("*.parquet"))) == 3


@pytest.mark.parametrize(
    ("failure", "looked_up"),
    [(LimitError("compressed"), None), (OSError("504"), Answers(200, b"<html>").response),
     (CommitConflictError("409"), Answers(200, b"<html>").response),
     (None, Answers(200, b"<html>").response)],
)  # fmt: skip
def test_a_commit_that_a_server_carries_out_late_finds_its_files(
    rest: RestTable, monkeypatch: pytest.MonkeyPatch, failure: Any, looked_up: Any
) -> None:
    """Neither an answer that is refused nor one that cannot be read proves anything."""
    table = rest.load().append(rows(1))
    real, requested, answers = rest_requests._send, list[Any](), [looked_up]

    def send(catalog: Any, method: str, *arguments: Any) -> Any:
        if method == "GET":
            return (requested and answers and answers.pop()) or real(catalog, method, *arguments)
        requested.append(arguments)
        if isinstance(failure, Exception):
            raise failure
        return real(catalog, "GET", rest.name, None)

    with monkeypatch.context() as patch:
        patch.setattr(rest_requests, "_send", send)
        with pytest.raises(OSError, match=r"compressed|not that of a table"):
            table.append(rows(2))
    real(rest.catalog, "POST", *requested[0])
    assert ids(rest.load()) == [1, 2]


@pytest.mark.parametrize("done", [True, False])
def test_a_server_that_answers_with_the_version_before(
    rest: RestTable, monkeypatch: pytest.MonkeyPatch, done: bool
) -> None:
    table = rest.load().append(rows(1))
    answer_commits(
        monkeypatch, rest_requests._send(rest.catalog, "GET", rest.name, None), done=done
    )
    if done:
        assert ids(table.append(rows(2))) == [1, 2]
    else:
        with pytest.raises(OSError, match="still has the version before"):
            table.append(rows(2))
        assert len(list(Path(table.place.path).parents[1].rglob("*.parquet"))) == 2


def test_a_folder_that_has_gone_on_is_refused(rest: RestTable, tmp_path: Path) -> None:
    table = make_table(tmp_path / "t").append(rows(1))
    copy = RestTable(rest.uri, rest.name.replace("orders", "copy"))
    copy.catalog.register_table(copy.name, table.place.path)
    loaded = copy.load()
    table.append(rows(2))
    uses: list[Callable[[], object]] = [copy.load, lambda: loaded.append(rows(3))]
    for use in uses:
        with pytest.raises(FormatError, match=r"newer ones up to v3\.metadata\.json"):
            use()


def test_a_lost_request_to_drop_keys_is_no_success(
    rest: RestTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = set_property(rest.load().append(rows(1)), "a", "b")
    properties = {name: text for name, text in table.metadata.properties.items() if name != "a"}
    changed = table.metadata.with_members(properties=properties)

    def commit(*arguments: Any) -> Any:
        raise OSError("the REST catalog failed: 500")

    monkeypatch.setattr(rest_requests, "commit", commit)
    for dropped in (changed, table.metadata.with_keys([])):
        with pytest.raises(OSError, match="500"):
            table.versions.commit(table.place, dropped)


def ignore(monkeypatch: pytest.MonkeyPatch, action: str) -> None:
    """Have the server ignore such updates, but for those of keys that the same commit adds."""
    real = rest_requests._send

    def send(catalog: Any, method: str, identifier: Any, body: bytes | None) -> Any:
        if body is not None:
            request = json.loads(body)
            updates = request["updates"]
            added = [update["encryption-key"]["key-id"] for update in updates
                     if "encryption-key" in update]  # fmt: skip
            request["updates"] = [
                update
                for update in updates
                if update["action"] != action or update.get("key-id") in added
            ]
            body = json.dumps(request).encode()
        return real(catalog, method, identifier, body)

    monkeypatch.setattr(rest_requests, "_send", send)


def test_a_server_that_keeps_dropped_keys_is_an_error(
    rest: RestTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = rest.load().append(rows(1))
    ignore(monkeypatch, "remove-encryption-key")
    with pytest.raises(UnsupportedFormatError, match="ignored a part of the commit"):
        rotate_table(table, "kek")


def test_a_refused_commit_leaves_nothing(rest: RestTable, monkeypatch: pytest.MonkeyPatch) -> None:
    table = rest.load()
    wrong = [{"action": "set-current-schema", "schema-id": 9}]
    monkeypatch.setattr(rest_versions, "find_updates", lambda old, new: wrong)
    with pytest.raises(UnsupportedFormatError, match="the REST catalog refuses this: 400"):
        table.append(rows(1))
    assert not list(Path(table.place.path).parents[1].rglob("*.parquet"))


def test_a_server_that_ignores_keys_is_an_error(
    rest: RestTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its files stay: the new version names them, and it can be repaired."""
    table = rest.load()
    ignore(monkeypatch, "add-encryption-key")
    with pytest.raises(UnsupportedFormatError, match="ignored a part of the commit"):
        table.append(rows(1))
    assert list(Path(table.place.path).parents[1].rglob("*.parquet"))


def test_a_server_without_commits_is_refused_before_a_file_is_written(
    rest: RestTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = rest.load()
    catalog: RestCatalog = table.versions.catalog  # type: ignore[attr-defined]
    catalog._supported_endpoints.discard(Capability.V1_UPDATE_TABLE)
    monkeypatch.setattr("modcrypt.iceberg.write.append.DataWriter.write", None)
    with pytest.raises(UnsupportedFormatError, match="offers no commits"):
        table.append(rows(1))


def test_every_attempt_may_lose(rest: RestTable, monkeypatch: pytest.MonkeyPatch) -> None:
    table = set_property(rest.load(), "commit.retry.num-retries", "1")

    def refuse(*arguments: Any) -> None:
        raise CommitConflictError("orders: another writer has committed")

    monkeypatch.setattr(rest_requests, "commit", refuse)
    with pytest.raises(CommitConflictError):
        table.append(rows(1))
    assert not list(Path(table.place.path).parents[1].rglob("*.parquet"))


def set_property(table: IcebergTable, name: str, text: str) -> IcebergTable:
    versions: Any = table.versions
    metadata = table.metadata
    changed = metadata.with_members(properties={**metadata.properties, name: text})
    place, stored = versions.commit(table.place, changed)
    return table.with_metadata(stored, place)


# --- answers and settings ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "content", "error"),
    [
        (200, b"[]", "not that of a table"),
        (200, b"{", "not that of a table"),
        (200, b'{"metadata-location": null, "metadata": {}}', "names no metadata.json"),
        (200, b'{"metadata-location": "x", "metadata": {}, "metadata": {}}', "not that of a table"),
        (200, b'{"metadata-location": "x", "metadata": {}}', "format-version"),
        (200, b'{"metadata-location": "x", "metadata": {}, "config": {"a": 1}}', "names no"),
        (403, b'{"error": {"message": "not yours\\u001b"}}', r"403 not yours\\x1b"),
        (500, b"<html>", "500"),
    ],
)
def test_odd_answers_are_errors(rest: RestTable, status: int, content: bytes, error: str) -> None:
    catalog: Any = rest.catalog
    catalog._session = Answers(status, content)
    with pytest.raises(Exception, match=error):
        RestVersions(catalog, rest.name).read()


@pytest.mark.parametrize(
    ("status", "error", "stays"),
    [(400, FormatError, False), (403, PermissionError, False), (409, FileExistsError, False),
     (503, OSError, True)],
)  # fmt: skip
@pytest.mark.parametrize("done", [True, False])
def test_registrations_are_looked_up(
    rest: RestTable, tmp_path: Path, status: int, error: Any, stays: bool, done: bool
) -> None:
    """Errors of pyiceberg do not get out, and the file stays if a server may still register it."""
    copy = RestTable(rest.uri, rest.name.replace("orders", "copy"))
    catalog: Any = copy.catalog
    real = catalog._session.post

    def post(*arguments: Any, **options: Any) -> Any:
        if done:
            real(*arguments, **options)
        return Answers(status, b'{"error": {"message": "no", "type": "x", "code": 1}}').response

    catalog._session.post = post
    with nullcontext() if done else pytest.raises(error):
        make_table(tmp_path / "t", catalog=catalog, identifier=copy.name)
    assert bool(list(tmp_path.rglob("*.metadata.json"))) == (done or stays)
    if done:
        assert ids(copy.load().append(rows(1))) == [1]


def test_the_servers_read_restrictions_are_applied(
    rest: RestTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    real: Any = rest_requests.load
    table = rest.load().append(rows(1, 2))
    equal = {"type": "eq", "left": {"type": "reference", "id": 1}, "right": 2}

    def restricted(document: Any) -> Any:
        return lambda *arguments: real(*arguments)._replace(restrictions=document)

    monkeypatch.setattr(rest_requests, "load", restricted({"required-row-filter": equal}))
    assert ids(rest.load()) == ids(table) == [2]
    assert ids(rest.load().append(rows(3))) == [2]
    both = rest.load(read_restrictions={"required-row-filter": False})
    assert ids(both) == []
    monkeypatch.setattr(rest_requests, "load", restricted({"unheard-of": True}))
    with pytest.raises(UnsupportedFormatError, match="read restrictions"):
        rest.load().scan().to_arrow()


def test_a_store_is_opened_with_vended_settings(rest: RestTable) -> None:
    catalog = RestCatalog("rest", uri=rest.uri, **{"s3.region": "eu-1", "s3.endpoint": "http://a"})
    answer = rest_requests.TableAnswer(
        "s3://bucket/t/metadata/1.metadata.json", rest.load().metadata,
        {"s3.access-key-id": "id", "s3.secret-access-key": "secret", "py-io-impl": "os.system"},
    )  # fmt: skip
    versions = RestVersions(catalog, "t")
    store = versions._open_store(answer)
    assert store.client_kwargs["aws_access_key_id"] == "id"
    assert store.client_kwargs["endpoint_url"] == "http://a"
    local = answer._replace(location="file:///t/metadata/1.metadata.json")
    assert versions._open_store(local) is None


def test_the_credentials_of_the_longest_prefix_are_taken() -> None:
    answer = {
        "storage-credentials": [
            {"prefix": "s3://bucket", "config": {"s3.access-key-id": "short"}},
            {"prefix": "s3://bucket/t", "config": {"s3.access-key-id": "long"}},
            {"prefix": "s3://other/t/metadata", "config": {"s3.access-key-id": "other"}},
        ]
    }
    found = rest_requests._credentials(answer, "s3://bucket/t/metadata/1.metadata.json")
    assert found == {"s3.access-key-id": "long"}


def test_an_expiry_that_drops_only_older_versions_keeps_the_current_one(rest: RestTable) -> None:
    table = rest.load().append(rows(1))
    table = expire_history(table).table
    for _ in range(3):
        table = rotate_table(table, "mek").table
    done = expire_history(table)
    assert done.metadata_files
    assert Path(rest.load().place.path).exists()
    assert ids(rest.load()) == [1]


@each_case("inner", ["in ner", "\u00fc", "a+b", "a/b", "100%", "a&b=c", "\U0001d11e", "plain"])
def test_names_that_urls_encode(server: str, inner: str) -> None:
    outer = f"n{uuid.uuid4().hex}"
    catalog = RestCatalog("rest", uri=server)
    for namespace in ((outer,), (outer, inner), (outer, inner, inner)):
        catalog.create_namespace(namespace)
    name = (outer, inner, inner, inner)
    made = make_table(None, catalog=catalog, identifier=name)
    made.append(rows(1))
    assert list(list_tables(catalog, outer)) == [name]
    (done,) = rotate_catalog(catalog, SampleKms(), namespace=outer, new_master_key_id="keyB")
    assert (done.result, parse_identifier(done.table)) == ("rotated", name)
    assert ids(load_table(catalog, name, SampleKms(), master_key_ids=["keyB"])) == [1]


@each_case("name", ["..", ".", "", "a\x1fb"])
def test_names_that_no_url_can_have(server: str, name: str) -> None:
    for identifier in (("ns", name), (name, "t"), ("ns", name, "t")):
        with pytest.raises(UnsupportedFormatError, match="cannot have this name"):
            load_table(RestCatalog("rest", uri=server), identifier, SampleKms())


def test_new_data_keys_of_branches_and_tags(rest: RestTable) -> None:
    made = [rest.load().append(rows(number)).metadata.current for number in (1, 2, 3)]
    first, second, third = (snapshot.id for snapshot in made if snapshot is not None)
    set_ref(rest, "wap", "branch", third)
    set_ref(rest, "old", "tag", first, **{"max-ref-age-ms": 86_400_000})
    set_ref(rest, "main", "branch", second)

    done = rotate_table(rest.load(), "dek")
    table = rest.load()
    assert table.metadata.document == done.table.metadata.document
    wap = table.snapshot("wap")
    assert wap is not None
    assert table.metadata.current is not None
    assert (wap.operation, wap.parent) == ("append", table.metadata.current.id)
    assert table.metadata.refs["old"]["max-ref-age-ms"] == 86_400_000
    assert set(done.older_snapshots) == {first, second, third}
    for ref, numbers in (("main", [1, 2]), ("wap", [1, 2, 3]), ("old", [1])):
        assert sorted(table.scan(ref)["id"].to_pylist()) == numbers, ref
    set_ref(rest, "main", "branch", wap.id)
    expire_history(rest.load())
    assert ids(rest.load()) == [1, 2, 3]
    assert verify_table(rest.load()).ok
