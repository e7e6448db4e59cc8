"""Writing encrypted tables with Spark; what is right, modcrypt, PyArrow and Spark's reader tell."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow.fs import SubTreeFileSystem
from pyspark.errors import AnalysisException, PySparkException

import modcrypt as mc
from modcrypt.spark.arrow_types import in_common, spark_schema
from modcrypt.spark.options import write_options
from modcrypt.spark.writing import Writer, Written, publish_files, remove_job
from tests.spark.conftest import FOOTER, Elsewhere, Lake
from tests.support import read_with_pyarrow, small_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from tests.servers import ObjectStore

ROWS = 400


@pytest.fixture(scope="module")
def people(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> DataFrame:
    """Give the rows of `small_table`, as Spark reads them from plaintext."""
    path = tmp_path_factory.mktemp("people") / "plain.parquet"
    pq.write_table(small_table(ROWS), path)
    frame: DataFrame = spark.read.parquet(str(path))
    return frame


def save(
    frame: DataFrame, folder: Path, options: dict[str, str], mode: str = "append", **more: str
) -> None:
    frame.write.format("modcrypt").mode(mode).options(**options, **more).save(str(folder))


def load(spark: Any, folder: Path, options: dict[str, str]) -> DataFrame:
    frame: DataFrame = spark.read.format("modcrypt").options(**options).load(str(folder))
    return frame


def rows(frame: DataFrame) -> list[str]:
    return sorted(str(row) for row in frame.collect())


def files_in(folder: Path) -> list[str]:
    """List everything, hidden or not, but folders."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


# --- what is written -----------------------------------------------------------------------------


def test_modcrypt_reads_what_spark_wrote_and_so_does_spark(
    spark: Any, lake: Lake, people: DataFrame, tmp_path: Path
) -> None:
    for options in (lake.by_policy, lake.by_keys):
        folder = tmp_path / str(len(options))
        save(people.repartition(3), folder, options)
        assert len(files_in(folder)) == 3
        table = mc.read_table(folder, lake.open(options))
        assert table.sort_by("id").equals(small_table(ROWS))
        back = load(spark, folder, options)
        assert back.schema == people.schema
        assert rows(back) == rows(people)


def test_pyarrow_reads_what_spark_wrote_under_one_key(
    lake: Lake, people: DataFrame, tmp_path: Path
) -> None:
    save(people.coalesce(1), tmp_path, {"footerKey": lake.by_keys["footerKey"]}, compression="zstd")
    (name,) = files_in(tmp_path)
    table = read_with_pyarrow(tmp_path / name, FOOTER)
    assert table.equals(small_table(ROWS))


def test_every_type_of_spark_comes_back(spark: Any, lake: Lake, tmp_path: Path) -> None:
    frame = spark.sql(
        """
        SELECT id, cast(id AS tinyint) i8, cast(id AS smallint) i16, cast(id AS int) i32,
          cast(id AS float) f32, cast(id AS double) / 3 f64, cast(id AS decimal(38, 18)) d,
          id % 2 = 0 b, cast(id AS string) s, cast('x' AS binary) bin, date'0001-01-01' day,
          timestamp'1969-12-31 23:59:59.999999' at, timestamp_ntz'2400-01-01 00:00:00.000001' ntz,
          array(id, null) list, map('k', array(id)) map, named_struct('a', id, 'b', null) st,
          INTERVAL '1 02:03:04.5' DAY TO SECOND span, time'12:34:56.789' clock,
          cast(null AS string) nothing
        FROM range(20)
        """
    ).drop("st")
    save(frame, tmp_path, {"footerKey": lake.by_keys["footerKey"]})
    back = load(spark, tmp_path, {"footerKey": lake.by_keys["footerKey"]})
    assert back.dtypes == frame.dtypes
    assert rows(back) == rows(frame)
    table = mc.read_table(tmp_path, mc.FileDecryptionProperties(footer_key=FOOTER))
    assert table.schema.field("at").type == pa.timestamp("us", "UTC")


def test_key_material_lies_beside_each_file_and_goes_with_it(
    spark: Any, lake: Lake, people: DataFrame, tmp_path: Path
) -> None:
    options = lake.variant("external", "internal_key_material = false")
    for mode in ("append", "append", "overwrite"):
        save(people.repartition(2), tmp_path, options, mode, partitionBy="flag")
    found = files_in(tmp_path)
    data = [name for name in found if "KEY_MATERIAL" not in name]
    assert len(data) == 4  # two folders, and in each a file of each task
    assert sorted(set(found) - set(data)) == sorted(
        f"{os.path.dirname(name)}/_KEY_MATERIAL_FOR_{os.path.basename(name)}.json" for name in data
    )
    table = mc.read_table(tmp_path, lake.open(options))
    assert sorted(table["id"].to_pylist()) == list(range(ROWS))
    assert load(spark, tmp_path, options).count() == ROWS


def test_partition_columns_become_folders(
    spark: Any, lake: Lake, people: DataFrame, tmp_path: Path
) -> None:
    frame = people.selectExpr(
        "id", "name", "if(id % 3 = 0, null, id % 3) part", "'a b/c' odd", "address"
    )
    save(frame, tmp_path, lake.by_policy, partitionBy="part,odd")
    folders = {os.path.dirname(name) for name in files_in(tmp_path)}
    assert folders == {
        f"part={part}/odd=a%20b%2Fc" for part in ("1", "2", "__HIVE_DEFAULT_PARTITION__")
    }
    back = load(spark, tmp_path, lake.by_policy).selectExpr(*frame.columns)
    assert rows(back) == rows(
        frame.selectExpr("id", "name", "cast(part as int) part", "odd", "address")
    )


def test_files_of_a_table_cannot_exchange_partitions(
    spark: Any, lake: Lake, people: DataFrame, tmp_path: Path
) -> None:
    by_path = {**lake.by_policy, "aadPrefix": "people/{path}"}
    save(people.selectExpr("*", "id % 2 part").coalesce(1), tmp_path, by_path, partitionBy="part")
    assert load(spark, tmp_path, by_path).count() == ROWS
    part = {**by_path, "root": str(tmp_path)}
    assert load(spark, tmp_path / "part=1", part).count() == ROWS // 2
    one, other = (next((tmp_path / f"part={n}").glob("*.parquet")) for n in (0, 1))
    spare = tmp_path / "part=0" / "_spare"
    one.rename(spare)
    other.rename(one)
    spare.rename(other)
    with pytest.raises(PySparkException, match=r"aad|AAD"):
        load(spark, tmp_path, by_path).count()


def test_tasks_of_a_job_share_no_prefix_unless_that_is_asked_for(lake: Lake) -> None:
    one_prefix = {"path": "/lake", **lake.by_policy, "aadPrefix": "people"}
    with pytest.raises(ValueError, match="would have the same AAD prefix"):
        write_options(one_prefix)
    write_options({**one_prefix, "sharedAadPrefix": "true"})
    with pytest.raises(ValueError, match="sharedAadPrefix is true or false"):
        write_options({**one_prefix, "sharedAadPrefix": "yes"})
    for own in ("people/{path}", "people/{name}"):
        write_options({**one_prefix, "aadPrefix": own})
        with pytest.raises(ValueError, match="root is for reading"):
            write_options({**one_prefix, "aadPrefix": own, "root": "/"})


def test_files_and_row_groups_are_as_large_as_asked(
    lake: Lake, people: DataFrame, tmp_path: Path
) -> None:
    options = {"maxRowsPerFile": "150", "rowGroupRows": "40", "compression": "gzip"}
    save(people.coalesce(1), tmp_path, lake.by_policy | options)
    counts = []
    for name in files_in(tmp_path):
        with mc.ParquetFile(tmp_path / name, lake.open(lake.by_policy)) as file:
            groups = [file.metadata.row_group(n) for n in range(file.num_row_groups)]
        counts.append([group.num_rows for group in groups])
        assert groups[0].column(0).compression == "GZIP"
    assert counts == [[40, 40, 40, 30], [40, 40, 40, 30], [40, 40, 20]]


def test_a_table_without_rows_keeps_its_columns(
    spark: Any, lake: Lake, people: DataFrame, tmp_path: Path
) -> None:
    save(people.where("id < 0"), tmp_path, lake.by_policy)
    assert len(files_in(tmp_path)) == 1
    back = load(spark, tmp_path, lake.by_policy)
    assert back.schema == people.schema
    assert back.count() == 0


# --- all or nothing ------------------------------------------------------------------------------


def failing(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield batch
        if batch["id"][0].as_py() >= ROWS // 2:
            raise RuntimeError("told to fail")


def test_a_job_that_fails_leaves_nothing_and_takes_nothing(
    spark: Any, lake: Lake, people: DataFrame, tmp_path: Path
) -> None:
    doomed = people.orderBy("id").repartitionByRange(4, "id").mapInArrow(failing, people.schema)
    options = lake.variant("external", "internal_key_material = false")
    with pytest.raises(PySparkException, match="told to fail"):
        save(doomed, tmp_path / "new", options)
    assert files_in(tmp_path / "new") == []
    assert not list((tmp_path / "new").glob("_tmp_*"))
    save(people, tmp_path / "old", options)
    before = files_in(tmp_path / "old")
    with pytest.raises(PySparkException, match="told to fail"):
        save(doomed, tmp_path / "old", options, "overwrite")
    assert files_in(tmp_path / "old") == before
    save(people, tmp_path / "old", options, "overwrite")  # the second run of the same job
    assert rows(load(spark, tmp_path / "old", options)) == rows(people)
    assert not set(files_in(tmp_path / "old")) & set(before)


def test_a_table_may_be_overwritten_by_what_is_read_from_it(
    spark: Any, lake: Lake, people: DataFrame, tmp_path: Path
) -> None:
    save(people, tmp_path, lake.by_policy, partitionBy="flag")
    (tmp_path / "_SUCCESS").touch()
    half = load(spark, tmp_path, lake.by_policy).where("id < 200 and flag = 'true'")
    save(half, tmp_path, lake.by_policy, "overwrite")
    assert load(spark, tmp_path, lake.by_policy).count() == 67
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == []  # flag=false is empty
    assert (tmp_path / "_SUCCESS").exists()  # no data


def test_what_can_not_be_published_is_taken_back(lake: Lake, tmp_path: Path) -> None:
    task = tmp_path / "_tmp_job" / "00000-1"
    task.mkdir(parents=True)
    for name in ("a", "b", "c"):
        (task / name).write_text(f"new {name}")
        (task / f"_KEY_MATERIAL_FOR_{name}.json").write_text(f"keys of {name}")
    (tmp_path / "b").write_text("somebody else's")
    (tmp_path / "old").write_text("old")
    message = Written(str(task), ("a", "b", "c"))
    with pytest.raises(FileExistsError):
        publish_files(str(tmp_path), [message], overwrite=True)
    remove_job(str(tmp_path), "job")
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {
        "b": "somebody else's",
        "old": "old",
    }


def test_a_second_attempt_beside_the_first_is_not_published(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both end; Spark takes one of them. (It starts none on the same host: so told by hand.)"""
    batches = small_table(10).to_batches()
    schema = spark_schema(in_common(batches[0].schema))
    settings, options = write_options(
        {**lake.variant("external", "internal_key_material = false"), "path": str(tmp_path)}
    )
    writer = pickle.loads(pickle.dumps(Writer(settings, options, schema, overwrite=False)))
    told = []
    for attempt in (11, 12):
        task = SimpleNamespace(partitionId=lambda: 3, taskAttemptId=lambda n=attempt: n)
        monkeypatch.setattr("pyspark.TaskContext.get", lambda task=task: task)
        told.append(writer.write(iter(batches)))
    assert len(files_in(tmp_path)) == 4 + 1  # which says that the job is running
    assert not [name for name in files_in(tmp_path) if not name.startswith("_tmp_")]
    pickle.loads(pickle.dumps(writer)).commit(told[1:])
    (material, data) = files_in(tmp_path)
    assert data.startswith("part-00003-")
    assert material == f"_KEY_MATERIAL_FOR_{data}.json"
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == []
    assert mc.read_table(tmp_path, settings.decryption()).num_rows == 10


def test_an_attempt_that_outlives_its_job_leaves_nothing(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark aborts a job without waiting for the attempts that it stops."""
    batches = small_table(40).to_batches(max_chunksize=10)
    schema = spark_schema(in_common(batches[0].schema))
    more = {"path": str(tmp_path), "maxRowsPerFile": "10"}
    external = lake.variant("external", "internal_key_material = false")
    task = SimpleNamespace(partitionId=lambda: 0, taskAttemptId=lambda: 1)
    monkeypatch.setattr("pyspark.TaskContext.get", lambda: task)
    for partitions in ({}, {"partitionBy": "flag"}):
        settings, options = write_options(external | more | {"partitionBy": "", **partitions})
        writer = Writer(settings, options, schema, overwrite=False)
        begun: list[list[str]] = []

        def aborted(writer: Writer = writer, begun: list[list[str]] = begun) -> Iterator[Any]:
            yield from batches[:3]
            begun.append(files_in(tmp_path))
            pickle.loads(pickle.dumps(writer)).abort([None])
            yield from batches[3:]

        with pytest.raises((InterruptedError, FileNotFoundError)):
            writer.write(aborted())
        assert any(name.startswith("_tmp_") for name in begun[0])
        assert list(tmp_path.iterdir()) == []


UNSTEADY = """
import json, os, sys
from pyspark import TaskContext

folder, options = sys.argv[1], json.loads(sys.argv[2])

def unsteady(batches):
    task = TaskContext.get()
    first = task.attemptNumber() == 0
    for batch in batches:
        yield batch
    open(f"{folder}/ran-{task.partitionId()}-{task.attemptNumber()}", "w").close()
    if task.partitionId() == 1 and first:
        raise RuntimeError("the first attempt fails after its last row")
    if task.partitionId() == 2 and first:
        os._exit(7)

frame = spark.range(0, 4000, 1, 4)
frame = frame.mapInArrow(unsteady, frame.schema)
frame.write.format("modcrypt").mode("append").options(**options).save(folder + "/t")
"""


@pytest.mark.slow
def test_retries_and_killed_workers_leave_nothing(
    lake: Lake, tmp_path: Path, cluster: Elsewhere
) -> None:
    text = lake.policy.read_text().partition("[column_keys]")[0]
    (lake.folder / "uniform.toml").write_text(f"internal_key_material = false\n{text}")
    options = {"policy": str(lake.folder / "uniform.toml")}
    cluster.run(UNSTEADY, tmp_path, json.dumps(options))
    ran = {path.name for path in tmp_path.glob("ran-*")}
    assert {"ran-1-0", "ran-1-1", "ran-2-0", "ran-2-1"} <= ran  # all of it came to pass
    names = files_in(tmp_path / "t")
    data = [name for name in names if not name.startswith("_")]
    assert [name[:10] for name in data] == [f"part-{n:05}" for n in range(4)]
    assert [name for name in names if name.startswith("_")] == [
        f"_KEY_MATERIAL_FOR_{name}.json" for name in data
    ]
    assert not list((tmp_path / "t").glob("_tmp_*"))
    table = mc.read_table(tmp_path / "t", lake.open(options))
    assert sorted(table["id"].to_pylist()) == list(range(4000))


def test_tables_in_a_store(spark: Any, store: ObjectStore, lake: Lake, tmp_path: Path) -> None:
    options = lake.variant("external", "internal_key_material = false")
    pq.write_table(small_table(60), tmp_path / "plain.parquet")
    frame = spark.read.parquet(str(tmp_path / "plain.parquet"))
    judge, table = store.judge(), "s3://written/t"
    judge.create_bucket(Bucket="written")
    for mode in ("append", "append", "overwrite"):
        write = frame.repartition(2).write.format("modcrypt").mode(mode).options(**options)
        write.option("partitionBy", "flag").save(table)
    back = spark.read.format("modcrypt").options(**options).load(table)
    frame = frame.drop("flag")  # in the names of folders, it is text
    assert sorted(map(str, back.drop("flag").collect())) == sorted(map(str, frame.collect()))
    keys = [one["Key"] for one in judge.list_objects_v2(Bucket="written")["Contents"]]
    assert len(keys) == 8  # of two tasks in two folders, each a file and its key material
    assert {key.rpartition("/")[0] for key in keys} == {"t/flag=false", "t/flag=true"}
    files = SubTreeFileSystem("written", store.arrow())
    found = mc.read_table("t", lake.open(options), filesystem=files)
    assert sorted(found["id"].to_pylist()) == list(range(60))


# --- refused at once -----------------------------------------------------------------------------


def test_what_can_not_be_written_is_refused_before_a_task_runs(
    spark: Any, lake: Lake, people: DataFrame, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    footer = {"footerKey": lake.by_keys["footerKey"]}
    cases: list[tuple[DataFrame, Path, dict[str, str], str]] = [
        (people.drop("name"), tmp_path / "t", lake.by_policy, "name"),
        (people, tmp_path / "t", lake.by_policy | {"partitionBy": "name"}, "names of folders"),
        (people, tmp_path / "t", footer | {"partitionBy": "nix"}, "there is no column nix"),
        (
            people.select("id"),
            tmp_path / "t",
            footer | {"partitionBy": "id"},
            "no columns are left",
        ),
        (people, tmp_path / "t", footer | {"compression": "best"}, "(?i)compression"),
        (people, tmp_path / "file", footer, "is a file"),
        (people, tmp_path / "t", {"kms": "file:ring"}, "by a policy, or with a footer_key"),
        (spark.sql("select parse_json('1') v"), tmp_path / "t", footer, "variant is not written"),
    ]
    for frame, folder, options, message in cases:
        with pytest.raises(AnalysisException, match=message):
            save(frame, folder, options)
    assert not (tmp_path / "t").exists()


def test_a_table_has_one_folder(lake: Lake) -> None:
    with pytest.raises(ValueError, match="a table is written to one folder"):
        write_options({"paths": '["a", "b"]', **lake.by_keys})
