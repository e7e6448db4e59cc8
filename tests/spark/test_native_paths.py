"""AAD prefixes with `{path}` in what Spark writes: the final path, however Spark gets there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import modcrypt as mc
from modcrypt.kms.keyring.keyring import Keyring
from tests.support.java.jvm import why_unavailable
from tests.support.spark.native import uri_of

if _reason := why_unavailable():
    pytest.skip(_reason, allow_module_level=True)

from modcrypt.spark.jvm.native_parquet import native, native_options


@pytest.fixture
def policy(ring: Keyring) -> mc.Policy:
    return mc.Policy(
        footer_key="kf",
        column_keys={"kc2": ["name"]},
        aad_prefix="lake/{path}",
        store_aad_prefix=False,
        internal_key_material=False,
        kms=uri_of(ring),
    )


@pytest.fixture
def session(spark: Any, policy: mc.Policy) -> Any:
    session = spark.newSession()
    native(session, policy=policy)
    return session


def frame_of(session: Any, start: int = 0) -> Any:
    columns = ("id", "concat('name-', id) as name", "id % 3 as `a`", "concat(id % 2, ':/ä') as b")
    return session.range(start, start + 20).selectExpr(*columns).repartition(1)


def check(folder: Path, policy: mc.Policy, ring: Keyring, ids: range) -> None:
    """Check with modcrypt's own reader that each file is bound to its path."""
    found = mc.read_table(folder, mc.KeyTools(ring).decryption(policy))
    assert sorted(found["id"].to_pylist()) == list(ids)
    assert set(found["name"].to_pylist()) == {f"name-{n}" for n in ids}


def test_partitions(session: Any, policy: mc.Policy, ring: Keyring, tmp_path: Path) -> None:
    lake = tmp_path / "a lake = %41"
    frame_of(session).write.partitionBy("a", "b").parquet(str(lake))
    check(lake, policy, ring, range(20))
    again = session.read.options(**native_options(policy, root=lake)).parquet(str(lake))
    assert again.where("a = 1 and name <> ''").count() == 7
    with pytest.raises(Exception, match="pass root="):
        session.read.parquet(str(lake)).collect()


@pytest.mark.parametrize("rooted", [False, True])
def test_partitions_that_are_overwritten_dynamically(
    session: Any, policy: mc.Policy, ring: Keyring, tmp_path: Path, rooted: bool
) -> None:
    lake = tmp_path / "lake"
    if rooted:
        session.conf.set("modcrypt.root", str(lake))
    frame_of(session).write.partitionBy("a").parquet(str(lake))
    write = frame_of(session).write.mode("overwrite").partitionBy("a")
    write.option("partitionOverwriteMode", "dynamic").parquet(str(lake))
    check(lake, policy, ring, range(20))


def test_a_folder_of_a_larger_dataset(
    session: Any, policy: mc.Policy, ring: Keyring, tmp_path: Path
) -> None:
    lake = tmp_path / "lake"
    for start in (0, 20):
        options = native_options(policy, root=lake)
        write = frame_of(session, start).write.options(**options)
        write.parquet(str(lake / f"start={start}"))
    check(lake, policy, ring, range(40))
    elsewhere = frame_of(session).write.options(**native_options(policy, root=lake))
    with pytest.raises(Exception, match="is not inside root"):
        elsewhere.parquet(str(tmp_path / "elsewhere"))


@pytest.mark.parametrize("algorithm", ["1", "2"])
def test_both_algorithms_of_the_committer(
    session: Any, policy: mc.Policy, ring: Keyring, tmp_path: Path, algorithm: str
) -> None:
    write = frame_of(session).write.partitionBy("b")
    write = write.option("mapreduce.fileoutputcommitter.algorithm.version", algorithm)
    write.parquet(str(tmp_path / "lake"))
    check(tmp_path / "lake", policy, ring, range(20))


def test_tables_of_the_session_catalog(
    session: Any, policy: mc.Policy, ring: Keyring, tmp_path: Path
) -> None:
    lake = tmp_path / "lake"
    frame_of(session).createOrReplaceTempView("rows")
    session.sql(f"CREATE TABLE paths_t USING parquet PARTITIONED BY (b) LOCATION '{lake}' "
                "AS SELECT * FROM rows WHERE id < 10")  # fmt: skip
    try:
        session.sql("INSERT INTO paths_t SELECT id, name, a, b FROM rows WHERE id >= 10")
        check(lake, policy, ring, range(20))
        elsewhere = tmp_path / "elsewhere"
        session.sql(f"ALTER TABLE paths_t ADD PARTITION (b = 'x') LOCATION '{elsewhere}'")
        insert = "INSERT INTO paths_t PARTITION (b) SELECT id, name, a, 'x' AS b FROM rows"
        with pytest.raises(Exception, match=r"final path of .* is unknown"):
            session.sql(insert)
    finally:
        session.sql("DROP TABLE paths_t")


def test_a_table_carries_its_policy_in_its_options(
    spark: Any, session: Any, policy: mc.Policy, ring: Keyring, tmp_path: Path
) -> None:
    """A session without settings of its own reads and writes the table, and no other file."""
    lake = tmp_path / "lake"
    options = ", ".join(
        f"'{name}' = '{value}'" for name, value in native_options(policy, root=lake).items()
    )
    bare = spark.newSession()
    bare.sql(
        f"CREATE TABLE optioned (id bigint, name string, b string) USING parquet "
        f"OPTIONS ({options}) PARTITIONED BY (b) LOCATION '{lake}'"
    )
    try:
        frame_of(bare).createOrReplaceTempView("rows")
        bare.sql("INSERT INTO optioned SELECT id, name, b FROM rows")
        check(lake, policy, ring, range(20))
        found = bare.sql("SELECT count(*), count(DISTINCT name) FROM optioned WHERE b LIKE '1%'")
        assert [tuple(row) for row in found.collect()] == [(10, 10)]
        with pytest.raises(Exception, match=r"(?i)encrypted footer"):
            bare.read.parquet(str(lake)).collect()
    finally:
        bare.sql("DROP TABLE optioned")


def test_a_stream(session: Any, policy: mc.Policy, ring: Keyring, tmp_path: Path) -> None:
    source, lake = tmp_path / "source", tmp_path / "lake"
    session.range(20).selectExpr("id", "concat('name-', id) as name").write.json(str(source))
    stream = session.readStream.schema("id long, name string").json(str(source)).writeStream
    stream = stream.option("checkpointLocation", str(tmp_path / "checkpoint"))
    stream.trigger(availableNow=True).format("parquet").start(str(lake)).awaitTermination()
    files = [str(path) for path in lake.glob("part-*.parquet")]
    reader = session.read.options(**native_options(policy, root=lake))
    assert reader.parquet(*files).select("name").distinct().count() == 20


@pytest.mark.parametrize("folder", ["__magic/job/x", "_temporary/0/x", ".spark-staging-1", "_x"])
def test_a_path_of_an_unknown_committer_is_refused(
    session: Any, policy: mc.Policy, tmp_path: Path, folder: str
) -> None:
    jvm = session._jvm
    configuration = session._jsparkSession.sessionState().newHadoopConf()
    for name, value in native_options(policy).items():
        configuration.set(name, value)
    schema = jvm.org.apache.parquet.schema.MessageTypeParser.parseMessageType(
        "message m { required int64 id; optional binary name; }"
    )
    context = getattr(jvm.org.apache.parquet.hadoop.api, "WriteSupport$WriteContext")(schema, {})
    factory = jvm.java.lang.Class.forName(
        "modcrypt.ModcryptCryptoFactory", True, configuration.getClassLoader()
    ).newInstance()
    staging = [tmp_path / folder] if folder.startswith(".spark-staging") else []
    for output in (tmp_path, None, *staging):
        if output is not None:
            configuration.set("mapreduce.output.fileoutputformat.outputdir", str(output))
        else:
            configuration.unset("mapreduce.output.fileoutputformat.outputdir")
        path = jvm.org.apache.hadoop.fs.Path(f"{tmp_path}/{folder}/part-0.parquet")
        with pytest.raises(Exception, match=r"final path of .* is unknown"):
            factory.getFileEncryptionProperties(configuration, path, context)
