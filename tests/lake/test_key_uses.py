"""Keys that near the number of wraps that random nonces allow."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import modcrypt as mc
from modcrypt import iceberg
from modcrypt.keys import invocations
from modcrypt.kms import Capabilities
from modcrypt.lake.lake import Lake
from tests.support.cases import each_case
from tests.support.iceberg.sales import declare, make_sales
from tests.support.lake_folder import DECLARATION, make_lake

SINGLE = DECLARATION.replace("partitions =", "double_wrapping = false\npartitions =")


def lower_limit(monkeypatch: pytest.MonkeyPatch, wraps: int) -> None:
    monkeypatch.setattr(invocations, "WARN_WRAPS", wraps)


def find_worn(config: Path) -> dict[str, int]:
    (status,) = Lake.open(config).status()
    return {each.name: each.count for each in status.worn_keys}


def verify_uses(config: Path) -> list[tuple[str, str]]:
    (result,) = Lake.open(config).verify()
    found = [finding for finding in result.findings if finding.word == "key-uses"]
    return [(finding.severity, finding.message.split(" has ")[0]) for finding in found]


def test_the_limit_is_half_of_that_of_random_nonces() -> None:
    assert invocations.WARN_WRAPS == 2**31


def test_a_master_key_that_wraps_many_data_keys_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_lake(tmp_path, declaration=SINGLE)
    Lake.open(config).apply()
    assert find_worn(config) == {}
    lower_limit(monkeypatch, 8)  # of four files, each with two column keys
    assert find_worn(config) == {"pii@1": 8}
    (status,) = Lake.open(config).status()
    assert "; pii@1 has wrapped 8 keys or more; AES-GCM" in status.summary()
    assert status.fields()["worn_keys"] == [{"key": "pii@1", "wraps": 8}]
    assert not status.is_declared
    assert verify_uses(config) == [("fault", "pii@1")]
    mc.Keyring(tmp_path / "lake.keyring").rotate_key("pii")
    assert find_worn(config) == {}  # the older version wraps nothing any more
    assert verify_uses(config) == []
    lower_limit(monkeypatch, 4)
    assert find_worn(config) == {"footer@1": 4}


def test_a_kek_counts_what_it_wraps_and_as_one_wrap_of_its_master_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_lake(tmp_path)
    Lake.open(config).apply()
    os.utime(tmp_path / "orders/day=2026-11-01/part-0.parquet")
    lower_limit(monkeypatch, 5)
    Lake.open(config).status()  # a file that is seen again has wrapped nothing more
    (status,) = Lake.open(config).status()
    (worn,) = status.worn_keys
    (kek,) = {key.kek_id for file in status.files for key in file.keys if key.column == "mail"}
    assert (worn.name, worn.count) == (f"KEK {kek}", 8)
    assert status.is_declared  # no key is used any more that a new version would relieve
    assert verify_uses(config) == [("warning", f"KEK {kek}")]
    lower_limit(monkeypatch, 1)
    masters = {name: count for name, count in find_worn(config).items() if "@" in name}
    assert masters == {"footer@1": 1, "pii@1": 1}


def test_services_that_derive_a_key_for_each_wrap_have_no_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_lake(tmp_path, declaration=SINGLE)
    Lake.open(config).apply()
    lower_limit(monkeypatch, 1)
    monkeypatch.setattr(mc.Keyring, "capabilities", Capabilities(aad=True))
    assert find_worn(config) == {}


@each_case("of_table", [{}, {"policy": iceberg.KeyPolicy(wrapping="single")}])
def test_keys_of_tables_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, of_table: dict[str, Any]
) -> None:
    make_sales(tmp_path, pa.table({"id": [1]}), **of_table)
    config = declare(tmp_path)
    assert find_worn(config) == {}
    lower_limit(monkeypatch, 2)
    ((name, count),) = find_worn(config).items()
    assert count >= 2
    assert name == "sales@1" if of_table else name.startswith("KEK ")
    if not of_table:
        assert verify_uses(config) == [("warning", name)]
