"""The real parquet-java, as a fixture."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.java.jvm import why_unavailable
from tests.support.java.parquet_java import ParquetJava


@pytest.fixture(scope="session")
def java() -> Iterator[ParquetJava]:
    """The real parquet-java."""
    if reason := why_unavailable():
        pytest.skip(reason)
    with ParquetJava() as running:
        yield running
