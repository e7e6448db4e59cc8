"""The data source `modcrypt`: encrypted tables for Spark, read and written as any others.

    spark.read.format("modcrypt").option("policy", "lake.toml").load("s3://lake/people")
    df.write.format("modcrypt").mode("append").option("policy", "lake.toml").save("people")
    CREATE TEMPORARY VIEW people USING modcrypt OPTIONS (path '/lake/people', policy 'lake.toml')

Of a table in its catalog (CREATE TABLE ... USING modcrypt), Spark 4.3 tells a Python data source
the columns and no options, path included; name them in the query, or in a view of it:

    CREATE VIEW people AS SELECT * FROM t WITH (path = '/lake/people', policy = '/etc/lake.toml')

Spark 4.3 offers a data source the filters of a query, and then uses them for all queries of one
`load()`, with wrong rows: so none are taken from it; the option `filters` says what to read.

Spark finds it by `pyspark_modcrypt`, without being told. What Spark pickles, logs and shows are
references to keys; they are resolved on the executors, in `read()` and `write()`.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceWriter
from pyspark.sql.types import StructType

from modcrypt.spark.source.options import read_options, write_options

__all__ = ["ModcryptDataSource"]


class ModcryptDataSource(DataSource):
    """What `format("modcrypt")` and `USING modcrypt` mean; options as of `options`."""

    @classmethod
    def name(cls) -> str:
        """Give the name by which Spark knows it."""
        return "modcrypt"

    def schema(self) -> StructType:
        """Read the schema from the footer of the table's first file."""
        from modcrypt.spark.source.reading import table_schema
        from modcrypt.spark.source.streaming import READ_OPTIONS  # Spark asks it for streams, too

        return table_schema(*read_options(self.options, READ_OPTIONS))

    def reader(self, schema: StructType) -> DataSourceReader:
        """Give what reads a table of this schema: the table's own, or a part of it."""
        from modcrypt.spark.source.reading import Reader

        return Reader(*read_options(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Give what writes rows of this schema."""
        from modcrypt.spark.source.writing import Writer

        settings, options = write_options(self.options)
        return Writer(settings, options, schema, overwrite)

    def streamReader(self, schema: StructType) -> Any:  # noqa: N802  # Spark's name
        """Give what reads new files as they come."""
        from modcrypt.spark.source.streaming import stream_reader

        return stream_reader(self.options, schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:  # noqa: N802  # Spark's name
        """Give what writes a stream's batches."""
        from modcrypt.spark.source.streaming import stream_writer

        return stream_writer(self.options, schema, overwrite)
