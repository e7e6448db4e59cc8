"""Attacks on a sealed table, by every way of opening it: each is refused, and changes nothing."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import modcrypt as mc
from modcrypt.iceberg import (
    create_table,
    expire_history,
    key_tree,
    open_table,
    remove_orphan_files,
    rotate_table,
    seal_table,
    verify_table,
)
from modcrypt.kms.signing.ledger import SEAL_NAME
from tests.support.cases import each_case
from tests.support.folder_contents import files
from tests.support.iceberg.sample_kms import SampleKms

WRITER, OTHER = mc.SigningKey.generate(), mc.SigningKey.generate()


def rows(number: int) -> pa.Table:
    return pa.table({"id": [number], "amount": [100 + number]})


@pytest.fixture
def folder(tmp_path: Path, kms: SampleKms) -> Path:
    """A sealed table with three snapshots; a copy and another writer's table are beside it."""
    for name, writer in (("other", OTHER), ("orders", WRITER)):
        table = create_table(tmp_path / name, rows(1).schema, kms, master_key_id="keyA")
        for number in (1, 2, 3):
            table = table.append(rows(number))
        seal_table(table, writer)
    shutil.copytree(tmp_path / "orders", tmp_path / "pristine")
    return tmp_path / "orders"


def seal_of(folder: Path) -> Path:
    return folder / "metadata" / SEAL_NAME


def newest(folder: Path) -> Path:
    versions = (folder / "metadata").glob("v*.metadata.json")
    return max(versions, key=lambda path: int(path.name[1:-14]))


def edit(folder: Path, change: Callable[[dict[str, Any]], object], *, as_next: bool) -> None:
    """Change the newest version of a table, in place or as the next version."""
    path = newest(folder)
    document = json.loads(path.read_bytes())
    change(document)
    if as_next:
        number = int(path.name[1:-14]) + 1
        path = path.with_name(f"v{number}.metadata.json")
        (folder / "metadata" / "version-hint.text").write_text(str(number))
    path.write_text(json.dumps(document))


def swap_names(document: dict[str, Any]) -> None:
    schema = copy.deepcopy(document["schemas"][-1])
    schema["schema-id"] = 1 + max(each["schema-id"] for each in document["schemas"])
    first, second = schema["fields"][:2]
    first["name"], second["name"] = second["name"], first["name"]
    document["schemas"].append(schema)
    document["current-schema-id"] = schema["schema-id"]


def roll_back(document: dict[str, Any]) -> None:
    first = min(document["snapshots"], key=lambda snapshot: snapshot["sequence-number"])
    document["current-snapshot-id"] = first["snapshot-id"]
    document["refs"] = {"main": {"snapshot-id": first["snapshot-id"], "type": "branch"}}


EDITS: dict[str, Callable[[dict[str, Any]], object]] = {
    "names swapped": swap_names,
    "older snapshot": roll_back,
    "property": lambda document: document["properties"].update({"write.metadata.path": "/else"}),
    "half a character": lambda document: document["properties"].update({"x": "\ud800"}),
}
ATTACKS: dict[str, Callable[[Path], object]] = {
    **{name: partial(edit, change=change, as_next=False) for name, change in EDITS.items()},
    **{
        f"{name} as the next version": partial(edit, change=change, as_next=True)
        for name, change in EDITS.items()
    },
    "seal removed": lambda folder: seal_of(folder).unlink(),
    "seal of another writer": lambda folder: shutil.copy(
        seal_of(folder.parent / "other"), seal_of(folder)
    ),
    "newest version removed": lambda folder: newest(folder).unlink(),
}  # fmt: skip


def entries(kms: SampleKms, folder: Path) -> dict[str, Callable[[], object]]:
    """Return ways to open a table of which a seal is required, by names."""
    how: dict[str, Any] = {"signed_by": [WRITER.verifier], "master_key_ids": ["keyA"]}
    live = open_table(folder, kms, signing_key=WRITER, **how)

    def opened(**more: Any) -> Any:
        return open_table(folder, kms, **how, **more)

    policy = mc.Policy(footer_key="keyA", signed_by=[str(WRITER.verifier)], seal_at_least=1)
    return {
        "scan": lambda: opened().scan().to_arrow(),
        "scan of the file": lambda: open_table(newest(folder), kms, **how).scan().to_arrow(),
        "batches": lambda: list(opened().scan_batches()),
        "policy": lambda: (
            open_table(folder, mc.KeyTools.from_policy(policy, kms=kms)).scan().to_arrow()
        ),
        "verify": lambda: verify_table(opened()),
        "key tree": lambda: key_tree(opened()),
        "orphans": lambda: remove_orphan_files(opened()),
        "append": lambda: opened(signing_key=WRITER).append(rows(9)),
        "rotate": lambda: rotate_table(opened(signing_key=WRITER), "kek"),
        "live append": lambda: live.append(rows(9)),
        "live rotate": lambda: rotate_table(live, "kek"),
        "live expire": lambda: expire_history(live),
    }


@each_case("attack", list(ATTACKS))
def test_every_way_of_opening_refuses(attack: str, folder: Path, kms: SampleKms) -> None:
    for name in entries(kms, folder):
        shutil.rmtree(folder)
        shutil.copytree(folder.parent / "pristine", folder)
        enter = entries(kms, folder)[name]
        ATTACKS[attack](folder)
        before = files(folder)
        with pytest.raises(mc.ModcryptError):
            enter()
        assert files(folder) == before, f"{name} changed the table"


def test_without_an_attack_each_way_succeeds(folder: Path, kms: SampleKms) -> None:
    for name in entries(kms, folder):
        shutil.rmtree(folder)
        shutil.copytree(folder.parent / "pristine", folder)
        WRITER.remembered.clear()  # or it would take the copy for an older state
        entries(kms, folder)[name]()
