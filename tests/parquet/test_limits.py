"""Ordinals at their borders, keys at the end of their seals, and memory on a large file."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as pe
import pytest

from modcrypt import (
    FileDecryptionProperties,
    FileEncryptionProperties,
    Key,
    encrypt_parquet,
    verify_parquet,
)
from modcrypt.errors import KeyExhaustedError, LimitError
from modcrypt.keys import invocation_counter
from modcrypt.keys.invocations import INVOCATION_LIMIT
from modcrypt.parquet import ModuleType
from modcrypt.parquet.format.idl import ThriftStruct, decode, encode, new, set_fields
from tests.support import forging
from tests.support.cases import each_case
from tests.support.forging import decrypt_bytes, encrypt_bytes, plain_file
from tests.support.keys import FOOTER_KEY
from tests.support.module_spans import list_modules
from tests.support.tables import read_with_pyarrow

WRITER = FileEncryptionProperties(footer_key=FOOTER_KEY)
READER = FileDecryptionProperties(footer_key=FOOTER_KEY)

INT16_VALUES = 2**15
"""Ordinals are int16 in the AAD and not negative (PME 4.4.2): 0 to 32767."""

# --- pages ----------------------------------------------------------------------------------------


def many_pages(count: int, *, counted: bool) -> bytes:
    """Repeat a one-value data page; `counted` leaves the writer's encoding_stats in the footer."""
    base = plain_file(
        pa.table({"a": pa.array([7], pa.int32())}),
        use_dictionary=False,
        compression="none",
        write_statistics=False,
        store_schema=False,
    )
    body, tail, magic = forging.split_tail(base)
    metadata, _ = decode("FileMetaData", tail)
    row_group = metadata.row_groups[0]
    md = row_group.columns[0].meta_data
    page = body[4:]
    for owner, name in (
        (metadata, "num_rows"), (row_group, "num_rows"), (md, "num_values"),
        (row_group, "total_byte_size"), (row_group, "total_compressed_size"),
        (md, "total_uncompressed_size"), (md, "total_compressed_size"),
    ):  # fmt: skip
        setattr(owner, name, getattr(owner, name) * count)
    (stats,) = [item for item in md.encoding_stats if item.page_type == 0]
    stats.count = count
    if not counted:
        md.encoding_stats = None
    return forging.join_tail(magic + page * count, encode(metadata), magic)


@pytest.fixture(scope="module")
def all_pages() -> bytes:
    return many_pages(INT16_VALUES, counted=True)


@pytest.mark.slow  # a file of as many parts as can be numbered takes seconds
def test_as_many_pages_as_ordinals_go_both_ways(all_pages: bytes, tmp_path: Path) -> None:
    path = tmp_path / "encrypted.parquet"
    encrypt_parquet(all_pages, path, WRITER)
    assert read_with_pyarrow(path, FOOTER_KEY).column("a").to_pylist() == [7] * INT16_VALUES
    assert decrypt_bytes(path.read_bytes(), READER) == all_pages
    pages = [span.module.page for span in list_modules(path, READER) if span.module.page]
    assert max(pages) == INT16_VALUES - 1


@pytest.mark.parametrize("counted", [True, False])
def test_one_page_more_is_refused_and_leaves_nothing(counted: bool, tmp_path: Path) -> None:
    with pytest.raises(LimitError, match="at most 32768 data pages"):
        encrypt_parquet(
            many_pages(INT16_VALUES + 1, counted=counted), tmp_path / "out.parquet", WRITER
        )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", [0, 3])
def test_too_many_counted_pages_are_refused_before_anything_is_written(kind: int) -> None:
    class Untouched:
        def write(self, data: bytes) -> int:
            raise AssertionError("something was written")

    def change(metadata: ThriftStruct) -> None:
        md = metadata.row_groups[0].columns[0].meta_data
        md.encoding_stats = [
            new("PageEncodingStats", page_type=kind, encoding=0, count=INT16_VALUES),
            new("PageEncodingStats", page_type=0, encoding=3, count=1),
        ]

    data = forging.edit_plain(plain_file(pa.table({"a": [1]})), change)
    sink: Any = Untouched()
    with pytest.raises(LimitError, match="32769 data pages"):
        encrypt_parquet(data, sink, WRITER)


def test_a_dictionary_page_does_not_count(tmp_path: Path) -> None:
    """32768 data pages and a dictionary: the dictionary has no ordinal."""

    def change(metadata: ThriftStruct) -> None:
        md = metadata.row_groups[0].columns[0].meta_data
        md.encoding_stats = [
            new("PageEncodingStats", page_type=2, encoding=0, count=1),
            new("PageEncodingStats", page_type=0, encoding=8, count=INT16_VALUES),
        ]

    data = forging.edit_plain(plain_file(pa.table({"a": [1]})), change)
    encrypt_parquet(data, tmp_path / "out.parquet", WRITER)


def test_a_plaintext_column_may_have_more_pages(tmp_path: Path) -> None:
    """Nothing of it is sealed, so nothing of it needs an ordinal."""
    data = many_pages(INT16_VALUES + 1, counted=True)
    writer = FileEncryptionProperties(footer_key=FOOTER_KEY, plaintext_columns=["a"])
    assert decrypt_bytes(encrypt_bytes(data, writer), READER) == data


def test_a_sealed_page_with_an_ordinal_too_many_is_refused(all_pages: bytes) -> None:
    """A 32769th page behind the lock: no AAD can number it."""
    sealed = encrypt_bytes(all_pages, WRITER)
    file = forging.open_file(sealed, FOOTER_KEY)
    last = list_modules(sealed, READER)[-3:-1]
    file.body += sealed[last[0].start : last[1].end]
    md = file.metadata.row_groups[0].columns[0].meta_data
    md.total_compressed_size += last[1].end - last[0].start
    with pytest.raises(LimitError, match="at most 32768 data pages"):
        decrypt_bytes(file.seal_footer(FOOTER_KEY), READER)


# --- row groups and columns -----------------------------------------------------------------------


def one_value(name: str) -> tuple[bytes, ThriftStruct]:
    """Return the only page and the footer of a file of one value, without statistics."""
    data = plain_file(
        pa.table({name: pa.array([7], pa.int32())}),
        use_dictionary=False,
        compression="none",
        write_statistics=False,
        store_schema=False,
    )
    metadata = forging.read_plain_footer(data)
    md = metadata.row_groups[0].columns[0].meta_data
    md.encoding_stats = md.size_statistics = None
    return forging.split_tail(data)[0][4:], metadata


def twin(struct: str, value: ThriftStruct, **changed: object) -> ThriftStruct:
    return new(struct, **{**set_fields(value), **changed})


def chunk_at(chunk: ThriftStruct, offset: int, **changed: object) -> ThriftStruct:
    md = twin("ColumnMetaData", chunk.meta_data, data_page_offset=offset, **changed)
    return twin("ColumnChunk", chunk, meta_data=md)


def many_row_groups(count: int) -> bytes:
    """Repeat a row group of one value."""
    page, metadata = one_value("a")
    (row_group,) = metadata.row_groups
    (chunk,) = row_group.columns
    starts = range(4, 4 + count * len(page), len(page))
    metadata.num_rows = count
    metadata.row_groups = [
        twin("RowGroup", row_group, ordinal=None, file_offset=at, columns=[chunk_at(chunk, at)])
        for at in starts
    ]
    return forging.join_tail(b"PAR1" + page * count, encode(metadata), b"PAR1")


def many_columns(count: int) -> bytes:
    """Repeat a column of one value under new names."""
    page, metadata = one_value("c")
    (row_group,) = metadata.row_groups
    (chunk,), (root, leaf) = row_group.columns, metadata.schema
    names = [b"c%d" % n for n in range(count)]
    root.num_children = count
    metadata.schema = [root, *(twin("SchemaElement", leaf, name=name) for name in names)]
    metadata.column_orders *= count
    row_group.columns = [
        chunk_at(chunk, 4 + n * len(page), path_in_schema=[name]) for n, name in enumerate(names)
    ]
    row_group.total_byte_size *= count
    row_group.total_compressed_size *= count
    return forging.join_tail(b"PAR1" + page * count, encode(metadata), b"PAR1")


def open_with_pyarrow(path: Path) -> pq.ParquetFile:
    properties = pe.create_decryption_properties(footer_key=FOOTER_KEY)
    return pq.ParquetFile(path, decryption_properties=properties)


@pytest.mark.slow  # as above
def test_as_many_row_groups_as_ordinals_go_both_ways(tmp_path: Path) -> None:
    path = tmp_path / "encrypted.parquet"
    data = many_row_groups(INT16_VALUES)
    encrypt_parquet(data, path, WRITER)
    with open_with_pyarrow(path) as file:
        assert file.metadata.num_row_groups == INT16_VALUES
        assert file.read_row_group(INT16_VALUES - 1).to_pydict() == {"a": [7]}
    assert decrypt_bytes(path.read_bytes(), READER) == data
    assert verify_parquet(path, READER).ok


def test_one_row_group_more_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    data = many_row_groups(INT16_VALUES + 1)
    assert pq.ParquetFile(pa.BufferReader(data)).metadata.num_row_groups == INT16_VALUES + 1
    with pytest.raises(LimitError, match="row groups"):
        encrypt_parquet(data, tmp_path / "out.parquet", WRITER)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow  # as above
def test_as_many_columns_as_ordinals_go_both_ways(tmp_path: Path) -> None:
    path, last = tmp_path / "encrypted.parquet", f"c{INT16_VALUES - 1}"
    data = many_columns(INT16_VALUES)
    encrypt_parquet(data, path, WRITER)
    with open_with_pyarrow(path) as file:
        assert file.read(columns=[last]).to_pydict() == {last: [7]}
    assert decrypt_bytes(path.read_bytes(), READER) == data


def test_one_column_more_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(LimitError, match="32769 columns"):
        encrypt_parquet(many_columns(INT16_VALUES + 1), tmp_path / "out.parquet", WRITER)
    assert list(tmp_path.iterdir()) == []


# --- seals of a key -------------------------------------------------------------------------------


@pytest.fixture
def worn_key() -> Iterator[Key]:
    """Yield a fresh key, whose count of invocations a test may set."""
    key = Key.generate()
    yield key
    invocation_counter(key).count = 0


@each_case("algorithm", ["AES_GCM_V1", "AES_GCM_CTR_V1"])
@each_case("footer", ["sealed", "signed"])
@each_case("use", ["footer key", "column key"])
def test_a_key_that_runs_out_in_the_middle_leaves_nothing(
    algorithm: str, footer: str, use: str, worn_key: Key, tmp_path: Path
) -> None:
    """Every number of seals short of what the file takes, and then exactly enough."""
    data = plain_file(pa.table({"a": [1, 2], "b": ["x", "y"]}), write_page_index=True)
    options: dict[str, Any] = {
        "encryption_algorithm": algorithm,
        "plaintext_footer": footer == "signed",
    }
    if use == "footer key":
        writer = FileEncryptionProperties(footer_key=worn_key, **options)
    else:
        writer = FileEncryptionProperties(
            footer_key=FOOTER_KEY, column_keys={"b": worn_key}, **options
        )
    counter = invocation_counter(worn_key)
    counter.count = 0
    encrypt_bytes(data, writer)
    needed = worn_key.invocations
    destination = tmp_path / "out.parquet"
    for left in range(needed):
        counter.count = INVOCATION_LIMIT - left
        with pytest.raises(KeyExhaustedError, match="2\\*\\*32"):
            encrypt_parquet(data, destination, writer)
        # A page takes two seals or none.
        assert worn_key.invocations in (INVOCATION_LIMIT - 1, INVOCATION_LIMIT)
        assert list(tmp_path.iterdir()) == []
    counter.count = INVOCATION_LIMIT - needed
    encrypt_parquet(data, destination, writer)
    assert destination.exists()


def test_every_module_is_counted_and_nothing_else(worn_key: Key) -> None:
    """SP 800-38D 8.3 limits invocations of a key: in GCM mode there is one for each module."""
    data = plain_file(pa.table({"a": [1, 2], "b": ["x", "y"]}), write_page_index=True)
    sealed = encrypt_bytes(data, FileEncryptionProperties(footer_key=worn_key))
    spans = list_modules(sealed, FileDecryptionProperties(footer_key=worn_key))
    assert spans[-1].module.type is ModuleType.FOOTER
    assert worn_key.invocations == len(spans)


def test_a_worn_key_still_opens(worn_key: Key) -> None:
    data = plain_file(pa.table({"a": [1, 2]}))
    reader = FileDecryptionProperties(footer_key=worn_key)
    for plaintext_footer in (False, True):
        writer = FileEncryptionProperties(footer_key=worn_key, plaintext_footer=plaintext_footer)
        invocation_counter(worn_key).count = 0
        sealed = encrypt_bytes(data, writer)
        invocation_counter(worn_key).count = INVOCATION_LIMIT
        assert decrypt_bytes(sealed, reader) == data


# --- memory ---------------------------------------------------------------------------------------

MOST_MEMORY = 256 << 20
"""Peak of resident memory for a file of any size, in bytes."""

BOTH_WAYS = """
import sys
from modcrypt import *
plain, sealed, again, threads = sys.argv[1:]
key = b"0123456789012345"
encrypt_parquet(plain, sealed, FileEncryptionProperties(footer_key=key), threads=int(threads))
decrypt_parquet(sealed, again, FileDecryptionProperties(footer_key=key), threads=int(threads))
print(*(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


@pytest.fixture(scope="module")
def large_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write 320 MB of random numbers in row groups of 64 MB, pages of 1 MB."""
    path = tmp_path_factory.mktemp("large") / "plain.parquet"
    rng = np.random.default_rng(3)
    schema = pa.schema([("a", pa.int64()), ("b", pa.int64())])
    with pq.ParquetWriter(path, schema, compression="none", use_dictionary=False) as writer:
        for _ in range(5):
            columns = rng.integers(-(2**62), 2**62, (2, 4_000_000))
            writer.write_table(pa.table(dict(zip("ab", columns, strict=True)), schema=schema))
    assert path.stat().st_size > 300_000_000
    return path


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="Linux tells the peak here")
@pytest.mark.parametrize("threads", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_memory_does_not_grow_with_the_file(threads: int, large_file: Path, tmp_path: Path) -> None:
    sealed, again = tmp_path / "sealed.parquet", tmp_path / "again.parquet"
    done = subprocess.run(
        [sys.executable, "-c", BOTH_WAYS, large_file, sealed, again, str(threads)],
        check=True,
        capture_output=True,
        text=True,
    )
    # In KiB. Not ru_maxrss, which a process inherits from the one that started it.
    assert int(done.stdout) << 10 < MOST_MEMORY
    assert sealed.stat().st_size > large_file.stat().st_size
    with large_file.open("rb") as one, again.open("rb") as two:
        while block := one.read(1 << 24):
            assert block == two.read(1 << 24)
        assert not two.read()
    sealed.unlink()
    again.unlink()
