"""Whatever is planted in a table's folder, an expiry deletes what it deletes without that.

Each table has an honest twin: a copy in which nothing is planted.
"""

from __future__ import annotations

import gzip
import json
import os
import random
import re
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from modcrypt.iceberg import (
    FileKeyStore,
    IcebergTable,
    KeyPolicy,
    expire_history,
    load_table,
    open_table,
    prune_keys,
    rotate_table,
    verify_table,
)
from modcrypt.iceberg.write.commit import commit
from tests.support.cases import each_case
from tests.support.iceberg.fault_words import fault_words
from tests.support.iceberg.made_tables import make_table
from tests.support.iceberg.sample_kms import SampleKms
from tests.support.iceberg.table_changes import ids, rows
from tests.support.randomness import dice, examples

STORE = "keks.json"
Document = dict[str, Any]


def statistics(table: IcebergTable, name: str, snapshot: int) -> Document:
    (Path(table.place.path).parent / name).write_bytes(b"PFA1 made by an engine")
    return {
        "snapshot-id": snapshot,
        "statistics-path": f"{table.metadata.location}/metadata/{name}",
        "file-size-in-bytes": 22,
        "file-footer-size-in-bytes": 4,
        "blob-metadata": [],
    }


def reference(snapshot: int) -> Document:
    return {"snapshot-id": snapshot, "type": "tag"}


@pytest.fixture(scope="module")
def genuine_table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table with a key store, a tag, statistics and rotations, whose history was expired once."""
    folder = tmp_path_factory.mktemp("planted") / "t"
    folder.mkdir()
    store = FileKeyStore.create(folder / STORE)
    table = make_table(
        folder, key_store=store, policy=KeyPolicy(kek_per="partition", store="key-store")
    )
    table = expire_history(table.append(rows(1)).append(rows(2))).table
    table = rotate_table(table.append(rows(3)), "kek").table
    tagged = table.metadata.snapshots[-1].id
    table = table.append(rows(4)).append(rows(5))
    first, last = table.metadata.snapshots[0].id, table.metadata.snapshots[-1].id
    files = [statistics(table, "old.stats", first), statistics(table, "new.stats", last)]
    refs = {**table.metadata.refs, "kept": reference(tagged)}
    table = commit(table, lambda base: base.metadata.with_members(statistics=files, refs=refs))
    rotate_table(table, "mek")
    (folder / "notes.txt").write_text("mine")
    (folder / "data" / "mine.stats").write_bytes(b"PFA1 mine")
    return folder


def open_folder(folder: Path) -> IcebergTable:
    return open_table(
        folder, SampleKms(), key_store=FileKeyStore(folder / STORE), master_key_ids=["keyA"]
    )


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and not path.is_symlink()
    }


# --- what is planted -----------------------------------------------------------------------------


class Planting:
    """Plants metadata.json files and links in a copy of the table, by chance."""

    def __init__(self, folder: Path, current: str, draw: random.Random) -> None:
        self.folder, self.draw = folder, draw
        self.metadata = folder / "metadata"
        self.current = Path(current)
        self.number = int(re.findall(r"[0-9]+", self.current.name)[0])
        self.document: Document = json.loads(self.current.read_bytes())
        self.location = self.document["location"]
        self.genuine = [path.read_bytes() for path in sorted(self.metadata.glob("*.json"))]
        self.outside = folder.parent / "outside"
        shutil.copytree(folder, self.outside)

    def victim(self) -> str:
        """Return a file that must stay, in one of many spellings."""
        following = [f"metadata/v{self.number + n}.metadata.json" for n in range(4)]
        there = sorted(contents(self.folder))
        inside = self.draw.choice(
            [*following, *following, "metadata/version-hint.text", STORE, "notes.txt", *there]
        )
        return self.draw.choice(SPELLINGS)(self.location, inside)

    def version(self) -> Document:
        """Make a version out of a genuine one."""
        found: Document = json.loads(self.draw.choice(self.genuine))
        for change in self.draw.sample(CHANGES, self.draw.randint(1, len(CHANGES))):
            change(self, found)
        return found

    def name(self) -> str:
        some, number = uuid.UUID(int=self.draw.getrandbits(128)), self.number
        return self.draw.choice([
            "v0", "v0.gz", "v00", f"v0{number}", f"v{number}.gz", f"V{number}", "copy",
            f"00000-{some}", f"{number:05}-{some}.gz", f"00099-{some}",
        ]) + ".metadata.json" + self.draw.choice(["", "", ".gz"])  # fmt: skip

    def plant_all(self) -> None:
        self.plant_links()
        for _ in range(self.draw.randint(1, 8)):
            self.plant()
        if self.draw.random() < 0.7:
            self.plant_what_a_log_names()

    def plant(self) -> None:
        path, document = self.metadata / self.name(), self.version()
        if path.name.startswith("0"):  # what a catalog seems to have gone on with is refused
            document["metadata-log"] = []
        data = json.dumps(document).encode()
        data = self.draw.choice([data, data, gzip.compress(data), b"{}"])
        if not path.exists():
            path.write_bytes(data)

    def plant_what_a_log_names(self) -> None:
        """Put a version in the place of one that an expiry has deleted, with its time."""
        for entry in self.document["metadata-log"]:
            path = self.metadata / Path(entry["metadata-file"]).name
            if not path.exists():
                found = {**self.version(), "last-updated-ms": entry["timestamp-ms"]}
                # It is vouched for, so that a Puffin file that it names would go.
                reported = [file for file in found.get("statistics", []) if not names_puffin(file)]
                path.write_text(
                    json.dumps({**found, "statistics": reported, "partition-statistics": []})
                )

    def plant_links(self) -> None:
        """Plant other names of existing files: links to folders, and hard links."""
        for name, target in (("metadata/lnk", "../data"), ("stats", self.outside), ("up", "..")):
            if self.draw.random() < 0.7:
                (self.folder / name).symlink_to(target)
        os.link(self.current, self.metadata / "hard.stats")
        os.link(self.folder / STORE, self.folder / "data" / "hard.parquet")


def names_puffin(entry: Document) -> bool:
    return "mine.stats" in entry["statistics-path"]


SPELLINGS: list[Callable[[str, str], str]] = [
    lambda location, inside: f"{location}/{inside}",
    lambda location, inside: f"{location}/{inside}",
    lambda location, inside: f"{location}/data/../{inside}",
    lambda location, inside: f"{location}//{inside}",
    lambda location, inside: f"{location}/./{inside}",
    lambda location, inside: f"{location}/{inside.replace('/', '%2F')}",
    lambda location, inside: f"{location}/{inside.upper()}",
    lambda location, inside: f"file:{location}/{inside}",
    lambda location, inside: f"file://{location}/{inside}",
    lambda location, inside: f"{location}/stats/{inside}",
    lambda location, inside: f"{location}/metadata/lnk/{Path(inside).name}",
    lambda location, inside: f"{location}/up/outside/{inside}",
    lambda location, inside: f"{location}/metadata/hard.stats",
    lambda location, inside: inside,
]


def forge_statistics(planting: Planting, document: Document) -> None:
    for member in ("statistics", "partition-statistics"):
        document[member] = [
            {"snapshot-id": 1, "statistics-path": planting.victim(), "file-size-in-bytes": 1,
             "file-footer-size-in-bytes": 1, "blob-metadata": []}
            for _ in range(4)
        ]  # fmt: skip


def forge_log(planting: Planting, document: Document) -> None:
    times = [document["last-updated-ms"], planting.document["last-updated-ms"], 1]
    document["metadata-log"] = [
        {"timestamp-ms": planting.draw.choice(times), "metadata-file": planting.victim()}
        for _ in range(6)
    ]


def forge_snapshots(planting: Planting, document: Document) -> None:
    """List live files as manifest lists, and live snapshots under other ids and keys."""
    keys = [key["key-id"] for key in planting.document["encryption-keys"]]
    document["snapshots"] = [
        {**snapshot, "snapshot-id": planting.draw.randint(1, 99),
         "manifest-list": planting.draw.choice([snapshot["manifest-list"], planting.victim()]),
         "key-id": planting.draw.choice([snapshot["key-id"], *keys])}
        for snapshot in (*planting.document["snapshots"], *document["snapshots"])
    ]  # fmt: skip
    document["encryption-keys"] = planting.document["encryption-keys"]


def forge_time(planting: Planting, document: Document) -> None:
    now = planting.document["last-updated-ms"]
    document["last-updated-ms"] = planting.draw.choice([1, now, now + 1, 2**62])


def forge_location(planting: Planting, document: Document) -> None:
    location, outside = planting.location, str(planting.outside)
    document["location"] = planting.draw.choice(
        ["/", str(planting.folder.parent), f"{location}/metadata", f"{location}/..", outside]
    )


def forget_files(planting: Planting, document: Document) -> None:
    document.update({"snapshots": [], "refs": {}, "encryption-keys": [], "metadata-log": []})


CHANGES = [forge_statistics, forge_statistics, forge_log, forge_snapshots, forge_time,
           forge_location, forget_files]  # fmt: skip


# --- the property --------------------------------------------------------------------------------


@pytest.mark.seeded
@each_case("seed", range(examples(24)))
def test_an_expiry_deletes_what_it_deletes_of_the_honest_twin(
    genuine_table: Path, tmp_path: Path, seed: int
) -> None:
    draw = dice(seed)
    twin, folder = (Path(shutil.copytree(genuine_table, tmp_path / name / "t")) for name in "ab")
    before, origin, force = contents(folder), contents(genuine_table), bool(seed % 2)
    planting = Planting(folder, open_folder(folder).place.path, draw)
    planting.plant_all()
    outside = contents(planting.outside)
    if draw.random() < 0.5:
        prune_keys(open_folder(folder))
        prune_keys(open_folder(twin))
    assert any(
        "not in the log" in finding.message
        for finding in verify_table(open_folder(folder)).findings
    )

    honest = expire_history(open_folder(twin), force=force)
    done = expire_history(open_folder(folder), force=force)

    stay = {name: data for name, data in contents(twin).items() if name in before}
    assert {name: data for name, data in contents(folder).items() if name in before} == stay
    assert {"metadata/new.stats", "data/mine.stats", "notes.txt", STORE} <= stay.keys()
    assert "metadata/old.stats" not in stay
    assert (contents(planting.outside), contents(genuine_table)) == (outside, origin)
    reported, expected = done.fields(), honest.fields()
    for name in ("data_files", "delete_files", "statistics", "manifests", "manifest_lists", "left"):
        assert sorted(reported[name]) == sorted(expected[name])
    assert sorted(done.keys) == sorted(honest.keys)
    assert expected["unreadable"] == []
    after = open_folder(folder)
    assert ids(after) == [1, 2, 3, 4, 5]
    assert after.scan(after.metadata.snapshots[0].id).equals(
        open_folder(twin).scan(after.metadata.snapshots[0].id).to_arrow()
    )
    assert fault_words(after) <= {"plaintext"}  # what was planted stays
    assert expire_history(after, force=force).left == ()
    assert open_folder(folder).scan().num_rows == 5


@pytest.mark.seeded
@pytest.mark.parametrize("seed", range(4))
def test_nor_does_it_of_a_catalogs_table(tmp_path: Path, seed: int) -> None:
    """Its twin is the dry run of before."""
    folder = tmp_path / "t"
    folder.mkdir()
    store = FileKeyStore.create(folder / STORE)
    catalog = SqlCatalog("lake", uri=f"sqlite:///{tmp_path}/c.db", warehouse=str(tmp_path))
    catalog.create_namespace("n")
    table = make_table(folder, key_store=store, catalog=catalog, identifier="n.t").append(rows(1))
    table = rotate_table(expire_history(table).table.append(rows(2)), "dek").table
    honest, before = expire_history(table, dry_run=True).fields(), contents(folder)
    Planting(folder, table.place.path, dice(seed)).plant_all()

    reported = expire_history(table).fields()

    files = ("data_files", "statistics", "manifests", "manifest_lists")
    assert {name: reported[name] for name in files} == {name: honest[name] for name in files}
    named = [path for name in (*files, "metadata_files") for path in honest[name]]
    gone = before.keys() - contents(folder).keys()
    assert gone == {str(Path(path).relative_to(folder)) for path in named}
    after = load_table(catalog, "n.t", SampleKms(), key_store=store)
    assert ids(after) == [1, 2]
    assert fault_words(after) <= {"plaintext"}  # what was planted stays


def test_nor_of_another_table_within_the_folder(tmp_path: Path) -> None:
    """A deleted version that the log names is forged, with the keys and snapshots of that table."""
    outer, inner = (make_table(tmp_path / name) for name in ("t", "t/data/deep/inner"))
    outer = expire_history(outer.append(rows(1)).append(rows(2))).table
    inner = inner.append(rows(3))
    stats = statistics(inner, "inner.stats", inner.metadata.snapshots[0].id)
    document: Document = outer.metadata.document
    logged = document["metadata-log"][-1]
    Path(logged["metadata-file"]).write_text(
        json.dumps(
            {
                **inner.metadata.document,
                "table-uuid": document["table-uuid"],
                "location": document["location"],
                "last-updated-ms": logged["timestamp-ms"],
                "statistics": [stats],
            }
        )
    )
    before = contents(tmp_path / "t/data/deep/inner")
    done = expire_history(outer)
    assert contents(tmp_path / "t/data/deep/inner") == before
    assert {stats["statistics-path"], inner.metadata.snapshots[0].manifest_list} < set(
        done.unreadable
    )
    assert done.metadata_files
