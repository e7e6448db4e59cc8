"""Write what is derived from the table of settings: a JSON Schema, and tables of the documentation.

`python -m tools.settings_tables` writes them; a test compares them. In a page, a table lies between
`<!-- settings: NAME -->`, an empty line, and the next one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from modcrypt.lake.declarations import member_table
from modcrypt.settings.setting import Setting, settings_of
from modcrypt.settings.table import PolicySettings
from modcrypt.spark.key_options import KEY_OPTIONS

ROOT = Path(__file__).resolve().parent.parent
SCHEMA = Path(member_table.__file__).with_name("modcrypt.schema.json")
PAGES = (ROOT / "docs/reference/configuration.md", ROOT / "docs/reference/spark.md")


def make_files() -> dict[Path, str]:
    """Return the derived files, by path."""
    schema = json.dumps(member_table.make_schema(), indent=2) + "\n"
    return {SCHEMA: schema, **{page: _fill(page.read_text()) for page in PAGES}}


def _fill(page: str) -> str:
    """Return a page with its tables."""
    pattern = re.compile(r"(?<=<!-- settings: )(\w+)( -->\n\n).*?(?=\n\n)", re.DOTALL)
    return pattern.sub(lambda found: f"{found[1]}{found[2]}{_TABLES[found[1]]}", page)


def _write_policy(settings: Iterable[Setting]) -> Iterator[str]:
    yield "| Member | Default | Meaning |\n|---|---|---|"
    for setting in settings:
        yield f"| `{setting.name}` | {_show_default(setting)} | {_escape(setting.text)} |"


def _show_default(setting: Setting) -> str:
    if setting.required:
        return "required"
    if not setting.default and setting.default is not False:
        return "none"
    default = setting.default
    return f"`{f'{default:g}' if isinstance(default, float) else json.dumps(default)}`"


def _write_spark(options: Iterable[tuple[str, Setting]]) -> Iterator[str]:
    yield "| Option | For | Meaning |\n|---|---|---|"
    for name, setting in options:
        yield f"| `{name}` | {setting.use} | {_escape(setting.text)} |"


def _escape(text: str) -> str:
    return text.replace("|", "\\|")


_TABLES = {
    "evidence": "\n".join(_write_policy(member_table.EVIDENCE_MEMBERS.values())),
    "policy": "\n".join(_write_policy(settings_of(PolicySettings).values())),
    "spark": "\n".join(_write_spark(KEY_OPTIONS.items())),
}

if __name__ == "__main__":
    for path, text in make_files().items():
        path.write_text(text)
