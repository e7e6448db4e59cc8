"""The data source behind the SQL procedures: it plans a job on the driver, and runs it in tasks.

    CALL modcrypt.verify('/lake/people', policy => '/etc/lake.policy')

`modcrypt.SqlProcedure` reads this source once and to its end. Other queries might not: a `LIMIT`
leaves files out. That is why only the procedures are documented.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from modcrypt.spark.jobs.driver import BYTES_PER_TASK, FILES_PER_TASK, assign_tasks, name_columns
from modcrypt.spark.jobs.file_work import VerbJob
from modcrypt.spark.jobs.sql_plans import Parameters, plan_procedure
from modcrypt.spark.procedures import PROCEDURES
from modcrypt.spark.report_schemas import report_schema
from modcrypt.spark.source.arrow_types import to_spark_arrow_schema


class JobSource(DataSource):
    """The data source `modcrypt_job`, whose rows are the report of a job.

    Options: `job`, the name of the procedure; `slots`, the number of concurrent tasks; and the
    parameters of the procedure.
    """

    @classmethod
    def name(cls) -> str:
        """Return the name by which Spark finds the data source."""
        return "modcrypt_job"

    def schema(self) -> StructType:
        """Return the columns of the report."""
        return from_arrow_schema(report_schema(PROCEDURES[self.options["job"]]))

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader that runs the job."""
        return _JobReader({name.lower(): value for name, value in self.options.items()})


class _TaskFiles(InputPartition):
    """A job and the files of one task."""

    def __init__(self, job: VerbJob) -> None:
        super().__init__(None)
        self.job = job
        self.files: list[tuple[str, int]] = []


class _JobReader(DataSourceReader):
    def __init__(self, parameters: Parameters) -> None:
        self._parameters = parameters

    def partitions(self) -> list[InputPartition]:
        """Return the tasks of the job, after the checks that need no executor."""
        job, files = plan_procedure(self._parameters["job"], self._parameters)
        tasks = assign_tasks(
            [file.size for file in files],
            files=FILES_PER_TASK, size=BYTES_PER_TASK, slots=int(self._parameters["slots"]),
        )  # fmt: skip
        partitions = [_TaskFiles(job) for _ in range(max(tasks) + 1)]
        for file, task in zip(files, tasks, strict=True):
            partitions[task].files.append((file.name, file.size))
        return [*partitions]

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        """Run the job on the files of a task; yield their rows of the report."""
        files = pa.record_batch(name_columns(partition.files))
        schema = to_spark_arrow_schema(from_arrow_schema(partition.job.schema))
        for rows in partition.job.run([files]):
            yield rows.cast(schema)
