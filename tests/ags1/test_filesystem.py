"""The fsspec file system `ags1`: it writes streams, complete or not at all, and reads them back.

Judged by `tools/verify_ags1.py`, which shares no line with the package, and by those who read and
write through it: pandas, PyArrow, Polars, DuckDB, fastavro and the standard library.
"""

from __future__ import annotations

import gc
import gzip
import io
import os
import pickle
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import fastavro
import fsspec
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.csv
import pyarrow.dataset as ds
import pyarrow.fs
import pyarrow.parquet as pq
import pytest
from dask.tokenize import tokenize

import modcrypt as mc
from modcrypt.ags1.filesystem import Ags1FileSystem
from tests.support.cases import each_case
from tests.support.file_reads import watch_reads
from tests.support.frame_watch import find_secrets
from tests.support.keys import FOOTER_KEY, OTHER_KEY
from tests.support.leaks import COLUMN, FOOTER, SHORT, leaks
from tools.verify_ags1 import read_key_metadata, verify

DATA = bytes(i * 31 >> 3 & 0xFF for i in range(100_000))
SMALL_BLOCKS = {"block_length": 1 << 12}

PICKLED = mc.ags1.StandardKeyMetadata(key=OTHER_KEY, aad_prefix=b"of every path")


def give_key(path: str) -> mc.ags1.StandardKeyMetadata:
    """Return the key of every path: a function that can be imported, and so pickled."""
    return PICKLED


class Vault(dict[str, mc.ags1.StandardKeyMetadata]):
    """Keeps key metadata by path, as a table's metadata would."""

    @property
    def new(self) -> dict[str, Any]:
        """Options for writing, each file with a key of its own."""
        fresh = mc.ags1.StandardKeyMetadata.generate
        return {"key": lambda path: fresh(), "on_written": self.__setitem__, **SMALL_BLOCKS}

    @property
    def old(self) -> dict[str, Any]:
        """Options for reading."""
        return {"key": self.__getitem__}

    def judge(self, path: str, data: bytes | None = None) -> bytes:
        """Open a file with nothing but `cryptography`, and the metadata that was reported."""
        data = Path(path).read_bytes() if data is None else data
        return verify(data, *read_key_metadata(self[path].encode()))


@pytest.fixture
def vault() -> Vault:
    return Vault()


@pytest.fixture
def memory() -> Iterator[Any]:
    """Yield the memory of fsspec, with an empty folder that goes away again."""
    filesystem = fsspec.filesystem("memory")
    filesystem.mkdir("/data")
    yield filesystem
    filesystem.rm("/data", recursive=True)


def make_filesystem(**options: Any) -> Any:
    return fsspec.filesystem("ags1", **options)


@pytest.fixture
def sealed_path(tmp_path: Path, vault: Vault) -> str:
    """Return the path of a stream with DATA in it, in blocks of 4 KiB."""
    path = f"{tmp_path}/sealed"
    make_filesystem(**vault.new).pipe_file(path, DATA)
    assert vault.judge(path) == DATA
    return path


# --- by URL --------------------------------------------------------------------------------------


URLS = {
    "a local path": "ags1::{folder}/below/x",
    "a local URL": "ags1::file://{folder}/below/x",
    "local by itself": "ags1://{folder}/below/x",
    "memory": "ags1::memory://data/below/x",
}


@pytest.mark.parametrize("url", URLS.values(), ids=URLS)
def test_every_form_of_url_is_written_and_read(
    url: str, tmp_path: Path, vault: Vault, memory: Any
) -> None:
    url = url.format(folder=tmp_path)
    with fsspec.open(url, "wb", **vault.new) as file:
        file.write(DATA)
    (path,) = vault  # as it is named behind
    assert path == ("/data/below/x" if "memory" in url else f"{tmp_path}/below/x")
    kept = memory.cat_file(path) if "memory" in url else Path(path).read_bytes()
    assert vault.judge(path, kept) == DATA
    with fsspec.open(url, **vault.old) as file:
        assert file.read() == DATA
    filesystem, found = fsspec.url_to_fs(url, **vault.old)
    assert isinstance(filesystem, Ags1FileSystem)
    assert filesystem.cat_file(found) == DATA


def test_a_plain_key_with_prefix_and_length_is_enough(tmp_path: Path) -> None:
    url = f"ags1://{tmp_path}/x"
    with fsspec.open(url, "wb", key=FOOTER_KEY, aad_prefix=b"of x") as file:
        file.write(DATA)
    sealed = (tmp_path / "x").read_bytes()
    assert verify(sealed, FOOTER_KEY, b"of x", None) == DATA
    how = {"key": mc.Key(FOOTER_KEY), "aad_prefix": b"of x"}
    for length in (len(sealed), mc.ags1.UNVERIFIED):
        with fsspec.open(url, length=length, **how) as file:
            assert file.read() == DATA
    with pytest.raises(mc.errors.TruncationError, match="trusted length"):
        fsspec.open(url, length=len(sealed) + 1, **how).open()
    with pytest.raises(TypeError, match="length=UNVERIFIED"):
        fsspec.open(url, **how).open()
    with pytest.raises(mc.errors.TagMismatchError):
        make_filesystem(key=FOOTER_KEY, length=len(sealed)).cat_file(tmp_path / "x")


def test_open_files_numbers_what_is_written_and_finds_it_by_patterns(
    tmp_path: Path, vault: Vault
) -> None:
    url = f"ags1://{tmp_path}/part-*.txt"
    with fsspec.open_files(url, "wt", num=3, **vault.new) as files:
        for number, file in enumerate(files):
            file.write(f"text {number}")
    names = [f"{tmp_path}/part-{number}.txt" for number in range(3)]
    assert sorted(vault) == names
    with fsspec.open_files(url, "rt", **vault.old) as files:
        assert [file.read() for file in files] == ["text 0", "text 1", "text 2"]


@pytest.mark.parametrize("opened", ["open", "open_files"])
def test_a_cache_behind_it_keeps_encrypted_bytes(
    opened: str, tmp_path: Path, vault: Vault, memory: Any
) -> None:
    """fsspec gives the files of an `open_files` to a cache behind, if nothing stops it."""
    url = "ags1::simplecache::memory://data/x*"
    cache = {"simplecache": {"cache_storage": str(tmp_path / "cache")}}
    if opened == "open":
        with fsspec.open(url.replace("*", "0"), "wb", **vault.new, **cache) as file:
            file.write(DATA)
    else:
        with fsspec.open_files(url, "wb", num=1, **vault.new, **cache) as files:
            files[0].write(DATA)
    assert vault.judge("/data/x0", memory.cat_file("/data/x0")) == DATA
    for _ in range(2):
        if opened == "open":
            with fsspec.open(url.replace("*", "0"), **vault.old, **cache) as file:
                assert file.read() == DATA
        else:
            with fsspec.open_files(url, **vault.old, **cache) as files:
                assert [file.read() for file in files] == [DATA]
    kept = {path.read_bytes() for path in (tmp_path / "cache").iterdir()}
    assert kept == {memory.cat_file("/data/x0")}


# --- mistakes ------------------------------------------------------------------------------------


def test_without_a_key_it_says_how_to_give_one(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="storage_options="):
        fsspec.open(f"ags1://{tmp_path}/x")
    with pytest.raises(ValueError, match="32, 48 or 64 hex digits"):
        fsspec.open(f"ags1://{tmp_path}/x", key="name of an S3 user")
    with pytest.raises(ValueError, match="not 15") as caught:
        fsspec.open(f"ags1://{tmp_path}/x", key=SHORT)
    assert not leaks(str(caught.value))
    with pytest.raises(TypeError, match="must be bytes, not dict"):
        make_filesystem(key=lambda path: {}).open(tmp_path / "x", "wb")
    assert os.listdir(tmp_path) == []


def test_a_misspelt_option_is_refused(tmp_path: Path) -> None:
    """One that is not heard would lose every key that was made for a file."""
    with pytest.raises(TypeError, match="on_writen"):
        make_filesystem(key=FOOTER_KEY, on_writen=print)


@pytest.mark.parametrize("mode", ["ab", "a", "r+b", "w+b", "rwb"])
def test_other_modes_are_refused_before_anything_happens(
    mode: str, sealed_path: str, vault: Vault
) -> None:
    before = Path(sealed_path).read_bytes()
    asked: list[str] = []
    with pytest.raises(ValueError, match="from start to end"):
        make_filesystem(key=asked.append).open(sealed_path, mode)
    assert asked == []
    assert Path(sealed_path).read_bytes() == before


def test_compressing_where_fsspec_would_lose_the_file_is_refused(
    tmp_path: Path, vault: Vault
) -> None:
    """It closes the compressor alone; its own files complete themselves when they are collected."""
    filesystem = make_filesystem(**vault.new)
    for mode in ("wb", "w", "xb"):
        with pytest.raises(ValueError, match=r"fsspec\.open"):
            filesystem.open(f"{tmp_path}/x.gz", mode, compression="infer")
    assert os.listdir(tmp_path) == []
    with fsspec.open(f"ags1://{tmp_path}/x.gz", "wb", compression="infer", **vault.new) as file:
        file.write(DATA)
    assert gzip.decompress(vault.judge(f"{tmp_path}/x.gz")) == DATA
    with make_filesystem(**vault.old).open(f"{tmp_path}/x.gz", compression="infer") as file:
        assert file.read() == DATA


def test_a_transaction_is_refused(tmp_path: Path, vault: Vault) -> None:
    filesystem = make_filesystem(**vault.new)
    with pytest.raises(ValueError, match="transaction"), filesystem.transaction:
        filesystem.pipe_file(f"{tmp_path}/x", DATA)
    assert os.listdir(tmp_path) == []


# --- complete or not at all ----------------------------------------------------------------------


class BrokenError(Exception):
    """An error in the middle of a file."""


class Unwritable:
    """Has no text, and can't be pickled."""

    def __str__(self) -> str:
        raise BrokenError

    def __reduce__(self) -> Any:
        raise BrokenError


def rows() -> pd.DataFrame:
    """Return a frame of which pandas has written much before it fails."""
    return pd.DataFrame({"a": [*range(150_000), Unwritable()]}, dtype=object)


def fail_in(file: Any, data: bytes | str = DATA) -> None:
    with file as opened:
        opened.write(data)
        raise BrokenError


def fail_in_zip(url: str, **options: Any) -> None:
    with fsspec.open(url, "wb", **options) as file, zipfile.ZipFile(file, "w") as archive:
        archive.writestr("a", DATA)
        raise BrokenError


def fail_in_arrow(url: str, **options: Any) -> None:
    filesystem, path = fsspec.url_to_fs(url, **options)
    arrow = pyarrow.fs.PyFileSystem(pyarrow.fs.FSSpecHandler(filesystem))
    fail_in(arrow.open_output_stream(path))


def fail_in_parquet(url: str, **options: Any) -> None:
    filesystem, path = fsspec.url_to_fs(url, **options)
    table = pa.table({"a": range(1000)})
    with pq.ParquetWriter(path, table.schema, filesystem=filesystem) as writer:
        writer.write_table(table)
        raise BrokenError


def fail_in_put(url: str, **options: Any) -> None:
    class Callback(fsspec.callbacks.Callback):  # type: ignore[misc]  # fsspec ships no types
        def relative_update(self, inc: int = 1) -> None:
            raise BrokenError

    filesystem, path = fsspec.url_to_fs(url, **options)
    filesystem.put_file(__file__, path, callback=Callback())


FAILURES: dict[str, Callable[..., None]] = {
    "fsspec.open": lambda url, **how: fail_in(fsspec.open(url, "wb", **how)),
    "as text": lambda url, **how: fail_in(fsspec.open(url, "wt", **how), "text" * 10_000),
    "exclusively": lambda url, **how: fail_in(fsspec.open(url + "-new", "xb", **how)),
    "as gzip": lambda url, **how: fail_in(fsspec.open(url, "wb", compression="gzip", **how)),
    "file system": lambda url, **how: fail_in(make_filesystem(**how).open(url, "wb")),
    "file system, as text": lambda url, **how: fail_in(
        make_filesystem(**how).open(url, "w"), "text"
    ),
    "buffered": lambda url, **how: fail_in(
        io.BufferedWriter(make_filesystem(**how).open(url, "wb"))
    ),
    "pandas CSV": lambda url, **how: rows().to_csv(url, storage_options=how),
    "pandas CSV as gzip": lambda url, **how: rows().to_csv(
        url, storage_options=how, compression="gzip"
    ),
    "pandas CSV as zip": lambda url, **how: rows().to_csv(
        url, storage_options=how, compression="zip"
    ),
    "pandas pickle": lambda url, **how: rows().to_pickle(url, storage_options=how),
    "zip": fail_in_zip,
    "PyArrow": fail_in_arrow,
    "PyArrow's Parquet": fail_in_parquet,
    "put": fail_in_put,
}


@each_case("fail", FAILURES.values(), ids=FAILURES)
def test_an_exception_leaves_what_was_there_and_nothing_else(
    fail: Callable[..., None], sealed_path: str, tmp_path: Path, vault: Vault
) -> None:
    before, said = Path(sealed_path).read_bytes(), vault.copy()
    with pytest.raises(BrokenError):
        fail(f"ags1://{sealed_path}", **vault.new)
    gc.collect()
    assert os.listdir(tmp_path) == ["sealed"]
    assert Path(sealed_path).read_bytes() == before
    assert vault == said


@pytest.mark.parametrize("arrow", [False, True])
def test_a_lost_file_leaves_nothing(arrow: bool, tmp_path: Path, vault: Vault) -> None:
    filesystem: Any = make_filesystem(**vault.new)
    if arrow:
        handler = pyarrow.fs.FSSpecHandler(filesystem)
        file = pyarrow.fs.PyFileSystem(handler).open_output_stream(f"{tmp_path}/x")
    else:
        file = filesystem.open(f"{tmp_path}/x", "wb")
    file.write(DATA)
    del file
    gc.collect()
    assert os.listdir(tmp_path) == []
    assert not vault


def test_a_writer_that_its_finalizer_closes_leaves_nothing(tmp_path: Path, vault: Vault) -> None:
    """PyArrow's ParquetWriter closes the file when it is collected, with a footer and all."""
    table = pa.table({"a": range(1000)})
    writer = pq.ParquetWriter(
        f"{tmp_path}/x", table.schema, filesystem=make_filesystem(**vault.new)
    )
    writer.write_table(table)
    del writer
    gc.collect()
    assert os.listdir(tmp_path) == []
    assert not vault


def test_a_finalizer_may_write_a_file_of_its_own(tmp_path: Path, vault: Vault) -> None:
    class Last:
        def __del__(self) -> None:
            make_filesystem(**vault.new).pipe_file(f"{tmp_path}/x", DATA)

    Last()
    gc.collect()
    assert vault.judge(f"{tmp_path}/x") == DATA


AT_EXIT = """
import sys, pyarrow as pa, pyarrow.parquet as pq
from modcrypt.ags1.filesystem import Ags1FileSystem
files, table = Ags1FileSystem(key=bytes(16)), pa.table({"a": range(1000)})
raw, text = files.open(sys.argv[1] + "/raw", "wb"), files.open(sys.argv[1] + "/text", "w")
raw.write(b"raw"), text.write("text")
parquet = pq.ParquetWriter(sys.argv[1] + "/parquet", table.schema, filesystem=files)
parquet.write_table(table)
print("written")
"""


def test_files_that_are_open_when_the_interpreter_ends_leave_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "ignore", "-c", AT_EXIT, str(tmp_path)]
    run = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert run.stdout == "written\n"
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("remove", ["rm", "rm_file"])
@pytest.mark.parametrize("existing", [False, True])
def test_removing_a_file_that_is_being_written_abandons_it(
    remove: str, existing: bool, tmp_path: Path, vault: Vault
) -> None:
    """A failed COPY of DuckDB asks for the file and removes it before another thread closes it."""
    filesystem, path = make_filesystem(**vault.new), f"{tmp_path}/x"
    if existing:
        filesystem.pipe_file(path, b"before")
    vault.clear()
    file = filesystem.open(path, "wb")
    file.write(DATA)
    assert filesystem.isfile(f"ags1://{path}")
    getattr(filesystem, remove)(f"ags1://{path}")
    assert not filesystem.isfile(path)
    file.close()
    assert os.listdir(tmp_path) == []
    assert not vault


def test_a_file_that_is_written_by_others_is_none_of_ours(tmp_path: Path, vault: Vault) -> None:
    path = f"{tmp_path}/x"
    with make_filesystem(**vault.new).open(path, "wb") as file:
        assert not make_filesystem(**vault.new).isfile(path)
        with pytest.raises(FileNotFoundError):
            make_filesystem(**vault.new).rm_file(path)
        file.write(DATA)
    assert vault.judge(path) == DATA


def test_a_writer_is_abandoned_by_one_thread_while_another_writes(tmp_path: Path) -> None:
    """The descriptor is not closed under the hands of the one that writes."""
    filesystem = make_filesystem(key=FOOTER_KEY)
    for _ in range(20):
        file = filesystem.open(f"{tmp_path}/x", "wb")
        begun = threading.Event()

        def write(file: Any = file, begun: threading.Event = begun) -> None:
            with suppress(ValueError):  # once it is closed
                for _ in range(100):
                    file.write(DATA)
                    begun.set()

        thread = threading.Thread(target=write)
        thread.start()
        begun.wait()
        filesystem.rm_file(f"{tmp_path}/x")
        thread.join()
        file.close()
        assert os.listdir(tmp_path) == []


def test_nothing_is_there_before_close_and_all_after(tmp_path: Path, vault: Vault) -> None:
    file = make_filesystem(**vault.new).open(f"{tmp_path}/x", "wb")
    file.write(DATA)
    file.flush()
    assert not (tmp_path / "x").exists()
    assert not vault
    file.close()
    assert vault.judge(f"{tmp_path}/x") == DATA
    assert vault[f"{tmp_path}/x"].file_length == (tmp_path / "x").stat().st_size
    vault.clear()
    file.close()
    assert not vault  # said once


def test_what_on_written_raises_comes_out_of_close(tmp_path: Path) -> None:
    def refuse(path: str, metadata: mc.ags1.StandardKeyMetadata) -> None:
        raise BrokenError

    with pytest.raises(BrokenError):
        make_filesystem(key=FOOTER_KEY, on_written=refuse).pipe_file(f"{tmp_path}/x", DATA)
    assert verify((tmp_path / "x").read_bytes(), FOOTER_KEY, None, None) == DATA


def test_an_existing_file_is_replaced_unless_exclusively_opened(
    sealed_path: str, vault: Vault
) -> None:
    filesystem = make_filesystem(**vault.new)
    for _ in range(2):
        with pytest.raises(FileExistsError):
            filesystem.open(sealed_path, "xb")
        with pytest.raises(FileExistsError):
            filesystem.pipe_file(sealed_path, b"new", mode="create")
        assert vault.judge(sealed_path) == DATA
    filesystem.pipe_file(sealed_path, b"new")
    assert vault.judge(sealed_path) == b"new"
    with fsspec.open(f"ags1://{sealed_path}-2", "xb", **vault.new) as file:
        file.write(b"exclusive")
    assert vault.judge(f"{sealed_path}-2") == b"exclusive"


def test_metadata_of_a_written_file_is_not_written_with_again(
    sealed_path: str, vault: Vault
) -> None:
    before = Path(sealed_path).read_bytes()
    with pytest.raises(ValueError, match="generate fresh metadata"):
        make_filesystem(**vault.old).open(sealed_path, "wb")
    assert Path(sealed_path).read_bytes() == before


# --- reading -------------------------------------------------------------------------------------


def test_all_of_fsspecs_ways_to_read_give_the_same_bytes(
    sealed_path: str, tmp_path: Path, vault: Vault
) -> None:
    filesystem = make_filesystem(**vault.old)
    with filesystem.open(sealed_path) as file:
        assert file.size == len(DATA) == file.seek(0, os.SEEK_END)
        assert file.read_at(5, 10) == DATA[5:15]
    assert filesystem.cat_file(sealed_path) == DATA
    assert filesystem.cat_file(sealed_path, 4090, 9000) == DATA[4090:9000]
    assert filesystem.cat_file(sealed_path, -100, -3) == DATA[-100:-3]
    assert filesystem.cat_file(sealed_path, len(DATA) + 5, len(DATA) + 9) == b""
    assert filesystem.cat_ranges([sealed_path] * 2, [0, 4095], [4, 9999]) == [
        DATA[:4],
        DATA[4095:9999],
    ]
    assert filesystem.cat([sealed_path]) == {sealed_path: DATA}
    assert filesystem.head(sealed_path, 50) == DATA[:50]
    assert filesystem.tail(sealed_path, 50) == DATA[-50:]
    assert filesystem.read_block(sealed_path, 100, 5000) == DATA[100:5100]
    assert filesystem.get_mapper(str(tmp_path))["sealed"] == DATA
    filesystem.get(str(tmp_path), f"{tmp_path}/copy", recursive=True)
    assert (tmp_path / "copy/sealed").read_bytes() == DATA
    out = io.BytesIO()
    filesystem.get_file(sealed_path, out)
    assert out.getvalue() == DATA


def test_a_part_of_a_file_is_read_by_the_blocks_it_touches(
    sealed_path: str, vault: Vault, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[tuple[int, int]] = []
    watch_reads(monkeypatch, lambda offset, length: read.append((offset, length)))
    frame = 4096 + 28
    filesystem = make_filesystem(**vault.old)
    assert filesystem.cat_file(sealed_path, 5000, 12_000) == DATA[5000:12_000]
    assert read == [(0, 8), (8 + frame, 2 * frame)]
    read.clear()
    with filesystem.open(
        sealed_path, block_size=1 << 24, cache_type="all", cache_options={}
    ) as file:
        assert read == [(0, 8)]
        file.seek(4096 * 20 + 7)
        assert file.read(10) == DATA[4096 * 20 + 7 :][:10]
    assert read[1:] == [(8 + 20 * frame, frame)]
    read.clear()
    assert filesystem.size(sealed_path) == len(DATA)
    assert read == [(0, 8)]


def damage(data: bytes, how: str) -> bytes:
    frame = 4096 + 28
    return {
        "altered": data[:9000] + bytes([data[9000] ^ 1]) + data[9001:],
        "without its last block": data[: 8 + len(data) // frame * frame],
        "with a byte more": data + b"\0",
        "cut within a block": data[:-5],
    }[how]


@pytest.mark.parametrize(
    ("how", "error"),
    [
        ("altered", mc.errors.TagMismatchError),
        ("without its last block", mc.errors.TruncationError),
        ("with a byte more", mc.errors.TruncationError),
        ("cut within a block", mc.errors.TruncationError),
    ],
)
def test_nothing_of_a_damaged_file_is_copied(
    how: str, error: type[Exception], sealed_path: str, tmp_path: Path, vault: Vault
) -> None:
    Path(sealed_path).write_bytes(damage(Path(sealed_path).read_bytes(), how))
    filesystem = make_filesystem(**vault.old)
    for read in (filesystem.cat_file, lambda path: filesystem.get_file(path, f"{tmp_path}/copy")):
        with pytest.raises(error):
            read(sealed_path)
    assert os.listdir(tmp_path) == ["sealed"]


# --- the rest of a file system -------------------------------------------------------------------


def test_files_are_put_piped_and_touched_encrypted(tmp_path: Path, vault: Vault) -> None:
    (tmp_path / "plain/below").mkdir(parents=True)
    (tmp_path / "plain/one").write_bytes(DATA)
    (tmp_path / "plain/below/two").write_bytes(DATA[:10])
    filesystem = make_filesystem(**vault.new)
    filesystem.put(f"{tmp_path}/plain", f"{tmp_path}/sealed/", recursive=True)
    assert vault.judge(f"{tmp_path}/sealed/plain/one") == DATA
    assert vault.judge(f"{tmp_path}/sealed/plain/below/two") == DATA[:10]
    filesystem.put_file(f"{tmp_path}/plain/one", f"{tmp_path}/new/folder/one")
    assert vault.judge(f"{tmp_path}/new/folder/one") == DATA
    filesystem.pipe({f"{tmp_path}/p1": b"1", f"ags1://{tmp_path}/p2": b"2"})
    assert vault.judge(f"{tmp_path}/p1") + vault.judge(f"{tmp_path}/p2") == b"12"
    filesystem.touch(f"{tmp_path}/empty")
    assert vault.judge(f"{tmp_path}/empty") == b""
    filesystem.write_text(f"{tmp_path}/text", "Fuß", encoding="latin-1")
    assert vault.judge(f"{tmp_path}/text") == b"Fu\xdf"
    assert make_filesystem(**vault.old).read_text(f"{tmp_path}/text", encoding="latin-1") == "Fuß"
    filesystem.get_mapper(f"{tmp_path}/map")["a"] = DATA
    assert vault.judge(f"{tmp_path}/map/a") == DATA


@pytest.mark.parametrize("behind", ["file", "memory"])
def test_what_needs_no_key_leaves_the_bytes_as_they_are(
    behind: str, sealed_path: str, tmp_path: Path, memory: Any
) -> None:
    asked: list[str] = []
    inner = fsspec.filesystem(behind)
    folder = "/data" if behind == "memory" else f"{tmp_path}/data"
    bytes_of = Path(sealed_path).read_bytes()
    filesystem = make_filesystem(key=asked.append, fs=inner)
    filesystem.makedirs(f"ags1://{folder}/a/b", exist_ok=True)
    inner.pipe_file(f"{folder}/a/x", bytes_of)
    before = inner.info(f"{folder}/a/x")
    filesystem.mv(f"{folder}/a/x", f"ags1://{folder}/a/y")
    assert inner.info(f"{folder}/a/y").get("ino") == before.get("ino")  # renamed
    filesystem.cp(f"{folder}/a/y", f"{folder}/z")
    filesystem.cp_file(f"{folder}/a/y", f"{folder}/a/b/one")
    filesystem.cp(f"{folder}/a", f"{folder}/c/", recursive=True)
    found = inner.find(folder)
    below = ["a/b/one", "a/y", "c/a/b/one", "c/a/y", "z"]
    assert found == [f"{folder}/{name}" for name in below]
    assert [inner.cat_file(path) for path in found] == [bytes_of] * 5
    filesystem.rm_file(f"{folder}/z")
    filesystem.rm([f"{folder}/c/a/y", f"{folder}/a/y"])
    filesystem.rm(f"{folder}/c", recursive=True)
    filesystem.mkdir(f"{folder}/d")
    filesystem.rmdir(f"ags1://{folder}/d")
    left = inner.find(folder, withdirs=True)
    assert left == [folder, f"{folder}/a", f"{folder}/a/b", f"{folder}/a/b/one"]
    assert asked == []


# --- keys ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "key",
    [
        FOOTER,
        bytearray(FOOTER),
        mc.Key(COLUMN),
        mc.ags1.StandardKeyMetadata(key=FOOTER, aad_prefix=b"Vq*zjx7w-kmnp"),
    ],
    ids=["bytes", "bytearray", "key", "metadata"],
)
def test_nothing_that_is_shown_stored_or_hashed_has_a_key_in_it(key: Any, tmp_path: Path) -> None:
    url = f"ags1::file://{tmp_path}/x"
    filesystem, path = fsspec.url_to_fs(url, key=key)
    tokens = {fsspec.url_to_fs(url, key=other)[0]._fs_token_ for other in (key, OTHER_KEY)}
    assert len(tokens) == 1  # fsspec's own hash does not depend on the key
    filesystem.pipe_file(path, DATA)
    reading = make_filesystem(key=key, length=mc.ags1.UNVERIFIED)
    with reading.open(path) as file, filesystem.open(f"{path}2", "wb") as other:
        shown = [repr(file), repr(other), str(vars(other))]
    shown += [repr(filesystem), str(vars(filesystem)), str(filesystem.storage_options)]
    shown += [str(filesystem.storage_args), filesystem._fs_token, tokenize(filesystem)]
    shown += [repr(fsspec.open(url, key=key)), str(filesystem.to_dict()), filesystem.to_json()]
    for store in (filesystem, fsspec.open(url, key=key)):
        with pytest.raises(TypeError, match="a Key can't be pickled") as caught:
            pickle.dumps(store)
        shown.append(str(caught.value))
    assert not [leak for text in shown for leak in leaks(text)]


@pytest.mark.parametrize("before", ["simplecache", "blockcache", "filecache"])
def test_a_protocol_before_it_shows_and_pickles_no_key(before: str, tmp_path: Path) -> None:
    """fsspec keeps the options of the whole chain in the first file system."""
    url = f"{before}::ags1::file://{tmp_path}/x"
    options = {"ags1": {"key": mc.Key(FOOTER), "length": mc.ags1.UNVERIFIED}}
    filesystem, opened = fsspec.url_to_fs(url, **options)[0], fsspec.open(url, **options)
    shown = [repr(filesystem), str(vars(filesystem)), str(filesystem.storage_options), repr(opened)]
    for ask in (
        lambda: pickle.dumps(filesystem),
        lambda: pickle.dumps(opened),
        filesystem.to_json,
        filesystem.to_dict,
    ):
        try:
            shown.append(repr(ask()))
        except TypeError as error:
            shown.append(str(error))
    assert not [leak for text in shown for leak in leaks(text)]


def test_a_cache_in_front_keeps_file_systems_of_different_keys_apart(tmp_path: Path) -> None:
    """fsspec finds the file systems it has made by the repr of their options."""
    url = f"simplecache::ags1::file://{tmp_path}/x"
    first, second, again = (
        fsspec.url_to_fs(url, ags1={"key": mc.Key(value), "length": mc.ags1.UNVERIFIED})[0]
        for value in (FOOTER, OTHER_KEY, FOOTER)
    )
    assert first is again
    assert first is not second


def read_by_duckdb(url: str, how: dict[str, Any]) -> object:
    connection = duckdb.connect()
    connection.register_filesystem(make_filesystem(**how))
    return connection.sql(f"FROM read_csv('{url}')")


READS: dict[str, Callable[[str, dict[str, Any]], object]] = {
    "read_csv": lambda url, how: pd.read_csv(url, storage_options=how),
    "read_parquet": lambda url, how: pd.read_parquet(url, storage_options=how),
    "open": lambda url, how: fsspec.open(url, **how).open(),
    "DuckDB": read_by_duckdb,
}


@pytest.mark.parametrize("fail", READS.values(), ids=READS)
def test_no_error_of_others_carries_the_key(fail: Any, tmp_path: Path) -> None:
    with pytest.raises(Exception) as caught:  # noqa: PT011
        fail(f"ags1://{tmp_path}/missing", {"key": mc.Key(FOOTER), "length": mc.ags1.UNVERIFIED})
    assert find_secrets(caught.value, FOOTER) == []


def test_with_a_function_that_can_be_imported_it_pickles(tmp_path: Path) -> None:
    filesystem = make_filesystem(key=give_key, length=mc.ags1.UNVERIFIED)
    copy = pickle.loads(pickle.dumps(filesystem))
    assert copy != filesystem
    copy.pipe_file(f"{tmp_path}/x", DATA)
    kept = (tmp_path / "x").read_bytes()
    assert verify(kept, OTHER_KEY, b"of every path", None) == DATA
    assert filesystem.cat_file(f"{tmp_path}/x") == DATA
    opened = pickle.loads(pickle.dumps(fsspec.open(f"ags1://{tmp_path}/x", key=give_key)))
    with pytest.raises(TypeError, match="length=UNVERIFIED"):
        opened.open()


# --- judged by others: tables --------------------------------------------------------------------

FRAME = pd.DataFrame({"a": range(3000), "b": [f"text {n}" for n in range(3000)]})
WAYS: dict[str, tuple[Callable[..., None], Callable[..., pd.DataFrame], Callable[..., Any]]] = {
    "csv": (partial(FRAME.to_csv, index=False), pd.read_csv, pd.read_csv),
    "csv.gz": (
        partial(FRAME.to_csv, index=False, compression="gzip"),
        partial(pd.read_csv, compression="gzip"),
        partial(pd.read_csv, compression="gzip"),
    ),
    "json": (FRAME.to_json, pd.read_json, pd.read_json),
    "pickle": (FRAME.to_pickle, pd.read_pickle, pd.read_pickle),
    "parquet": (FRAME.to_parquet, pd.read_parquet, pd.read_parquet),
}


@pytest.mark.parametrize("name", WAYS)
def test_pandas_writes_and_reads_by_url(name: str, tmp_path: Path, vault: Vault) -> None:
    write, read, read_plain = WAYS[name]
    url = f"ags1::file://{tmp_path}/frame.{name}"
    write(url, storage_options=vault.new)
    plain = vault.judge(f"{tmp_path}/frame.{name}")
    pd.testing.assert_frame_equal(read_plain(io.BytesIO(plain)), FRAME)
    pd.testing.assert_frame_equal(read(url, storage_options=vault.old), FRAME)


def test_pandas_says_that_access_is_denied(tmp_path: Path) -> None:
    """It tries again with `anon` among the options, as if this were S3."""

    def key(path: str) -> bytes:
        raise PermissionError("the KMS refuses")

    with pytest.raises(PermissionError, match="the KMS refuses"):
        pd.read_csv(f"ags1://{tmp_path}/x", storage_options={"key": key})


def test_pyarrow_writes_and_reads_through_it(tmp_path: Path, vault: Vault) -> None:
    table = pa.table({name: FRAME[name].to_list() for name in FRAME})
    writing = pyarrow.fs.PyFileSystem(pyarrow.fs.FSSpecHandler(make_filesystem(**vault.new)))
    reading = pyarrow.fs.PyFileSystem(pyarrow.fs.FSSpecHandler(make_filesystem(**vault.old)))
    path = f"{tmp_path}/table.csv"
    with writing.open_output_stream(path) as stream:
        pyarrow.csv.write_csv(table, stream)
    assert pyarrow.csv.read_csv(io.BytesIO(vault.judge(path))).equals(table)
    with reading.open_input_stream(path) as stream:
        assert pyarrow.csv.read_csv(stream).equals(table)
    with reading.open_input_file(path) as file:
        assert (
            file.size()
            == reading.get_file_info([path])[0].size
            == make_filesystem(**vault.old).size(path)
        )
        assert file.read_at(5, 4094) == vault.judge(path)[4094:4099]
    with (
        make_filesystem(**vault.old).open(path) as reader,
        pa.PythonFile(reader, "r") as python_file,
    ):
        python_file.seek(100)
        assert python_file.read(9000) == vault.judge(path)[100:9100]
    with make_filesystem(**vault.old).open(path) as reader:
        assert pyarrow.csv.read_csv(reader).equals(table)
    ds.write_dataset(table, f"{tmp_path}/set", format="csv", filesystem=writing)
    vault.judge(f"{tmp_path}/set/part-0.csv")
    assert ds.dataset(f"{tmp_path}/set", format="csv", filesystem=reading).to_table().equals(table)
    pyarrow.fs.copy_files(path, f"{tmp_path}/2.csv", reading, writing)
    assert vault.judge(f"{tmp_path}/2.csv") == vault.judge(path)
    with pytest.raises(ValueError, match="'ab'"):
        writing.open_append_stream(path)


def test_polars_reads_the_file_object(tmp_path: Path, vault: Vault) -> None:
    filesystem, reading = make_filesystem(**vault.new), make_filesystem(**vault.old)
    frame = pl.from_pandas(FRAME)
    for name, write, read in (
        ("csv", frame.write_csv, pl.read_csv),
        ("parquet", frame.write_parquet, pl.read_parquet),
        ("json", frame.write_ndjson, pl.read_ndjson),
    ):
        path = f"{tmp_path}/frame.{name}"
        with filesystem.open(path, "wb") as file:
            write(file)
        assert read(io.BytesIO(vault.judge(path))).equals(frame)
        with reading.open(path) as file:
            assert read(file).equals(frame)


@pytest.mark.parametrize("form", ["csv", "parquet", "json"])
def test_duckdb_writes_and_reads_by_url(form: str, tmp_path: Path, vault: Vault) -> None:
    query = "select range a, 'text ' || range b from range(3000)"
    path = f"{tmp_path}/table.{form}"
    # A connection for each, because DuckDB keeps the file systems that it was given.
    with closing(duckdb.connect()) as connection:
        connection.register_filesystem(make_filesystem(**vault.new))
        connection.execute(f"copy ({query}) to 'ags1://{path}' (format {form})")
        with pytest.raises(duckdb.Error, match="broken"):
            connection.execute(
                f"copy (select if(a < 2999, b, error('broken')) from ({query})) "
                f"to 'ags1://{tmp_path}/broken.{form}' (format {form})"
            )
    with closing(duckdb.connect()) as connection:
        connection.register_filesystem(make_filesystem(**vault.old))
        rows = connection.execute(f"select * from 'ags1://{path}' order by a").fetchall()
        assert rows == connection.execute(query).fetchall()
    assert os.listdir(tmp_path) == [f"table.{form}"]
    plain = tmp_path / f"plain.{form}"
    plain.write_bytes(vault.judge(path))
    assert duckdb.execute(f"select * from '{plain}' order by a").fetchall() == rows


# --- judged by others: Avro ----------------------------------------------------------------------

SCHEMA = {
    "type": "record",
    "name": "row",
    "fields": [{"name": "id", "type": "long"}, {"name": "text", "type": ["null", "string"]}],
}
RECORDS = [{"id": n, "text": None if n % 7 == 0 else f"text {n}"} for n in range(5000)]


def test_fastavro_writes_and_reads_by_url(tmp_path: Path, vault: Vault) -> None:
    url = f"ags1::file://{tmp_path}/rows.avro"
    with fsspec.open(url, "wb", **vault.new) as file:
        fastavro.writer(file, SCHEMA, RECORDS, codec="deflate", sync_interval=5000)
    assert list(fastavro.reader(io.BytesIO(vault.judge(f"{tmp_path}/rows.avro")))) == RECORDS
    with fsspec.open(url, **vault.old) as file:
        assert list(fastavro.reader(file)) == RECORDS
