"""Search a Spark event log for keys, passphrases and tokens that were left in it.

Spark logs its configuration, the properties of every job and the text of every plan. It redacts
only names that match `spark.redaction.regex`, which are neither `parquet.encryption.key.list` nor
the options of a table. Everyone who can read the log, such as a history server's users, can read
those secrets.

A finding states where a secret is, and never contains it. Logs may be text or compressed by zstd
(Spark's default) or gzip, rolled or not; a truncated log is read as far as it goes.
"""

from __future__ import annotations

import base64
import io
import os
import stat
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace

from modcrypt.doctor.secret_patterns import find_secrets
from modcrypt.errors import LimitError
from modcrypt.keys import Key, key_bytes
from modcrypt.report.json_fields import JsonFields

MAX_LINE = 64 << 20
"""Length limit of a line, in bytes; Spark's longest lines are plans."""

_PIECE = 64 << 10  # bytes per read: a truncated compressed log loses at most the last of them

_CODECS = {b"\x28\xb5\x2f\xfd": "zstd", b"\x04\x22\x4d\x18": "lz4", b"\x1f\x8b": "gzip"}
"""PyArrow's codec names, by the first bytes of a stream."""

_JAVA_CODECS = {b"LZ4Block": "lz4", b"\x82SNAPPY\0": "snappy", b"ZV": "lzf"}
"""Spark's names of the codecs that only Java libraries read, by the first bytes of a stream."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leak(JsonFields):
    """A secret in a log, which is not repeated here."""

    file: str
    line: int  # number of the first line with the secret, counted from 1
    name: str | None  # name of the property or option; None in running text
    what: str  # kind of the secret, in words
    certain: bool  # whether it is a secret; otherwise it looks like one
    lines: int = 1  # number of lines with the secret


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchedLog:
    """The result of searching a file of a log."""

    file: str
    events: int  # number of lines that are Spark events
    unread: str  # reason why the file, or the rest of it, could not be read; empty if it could
    leaks: tuple[Leak, ...]  # secrets in the order of their lines


def search_event_log(path: str, keys: Iterable[Key] = ()) -> Iterator[SearchedLog]:
    """Search a log, or all logs in a folder and below it.

    The keys are searched for in hex and base64, under any name.
    """
    needles: set[bytes] = set()
    for raw in map(key_bytes, keys):
        needles |= {raw.hex().encode(), raw.hex().upper().encode()}
        needles |= {base64.b64encode(raw).rstrip(b"="), base64.urlsafe_b64encode(raw).rstrip(b"=")}
    for file in _files(path):
        yield _search_file(file, needles)


def _files(path: str) -> list[str]:
    if not stat.S_ISDIR(os.stat(path).st_mode):
        return [path]
    below = (os.path.join(base, name) for base, _, names in os.walk(path) for name in names)
    visible = (path for path in below if not os.path.basename(path).startswith("."))
    return sorted(path for path in visible if os.path.isfile(path) and os.path.getsize(path))


def _search_file(file: str, needles: Collection[bytes]) -> SearchedLog:
    found: dict[tuple[str | None, str], Leak] = {}
    events, unread = 0, ""
    try:
        for number, line in enumerate(_lines(file), 1):
            events += line.startswith(b'{"Event":')
            for name, what, certain in set(find_secrets(line, needles)):
                leak = Leak(file=file, line=number, name=name, what=what, certain=certain)
                seen = found.setdefault((name, what), replace(leak, lines=0))
                found[name, what] = replace(seen, lines=seen.lines + 1)
    except (LimitError, ValueError) as error:
        unread = str(error)
    except OSError as error:  # PyArrow's have no strerror
        unread = error.strerror or "the log is truncated"
    leaks = sorted(found.values(), key=lambda leak: (leak.line, leak.name or ""))
    return SearchedLog(file=file, events=events, unread=unread, leaks=tuple(leaks))


# --- from a file to its lines --------------------------------------------------------------------


def _lines(path: str) -> Iterator[bytes]:
    with _open(path) as log:
        while line := log.readline(MAX_LINE + 1):
            line = line.removesuffix(b"\n")
            if len(line) > MAX_LINE:
                raise LimitError(f"a line has more than {MAX_LINE} bytes")
            yield line


def _open(path: str) -> io.BufferedReader:
    with open(path, "rb") as file:
        begin = file.read(8)
    for magic, codec in _JAVA_CODECS.items():
        if begin.startswith(magic):
            raise ValueError(
                f"modcrypt cannot decompress Spark's {codec}; decompress the log with Spark, and "
                "set spark.eventLog.compression.codec=zstd for new logs"
            )
    for magic, codec in _CODECS.items():
        if begin.startswith(magic):
            import pyarrow as pa

            return io.BufferedReader(pa.input_stream(path, compression=codec), _PIECE)
    return open(path, "rb")
