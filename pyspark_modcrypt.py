"""Register the data source: Spark looks for it in modules whose names begin with `pyspark_`."""

from modcrypt.spark.source.data_source import ModcryptDataSource as DefaultSource

__all__ = ["DefaultSource"]
