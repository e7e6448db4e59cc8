"""Tables of a Glue catalog, as far as moto stands for AWS: changed at the version that was read."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from moto.glue.models import glue_backends

from modcrypt.errors import CommitConflictError, UnsupportedFormatError
from modcrypt.iceberg import (
    IcebergTable,
    create_table,
    load_table,
    purge_table,
    repair_table,
    verify_table,
)
from modcrypt.iceberg.tables.glue_pointer import MAX_COMMENT, GluePointer, make_table_input
from tests.support.cases import each_case, one_in
from tests.support.iceberg.catalog_tables import (
    append_often,
    check_encryption,
    check_interrupted_purge,
    check_purge,
    check_rotation_of_namespace,
)
from tests.support.iceberg.cli_runs import Run, check_changes, check_seals, run
from tests.support.iceberg.concurrent_commits import check_commits_between
from tests.support.iceberg.glue_catalog import (
    GlueTable,
    Step,
    act_first,
    answer,
    answers,
    configure,
    glue_server,
    lose,
    open_catalog,
    refuse,
    send,
    serve,
    serve_and_lose,
    use_store,
)
from tests.support.iceberg.made_tables import SCHEMA, make_table
from tests.support.iceberg.sample_kms import SampleKms
from tests.support.iceberg.table_changes import CHANGES, ids, rows

__all__ = ["run"]  # fixture


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with glue_server(tmp_path_factory.mktemp("glue")) as uri:
        yield uri


@pytest.fixture
def glue(server: str) -> Iterator[GlueTable]:
    yield GlueTable.make(server)
    glue_backends.reset()  # a purge looks at every table of a catalog


def versions_in(table: Any) -> set[str]:
    return {path.name for path in Path(table.place.path).parent.glob("*.json")}


@pytest.mark.parametrize(
    "check",
    [check_purge, check_interrupted_purge, check_rotation_of_namespace, check_commits_between],
)
def test_what_holds_in_every_catalog(glue: GlueTable, check: Any) -> None:
    check(glue)


def test_every_change_of_a_folders_table(glue: GlueTable) -> None:
    glue.load().append(rows(1)).append(rows(2))
    for name, change in CHANGES.items():
        before, version = glue.location(), glue.entry()["VersionId"]
        table = change(glue.load())
        parameters = glue.entry()["Parameters"]
        if name != "prune":  # without another writer nothing is left to drop
            if name != "upsert":  # which is two changes
                assert parameters["previous_metadata_location"] == before, name
            assert parameters["metadata_location"].endswith(table.place.name), name
            assert int(glue.entry()["VersionId"]) > int(version), name
        assert ids(glue.load()) == [1, 2, 9], name
        assert verify_table(glue.load()).ok, name
    assert repair_table(glue.load()).lost == ()
    assert glue.load().metadata.master_key_id == "keyB"


def test_an_entry_is_that_of_java_and_keeps_what_others_added(glue: GlueTable) -> None:
    """Java's GlueTableOperations stores no hash and no properties of the table."""
    database, name = glue.name.split(".")
    table, entry = glue.load(), glue.entry()
    assert entry["TableType"] == "EXTERNAL_TABLE"
    assert entry["Parameters"] == {
        "table_type": "ICEBERG", "metadata_location": f"file://{table.place.path}"
    }  # fmt: skip
    storage = entry["StorageDescriptor"]
    storage["Columns"][0]["Comment"] = "number of the order"
    storage["AdditionalLocations"] = ["s3://elsewhere/data"]
    changed = {
        "Name": name, "Description": "orders\nof the shop", "StorageDescriptor": storage,
        "Parameters": {**entry["Parameters"], "owner": "sales"},
    }  # fmt: skip
    glue.catalog.glue.update_table(DatabaseName=database, TableInput=changed)
    table.append(rows(1))
    entry = glue.entry()
    assert entry["Parameters"]["owner"] == "sales"
    assert entry["Description"] == "orders of the shop"
    assert entry["StorageDescriptor"] == {
        "AdditionalLocations": ["s3://elsewhere/data"], "Location": table.metadata.location,
        "Columns": [{
            "Name": "id", "Type": "bigint", "Comment": "number of the order",
            "Parameters": {
                "iceberg.field.id": "1", "iceberg.field.optional": "true",
                "iceberg.field.current": "true",
            },
        }],
    }  # fmt: skip
    assert glue.catalog.load_table(glue.name).metadata_location == glue.location()


def test_what_glue_only_shows_refuses_no_commit(glue: GlueTable) -> None:
    """Glue takes comments of 255 bytes without line breaks, and pyiceberg knows no variants."""
    metadata = glue.load().metadata
    (schema,) = metadata.schemas()
    long = {**schema["fields"][0], "doc": "ü\n" * 1000}
    made = make_table_input(
        {"Name": "t"}, metadata.with_members(schemas=[{**schema, "fields": [long]}]), "m"
    )
    comment = made["StorageDescriptor"]["Columns"][0]["Comment"]
    assert len(comment.encode()) <= MAX_COMMENT
    assert comment.startswith("ü ü ")
    variant = {**schema["fields"][0], "type": "variant"}
    storage = {"Columns": [{"Name": "id", "Type": "bigint"}]}
    known = {"Name": "t", "StorageDescriptor": storage}
    made = make_table_input(
        known, metadata.with_members(schemas=[{**schema, "fields": [variant]}]), "m", "l"
    )
    assert made["StorageDescriptor"]["Columns"] == storage["Columns"]
    assert made["Parameters"]["previous_metadata_location"] == "l"


def test_a_plaintext_table_is_encrypted_into_glue(glue: GlueTable, tmp_path: Path) -> None:
    check_encryption(glue, tmp_path)


def test_a_folders_table_is_registered(glue: GlueTable, tmp_path: Path) -> None:
    made = make_table(tmp_path / "t").append(rows(1))
    taken = GlueTable(glue.uri, glue.name.replace("orders", "taken"))
    glue.catalog.register_table(taken.name, made.place.path)
    assert ids(taken.load().append(rows(2))) == [1, 2]


def test_the_command_line_opens_a_configured_catalog(
    glue: GlueTable, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    configure(monkeypatch, "shop", glue.uri)
    check_changes(run, tmp_path, "shop", glue)
    check_seals(run, tmp_path, "shop", GlueTable.make(glue.uri).name)


@pytest.mark.slow
def test_a_table_in_s3(glue: GlueTable, monkeypatch: pytest.MonkeyPatch) -> None:
    """moto's server has both services."""
    client = use_store(monkeypatch, glue.uri)
    client.create_bucket(Bucket="lake")
    database = glue.name.replace(".orders", "s")
    glue.catalog.create_namespace(database, {"location": f"s3://lake/{database}"})
    stored = GlueTable(glue.uri, f"{database}.orders")
    table = make_table(None, catalog=glue.catalog, identifier=stored.name)
    table.append(rows(1))
    for change in CHANGES.values():
        change(stored.load())
    assert stored.location().startswith(f"s3://lake/{database}/orders/metadata/")
    assert ids(stored.load()) == [1, 2, 9]
    purge_table(stored.load())
    # Servers of one process share their buckets: other tests have objects in this one.
    kept = client.list_objects_v2(Bucket="lake", Prefix=f"{database}/").get("Contents", [])
    assert [entry["Key"] for entry in kept if not entry["Key"].endswith("/")] == []


def test_names_are_taken_once(glue: GlueTable) -> None:
    make = partial(create_table, None, SCHEMA, SampleKms(), master_key_id="keyA")
    with pytest.raises(FileExistsError, match="already has a table"):
        make(catalog=glue.catalog, identifier=glue.name)
    with pytest.raises(ValueError, match="the catalog has no table"):
        GlueTable(glue.uri, "nowhere.orders").load()
    with pytest.raises(ValueError, match="no namespace nowhere"):
        make(catalog=glue.catalog, identifier="nowhere.orders")


@each_case("parameters", [{}, {"table_type": "VIEW"}])
def test_another_table_of_glue(glue: GlueTable, parameters: dict[str, str]) -> None:
    database = glue.name.split(".")[0]
    glue.catalog.glue.create_table(
        DatabaseName=database, TableInput={"Name": "other", "Parameters": parameters}
    )
    with pytest.raises(ValueError, match=r"\.other is not an Iceberg table"):
        GlueTable(glue.uri, f"{database}.other").load()
    glue.catalog.glue.update_table(
        DatabaseName=database,
        TableInput={"Name": "other", "Parameters": {"table_type": "ICEBERG"}},
    )
    with pytest.raises(ValueError, match="the catalog has no table"):
        GlueTable(glue.uri, f"{database}.other").load()


def test_s3_tables_are_refused(glue: GlueTable) -> None:
    def federate(parsed: dict[str, Any], **_: Any) -> None:
        parsed["Database"]["FederatedDatabase"] = {"ConnectionType": "aws:s3tables"}

    events, before = glue.catalog.glue.meta.events, glue.location()
    events.register("after-call.glue.GetDatabase", federate)
    try:
        with pytest.raises(UnsupportedFormatError, match="tables of S3 Tables cannot be changed"):
            glue.load().append(rows(1))
    finally:
        events.unregister("after-call.glue.GetDatabase", federate)
    assert glue.location() == before


# --- other writers -------------------------------------------------------------------------------


def rival(glue: GlueTable) -> IcebergTable:
    """Open the table as another writer, whose requests no test answers."""
    return load_table(open_catalog(glue.uri), glue.name, SampleKms())


def test_of_two_that_look_at_once_one_succeeds(glue: GlueTable) -> None:
    """The locations agree, and the versions differ when Glue compares them."""
    table = glue.load()
    other = act_first(lambda: rival(glue).append(rows(1)))
    with (
        answers(glue.catalog, "UpdateTable", other, serve) as sent,
        pytest.raises(CommitConflictError, match="names another version now"),
    ):
        table.versions.commit(table.place, table.metadata)
    assert len(sent) == 1
    assert ids(glue.load()) == [1]
    assert len(versions_in(table)) == 2  # the lost one is removed


@each_case("change", ["append", "mek", "kek", "dek", "policy"], quick=one_in(2))
def test_a_change_after_somebody_elses_has_both(glue: GlueTable, change: str) -> None:
    table = glue.load().append(rows(1))
    other = act_first(lambda: rival(glue).append(rows(2)))
    with answers(glue.catalog, "UpdateTable", other, serve) as sent:
        CHANGES[change](table)
    assert len(sent) > 1
    assert ids(glue.load()) == ([1, 2, 9] if change == "append" else [1, 2])
    assert verify_table(glue.load()).ok


def test_threads_append_at_once(glue: GlueTable) -> None:
    append = partial(append_often, lambda rows: glue.load().append(rows))
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(append, range(2)))
    table = glue.load()
    assert ids(table) == [*range(5), *range(100, 105)]
    assert len(versions_in(table)) == 11  # no lost one is left


def test_a_table_that_another_process_drops_is_a_conflict(glue: GlueTable) -> None:
    table = glue.load()
    other = act_first(lambda: open_catalog(glue.uri).drop_table(glue.name))
    with answers(glue.catalog, "UpdateTable", other), pytest.raises(CommitConflictError):
        table.versions.commit(table.place, table.metadata)


def test_a_purge_finds_an_append_in_its_way(glue: GlueTable) -> None:
    """Glue compares nothing when it drops a table; the new version is seen beside the old one."""
    table, later = glue.load().append(rows(1)), list[IcebergTable]()
    other = act_first(lambda: later.append(rival(glue).append(rows(2))))
    with (
        answers(glue.catalog, "DeleteTable", other),
        pytest.raises(CommitConflictError, match="nothing was deleted: register it"),
    ):
        purge_table(table)
    glue.catalog.register_table(glue.name, later[0].place.path)
    assert ids(glue.load()) == [1, 2]


def test_only_the_version_that_was_read_is_dropped(glue: GlueTable) -> None:
    table = glue.load()
    glue.load().append(rows(1))
    pointer = GluePointer(glue.catalog, *glue.name.split("."))
    assert not pointer.drop(f"file://{table.place.path}")
    assert ids(glue.load()) == [1]


# --- answers that are lost -----------------------------------------------------------------------


@each_case("change", ["append", "kek"])
@each_case("steps", [(serve_and_lose, lose), (serve_and_lose, serve)])
def test_a_change_whose_answer_is_lost_is_found(
    glue: GlueTable, change: str, steps: tuple[Step, ...]
) -> None:
    """Glue refuses a request that the client repeats, because the first made another version."""
    table = glue.load().append(rows(1))
    with answers(glue.catalog, "UpdateTable", *steps) as sent:
        CHANGES[change](table)
    assert len(sent) > 1
    assert ids(glue.load()) == ([1, 9] if change == "append" else [1])
    assert verify_table(glue.load()).ok


@each_case("change", ["dek", "append"], quick=one_in(2))
@each_case(
    "steps",
    [
        (lose,),
        (refuse("InternalServiceException", 500),),
        (refuse("OperationTimeoutException"),),
        (lambda request: answer(200, b"\xff"),),
        # One copy is refused because the other one is still under way.
        (lose, refuse("ConcurrentModificationException")),
        (lose, refuse("AccessDeniedException")),
        (lose, refuse("InvalidInputException")),
    ],
)
def test_a_request_that_may_be_under_way_finds_its_files(
    glue: GlueTable, change: str, steps: tuple[Step, ...]
) -> None:
    table = glue.load().append(rows(1))
    with (
        answers(glue.catalog, "UpdateTable", *steps) as sent,
        pytest.raises(OSError, match="AWS Glue failed: "),
    ):
        CHANGES[change](table)
    assert ids(glue.load()) == [1]
    send(sent[0])
    assert ids(glue.load()) == ([1, 9] if change == "append" else [1])
    previous = glue.entry()["Parameters"]["previous_metadata_location"]
    assert previous.endswith(table.place.name)
    assert verify_table(glue.load()).ok


def test_a_repeated_request_that_lost_the_race_is_a_conflict(glue: GlueTable) -> None:
    """Another version of the entry proves that no copy of the request can be carried out."""
    table = glue.load()
    other = act_first(lambda: rival(glue).append(rows(1)))
    with (
        answers(glue.catalog, "UpdateTable", lose, other) as sent,
        pytest.raises(CommitConflictError),
    ):
        table.versions.commit(table.place, table.metadata)
    assert len(sent) == 2
    assert len(versions_in(table)) == 2


@each_case(
    "code, kind",
    [
        ("AccessDeniedException", PermissionError),
        ("InvalidInputException", UnsupportedFormatError),
        ("InvalidSignatureException", OSError),
    ],
)
def test_what_glue_refuses_is_an_error_without_tokens(
    glue: GlueTable, code: str, kind: type[Exception]
) -> None:
    table = glue.load()
    why = refuse(code, message="x-amz-security-token:secret\n")
    with answers(glue.catalog, "UpdateTable", why), pytest.raises(kind) as caught:
        table.append(rows(1))
    shown = "".join(traceback.format_exception(caught.value))
    assert ("secret" in shown) == (kind is not OSError)  # of their reasons, none has a signature
    assert ids(table.append(rows(2))) == [2]
    with answers(glue.catalog, "GetTable", why), pytest.raises(kind):
        glue.load()


@each_case("steps", [(serve_and_lose, lose), (serve_and_lose, serve)])
def test_a_table_is_made_and_purged_although_answers_are_lost(
    glue: GlueTable, steps: tuple[Step, ...]
) -> None:
    other = GlueTable(glue.uri, glue.name.replace("orders", "other"))
    make = partial(create_table, None, SCHEMA, SampleKms(), master_key_id="keyA")
    with answers(glue.catalog, "CreateTable", *steps):
        table = make(catalog=glue.catalog, identifier=other.name).append(rows(1))
    assert ids(other.load()) == [1]
    with answers(glue.catalog, "DeleteTable", *steps):
        purge_table(table)
    assert not [path for path in Path(table.place.path).parent.parent.rglob("*") if path.is_file()]


def test_a_service_without_versions_gets_no_commits(glue: GlueTable) -> None:
    def forget(parsed: dict[str, Any], **_: Any) -> None:
        parsed["Table"].pop("VersionId", None)

    table, events = glue.load(), glue.catalog.glue.meta.events
    events.register("after-call.glue.GetTable", forget)
    try:
        with pytest.raises(UnsupportedFormatError, match="numbers no versions"):
            table.append(rows(1))
    finally:
        events.unregister("after-call.glue.GetTable", forget)
    assert ids(table.append(rows(2))) == [2]
