"""`modcrypt iceberg` with seals: `seal`, `--sign` of changes, and `--signed-by` of readers."""

from __future__ import annotations

import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import modcrypt as mc
from tests.support.cases import each_case
from tests.support.iceberg.cli_runs import Run, error_line, lines, run
from tests.support.signing import save_writer, writer_key

__all__ = ["run"]  # a fixture

SAMPLE = ("--kms", "sample:")
SIGN, BY = ("--sign", "file:writer.key"), (*SAMPLE, "--signed-by", "writer.pub")


@pytest.fixture
def orders(run: Run, tmp_path: Path) -> Path:
    """A file of rows, which the sealed table `orders` has; its writer's keys are beside it."""
    save_writer(tmp_path)
    path = tmp_path / "orders.parquet"
    pq.write_table(pa.table({"id": pa.array([1, 2, 3], pa.int64())}), path)
    run("create", *SAMPLE, "--master-key", "keyA", "--like", path, "orders")
    run("append", *SAMPLE, "orders", path)
    (sealed,) = lines(run("seal", *SIGN, "--json", "orders"))
    assert (sealed["sequence"], sealed["signer"]) == (1, writer_key().verifier.hex_id)
    return path


def test_a_sealed_table_is_scanned_and_verified(run: Run, orders: Path) -> None:
    run("scan", *BY, "orders")
    run("append", *BY, "orders", orders)
    assert "not the version that was sealed" in error_line(run("scan", *BY, "orders", code=1))
    why = error_line(run("seal", *SIGN, "orders", code=1))
    assert "differs from it in current-snapshot-id" in why
    assert "modcrypt iceberg seal --accept" in why
    accepted = run("seal", *SIGN, "--accept", "--yes", "orders")
    assert accepted.stdout.startswith("seal 2: v3.metadata.json, signed by ")
    run("append", *BY, *SIGN, "orders", orders)
    run("scan", *BY, "--seal-at-least", "3", "orders")
    run("verify", *BY, "--seal-at-least", "3", "--strict", "orders")
    why = error_line(run("verify", *BY, "--seal-at-least", "4", "orders", code=1))
    assert "the table was rolled back" in why
    assert "--sign" in error_line(run("seal", "orders", code=2))
    assert "--signed-by" in error_line(
        run("scan", *SAMPLE, "--seal-at-least", "1", "orders", code=2)
    )


def test_a_seal_expires(run: Run, orders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run("seal", *SIGN, "--valid-days", "2", "orders")
    run("scan", *BY, "orders")
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 2 * 86400)
    assert "seal number 2 expired" in error_line(run("scan", *BY, "orders", code=1))


UNSEALED = "pass --sign, or run modcrypt iceberg seal --accept afterwards"

CHANGES = [
    ("rotate", "mek"), ("rotate", "kek"), ("rotate", "dek"), ("admin", "prune"),
    ("admin", "repair"), ("expire", "--yes"), ("admin", "policy", "--kek-lifetime", "7"),
]  # fmt: skip


@each_case("change", CHANGES, ids=" ".join)
def test_changes_are_sealed_in_the_same_step(
    change: tuple[str, ...], run: Run, orders: Path
) -> None:
    run("append", *BY, *SIGN, "orders", orders)
    assert UNSEALED not in run(*change, *BY, *SIGN, "orders").stderr
    sequence = "2" if {"prune", "repair"} & {*change} else "3"
    run("scan", *BY, "--seal-at-least", sequence, "orders")


@each_case("change", CHANGES, ids=" ".join)
def test_a_change_without_a_key_says_first_that_it_is_not_sealed(
    change: tuple[str, ...], run: Run, orders: Path
) -> None:
    assert UNSEALED in run(*change, *BY, "orders").stderr
    run("seal", *SIGN, "--accept", "--yes", "orders")
    assert run("admin", "policy", *BY, "orders").stderr == ""  # it changes nothing
    if not {"policy", "expire"} & {*change}:
        assert UNSEALED not in run(*change, "--dry-run", *BY, "orders").stderr


def test_a_foreign_key_is_refused_before_the_change(run: Run, orders: Path, tmp_path: Path) -> None:
    mc.SigningKey.generate().save(tmp_path / "other.key")
    before = sorted((tmp_path / "orders/metadata").iterdir())
    refused = run("rotate", "kek", *SAMPLE, "--sign", "file:other.key", "orders", code=1)
    assert "not signed by" in error_line(refused)
    assert sorted((tmp_path / "orders/metadata").iterdir()) == before


def test_all_tables_of_a_catalog_are_sealed(run: Run, orders: Path, tmp_path: Path) -> None:
    where = ("--catalog", f"sqlite:///{tmp_path}/c.db")
    for name in ("shop.a", "shop.b"):
        folder = ("--folder", str(tmp_path / name))
        new = (*where, *folder, "--master-key", "keyA", "--like", orders)
        run("create", *SAMPLE, *new, name)
        run("append", *SAMPLE, *where, *SIGN, name, orders)
    assert UNSEALED in run("rotate", "mek", *BY, *where).stderr
    for name in ("shop.a", "shop.b"):
        assert "not the version" in error_line(run("scan", *BY, *where, name, code=1))
        run("seal", *SAMPLE, *where, *SIGN, "--accept", "--yes", name)
    assert run("rotate", "mek", *BY, *where, *SIGN, "--new-master-key", "keyB").stderr == ""
    for name in ("shop.a", "shop.b"):
        run("scan", *BY, *where, "--seal-at-least", "3", name)
