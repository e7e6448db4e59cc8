"""Make what follows from the table of settings: a JSON Schema, and tables of the documentation.

`python -m tools.settings_tables` writes the schema, which a test compares; the website draws the
tables.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from modcrypt.lake.declarations import member_table
from modcrypt.settings.setting import Setting, settings_of
from modcrypt.settings.table import PolicySettings
from modcrypt.spark.key_options import KEY_OPTIONS
from tools.docs.markdown_table import draw_table

SCHEMA = Path(member_table.__file__).with_name("modcrypt.schema.json")
_MEMBERS: Mapping[str, Iterable[Setting]] = {
    "evidence": member_table.EVIDENCE_MEMBERS.values(),
    "policy": settings_of(PolicySettings).values(),
}


def make_schema() -> str:
    """Return the JSON Schema of a declaration."""
    return json.dumps(member_table.make_schema(), indent=2) + "\n"


def draw_settings(table: str) -> str:
    """Return one of the tables: "evidence", "policy", or "spark" for the options of its source."""
    if table == "spark":
        options = [(f"`{name}`", s.use, s.text) for name, s in KEY_OPTIONS.items()]
        return draw_table(["Option", "For", "Meaning"], options)
    rows = [(f"`{s.name}`", _show_default(s), s.text) for s in _MEMBERS[table]]
    return draw_table(["Member", "Default", "Meaning"], rows)


def _show_default(setting: Setting) -> str:
    if setting.required:
        return "required"
    if not setting.default and setting.default is not False:
        return "none"
    default = setting.default
    return f"`{f'{default:g}' if isinstance(default, float) else json.dumps(default)}`"


if __name__ == "__main__":
    SCHEMA.write_text(make_schema())
