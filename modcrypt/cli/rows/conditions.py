"""Conditions of --where: comparisons of columns with values, combined by `and` and `or`."""

from __future__ import annotations

import itertools
import re
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import click

from modcrypt.errors import printable
from modcrypt.report.suggestions import suggest

if TYPE_CHECKING:  # not to be loaded for the help
    import pyarrow as pa

Field: TypeAlias = "tuple[tuple[str, ...], pa.DataType]"
"""Names of a field and of the structs around it, and its type."""

_OPERATOR = re.compile(r"\s*(is not null\b|is null\b|==|=|!=|<=|>=|<|>)\s*", re.IGNORECASE)
_QUOTED = re.compile(r"""(["'])(.*)\1""", re.DOTALL)
_QUOTED_VALUE = re.compile(r"""\s*(?:"[^"]*"|'[^']*')(?=\s+(?:and|or)\s|\s*$)""", re.IGNORECASE)
_WORD = re.compile(r"\s+(and|or)\s+", re.IGNORECASE)


def parse_conditions(where: Sequence[str], fields: Sequence[pa.Field]) -> list[list[Any]]:
    """Return a filter that all conditions must match, in disjunctive normal form.

    Raise click.UsageError if a condition names no column, or compares it with an invalid value.
    """
    known = dict(_comparable_fields(fields))
    alternatives = [list(_parse_alternatives(condition, known)) for condition in where]
    return [list(itertools.chain(*terms)) for terms in itertools.product(*alternatives)]


def _comparable_fields(
    fields: Sequence[pa.Field], above: tuple[str, ...] = ()
) -> Iterator[tuple[str, Field]]:
    """Yield the fields that a condition may name, by dotted name."""
    import pyarrow as pa

    for field in fields:
        path = (*above, field.name)
        yield ".".join(path), (path, field.type)
        if pa.types.is_struct(field.type):
            yield from _comparable_fields(list(field.type), path)


def _parse_alternatives(text: str, known: Mapping[str, Field]) -> Iterator[list[Any]]:
    """Yield the terms of each alternative of one condition."""
    terms: list[Any] = []
    rest: str | None = text
    while rest is not None:
        term, word, rest = _parse_term(rest.strip(), known)
        terms.append(term)
        if word != "and":
            yield terms
            terms = []


def _parse_term(text: str, known: Mapping[str, Field]) -> tuple[Any, str | None, str | None]:
    """Return a term, the word after it, and the text after that word; None at the end."""
    name, operator, rest = _split_name(text, known)
    path, kind = known[name]
    if operator.startswith("is"):
        value, word, rest_after = _split_value(f" {rest}" if rest else "")
        if value:
            raise click.UsageError(f"--where: remove what follows '{operator}'")
        return (path, operator, None), word, rest_after
    value, word, rest_after = _split_value(rest)
    return (path, operator, _parse_value(value, kind, name)), word, rest_after


def _split_name(text: str, known: Mapping[str, Field]) -> tuple[str, str, str]:
    """Split a text into a column, an operator and the rest; the longest matching name wins."""
    for name in sorted(known, key=len, reverse=True):
        match = _OPERATOR.match(text, len(name)) if text.startswith(name) else None
        if match is not None:
            return name, match[1].lower(), text[match.end() :]
    start = re.match(r"[^\s=!<>]+", text)
    question = suggest(start[0], known) if start else ""
    raise click.UsageError(
        "--where takes a column of the file, one of = != < <= > >= and a value, or 'is null' or "
        f"'is not null', combined by and and or{question}"
    )


def _split_value(text: str) -> tuple[str, str | None, str | None]:
    """Split a value from the word `and` or `or` after it, and from the text after that word."""
    quoted = _QUOTED_VALUE.match(text)
    if (match := _WORD.search(text, quoted.end() if quoted else 0)) is None:
        return text.strip(), None, None
    return text[: match.start()].strip(), match[1].lower(), text[match.end() :]


def _parse_value(value: str, kind: pa.DataType, name: str) -> pa.Scalar:
    """Return a value converted to the column's type; quotes around it are removed."""
    import pyarrow as pa

    if match := _QUOTED.fullmatch(value):
        value = match[2]
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    try:
        if kind == pa.uuid():
            return pa.scalar(uuid.UUID(value), kind)
        return pa.scalar(value).cast(kind)
    except (pa.ArrowException, ValueError):
        raise click.UsageError(
            f"--where: {printable(name)} has the type {kind} and cannot be compared with this value"
        ) from None
