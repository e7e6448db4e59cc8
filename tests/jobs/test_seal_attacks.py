"""Attacks on a sealed dataset, by every way of reading: a reader gets the sealed rows or an error.

And `verify` is never milder than a reader: what one of them refuses is a fault.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import fsspec
import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds
import pytest

import modcrypt as mc
import modcrypt.parquet as pq
from modcrypt.kms.signing.ledger import SEAL_NAME
from tests.support.cases import each_case
from tests.support.cli.program import private, run
from tests.support.keys import FOOTER_KEY
from tests.support.signing import save_writer, writer_key

BY = (writer_key().verifier,)
FILES = ("day=1/a", "day=1/b", "day=2/a")
ROWS = sorted(FILES * 2)


def write(path: Path, value: str) -> None:
    path.parent.mkdir(exist_ok=True)
    signing = mc.FileEncryptionProperties(footer_key=FOOTER_KEY, signing_key=writer_key())
    mc.write_table(pa.table({"v": [value] * 2}), path, signing)


@pytest.fixture(scope="module")
def sealed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with keys, a sealed dataset, and what attackers may have: older, signed files."""
    folder = tmp_path_factory.mktemp("sealed")
    (folder / "lake").mkdir()
    for name in FILES:
        write(folder / "lake" / f"{name}.parquet", name)
    shutil.copytree(folder / "lake", folder / "former")
    write(folder / "former/day=1/a.parquet", "former")
    mc.jobs.seal_dataset(folder / "former", writer_key())
    mc.jobs.seal_dataset(folder / "lake", writer_key())
    private(folder / "footer.key", FOOTER_KEY.hex().encode())
    save_writer(folder)
    return folder


def swap(first: Path, second: Path) -> None:
    first.rename(first.with_name("aside"))
    second.rename(first)
    first.with_name("aside").rename(second)


def hide(lake: Path, *names: str) -> None:
    """Leave the note of a write in progress, which readers of the folder obey."""
    (lake / "_modcrypt_writes").mkdir()
    note = {"version": 1, "hidden": names, "host": "h", "time": 0}
    (lake / "_modcrypt_writes/1.json").write_text(json.dumps(note))


def remove_folders(lake: Path) -> None:
    for folder in lake.glob("day=*"):
        shutil.rmtree(folder)


def seal_by_another(lake: Path) -> None:
    (lake / SEAL_NAME).unlink()
    mc.jobs.seal_dataset(lake, writer_key(number=1))


def replace_by_link(path: Path, target: str | Path) -> None:
    path.rename(path.parents[2] / "copy.parquet")
    path.symlink_to(target)


REFUSED: dict[str, Callable[[Path], object]] = {
    "two files swapped": lambda lake: swap(lake / "day=1/a.parquet", lake / "day=2/a.parquet"),
    "two folders swapped": lambda lake: swap(lake / "day=1", lake / "day=2"),
    "foreign file": lambda lake: write(lake / "day=1/z.parquet", "z"),
    "foreign folder": lambda lake: write(lake / "day=3/z.parquet", "z"),
    "copy of a file": lambda lake: shutil.copy(lake / "day=1/a.parquet", lake / "day=1/c.parquet"),
    "link to a sibling": lambda lake: replace_by_link(lake / "day=1/a.parquet", "b.parquet"),
    "former file": lambda lake: shutil.copy(
        lake.parent / "former/day=1/a.parquet", lake / "day=1/a.parquet"
    ),
    "newer file": lambda lake: write(lake / "day=1/a.parquet", "newer"),
    "plaintext file": lambda lake: pa.parquet.write_table(
        pa.table({"v": ["p", "p"]}), lake / "day=1/a.parquet"
    ),
    "missing file": lambda lake: (lake / "day=1/b.parquet").unlink(),
    "missing folder": lambda lake: shutil.rmtree(lake / "day=2"),
    "all files missing": lambda lake: remove_folders(lake),
    "seal removed": lambda lake: (lake / SEAL_NAME).unlink(),
    "seal of another writer": lambda lake: seal_by_another(lake),
    "former seal": lambda lake: shutil.copy(lake.parent / "former" / SEAL_NAME, lake / SEAL_NAME),
    "seal of another kind": lambda lake: (lake / SEAL_NAME).write_text("{}\n{}\n"),
    "sparse seal": lambda lake: os.truncate(lake / SEAL_NAME, 1 << 20),
}  # fmt: skip
# Readers may get the sealed rows, or refuse.
HARMLESS: dict[str, Callable[[Path], object]] = {
    "nothing": lambda lake: None,
    "file hidden by a note": lambda lake: hide(lake, "day=1/a.parquet"),
    "all hidden by a note": lambda lake: hide(lake, *(f"{name}.parquet" for name in FILES)),
    "link to its own copy": lambda lake: replace_by_link(
        lake / "day=1/a.parquet", lake.parent / "copy.parquet"
    ),
    "link to a folder": lambda lake: (lake / "day=3").symlink_to("day=1"),
    "seal in a folder": lambda lake: shutil.copy(lake / SEAL_NAME, lake / "day=1" / SEAL_NAME),
}
ATTACKS = REFUSED | HARMLESS

Rows = Callable[[Path, Any], list[str]]


def folders_of(lake: Path) -> list[str]:
    return sorted({str(lake / "day=1"), str(lake / "day=2"), *map(str, lake.glob("day=*"))})


def filesystem(required: Any) -> Any:
    return fsspec.filesystem("modcrypt", decryption=required, skip_instance_cache=True)


READERS: dict[str, Rows] = {
    "read_table": lambda lake, how: mc.read_table(lake, how)["v"].to_pylist(),
    "filters": lambda lake, how: mc.read_table(
        lake, how, filters=[("v", "!=", "")]
    )["v"].to_pylist(),
    "iter_batches": lambda lake, how: [
        value for batch in mc.iter_batches(lake, how) for value in batch["v"].to_pylist()
    ],
    "pq.read_table": lambda lake, how: pq.read_table(
        lake, decryption_properties=how
    )["v"].to_pylist(),
    "pq.ParquetDataset": lambda lake, how: pq.ParquetDataset(
        lake, decryption_properties=how
    ).read()["v"].to_pylist(),
    "pyarrow.dataset": lambda lake, how: ds.dataset(
        str(lake), filesystem=filesystem(how), format="parquet"
    ).to_table()["v"].to_pylist(),
    "pandas": lambda lake, how: list(pd.read_parquet(str(lake), filesystem=filesystem(how))["v"]),
    "folder by folder": lambda lake, how: pa.concat_tables(
        mc.read_table(folder, how) for folder in folders_of(lake)
    )["v"].to_pylist(),
}  # fmt: skip


def required_of(lake: Path, at_least: int = 1) -> mc.FileDecryptionProperties:
    seal = mc.kms.RequiredSeal(BY, at_least=at_least, root=str(lake))
    return mc.FileDecryptionProperties(footer_key=FOOTER_KEY, signed_by=BY, seal=seal)


def is_read(reader: str, lake: Path, at_least: int = 1) -> bool:
    """Return whether a reader gets the sealed rows; it raises an error of modcrypt otherwise."""
    try:
        rows = READERS[reader](lake, required_of(lake, at_least))
    except (mc.ModcryptError, OSError):
        return False
    assert sorted(rows) == ROWS, f"{reader} returned other rows"
    return True


def list_verifiers(lake: Path, at_least: int = 1) -> dict[str, bool]:
    """Return whether a way of verifying finds no fault, by the reader of the same paths."""
    options = ("--key", "file:footer.key", "--signed-by", "writer.pub", "--root", str(lake))
    verify = partial(run, lake.parent, "verify", *options, "--seal-at-least", str(at_least))
    whole = mc.verify_dataset(lake, required_of(lake, at_least)).ok
    return {
        "read_table": whole or verify(str(lake)).returncode == 0,
        "folder by folder": verify(*folders_of(lake)).returncode == 0,
    }


def copy_with(attack: str, sealed: Path, tmp_path: Path) -> Path:
    shutil.copytree(sealed, tmp_path / "copy")
    ATTACKS[attack](tmp_path / "copy/lake")
    return tmp_path / "copy/lake"


@each_case("attack", list(ATTACKS))
def test_readers_get_the_sealed_rows_or_an_error(attack: str, sealed: Path, tmp_path: Path) -> None:
    lake = copy_with(attack, sealed, tmp_path)
    read = {reader for reader in READERS if is_read(reader, lake)}
    assert not (read and attack in REFUSED), f"accepted by {read}"
    for reader, is_verified in list_verifiers(lake).items():
        assert is_verified <= (reader in read), f"verify is milder than {reader}"
        assert is_verified or attack != "nothing"


def test_a_reader_who_has_seen_a_newer_seal_refuses_this_one(sealed: Path) -> None:
    lake = sealed / "lake"
    assert not any(is_read(reader, lake, at_least=2) for reader in READERS)
    assert not any(list_verifiers(lake, at_least=2).values())


@each_case("attack", [name for name in REFUSED if name != "seal of another writer"])
def test_the_seal_itself_says_so(attack: str, sealed: Path, tmp_path: Path) -> None:
    lake = copy_with(attack, sealed, tmp_path)
    try:
        result = mc.jobs.verify_seal(lake, BY)
    except (mc.ModcryptError, OSError):
        return
    assert not result.ok
