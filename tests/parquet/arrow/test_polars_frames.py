"""Polars frames to encrypted Parquet, held against Polars' own writer."""

from __future__ import annotations

import datetime
import io
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import modcrypt as mc
from modcrypt.parquet.arrow import polars_frames, writer
from modcrypt.parquet.arrow.writer import write_table
from tests.support.keys import COLUMN_KEY, FOOTER_KEY

UNIFORM = mc.FileEncryptionProperties(footer_key=FOOTER_KEY)
READER = mc.FileDecryptionProperties(footer_key=FOOTER_KEY)
NOON = datetime.datetime(2020, 1, 1, 12)


def numbers(rows: int) -> Any:
    return pl.DataFrame({"n": range(rows), "text": [f"row {n}" for n in range(rows)]})


def every_type() -> Any:
    i, s = pl.col("i"), pl.col("s")
    return pl.DataFrame({"i": [1, None, 3], "s": ["a", None, "b"]}).with_columns(
        binary=s.cast(pl.Binary), categorical=s.cast(pl.Categorical), flag=i > 1,
        enum=s.cast(pl.Enum(["b", "a"])), date=pl.lit(NOON.date()), time=pl.lit(NOON.time()),
        duration=pl.lit(datetime.timedelta(days=1)), ns=pl.lit(NOON).cast(pl.Datetime("ns")),
        zoned=pl.lit(NOON).dt.replace_time_zone("Europe/Berlin"), f=i.cast(pl.Float32),
        decimal=i.cast(pl.Decimal(10, 2)), u8=i.cast(pl.UInt8), list=pl.concat_list(i, i),
        array=pl.concat_list(i, i).cast(pl.Array(pl.Int64, 2)), struct=pl.struct(i, s),
        null=pl.lit(None),
    )  # fmt: skip


def write_file(frame: Any, encryption: Any = UNIFORM, **options: Any) -> bytes:
    out = io.BytesIO()
    write_table(frame, out, encryption, **options)
    return out.getvalue()


def read_back(data: bytes, decryption: Any = READER) -> Any:
    view: Any
    with mc.open_parquet(data, decryption) as view:
        return pl.read_parquet(view)


def polars_round_trip(frame: Any) -> Any:
    out = io.BytesIO()
    frame.write_parquet(out)
    return pl.read_parquet(out.getvalue())


def creator(data: bytes) -> str:
    return str(mc.ParquetFile(data, READER).metadata.created_by)


@pytest.mark.parametrize("rows", [3, 0])
def test_every_type_comes_back_as_from_polars_own_file(rows: int) -> None:
    frame = every_type().head(rows)
    back, own = read_back(write_file(frame)), polars_round_trip(frame)
    assert back.schema == own.schema
    assert back.equals(own)


def test_polars_reads_the_file_with_its_own_decryption(tmp_path: Path) -> None:
    keys = {"text": COLUMN_KEY, "n": FOOTER_KEY}
    encryption = mc.FileEncryptionProperties(
        footer_key=FOOTER_KEY, column_keys={"text": COLUMN_KEY}
    )
    write_table(numbers(5000), tmp_path / "a", encryption, row_group_size=1000)
    decryption = pl.ParquetDecryptionProperties(footer_key=FOOTER_KEY, column_keys=keys)
    assert pl.read_parquet(tmp_path / "a", decryption=decryption).equals(numbers(5000))


def test_row_groups_have_polars_size_by_default() -> None:
    frame = pl.DataFrame({"n": range((1 << 18) + 1)})
    metadata = mc.ParquetFile(write_file(frame), READER).metadata
    sizes = [metadata.row_group(r).num_rows for r in range(metadata.num_row_groups)]
    assert sizes == [1 << 18, 1]


@pytest.mark.parametrize("together", [1, 1 << 20])
@pytest.mark.parametrize("threads", [None, 2, 3])
def test_row_groups_have_the_requested_sizes_in_order(
    monkeypatch: pytest.MonkeyPatch, threads: int | None, together: int
) -> None:
    monkeypatch.setattr(polars_frames, "WORTH_A_THREAD", 0)
    monkeypatch.setattr(writer, "ENCODED_TOGETHER", together)
    data = write_file(numbers(2500), row_group_size=300, threads=threads)
    metadata = mc.ParquetFile(data, READER).metadata
    sizes = [metadata.row_group(r).num_rows for r in range(metadata.num_row_groups)]
    assert sizes == [300] * 8 + [100]
    assert read_back(data).equals(numbers(2500))
    assert mc.verify_parquet(data, READER).ok


@pytest.mark.parametrize(
    "options",
    [
        {"compression": "zstd", "compression_level": 3}, {"compression": "LZ4"},
        {"compression": "none"}, {"write_statistics": False}, {"data_page_size": 1000},
    ],
)  # fmt: skip
def test_polars_honours_the_options_that_it_knows(options: dict[str, Any]) -> None:
    data = write_file(numbers(1000), **options)
    assert "Polars" in creator(data)
    column = mc.ParquetFile(data, READER).metadata.row_group(0).column(0)
    codec = options.get("compression", "snappy").upper().replace("NONE", "UNCOMPRESSED")
    assert column.compression == codec
    assert column.is_stats_set == options.get("write_statistics", True)
    assert read_back(data).equals(numbers(1000))


@pytest.mark.parametrize(
    "options",
    [{"use_dictionary": False}, {"write_page_index": True}, {"compression": {"n": "zstd"}},
     {"threads": 1}, {"compression_level": None, "compression": "gzip", "version": "2.4"}],
)  # fmt: skip
def test_pyarrow_encodes_what_polars_has_no_option_for(options: dict[str, Any]) -> None:
    data = write_file(numbers(1000), **options)
    assert "parquet-cpp" in creator(data)
    assert read_back(data).equals(numbers(1000))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"compresion": "zstd"}, TypeError, "did you mean compression"),
        ({"encryption_properties": None}, TypeError, "not supported"),
        ({"row_group_size": 0}, ValueError, "row_group_size"),
        ({"threads": 0}, ValueError, "threads"),
        ({"encryption": mc.FileEncryptionProperties(
            footer_key=FOOTER_KEY, column_keys={"x": COLUMN_KEY})}, ValueError, "x"),
    ],
)  # fmt: skip
def test_mistakes_are_refused_before_a_file_exists(
    tmp_path: Path, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        write_table(numbers(3), tmp_path / "a", **({"encryption": UNIFORM} | options))
    assert list(tmp_path.iterdir()) == []


def test_too_many_row_groups_are_refused(tmp_path: Path) -> None:
    with pytest.raises(mc.errors.LimitError, match="at most 32768 row groups"):
        write_table(numbers(32769), tmp_path / "a", UNIFORM, row_group_size=1)
    assert list(tmp_path.iterdir()) == []


def test_an_encoding_error_leaves_no_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(polars_frames, "WORTH_A_THREAD", 0)
    encode = polars_frames._encode

    def fail(frame: Any, options: Any) -> memoryview:
        if frame.height == 1:  # the last
            raise pl.exceptions.ComputeError("no")
        return encode(frame, options)

    monkeypatch.setattr(polars_frames, "_encode", fail)
    monkeypatch.setattr(writer, "ENCODED_TOGETHER", 1)
    with pytest.raises(pl.exceptions.ComputeError):
        write_table(numbers(1001), tmp_path / "a", UNIFORM, row_group_size=100)
    assert list(tmp_path.iterdir()) == []


def test_an_existing_file_is_kept_on_request(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"old")
    with pytest.raises(FileExistsError):
        write_table(numbers(3), tmp_path / "a", UNIFORM, overwrite=False)
    assert (tmp_path / "a").read_bytes() == b"old"
