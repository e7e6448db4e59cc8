"""The declarations of docs/how-to/lake.md are valid; tests/docs runs its examples."""

from __future__ import annotations

import re
from pathlib import Path

from modcrypt.lake.declarations.declaration_file import read_content, require_valid
from modcrypt.lake.files.file_states import STATES
from tests.support.guide import blocks_of
from tests.support.paths import ROOT


def test_the_declarations_that_are_shown_are_valid(tmp_path: Path) -> None:
    shown = [block.text for block in blocks_of("how-to/lake.md") if block.language == "toml"]
    first, table, more = shown
    config = tmp_path / "modcrypt.toml"
    config.write_text(first + table + more)
    declaration = require_valid(read_content(config))
    orders, sales = declaration.datasets["orders"], declaration.tables["sales"]
    assert (sales.policy, sales.max_kek_age) == ({"kek_per": "day"}, 365 * 86400)
    assert orders.previous.master_keys == {"old-pii": "pii"}
    assert orders.rotation.max_version_age == 365 * 86400


def test_the_table_names_every_state() -> None:
    page = (ROOT / "docs/reference/lake.md").read_text()
    assert re.findall(r"^\| `([a-z-]+)` \| .* \| .* \|$", page, re.MULTILINE) == list(STATES)
