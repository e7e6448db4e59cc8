"""What the interop tests share: a JVM and an S3 server."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.support.java import iceberg_java
from tests.support.java.iceberg_java import IcebergJava

if TYPE_CHECKING:
    from tests.support.object_store import ObjectStore


@pytest.fixture(scope="session")
def iceberg() -> Iterator[IcebergJava]:
    """Iceberg's own Java."""
    if reason := iceberg_java.why_unavailable():
        pytest.skip(reason)
    with IcebergJava() as running:
        yield running


@pytest.fixture(scope="session")
def store() -> Iterator[ObjectStore]:
    """Run an S3 server on the loopback interface; no client is led anywhere else."""
    from tests.support.object_store import object_store  # moto takes a while to load

    with pytest.MonkeyPatch.context() as patch:
        for name in list(os.environ):
            if name.upper().endswith("_PROXY") or name.startswith("AWS_"):
                patch.delenv(name)
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        patch.setenv("AWS_CONFIG_FILE", os.devnull)
        patch.setenv("AWS_SHARED_CREDENTIALS_FILE", os.devnull)
        with object_store() as running:
            yield running
