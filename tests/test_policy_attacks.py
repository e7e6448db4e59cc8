"""Files that a policy forbids, by every way of reading: no entry point forgets a requirement.

And `verify` is never milder than a reader.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import duckdb
import fsspec
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet
import pytest

import modcrypt as mc
import modcrypt.parquet as pq
from tests.support.cases import each_case
from tests.support.cli.program import run
from tests.support.keys import FOOTER_KEY
from tests.support.pairwise import Case, pairwise
from tests.support.signing import writer_key

HONEST = pa.table({"iban": ["a", "b"], "country": ["NO", "DE"], "n": [1, 2]})
EVIL = pa.table({"iban": ["x", "x"], "country": ["XX", "XX"], "n": [9, 9]})
PLAIN = mc.FileEncryptionProperties(footer_key=FOOTER_KEY)


@dataclass(frozen=True)
class Lake:
    """A keyring, and a sealed dataset of two signed files under a policy."""

    folder: Path

    @property
    def root(self) -> str:
        return str(self.folder / "lake")

    @property
    def file(self) -> Path:
        return self.folder / "lake" / "a.parquet"

    @property
    def out(self) -> Path:
        return self.folder / "out.parquet"

    @property
    def tools(self) -> mc.KeyTools:
        return mc.KeyTools(f"file:{self.folder / 'ring'}")

    def policy(self, **members: Any) -> mc.Policy:
        given: dict[str, Any] = {
            "kms": f"file:{self.folder / 'ring'}", "footer_key": "foot",
            "column_keys": {"pii": ["iban"]}, "plaintext_columns": ["country"],
            "aad_prefix": "orders/{path}",
        }  # fmt: skip
        return mc.Policy(**(given | members))

    def write(self, table: pa.Table, path: Path, writer: Any = None, **members: Any) -> None:
        encryption = self.tools.encryption(
            self.policy(**members), root=self.root, signing_key=writer
        )
        mc.write_table(table, path, encryption)

    def plant(self, writer: Any = None, **members: Any) -> None:
        self.write(EVIL, self.file, writer, **members)


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    lake = Lake(tmp_path_factory.mktemp("policy"))
    ring = mc.Keyring.create(lake.folder / "ring", plaintext=True)
    for name in ("foot", "pii", "intern"):
        ring.create_key(name)
    (lake.folder / "lake" / "sub").mkdir(parents=True)
    for name in ("a.parquet", "sub/b.parquet"):
        lake.write(HONEST, lake.folder / "lake" / name, writer_key())
    mc.jobs.seal_dataset(lake.root, writer_key())
    return lake


@pytest.fixture
def lake(pristine: Lake, tmp_path: Path) -> Lake:
    shutil.copytree(pristine.folder, tmp_path / "copy")
    return Lake(tmp_path / "copy")


SIGNED: dict[str, Any] = {"signed_by": [str(writer_key().verifier)]}
SEALED: dict[str, Any] = {**SIGNED, "seal_at_least": 1}
# What the reader's policy requires, and how an attacker puts a file in the place of another.
ATTACKS: dict[str, tuple[dict[str, Any], Callable[[Lake], object]]] = {
    "other master key": ({}, lambda lake: lake.plant(footer_key="intern", column_keys={})),
    "column under the footer key": ({}, lambda lake: lake.plant(column_keys={})),
    "column in plaintext": ({}, lambda lake: lake.plant(
        column_keys={}, plaintext_columns=["country", "iban"]
    )),
    "column under another key": ({}, lambda lake: lake.plant(column_keys={"intern": ["iban"]})),
    "prefix of another path": ({}, lambda lake: shutil.copy(
        lake.file.with_name("sub") / "b.parquet", lake.file
    )),
    "other algorithm": ({}, lambda lake: lake.plant(encryption_algorithm="AES_GCM_CTR_V1")),
    "plaintext file": ({}, lambda lake: pyarrow.parquet.write_table(EVIL, lake.file)),
    "unsigned": (SIGNED, lambda lake: lake.plant()),
    "signed by another": (SIGNED, lambda lake: lake.plant(writer_key(number=1))),
    "not as sealed": (SEALED, lambda lake: lake.plant(writer_key())),
}  # fmt: skip


def filesystem(how: Any) -> Any:
    return fsspec.filesystem("modcrypt", decryption=how, skip_instance_cache=True)


def read_by_duckdb(lake: Lake, how: Any) -> object:
    connection = duckdb.connect()
    connection.register_filesystem(filesystem(how))
    return connection.sql(f"select * from 'modcrypt://{lake.file}'").fetchall()


def raise_unless_ok(result: Any) -> None:
    if not result.ok:
        raise mc.errors.IntegrityError("a fault")


Entry = Callable[[Lake, Any], object]
ENTRIES: dict[str, Entry] = {
    "read_table": lambda lake, how: mc.read_table(lake.file, how),
    "folder": lambda lake, how: mc.read_table(lake.root, how),
    "column n": lambda lake, how: mc.read_table(lake.file, how, columns=["n"]),
    "column country": lambda lake, how: mc.read_table(lake.file, how, columns=["country"]),
    "iter_batches": lambda lake, how: list(mc.iter_batches(lake.root, how)),
    "limit": lambda lake, how: list(mc.iter_batches(lake.file, how, limit=1)),
    "ParquetFile": lambda lake, how: mc.ParquetFile(lake.file, how).read(),
    "row group": lambda lake, how: mc.ParquetFile(lake.file, how).read_row_group(0),
    "Arrow stream": lambda lake, how: pa.table(mc.ParquetFile(lake.file, how)),
    "view": lambda lake, how: pyarrow.parquet.read_table(mc.open_parquet(lake.file, how)),
    "view of n": lambda lake, how: pyarrow.parquet.read_table(
        mc.open_parquet(lake.file, how), columns=["n"]
    ),
    "pq": lambda lake, how: pq.read_table(lake.file, decryption_properties=how),
    "pq folder": lambda lake, how: pq.read_table(lake.root, decryption_properties=how),
    "pq filters": lambda lake, how: pq.read_table(
        lake.root, filters=[("n", ">", 0)], decryption_properties=how
    ),
    "pq schema": lambda lake, how: pq.read_table(
        lake.root, schema=HONEST.schema, decryption_properties=how
    ),
    "pq pandas": lambda lake, how: pq.read_pandas(lake.root, decryption_properties=how),
    "pq dataset": lambda lake, how: pq.ParquetDataset(lake.root, decryption_properties=how).read(),
    "pq fragments": lambda lake, how: [
        fragment.to_table()
        for fragment in pq.ParquetDataset(lake.root, decryption_properties=how).fragments
    ],
    "pq files": lambda lake, how: pq.ParquetDataset(
        [str(lake.file)], decryption_properties=how
    ).read(),
    "pq file": lambda lake, how: pq.ParquetFile(lake.file, decryption_properties=how).read(),
    "read_schema": lambda lake, how: pq.read_schema(lake.file, decryption_properties=how),
    "read_metadata": lambda lake, how: pq.read_metadata(lake.file, decryption_properties=how),
    "fsspec": lambda lake, how: pyarrow.parquet.read_table(filesystem(how).open(str(lake.file))),
    "fsspec folder": lambda lake, how: ds.dataset(
        lake.root, filesystem=filesystem(how), format="parquet"
    ).to_table(),
    "pandas": lambda lake, how: pd.read_parquet(
        f"modcrypt::{lake.file.as_uri()}", storage_options={"decryption": how}
    ),
    "duckdb": read_by_duckdb,
    "polars": lambda lake, how: pl.DataFrame(mc.ParquetFile(lake.file, how)),
    "polars scan": lambda lake, how: pl.scan_parquet(
        cast(Any, mc.open_parquet(lake.file, how))
    ).collect(),
    "decrypt": lambda lake, how: mc.decrypt_parquet(lake.file, lake.out, how),
    "rekey": lambda lake, how: mc.rekey_parquet(lake.file, lake.out, how, PLAIN),
    "mask": lambda lake, how: mc.mask_parquet(lake.file, lake.out, how, PLAIN, null=["n"]),
    "share n": lambda lake, how: mc.share_parquet(lake.file, lake.out, how, PLAIN, ["n"]),
    "share iban": lambda lake, how: mc.share_parquet(lake.file, lake.out, how, PLAIN, ["iban"]),
    "verify": lambda lake, how: raise_unless_ok(mc.verify_parquet(lake.file, how)),
    "verify folder": lambda lake, how: raise_unless_ok(mc.verify_dataset(lake.root, how)),
}
# Ways that open no part of iban, so that they meet no key of this column.
WITHOUT_IBAN = {"column n", "column country", "read_schema", "share n"}
FOREIGN = ("duckdb", "polars")
"""Packages that raise errors of their own with the text of modcrypt's."""


def requirements(lake: Lake, members: dict[str, Any], kind: str) -> Any:
    """Return what a reader passes: properties, or settings, with or without missing keys."""
    policy = lake.policy(**members)
    missing = {"drop": "drop", "null": "null"}.get(kind, "error")
    if kind == "settings":
        return mc.Settings(policy=policy, root=lake.root)
    return lake.tools.decryption(policy, root=lake.root, on_missing_key=missing)


KINDS = ("properties", "settings", "drop", "null")
CASES = pairwise(attack=list(ATTACKS), entry=list(ENTRIES), kind=KINDS)


def is_refused(lake: Lake, case: Case) -> bool:
    """Return whether an entry point refuses what an attack left, by an error of modcrypt."""
    how = requirements(lake, ATTACKS[case["attack"]][0], case["kind"])
    try:
        ENTRIES[case["entry"]](lake, how)
    except mc.ModcryptError:
        return True
    except BaseException:  # PanicException of Polars is no Exception
        if case["entry"].split()[0] not in FOREIGN:
            raise
        return True
    finally:
        lake.out.unlink(missing_ok=True)
    return False


@each_case("case", CASES)
def test_every_entry_point_refuses_what_the_policy_forbids(case: Case, lake: Lake) -> None:
    honest = lake.file.read_bytes()
    ATTACKS[case["attack"]][1](lake)
    refused = is_refused(lake, case)
    lake.file.write_bytes(honest)
    without_key = case["attack"] == "column under another key" and case["entry"] in WITHOUT_IBAN
    assert refused or without_key


@each_case("case", pairwise(entry=list(ENTRIES), kind=KINDS, attack=["unsigned", "not as sealed"]))
def test_every_entry_point_reads_what_the_policy_allows(case: Case, lake: Lake) -> None:
    assert not is_refused(lake, case)


def test_the_command_line_refuses_it_as_well(lake: Lake) -> None:
    honest = lake.file.read_bytes()
    for name, (members, attack) in ATTACKS.items():
        policy = lake.policy(**members)
        (lake.folder / "policy.toml").write_text(
            "".join(
                f"{key} = {json.dumps(list(value) if isinstance(value, tuple) else value)}\n"
                for key, value in {**members, "kms": policy.kms, "footer_key": "foot"}.items()
            )
            + 'plaintext_columns = ["country"]\naad_prefix = "orders/{path}"\n'
            + '[column_keys]\npii = ["iban"]\n'
        )
        for forged in (False, True):
            if forged:
                attack(lake)
            for verb in ("cat", "verify"):
                for place in (lake.root, str(lake.file)):
                    how = ("--policy", "policy.toml", "--root", lake.root)
                    answer = run(lake.folder, verb, *how, place)
                    assert (answer.returncode != 0) == forged, (name, verb, answer)
        lake.file.write_bytes(honest)
