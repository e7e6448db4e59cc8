"""Spark looks for data sources in modules of such names: this one is `modcrypt.spark.source`'s."""

from modcrypt.spark.source import ModcryptDataSource as DefaultSource

__all__ = ["DefaultSource"]
