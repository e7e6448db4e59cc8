"""Spark looks for data sources in modules of such names; this one re-exports modcrypt's."""

from modcrypt.spark.source.data_source import ModcryptDataSource as DefaultSource

__all__ = ["DefaultSource"]
