"""A verb that is declared has its run in threads, its job on Spark, its SQL and its JSON."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from modcrypt.jobs.engine import FileResult, Job
from modcrypt.jobs.listing import File, Folder, list_tables
from modcrypt.jobs.shredding.choice import criteria_of
from modcrypt.jobs.verbs.key_verbs import ROTATE
from modcrypt.jobs.verbs.proof_verb import PROVE, decode_row
from modcrypt.jobs.verbs.verb import Verb, run_verb
from modcrypt.kms.settings import Settings
from modcrypt.spark.jobs.driver import plan_verb
from modcrypt.spark.jobs.file_work import VerbJob
from modcrypt.spark.jobs.iceberg_jobs import REWRITE
from modcrypt.spark.jobs.lake_jobs import APPLY, VERIFY
from modcrypt.spark.jobs.sql_plans import plan_procedure
from modcrypt.spark.procedures import PROCEDURES, VERBS, list_parameters
from modcrypt.spark.report_schemas import report_schema
from tests.support.cases import each_case
from tools.json_schemas import describe_verb


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedFile(FileResult):
    """The number of bytes of a file."""

    total: int = 0
    names: tuple[str, ...] = ()

    @property
    def failed(self) -> bool:
        """True if the file could not be read."""
        return self.result != "counted"


def open_count(
    _settings: Settings | None, _filesystem: Any, *, at_least: bool
) -> Job[File, CountedFile]:
    def count(file: File) -> CountedFile:
        total = len(Path(file.name).read_bytes()) + at_least
        return CountedFile(path=file.name, result="counted", total=total, names=("a",))

    return Job(count)


def prepare_count(*, at_least: bool = False) -> Mapping[str, Any]:
    return {"at_least": at_least}


COUNT = Verb(
    name="count", result=CountedFile, columns="path result failed total names message worker",
    open=open_count, prepare=prepare_count, parameters={"at_least": bool},
)  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, size in (("a", 1), ("b", 2)):
        (tmp_path / name).write_bytes(bytes(size))
    return tmp_path


def test_threads_run_it_and_report_what_fails(folder: Path) -> None:
    files = list_tables([Folder.at(folder)])
    (folder / "b").unlink()
    first, second = run_verb(COUNT, files, None)
    assert (first.total, first.failed) == (1, False)
    assert (second["path"], second["result"], second["failed"]) == (str(folder / "b"), "file", True)


def test_spark_has_its_rows(folder: Path) -> None:
    planned, files = plan_verb(COUNT, folder, None)
    (folder / "b").unlink()
    names = [file.name.encode() for file in files]
    (rows,) = planned.run([pa.record_batch({"name": names, "size": [1, 2]})])
    found = [{**row, "worker": None, "message": ""} for row in rows.to_pylist()]
    same = {"message": "", "worker": None}
    assert found == [
        {"path": str(folder / "a"), "result": "counted", "failed": False, "total": 1,
         "names": ["a"], **same},
        {"path": str(folder / "b"), "result": "file", "failed": True, "total": 0, "names": [],
         **same},
    ]  # fmt: skip


def test_sql_has_its_parameters_and_columns(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PROCEDURES, "count", COUNT)
    assert list_parameters(COUNT)[0] == "path"
    assert list_parameters(COUNT)[-1] == "atLeast"
    job, files = plan_procedure("count", {"path": str(folder), "atleast": "true"})
    assert isinstance(job, VerbJob)
    assert (job.arguments, len(files)) == ({"at_least": True}, 2)
    with pytest.raises(ValueError, match="atLeast must be true or false"):
        plan_procedure("count", {"path": str(folder), "atleast": "yes"})
    text, names = pa.string(), pa.list_(pa.string())
    assert report_schema(COUNT) == pa.schema(
        {"path": text, "result": text, "failed": pa.bool_(), "total": pa.int64(), "names": names,
         "message": text, "worker": text}
    )  # fmt: skip


def test_json_has_its_members() -> None:
    members = describe_verb(COUNT)["properties"]
    assert list(members) == ["schema", "file", "result", "message", "total", "names"]
    assert members["total"] == {"type": "integer"}


def test_arguments_that_it_lacks_are_refused(folder: Path) -> None:
    with pytest.raises(TypeError, match="atleast"):
        plan_verb(COUNT, folder, None, atleast=True)
    with pytest.raises(TypeError, match="Settings, not NoneType"):
        plan_verb(ROTATE, folder, None)


EVERY_VERB = (*VERBS, PROVE, APPLY, VERIFY, REWRITE)


@each_case("verb", EVERY_VERB, [verb.name for verb in EVERY_VERB])
def test_each_verb_has_a_report(verb: Verb) -> None:
    assert report_schema(verb).names == verb.columns.split()


def test_a_proof_has_the_traces_of_each_file_also_of_one_that_is_damaged(folder: Path) -> None:
    (folder / "b").write_bytes(b"PAR1 damaged PAR1")
    arguments = {"wanted": criteria_of((), (), True)}
    job = pickle.loads(pickle.dumps(VerbJob(verb=PROVE, arguments=arguments)))
    names = [str(folder / name).encode() for name in ("a", "b", "absent")]
    (rows,) = job.run([pa.record_batch({"name": names, "size": [1, 2, 3]})])
    found = [decode_row(row) for row in rows.to_pylist()]
    assert [(Path(name).name, traces.names) for name, _, traces in found] == [
        ("a", {"a"}), ("b", {"b"}), ("absent", {"absent"}),
    ]  # fmt: skip
    assert all(file.message for _, file, _ in found[1:])


def test_its_end_follows_the_files(folder: Path) -> None:
    """Shredding forgets the keys of the process there."""
    ended: list[dict[str, bool]] = []
    verb = COUNT._replace(end=lambda _settings, **arguments: ended.append(arguments))
    job, files = plan_verb(verb, folder, None, at_least=True)
    assert [*run_verb(verb, files, None)]
    names = [file.name.encode() for file in files]
    assert [*job.run([pa.record_batch({"name": names, "size": [1, 2]})])]
    assert ended == [{"at_least": False}, {"at_least": True}]
