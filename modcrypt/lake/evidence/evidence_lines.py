"""The lines of the record of evidence beside a declaration: `modcrypt.evidence.jsonl`.

    {"schema": ..., "number": 7, "previous": "5e0f...", "time": ..., "event": "apply", ...}

Each line has the SHA-256 of the line before, so that a line cannot be changed, removed, inserted or
moved without a change of all that follow, and it may be signed. Lines contain no key, no value of a
file and no path inside a dataset, which may have values of partitions.
"""

from __future__ import annotations

import hashlib
import json
import os
import types
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from modcrypt.errors import KeyMaterialError
from modcrypt.kms.signing.signing_keys import SigningKey
from modcrypt.lake.evidence.events import DatasetResult, EvidenceEvent
from modcrypt.lake.record_file import encode_line
from modcrypt.pkmt1.strict_json import strict_json
from modcrypt.report.short_repr import default_of

SCHEMA = "modcrypt.lake.evidence/1"  # the name and version of a line; signatures begin with it

MAX_RECORD = 64 << 20
"""Size limit of a record in bytes, which is read and replaced as a whole for each line."""

MAX_LINES = 100_000
"""Largest number of lines: two a run, once an hour, for five years."""

MAX_LINE = 32 << 10
"""Length limit of a line in bytes: that of its results, and twice a post-quantum signature."""

MAX_RESULTS = 16 << 10
"""Length limit of the results in a line, in bytes: those of about a hundred datasets."""

MAX_COUNT = 1 << 53
"""Largest number in a line: all readers of JSON represent it."""

START = "0" * 64  # the hash that the first line has in place of that of a line before
_FRAME = ("schema", "previous", "signature")


@dataclass(frozen=True, slots=True)
class EvidenceLine:
    """A line, and its place in the chain."""

    event: EvidenceEvent
    previous: str  # SHA-256 of the line before, in hex
    members: Mapping[str, Any]  # all members as JSON values, among them a signature if it has one


def record_path(declaration: str | os.PathLike[str]) -> Path:
    """Return the path of the record beside a declaration."""
    return Path(declaration).with_suffix(".evidence.jsonl")


def make_line(event: EvidenceEvent, previous: str, signing_key: SigningKey | None) -> bytes:
    """Return the line of an event, whose `hash` does not count, with its end.

    Raise KeyRetrievalError if the signing key is refused or unavailable.
    """
    members = {name: value for name, value in _write(event).items() if name != "hash"}
    return encode_line({"schema": SCHEMA, "previous": previous, **members}, signing_key)


def fit_results(results: Iterable[DatasetResult]) -> tuple[tuple[DatasetResult, ...], int]:
    """Return as many results as a line may have, those with faults first; and how many more."""
    ordered = sorted(results, key=lambda result: result.code == 0)
    sizes = accumulate(len(json.dumps(_write(result))) for result in ordered)
    count = sum(size <= MAX_RESULTS for size in sizes)
    return tuple(ordered[:count]), len(ordered) - count


def _write(value: Any) -> Any:
    """Return a value for JSON; attributes that have their default are left out."""
    if is_dataclass(value):
        given = {each.name: getattr(value, each.name) for each in fields(value)}
        absent = {each.name: default_of(each) for each in fields(value)}
        return {name: _write(each) for name, each in given.items() if each != absent[name]}
    return [_write(each) for each in value] if isinstance(value, tuple) else value


def hash_line(text: bytes) -> str:
    """Return the hash of a line, without its end."""
    return hashlib.sha256(text).hexdigest()


def parse_line(text: bytes) -> EvidenceLine:
    """Return what a line says, without a look at its place and signature.

    Raise ValueError if it is not a line of evidence in the form in which modcrypt writes it.
    """
    if len(text) > MAX_LINE:
        raise ValueError(f"is longer than {MAX_LINE} bytes")
    try:
        given = strict_json(text)
        written = encode_line(given) if isinstance(given, dict) else b""
    except (KeyMaterialError, RecursionError):
        raise ValueError("is not valid JSON, or a member is repeated") from None
    if not written or given.get("schema") != SCHEMA:
        raise ValueError(f"is not evidence of the form {SCHEMA}")
    if written != text + b"\n":  # other forms would have other hashes
        raise ValueError("is not written as modcrypt writes it")
    members = {name: value for name, value in given.items() if name not in _FRAME}
    event = _read(EvidenceEvent, {**members, "hash": hash_line(text)})
    return EvidenceLine(event, _read(str, given.get("previous")), given)


def _read(kind: Any, value: Any) -> Any:
    """Return a value of JSON as one of a type; raise ValueError if it is of another."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Sequence and isinstance(value, list):
        return tuple(_read(arguments[0], each) for each in value)
    if origin is Mapping and isinstance(value, dict):
        return {name: _read(arguments[1], each) for name, each in value.items()}
    is_count = type(value) is not int or 0 <= value <= MAX_COUNT
    if type(value) in (arguments if origin is types.UnionType else (kind,)) and is_count:
        return value
    hints = _types_of(kind)
    if isinstance(value, dict) and value.keys() <= hints.keys():
        members = {name: _read(hints[name], each) for name, each in value.items()}
        with suppress(TypeError):  # a member is missing
            return kind(**members)
    raise ValueError("has members that evidence does not have, or lacks some")


@cache
def _types_of(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind) if is_dataclass(kind) else {}
