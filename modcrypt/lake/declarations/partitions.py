"""Values of Hive partitions in the names of master keys and in AAD prefixes.

    tenant-{partition.tenant}    tenant=acme/day=2026-11-26/part-0.parquet  ->  tenant-acme

Anyone who can write to the dataset chooses the names of folders. A value must therefore not escape
its pattern: it has few characters, and none of those that separate two values.
"""

from __future__ import annotations

import posixpath
import re
import urllib.parse
from collections.abc import Iterable, Mapping

from modcrypt.errors import printable

NULL = "__HIVE_DEFAULT_PARTITION__"
"""The name of a folder that stands for a partition without a value."""

MAX_VALUE = 64
"""Length limit of a partition value in a master key id or AAD prefix, in characters."""

_PLACE = re.compile(r"\{partition\.([^{}]*)\}")
_VALUE = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")


def names_in(template: str) -> list[str]:
    """Return the names of the partitions that a template refers to."""
    return _PLACE.findall(template)


def matches(template: str, text: str) -> bool:
    """Return whether a text is a template with some values of partitions."""
    parts = map(re.escape, _PLACE.split(template)[::2])
    return re.fullmatch(_VALUE.pattern.join(parts), text) is not None


def matches_any(templates: Iterable[str], text: str) -> bool:
    """Return whether a text is one of some templates with some values of partitions."""
    return any(matches(template, text) for template in templates)


def is_ambiguous(template: str) -> bool:
    """Return whether nothing separates two values in a template."""
    return any(not text for text in _PLACE.split(template)[2:-1:2])


def has_other_places(template: str, allowed: Iterable[str] = ()) -> bool:
    """Return whether a template has braces besides its partitions and the allowed placeholders."""
    rest = _PLACE.sub("", template)
    for place in allowed:
        rest = rest.replace(place, "")
    return "{" in rest or "}" in rest


def fill(template: str, values: Mapping[str, str]) -> str:
    """Return a template with the values of a file's partitions.

    Raise ValueError if the file has no such partition, or a value could escape its pattern.
    """
    parts = _PLACE.split(template)
    separators = set("".join(parts[2:-1:2]))
    return "".join(
        _check_value(part, values, separators) if number % 2 else part
        for number, part in enumerate(parts)
    )


def _check_value(name: str, values: Mapping[str, str], separators: set[str]) -> str:
    if (value := values.get(name)) is None or value == NULL:
        raise ValueError(f"the file is in no folder {name}=VALUE, which the declaration needs")
    if len(value) > MAX_VALUE or not _VALUE.fullmatch(value) or ".." in value:
        raise ValueError(
            f"the partition value {name}={printable(value, MAX_VALUE)} cannot be part of a key's "
            f"name or an AAD prefix: use 1 to {MAX_VALUE} letters, digits, and . _ - between them"
        )
    if bad := sorted(separators.intersection(value)):
        raise ValueError(
            f"the partition value {name}={value} contains {' '.join(bad)}, which separates values "
            "in the declaration"
        )
    return value


def read_values(inside: str) -> dict[str, str]:
    """Return the values of the Hive partitions in a path inside a dataset.

    Raise ValueError if a partition occurs twice.
    """
    values: dict[str, str] = {}
    for folder in posixpath.dirname(inside).split("/"):
        name, equals, value = folder.partition("=")
        if not equals:
            continue
        if name in values:
            raise ValueError(f"the path contains the partition {printable(name, MAX_VALUE)} twice")
        values[name] = urllib.parse.unquote(value)
    return values
