"""The schemas of the command line's JSON; `tests/support/valid_json.py` holds outputs to them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import jsonschema

from modcrypt.module_ids import ModuleType
from tests.support.cases import each_case
from tools.json_schemas import PATH, describe_type, format_schemas, make_schemas


def test_the_file_is_what_the_classes_give() -> None:
    assert PATH.read_text() == format_schemas(), "run python -m tools.json_schemas"


def test_each_schema_is_one() -> None:
    for schema in make_schemas()["$defs"].values():
        jsonschema.Draft202012Validator.check_schema(schema)


@dataclass
class Pair:
    """A class with members of two types."""

    name: str
    sizes: tuple[int, ...]


TYPES: dict[str, tuple[Any, Any]] = {
    "optional": (str | None, {"type": ["null", "string"]}),
    "choice": (Literal["a", "b"], {"type": "string", "enum": ["a", "b"]}),
    "optional choice": (Literal["a"] | None, {"type": ["null", "string"], "enum": ["a", None]}),
    "several": (Sequence[float], {"type": "array", "items": {"type": "number"}}),
    "enumeration": (ModuleType, {"type": "string"}),
    "anything": (Any, {}),
    "class": (Pair, {
        "type": "object", "required": ["name", "sizes"],
        "properties": {"name": {"type": "string"},
                       "sizes": {"type": "array", "items": {"type": "integer"}}},
    }),
    "optional member": ({"name?": str}, {
        "type": "object", "required": [], "properties": {"name": {"type": "string"}},
    }),
}  # fmt: skip


@each_case("name", TYPES)
def test_types_have_schemas(name: str) -> None:
    kind, schema = TYPES[name]
    assert describe_type(kind) == schema
