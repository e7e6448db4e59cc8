"""A folder of files with keys of key tools, which jobs change."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pyarrow as pa
import pytest

import modcrypt as mc
from modcrypt.jobs.shredding.file_shredding import ShreddedFile
from tests.support.kms.rotating_kms import BasicKms
from tests.support.tables import small_table

TABLE = small_table(60)
OTHER = small_table(7)
NARROW_TABLE = small_table(9).select(["id", "name", "flag", "address"])
"""Columns of each key, and few: for jobs that stop at each of their steps."""
NARROW_OTHER = OTHER.select(NARROW_TABLE.column_names)
COLUMNS = {"k1": ["id", "address"], "k2": ["name"]}
WITHIN = mc.Policy(footer_key="kf", column_keys=COLUMNS)
BESIDE = mc.Policy(footer_key="kf", column_keys=COLUMNS, internal_key_material=False)
STORAGE = pytest.mark.parametrize("policy", [WITHIN, BESIDE], ids=["internal", "external"])
WRAPPING: tuple[Literal["mek", "kek"], ...] = ("mek", "kek")


def material_file(path: Path) -> Path:
    return path.with_name(f"_KEY_MATERIAL_FOR_{path.name}.json")


def write_lake(
    folder: Path, kms: BasicKms, policy: mc.Policy, count: int = 3, table: pa.Table = TABLE
) -> list[Path]:
    """Write files with the keys of one `KeyTools`, as one process would."""
    folder.mkdir(exist_ok=True)
    tools = mc.KeyTools(kms)
    paths = [folder / f"part-{n:04}.parquet" for n in range(count)]
    for path in paths:
        mc.write_table(table, path, tools.encryption(policy))
    return paths


def read(path: Path, kms: BasicKms, policy: mc.Policy | None = None) -> pa.Table:
    return mc.read_table(path, mc.KeyTools(kms).decryption(policy))


def results(files: list[mc.jobs.RotatedFile] | list[ShreddedFile]) -> list[str]:
    return [file.result for file in files]
