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
import binascii
import io
import json
import os
import re
import stat
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from modcrypt.errors import LimitError
from modcrypt.keys import Key, key_bytes
from modcrypt.keys.encoding import KEY_LENGTHS
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


MAX_NESTING = 100
"""Limit of the nesting that is searched in an event: plans are trees."""

Found = tuple[str | None, str, bool]

_WORD = re.compile(r"key|passphrase|passw(?:or)?d|secret|token|credential", re.IGNORECASE)
_TOKENS = (
    (re.compile(r"\bhv[sbr]\.[A-Za-z0-9_-]{20,}"), "a Vault token", True),
    (re.compile(r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b"), "an AWS access key ID", False),
    (re.compile(r"-----BEGIN [A-Z ]{0,20}PRIVATE KEY-----"), "a private key", True),
)
# Lines without any of these, which are most, need no further search.
_HINTS = re.compile(_WORD.pattern.encode() + rb"|hv[sbr]\.|A[KS]IA|PRIVATE KEY", re.IGNORECASE)


def find_secrets(line: bytes, needles: Collection[bytes]) -> Iterator[Found]:
    """Yield the findings in a line of a log; equal findings may be repeated.

    The needles are spellings of keys, in hex and base64. A finding is the name of the property or
    option (None in running text), what was found, in words, and whether it certainly is a secret.
    """
    given = [needle.decode() for needle in needles if needle in line]
    if not given and not _HINTS.search(line):
        return
    placed = False
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        event = line.decode(errors="replace")  # truncated, or not JSON
    for name, text in _strings(event, None):
        for needle in given:
            if needle in text:
                placed = True
                yield _printable_name(name), "a key that is in use here", True
        yield from _in_text(name, text)
    if given and not placed:  # it is a name, for example
        yield None, "a key that is in use here", True


def _strings(value: Any, name: str | None, depth: int = 0) -> Iterator[tuple[str | None, str]]:
    """Yield each string in an event, with its name."""
    if isinstance(value, str):
        yield name, value
    elif depth > MAX_NESTING:
        yield name, json.dumps(value)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _strings(item, key, depth + 1)
    elif isinstance(value, list):
        if len(value) == 2 and isinstance(value[0], str):  # Spark lists properties in pairs
            name = value[0]
        for item in value:
            yield from _strings(item, name, depth + 1)


def _in_text(name: str | None, text: str) -> Iterator[Found]:
    for pattern, what, certain in _TOKENS:
        if pattern.search(text):
            yield _printable_name(name), what, certain
    if name is not None and _WORD.search(name) and (judged := _judge(name, text)):
        yield _printable_name(name), judged, _NAMES_IDS.search(name) is None
        return
    for found, value, quoted in set(_pairs(text)):
        judged = _judge(found, value)
        if judged is None or (judged == _SECRET and not quoted):
            continue
        # A condition on a column `token` looks the same as an option of that name.
        sure = judged != _SECRET or "." in found or "pass" in found.lower()
        yield _printable_name(found), judged, sure and _NAMES_IDS.search(found) is None


_REST = re.compile(
    r"""(?P<more>[\w.-]{0,100})["'`]?"""
    r"""(?P<between>\s{0,3}(?:=>|->|[=:,(])\s{0,3}(?:Some\()?|\s{1,3})"""
    r"""(?P<quote>["'`]?)(?P<value>[^\s"'`,;()\[\]{}]{1,4096})"""
)
_BEFORE = re.compile(r"[\w.-]*\Z")


def _pairs(text: str) -> Iterator[tuple[str, str, bool]]:
    """Yield apparent options in running text: name, value, and whether punctuation marks them."""
    for word in _WORD.finditer(text):
        if (rest := _REST.match(text, word.end())) is None:
            continue
        begun = _BEFORE.search(text[max(0, word.start() - 200) : word.start()])
        name = (begun[0] if begun else "") + word[0] + rest["more"]
        apart = bool(rest["quote"]) or "=" in rest["between"] or "Some(" in rest["between"]
        yield name.lstrip("-."), rest["value"], apart


_KEY_LIST = re.compile(r"encryption\.key\.list$", re.IGNORECASE)
_SECRET_NAMES = re.compile(
    r"passphrase|passw(?:or)?d|secret|token|credential|access\.?key$", re.IGNORECASE
)
# Names that describe a secret, such as its place or size, but do not hold it.
_ABOUT = re.compile(
    r"(?:provider|class|file|path|regex|interval|enabled|length|bits|seconds|type|ur[il]|format"
    r"|size|name|ids?|algorithm|alias|timeout|count|num|version|service|renewer|issuer|kind)s?$",
    re.IGNORECASE,
)
# The key tools store ids of master keys here; without a key service, users may put keys here.
_NAMES_IDS = re.compile(r"encryption\.(?:footer\.key|column\.keys|uniform\.key)$", re.IGNORECASE)
_NO_SECRET = re.compile(
    r"|true|false|none|null|default|auto|-?[0-9.]{1,20}[a-z]{0,2}|(?:env|file|vault|arn|fd):.*|/.*"
    r"|[a-z][a-z0-9+.-]*://.*|\$\{.*|[a-z]\w*(?:\.\w+){2,}",
    re.IGNORECASE | re.DOTALL,
)
_SECRET = "a secret, judging by its name"  # noqa: S105 (a description)
_REDACTED = "redacted)"


def _judge(name: str, value: str) -> str | None:
    """Return a description of a secret, judging by its name; None if the value is not a secret."""
    value = value.strip()
    if not value or _REDACTED in value or "***" in value:
        return None
    if _KEY_LIST.search(name):
        return "keys themselves"
    if _ABOUT.search(name):
        return None
    if "key" in name.lower() and _has_key(value):
        return "a value that looks like a key"
    if _SECRET_NAMES.search(name) and not _NO_SECRET.fullmatch(value):
        return _SECRET
    return None


_KEY_TEXT = re.compile(r"(?<![A-Za-z0-9+/_-])[A-Za-z0-9+/_-]{22,64}={0,2}(?![A-Za-z0-9+/=_-])")


def _has_key(value: str) -> bool:
    return any(_is_key(piece) for piece in _KEY_TEXT.findall(value))


def _is_key(text: str) -> bool:
    """Recognise hex or base64 of 16, 24 or 32 bytes; unpadded base64 by its mix of letters."""
    if re.fullmatch(r"[0-9A-Fa-f]+", text):
        return len(text) // 2 in KEY_LENGTHS and len(text) % 2 == 0
    bare = text.rstrip("=").replace("-", "+").replace("_", "/")
    mixed = all(re.search(kind, bare) for kind in ("[a-z]", "[A-Z]", "[0-9]"))
    if not mixed and not text.endswith("="):
        return False
    try:
        raw = base64.b64decode(bare + "=" * (-len(bare) % 4), validate=True)
    except binascii.Error:
        return False
    return len(raw) in KEY_LENGTHS


def _printable_name(name: str | None) -> str | None:
    """Return a name if it may be printed; a key may appear in place of a name."""
    if name is None or not name:
        return None
    return "(not repeated)" if _has_key(name) or len(name) > 300 else name
