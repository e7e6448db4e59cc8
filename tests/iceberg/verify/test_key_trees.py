"""The key tree: which key opens what, by `key_tree`, held against what really opens.

The table of several KEKs is made here, and by the builder, with `cryptography` alone.
"""

from __future__ import annotations

import base64
import json
import os
import pickle
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from modcrypt.errors import ModcryptError
from modcrypt.iceberg import IcebergTable, KeyTree, key_tree, open_table, verify_table
from modcrypt.iceberg.rotate.table_rotation import rotate_table
from modcrypt.report import render_html
from tests.support.browser import EVIL, POOR_CONTRAST, Browser, chromium
from tests.support.cases import each_case
from tests.support.iceberg import builder
from tests.support.iceberg.builder import Builder, id_field
from tests.support.iceberg.sample_kms import MASTERS, SampleKms
from tests.support.iceberg.shared_table import both
from tests.support.shared_vectors import shared_vectors

__all__ = ["chromium"]  # a fixture

SCHEMA = builder.struct(builder.field(1, "id", "long"))
FIELDS = pa.schema([id_field(1, "id", pa.int64())])
STAMP = builder.KEK_TIMESTAMP


class TextKms:
    """A key service whose wrapped keys name the version of the master key, as Vault's do."""

    newest = 2

    def __init__(self) -> None:
        self.gone: set[int] = set()

    @staticmethod
    def _key(master_key_id: str, version: int) -> AESGCM:
        return AESGCM(bytes([version]) * 8 + MASTERS[master_key_id][:8])

    def wrap_by(self, key: bytes, master_key_id: str, version: int) -> str:
        nonce = os.urandom(12)
        sealed = nonce + self._key(master_key_id, version).encrypt(nonce, key, None)
        return f"vault:v{version}:{base64.b64encode(sealed).decode()}"

    def wrap(self, key: bytes, master_key_id: str, *, aad: bytes = b"") -> str:
        return self.wrap_by(key, master_key_id, self.newest)

    def unwrap(self, wrapped: str, master_key_id: str, *, aad: bytes = b"") -> bytes:
        _, version, sealed = wrapped.split(":")
        if int(version[1:]) in self.gone:
            raise PermissionError
        block = base64.b64decode(sealed)
        try:
            return self._key(master_key_id, int(version[1:])).decrypt(block[:12], block[12:], None)
        except InvalidTag:
            raise PermissionError from None

    def is_current(self, wrapped: str, master_key_id: str) -> bool:
        return wrapped.startswith(f"vault:v{self.newest}:")


class Forest(Builder):
    """A table of several KEKs, made in ways that Java has not."""

    def __init__(self, folder: Path, kms: TextKms) -> None:
        super().__init__(folder, SCHEMA)
        self.kms = kms
        self.keks: dict[str, bytes] = {}
        self.document["encryption-keys"] = []

    def new_kek(self, name: str, version: int, scope: str = "") -> None:
        key = self.keks[name] = os.urandom(16)
        wrapped = self.kms.wrap_by(key, "keyA", version).encode()
        self.document["encryption-keys"].append(
            {
                "key-id": name,
                "encrypted-key-metadata": base64.b64encode(wrapped).decode(),
                "encrypted-by-id": "keyA",
                "properties": {"KEY_TIMESTAMP": STAMP, "modcrypt.scope": scope},
            }
        )

    def under(self, name: str, rows: list[dict[str, Any]]) -> None:
        """Add a snapshot whose manifest list is under a KEK."""
        self.kek = self.keks[name]
        self.snapshot(rows)
        self.document["encryption-keys"][-1]["encrypted-by-id"] = name

    def single(self, version: int, rows: list[dict[str, Any]]) -> None:
        """Add a snapshot whose manifest list's key a master key wraps by itself."""
        self.kek = bytes(16)
        self.snapshot(rows)
        entry = self.document["encryption-keys"][-1]
        sealed = base64.b64decode(entry["encrypted-key-metadata"])
        metadata = AESGCM(self.kek).decrypt(sealed[:12], sealed[12:], STAMP.encode())
        found = self._wrap(metadata, "keyA", version, "modcrypt iceberg manifest list")
        entry["encrypted-key-metadata"] = base64.b64encode(found).decode()
        entry |= {"encrypted-by-id": "keyA", "properties": {"modcrypt.wrapping": "single"}}

    def seal_under(self, name: str, file: dict[str, Any], scope: str) -> dict[str, Any]:
        """Seal the key metadata of a file under a KEK, for its manifest."""
        aad = aad_of("modcrypt iceberg file", name, STAMP, scope)
        sealed = builder.seal(self.keks[name], file["key_metadata"], aad)
        return {**file, "key_metadata": in_manifest(0x81, name, sealed)}

    def wrap_with(self, master: str, version: int, file: dict[str, Any]) -> dict[str, Any]:
        """Have a master key wrap the key of a file by itself, for its manifest."""
        sealed = self._wrap(file["key_metadata"], master, version, "modcrypt iceberg file")
        return {**file, "key_metadata": in_manifest(0x82, master, sealed)}

    def _wrap(self, metadata: bytes, master: str, version: int, place: str) -> bytes:
        key, prefix = metadata[2:18], metadata[20:36]
        length = metadata[36:]
        reported = b"\0" if length == b"\0" else b"\1" + unzigzag(length[1:]).to_bytes(8, "big")
        wrapped = self.kms.wrap_by(key, master, version).encode()
        sealed = builder.seal(key, reported + prefix, aad_of(place, master))
        return len(wrapped).to_bytes(2, "big") + wrapped + sealed

    def ten_rows(self, name: str, start: int) -> dict[str, Any]:
        rows = pa.table({"id": range(start, start + 10)}, schema=FIELDS)
        return self.parquet(f"{name}.parquet", rows)


def aad_of(*texts: str) -> bytes:
    return b"".join(len(text).to_bytes(4, "big") + text.encode() for text in texts)


def in_manifest(kind: int, name: str, sealed: bytes) -> bytes:
    return bytes((kind,)) + len(name).to_bytes(2, "big") + name.encode() + sealed


def unzigzag(data: bytes) -> int:
    return sum((byte & 0x7F) << 7 * place for place, byte in enumerate(data)) >> 1


@pytest.fixture
def text_kms() -> TextKms:
    return TextKms()


@pytest.fixture
def forest(tmp_path: Path, text_kms: TextKms) -> IcebergTable:
    """Four KEKs, four snapshots, one manifest that two of them share.

    1001: under k1 (version 1): m1 with f1
    1002: under k2 (version 2): m1, and m2 with f2, whose own key is under the KEK of a partition
    1003: wrapped by keyA (version 1) itself: m3 with f3
    1004: under k2: m4 with f4, whose own key keyB (version 2) wraps
    """
    made = Forest(tmp_path, text_kms)
    made.new_kek("k1", 1)
    made.new_kek("k2", 2)
    made.new_kek("part", 2, "partition=2026")
    made.new_kek("spare", 1)
    first = made.manifest([made.ten_rows("f1", 0)], added_rows_count=10)
    made.under("k1", [first])
    second = made.seal_under("part", made.ten_rows("f2", 10), "partition=2026")
    made.under("k2", [first, made.manifest([second], added_rows_count=10)])
    made.single(1, [made.manifest([made.ten_rows("f3", 20)], added_rows_count=10)])
    fourth = made.wrap_with("keyB", 2, made.ten_rows("f4", 30))
    made.under("k2", [made.manifest([fourth], added_rows_count=10)])
    made.write()
    return open_table(tmp_path, text_kms, location_map={made.location: str(tmp_path)})


def open_anew(table: IcebergTable, kms: TextKms) -> IcebergTable:
    """Open a table anew, with no key unwrapped."""
    folders = {prefix: place.path for prefix, place in table.walk.locations.folders.items()}
    return open_table(table.place.path, kms, location_map=folders)


def names(tree: KeyTree, key_id: str, version: Any = None) -> tuple[set[str], set[str]]:
    """Return the names of the files that are lost without a key, and of those that are not."""
    found = tree.protected_by(key_id, version)
    named = [(re.split(r"[/.]", file.location)[-2], file.only) for file in found]
    assert len(named) == len(dict(named))
    return {name for name, only in named if only}, {name for name, only in named if not only}


# --- which key protects what ---------------------------------------------------------------------


def test_the_table_itself_is_whole(forest: IcebergTable) -> None:
    assert verify_table(forest).ok
    assert sorted(forest.scan(1002).column("id").to_pylist()) == list(range(20))


ALL = {f"{kind}{number}" for kind in ("snap-100", "m", "f") for number in (1, 2, 3, 4)}


@each_case(
    ("key_id", "version", "lost", "other"),
    [
        ("k1", None, {"snap-1001"}, {"m1", "f1"}),
        ("k2", None, {"snap-1002", "snap-1004", "m2", "f2", "m4", "f4"}, {"m1", "f1"}),
        ("part", None, {"f2"}, set()),
        ("spare", None, set(), set()),
        ("keyA", None, ALL, set()),
        ("keyA", 1, {"snap-1001", "snap-1003", "m3", "f3"}, {"m1", "f1"}),
        ("keyA", "2", {"snap-1002", "snap-1004", "m2", "f2", "m4", "f4"}, {"m1", "f1"}),
        ("keyA", 3, set(), set()),
        ("keyB", None, {"f4"}, set()),
        ("keyB", 1, set(), set()),
        ("nobody", None, set(), set()),
    ],
)
def test_what_a_key_protects(
    forest: IcebergTable, key_id: str, version: Any, lost: set[str], other: set[str]
) -> None:
    assert names(key_tree(forest), key_id, version) == (lost, other)


def test_what_is_reported_as_lost_is_lost_and_nothing_else(
    forest: IcebergTable, text_kms: TextKms
) -> None:
    """The judge is the reader, with a version of the master keys that is gone."""
    snapshots = {1001: {"f1"}, 1002: {"f1", "f2"}, 1003: {"f3"}, 1004: {"f4"}}
    tree = key_tree(forest)
    for version in (1, 2):
        lost = {name for key in ("keyA", "keyB") for name in names(tree, key, version)[0]}
        text_kms.gone = {version}
        opened = open_anew(forest, text_kms)
        for snapshot, files in snapshots.items():
            if f"snap-{snapshot}" in lost or files & lost:
                with pytest.raises(ModcryptError):
                    opened.scan(snapshot).to_arrow()
            else:
                assert opened.scan(snapshot).num_rows == 10 * len(files)


def test_a_version_that_is_not_named_may_be_any(t16: Path) -> None:
    tree = key_tree(open_table(t16, SampleKms(), location_map=both(t16)))
    assert all(file.certain and file.only for file in tree.protected_by("keyA"))
    perhaps = tree.protected_by("keyA", 3)
    assert len(perhaps) == 11
    assert not any(file.certain for file in perhaps)


def test_after_a_rotation_the_old_master_key_protects_nothing(t16: Path) -> None:
    before = open_table(t16, SampleKms(), location_map=both(t16))
    after = rotate_table(before, "mek", new_master_key_id="keyB").table
    tree = key_tree(after)
    assert tree.protected_by("keyA") == []
    assert len(tree.protected_by("keyB")) == 11
    assert any("older metadata.json" in finding.message for finding in verify_table(after).findings)


def test_the_tree_of_the_table_that_java_wrote(table: IcebergTable) -> None:
    """Java's listing says which manifest has which files, and which snapshot which manifests."""
    reported = (shared_vectors() / "iceberg-table" / "t16.java-read.txt").read_text()
    expected: dict[str, dict[str, list[str]]] = {}
    for line in reported.splitlines():
        if found := re.match(r"snapshot (\d+)|  manifest (\S+)|   (?:data|delete) (\S+)", line):
            snapshot, manifest, file = found.groups()
            if snapshot:
                expected[snapshot] = {}
            elif manifest:
                expected[max(expected)][manifest] = []
            else:
                expected[max(expected)][list(expected[max(expected)])[-1]].append(file)
    tree = key_tree(table)
    assert {
        str(manifest_list.snapshots[0]): {
            tree.manifests[m].location: [tree.files[f].location for f in tree.manifests[m].files]
            for m in manifest_list.manifests
        }
        for manifest_list in tree.lists
    } == expected
    assert [kek.lists for kek in tree.keks] == [3]


# --- as text -------------------------------------------------------------------------------------


def test_the_text_reports_keys_versions_and_files(forest: IcebergTable) -> None:
    text = key_tree(forest).to_text()
    lines = text.splitlines()
    assert lines[1].startswith("MEK keyA [the table's]: version 1, 2; 4 KEKs")
    assert any(re.search(r"─ KEK spare \[an older version\] \[unused\]", line) for line in lines)
    assert any("KEK part: made 2026-11-21" in line and "partition=2026" in line for line in lines)
    assert any("data f2.parquet" in line and "its key is under part" in line for line in lines)
    assert any(line.startswith("MEK keyB [not the table's]") for line in lines)
    assert lines[-2:] == ["1 unused key:", "  spare"]
    assert text.count("data f1.parquet") == 1  # shared, and drawn once


def test_long_lists_are_counted(forest: IcebergTable) -> None:
    text = key_tree(forest).to_text(limit=1)
    assert "and 3 more KEKs" in text or "and 3 more KEK" in text
    assert len(text.splitlines()) < 14


def test_only_what_was_drawn_is_said_to_be_drawn_above(forest: IcebergTable) -> None:
    tree = key_tree(forest)
    under = replace(tree.lists[0], manifests=(0, 1, 2))
    text = replace(tree, lists=(under, under)).to_text(limit=2)
    first, second = text.split("snapshot")[1:3]
    assert [name for name in ("m1.avro", "m2.avro", "m3.avro") if name in first] == [
        "m1.avro", "m2.avro"
    ]  # fmt: skip
    assert "and 1 more manifest" in first
    assert "m3.avro" in second
    assert "and 2 manifests drawn above" in second


def test_what_could_not_be_opened_is_in_the_tree_and_says_why(
    forest: IcebergTable, text_kms: TextKms
) -> None:
    text_kms.gone = {1}
    tree = key_tree(open_anew(forest, text_kms))
    assert not tree.whole
    text = tree.to_text()
    assert "KEK k1 [an older version] [not unwrapped]" in text
    assert "Some files could not be read" in text
    assert "snap-1001" in {re.split(r"[/.]", file.location)[-2] for file in tree.protected_by("k1")}


# --- as a page -----------------------------------------------------------------------------------


def hostile_tree(tree: KeyTree) -> KeyTree:
    """Return a tree whose every name is of the worst kind."""

    def evil_text(number: int) -> str:
        return EVIL[number % len(EVIL)]

    return replace(
        tree,
        location=evil_text(0),
        uuid=evil_text(1),
        keks=tuple(
            replace(
                kek, id=evil_text(n), scope=evil_text(n), version=evil_text(n), error=evil_text(n)
            )
            for n, kek in enumerate(tree.keks)
        ),
        lists=tuple(
            replace(
                manifest_list, location=evil_text(n), sealed_by=evil_text(n), error=evil_text(n)
            )
            for n, manifest_list in enumerate(tree.lists)
        ),
        manifests=tuple(
            replace(manifest, location=evil_text(n)) for n, manifest in enumerate(tree.manifests)
        ),
        files=tuple(
            replace(file, location=evil_text(n), kind=evil_text(n), sealed_by=evil_text(n))
            for n, file in enumerate(tree.files)
        ),
        unused=EVIL,
    )


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_the_pages_are_readable_and_ask_for_nothing(
    chromium: Browser, forest: IcebergTable, dark: bool
) -> None:
    for page in (render_html(key_tree(forest)), render_html(verify_table(forest))):
        chromium.show(page, dark=dark)
        chromium.run("for (const one of document.querySelectorAll('details')) one.open = true")
        seen, poor = chromium.run(POOR_CONTRAST)
        assert seen > 60
        assert poor == []
        assert chromium.requests() == [(chromium.folder / "page.html").as_uri()]
        assert chromium.complaints() == []
        for width in (500, 1000, 2500):
            chromium.resize(width)
            assert chromium.overflow() <= 0


def test_tables_are_sorted_by_sizes(chromium: Browser, forest: IcebergTable) -> None:
    chromium.show(render_html(verify_table(forest)))
    table = "section:last-of-type table"
    chromium.click(f"{table} th:nth-child(3) button")
    sizes = chromium.run(
        "return [...document.querySelectorAll(arguments[0])].map((one) => Number(one.value))",
        f"{table} data",
    )
    assert len(sizes) == 12
    assert sizes == sorted(sizes, reverse=True)
    assert "KiB" in chromium.text(f"{table} data")


def test_a_line_for_each_that_opens_another(chromium: Browser, forest: IcebergTable) -> None:
    chromium.show(render_html(key_tree(forest)))
    boxes = [2, 4, 4, 4, 4]  # master keys, KEKs, manifest lists, manifests, files
    assert chromium.count(".picture .box") == sum(boxes)
    # 4 KEKs wrapped; 3 lists under KEKs and 1 under keyA; 5 from lists; 4 from manifests; f2, f4.
    assert chromium.count(".picture .edge") == 4 + 4 + 5 + 4 + 2
    assert chromium.count(".picture .own") == 2


def test_hostile_names_are_only_ever_text(chromium: Browser, forest: IcebergTable) -> None:
    page = render_html(hostile_tree(key_tree(forest)))
    page.encode()
    assert not [c for c in set(page) if not c.isprintable() and c != "\n"]
    chromium.show(page)
    assert chromium.driver.title.startswith("Keys of ")
    assert chromium.count("img, iframe, object, embed, a, form, [onerror], [onfocus]") == 0
    assert chromium.count("script") == 1
    assert chromium.overflow() <= 0
    assert chromium.complaints() == []


def test_hostile_names_do_nothing_to_a_terminal(forest: IcebergTable) -> None:
    text = hostile_tree(key_tree(forest)).to_text()
    assert not [c for c in set(text) if not c.isprintable() and c != "\n"]


def test_a_large_tree_gives_bounded_text_and_page(forest: IcebergTable) -> None:
    tree = key_tree(forest)
    file, manifest, found = tree.files[0], tree.manifests[0], tree.lists[-1]
    large = replace(
        tree,
        files=(file,) * 20_000,
        manifests=tuple(
            replace(manifest, files=tuple(range(n * 200, n * 200 + 200))) for n in range(100)
        ),
        lists=tuple(replace(found, manifests=tuple(range(n % 100))) for n in range(3_000)),
    )
    assert len(large.to_text().splitlines()) < 400
    page = render_html(large)
    assert len(page.encode()) < 4 << 20
    assert "more" in page


# --- secrets -------------------------------------------------------------------------------------


def test_no_key_is_in_the_tree(table: IcebergTable) -> None:
    tree = key_tree(table)
    out = json.dumps(tree.fields()) + render_html(tree) + tree.to_text() + repr(tree)
    kept = pickle.dumps(tree)
    reported = (shared_vectors() / "iceberg-table" / "t16.java-read.txt").read_text()
    keys = [bytes.fromhex(metadata)[2:18] for metadata in re.findall(r"0120[0-9a-f]{32}", reported)]
    assert len(keys) > 12
    for key in (*keys, *MASTERS.values()):
        assert key not in kept
        for spelt in (key.hex(), base64.b64encode(key).decode(), repr(key)[2:-1]):
            assert spelt not in out
