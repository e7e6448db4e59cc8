"""Streams of encrypted files; modcrypt itself and PyArrow judge."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from base64 import b64encode
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxFiles
from pyspark.sql.types import StructType

import modcrypt as mc
from modcrypt.io.places import Place
from modcrypt.parquet.datasets.discovery import list_complete
from modcrypt.spark.source import stream_batches as batches
from modcrypt.spark.source.arrow_types import to_common_schema, to_spark_schema
from modcrypt.spark.source.job_publication import Written, job_folder, remove_abandoned
from modcrypt.spark.source.stream_batches import drop_batch, publish_batch
from modcrypt.spark.source.streaming import stream_reader, stream_writer
from tests.support.spark.lake import FOOTER, SECRETS, Lake
from tests.support.tables import read_with_pyarrow, small_table

QUERY = "0f5d4c1e-8a4b-4a66-9d3e-2b7c1d0e9f88"


@pytest.fixture(params=["policy", "external"])
def options(lake: Lake, request: pytest.FixtureRequest) -> dict[str, str]:
    """Return options of policies that keep wrapped keys in the files, and beside them."""
    if request.param == "policy":
        return lake.by_policy
    return lake.variant("external", "internal_key_material = false")


def put(folder: Path, name: str, ids: range, **more: Any) -> Path:
    """Put an encrypted file into a folder, with these rows of `small_table`, at a known time."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    encryption = mc.FileEncryptionProperties(footer_key=FOOTER)
    mc.write_table(small_table(ids.stop).slice(ids.start), path, encryption, **more)
    os.utime(path, (ids.start, ids.start))
    return path


def keys(lake: Lake) -> dict[str, str]:
    """Return the options that read what `put` writes."""
    return {"footerKey": lake.by_keys["footerKey"]}


def run(
    spark: Any, source: Path, reading: Mapping[str, str], sink: Path, writing: Mapping[str, str],
    **more: Any,
) -> Any:  # fmt: skip
    """Stream the files of a folder into another; return the query, which has ended."""
    frame = spark.readStream.format("modcrypt").options(**reading)
    if "schema" in more:
        frame = frame.schema(more["schema"])
    frame = frame.load(str(source))
    frame = more.get("change", lambda same: same)(frame)
    query = (
        frame.writeStream.format("modcrypt")
        .options(**writing, checkpointLocation=str(sink.with_name("checkpoint")))
        .trigger(availableNow=True)
        .start(str(sink))
    )
    query.awaitTermination()
    return query


def ids_in(folder: Path, decryption: mc.FileDecryptionProperties) -> list[int]:
    """Compare the rows of a table with those that `put` wrote; return their ids."""
    table = mc.read_table(folder, decryption).sort_by("id")
    ids: list[int] = table["id"].to_pylist()
    for row in table.to_pylist():
        assert row == ROWS[row["id"]]
    return ids


ROWS = small_table(100).to_pylist()


def everything_in(folder: Path) -> set[str]:
    """List what is in a folder, hidden or not, but the records of batches."""
    found = {str(path.relative_to(folder)) for path in folder.rglob("*")}
    return {name for name in found if not name.startswith(batches.RECORDS)}


# --- from folder to folder -----------------------------------------------------------------------


def test_each_file_goes_through_once_whatever_restarts(
    spark: Any, spark_folder: Path, lake: Lake, options: dict[str, str], tmp_path: Path
) -> None:
    source, sink = tmp_path / "in", tmp_path / "out"
    put(source, "a.parquet", range(10))
    put(source, "b.parquet", range(10, 20))
    for hidden in ("_tmp_job/c.parquet", "_c.parquet", ".c.parquet"):
        put(source, hidden, range(90, 99))
    run(spark, source, keys(lake), sink, options)
    assert ids_in(sink, lake.open(options)) == list(range(20))
    before = everything_in(sink)

    run(spark, source, keys(lake), sink, options)
    assert everything_in(sink) == before

    put(source, "later.parquet", range(30, 40))
    put(source, "late with an old time.parquet", range(5, 6)).touch()
    os.utime(source / "late with an old time.parquet", (3, 3))
    shutil.copy(source / "b.parquet", source / "new.tmp")
    os.replace(source / "new.tmp", source / "b.parquet")  # the same name, written again
    run(spark, source, keys(lake), sink, options)
    assert ids_in(sink, lake.open(options)) == sorted([*range(20), 5, *range(30, 40)])

    data = {name for name in everything_in(sink) if name.startswith("part-")}
    assert before <= everything_in(sink)
    material = {f"_KEY_MATERIAL_FOR_{name}.json" for name in data}
    assert everything_in(sink) == (data | material if options != lake.by_policy else data)
    for folder in (tmp_path / "checkpoint", sink, spark_folder / "events"):
        text = b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())
        assert b"modcrypt" in text or folder != spark_folder / "events"
        for secret in SECRETS:
            for spelling in (secret, secret.hex().encode(), b64encode(secret)):
                assert spelling not in text


def test_batches_have_as_many_files_as_asked_oldest_first(
    spark: Any, lake: Lake, tmp_path: Path
) -> None:
    source, sink = tmp_path / "in", tmp_path / "out"
    for number, name in enumerate("edcba"):
        put(source, f"{name}.parquet", range(number * 10, number * 10 + 10))
    reading = keys(lake) | {"maxFilesPerTrigger": "2"}
    run(spark, source, reading, sink, keys(lake), change=lambda frame: frame.coalesce(1))
    found = {}
    for path in sink.glob("part-*"):
        (query,) = {
            path.name[11:47],
            json.loads((tmp_path / "checkpoint/metadata").read_text())["id"],
        }
        batch = path.name.removeprefix(f"part-00000-{query}-").partition("-")[0]
        found[int(batch)] = read_with_pyarrow(path, FOOTER)["id"].to_pylist()
    assert found == {0: list(range(20)), 1: list(range(20, 40)), 2: list(range(40, 50))}


def test_a_batch_killed_before_its_checkpoint_is_not_written_twice(
    spark: Any, lake: Lake, options: dict[str, str], tmp_path: Path
) -> None:
    source, sink = tmp_path / "in", tmp_path / "out"
    put(source, "a.parquet", range(20))
    run(spark, source, keys(lake), sink, options)
    before = everything_in(sink)
    for name in ("0", ".0.crc"):  # as if killed just between the two
        (tmp_path / "checkpoint" / "commits" / name).unlink()
    put(source, "b.parquet", range(20, 30))
    query = run(spark, source, keys(lake), sink, options, change=lambda f: f.repartition(2))
    assert [progress["numInputRows"] for progress in query.recentProgress[:2]] == [20, 10]
    assert before < everything_in(sink)
    assert ids_in(sink, lake.open(options)) == list(range(30))
    assert not list(sink.glob("_tmp_*"))


def test_a_task_that_fails_leaves_nothing_and_its_batch_can_be_run_again(
    spark: Any, lake: Lake, tmp_path: Path
) -> None:
    source, sink = tmp_path / "in", tmp_path / "out"
    put(source, "a.parquet", range(10))
    path = put(source, "b.parquet", range(10, 20))
    good = path.read_bytes()
    path.write_bytes(good[:100] + bytes([good[100] ^ 1]) + good[101:])
    reading = keys(lake) | {"maxSplitBytes": str(len(good) + 1)}  # a task for each
    with pytest.raises(StreamingQueryException, match=r"TagMismatchError.*b\.parquet"):
        run(spark, source, reading, sink, lake.by_policy)
    assert not list(sink.rglob("*"))
    path.write_bytes(good)
    run(spark, source, reading, sink, lake.by_policy)
    assert ids_in(sink, lake.open(lake.by_policy)) == list(range(20))
    assert len(list(sink.glob("part-*"))) == 2


def test_folders_of_a_source_are_columns_and_a_sink_has_its_own(
    spark: Any, lake: Lake, tmp_path: Path
) -> None:
    source, sink = tmp_path / "in", tmp_path / "out"
    put(source, "country=NO/year=007/a.parquet", range(5))
    put(source, "country=a%20b/year=008/a.parquet", range(5, 10))
    schema = "id bigint, country string, year string"
    writing = keys(lake) | {"partitionBy": "country"}
    run(spark, source, keys(lake) | {"filters": '[["id", "!=", 3]]'}, sink, writing, schema=schema)
    assert {path.name for path in sink.glob("country=*")} == {"country=NO", "country=a%20b"}
    table = mc.read_table(sink, mc.FileDecryptionProperties(footer_key=FOOTER)).sort_by("id")
    assert table.select(["id", "year", "country"]).to_pylist() == [
        {"id": n, "year": "007" if n < 5 else "008", "country": "NO" if n < 5 else "a b"}
        for n in range(10)
        if n != 3
    ]


def test_an_output_mode_that_would_replace_the_table_is_refused(
    spark: Any, lake: Lake, tmp_path: Path
) -> None:
    put(tmp_path / "in", "a.parquet", range(5))
    frame = spark.readStream.format("modcrypt").options(**keys(lake)).load(str(tmp_path / "in"))
    stream = frame.groupBy("flag").count().writeStream.format("modcrypt").outputMode("complete")
    stream = stream.options(**keys(lake), checkpointLocation=str(tmp_path / "checkpoint"))
    with pytest.raises(StreamingQueryException, match="foreachBatch"):
        stream.trigger(availableNow=True).start(str(tmp_path / "out")).awaitTermination()
    assert not (tmp_path / "out").exists()


# --- the source, by itself -----------------------------------------------------------------------


def schema_of(table: pa.Table) -> StructType:
    return to_spark_schema(to_common_schema(table.schema))


SCHEMA = schema_of(small_table(50))


def reader(lake: Lake, folder: object, **more: str) -> Any:
    return stream_reader({**keys(lake), "path": str(folder), **more}, SCHEMA)


def after(reader: Any, start: Any = None, most: int | None = None) -> tuple[list[str], Any]:
    """Return the files of the next batch, and the offset after it as Spark stores it."""
    limit = ReadAllAvailable() if most is None else ReadMaxFiles(most)
    start = reader.initialOffset() if start is None else start
    end = json.loads(json.dumps(reader.latestOffset(start, limit)))
    return ([] if end == start else end["files"]), end


def read(reader: Any, start: Any, end: Any) -> list[int]:
    tasks = reader.partitions(start, end)
    return [n for task in tasks for batch in reader.read(task) for n in batch["id"].to_pylist()]


def test_what_is_there_now_is_all_that_available_now_takes(lake: Lake, tmp_path: Path) -> None:
    put(tmp_path, "b.parquet", range(3))
    put(tmp_path, "a.parquet", range(3, 6))
    source = reader(lake, tmp_path)
    source.prepareForTriggerAvailableNow()
    put(tmp_path, "0.parquet", range(6, 9))
    first, end = after(source, most=1)
    second, end = after(source, end, most=5)
    assert (first, second) == (["b.parquet"], ["a.parquet"])
    assert after(source, end) == ([], end)
    assert after(reader(lake, tmp_path), end)[0] == ["0.parquet"]  # a later run


def test_what_is_written_again_is_read_as_it_is_and_not_taken_again(
    lake: Lake, tmp_path: Path
) -> None:
    path = put(tmp_path, "a.parquet", range(3))
    source = reader(lake, tmp_path)
    start, (_, end) = source.initialOffset(), after(source)
    put(tmp_path, "a.parquet", range(10, 14))
    os.utime(path, (10**6, 10**6))
    assert read(source, start, end) == [10, 11, 12, 13]
    assert after(source, end) == ([], end)
    assert source.partitions(end, end) == []


def test_what_is_gone_fails_the_batch_unless_that_is_wanted(lake: Lake, tmp_path: Path) -> None:
    for number, name in enumerate("abc"):
        put(tmp_path, name, range(number * 3, number * 3 + 3))
    source = reader(lake, tmp_path)
    start, (_, end) = source.initialOffset(), after(source)
    (tmp_path / "b").unlink()
    with pytest.raises(FileNotFoundError, match=r"b and 0 more.*ignoreMissingFiles"):
        source.partitions(start, end)
    other = reader(lake, tmp_path, ignoreMissingFiles="true")
    assert read(other, start, end) == [0, 1, 2, 6, 7, 8]
    assert after(other, end) == ([], end)


def test_parts_of_a_file_that_is_replaced_meanwhile_are_not_put_together(
    lake: Lake, tmp_path: Path
) -> None:
    put(tmp_path, "a.parquet", range(20), row_group_size=5)
    source = reader(lake, tmp_path, maxSplitBytes="4000")
    start, (_, end) = source.initialOffset(), after(source)
    tasks = source.partitions(start, end)
    assert len(tasks) > 1
    assert sorted(read(source, start, end)) == list(range(20))
    list(source.read(tasks[0]))
    put(tmp_path, "a.parquet", range(20, 40), row_group_size=5)
    with pytest.raises(OSError, match="replaced while it was being read"):
        list(source.read(tasks[1]))


def test_offsets_of_somebody_else_are_refused(lake: Lake, tmp_path: Path) -> None:
    put(tmp_path, "a.parquet", range(3))
    source = reader(lake, tmp_path)
    _, end = after(source)
    with pytest.raises(ValueError, match="do not belong to one batch"):
        source.partitions({"files": [], "seen": "x" * 12}, end)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"maxFilesPerTrigger": "0"}, "at least 1"),
        ({"ignoreMissingFiles": "perhaps"}, "true or false"),
        ({"paths": '["a", "b"]'}, "one folder"),
        ({"maxFiles": "1"}, "unknown option maxfiles"),
    ],
)
def test_a_source_that_is_asked_wrongly_says_so(
    lake: Lake, tmp_path: Path, more: dict[str, str], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        reader(lake, tmp_path, **more)
    for path in (put(tmp_path, "a.parquet", range(3)), tmp_path / "nothing"):
        with pytest.raises(NotADirectoryError, match="reads a folder"):
            reader(lake, path)


def test_what_spark_pickles_has_no_key(lake: Lake, tmp_path: Path) -> None:
    for options in (lake.by_keys, lake.by_policy):
        given = {**options, "path": str(tmp_path)}
        both = stream_reader(given, SCHEMA), stream_writer(given, SCHEMA, overwrite=False)
        for form in (pickle.dumps(both), repr(both).encode()):
            for secret in SECRETS:
                for spelling in (secret, secret.hex().encode(), b64encode(secret)):
                    assert spelling not in form


# --- batches that are killed while they are published --------------------------------------------


def task(base: str, number: int, run: str, ids: range, encryption: Any) -> Written:
    """Write the files of a task under its names; return its message."""
    folder = f"{job_folder(base, QUERY)}/_tmp_{QUERY}-7-{run}/{number:05}-{number}"
    name = f"part-{number:05}-{QUERY}-7-{run}-{number}-0.parquet"
    mc.write_dataset(
        small_table(ids.stop).slice(ids.start), folder, encryption, basename_template=f"{name}{{i}}"
    )
    return Written(folder, (f"{name}0",))


class Killed(BaseException):
    """The process is gone."""


@pytest.mark.parametrize("steps", range(9))
def test_a_batch_killed_at_whatever_step_is_completed_once(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    external = lake.variant("external", "internal_key_material = false")
    from modcrypt.spark.source.options import write_options

    base = str(tmp_path)
    encryption = write_options({**external, "path": base})[0].encryption()
    first = [task(base, n, "one", range(n * 10, n * 10 + 10), encryption) for n in range(2)]
    left = steps

    def count_down(original: Any) -> Any:
        def step(*arguments: Any) -> Any:
            nonlocal left
            if left <= 0:
                raise Killed
            left -= 1
            return original(*arguments)

        return step

    with monkeypatch.context() as patch:
        patch.setattr(batches, "_AT_ONCE", 1)
        for name in ("_write_record", "_move", "remove_job"):  # 1, 4, 1 again, 1
            patch.setattr(batches, name, count_down(getattr(batches, name)))
        try:
            publish_batch(base, QUERY, 7, first)
        except Killed:
            assert steps < 7
        else:
            assert steps >= 7
    assert len(list_complete(Place(None, base))) in (0, 2)  # what readers see
    remove_abandoned(base)  # as another write to the table does
    seen = {path.name for path in tmp_path.glob("part-*")}
    # The rows come in other files this time, or fail before they do.
    if steps % 2:
        drop_batch(base, QUERY)
    second = [task(base, n, "two", range(n * 20, n * 20 + 20), encryption) for n in range(1)]
    publish_batch(base, QUERY, 7, second)
    assert ids_in(tmp_path, lake.open(external)) == list(range(20))
    assert seen <= everything_in(tmp_path)
    decided = "one" if steps else "two"
    assert all(f"-7-{decided}-" in path.name for path in tmp_path.glob("*part-*"))
    assert not list(tmp_path.glob("_tmp_*"))


def test_a_record_that_was_changed_moves_nothing(lake: Lake, tmp_path: Path) -> None:
    base = str(tmp_path / "t")
    record = tmp_path / "t" / batches.RECORDS / f"{QUERY}.json"
    record.parent.mkdir(parents=True)
    (tmp_path / "victim").touch()
    staged = f"_tmp_{QUERY}"
    for pending in (
        [["..", "victim"]],
        [[f"{staged}/..", "victim"]],
        [[f"{staged}/x", "../../victim"]],
        [[f"{staged}/x", "/etc/passwd"]],
        [["other", "a"]],
        [[f"{staged}/x"]],
        [[f"{staged}/x", 1]],
        5,
    ):
        record.write_text(json.dumps({"batch": 7, "pending": pending}))
        with pytest.raises(mc.errors.FormatError, match="not a record of a stream's batches"):
            drop_batch(base, QUERY)
    record.write_text("[" * 10000)
    with pytest.raises(mc.errors.FormatError, match="not a record of a stream's batches"):
        publish_batch(base, QUERY, 8, [Written("", ())])
    assert [path.name for path in (tmp_path / "t").iterdir()] == [batches.RECORDS]


def test_a_checkpoint_that_is_older_than_the_table_is_refused(lake: Lake, tmp_path: Path) -> None:
    base = str(tmp_path)
    encryption = mc.FileEncryptionProperties(footer_key=FOOTER)
    publish_batch(base, QUERY, 7, [task(base, 0, "one", range(3), encryption)])
    with pytest.raises(ValueError, match="older than the table"):
        publish_batch(base, QUERY, 6, [task(base, 0, "two", range(3, 6), encryption)])
    drop_batch(base, QUERY)
    assert len(everything_in(tmp_path)) == 1


def test_a_file_lost_before_it_was_published_is_not_passed_over(lake: Lake, tmp_path: Path) -> None:
    base = str(tmp_path)
    made = task(base, 0, "one", range(3), mc.FileEncryptionProperties(footer_key=FOOTER))
    (Path(made.folder) / made.files[0]).unlink()
    for _ in range(2):
        with pytest.raises(FileNotFoundError, match="was lost"):
            publish_batch(base, QUERY, 7, [made])


def test_an_abort_without_a_message_finds_its_query_in_the_checkpoint(
    lake: Lake, tmp_path: Path
) -> None:
    base, checkpoint = tmp_path / "t", tmp_path / "checkpoint"
    task(str(base), 0, "one", range(3), mc.FileEncryptionProperties(footer_key=FOOTER))
    given = {**keys(lake), "path": str(base)}
    stream_writer(given, SCHEMA, overwrite=False).abort([None], 7)
    assert list(base.glob("_tmp_*"))  # left to the next run
    given["checkpointLocation"] = str(checkpoint)
    writer = stream_writer(given, SCHEMA, overwrite=False)
    writer.abort([None], 7)
    checkpoint.mkdir()
    for text in ("{", '{"id": "../.."}', json.dumps({"id": QUERY})):
        assert list(base.glob("_tmp_*"))
        (checkpoint / "metadata").write_text(text)
        writer.abort([None], 7)
    assert not list(base.iterdir())
    with pytest.raises(ValueError, match="did not report"):
        writer.commit([None, Written("", (), QUERY)], 7)


# --- in a store ----------------------------------------------------------------------------------


def test_streams_go_through_stores(lake: Lake, tmp_path: Path) -> None:
    fsspec = pytest.importorskip("fsspec")
    store, base = fsspec.filesystem("memory"), f"memory://{tmp_path.name}"
    encryption = mc.FileEncryptionProperties(footer_key=FOOTER)
    try:
        publish_batch(base, QUERY, 7, [task(base, 0, "one", range(5), encryption)])
        publish_batch(base, QUERY, 7, [task(base, 0, "two", range(5), encryption)])
        publish_batch(base, QUERY, 8, [task(base, 0, "three", range(5, 9), encryption)])
        names = [path.rpartition("/")[2] for path in store.find(base)]
        assert len([name for name in names if name.startswith("part-")]) == 2
        assert not [path for path in store.find(base) if "_tmp_" in path]
        source = reader(lake, base)
        files, end = after(source, most=1)
        assert "one" in files[0]
        assert read(source, source.initialOffset(), end) == list(range(5))
        (file,), last = after(source, end)
        assert read(source, end, last) == list(range(5, 9))
        store.rm_file(f"{base}/{file}")
        with pytest.raises(FileNotFoundError, match="ignoreMissingFiles"):
            source.partitions(end, last)
    finally:
        store.rm(base, recursive=True)
