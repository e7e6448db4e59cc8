"""Objects of JSON on stdout; each names its schema and the schema's version.

`json_schemas.json` describes them. A later release may add members to a version; a change of
existing members needs a new version.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

SCHEMAS = "json_schemas.json"  # name of the file beside this module that describes each schema


def format_json(schema: str, fields: Mapping[str, Any]) -> str:
    """Return one line of JSON with the name and version of its schema."""
    return dump_line({"schema": f"modcrypt.{schema}/1", **fields})


_ENCODER = json.JSONEncoder(allow_nan=False, check_circular=False)
"""Shared: creating an encoder takes longer than encoding a row."""


def dump_line(value: object) -> str:
    """Return a value as one line of ASCII in which no CI system that logs it finds a command."""
    return _ENCODER.encode(value).replace("##", "#\\u0023")  # Azure Pipelines runs ##vso[command]
