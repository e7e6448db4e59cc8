"""Writing encrypted tables with Spark; modcrypt, PyArrow and Spark's reader judge."""

from __future__ import annotations

import errno
import itertools
import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow.fs import SubTreeFileSystem
from pyspark.errors import AnalysisException, PySparkException

import modcrypt as mc
from modcrypt.io.places import Place
from modcrypt.parquet.datasets.write_notes import NOTES
from modcrypt.spark import java_home
from modcrypt.spark.source import abandoned_writes as abandoned
from modcrypt.spark.source import job_publication
from modcrypt.spark.source.arrow_types import to_common_schema, to_spark_schema
from modcrypt.spark.source.job_publication import (
    Written,
    publish_files,
    remove_abandoned,
    remove_job,
)
from modcrypt.spark.source.options import write_options
from modcrypt.spark.source.writing import Writer
from tests.support.guide import run_guide
from tests.support.spark.lake import FOOTER, Lake
from tests.support.spark.processes import Elsewhere
from tests.support.tables import read_with_pyarrow, small_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from tests.support.object_store import ObjectStore

ROWS = 400


@pytest.fixture(scope="module")
def people(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> DataFrame:
    """Return the rows of `small_table` as Spark reads them from plaintext."""
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


def test_the_tutorial_runs_as_written(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", java_home())  # the page sets it, too
    run_guide("tutorial-spark.md", tmp_path)


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
    first, other = (next((tmp_path / f"part={n}").glob("*.parquet")) for n in (0, 1))
    spare = tmp_path / "part=0" / "_spare"
    first.rename(spare)
    other.rename(first)
    spare.rename(other)
    with pytest.raises(PySparkException, match=r"aad|AAD"):
        load(spark, tmp_path, by_path).count()


def test_tasks_of_a_job_share_no_prefix_unless_that_is_asked_for(lake: Lake) -> None:
    one_prefix = {"path": "/lake", **lake.by_policy, "aadPrefix": "people"}
    with pytest.raises(ValueError, match="would have the same AAD prefix"):
        write_options(one_prefix)
    write_options({**one_prefix, "sharedAadPrefix": "true"})
    with pytest.raises(ValueError, match="sharedAadPrefix must be true or false"):
        write_options({**one_prefix, "sharedAadPrefix": "yes"})
    for own in ("people/{path}", "people/{name}"):
        write_options({**one_prefix, "aadPrefix": own})
        with pytest.raises(ValueError, match="root is only for reading"):
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


def fail_halfway(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield batch
        if batch["id"][0].as_py() >= ROWS // 2:
            raise RuntimeError("told to fail")


def test_a_job_that_fails_leaves_nothing_and_takes_nothing(
    spark: Any, lake: Lake, people: DataFrame, tmp_path: Path
) -> None:
    doomed = (
        people.orderBy("id").repartitionByRange(4, "id").mapInArrow(fail_halfway, people.schema)
    )
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


def test_a_file_is_not_published_without_its_key_material(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failing file system reports an error, not that there is no key material."""
    written = stage(tmp_path, "job", range(1))

    def fail(path: Any, *args: Any, _real: Any, **named: Any) -> Any:
        if "_KEY_MATERIAL_FOR_" in os.fspath(path):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return _real(path, *args, **named)

    with monkeypatch.context() as patch:
        for name in ("stat", "lstat"):
            patch.setattr(os, name, partial(fail, _real=getattr(os, name)))
        with pytest.raises(OSError, match=os.strerror(errno.EIO)):
            publish_files(str(tmp_path), written, overwrite=False, clean=False)
    assert not ids_in(tmp_path)
    assert publish_files(str(tmp_path), written, overwrite=False)
    assert len(list(tmp_path.glob("p=0/_KEY_MATERIAL_FOR_*"))) == 1


# --- killed drivers ------------------------------------------------------------------------------


def stage(table: Path, job: str, ids: range, *, material: bool = True) -> list[Written]:
    """Write what the tasks of a job would have written, each file in a folder of its own."""
    written = []
    for number in ids:
        task, name = table / f"_tmp_{job}" / f"{number:05}-1", f"part-{number:05}-{job}-1-0.parquet"
        path = task / f"p={number % 2}" / name
        path.parent.mkdir(parents=True)
        write = mc.FileEncryptionProperties(footer_key=FOOTER)
        mc.write_table(pa.table({"id": [number]}), path, write)
        if material:
            path.with_name(f"_KEY_MATERIAL_FOR_{name}.json").write_text("{}")
        written.append(Written(str(task), (f"p={number % 2}/{name}",)))
    (table / f"_tmp_{job}" / "_running").touch()
    return written


def ids_in(table: Path) -> list[int]:
    """Return the sorted ids of a table, none if it has no files."""
    opening = mc.FileDecryptionProperties(footer_key=FOOTER)
    try:
        return sorted(mc.read_table(table, opening, columns=["id"])["id"].to_pylist())
    except ValueError as error:
        if "there are no files" not in str(error):
            raise
        return []


GONE = {
    "host": abandoned.identify_host(),
    "namespace": abandoned._read_namespace(),
    "process": 1,
    "started": "-",
}
"""A driver that is: the process of that number was started at another time."""

CHANGES = {"os.link", "os.remove", "os.rename", "os.rmdir", "os.mkdir", "fcntl.flock"}


def publish_and_kill(change: int, table: Path, messages: list[Written], overwrite: bool) -> bool:
    """Publish in a process that is killed before a change of the file system; return if it was."""
    if (child := os.fork()) == 0:
        left = [change]

        def hook(event: str, _: Any) -> None:
            if event in CHANGES:
                left[0] -= 1
                if left[0] < 0:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(hook)
        publish_files(str(table), messages, overwrite=overwrite)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    assert status in (0, signal.SIGKILL)
    return status != 0


@pytest.mark.slow
@pytest.mark.parametrize("overwrite", [False, True], ids=["append", "overwrite"])
def test_a_driver_that_is_killed_while_it_publishes_leaves_all_or_nothing(
    overwrite: bool, tmp_path: Path
) -> None:
    """At whatever change of the file system; the next write leaves no trace of it."""
    template = tmp_path / "template"
    publish_files(str(template), stage(template, "0" * 16, range(90, 93)), overwrite=False)
    remove_job(str(template), "0" * 16)
    first, old, new = "a" * 16, [90, 91, 92], [0, 1, 2]
    messages = stage(template, first, range(3))
    both = new if overwrite else new + old
    seen = []
    for change in itertools.count():
        table = tmp_path / f"{change}"
        shutil.copytree(template, table)
        folders = [table / Path(message.folder).relative_to(template) for message in messages]
        here = [
            Written(str(f), message.files) for f, message in zip(folders, messages, strict=True)
        ]
        killed = publish_and_kill(change, table, here, overwrite)
        seen.append(ids_in(table))
        assert seen[-1] in (old, both)
        if (table / f"_tmp_{first}").exists():
            (table / f"_tmp_{first}" / "_running").write_text(json.dumps(GONE))
        publish_files(str(table), stage(table, "b" * 16, range(50, 52)), overwrite=False)
        remove_job(str(table), "b" * 16)
        assert ids_in(table) == sorted([*seen[-1], 50, 51])
        assert [path.name for path in table.glob("_*")] == []
        assert len(files_in(table)) == 2 * len(ids_in(table))  # each has its key material
        if not killed:
            break
    assert seen[0] == old
    assert seen[-1] == both
    assert len(seen) > 12


def test_a_publication_that_goes_on_is_left_alone(tmp_path: Path) -> None:
    messages = stage(tmp_path, "a" * 16, range(3))
    reached, go_on = threading.Event(), threading.Event()

    def hook(source: Place, target: Place) -> None:
        reached.set()
        go_on.wait(60)
        move(source, target)

    move = job_publication._move
    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(1) as pool:
        patch.setattr(job_publication, "_move", hook)
        done = pool.submit(publish_files, str(tmp_path), messages, overwrite=False)
        assert reached.wait(60)
        patch.setattr(job_publication, "_move", move)
        other = stage(tmp_path, "b" * 16, range(10, 12))
        publish_files(str(tmp_path), other, overwrite=False)
        assert ids_in(tmp_path) == [10, 11]
        publish_files(str(tmp_path), stage(tmp_path, "c" * 16, range(20, 22)), overwrite=True)
        assert ids_in(tmp_path) == [20, 21]
        go_on.set()
        assert len(done.result(60)) == 3
    assert ids_in(tmp_path) == [0, 1, 2, 20, 21]


def test_a_note_leads_out_of_no_folder(tmp_path: Path) -> None:
    """Whoever can write one may hide and remove files of the table, and no others."""
    table, outside = tmp_path / "t", tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("somebody else's")
    publish_files(str(table), stage(table, "0" * 16, range(2)), overwrite=False)
    (table / "link").symlink_to(outside)
    notes = table / NOTES
    notes.mkdir()
    note = {"host": abandoned.identify_host(), "time": 0}
    (notes / "x.json").write_text(json.dumps({**note, "hidden": ["link/file"]}))
    publish_files(str(table), stage(table, "b" * 16, range(10, 12)), overwrite=False)
    assert (outside / "file").read_text() == "somebody else's"
    (table / "link").unlink()
    assert ids_in(table) == [0, 1, 10, 11]
    for hidden in (["../outside/file"], ["/etc/hostname"], ["a/../../b"], ["."], "..", [1], None):
        notes.mkdir(exist_ok=True)
        (notes / "x.json").write_text(json.dumps({**note, "hidden": hidden}))
        for use in (ids_in, lambda table: remove_abandoned(str(table))):
            with pytest.raises(ValueError, match="not a note of a write; check"):
                use(table)
    shutil.rmtree(notes)
    (outside / ".hidden").touch()
    notes.symlink_to(outside)
    with pytest.raises(ValueError, match="is a symbolic link"):
        publish_files(str(table), [], overwrite=False)
    assert sorted(os.listdir(outside)) == [".hidden", "file"]


def test_what_a_killed_driver_has_left_is_removed_when_it_is_gone_for_sure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On this machine at once, elsewhere after a week; and never what is a stream's."""
    with subprocess.Popen(["sleep", "60"]) as process:
        real = abandoned._read_process
        monkeypatch.setattr(abandoned, "_list_ancestors", lambda _: [process.pid])
        monkeypatch.setattr(abandoned, "_read_process", lambda number: ("java", *real(number)[1:]))
        here = abandoned.describe_driver()
        elsewhere = json.dumps({**json.loads(here), "host": "another machine"})
        jobs = {"a" * 16: here, "b" * 16: elsewhere, "c" * 16: "", "d" * 16: "[]"}
        stream = "_tmp_01234567-89ab-cdef-0123-456789abcdef"
        for job, driver in jobs.items():
            (tmp_path / f"_tmp_{job}" / "00000-1").mkdir(parents=True)
            (tmp_path / f"_tmp_{job}" / "_running").write_text(driver)
        (tmp_path / stream).mkdir()
        remove_abandoned(str(tmp_path))
        assert len(os.listdir(tmp_path)) == 5
        process.kill()
    remove_abandoned(str(tmp_path))
    assert sorted(os.listdir(tmp_path)) == sorted([stream, *(f"_tmp_{job}" for job in [*jobs][1:])])
    long_ago = time.time() - abandoned.ABANDONED_AFTER - 60
    for path in sorted(tmp_path.rglob("*"), reverse=True):
        if path.parent.name != f"_tmp_{'b' * 16}":  # one of its files has changed since
            os.utime(path, (long_ago, long_ago))
    remove_abandoned(str(tmp_path))
    assert sorted(os.listdir(tmp_path)) == sorted([stream, f"_tmp_{'b' * 16}"])


def test_a_second_attempt_beside_the_first_is_not_published(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both end; Spark takes one of them. (It starts none on the same host: so set by hand.)"""
    batches = small_table(10).to_batches()
    schema = to_spark_schema(to_common_schema(batches[0].schema))
    settings, options = write_options(
        {**lake.variant("external", "internal_key_material = false"), "path": str(tmp_path)}
    )
    writer = pickle.loads(pickle.dumps(Writer(settings, options, schema, overwrite=False)))
    reported = []
    for attempt in (11, 12):
        task = SimpleNamespace(partitionId=lambda: 3, taskAttemptId=lambda n=attempt: n)
        monkeypatch.setattr("pyspark.TaskContext.get", lambda task=task: task)
        reported.append(writer.write(iter(batches)))
    assert len(files_in(tmp_path)) == 4 + 1  # which says that the job is running
    assert not [name for name in files_in(tmp_path) if not name.startswith("_tmp_")]
    pickle.loads(pickle.dumps(writer)).commit(reported[1:])
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
    schema = to_spark_schema(to_common_schema(batches[0].schema))
    more = {"path": str(tmp_path), "maxRowsPerFile": "10"}
    external = lake.variant("external", "internal_key_material = false")
    task = SimpleNamespace(partitionId=lambda: 0, taskAttemptId=lambda: 1)
    monkeypatch.setattr("pyspark.TaskContext.get", lambda: task)
    for partitions in ({}, {"partitionBy": "flag"}):
        settings, options = write_options(external | more | {"partitionBy": "", **partitions})
        writer = Writer(settings, options, schema, overwrite=False)
        begun: list[list[str]] = []

        def abort_meanwhile(
            writer: Writer = writer, begun: list[list[str]] = begun
        ) -> Iterator[Any]:
            yield from batches[:3]
            begun.append(files_in(tmp_path))
            pickle.loads(pickle.dumps(writer)).abort([None])
            yield from batches[3:]

        with pytest.raises((InterruptedError, FileNotFoundError)):
            writer.write(abort_meanwhile())
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
    keys = [entry["Key"] for entry in judge.list_objects_v2(Bucket="written")["Contents"]]
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
        (people, tmp_path / "t", lake.by_policy | {"partitionBy": "name"}, "folder names"),
        (people, tmp_path / "t", footer | {"partitionBy": "nix"}, "there is no column nix"),
        (
            people.select("id"),
            tmp_path / "t",
            footer | {"partitionBy": "id"},
            "no columns are left to write; remove columns from partitionBy",
        ),
        (people, tmp_path / "t", footer | {"compression": "best"}, "(?i)compression"),
        (people, tmp_path / "file", footer, "is a file"),
        (
            people,
            tmp_path / "t",
            {"kms": "file:ring"},
            "needs a policy, recipients or a footer_key",
        ),
        (
            spark.sql("select parse_json('1') v"),
            tmp_path / "t",
            footer,
            "writing variant is not supported",
        ),
    ]
    for frame, folder, options, message in cases:
        with pytest.raises(AnalysisException, match=message):
            save(frame, folder, options)
    assert not (tmp_path / "t").exists()


def test_a_table_has_one_folder(lake: Lake) -> None:
    with pytest.raises(ValueError, match="must be one folder"):
        write_options({"paths": '["a", "b"]', **lake.by_keys})
