"""Every object of JSON that the command line prints in a test fits its schema.

It is on in every process that runs tests, from `tests/conftest.py`, so that no test's result
depends on which others ran before it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from importlib import resources
from typing import Any

import click
import jsonschema
import pytest

from modcrypt.cli.output import json_output

SCHEMAS = json.loads(
    resources.files("modcrypt.cli.output").joinpath(json_output.SCHEMAS).read_text()
)["$defs"]
UNCHANGING = ("failure", "keys.master", "shred.proof", "shred.proof-file")
"""Objects that commands with `--dry-run` do not print in a dry run."""
VALIDATORS = {name: jsonschema.Draft202012Validator(schema) for name, schema in SCHEMAS.items()}


@pytest.fixture(autouse=True, scope="session")
def valid_json() -> Iterator[None]:
    """Check each object where it is made, in this process."""
    make = json_output.format_json

    def check(schema: str, fields: Mapping[str, Any]) -> str:
        line = make(schema, fields)
        shown = json.loads(line)
        VALIDATORS[shown["schema"]].validate(shown)
        assert shown.keys() <= SCHEMAS[shown["schema"]]["properties"].keys()
        context = click.get_current_context(silent=True)
        if context is not None and "dry_run" in context.params and schema not in UNCHANGING:
            assert shown["dry_run"] >= context.params["dry_run"], "it looks like a change"
        return line

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_output, "format_json", check)
        yield
