"""Check messages against messages.schema.json: the part of JSON Schema that this file uses."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

SCHEMA = Path(__file__).with_name("messages.schema.json")
_TYPES: dict[str, type | tuple[type, ...]] = {
    "object": dict,
    "array": list,
    "string": str,
    "boolean": bool,
    "integer": int,
    "null": type(None),
}


class InvalidMessageError(ValueError):
    """A message differs from its schema."""


def check_message(message: Any, name: str) -> None:
    """Raise InvalidMessageError unless a message fits the definition `name`."""
    document = _document()
    if problem := _problem(message, document["$defs"][name], document, name):
        raise InvalidMessageError(problem)


@cache
def _document() -> dict[str, Any]:
    document: dict[str, Any] = json.loads(SCHEMA.read_text())
    return document


def _problem(value: Any, schema: dict[str, Any], document: dict[str, Any], at: str) -> str | None:
    if "$ref" in schema:
        name = schema["$ref"].removeprefix("#/$defs/")
        return _problem(value, document["$defs"][name], document, at)
    if "oneOf" in schema:
        return _none_of(value, schema["oneOf"], document, at)
    if "const" in schema and value != schema["const"]:
        return f"{at} is not {schema['const']!r}"
    if "enum" in schema and value not in schema["enum"]:
        return f"{at} is not one of {', '.join(map(str, schema['enum']))}"
    if "type" in schema and not _has_type(value, schema["type"]):
        return f"{at} is not of type {schema['type']}"
    if isinstance(value, str) and not _is_text(value):
        return f"{at} has half of a surrogate pair"
    if isinstance(value, str) and not re.fullmatch(schema.get("pattern", ".*"), value, re.DOTALL):
        return f"{at} does not match {schema['pattern']}"
    if isinstance(value, dict):
        return _object_problem(value, schema, document, at)
    if isinstance(value, list) and "items" in schema:
        found = (_problem(v, schema["items"], document, f"{at}[{n}]") for n, v in enumerate(value))
        return next(filter(None, found), None)
    return None


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _has_type(value: Any, names: str | list[str]) -> bool:
    return any(
        isinstance(value, _TYPES[name]) and (name == "boolean" or not isinstance(value, bool))
        for name in ([names] if isinstance(names, str) else names)
    )


def _none_of(
    value: Any, schemas: list[dict[str, Any]], document: dict[str, Any], at: str
) -> str | None:
    meant = [schema for schema in schemas if _is_meant(value, schema, document)]
    if not meant:
        names = (schema["$ref"].rpartition("/")[2] for schema in schemas)
        return f"{at} has the outcome or format of none of {', '.join(names)}"
    problems = [_problem(value, schema, document, at) for schema in meant]
    return None if None in problems else "; or ".join(filter(None, problems))


def _is_meant(value: Any, schema: dict[str, Any], document: dict[str, Any]) -> bool:
    """Return whether a message has the format or outcome that a schema is for."""
    properties = document["$defs"][schema["$ref"].removeprefix("#/$defs/")]["properties"]
    return isinstance(value, dict) and all(
        _problem(value.get(name), properties[name], document, name) is None
        for name in ("format", "outcome")
        if name in properties
    )


def _object_problem(
    value: dict[str, Any], schema: dict[str, Any], document: dict[str, Any], at: str
) -> str | None:
    if missing := [name for name in schema.get("required", ()) if name not in value]:
        return f"{at} lacks {', '.join(missing)}"
    properties, others = schema.get("properties", {}), schema.get("additionalProperties", True)
    for name, entry in value.items():
        inner = properties.get(name, others)
        if inner is False:
            return f"{at} has an unknown member {name}"
        if isinstance(inner, dict) and (
            problem := _problem(entry, inner, document, f"{at}.{name}")
        ):
            return problem
    return None
