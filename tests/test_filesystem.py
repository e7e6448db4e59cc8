"""The fsspec file system `modcrypt`: names, sizes, bytes, keys that never mix, and writing."""

from __future__ import annotations

import gc
import io
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import dask.dataframe
import fsspec
import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs
import pyarrow.parquet as pq
import pytest
from dask.tokenize import tokenize

import modcrypt as mc
from modcrypt.ags1.filesystem import Ags1FileSystem
from modcrypt.filesystem import ModcryptFileSystem
from tests.support.cases import each_case
from tests.support.file_reads import watch_reads
from tests.support.keys import COLUMN_KEY, FOOTER_KEY, OTHER_KEY
from tests.support.leaks import COLUMN, FOOTER, leaks
from tests.support.module_spans import list_modules
from tests.support.tables import small_table, write_plain

TABLE = small_table(400)
KEYS = mc.FileDecryptionProperties(footer_key=FOOTER_KEY, column_keys={"name": COLUMN_KEY})
OTHER_KEYS = mc.FileDecryptionProperties(footer_key=OTHER_KEY, column_keys={"name": COLUMN_KEY})


def seal(path: Path, key: bytes = FOOTER_KEY, **how: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    keys = {"name": COLUMN_KEY}
    encryption = mc.FileEncryptionProperties(footer_key=key, column_keys=keys, **how)
    mc.write_table(TABLE, path, encryption, row_group_size=150)
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder of encrypted files, and others."""
    seal(tmp_path / "data" / "c=A" / "1.parquet")
    seal(tmp_path / "data" / "c=B" / "2.parquet")
    (tmp_path / "data" / "_SUCCESS").touch()
    return tmp_path / "data"


@pytest.fixture
def memory(folder: Path) -> Any:
    """Yield the memory of fsspec with a copy of the folder, which goes away again."""
    filesystem = fsspec.filesystem("memory")
    filesystem.put(str(folder), "/data", recursive=True)
    yield filesystem
    filesystem.rm("/data", recursive=True)


def make_filesystem(keys: Any = KEYS, **options: Any) -> Any:
    return fsspec.filesystem("modcrypt", decryption=keys, **options)


def give_keys(path: str) -> mc.FileDecryptionProperties:
    """Return the keys of every path: a function that can be imported, and so pickled."""
    return KEYS


# --- by URL --------------------------------------------------------------------------------------


def test_fsspec_finds_both_by_their_entry_points_and_loads_them_only_then() -> None:
    script = (
        "import sys, fsspec; assert {'ags1', 'modcrypt'} <= {*fsspec.available_protocols()};"
        "assert 'modcrypt' not in sys.modules;"
        "print(*map(fsspec.get_filesystem_class, ('ags1', 'modcrypt')))"
    )
    run = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    assert run.stdout.strip() == f"{Ags1FileSystem} {ModcryptFileSystem}"


URLS = {
    "a local path": "modcrypt::{folder}/c=A/1.parquet",
    "a local URL": "modcrypt::file://{folder}/c=A/1.parquet",
    "local by itself": "modcrypt://{folder}/c=A/1.parquet",
    "memory": "modcrypt::memory://data/c=A/1.parquet",
}


@pytest.mark.usefixtures("memory")
@pytest.mark.parametrize("url", URLS.values(), ids=URLS)
def test_every_form_of_url_opens_the_plaintext_file(url: str, folder: Path) -> None:
    url = url.format(folder=folder)
    with fsspec.open(url, decryption=KEYS) as file:
        assert pq.read_table(file).equals(TABLE)
    filesystem, path = fsspec.url_to_fs(url, decryption=KEYS)
    assert isinstance(filesystem, ModcryptFileSystem)
    assert pq.read_table(path, filesystem=filesystem, partitioning=None).equals(TABLE)


@pytest.mark.usefixtures("memory")
@pytest.mark.parametrize(
    "url", ["modcrypt::memory://data/*/*.parquet", "modcrypt://{folder}/*/*.parquet"]
)
def test_open_files_takes_patterns(url: str, folder: Path) -> None:
    files = fsspec.open_files(url.format(folder=folder), decryption=KEYS)
    assert [Path(file.path).name for file in files] == ["1.parquet", "2.parquet"]
    for file in files:
        with file as opened:
            assert pq.read_table(opened).equals(TABLE)


def test_options_go_to_the_file_system_that_they_name(folder: Path, memory: Any) -> None:
    filesystem, path = fsspec.url_to_fs(
        "modcrypt::dir::memory://data/c=A/1.parquet", decryption=KEYS, dir={"path": "/data"}
    )
    assert filesystem.fs.path == "/data"
    assert filesystem.fs.fs is memory
    assert path == "/data/c=A/1.parquet"
    filesystem, _ = fsspec.url_to_fs(f"modcrypt::{folder}", decryption=KEYS, file={"auto_mkdir": 1})
    assert filesystem.fs.auto_mkdir == 1


@pytest.mark.parametrize(
    ("given", "advice"),
    [
        (None, "storage_options="),
        (FOOTER, r"fsspec shows the options of file systems; pass Key"),
        (FOOTER.hex(), r"fsspec shows the options of file systems; pass Key\.from_hex"),
        ({"footer_key": FOOTER}, "decryption must be a Key"),
    ],
)
def test_without_keys_it_says_how_to_give_them(given: Any, advice: str, folder: Path) -> None:
    with pytest.raises((TypeError, ValueError), match=advice) as caught:
        fsspec.open(f"modcrypt::{folder}/c=A/1.parquet", decryption=given)
    assert not leaks(str(caught.value))


# --- what is there -------------------------------------------------------------------------------


def test_listing_is_as_behind_but_for_sizes_and_opens_nothing(memory: Any) -> None:
    asked: list[str] = []

    def keys(path: str) -> mc.FileDecryptionProperties:
        asked.append(path)
        return KEYS

    filesystem = make_filesystem(keys, fs=memory)
    assert filesystem.ls("modcrypt:///data", detail=False) == memory.ls("/data", detail=False)
    assert filesystem.find("data") == memory.find("/data")
    assert filesystem.glob("/data/*/*.parquet") == memory.glob("/data/*/*.parquet")
    assert [*filesystem.walk("/data")] == [*memory.walk("/data")]
    listings = [
        filesystem.ls("/data/c=A"),
        filesystem.find("/data", detail=True).values(),
        filesystem.glob("/data/*/*", detail=True).values(),
    ]
    for entries in listings:
        assert [entry["size"] for entry in entries] == [None] * len(entries)
    whole = filesystem.find("/data", withdirs=True, detail=True)
    assert whole.keys() == memory.find("/data", withdirs=True, detail=True).keys()
    for path in ("/data", "/data/c=A", "/data/_SUCCESS", "/data/c=A/1.parquet", "/none"):
        for question in ("exists", "isdir", "isfile"):
            assert getattr(filesystem, question)(path) == getattr(memory, question)(path)
    assert filesystem.info("/data/c=A") == memory.info("/data/c=A")
    assert filesystem.modified("/data/_SUCCESS") == memory.modified("/data/_SUCCESS")
    assert asked == []
    filesystem.info("/data/c=A/1.parquet")
    assert asked == ["/data/c=A/1.parquet"]


def test_size_is_that_of_the_plaintext_file_also_after_it_was_replaced(folder: Path) -> None:
    path = folder / "c=A" / "1.parquet"
    filesystem = make_filesystem()
    for rows in (400, 60):
        encryption = mc.FileEncryptionProperties(footer_key=FOOTER_KEY)
        mc.write_table(TABLE.slice(0, rows), path, encryption)
        whole = filesystem.cat_file(path)
        assert pq.read_table(pa.BufferReader(whole)).num_rows == rows
        assert filesystem.size(path) == filesystem.info(path)["size"] == len(whole)
        assert filesystem.sizes([path]) == [len(whole)]
        assert filesystem.du(folder / "c=A") == len(whole)
        assert len(whole) != path.stat().st_size


def test_what_distinguishes_versions_changes_with_the_file(folder: Path) -> None:
    path = folder / "c=A" / "1.parquet"
    filesystem = make_filesystem()
    before = filesystem.checksum(path), filesystem.ukey(path)
    assert before == (filesystem.checksum(path), filesystem.ukey(path))
    seal(path, OTHER_KEY)
    assert filesystem.checksum(path) != before[0]
    assert filesystem.ukey(path) != before[1]


def test_other_files_are_listed_and_refused_when_opened(folder: Path) -> None:
    write_plain(folder / "plain.parquet")
    filesystem = make_filesystem()
    assert f"{folder}/_SUCCESS" in filesystem.ls(folder, detail=False)
    for read in (filesystem.open, filesystem.info, filesystem.cat_file):
        with pytest.raises(mc.errors.FormatError, match="_SUCCESS"):
            read(f"{folder}/_SUCCESS")
        with pytest.raises(mc.errors.PlaintextError, match=r"plain\.parquet"):
            read(f"{folder}/plain.parquet")
        with pytest.raises(FileNotFoundError):
            read(f"{folder}/none.parquet")


def test_the_root_of_the_file_system_behind_is_not_the_working_folder() -> None:
    listed = make_filesystem().ls("modcrypt:///", detail=False)
    assert set(listed) == set(fsspec.filesystem("file").ls("/", False))  # in no certain order
    assert make_filesystem().isdir("/")


# --- what is in it -------------------------------------------------------------------------------


def test_all_of_fsspecs_ways_to_read_give_the_same_bytes(folder: Path, tmp_path: Path) -> None:
    paths = [f"{folder}/c=A/1.parquet", f"{folder}/c=B/2.parquet"]
    filesystem = make_filesystem()
    with filesystem.open(paths[0]) as file:
        whole = file.read()
        assert file.size == len(whole) == file.seek(0, os.SEEK_END)
    assert pq.read_table(pa.BufferReader(whole)).equals(TABLE)
    assert filesystem.cat_file(paths[0], 5, 900) == whole[5:900]
    assert filesystem.cat_file(paths[0], -100, -3) == whole[-100:-3]
    assert filesystem.cat_ranges([paths[0]] * 2, [0, 7], [4, 2000]) == [whole[:4], whole[7:2000]]
    assert filesystem.head(paths[0], 50) == whole[:50]
    assert filesystem.tail(paths[0], 50) == whole[-50:]
    assert filesystem.read_block(paths[0], 100, 333) == whole[100:433]
    cats = filesystem.cat(paths)
    assert list(cats) == paths
    assert cats[paths[0]] == whole
    (folder / "_SUCCESS").unlink()
    filesystem.get(str(folder), str(tmp_path / "copy"), recursive=True)
    copied = tmp_path / "copy"
    assert copied.joinpath("c=A/1.parquet").read_bytes() == whole
    assert copied.joinpath("c=B/2.parquet").read_bytes() == cats[paths[1]]
    out = io.BytesIO()
    filesystem.get_file(paths[0], out)
    assert out.getvalue() == whole


def test_what_is_copied_is_there_complete_or_not_at_all(folder: Path, tmp_path: Path) -> None:
    path = folder / "c=A" / "1.parquet"
    data = bytearray(path.read_bytes())
    data[list_modules(bytes(data), KEYS)[-2].end - 1] ^= 1
    path.write_bytes(data)
    (tmp_path / "there").write_bytes(b"as it was")
    for target in ("there", "new"):
        with pytest.raises(mc.errors.TagMismatchError):
            make_filesystem().get_file(path, str(tmp_path / target))
    assert sorted(os.listdir(tmp_path)) == ["data", "there"]
    assert (tmp_path / "there").read_bytes() == b"as it was"


def test_it_stands_behind_pyarrow_as_any_file_system_does(folder: Path) -> None:
    filesystem = pyarrow.fs.PyFileSystem(pyarrow.fs.FSSpecHandler(make_filesystem()))
    selector = pyarrow.fs.FileSelector(str(folder), recursive=True)
    found = {info.base_name: info for info in filesystem.get_file_info(selector)}
    assert set(found) == {"_SUCCESS", "c=A", "1.parquet", "c=B", "2.parquet"}
    assert found["1.parquet"].size is None
    assert found["1.parquet"].mtime_ns == pytest.approx(
        (folder / "c=A" / "1.parquet").stat().st_mtime_ns, abs=1000
    )
    with filesystem.open_input_file(f"{folder}/c=A/1.parquet") as file:
        (info,) = filesystem.get_file_info([f"{folder}/c=A/1.parquet"])
        assert file.size() == info.size


WRITES: dict[str, Callable[[Any, str], object]] = {
    "wb": lambda fs, path: fs.open(path, "wb"),
    "ab": lambda fs, path: fs.open(path, "ab"),
    "xb": lambda fs, path: fs.open(path, "xb"),
    "r+b": lambda fs, path: fs.open(path, "r+b"),
    "text": lambda fs, path: fs.open(path, "w"),
    "pipe": lambda fs, path: fs.pipe_file(path, b"x"),
    "touch": lambda fs, path: fs.touch(path),
    "put": lambda fs, path: fs.put_file(path, path),
    "rm": lambda fs, path: fs.rm(path),
    "rm_file": lambda fs, path: fs.rm_file(path),
    "mv": lambda fs, path: fs.mv(path, path + "2"),
    "cp": lambda fs, path: fs.cp(path, path + "2"),
    "mkdir": lambda fs, path: fs.mkdir(path + "2"),
    "makedirs": lambda fs, path: fs.makedirs(path + "2"),
    "rmdir": lambda fs, path: fs.rmdir(os.path.dirname(path)),
}


@each_case("write", WRITES.values(), ids=WRITES)
def test_nothing_is_written_moved_or_removed(
    write: Callable[[Any, str], object], folder: Path
) -> None:
    before = {path: path.is_file() and path.read_bytes() for path in folder.rglob("*")}
    with pytest.raises(ValueError, match=r"read-only: it has no encryption=.*write_table"):
        write(make_filesystem(), f"{folder}/c=A/1.parquet")
    assert before == {path: path.is_file() and path.read_bytes() for path in folder.rglob("*")}


def test_each_file_has_keys_and_an_aad_prefix_of_its_own(tmp_path: Path) -> None:
    own = {"1.parquet": (FOOTER_KEY, b"part 1"), "2.parquet": (OTHER_KEY, b"part 2")}
    for name, (key, prefix) in own.items():
        seal(tmp_path / name, key, aad_prefix=prefix, store_aad_prefix=False)

    def keys(path: str) -> mc.FileDecryptionProperties:
        key, prefix = own[Path(path).name]
        return mc.FileDecryptionProperties(
            footer_key=key, column_keys={"name": COLUMN_KEY}, aad_prefix=prefix
        )

    table = pq.read_table(str(tmp_path), filesystem=make_filesystem(keys))
    assert table.equals(pa.concat_tables([TABLE, TABLE]))
    for filesystem in (make_filesystem(), make_filesystem(lambda path: keys("2.parquet"))):
        with pytest.raises((mc.errors.AadPrefixError, mc.errors.TagMismatchError)):
            filesystem.open(tmp_path / "1.parquet")


# --- keys ----------------------------------------------------------------------------------------


def test_file_systems_with_other_keys_are_never_taken_for_each_other(folder: Path) -> None:
    """fsspec compares the repr of their arguments, and would return the first one again."""
    seal(folder / "c=B" / "2.parquet", OTHER_KEY)
    right, wrong = make_filesystem(KEYS), make_filesystem(OTHER_KEYS)
    assert len({right, wrong, make_filesystem(KEYS)}) == 3
    assert right != wrong
    assert right == right
    assert hash(right) != hash(wrong)
    assert (
        len({fs._fs_token for fs in (right, wrong)}) == len({tokenize(right), tokenize(wrong)}) == 2
    )
    urls = [f"modcrypt::{folder}/c=A/1.parquet", f"modcrypt::{folder}/c=B/2.parquet"]
    for keys, its, others in ((KEYS, *urls), (OTHER_KEYS, *reversed(urls))) * 2:
        with fsspec.open(its, decryption=keys) as file:
            assert pq.read_table(file).equals(TABLE)
        with pytest.raises(mc.errors.TagMismatchError):
            fsspec.open(others, decryption=keys).open()


def test_threads_that_make_them_at_once_get_their_own(folder: Path) -> None:
    seal(folder / "c=B" / "2.parquet", OTHER_KEY)
    meet = threading.Barrier(4)

    def read(number: int) -> bool:
        keys, path = ((KEYS, "c=A/1.parquet"), (OTHER_KEYS, "c=B/2.parquet"))[number % 2]
        meet.wait(30)
        with fsspec.open(f"modcrypt::{folder}/{path}", decryption=keys) as file:
            return bool(pq.read_table(file).equals(TABLE))

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(read, range(40)))


def test_nothing_that_is_shown_stored_or_hashed_has_a_key_in_it(folder: Path) -> None:
    keys = mc.FileDecryptionProperties(footer_key=FOOTER, column_keys={"name": COLUMN})
    filesystem, _ = fsspec.url_to_fs(f"modcrypt::{folder}", decryption=keys)
    shown = [repr(filesystem), str(vars(filesystem)), str(filesystem.storage_options)]
    shown += [str(filesystem.storage_args), filesystem._fs_token, tokenize(filesystem)]
    shown += [repr(fsspec.open(f"modcrypt::{folder}/c=A/1.parquet", decryption=keys))]
    stores: list[Callable[[], object]] = [
        lambda: pickle.dumps(filesystem),
        lambda: pickle.dumps(fsspec.open(f"modcrypt::{folder}/x", decryption=keys)),
        filesystem.to_json,
        filesystem.to_dict,
    ]
    for store in stores:
        with pytest.raises(TypeError) as caught:
            store()
        shown.append(str(caught.value))
    assert not [leak for text in shown for leak in leaks(text)]
    with pytest.raises(TypeError, match="a Key can't be pickled"):
        pickle.dumps(filesystem)


def test_with_a_function_that_can_be_imported_it_pickles(folder: Path) -> None:
    filesystem = make_filesystem(give_keys)
    copy = pickle.loads(pickle.dumps(filesystem))
    assert copy != filesystem
    path = f"{folder}/c=A/1.parquet"
    assert copy.cat_file(path) == filesystem.cat_file(path)


# --- no more than is asked for -------------------------------------------------------------------


def test_options_of_caches_do_not_make_it_read_ahead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file behind is read in ranges of modcrypt's own."""
    columns = {f"c{n}": pa.array(range(n, n + 100_000)) for n in range(8)}
    plain: dict[str, Any] = {"compression": "none", "use_dictionary": False}
    encryption = mc.FileEncryptionProperties(footer_key=FOOTER_KEY)
    mc.write_table(pa.table(columns), tmp_path / "wide.parquet", encryption, **plain)
    lengths: list[int] = []
    watch_reads(monkeypatch, lambda _offset, length: lengths.append(length))
    url = f"modcrypt::file://{tmp_path}/wide.parquet"
    options = {"block_size": 1 << 24, "cache_type": "all", "cache_options": {"x": 1}}
    filesystem, path = fsspec.url_to_fs(url, decryption=KEYS)
    with filesystem.open(path, **options) as opened:
        assert 0 < sum(lengths) < (64 << 10) + 16
        assert len(opened.read(10_000)) == 10_000
        assert (
            sum(lengths) < (64 << 10) + 16 + 1.05 * 800_000
        )  # a page, here all of the first chunk


DASK: Any = dask.dataframe  # which has few types

# --- writing -------------------------------------------------------------------------------------

ENCRYPTION = mc.FileEncryptionProperties(footer_key=FOOTER_KEY, column_keys={"name": COLUMN_KEY})
WRITING = {"modcrypt": {"encryption": ENCRYPTION}}
READING = {"modcrypt": {"decryption": KEYS}}


def make_writer(**options: Any) -> Any:
    return fsspec.filesystem("modcrypt", encryption=ENCRYPTION, **options)


@each_case("store", ["file", "memory"])
def test_pandas_writes_by_url(store: str, tmp_path: Path) -> None:
    frame = TABLE.to_pandas()
    url = f"modcrypt::{(tmp_path / 'people.parquet').as_uri()}"
    if store == "memory":
        url = "modcrypt::memory://people.parquet"
    frame.to_parquet(url, storage_options=WRITING)
    with fsspec.open(url.removeprefix("modcrypt::")) as file:
        assert file.read(4) == b"PARE"
    back = pd.read_parquet(url, storage_options=READING)
    pd.testing.assert_frame_equal(back, frame)


@pytest.mark.filterwarnings("ignore:The inplace keyword")  # of Dask's own making
def test_dask_writes_by_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WRITER_KEY", FOOTER_KEY.hex())
    settings = mc.Settings(footer_key="env:WRITER_KEY")
    url = f"modcrypt::{(tmp_path / 'folder').as_uri()}"
    frame: Any = DASK.from_pandas(TABLE.select(["id"]).to_pandas(), npartitions=2)
    options = {"modcrypt": {"encryption": settings, "decryption": settings}}
    frame.to_parquet(url, storage_options=options)
    files = sorted((tmp_path / "folder").iterdir())
    assert len(files) == 2
    assert {path.read_bytes()[:4] for path in files} == {b"PARE"}
    back = DASK.read_parquet(url, storage_options=options).compute()
    assert list(back["id"]) == TABLE["id"].to_pylist()


def test_a_function_gives_each_file_keys_of_its_own(tmp_path: Path) -> None:
    asked = []

    def give(path: str) -> mc.FileEncryptionProperties:
        asked.append(path)
        return ENCRYPTION

    filesystem = fsspec.filesystem("modcrypt", encryption=give)
    with filesystem.open(str(tmp_path / "a"), "wb") as file:
        pq.write_table(TABLE, file)
    assert asked == [str(tmp_path / "a")]
    assert mc.read_table(tmp_path / "a", KEYS).equals(TABLE)


def fail_in_block(file: Any) -> None:
    with file:
        pq.write_table(TABLE, file)
        raise ZeroDivisionError


def fail_before_finally(file: Any) -> None:
    """End as writers do that close their file in any case, like pandas."""
    try:
        pq.write_table(TABLE, file)
        raise ZeroDivisionError
    finally:
        file.close()


@each_case("fail", [fail_in_block, fail_before_finally])
def test_a_failed_write_leaves_what_was_there(fail: Callable[[Any], None], tmp_path: Path) -> None:
    (tmp_path / "there").write_bytes(b"as it was")
    for name in ("there", "absent"):
        with pytest.raises(ZeroDivisionError):
            fail(make_writer().open(str(tmp_path / name), "wb"))
    assert (tmp_path / "there").read_bytes() == b"as it was"
    assert len(list(tmp_path.iterdir())) == 1


def test_a_file_that_is_written_while_an_error_is_handled_appears(tmp_path: Path) -> None:
    try:
        raise ZeroDivisionError
    except ZeroDivisionError:
        with make_writer().open(str(tmp_path / "fallback"), "wb") as file:
            pq.write_table(TABLE, file)
    assert mc.read_table(tmp_path / "fallback", KEYS).equals(TABLE)


def test_a_file_that_is_never_closed_does_not_appear(tmp_path: Path) -> None:
    file = make_writer().open(str(tmp_path / "left"), "wb")
    pq.write_table(TABLE, file)
    del file
    gc.collect()
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_parquet_is_refused_on_closing(tmp_path: Path) -> None:
    file = make_writer().open(str(tmp_path / "text"), "wb")
    file.write(b"name\nAda\n")
    with pytest.raises(mc.errors.FormatError):
        file.close()
    assert file.closed
    file.close()
    assert list(tmp_path.iterdir()) == []


def test_an_existing_file_is_kept_on_request(tmp_path: Path) -> None:
    (tmp_path / "there").write_bytes(b"as it was")
    file = make_writer().open(str(tmp_path / "there"), "xb")
    pq.write_table(TABLE, file)
    with pytest.raises(FileExistsError):
        file.close()
    assert (tmp_path / "there").read_bytes() == b"as it was"


def test_other_ways_of_writing_are_refused(folder: Path) -> None:
    path = f"{folder}/c=A/1.parquet"
    before = Path(path).read_bytes()
    for mode in ("ab", "r+b"):
        with pytest.raises(ValueError, match="'rb'"):
            make_writer().open(path, mode)
    with pytest.raises(TypeError, match="pass decryption="):
        make_writer().open(path)
    with pytest.raises(ValueError, match=r"fsspec shows the options .* pass Key\.from_hex"):
        fsspec.filesystem("modcrypt", encryption=FOOTER_KEY)
    assert Path(path).read_bytes() == before


# --- required seals -------------------------------------------------------------------------------


@pytest.fixture
def sealed(tmp_path: Path) -> tuple[Path, mc.FileDecryptionProperties]:
    """A signed dataset under a seal, and what its readers require."""
    writer, root = mc.SigningKey.generate(), tmp_path / "sealed"
    properties = mc.FileEncryptionProperties(footer_key=FOOTER_KEY, signing_key=writer)
    for name in ("c=A/1", "c=A/2", "c=B/3"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        mc.write_table(pa.table({"n": [1]}), root / f"{name}.parquet", properties)
    mc.jobs.seal_dataset(root, writer)
    seal = mc.kms.RequiredSeal((writer.verifier,), root=str(root))
    return root, mc.FileDecryptionProperties(
        footer_key=FOOTER_KEY, signed_by=[writer.verifier], seal=seal
    )


SEALED_READERS: dict[str, Callable[[Any, Path], int]] = {
    "find": lambda fs, root: len(fs.find(str(root))),
    "dataset": lambda fs, root: ds.dataset(str(root), filesystem=fs).to_table().num_rows,
    "pandas": lambda fs, root: len(pd.read_parquet(str(root), filesystem=fs)),
}


@each_case("reader", list(SEALED_READERS))
def test_folders_under_a_required_seal_are_complete(
    reader: str, sealed: tuple[Path, mc.FileDecryptionProperties]
) -> None:
    root, reading = sealed
    read = SEALED_READERS[reader]
    filesystem = make_filesystem(reading)
    assert (read(filesystem, root), read(filesystem, root / "c=A")) == (3, 2)
    assert filesystem.find(str(root / "c=A" / "1.parquet")) == [str(root / "c=A" / "1.parquet")]
    data = (root / "c=B" / "3.parquet").read_bytes()
    (root / "c=B" / "3.parquet").unlink()
    (root / "c=B" / "3.parquet").mkdir()  # a folder does not take a file's place
    with pytest.raises(mc.errors.IntegrityError, match=r"c=B/3\.parquet: in the seal"):
        read(filesystem, root)
    with pytest.raises(mc.errors.IntegrityError, match=r"c=B/3\.parquet: in the seal"):
        read(filesystem, root / "c=B")
    assert read(filesystem, root / "c=A") == 2
    (root / "c=B" / "3.parquet").rmdir()
    (root / "c=B" / "3.parquet").write_bytes(data)
    assert read(filesystem, root) == 3
