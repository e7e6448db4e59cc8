"""Register the data source of the SQL procedures, as `pyspark_modcrypt` registers the tables'."""

from modcrypt.spark.jobs.job_source import JobSource as DefaultSource

__all__ = ["DefaultSource"]
