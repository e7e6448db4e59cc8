"""Columns that JSON, Avro and Parquet show to readers without a key; no value is returned.

Files are hostile: each search is bounded in bytes, depth and members, and does not recurse.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator
from typing import Any

from modcrypt.errors import FormatError, ModcryptError
from modcrypt.io.sources import Source
from modcrypt.jobs.leaks.exposure import SUMMARIES, Contents, Exposure, columns_of_folders, expose
from modcrypt.parquet.format.framing import MAGIC_ENCRYPTED, MAGIC_SIZE, read_tail
from modcrypt.parquet.format.idl import decode
from modcrypt.parquet.format.schema import leaf_paths

MAX_LOG = 64 << 20
"""Largest file of a table log that is read, in bytes; its lines are parsed one by one."""

MAX_LINE = 4 << 20
"""Longest JSON that is parsed at once, in bytes: parsed values take twenty times the memory."""

MAX_NODES = 2_000_000
"""Largest number of members and items visited in a file, so that the time is bounded."""


_LOG_BOUNDS = ("minValues", "maxValues", "partitionValues", "partitionValues_parsed")
_PREDICATES = (
    "predicate", "predicates", "condition", "matchedPredicates", "notMatchedPredicates",
    "notMatchedBySourcePredicates",
)  # fmt: skip
_ALL_ROWS: tuple[Any, ...] = ("", "[]", "true", '["true"]', [], None)  # predicates without values

Columns = set[tuple[str, ...]]


class UnreadError(ValueError):
    """JSON that is too large, too deep or damaged, so that it may have anything."""


def parse_lines(source: Source) -> Iterator[Any]:
    """Yield the values of a file with one in each line, or with one in all.

    Raise UnreadError if the file is too large, or is not JSON.
    """
    if source.size > MAX_LOG:
        raise UnreadError(f"it has more than {MAX_LOG} bytes")
    text = source.read_at(0, source.size)
    if len(text) <= MAX_LINE:
        try:
            whole = _parse(text)
        except UnreadError:  # it has several lines
            pass
        else:
            yield whole
            return
    for line in io.BytesIO(text):
        if line.strip():
            yield _parse(line)


def _parse(text: bytes) -> Any:
    if len(text) > MAX_LINE:
        raise UnreadError(f"it has a line of more than {MAX_LINE} bytes")
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise UnreadError("it is not JSON, or nested too deep") from None


class LogColumns:
    """The columns that have values in a table log of Delta, collected from parsed JSON."""

    def __init__(self) -> None:
        self.columns: Columns = set()
        self.anything = False  # whether a predicate is repeated, which may have any value
        self.schema = False
        self._nodes = 0

    def add(self, value: Any) -> None:
        """Add the columns of a value, without recursion."""
        pending = [value]
        while pending:
            self._nodes += 1
            if self._nodes > MAX_NODES:
                raise UnreadError(f"it has more than {MAX_NODES} members")
            item = pending.pop()
            if isinstance(item, list):
                pending += item
            elif isinstance(item, dict):
                pending += [self._enter(str(name), member) for name, member in item.items()]

    def _enter(self, name: str, member: Any) -> Any:
        """Note what a member shows; return what to visit in it."""
        if name in _LOG_BOUNDS and isinstance(member, dict):
            self.columns |= set(_leaves(member))
            return None
        if name == "stats" and isinstance(member, str):
            try:
                return json.loads(member)
            except (ValueError, RecursionError):
                raise UnreadError("its statistics are not JSON") from None
        self.schema |= name in ("schemaString", "checkpointSchema")
        if name in _PREDICATES and member not in _ALL_ROWS:
            self.anything = True
        return member


def _leaves(member: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    """Yield the paths of the values in nested objects, except nulls."""
    pending: list[tuple[tuple[str, ...], Any]] = [((name,), item) for name, item in member.items()]
    while pending:
        path, item = pending.pop()
        if isinstance(item, dict):
            pending += [((*path, name), below) for name, below in item.items()]
        elif item is not None:
            yield path


_PARTITIONS = re.compile(rb'"partitions\.((?:[^"\\]|\\.){1,4096})"\s*:')


def find_summary_columns(metadata: bytes) -> Columns:
    """Return the columns whose partition values the snapshot summaries of Iceberg repeat.

    The text is not parsed: metadata may be long, and members of this name occur only there.
    """
    paths = set(_PARTITIONS.findall(metadata))
    return {column for path in paths for column in columns_of_folders(_unescape(path))}


_KEYS = re.compile(rb'"((?:[^"\\]|\\.){1,1200})"\s*:')  # an escape takes six bytes


def find_names(head: bytes) -> Columns:
    """Return the names of members in the beginning of JSON text."""
    return {(_unescape(key),) for key in set(_KEYS.findall(head))}


def _unescape(text: bytes) -> str:
    """Return a JSON string, given without its quotes, with its escapes replaced."""
    decoded = text.decode("utf-8", "replace")
    try:
        return str(json.loads(f'"{decoded}"', strict=False))
    except ValueError:
        return decoded


AVRO_MAGIC = b"Obj\x01"

MAX_HEADER = 1 << 20
"""Number of first bytes in which the schema is looked for."""

MAX_ENTRIES = 1000
"""Largest number of members in the header's metadata that are looked at."""

MAX_DEPTH, MAX_NAME = 16, 200
"""Deepest records of which fields are named, and longest name of a field, in characters."""

_MAX_VARINT = 10


def find_avro_fields(source: Source) -> set[tuple[str, ...]]:
    """Return the paths of the fields in an Avro file's schema; none if the header is malformed."""
    head = source.read_at(0, min(source.size, MAX_HEADER))
    try:
        schema = json.loads(_find_schema(head))
    except (ValueError, RecursionError):
        return set()
    return set(_walk_fields(schema))


def _find_schema(head: bytes) -> bytes:
    """Return the text of the schema; raise ValueError if the header is malformed or too long."""
    at, left = len(AVRO_MAGIC), 0
    for _ in range(MAX_ENTRIES):
        while not left:  # a block of the map begins
            left, at = _read_long(head, at)
            if not left:
                raise ValueError
            if left < 0:  # the size of the block follows
                left, (_, at) = -left, _read_long(head, at)
        key, at = _read_bytes(head, at)
        value, at = _read_bytes(head, at)
        left -= 1
        if key == b"avro.schema":
            return value
    raise ValueError


def _read_bytes(head: bytes, at: int) -> tuple[bytes, int]:
    length, at = _read_long(head, at)
    if not 0 <= length <= len(head) - at:
        raise ValueError
    return head[at : at + length], at + length


def _read_long(head: bytes, at: int) -> tuple[int, int]:
    """Return an integer in zigzag form, seven bits a byte, and where it ends."""
    number = 0
    for index, byte in enumerate(head[at : at + _MAX_VARINT]):
        number |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1), at + index + 1
    raise ValueError


def _walk_fields(schema: Any) -> Iterator[tuple[str, ...]]:
    """Yield the paths of fields; unions, arrays and maps have no part in a path."""
    pending: list[tuple[tuple[str, ...], Any]] = [((), schema)]
    while pending:
        path, item = pending.pop()
        if isinstance(item, list):
            pending += [(path, branch) for branch in item]
        elif not isinstance(item, dict) or len(path) >= MAX_DEPTH:
            continue
        elif isinstance(fields := item.get("fields"), list):
            for field in fields:
                name = field.get("name") if isinstance(field, dict) else None
                if isinstance(name, str) and len(name) <= MAX_NAME:
                    yield (*path, name)
                    pending.append(((*path, name), field.get("type")))
        else:
            pending += [(path, item.get(part)) for part in ("type", "items", "values")]


_CHUNK_BOUNDS = ("min", "max", "min_value", "max_value")
_RECORD_KEYS = (b"hoodie_min_record_key", b"hoodie_max_record_key", b"org.apache.hudi.bloomfilter")

Path = tuple[str, ...]


def describe_parquet(source: Source, path: str, name: str) -> Contents:
    """Return the contents of a file that begins with a magic of Parquet."""
    try:
        tail = read_tail(source)
        if tail.magic == MAGIC_ENCRYPTED:
            return Contents(hidden=True)
        metadata = decode("FileMetaData", tail.data)[0]
        leaves = leaf_paths(metadata.schema)
        return _describe(metadata, leaves, path, name)
    except ModcryptError:
        if source.read_at(0, min(source.size, MAGIC_SIZE)) == MAGIC_ENCRYPTED:
            raise  # an encrypted file that is damaged or cut off: "unread", not plaintext
        what = "Parquet pages in plaintext, of a file without a readable footer"
        return expose("plaintext-parquet", path, what, anything=True)


def _describe(metadata: Any, leaves: list[Path], path: str, name: str) -> Contents:
    if name in SUMMARIES:
        bounded: set[Path] = set()
        for leaf, chunk in _chunks(metadata, leaves):
            bounded |= {leaf} if _is_bounded(chunk) else set()
            folders = (chunk.file_path or b"").rpartition(b"/")[0]
            bounded |= columns_of_folders(folders.decode("utf-8", "replace"))
        shown = "least and greatest values, or partitions" if bounded else "the schema"
        what = f"a plaintext summary of footers: {shown}"
        return expose("parquet-summary", path, what, bounded, schema=True)
    encrypted: set[Path] = set()
    plain: set[Path] = set()
    bounded_secret: set[Path] = set()
    for leaf, chunk in _chunks(metadata, leaves):
        if chunk.crypto_metadata is None:
            plain.add(leaf)
            continue
        encrypted.add(leaf)
        if _is_bounded(chunk):
            bounded_secret.add(leaf)
    exposures = []
    if plain or not (encrypted or metadata.encryption_algorithm is not None):
        what = "columns in plaintext" if encrypted else "a Parquet file in plaintext"
        exposures.append(
            Exposure(
                kind="plaintext-parquet", path=path, what=what, columns=frozenset(plain),
                schema=not encrypted,
            )
        )  # fmt: skip
    keys = {entry.key for entry in metadata.key_value_metadata or ()}
    if bounded_secret or (encrypted and keys.intersection(_RECORD_KEYS)):
        what = "least and greatest values in a plaintext footer"
        exposures.append(
            Exposure(
                kind="footer-statistics", path=path, what=what, columns=frozenset(bounded_secret),
                anything=not bounded_secret,
            )
        )  # fmt: skip
    return Contents(
        encrypted=frozenset(encrypted), plain=frozenset(plain), exposures=tuple(exposures)
    )


def _chunks(metadata: Any, leaves: list[Path]) -> Iterator[tuple[Path, Any]]:
    for row_group in metadata.row_groups:
        if len(row_group.columns) > len(leaves):
            raise FormatError("a row group has more columns than the schema")
        yield from zip(leaves, row_group.columns, strict=False)


def _is_bounded(chunk: Any) -> bool:
    """Return whether a chunk's metadata in the footer has least or greatest values."""
    statistics = None if chunk.meta_data is None else chunk.meta_data.statistics
    if statistics is None:
        return False
    return any(getattr(statistics, name) is not None for name in _CHUNK_BOUNDS)
