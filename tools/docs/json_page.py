"""The reference page of the JSON that the command line prints, from its schemas."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib import resources
from typing import Any

from modcrypt.cli.output.json_output import SCHEMAS

_INTRODUCTION = """\
# Output as JSON

With `--json`, commands print one object a line on stdout, also for a failure.
Its member `schema` names the form of the object and its version.
A later release may add members to a version; a change of existing members gets a new version.
Rows that `head` and `cat` print are not such objects: their members are the columns.

The package contains [JSON Schemas](https://json-schema.org) for all of them, under `$defs` of
`modcrypt/cli/output/json_schemas.json`.

The classes of the [Python reference](api/verify.md) describe the contents of files and tables;
their attributes have the same names.
"""


def make_json_page() -> str:
    """Return the page as Markdown."""
    return "\n".join([_INTRODUCTION, *(_describe(*entry) for entry in load_schemas().items())])


def load_schemas() -> dict[str, Any]:
    """Return the schema of each object, by the name and version that the object contains."""
    text = resources.files("modcrypt.cli.output").joinpath(SCHEMAS).read_text()
    schemas: dict[str, Any] = json.loads(text)["$defs"]
    return schemas


def _describe(name: str, schema: dict[str, Any]) -> str:
    head = "| Member | Type | |\n|---|---|---|"
    return "\n".join([f"## `{name}`\n", f"{schema['description']}\n", head, *_rows(schema), ""])


def _rows(schema: dict[str, Any]) -> Iterator[str]:
    for member, kind in schema["properties"].items():
        if member != "schema":
            note = "" if member in schema["required"] else "optional"
            yield f"| `{member}` | {_type_of(kind)} | {note} |"


def _type_of(kind: dict[str, Any]) -> str:
    types = kind["type"] if isinstance(kind["type"], list) else [kind["type"]]
    text = " or ".join(types)
    return f"{text} of {_type_of(kind['items'])}" if "items" in kind else text
