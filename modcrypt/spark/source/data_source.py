"""The data source `modcrypt`: encrypted tables for Spark, read and written like any others.

    spark.read.format("modcrypt").option("policy", "lake.toml").load("s3://lake/people")
    df.write.format("modcrypt").mode("append").option("policy", "lake.toml").save("people")
    CREATE TEMPORARY VIEW people USING modcrypt OPTIONS (path '/lake/people', policy 'lake.toml')

For a table in its catalog (CREATE TABLE ... USING modcrypt), Spark 4.3 passes the columns to a
Python data source, but no options and no path; name them in the query, or in a view of it:

    CREATE VIEW people AS SELECT * FROM t WITH (path = '/lake/people', policy = '/etc/lake.toml')

Spark 4.3 offers a data source the filters of a query, but then applies them to all queries of one
`load()`, which returns wrong rows. So modcrypt accepts none; select rows with the option `filters`.

Spark finds the data source automatically through `pyspark_modcrypt`. Spark pickles, logs and shows
only references to keys; executors resolve them in `read()` and `write()`.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceWriter
from pyspark.sql.types import StructType

from modcrypt.runtime.tracebacks import shorten_errors
from modcrypt.spark.source.options import read_options, write_options


class ModcryptDataSource(DataSource):
    """The data source of `format("modcrypt")` and `USING modcrypt`; see `options`."""

    @classmethod
    def name(cls) -> str:
        """Return the name by which Spark finds the data source."""
        return "modcrypt"

    @shorten_errors
    def schema(self) -> StructType:
        """Read the schema from the footer of the table's first file."""
        from modcrypt.spark.source.streaming import READ_OPTIONS
        from modcrypt.spark.source.table_schema import table_schema

        # Spark calls this for streams, too.
        return table_schema(*read_options(self.options, READ_OPTIONS))

    @shorten_errors
    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader of a table with this schema: the table's own, or a part of it."""
        from modcrypt.spark.source.reading import Reader, RowCounter

        settings, options = read_options(self.options)
        if options.row_counts:
            return RowCounter(settings, options)
        return Reader(settings, options, schema)

    @shorten_errors
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return a writer for rows of this schema."""
        from modcrypt.spark.source.writing import Writer

        settings, options = write_options(self.options)
        return Writer(settings, options, schema, overwrite)

    @shorten_errors
    def streamReader(self, schema: StructType) -> Any:  # noqa: N802  # Spark's name
        """Return a stream reader for new files of a folder."""
        from modcrypt.spark.source.streaming import stream_reader

        return stream_reader(self.options, schema)

    @shorten_errors
    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:  # noqa: N802  # Spark's name
        """Return a writer for the batches of a stream."""
        from modcrypt.spark.source.streaming import stream_writer

        return stream_writer(self.options, schema, overwrite)
