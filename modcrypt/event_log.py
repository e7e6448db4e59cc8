"""Search a Spark event log for keys, passphrases and tokens that were left in it.

Spark writes down its configuration, the properties of every job and the text of every plan, and
redacts only what its `spark.redaction.regex` names: `parquet.encryption.key.list` and the options
of a table are not among that. Whoever may read the log, a history server's users for one, has them.

A finding tells where a secret is, and never what it is. Logs are read as text or compressed by
zstd (Spark's default) or gzip, rolled or not, and to where they break off.
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
from dataclasses import asdict, dataclass, replace
from typing import Any

from modcrypt.errors import LimitError
from modcrypt.keys import KEY_LENGTHS, Key, key_bytes

__all__ = ["Leak", "SearchedLog", "search_event_log"]

MAX_LINE = 64 << 20
"""Bytes of the longest line that is read; Spark's longest are plans."""

MAX_NESTING = 100
"""Deepest nesting of an event that is looked into: plans are trees."""

_PIECE = 64 << 10  # bytes at once: of a compressed log that breaks off, the last of them is lost

_CODECS = {b"\x28\xb5\x2f\xfd": "zstd", b"\x04\x22\x4d\x18": "lz4", b"\x1f\x8b": "gzip"}
"""PyArrow's names of codecs by the bytes that their streams begin with."""

_JAVA_CODECS = {b"LZ4Block": "lz4", b"\x82SNAPPY\0": "snappy", b"ZV": "lzf"}
"""Spark's names of codecs whose streams only Java libraries read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leak:
    """A secret in a log, which is not repeated here.

    Attributes:
        file: its path.
        line: the first one that has it, from 1 on.
        name: of the property or option; None in running text.
        what: what it is, in words.
        certain: whether it is one; else it looks like one.
        lines: how many lines have it.
    """

    file: str
    line: int
    name: str | None
    what: str
    certain: bool
    lines: int = 1

    def fields(self) -> dict[str, Any]:
        """Give it as what JSON takes."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchedLog:
    """What a file of a log is like, and what was found in it.

    Attributes:
        file: its path.
        events: lines that are events of Spark.
        unread: why it, or the rest of it, could not be read; empty if it could.
        leaks: in the order of their lines.
    """

    file: str
    events: int
    unread: str
    leaks: tuple[Leak, ...]


def search_event_log(path: str, keys: Iterable[Key] = ()) -> Iterator[SearchedLog]:
    """Search a log, or all logs in a folder and below it.

    Args:
        path: of a file or a folder.
        keys: to be looked for themselves, in hex and base64, whatever stands around them.

    Raises:
        OSError: there is nothing at `path`, or it may not be read.
    """
    needles = frozenset(spelling for key in keys for spelling in _spellings(key))
    for file in _files(path):
        yield _searched(file, needles)


def _files(path: str) -> list[str]:
    if not stat.S_ISDIR(os.stat(path).st_mode):
        return [path]
    below = (os.path.join(base, name) for base, _, names in os.walk(path) for name in names)
    visible = (one for one in below if not os.path.basename(one).startswith("."))
    return sorted(one for one in visible if os.path.isfile(one) and os.path.getsize(one))


def _spellings(key: Key) -> Iterator[bytes]:
    raw = key_bytes(key)
    yield from (raw.hex().encode(), raw.hex().upper().encode())
    for spell in (base64.b64encode, base64.urlsafe_b64encode):
        yield spell(raw).rstrip(b"=")


def _searched(file: str, needles: Collection[bytes]) -> SearchedLog:
    found: dict[tuple[str | None, str], Leak] = {}
    events, unread = 0, ""
    try:
        for number, line in enumerate(_lines(file), 1):
            events += line.startswith(b'{"Event":')
            for name, what, certain in set(_in_line(line, needles)):
                leak = Leak(file=file, line=number, name=name, what=what, certain=certain)
                seen = found.setdefault((name, what), replace(leak, lines=0))
                found[name, what] = replace(seen, lines=seen.lines + 1)
    except (LimitError, ValueError) as error:
        unread = str(error)
    except OSError as error:  # PyArrow's have no strerror
        unread = error.strerror or "it breaks off"
    leaks = sorted(found.values(), key=lambda leak: (leak.line, leak.name or ""))
    return SearchedLog(file=file, events=events, unread=unread, leaks=tuple(leaks))


# --- from a file to its lines --------------------------------------------------------------------


def _lines(path: str) -> Iterator[bytes]:
    """Yield the lines of a log, decompressed.

    Raises:
        LimitError: A line is longer than MAX_LINE.
        ValueError: No library of Python reads the log's codec.
        OSError: The log cannot be read, or breaks off.
    """
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


# --- what is a secret ----------------------------------------------------------------------------

Found = tuple[str | None, str, bool]

_WORD = re.compile(r"key|passphrase|passw(?:or)?d|secret|token|credential", re.IGNORECASE)
_TOKENS = (
    (re.compile(r"\bhv[sbr]\.[A-Za-z0-9_-]{20,}"), "a token of Vault", True),
    (re.compile(r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b"), "the id of an access key of AWS", False),
    (re.compile(r"-----BEGIN [A-Z ]{0,20}PRIVATE KEY-----"), "a private key", True),
)
# A line without any of these has nothing to find; most lines have none.
_HINTS = re.compile(_WORD.pattern.encode() + rb"|hv[sbr]\.|A[KS]IA|PRIVATE KEY", re.IGNORECASE)


def _in_line(line: bytes, needles: Collection[bytes]) -> Iterator[Found]:
    """Give name, kind and certainty of what is found in an event; each may come repeatedly."""
    given = [needle.decode() for needle in needles if needle in line]
    if not given and not _HINTS.search(line):
        return
    placed = False
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        event = line.decode(errors="replace")  # cut short, or of something else
    for name, text in _strings(event, None):
        for one in given:
            if one in text:
                placed = True
                yield _shown(name), "a key that is in use here", True
        yield from _in_text(name, text)
    if given and not placed:  # it is a name, for one
        yield None, "a key that is in use here", True


def _strings(value: Any, name: str | None, depth: int = 0) -> Iterator[tuple[str | None, str]]:
    """Give each text in an event, by the name it has there."""
    if isinstance(value, str):
        yield name, value
    elif depth > MAX_NESTING:
        yield name, json.dumps(value)
    elif isinstance(value, dict):
        for below, one in value.items():
            yield from _strings(one, below, depth + 1)
    elif isinstance(value, list):
        if len(value) == 2 and isinstance(value[0], str):  # Spark lists properties in pairs
            name = value[0]
        for one in value:
            yield from _strings(one, name, depth + 1)


def _in_text(name: str | None, text: str) -> Iterator[Found]:
    for pattern, what, certain in _TOKENS:
        if pattern.search(text):
            yield _shown(name), what, certain
    if name is not None and _WORD.search(name) and (judged := _judged(name, text)):
        yield _shown(name), judged, _NAMES_IDS.search(name) is None
        return
    for found, value, quoted in set(_pairs(text)):
        judged = _judged(found, value)
        if judged is None or (judged == _SECRET and not quoted):
            continue
        # A condition on a column `token` looks the same as an option of that name.
        sure = judged != _SECRET or "." in found or "pass" in found.lower()
        yield _shown(found), judged, sure and _NAMES_IDS.search(found) is None


_REST = re.compile(
    r"""(?P<more>[\w.-]{0,100})["'`]?"""
    r"""(?P<between>\s{0,3}(?:=>|->|[=:,(])\s{0,3}(?:Some\()?|\s{1,3})"""
    r"""(?P<quote>["'`]?)(?P<value>[^\s"'`,;()\[\]{}]{1,4096})"""
)
_BEFORE = re.compile(r"[\w.-]*\Z")


def _pairs(text: str) -> Iterator[tuple[str, str, bool]]:
    """Give what looks like options in running text: name, value, and whether it is set apart."""
    for word in _WORD.finditer(text):
        rest = _REST.match(text, word.end())
        if rest is None:
            continue
        begun = _BEFORE.search(text[max(0, word.start() - 200) : word.start()])
        name = (begun[0] if begun else "") + word[0] + rest["more"]
        apart = bool(rest["quote"]) or "=" in rest["between"] or "Some(" in rest["between"]
        yield name.lstrip("-."), rest["value"], apart


_KEY_LIST = re.compile(r"encryption\.key\.list$", re.IGNORECASE)
_SECRET_NAMES = re.compile(
    r"passphrase|passw(?:or)?d|secret|token|credential|access\.?key$", re.IGNORECASE
)
# What says something about a secret, and is none.
_ABOUT = re.compile(
    r"(?:provider|class|file|path|regex|interval|enabled|length|bits|seconds|type|ur[il]|format"
    r"|size|name|ids?|algorithm|alias|timeout|count|num|version|service|renewer|issuer|kind)s?$",
    re.IGNORECASE,
)
# By the key tools these name master keys; who has no key service put the keys themselves there.
_NAMES_IDS = re.compile(r"encryption\.(?:footer\.key|column\.keys|uniform\.key)$", re.IGNORECASE)
_NO_SECRET = re.compile(
    r"|true|false|none|null|default|auto|-?[0-9.]{1,20}[a-z]{0,2}|(?:env|file|vault|arn|fd):.*|/.*"
    r"|[a-z][a-z0-9+.-]*://.*|\$\{.*|[a-z]\w*(?:\.\w+){2,}",
    re.IGNORECASE | re.DOTALL,
)
_SECRET = "a secret by its name"  # noqa: S105 (it is said of what is one)
_REDACTED = "redacted)"


def _judged(name: str, value: str) -> str | None:
    """Say what a value is, by the name that it has; None if it is no secret."""
    value = value.strip()
    if not value or _REDACTED in value or "***" in value:
        return None
    if _KEY_LIST.search(name):
        return "keys themselves"
    if _ABOUT.search(name):
        return None
    if "key" in name.lower() and _has_key(value):
        return "what has the form of a key"
    if _SECRET_NAMES.search(name) and not _NO_SECRET.fullmatch(value):
        return _SECRET
    return None


_KEY_TEXT = re.compile(r"(?<![A-Za-z0-9+/_-])[A-Za-z0-9+/_-]{22,64}={0,2}(?![A-Za-z0-9+/=_-])")


def _has_key(value: str) -> bool:
    return any(_is_key(piece) for piece in _KEY_TEXT.findall(value))


def _is_key(text: str) -> bool:
    """Tell the hex or base64 of 16, 24 or 32 bytes; unpadded base64 by its mix of letters."""
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


def _shown(name: str | None) -> str | None:
    """Give a name that may be printed: a key can stand in its place, too."""
    if name is None or not name:
        return None
    return "(not repeated)" if _has_key(name) or len(name) > 300 else name
