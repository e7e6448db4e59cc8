"""The option `filters`: conditions on files, on row groups and pages, and on rows."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import chain, product
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from modcrypt.parquet.arrow.filters import as_filter
from modcrypt.parquet.arrow.parquet_file import ParquetFile
from modcrypt.spark.source.options import Alternatives


def filter_terms(filters: Alternatives, target: pa.Schema) -> list[Alternatives]:
    """Return filters that all hold for the selected rows, with values of the columns' types.

    Raise ValueError if a column is not read, or its type can't represent a value.
    """
    alternatives = [[_convert_condition(term, target) for term in terms] for terms in filters]
    if len(alternatives) == 1:
        return [(condition,) for condition in alternatives[0]]
    return [tuple(tuple(chain(*terms)) for terms in alternatives)] if alternatives else []


def _convert_condition(condition: tuple[str, str, Any], target: pa.Schema) -> tuple[Any, ...]:
    """Return a condition as terms of `as_filter` that all hold."""
    name, how, value = condition
    if name not in target.names:
        raise ValueError(f"filters: column {name} is not read; name it in columns, too")
    kind = target.field(name).type
    try:
        if isinstance(value, list):
            values = pa.array([pa.scalar(v).cast(kind) for v in value if v is not None], kind)
            valid = [(name, "is not null", None)] if how == "not in" else []
            return (name, how, values), *valid
        if value is None:
            how = {"=": "is null", "!=": "is not null"}[how.replace("==", "=")]
            return ((name, how, None),)
        terms = ((name, how, pa.scalar(value).cast(kind)),)
        as_filter(terms)
    except (pa.ArrowException, KeyError, TypeError, ValueError):
        # The error's message would contain the value.
        raise ValueError(f"filters: {name} is {kind}; {how} needs a value of that type") from None
    return terms


def split_terms(
    terms: Sequence[Alternatives], own: pa.Schema, target: pa.Schema, file: ParquetFile,
    masked: Collection[str] = (),
) -> tuple[Alternatives | None, pc.Expression | None]:  # fmt: skip
    """Return the filter that the file applies, and the filter to apply to the batches.

    The file applies conditions on columns that have the same type in the file and the table, but
    none on `masked` ones: it and its statistics have the values that the masks hide, or cells.
    """
    here = file.schema_arrow if terms else pa.schema([])
    same = {
        field.name
        for field in own
        if terms
        and field.name not in masked
        and field.type == target.field(field.name).type == here.field(field.name).type
    }
    early = [term for term in terms if _names(term) <= same]
    late = as_filter(_combine([term for term in terms if not _names(term) <= same]))
    return _combine(early), None if late is None else late.expression


def _names(term: Alternatives) -> set[str]:
    return {name for conditions in term for name, _, _ in conditions}


def _combine(terms: Sequence[Alternatives]) -> Alternatives | None:
    """Return one filter for terms that all hold; None for none."""
    return tuple(tuple(chain(*choice)) for choice in product(*terms)) if terms else None


def find_matches(
    values: Sequence[Mapping[str, Any]], terms: Sequence[Alternatives], target: pa.Schema
) -> list[int]:
    """Return the numbers of the files that may have matching rows by the values in folder names."""
    numbers = list(range(len(values)))
    for term in terms:
        names, condition = _names(term), as_filter(term)
        if numbers and condition and all(names <= values[n].keys() for n in numbers):
            columns = {
                name: pa.array([values[n][name] for n in numbers], target.field(name).type)
                for name in names
            }
            table = pa.table({**columns, "": pa.array(numbers)})
            numbers = table.filter(condition.expression)[""].to_pylist()
    return numbers
