"""Tables of a Glue catalog, as far as moto stands for AWS: they are read, changes are refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from moto import mock_aws

from modcrypt.errors import UnsupportedFormatError
from modcrypt.iceberg import create_table, load_table, rotate_catalog, rotate_table, verify_table
from tests.support.iceberg.sample_kms import SampleKms

ROWS = pa.table({"id": pa.array([1, 2], pa.int64())})


@pytest.fixture
def catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A catalog with the table shop.orders."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    with mock_aws():
        from pyiceberg.catalog.glue import GlueCatalog

        made = GlueCatalog("glue", **{"glue.region": "us-east-1"})
        made.create_namespace("shop")
        folder = tmp_path / "orders"
        table = create_table(folder, ROWS.schema, SampleKms(), master_key_id="keyA").append(ROWS)
        made.register_table("shop.orders", table.place.path)
        yield made


def test_a_table_is_read_and_verified_and_its_changes_are_refused(catalog: Any) -> None:
    table = load_table(catalog, "shop.orders", SampleKms())
    assert table.scan().num_rows == 2
    assert verify_table(table).ok
    with pytest.raises(UnsupportedFormatError, match="GlueCatalog cannot be changed"):
        table.append(ROWS)
    for what in ("mek", "kek", "dek"):
        with pytest.raises(UnsupportedFormatError, match="GlueCatalog cannot be changed"):
            rotate_table(table, what)
    (done,) = rotate_catalog(catalog, SampleKms(), new_master_key_id="keyB")
    assert (done.table, done.result) == ("shop.orders", "unsupported")
    with pytest.raises(UnsupportedFormatError, match="GlueCatalog cannot be changed"):
        create_table(
            None, ROWS.schema, SampleKms(), master_key_id="keyA", catalog=catalog,
            identifier="shop.new",
        )  # fmt: skip
