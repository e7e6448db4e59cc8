"""Recognise what a file in a dataset's folder is, by its place, its first bytes and its name."""

from __future__ import annotations

import json
import os
import posixpath
import re
import zlib
from collections.abc import Iterator

from modcrypt.errors import ModcryptError
from modcrypt.io.places import Place
from modcrypt.io.publication import CHECKSUM_MAGIC
from modcrypt.io.sources import Source, open_source_at
from modcrypt.jobs.leaks.checksums import find_checked_file, is_stale
from modcrypt.jobs.leaks.exposure import Contents, Exposure, columns_of_folders, expose
from modcrypt.jobs.leaks.format_contents import (
    AVRO_MAGIC,
    MAX_LOG,
    Columns,
    LogColumns,
    UnreadError,
    describe_parquet,
    find_avro_fields,
    find_names,
    find_summary_columns,
    parse_lines,
)
from modcrypt.parquet.format.framing import read_tail
from modcrypt.parquet.format.idl import decode
from modcrypt.parquet.format.schema import leaf_paths
from modcrypt.pkmt1.material import STORE_NAME

HEAD = 64 << 10  # number of first bytes in which names of columns are looked for

MAX_PUFFIN_FOOTER = 1 << 20
"""Largest footer of a Puffin file that is read, in bytes: it lists one blob a column."""

MAX_METADATA = 64 << 20
"""Largest Iceberg metadata read after decompression, in bytes."""

_PARQUET = (b"PAR1", b"PARE")
_DATA_MAGICS = {
    b"ORC": "an ORC file", b"ARROW1": "an Arrow file", b"FEA1": "a Feather file",
    b"SQLite format 3\0": "an SQLite database", b"\x89HDF\r\n": "an HDF5 file",
}  # fmt: skip
_DUCKDB = b"DUCK"  # after a checksum of 8 bytes
_STREAM = b"\xff\xff\xff\xff"  # before the length of the schema
_PACKED_MAGICS = (b"\x1f\x8b\x08", b"\x28\xb5\x2f\xfd", b"BZh", b"\xfd7zXZ\0", b"\x04\x22\x4d\x18")
_NUMBER = r"([._-]\d{1,14})*"
_TEXT = re.compile(
    rf".*\.(csv|tsv|psv|tab|json|jsonl|ndjson|geojson){_NUMBER}", re.IGNORECASE | re.DOTALL
)
_PERHAPS_TEXT = re.compile(rf".*\.(txt|text|dat){_NUMBER}", re.IGNORECASE | re.DOTALL)
_HADOOP_TEXT = re.compile(r"part-([mr]-)?\d{5}.*|0\d{5}_\d+", re.DOTALL)
_PACKED = re.compile(
    r".*\.(csv|tsv|psv|tab|json|jsonl|ndjson|geojson|parquet|orc|avro|arrow|feather)"
    r"\.(gz|gzip|bz2|xz|zst|zstd|lz4|snappy|br|zip|7z)",
    re.IGNORECASE | re.DOTALL,
)
_METADATA = re.compile(r".*\.metadata\.json", re.DOTALL)
_PACKED_METADATA = re.compile(r".*(\.gz\.metadata\.json|\.metadata\.json\.gz)", re.DOTALL)
_LEFTOVER = re.compile(
    r".*~|#.*#|\..*\.(sw[a-z]|un~|kate-swp)|\.(goutputstream-|nfs|fuse_hidden)[0-9A-Za-z]+"
    r"|.*\.(bak|backup|orig|old|save|tmp|temp|part|partial|crdownload|download|copy|rej)"
    rf"{_NUMBER}",
    re.IGNORECASE | re.DOTALL,
)
_EVENT_LOG = re.compile(
    r"((events_\d+_|application_\d+_|local-\d+|app-\d+-|spark-[0-9a-f]{32}).*"
    r"\.(zstd|lz4|snappy|lzf)(\.inprogress|\.compact)?)",
    re.DOTALL,
)
_OWN = re.compile(r"_modcrypt_[a-z]+(\.json)?")
_SEPARATORS = re.compile(rb"[,;\t|]")
_COUNTED = tuple(map(re.compile, (rb",(?=\S)", rb";(?=\S)", rb"\t", rb"\|")))  # not as in prose
_TABLE_LINES = 5


def describe_file(place: Place, inside: str) -> Contents:
    """Return the kind and exposures of a file; `inside` is its path within the folder.

    Errors become an exposure: a file that cannot be read may have anything.
    """
    parts, above = inside.split("/"), posixpath.dirname(place.full_name).split("/")
    if place.filesystem is None and not os.path.isfile(place.path):  # a pipe, or a broken link
        return Contents()
    try:
        with open_source_at(place, stamped=False) as source:
            if not source.size:
                return Contents()
            if "_delta_log" in above:
                return _describe_delta(source, _path_to(place.path, "_delta_log"), place.name)
            if ".hoodie" in above:
                return _describe_hudi(_path_to(place.path, ".hoodie"), place.name)
            if "_spark_metadata" in above:
                return _describe_sink_log(source, _path_to(place.path, "_spark_metadata"))
            return _describe_by_head(source, place, parts)
    except UnreadError as error:
        why = str(error)
    except ModcryptError as error:
        why = error.word
    except OSError as error:
        why = error.strerror or type(error).__name__
    what = f"a file that could not be examined: {why}"
    return expose("unread", place.path, what, anything=True)


def _path_to(path: str, folder: str) -> str:
    """Return the path of a folder above a file, by its name; that may be above a relative path."""
    before, is_inside, _ = f"/{path}".partition(f"/{folder}/")
    return f"{before}/{folder}"[1:] if is_inside else posixpath.dirname(path)


def _describe_by_head(source: Source, place: Place, parts: list[str]) -> Contents:
    name, path = parts[-1], place.path
    head = source.read_at(0, min(source.size, 64))
    if head.startswith(b"AGS1"):
        return Contents(hidden=True)
    if head.startswith(_PARQUET):
        return describe_parquet(source, path, name)
    if head.startswith(b"PFA1"):
        return _describe_puffin(source, path)
    if head.startswith(AVRO_MAGIC):
        return _describe_avro(source, path)
    for magic, what in _DATA_MAGICS.items():
        if head.startswith(magic):
            return expose("plaintext-data", path, f"{what} in plaintext", anything=True)
    if head.startswith(_STREAM) and 0 < int.from_bytes(head[4:8], "little") < source.size:
        return expose("plaintext-data", path, "an Arrow stream in plaintext", anything=True)
    if head[8:12] == _DUCKDB:
        return expose("plaintext-data", path, "a DuckDB database in plaintext", anything=True)
    if head.startswith(b'{"Event":') or _EVENT_LOG.fullmatch(name):
        what = "a Spark event log: plans with literals of filters, and settings"
        return expose("event-log", path, what, anything=True)
    if head.startswith(CHECKSUM_MAGIC) and (checked := find_checked_file(place)) is not None:
        return _describe_checksum(source, path, checked)
    is_own = name.endswith(".json") and any(_OWN.fullmatch(part) for part in parts)
    if is_own or STORE_NAME.fullmatch(name):
        return Contents()
    return _describe_by_name(source, path, name, head)


def _describe_puffin(source: Source, path: str) -> Contents:
    what = "a Puffin file in plaintext: sketches of values, as for counting distinct ones"
    tail = source.read_at(max(0, source.size - 12), min(12, source.size))
    length, is_packed = int.from_bytes(tail[:4], "little"), bool(tail[4:5] > b"\0")
    if not is_packed and length <= min(MAX_PUFFIN_FOOTER, source.size - 16):
        try:
            footer = json.loads(source.read_at(source.size - 12 - length, length))
            kinds = {blob["type"] for blob in footer["blobs"]}
        except (ValueError, RecursionError, LookupError, TypeError):
            kinds = set()
        if kinds == {"deletion-vector-v1"}:  # positions of rows, without their values
            return Contents()
    return expose("puffin", path, what, anything=True)


def _describe_avro(source: Source, path: str) -> Contents:
    columns = find_avro_fields(source)
    if columns & {("manifest_path",), ("data_file",)}:
        what = "an Iceberg manifest in plaintext: bounds and partitions of data files"
        return expose("iceberg-manifest", path, what, anything=True)
    what = "an Avro file in plaintext"
    return expose("plaintext-data", path, what, columns, anything=True, schema=True)


def _describe_checksum(source: Source, path: str, checked: Place) -> Contents:
    try:
        with open_source_at(checked, stamped=False) as file:
            if not is_stale(source, file):
                return Contents()
    except FileNotFoundError:
        pass
    what = "checksums of a file as it was before, which confirm guesses of its contents"
    return expose("stale-checksum", path, what, anything=True)


def _describe_by_name(source: Source, path: str, name: str, head: bytes) -> Contents:
    if _PACKED_METADATA.fullmatch(name) or _METADATA.fullmatch(name):
        return _describe_metadata(source, path)
    if _PACKED.fullmatch(name) or head.startswith(_PACKED_MAGICS):
        return expose("plaintext-data", path, "a compressed file in plaintext", anything=True)
    if match := _TEXT.fullmatch(name):
        return _describe_text(source, path, is_json="json" in match[1].lower())
    if _PERHAPS_TEXT.fullmatch(name) and b"\0" not in _decode_text(head):
        return _describe_text(source, path)
    if _HADOOP_TEXT.fullmatch(name):
        what = "a data file of Hadoop or Hive, in no encrypted format"
        return expose("plaintext-data", path, what, anything=True)
    if head.startswith(b"b0VIM") or _LEFTOVER.fullmatch(name):
        what = "a file that an editor or a program left, in no encrypted format"
        return expose("leftover", path, what, anything=True)
    return Contents()


def _describe_metadata(source: Source, path: str) -> Contents:
    if source.size > MAX_METADATA:
        raise UnreadError(f"it has more than {MAX_METADATA} bytes")
    text = source.read_at(0, source.size)
    if text[:2] == b"\x1f\x8b":
        text = _unpack(text)
    columns = find_summary_columns(text)
    what = "Iceberg metadata: names of partitions in the summaries of snapshots"
    return expose("iceberg-metadata", path, what, columns) if columns else Contents()


def _unpack(data: bytes) -> bytes:
    unpacker = zlib.decompressobj(wbits=31)
    try:
        text = unpacker.decompress(data, MAX_METADATA)
    except zlib.error:
        raise UnreadError("it is damaged") from None
    if unpacker.unconsumed_tail:
        raise UnreadError(f"it has more than {MAX_METADATA} bytes")
    return text


def _describe_text(source: Source, path: str, *, is_json: bool | None = None) -> Contents:
    """Return the exposures of text; `is_json` is None if only its form tells that it is data."""
    head = _decode_text(source.read_at(0, min(source.size, HEAD)))
    if is_json or (is_json is None and head.lstrip().startswith((b"{", b"["))):
        what = "a JSON file in plaintext"
        return expose("plaintext-data", path, what, find_names(head), named=True, unknown=True)
    line = head.split(b"\n", 1)[0].strip(b"\r")
    fields = (field.strip(b' "') for field in _SEPARATORS.split(line))
    columns: Columns = {(field.decode("utf-8", "replace"),) for field in fields}
    what = "a text file with values in plaintext"
    is_data = is_json is not None or _is_table(head)
    return expose("plaintext-data", path, what, columns, anything=is_data, named=True)


def _decode_text(head: bytes) -> bytes:
    """Return text as UTF-8 without a mark of its byte order."""
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        return head.decode("utf-16", "replace").encode("utf-8", "replace")
    return head.removeprefix(b"\xef\xbb\xbf")


def _is_table(head: bytes) -> bool:
    """Return whether the first lines of a text have equally many separators of one kind."""
    lines = head.split(b"\n")[:_TABLE_LINES]
    if not lines[-1]:
        del lines[-1]
    counts = ({len(separator.findall(line)) for line in lines} for separator in _COUNTED)
    return len(lines) > 1 and any(len(found) == 1 and 0 not in found for found in counts)


def _describe_delta(source: Source, path: str, name: str) -> Contents:
    what = "Delta's log: least and greatest values, partition values or predicates"
    head = source.read_at(0, min(4, source.size))
    if head in _PARQUET or name.endswith(".parquet"):
        return _describe_checkpoint(source, path, what)
    if head in (b"AGS1", b"crc\0"):
        return Contents()
    log = LogColumns()
    try:
        for value in parse_lines(source):
            log.add(value)
    except UnreadError as error:
        return expose("delta-log", path, f"{what} (not read to the end: {error})", anything=True)
    return expose("delta-log", path, what, log.columns, anything=log.anything, schema=log.schema)


def _describe_checkpoint(source: Source, path: str, what: str) -> Contents:
    """Return the exposures of a checkpoint, whose columns are those of the log."""
    try:
        tail = read_tail(source)
        if tail.magic != b"PAR1":
            return Contents()
        leaves = leaf_paths(decode("FileMetaData", tail.data)[0].schema)
    except ModcryptError:
        return expose("delta-log", path, what, anything=True)
    columns: Columns = {
        leaf[index + 1 :]
        for leaf in leaves
        for index, name in enumerate(leaf[:-1])
        if name in ("minValues", "maxValues", "partitionValues_parsed")
    }
    anything = any(leaf[-1] == "stats" or "partitionValues" in leaf for leaf in leaves)
    return expose("delta-log", path, what, columns, anything=anything, schema=True)


def _describe_hudi(path: str, name: str) -> Contents:
    if re.match(r"\.?hoodie\.properties", name):  # names and settings of the table
        return Contents()
    what = "Hudi's timeline and metadata: statistics of columns, record keys and partitions"
    return expose("hudi-timeline", path, what, anything=True)


def _describe_sink_log(source: Source, path: str) -> Contents:
    """Return the exposures of a streaming sink's log, which has the paths of its files."""
    text = source.read_at(0, min(source.size, MAX_LOG)).decode("utf-8", "replace")
    columns = set(columns_of_folders(text))
    what = "values in the paths of a streaming sink's log"
    return expose("partition-path", path, what, columns, folders=True)


def describe_partitions(root: str, inside: str) -> Iterator[Exposure]:
    """Yield the columns whose values are in the names of folders; `inside` is their path."""
    folders = inside.split("/")
    shown = [f"{part.partition('=')[0]}=*" if "=" in part else part for part in folders]
    for end, folder in enumerate(folders, 1):
        if columns := columns_of_folders(folder):
            yield Exposure(
                kind="partition-path", path=posixpath.join(root, *shown[:end]),
                what="values in the names of folders", columns=columns, folders=True,
            )  # fmt: skip
