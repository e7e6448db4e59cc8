"""Moving, copying and removing files, and their companions, through the file system `modcrypt`."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import dask.dataframe
import duckdb
import fsspec
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest

import modcrypt as mc
from modcrypt.pkmt1.material import external_name
from tests.support.cases import each_case
from tests.support.keys import FOOTER_KEY, OTHER_KEY
from tests.support.kms.memory_kms import MemoryKms, PyArrowKms

DASK: Any = dask.dataframe  # which has few types
OLD, NEW = pa.table({"n": [1, 2, 3]}), pa.table({"n": [7]})
KEYS: dict[str, Any] = {
    "encryption": mc.FileEncryptionProperties(footer_key=FOOTER_KEY),
    "decryption": mc.FileDecryptionProperties(footer_key=FOOTER_KEY),
}
EXTERNAL = mc.Policy(footer_key="kf", internal_key_material=False)


def open_with_tools(policy: mc.Policy, root: Path | None = None, **options: Any) -> Any:
    tools = mc.KeyTools(MemoryKms())
    return fsspec.filesystem(
        "modcrypt", encryption=tools.encryption(policy, root=root),
        decryption=tools.decryption(policy, root=root), **options,
    )  # fmt: skip


def open_with_keys_of_paths(_: Path) -> Any:
    keys = {"a": FOOTER_KEY, "tmp_a": OTHER_KEY}

    def key(path: str) -> bytes:
        return keys.get(Path(path).stem, b"k" * 16)

    return fsspec.filesystem(
        "modcrypt",
        encryption=lambda path: mc.FileEncryptionProperties(footer_key=key(path)),
        decryption=lambda path: mc.FileDecryptionProperties(footer_key=key(path)),
    )


NAMED = mc.Policy(footer_key="kf", aad_prefix="people/{name}", store_aad_prefix=False)

SYSTEMS: dict[str, Callable[[Path], Any]] = {
    "one key": lambda _: fsspec.filesystem("modcrypt", **KEYS),
    "keys of each path": open_with_keys_of_paths,
    "master keys": lambda _: open_with_tools(mc.Policy(footer_key="kf")),
    "external material": lambda _: open_with_tools(EXTERNAL),
    "prefix of the name": lambda _: open_with_tools(NAMED),
    "prefix of the path": lambda root: open_with_tools(
        replace(NAMED, aad_prefix="people/{path}"), root
    ),
    "both": lambda _: open_with_tools(replace(NAMED, internal_key_material=False)),
}
each_system = each_case("make", SYSTEMS.values(), ids=SYSTEMS)


def write(filesystem: Any, path: str, table: pa.Table) -> None:
    with filesystem.open(path, "wb") as file:
        pq.write_table(table, file)


def read(filesystem: Any, path: str) -> pa.Table:
    with filesystem.open(path) as file:
        return pq.read_table(file)


def has_material(path: str | Path) -> bool:
    return Path(path).with_name(external_name(Path(path).name)).exists()


# --- one file ------------------------------------------------------------------------------------

MOVES: dict[str, Callable[[Any, str, str], object]] = {
    "mv": lambda fs, old, new: fs.mv(old, new),
    "mv_file": lambda fs, old, new: fs.mv_file(old, new),
    "move": lambda fs, old, new: fs.move(old, new),
    "rename": lambda fs, old, new: fs.rename(old, new),
    "recursive": lambda fs, old, new: fs.mv(old, new, recursive=True),
    "with protocol": lambda fs, old, new: fs.mv(f"modcrypt://{old}", f"modcrypt://{new}"),
    "pyarrow": lambda fs, old, new: pafs.PyFileSystem(pafs.FSSpecHandler(fs)).move(old, new),
}


@each_case("move", MOVES.values(), ids=MOVES)
@each_system
def test_a_moved_file_reads_under_its_new_name(
    make: Callable[[Path], Any], move: Any, tmp_path: Path
) -> None:
    filesystem = make(tmp_path)
    old, new = f"{tmp_path}/tmp_a.parquet", f"{tmp_path}/a.parquet"
    for replaced in (None, OLD):  # an absent file, and one that is replaced
        write(filesystem, old, NEW)
        if replaced is not None:
            write(filesystem, new, replaced)
        move(filesystem, old, new)
        assert read(filesystem, new).equals(NEW)
        assert filesystem.ls(tmp_path, detail=False) == [new]
        assert not has_material(old)
        assert Path(new).read_bytes()[:4] == b"PARE"


COPIES: dict[str, Callable[[Any, str, str], object]] = {
    "cp_file": lambda fs, old, new: fs.cp_file(old, new),
    "copy": lambda fs, old, new: fs.copy(old, new),
    "cp": lambda fs, old, new: fs.cp(old, new),
    "pyarrow": lambda fs, old, new: pafs.PyFileSystem(pafs.FSSpecHandler(fs)).copy_file(old, new),
}


@each_case("copy", COPIES.values(), ids=COPIES)
@each_system
def test_a_copied_file_reads_under_both_names(
    make: Callable[[Path], Any], copy: Any, tmp_path: Path
) -> None:
    filesystem = make(tmp_path)
    old, new = f"{tmp_path}/tmp_a.parquet", f"{tmp_path}/a.parquet"
    write(filesystem, old, NEW)
    write(filesystem, new, OLD)
    copy(filesystem, old, new)
    assert read(filesystem, new).equals(NEW)
    assert read(filesystem, old).equals(NEW)


REMOVALS: dict[str, Callable[[Any, str], object]] = {
    "rm": lambda fs, path: fs.rm(path),
    "several": lambda fs, path: fs.rm([path]),
    "pattern": lambda fs, path: fs.rm(path.replace("a.parquet", "?.parquet")),
    "recursive": lambda fs, path: fs.rm(path, recursive=True),
    "rm_file": lambda fs, path: fs.rm_file(path),
    "_rm": lambda fs, path: fs._rm(path),
    "delete": lambda fs, path: fs.delete(path),
    "pyarrow": lambda fs, path: pafs.PyFileSystem(pafs.FSSpecHandler(fs)).delete_file(path),
}


@each_case("remove", REMOVALS.values(), ids=REMOVALS)
def test_a_removed_file_takes_its_key_material_with_it(remove: Any, tmp_path: Path) -> None:
    filesystem = open_with_tools(EXTERNAL)
    write(filesystem, f"{tmp_path}/a.parquet", OLD)
    assert has_material(tmp_path / "a.parquet")
    write(filesystem, f"{tmp_path}/other.parquet", OLD)
    remove(filesystem, f"{tmp_path}/a.parquet")
    assert filesystem.ls(tmp_path, detail=False) == [f"{tmp_path}/other.parquet"]
    assert sorted(os.listdir(tmp_path)) == [external_name("other.parquet"), "other.parquet"]


def test_what_is_absent_is_named(tmp_path: Path) -> None:
    filesystem = fsspec.filesystem("modcrypt", **KEYS)
    calls: list[Callable[[], object]] = [
        lambda: filesystem.rm(f"{tmp_path}/none"),
        lambda: filesystem.rm_file(f"{tmp_path}/none"),
        lambda: filesystem.rm(f"{tmp_path}/*.parquet"),
        lambda: filesystem.mv(f"{tmp_path}/none", f"{tmp_path}/b"),
        lambda: filesystem.cp_file(f"{tmp_path}/none", f"{tmp_path}/b"),
    ]
    for call in calls:
        with pytest.raises(FileNotFoundError, match=str(tmp_path)):
            call()
    assert os.listdir(tmp_path) == []


def test_brackets_and_stars_in_a_name_are_no_pattern(tmp_path: Path) -> None:
    filesystem = fsspec.filesystem("modcrypt", **KEYS)
    for name in ("[ab].parquet", "a.parquet"):
        write(filesystem, f"{tmp_path}/{name}", OLD)
    filesystem.mv(f"{tmp_path}/[ab].parquet", f"{tmp_path}/[b]*")
    filesystem.rm(f"{tmp_path}/[b]*")
    assert os.listdir(tmp_path) == ["a.parquet"]


def test_a_file_moves_into_a_folder_that_exists(tmp_path: Path) -> None:
    filesystem = open_with_tools(EXTERNAL)
    (tmp_path / "folder").mkdir()
    write(filesystem, f"{tmp_path}/a.parquet", OLD)
    filesystem.mv(f"{tmp_path}/a.parquet", f"{tmp_path}/folder")
    assert read(filesystem, f"{tmp_path}/folder/a.parquet").equals(OLD)
    assert os.listdir(tmp_path) == ["folder"]


def test_a_file_of_pyarrow_moves_with_its_key_material(tmp_path: Path) -> None:
    """Its material has no id of a run by which the new keys could lie beside the old ones."""
    import pyarrow.parquet.encryption as pe

    filesystem = open_with_tools(EXTERNAL)
    factory, connection = pe.CryptoFactory(PyArrowKms), pe.KmsConnectionConfig()
    for name, table in (("tmp_a", NEW), ("a", OLD)):
        path = f"{tmp_path}/{name}.parquet"
        configuration = pe.EncryptionConfiguration(
            footer_key="kf", uniform_encryption=True, internal_key_material=False
        )
        properties = factory.file_encryption_properties(
            connection, configuration, parquet_file_path=path
        )
        pq.write_table(table, path, encryption_properties=properties)
        assert has_material(path)
    filesystem.mv(f"{tmp_path}/tmp_a.parquet", f"{tmp_path}/a.parquet")
    assert read(filesystem, f"{tmp_path}/a.parquet").equals(NEW)
    assert not has_material(tmp_path / "tmp_a.parquet")


@each_case("name", ["external material", "both", "keys of each path"])
def test_a_failed_move_leaves_both_files_readable(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filesystem = SYSTEMS[name](tmp_path)
    old, new = f"{tmp_path}/tmp_a.parquet", f"{tmp_path}/a.parquet"
    write(filesystem, old, NEW)
    write(filesystem, new, OLD)

    def fail(*_: Any, **__: Any) -> None:
        assert read(filesystem, new).equals(OLD)  # also while it is about to be replaced
        raise PermissionError("refused")

    monkeypatch.setattr("modcrypt.filesystem.move_stored", fail)
    monkeypatch.setattr("modcrypt.filesystem.rekey_parquet", fail)
    with pytest.raises(PermissionError, match="refused"):
        filesystem.mv(old, new)
    assert read(filesystem, old).equals(NEW)
    assert read(filesystem, new).equals(OLD)


def test_a_file_that_must_be_encrypted_anew_needs_keys_to_read_it(tmp_path: Path) -> None:
    filesystem = fsspec.filesystem("modcrypt", encryption=lambda _: KEYS["encryption"])
    write(filesystem, f"{tmp_path}/a", OLD)
    with pytest.raises(TypeError, match=r"moving a file .* pass decryption="):
        filesystem.mv(f"{tmp_path}/a", f"{tmp_path}/b")
    assert os.listdir(tmp_path) == ["a"]


def test_a_file_leaves_the_root_of_its_prefix_by_no_move(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    filesystem = SYSTEMS["prefix of the path"](tmp_path / "root")
    write(filesystem, f"{tmp_path}/root/a", OLD)
    with pytest.raises(ValueError, match="not inside root"):
        filesystem.mv(f"{tmp_path}/root/a", f"{tmp_path}/b")
    assert read(filesystem, f"{tmp_path}/root/a").equals(OLD)


def test_explicit_keys_for_recipients_go_with_the_file(tmp_path: Path) -> None:
    identity = mc.Identity.generate()
    encryption = mc.kms.RecipientEncryption(recipients=[identity.recipient], explicit_keys=True)
    filesystem = fsspec.filesystem("modcrypt", encryption=encryption)
    write(filesystem, f"{tmp_path}/a", OLD)
    filesystem.mv(f"{tmp_path}/a", f"{tmp_path}/b")
    assert sorted(os.listdir(tmp_path)) == ["_EXPLICIT_KEYS_FOR_b.json", "b"]
    assert filesystem.ls(tmp_path, detail=False) == [f"{tmp_path}/b"]
    filesystem.rm(f"{tmp_path}/b")
    assert os.listdir(tmp_path) == []


@each_case("name", ["one key", "keys of each path", "external material", "both"])
def test_files_of_a_store_move_as_local_ones_do(name: str) -> None:
    filesystem = SYSTEMS[name](Path())
    filesystem.fs = memory = fsspec.filesystem("memory")
    try:
        write(filesystem, "/moves/tmp_a.parquet", NEW)
        write(filesystem, "/moves/a.parquet", OLD)
        filesystem.mv("/moves/tmp_a.parquet", "/moves/a.parquet")
        assert read(filesystem, "/moves/a.parquet").equals(NEW)
        assert filesystem.ls("/moves", detail=False) == ["/moves/a.parquet"]
        filesystem.cp("/moves/a.parquet", "/moves/b.parquet")
        assert read(filesystem, "/moves/b.parquet").equals(NEW)
        with pytest.raises(ValueError, match="into itself"):
            filesystem.mv("/moves", "/moves/inside", recursive=True)
        assert read(filesystem, "/moves/a.parquet").equals(NEW)
        filesystem.rm(["/moves/a.parquet", "/moves/b.parquet"])
        assert memory.find("/moves") == []
    finally:
        memory.store.clear()


# --- folders -------------------------------------------------------------------------------------


@each_system
def test_a_folder_moves_and_goes_as_a_whole(make: Callable[[Path], Any], tmp_path: Path) -> None:
    filesystem = make(tmp_path)
    for name in ("p=0/a.parquet", "p=1/b.parquet"):
        filesystem.makedirs(f"{tmp_path}/old/{Path(name).parent}", exist_ok=True)
        write(filesystem, f"{tmp_path}/old/{name}", OLD)
    (tmp_path / "old" / "_SUCCESS").touch()
    with pytest.raises(ValueError, match="recursive"):
        filesystem.rm(f"{tmp_path}/old")
    filesystem.mv(f"{tmp_path}/old", f"{tmp_path}/new", recursive=True)
    assert os.listdir(tmp_path) == ["new"]
    assert (tmp_path / "new" / "_SUCCESS").exists()
    for name in ("p=0/a.parquet", "p=1/b.parquet"):
        assert read(filesystem, f"{tmp_path}/new/{name}").equals(OLD)
    filesystem.rm(f"{tmp_path}/new", recursive=True)
    assert os.listdir(tmp_path) == []


@each_case("make", [SYSTEMS["one key"], SYSTEMS["prefix of the path"]])
def test_links_are_moved_or_removed_and_not_followed(
    make: Callable[[Path], Any], tmp_path: Path
) -> None:
    """Somebody else may point them at files that only this process may change."""
    elsewhere = tmp_path / "elsewhere"
    root = tmp_path / "root"
    (root / "old").mkdir(parents=True)
    elsewhere.mkdir()
    filesystem = make(root)
    write(filesystem, f"{root}/old/a.parquet", OLD)
    for name in ("x.parquet", external_name("a.parquet")):
        (elsewhere / name).write_bytes(b"as it was")
    (root / "old" / external_name("a.parquet")).symlink_to(elsewhere / "x.parquet")
    filesystem.rm_file(f"{root}/old/a.parquet")
    write(filesystem, f"{root}/old/a.parquet", OLD)
    (root / "old" / "link").symlink_to(elsewhere)
    if make is SYSTEMS["prefix of the path"]:
        with pytest.raises(OSError, match="symbolic link"):
            filesystem.mv(f"{root}/old", f"{root}/new", recursive=True)
    else:
        filesystem.mv(f"{root}/old", f"{root}/old2", recursive=True)
        filesystem.rm(f"{root}/old2", recursive=True)
        assert os.listdir(root) == []
    assert {path.read_bytes() for path in elsewhere.iterdir()} == {b"as it was"}
    assert len(os.listdir(elsewhere)) == 2


def test_what_a_linked_companion_leads_to_is_not_copied(tmp_path: Path) -> None:
    filesystem = open_with_tools(EXTERNAL)
    secret = tmp_path / "secret"
    for number, name in enumerate((external_name("a"), "_EXPLICIT_KEYS_FOR_a.json")):
        folder = tmp_path / f"folder{number}"
        folder.mkdir()
        write(filesystem, f"{folder}/a", OLD)
        material = (folder / external_name("a")).read_bytes()
        (folder / name).unlink(missing_ok=True)
        secret.write_bytes(material)
        (folder / name).symlink_to(secret)
        for move in (filesystem.cp_file, filesystem.mv):
            with pytest.raises(OSError, match="symbolic link"):
                move(f"{folder}/a", f"{folder}/b")
        assert secret.read_bytes() == material
        assert sorted(os.listdir(folder)) == sorted({external_name("a"), name, "a"})


# --- listings ------------------------------------------------------------------------------------


def test_companions_are_hidden_but_are_there_by_name(tmp_path: Path) -> None:
    filesystem = open_with_tools(EXTERNAL)
    path = f"{tmp_path}/a.parquet"
    write(filesystem, path, OLD)
    (tmp_path / "_modcrypt_writes").mkdir()
    companions = [
        external_name("a.parquet"), f"_TMP{external_name('a.parquet')}", "_modcrypt_seal.json",
        ".modcrypt-0123456789abcdef.tmp", "_modcrypt_writes/note", "_EXPLICIT_KEYS_FOR_a.json",
    ]  # fmt: skip
    for name in companions:
        (tmp_path / name).touch()
    (tmp_path / "_SUCCESS").touch()
    expected = [f"{tmp_path}/_SUCCESS", path]
    assert sorted(filesystem.ls(tmp_path, detail=False)) == expected
    assert sorted(entry["name"] for entry in filesystem.ls(tmp_path)) == expected
    assert filesystem.find(tmp_path) == expected
    assert [*filesystem.find(tmp_path, withdirs=True, detail=True)][-2:] == expected
    for pattern in ("*", "**", "*.*", "*a*"):
        assert set(filesystem.glob(f"{tmp_path}/{pattern}")) <= {*expected, str(tmp_path)}
    ((_, folders, files),) = filesystem.walk(str(tmp_path))
    assert (folders, sorted(files)) == ([], ["_SUCCESS", "a.parquet"])
    material = f"{tmp_path}/{companions[0]}"
    assert filesystem.exists(material)
    assert filesystem.isfile(material)
    assert filesystem.glob(f"{tmp_path}/_KEY_MATERIAL_FOR_*") == [material]
    assert filesystem.ls(f"{tmp_path}/_modcrypt_writes", detail=False) == [
        f"{tmp_path}/_modcrypt_writes/note"
    ]
    filesystem.rm(material)
    assert not Path(material).exists()


# --- clients -------------------------------------------------------------------------------------


def connect(filesystem: Any) -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect()
    connection.register_filesystem(filesystem)
    return connection


@each_system
def test_duckdb_replaces_a_file(make: Callable[[Path], Any], tmp_path: Path) -> None:
    connection = connect(make(tmp_path))
    url = f"modcrypt://{tmp_path}/a.parquet"
    for rows in (3, 4, 2):
        connection.execute(f"COPY (SELECT range AS n FROM range({rows})) TO '{url}'")
        assert connection.execute(f"SELECT count(*) FROM '{url}'").fetchone() == (rows,)
    visible = [name for name in os.listdir(tmp_path) if not name.startswith("_")]
    assert visible == ["a.parquet"]
    assert not has_material(tmp_path / "tmp_a.parquet")


@each_system
def test_a_failed_copy_of_duckdb_leaves_the_file_as_it_was(
    make: Callable[[Path], Any], tmp_path: Path
) -> None:
    connection = connect(make(tmp_path))
    url = f"modcrypt://{tmp_path}/a.parquet"
    connection.execute(f"COPY (SELECT 1 AS n) TO '{url}'")
    before = {name: (tmp_path / name).read_bytes() for name in os.listdir(tmp_path)}
    query = "SELECT CASE WHEN range = 90000 THEN error('x') ELSE range END AS n FROM range(100000)"
    with pytest.raises(duckdb.Error, match="x"):
        connection.execute(f"COPY ({query}) TO '{url}' (ROW_GROUP_SIZE 2048)")
    assert before == {name: (tmp_path / name).read_bytes() for name in os.listdir(tmp_path)}


@each_system
def test_duckdb_reads_and_replaces_a_folder(make: Callable[[Path], Any], tmp_path: Path) -> None:
    connection = connect(make(tmp_path))
    url = f"modcrypt://{tmp_path}/folder"
    for rows, option in ((9, ""), (6, ", OVERWRITE"), (6, ", OVERWRITE_OR_IGNORE")):
        query = f"SELECT range % 3 AS p, range AS n FROM range({rows})"
        connection.execute(f"COPY ({query}) TO '{url}' (FORMAT parquet, PARTITION_BY p{option})")
        for pattern in ("*/*", "**/*.parquet"):
            found = connection.execute(f"SELECT count(*) FROM read_parquet('{url}/{pattern}')")
            assert found.fetchone() == (rows,)


@pytest.mark.filterwarnings("ignore:The inplace keyword")  # of Dask's own making
def test_dask_replaces_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOVES_KEY", FOOTER_KEY.hex())
    settings = mc.Settings(footer_key="env:MOVES_KEY")
    url = f"modcrypt::file://{tmp_path}/folder"
    options = {"encryption": settings, "decryption": settings}
    for parts in (3, 1):
        frame = DASK.from_pandas(pd.DataFrame({"n": range(8)}), npartitions=parts)
        frame.to_parquet(url, storage_options=options, overwrite=True)
        assert len(DASK.read_parquet(url, storage_options=options)) == 8
        assert len(os.listdir(tmp_path / "folder")) == parts


@each_system
def test_pyarrow_replaces_folders(make: Callable[[Path], Any], tmp_path: Path) -> None:
    filesystem = pafs.PyFileSystem(pafs.FSSpecHandler(make(tmp_path)))
    folder = f"{tmp_path}/folder"
    table = pa.table({"p": [1, 1, 2], "n": [1, 2, 3]})
    for rows in (table, table.slice(1)):
        ds.write_dataset(
            rows, folder, format="parquet", partitioning=["p"], filesystem=filesystem,
            existing_data_behavior="delete_matching",
        )  # fmt: skip
        back = ds.dataset(folder, filesystem=filesystem, partitioning=["p"]).to_table()
        assert back.num_rows == rows.num_rows
    filesystem.delete_dir_contents(folder)
    assert os.listdir(folder) == []
    filesystem.delete_dir(folder)
    assert os.listdir(tmp_path) == []


def test_pandas_and_polars_write_what_is_moved_then(tmp_path: Path) -> None:
    filesystem = fsspec.filesystem("modcrypt", **KEYS)
    frame = pd.DataFrame({"n": [1, 2]})
    frame.to_parquet(f"{tmp_path}/pandas", filesystem=filesystem)
    with filesystem.open(f"{tmp_path}/polars", "wb") as file:
        pl.from_pandas(frame).write_parquet(file)
    for name in ("pandas", "polars"):
        filesystem.mv(f"{tmp_path}/{name}", f"{tmp_path}/{name}.parquet")
        pd.testing.assert_frame_equal(
            pd.read_parquet(f"{tmp_path}/{name}.parquet", filesystem=filesystem), frame
        )
        with filesystem.open(f"{tmp_path}/{name}.parquet") as file:
            assert pl.read_parquet(file).equals(pl.from_pandas(frame))


# --- summaries -----------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:The inplace keyword")  # of Dask's own making
def test_dask_writes_and_reads_folders_without_summaries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A summary outside of the files must not decide which rows they have."""
    monkeypatch.setenv("MOVES_KEY", FOOTER_KEY.hex())
    settings = mc.Settings(footer_key="env:MOVES_KEY")
    options = {"encryption": settings, "decryption": settings}
    url, folder = f"modcrypt::file://{tmp_path}/folder", tmp_path / "folder"
    frame = DASK.from_pandas(pd.DataFrame({"n": range(8), "p": [1, 2] * 4}), npartitions=2)
    frame.to_parquet(url, storage_options=options, write_metadata_file=True)
    assert not (folder / "_metadata").exists()
    assert {path.read_bytes()[:4] for path in folder.iterdir()} == {b"PARE"}
    plain = frame.partitions[0]  # a summary of half of the rows, in plaintext
    plain.to_parquet(str(tmp_path / "plain"), write_metadata_file=True)
    summary = (tmp_path / "plain" / "_metadata").read_bytes()
    (folder / "_metadata").write_bytes(summary)
    for how in ({}, {"calculate_divisions": True}, {"split_row_groups": True}):
        assert len(DASK.read_parquet(url, storage_options=options, **how)) == 8
    frame.to_parquet(
        url, storage_options=options, append=True, ignore_divisions=True, write_metadata_file=True
    )
    assert not (folder / "_metadata").exists()  # which would be out of date


def test_a_summary_is_not_read_or_listed(tmp_path: Path) -> None:
    filesystem = fsspec.filesystem("modcrypt", **KEYS)
    write(filesystem, f"{tmp_path}/a.parquet", OLD)
    pq.write_metadata(OLD.schema, tmp_path / "_metadata")
    for question in (filesystem.exists, filesystem.isfile):
        assert not question(f"{tmp_path}/_metadata")
    for read_it in (filesystem.open, filesystem.info, filesystem.cat_file):
        with pytest.raises(FileNotFoundError, match="name the data files"):
            read_it(f"{tmp_path}/_metadata")
    assert filesystem.ls(tmp_path, detail=False) == [f"{tmp_path}/a.parquet"]
    query = f"SELECT count(*) FROM read_parquet('modcrypt://{tmp_path}/*')"
    assert connect(filesystem).execute(query).fetchone() == (3,)
    filesystem.rm(f"{tmp_path}/_metadata")
    assert os.listdir(tmp_path) == ["a.parquet"]
