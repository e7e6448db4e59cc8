"""A Hive metastore and a REST catalog, each started once for the tests of a process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.iceberg.java_judge import why_unavailable as why_no_iceberg
from tests.support.java.jvm import why_unavailable as why_no_java
from tests.support.spark.hive_metastore import hive_metastore


@pytest.fixture(scope="session")
def metastore(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Run a metastore; yield its URI."""
    if reason := why_no_java():
        pytest.skip(reason)
    with hive_metastore(tmp_path_factory.mktemp("hive")) as uri:
        yield uri


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Run a REST catalog; yield its URI."""
    if reason := why_no_iceberg():
        pytest.skip(reason)
    from tests.support.iceberg.rest_catalog import rest_server  # pyiceberg's takes a while to load

    with rest_server(tmp_path_factory.mktemp("rest")) as uri:
        yield uri
