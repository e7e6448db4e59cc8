"""Datasets of encrypted files, judged by what pyarrow.dataset reads of the plaintext ones."""

from __future__ import annotations

import datetime as dt
import gc
import io
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import duckdb
import fsspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.dirfs import DirFileSystem

import modcrypt as mc
from tests.support.cases import each_case
from tests.support.forging import encrypt_bytes, plain_file
from tests.support.keys import COLUMN_KEY, FOOTER_KEY, OTHER_KEY
from tests.support.open_files import open_files

f = pc.field

KEYS = mc.FileDecryptionProperties(footer_key=FOOTER_KEY)
SMALL_PAGES = {
    "row_group_size": 1500, "data_page_size": 512, "write_batch_size": 64,
    "write_page_index": True,
}  # fmt: skip


class Folders:
    """The same dataset twice: in plaintext, and encrypted."""

    def __init__(self, folder: Path) -> None:
        self.plain, self.sealed = folder / "plain", folder / "sealed"
        self.plain.mkdir()
        self.sealed.mkdir()

    def put(self, path: str, table: pa.Table, **options: Any) -> None:
        data = plain_file(table, **options)
        sealed = encrypt_bytes(data, mc.FileEncryptionProperties(footer_key=FOOTER_KEY))
        for folder, content in ((self.plain, data), (self.sealed, sealed)):
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(content)

    def spoil(self, path: str) -> None:
        """Put something there that is no Parquet file, and must not be opened."""
        (self.sealed / path).parent.mkdir(parents=True, exist_ok=True)
        (self.sealed / path).write_bytes(b"not to be opened")

    def check(self, partitioning: Any = "hive", **how: Any) -> pa.Table:
        """Read both, the encrypted one in both ways; they must be the same."""
        judge = ds.dataset(self.plain, partitioning=partitioning)
        wanted = judge.to_table(columns=how.get("columns"), filter=how.get("filters"))
        found = mc.read_table(self.sealed, KEYS, partitioning=partitioning, **how)
        found.validate(full=True)
        assert found.schema.equals(wanted.schema, check_metadata=True)
        assert found.to_pylist() == wanted.to_pylist()
        assert found.num_rows == wanted.num_rows
        size = 7
        batches = list(
            mc.iter_batches(self.sealed, KEYS, partitioning=partitioning, batch_size=size, **how)
        )
        assert all(0 < batch.num_rows <= size for batch in batches)
        assert pa.Table.from_batches(batches, found.schema).to_pylist() == found.to_pylist()
        assert sum(batch.num_rows for batch in batches) == found.num_rows
        return found


@pytest.fixture
def folders(tmp_path: Path) -> Folders:
    return Folders(tmp_path)


def rows(start: int, stop: int) -> pa.Table:
    return pa.table(
        {
            "id": pa.array(range(start, stop), pa.int64()),
            "name": [f"n{i}" for i in range(start, stop)],
        }
    )


def countries(folders: Folders) -> Folders:
    folders.put("country=NO/year=2026/a.parquet", rows(0, 20))
    folders.put("country=NO/year=2025/a.parquet", rows(20, 40))
    folders.put("country=SE/year=2026/b.parquet", rows(40, 60))
    folders.put("country=__HIVE_DEFAULT_PARTITION__/year=-7/z.parquet", rows(60, 80))
    folders.put("country=C%C3%B4te%20d%27Ivoire%2F%3D/year=2026/c.parquet", rows(80, 100))
    return folders


# --- partitions ----------------------------------------------------------------------------------

HOW: list[dict[str, Any]] = [
    {},
    {"columns": ["year", "id"]},
    {"columns": ["country"]},
    {"columns": []},
    {"filters": f("country") == "NO"},
    {"filters": f("country") == "Côte d'Ivoire/="},
    {"filters": f("country").is_null()},
    {"filters": f("country").is_valid(), "columns": ["id"]},
    {"filters": f("country") == "nowhere"},
    {"filters": (f("year") > 2025) & (f("id") >= 15), "columns": ["name"]},
    {"filters": (f("country") == "SE") | (f("id") == 77)},
    {"filters": f("id") == 33, "columns": ["country"]},
    {"filters": f("year").isin([2025, -7]), "columns": ["year", "name", "country"]},
]


@each_case("how", HOW, ids=str)
def test_hive_partitions_read_as_pyarrow_reads_them(folders: Folders, how: dict[str, Any]) -> None:
    countries(folders).check(**how)


def test_names_of_fields_are_encoded_too(folders: Folders) -> None:
    folders.put("home%20country=NO/a.parquet", rows(0, 5))
    folders.put("home%20country=SE/a.parquet", rows(5, 9))
    assert folders.check(filters=f("home country") == "SE").num_rows == 4


HIVE = ds.partitioning(pa.schema([("country", pa.string()), ("year", pa.int64())]), flavor="hive")


@pytest.mark.parametrize("partitioning", [
    None, HIVE, ds.partitioning(pa.schema([("year", pa.int16())]), flavor="hive"),
], ids=["none", "two fields", "one field"])  # fmt: skip
def test_a_partitioning_may_be_given(folders: Folders, partitioning: Any) -> None:
    countries(folders).check(partitioning)
    if partitioning is not None:
        folders.check(partitioning, filters=f("year") == 2026, columns=["id", "year"])


def test_dictionaries_of_partition_values(folders: Folders) -> None:
    values = {"country": pa.array(["NO", "SE", "Côte d'Ivoire/="])}
    schema = pa.schema([("country", pa.dictionary(pa.int32(), pa.string())), ("year", pa.int32())])
    countries(folders).check(ds.partitioning(schema, flavor="hive", dictionaries=values))


def test_folders_without_names(folders: Folders) -> None:
    folders.put("2025/NO/a.parquet", rows(0, 9))
    folders.put("2026/SE/a.parquet", rows(9, 18))
    scheme = ds.partitioning(pa.schema([("year", pa.int32()), ("country", pa.string())]))
    folders.check(scheme)
    folders.check(scheme, filters=f("country") == "SE")


@each_case("values", [
    ["1", "2"], ["007", "8"], ["-3", "4"], ["99999999999", "1"], ["2147483648"], ["2147483647"],
    ["1", "x"], ["+1", "2"], ["-0", "1"], ["", "1"], ["1.5"], ["true"], ["2026-01-01"], [" 1"],
    ["\N{ARABIC-INDIC DIGIT THREE}", "4"],
    ["__HIVE_DEFAULT_PARTITION__", "5"], ["1_000"],
], ids=" ".join)  # fmt: skip
def test_types_of_partition_values_are_guessed_as_pyarrow_does(
    folders: Folders, values: list[str]
) -> None:
    for value in values:
        folders.put(f"k={value}/a.parquet", rows(0, 3))
    folders.check()


def test_files_at_other_depths(folders: Folders) -> None:
    folders.put("a.parquet", rows(0, 3))
    folders.put("k=1/b.parquet", rows(3, 6))
    folders.put("k=1/l=x/c.parquet", rows(6, 9))
    folders.check()
    folders.check(filters=f("k").is_null())
    folders.check(filters=f("l") == "x")


def test_a_folder_does_not_replace_a_column(folders: Folders) -> None:
    """Nothing authenticates the name of a folder."""
    folders.put("id=100/a.parquet", rows(0, 3))
    for read in (mc.read_table, lambda *a, **k: list(mc.iter_batches(*a, **k))):
        with pytest.raises((ValueError, mc.ModcryptError), match="id"):
            read(folders.sealed, KEYS)
    found = mc.read_table(folders.sealed, KEYS, partitioning=None)
    assert found["id"].to_pylist() == [0, 1, 2]


def test_hidden_files_are_none_of_it(folders: Folders) -> None:
    countries(folders)
    for path in ("_SUCCESS", ".a.parquet", "_temporary/0/a.parquet", "country=NO/.x/a.parquet"):
        folders.spoil(path)
    assert folders.check().num_rows == 100


def test_pruned_files_are_not_opened(folders: Folders) -> None:
    countries(folders)
    # The first file says the types; pyarrow.dataset opens it too.
    for path in ("country=NO/year=2025", "country=NO/year=2026", "country=SE/year=2026"):
        for file in (folders.sealed / path).iterdir():
            file.write_bytes(b"not to be opened")
    for wanted in (f("country").is_null(), f("year") < 0):
        assert mc.read_table(folders.sealed, KEYS, filters=wanted)["id"].to_pylist() == [
            *range(60, 80)
        ]
        batches = mc.iter_batches(folders.sealed, KEYS, filters=wanted, columns=["id"])
        assert sum(batch.num_rows for batch in batches) == 20


# --- which files ---------------------------------------------------------------------------------


def test_a_list_of_files_is_read_in_its_order(folders: Folders) -> None:
    countries(folders)
    paths = sorted(folders.sealed.rglob("*.parquet"), reverse=True)
    twins = [str(folders.plain / path.relative_to(folders.sealed)) for path in paths]
    wanted = ds.dataset(twins, partitioning="hive").to_table()
    assert mc.read_table(paths, KEYS).equals(wanted)
    assert mc.read_table(tuple(map(str, paths)), KEYS).equals(wanted)
    assert mc.read_table(paths[1:2], KEYS).to_pylist() == wanted.slice(20, 20).to_pylist()


def test_partition_values_are_those_of_the_folder_that_a_listed_path_leads_to(
    folders: Folders,
) -> None:
    """AAD prefixes with {path} are made from the same spelling."""
    folders.put("day=1/a.parquet", rows(0, 3))
    folders.put("day=2/a.parquet", rows(3, 6))
    path = f"{folders.sealed}/day=2/../day=1/./a.parquet"
    assert mc.read_table([path], KEYS)["day"].to_pylist() == [1, 1, 1]


def test_folders_without_files_and_files_that_are_not_there(tmp_path: Path) -> None:
    for read in (mc.read_table, mc.iter_batches):
        with pytest.raises(ValueError, match="no files"):
            read(tmp_path, KEYS)
        with pytest.raises(ValueError, match="no files"):
            read([], KEYS)
        with pytest.raises(FileNotFoundError):
            read(tmp_path / "absent", KEYS)
        with pytest.raises(FileNotFoundError):
            list(read([tmp_path / "absent"], KEYS))


def test_row_groups_are_of_a_single_file(folders: Folders) -> None:
    folders.put("a.parquet", rows(0, 3))
    for read in (mc.read_table, mc.iter_batches):
        with pytest.raises(ValueError, match="row_groups"):
            read(folders.sealed, KEYS, row_groups=[0])


@pytest.mark.parametrize("wrong", ["directory", ["k"], 5])
def test_an_unknown_partitioning(folders: Folders, wrong: Any) -> None:
    folders.put("k=1/a.parquet", rows(0, 3))
    with pytest.raises((TypeError, ValueError), match="partitioning"):
        mc.read_table(folders.sealed, KEYS, partitioning=wrong)


def test_many_small_files(folders: Folders) -> None:
    sealed = encrypt_bytes(
        plain_file(rows(0, 5)), mc.FileEncryptionProperties(footer_key=FOOTER_KEY)
    )
    for n in range(300):
        path = folders.sealed / f"part={n % 10}" / f"{n:03}.parquet"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(sealed)
    table = mc.read_table(folders.sealed, KEYS)
    assert table.num_rows == 1500
    assert table["part"].to_pylist() == [p for p in range(10) for _ in range(150)]
    some = mc.read_table(folders.sealed, KEYS, filters=(f("part") == 3) & (f("id") == 2))
    assert some.num_rows == 30


# --- files that differ ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def evolving(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    folders, n = Folders(tmp_path_factory.mktemp("evolving")), range(600)
    pages = SMALL_PAGES | {"row_group_size": 300}
    structs = [{"a": i, "b": i} for i in n]
    names = [str(i) for i in n]
    folders.put("a.parquet", pa.table({
        "id": pa.array(n, pa.int64()), "x": pa.array([float(i) for i in n]), "name": names,
        "s": structs,
    }), **pages)  # fmt: skip
    folders.put("b.parquet", pa.table({
        "name": names, "s": [{"b": -i, "a": i} for i in n], "id": pa.array(n, pa.int32()),
        "x": pa.array(n, pa.float32()),
    }), **pages)  # fmt: skip
    folders.put("c.parquet", pa.table({"id": pa.array(n, pa.int64()), "more": names}), **pages)
    return folders


@pytest.mark.parametrize(
    "columns", [None, pytest.param(["x"], marks=pytest.mark.slow), ["s"]], ids=str
)
@each_case("wanted", [
    None, f("id") == 377, f("name") == "377", f("x").is_null(), f("x") > 590, f("s", "a") == 5,
    f("name").isin(["5", "320", "599"]),
], ids=str)  # fmt: skip
def test_other_orders_types_and_missing_columns(
    evolving: Folders, wanted: Any, columns: list[str] | None
) -> None:
    evolving.check(columns=columns, filters=wanted)


def test_columns_of_later_files_alone_are_unknown_as_in_pyarrow(evolving: Folders) -> None:
    with pytest.raises(ValueError, match="more"):
        mc.read_table(evolving.sealed, KEYS, columns=["more"])
    with pytest.raises(ValueError, match="more"):
        mc.read_table(evolving.sealed, KEYS, filters=f("more") == "1")


def test_types_that_do_not_fit_are_an_error(folders: Folders) -> None:
    folders.put("a.parquet", rows(0, 3))
    folders.put("b.parquet", pa.table({"id": ["text"], "name": ["x"]}))
    with pytest.raises((pa.ArrowInvalid, ValueError)):
        mc.read_table(folders.sealed, KEYS)


def test_a_first_file_without_rows(folders: Folders) -> None:
    folders.put("a.parquet", pa.table({"id": pa.array([], pa.int64())}))
    folders.put("b.parquet", rows(0, 3).select(["id"]))
    assert folders.check().num_rows == 3


def test_part_of_a_struct(evolving: Folders) -> None:
    found = mc.read_table(evolving.sealed, KEYS, columns=["s.b"], filters=f("s", "a") == 5)
    assert found["s"].to_pylist() == [{"b": 5}, {"b": -5}]


# --- keys ----------------------------------------------------------------------------------------


def test_each_file_has_its_own_keys(tmp_path: Path) -> None:
    secrets = {"a.parquet": FOOTER_KEY, "b.parquet": COLUMN_KEY, "c.parquet": OTHER_KEY}
    for n, (name, key) in enumerate(secrets.items()):
        data = encrypt_bytes(
            plain_file(rows(n * 3, n * 3 + 3)),
            mc.FileEncryptionProperties(footer_key=key, aad_prefix=name.encode()),
        )
        (tmp_path / name).write_bytes(data)
    asked: list[str] = []

    def keys_of(path: str) -> mc.FileDecryptionProperties:
        asked.append(path)
        name = Path(path).name
        return mc.FileDecryptionProperties(footer_key=secrets[name], aad_prefix=name.encode())

    assert mc.read_table(tmp_path, keys_of)["id"].to_pylist() == [*range(9)]
    assert sorted(asked) == [str(tmp_path / name) for name in secrets]
    assert sum(batch.num_rows for batch in mc.iter_batches(tmp_path, keys_of)) == 9
    with pytest.raises(mc.errors.TagMismatchError):
        mc.read_table(tmp_path, mc.FileDecryptionProperties(footer_key=FOOTER_KEY))


def test_the_keeper_of_the_keys_is_asked_once_for_each_file(tmp_path: Path) -> None:
    for n in range(3):
        data = encrypt_bytes(plain_file(rows(0, 3)), mc.FileEncryptionProperties(
            footer_key=FOOTER_KEY, footer_key_metadata=b"f%d" % n,
            column_keys={"name": COLUMN_KEY}, column_key_metadata={"name": b"n%d" % n},
        ))  # fmt: skip
        (tmp_path / f"{n}.parquet").write_bytes(data)
    asked: list[bytes] = []

    def retrieve(metadata: bytes) -> bytes:
        asked.append(metadata)
        return {b"f": FOOTER_KEY, b"n": COLUMN_KEY}[metadata[:1]]

    keys = mc.FileDecryptionProperties(key_retriever=retrieve)
    assert mc.read_table(tmp_path, keys, columns=["id"]).num_rows == 9
    assert sorted(asked) == [b"f0", b"f1", b"f2"]
    asked.clear()
    assert sum(b.num_rows for b in mc.iter_batches(tmp_path, keys)) == 9
    assert sorted(asked) == [b"f0", b"f1", b"f2", b"n0", b"n1", b"n2"]


@pytest.mark.parametrize("without", ["a.parquet", "b.parquet"])
@pytest.mark.parametrize("mode", ["error", "null", "drop"])
def test_a_key_that_is_missing_for_one_file_alone(tmp_path: Path, mode: Any, without: str) -> None:
    """The other file's rows keep the column; nothing turns to nulls that was not allowed to."""
    for name in ("a.parquet", "b.parquet"):
        how = mc.FileEncryptionProperties(footer_key=FOOTER_KEY, column_keys={"name": COLUMN_KEY})
        (tmp_path / name).write_bytes(encrypt_bytes(plain_file(rows(0, 3)), how))

    def keys_of(path: str) -> mc.FileDecryptionProperties:
        given = {} if Path(path).name == without else {"name": COLUMN_KEY}
        return mc.FileDecryptionProperties(
            footer_key=FOOTER_KEY, column_keys=given, on_missing_key=mode
        )

    if mode == "error":
        with pytest.raises(mc.errors.KeyNotFoundError, match="name") as caught:
            mc.read_table(tmp_path, keys_of)
        assert without in error_text(caught.value)
        return
    assert mc.read_table(tmp_path, keys_of, columns=["id"])["id"].to_pylist() == [0, 1, 2] * 2
    try:
        found = mc.read_table(tmp_path, keys_of)
    except mc.errors.KeyNotFoundError:  # dropping a column for some rows only has no meaning
        assert mode == "drop"
        return
    if mode == "drop":
        assert found.column_names == ["id"]
        return
    there, gone = [f"n{i}" for i in range(3)], [None] * 3
    wanted = gone + there if without == "a.parquet" else there + gone
    assert found["name"].to_pylist() == wanted


def test_one_file_takes_properties_or_a_function(folders: Folders) -> None:
    folders.put("a.parquet", rows(0, 3))
    assert mc.read_table([folders.sealed / "a.parquet"], lambda _: KEYS).num_rows == 3
    nothing: list[Any] = [None, {}, [FOOTER_KEY]]
    for wrong in nothing:
        with pytest.raises(TypeError, match="FileDecryptionProperties"):
            mc.read_table(folders.sealed / "a.parquet", wrong)

        def keys_of(_: str, wrong: Any = wrong) -> Any:
            return wrong

        with pytest.raises(TypeError, match="FileDecryptionProperties"):
            mc.read_table(folders.sealed, keys_of)


# --- damage --------------------------------------------------------------------------------------


def error_text(error: BaseException) -> str:
    return " ".join([str(error), *getattr(error, "__notes__", ())])


def flip_byte(data: bytes, at: int = 40) -> bytes:
    out = bytearray(data)
    out[at] ^= 1
    return bytes(out)


DAMAGE: dict[str, tuple[type[Exception], Callable[[bytes], bytes]]] = {
    "altered page": (mc.errors.TagMismatchError, flip_byte),
    "altered footer": (mc.errors.TagMismatchError, lambda data: flip_byte(data, -9)),
    "plaintext": (mc.errors.PlaintextError, lambda _: plain_file(rows(0, 3))),
    "cut short": (mc.errors.FormatError, lambda data: data[:-5]),
    "empty": (mc.errors.FormatError, lambda _: b""),
    "another key": (
        mc.errors.TagMismatchError,
        lambda _: encrypt_bytes(
            plain_file(rows(0, 3)), mc.FileEncryptionProperties(footer_key=OTHER_KEY)
        ),
    ),
    "a column key": (
        mc.errors.KeyNotFoundError,
        lambda _: encrypt_bytes(
            plain_file(rows(0, 3)),
            mc.FileEncryptionProperties(footer_key=FOOTER_KEY, column_keys={"name": COLUMN_KEY}),
        ),
    ),
}


@each_case("what", DAMAGE)
@each_case("where", [0, 7])
def test_the_damaged_file_is_named(folders: Folders, what: str, where: int) -> None:
    for n in range(10):
        folders.put(f"part-{n}.parquet", rows(n, n + 3))
    error, damage = DAMAGE[what]
    path = folders.sealed / f"part-{where}.parquet"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(error) as caught:
        mc.read_table(folders.sealed, KEYS)
    assert f"part-{where}.parquet" in error_text(caught.value)
    assert sum(f"part-{n}.parquet" in error_text(caught.value) for n in range(10)) == 1
    if isinstance(caught.value, mc.errors.TagMismatchError):
        assert caught.value.module is not None
    given: list[int] = []
    with pytest.raises(error) as caught:
        given.extend(
            i for batch in mc.iter_batches(folders.sealed, KEYS) for i in batch["id"].to_pylist()
        )
    assert f"part-{where}.parquet" in error_text(caught.value)
    assert given == [i for n in range(where) for i in (n, n + 1, n + 2)], "whole files, in order"


# --- file systems --------------------------------------------------------------------------------


def test_file_systems_of_pyarrow_and_fsspec(folders: Folders) -> None:
    countries(folders)
    wanted = mc.read_table(folders.sealed, KEYS)
    base = str(folders.sealed)
    local = fsspec.filesystem("file")
    places: list[tuple[Any, Any]] = [
        (pafs.LocalFileSystem(), base),
        (pafs.LocalFileSystem(), base + "/"),
        (pafs.SubTreeFileSystem(str(folders.sealed.parent), pafs.LocalFileSystem()), "sealed"),
        (local, base),
        (DirFileSystem(str(folders.sealed.parent), local), "sealed"),
        (pafs.PyFileSystem(pafs.FSSpecHandler(local)), base),
        (None, folders.sealed.as_uri()),
        (None, base + "/"),
    ]
    for filesystem, path in places:
        assert mc.read_table(path, KEYS, filesystem=filesystem).equals(wanted)
        few = mc.iter_batches(
            path, KEYS, filesystem=filesystem, filters=f("country") == "SE", columns=["id"]
        )
        assert [i for batch in few for i in batch["id"].to_pylist()] == [*range(40, 60)]


def test_a_file_system_in_memory(folders: Folders) -> None:
    countries(folders)
    memory = fsspec.filesystem("memory")
    root = "/test_a_file_system_in_memory"
    try:
        for path in folders.sealed.rglob("*.parquet"):
            name = path.relative_to(folders.sealed).as_posix()
            memory.pipe(f"{root}/{name}", path.read_bytes())
        wanted = mc.read_table(folders.sealed, KEYS)
        assert mc.read_table(root, KEYS, filesystem=memory).equals(wanted)
        assert mc.read_table("memory:/" + root, KEYS).equals(wanted)
        part = f"{root}/country=SE/year=2026/b.parquet"
        assert mc.read_table(["memory:/" + part], KEYS)["country"].to_pylist() == ["SE"] * 20
        assert mc.read_table("memory:/" + part, KEYS).column_names == ["id", "name"]
    finally:
        memory.rm(root, recursive=True)


def test_relative_paths(folders: Folders, monkeypatch: pytest.MonkeyPatch) -> None:
    countries(folders)
    wanted = mc.read_table(folders.sealed, KEYS)
    monkeypatch.chdir(folders.sealed.parent)
    assert mc.read_table("sealed", KEYS).equals(wanted)
    assert mc.read_table("./sealed/", KEYS).equals(wanted)
    monkeypatch.chdir(folders.sealed)
    assert mc.read_table(".", KEYS).equals(wanted)
    assert mc.read_table("country=SE", KEYS).column_names == ["id", "name", "year"]


# --- what is left open ---------------------------------------------------------------------------


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="counts file descriptors in /proc")
def test_no_file_and_no_thread_is_left_behind(folders: Folders) -> None:
    countries(folders)
    before = set(threading.enumerate())  # those of earlier tests may still be about to end

    def count_open() -> tuple[int, int]:
        gc.collect()
        new = set(threading.enumerate()) - before
        ours = [thread for thread in new if thread.name.startswith("modcrypt")]
        return sum(name.startswith(str(folders.sealed)) for name in open_files()), len(ours)

    mc.read_table(folders.sealed, KEYS)
    mc.read_table(folders.sealed, KEYS, filters=f("country") == "SE")  # without the first file
    assert count_open() == (0, 0), "read"
    mc.iter_batches(folders.sealed, KEYS)
    assert count_open() == (0, 0), "never begun"
    batches = mc.iter_batches(folders.sealed, KEYS, batch_size=3)
    next(batches)
    del batches
    assert count_open() == (0, 0), "left after a batch"
    for how in ({"columns": ["zebra"]}, {"filters": f("zebra") == 1}):
        with pytest.raises(ValueError, match="zebra"):
            mc.read_table(folders.sealed, KEYS, **how)
    assert count_open() == (0, 0), "refused"
    with pytest.raises(mc.errors.TagMismatchError):
        mc.read_table(folders.sealed, mc.FileDecryptionProperties(footer_key=OTHER_KEY))
    last = folders.sealed / "country=__HIVE_DEFAULT_PARTITION__/year=-7/z.parquet"
    last.write_bytes(flip_byte(last.read_bytes()))
    with pytest.raises(mc.errors.TagMismatchError):
        mc.read_table(folders.sealed, KEYS)
    with pytest.raises(mc.errors.TagMismatchError):
        list(mc.iter_batches(folders.sealed, KEYS))
    assert count_open() == (0, 0), "failed"


# --- together ------------------------------------------------------------------------------------


def test_duckdb_finds_the_same(folders: Folders) -> None:
    countries(folders)
    query = (
        "select country, sum(id)::bigint from read_parquet(?, hive_partitioning = true)"
        " where year = 2026 group by country order by country nulls last"
    )
    wanted = duckdb.execute(query, [f"{folders.plain}/**/*.parquet"]).fetchall()
    found = mc.read_table(
        folders.sealed, KEYS, columns=["country", "id"], filters=f("year") == 2026
    )
    sums = found.group_by("country").aggregate([("id", "sum")]).sort_by("country")
    assert [(r["country"], r["id_sum"]) for r in sums.to_pylist()] == sorted(wanted)


def test_threads_read_datasets_side_by_side(evolving: Folders) -> None:
    wanted = evolving.check()

    def read(number: int) -> bool:
        if number % 2:
            return bool(mc.read_table(evolving.sealed, KEYS).equals(wanted))
        batches = mc.iter_batches(evolving.sealed, KEYS, batch_size=777)
        return bool(pa.Table.from_batches(batches).equals(wanted))

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(read, range(8)))


def test_a_dataset_that_was_written_with_timestamps_as_partitions(folders: Folders) -> None:
    day = dt.date(2026, 11, 21)
    table = pa.table({"day": [day, day, None], "id": [1, 2, 3]})
    scheme = ds.partitioning(pa.schema([("day", pa.date32())]), flavor="hive")
    ds.write_dataset(table, folders.plain, format="parquet", partitioning=scheme)
    for path in folders.plain.rglob("*.parquet"):
        place = folders.sealed / path.relative_to(folders.plain)
        place.parent.mkdir()
        how = mc.FileEncryptionProperties(footer_key=FOOTER_KEY)
        place.write_bytes(encrypt_bytes(path.read_bytes(), how))
    assert folders.check(scheme).num_rows == 3
    assert folders.check(scheme, filters=f("day") == day)["id"].to_pylist() == [1, 2]


def test_pandas_metadata_of_the_first_file_is_kept(folders: Folders) -> None:
    table = pa.table({"id": [1]}, metadata={"a": "b"})
    folders.put("a.parquet", table)
    folders.put("b.parquet", table.replace_schema_metadata({"a": "c"}))
    assert folders.check().schema.metadata == {b"a": b"b"}
    judge = pq.read_table(io.BytesIO((folders.plain / "a.parquet").read_bytes()))
    assert judge.schema.metadata == {b"a": b"b"}
