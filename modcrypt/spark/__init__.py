"""Encrypted tables on Spark: table jobs, keys for Spark's own Parquet, and a Java for Spark.

Spark finds the data source itself by its name: `spark.read.format("modcrypt")`.
"""

from modcrypt.runtime.lazy_names import attach

__getattr__, __dir__ = attach(__name__)
