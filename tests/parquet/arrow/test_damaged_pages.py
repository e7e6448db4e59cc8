"""Pages that are authentic, or not encrypted, and damaged: PyArrow's errors become modcrypt's."""

from __future__ import annotations

import errno
import io
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

import modcrypt as mc
from modcrypt.parquet.arrow.decoding import DECODER, is_fault_of_bytes
from modcrypt.parquet.format.idl import decode, encode
from tests.support import forging
from tests.support.cases import each_case, one_in
from tests.support.keys import FOOTER_KEY
from tests.support.randomness import SEED, dice, examples

KEYS = mc.FileDecryptionProperties(footer_key=FOOTER_KEY)
SECRET = "a-value-that-no-message-holds"
TABLE = pa.table(
    {
        "sec": ["s"] * 200,
        "pub": [f"{SECRET}-{i}" for i in range(200)],
        "num": list(range(200)),
        "tags": [[f"{i}"] * (i % 3) for i in range(200)],
    }
)
PLAIN = mc.FileEncryptionProperties(footer_key=FOOTER_KEY, plaintext_columns=["pub", "num", "tags"])

READS: dict[str, Callable[[bytes], Any]] = {
    "read_table": lambda data: mc.read_table(data, KEYS),
    "iter_batches": lambda data: sum(b.num_rows for b in mc.iter_batches(data, KEYS)),
    "limit": lambda data: list(mc.iter_batches(data, KEYS, limit=3)),
    "filter": lambda data: mc.read_table(data, KEYS, filters=[("num", ">", 150)]),
    "mask": lambda data: mc.mask_parquet(
        data, io.BytesIO(), KEYS, hashed=["pub"], hash_key=b"0" * 15 + b"1"
    ),
}


def write_file(**options: Any) -> bytes:
    out = io.BytesIO()
    mc.write_table(TABLE, out, PLAIN, **options)
    return out.getvalue()


def pages_of(data: bytes, column: int) -> tuple[int, int]:
    md = forging.open_file(data, FOOTER_KEY).metadata.row_groups[0].columns[column].meta_data
    start = md.dictionary_page_offset or md.data_page_offset
    return start, md.total_compressed_size


@pytest.mark.seeded
@each_case("codec", ["none", "snappy", "gzip", "zstd", "brotli", "lz4"], quick=one_in(2))
@each_case("version", ["1.0", "2.0"])
def test_nothing_but_errors_of_modcrypt_comes_out(codec: str, version: str) -> None:
    data = write_file(compression=codec, data_page_version=version, write_page_index=True)
    outcomes: Counter[str] = Counter()
    errors: list[mc.ModcryptError] = []
    for column in range(1, 4):
        start, size = pages_of(data, column)
        for seed in range(examples(80)):
            rng = dice(seed)
            damaged = bytearray(data)
            for _ in range(rng.choice((1, 2, 8))):
                damaged[start + rng.randrange(size)] = rng.randrange(256)
            name = rng.choice(list(READS))
            try:
                READS[name](bytes(damaged))
                outcomes["read"] += 1  # plaintext columns are not authenticated
            except mc.ModcryptError as error:
                outcomes["refused"] += 1
                errors.append(error)
    assert not any(SECRET in str(error) or error.__cause__ for error in errors)
    assert min(outcomes["read"], outcomes["refused"]) > (5 if SEED is None else 2)


@pytest.mark.parametrize("read", [name for name in READS if name != "mask"])
def test_the_column_and_the_file_are_named(tmp_path: Path, read: str) -> None:
    data = bytearray(write_file(compression="none", use_dictionary=False))
    start, size = pages_of(bytes(data), 2)
    _, header = decode("PageHeader", bytes(data[start : start + size]))
    data[start + header : start + size] = b"\xff" * (size - header)
    path = tmp_path / "damaged.parquet"
    path.write_bytes(data)
    with pytest.raises(
        mc.errors.FormatError, match=r"damaged\.parquet: column num: PyArrow"
    ) as caught:
        READS[read](path)  # type: ignore[arg-type]
    assert caught.value.__suppress_context__


def test_a_damaged_column_of_a_dataset_is_named(tmp_path: Path) -> None:
    data = bytearray(write_file(compression="none", use_dictionary=False))
    (tmp_path / "lake").mkdir()
    (tmp_path / "lake" / "good.parquet").write_bytes(data)
    start, size = pages_of(bytes(data), 2)
    _, header = decode("PageHeader", bytes(data[start : start + size]))
    data[start + header : start + size] = b"\xff" * (size - header)
    (tmp_path / "lake" / "part.parquet").write_bytes(data)
    with pytest.raises(mc.errors.FormatError, match=r"part\.parquet: column num"):
        mc.read_table(tmp_path / "lake", KEYS)


def test_a_column_with_too_few_rows_is_an_error() -> None:
    data = bytearray(write_file(compression="none", use_dictionary=False))
    start, size = pages_of(bytes(data), 2)
    header, end = decode("PageHeader", bytes(data[start : start + size]))
    header.data_page_header.num_values = 199
    changed = encode(header)
    assert len(changed) == end
    data[start : start + end] = changed
    for read in ("read_table", "iter_batches"):
        with pytest.raises(mc.errors.FormatError):
            READS[read](bytes(data))
    with pytest.raises(
        mc.errors.FormatError, match=f"column num: {DECODER} decoded 199 of 200 rows"
    ):
        mc.read_table(bytes(data), KEYS, columns=["num"])


def test_a_schema_that_pyarrow_refuses_is_a_format_error() -> None:
    def with_more_orders(metadata: Any) -> None:
        metadata.column_orders = metadata.column_orders * 2

    data = forging.change_footer(write_file(), FOOTER_KEY, with_more_orders)
    with pytest.raises(mc.errors.FormatError, match=f"{DECODER} cannot decode its schema"):
        mc.read_table(data, KEYS)
    with (
        mc.ParquetFile(data, KEYS) as file,
        pytest.raises(mc.errors.FormatError, match="its schema"),
    ):
        file.schema_arrow  # noqa: B018


def test_mistakes_of_the_caller_stay_what_they_are() -> None:
    data = write_file()
    for wrong in (ds.field("num") == "text", ds.field("sec") > 1):
        for read in (mc.read_table, lambda *a, **k: list(mc.iter_batches(*a, **k))):
            with pytest.raises(pa.ArrowException) as caught:
                read(data, KEYS, filters=wrong)
            assert not isinstance(caught.value, mc.ModcryptError)


@each_case(
    ("error", "is_fault"),
    [
        (pa.ArrowInvalid("x"), True),
        (pa.ArrowNotImplementedError("x"), True),
        (pa.ArrowMemoryError("x"), True),
        (OSError("Unexpected end of stream"), True),
        (OSError(errno.EIO, "disk"), False),
        (FileNotFoundError(errno.ENOENT, "gone"), False),
        (OverflowError(), True),
        (UnicodeDecodeError("utf-8", b"", 0, 1, "x"), True),
        (pa.ArrowCancelled("x"), False),
        (mc.errors.FormatError("x"), False),
        (ValueError("x"), False),
        (TypeError("x"), False),
    ],
)
def test_which_errors_come_from_bytes(error: Exception, is_fault: bool) -> None:
    assert is_fault_of_bytes(error) == is_fault
