"""The pages about Iceberg name what there is; tests/docs runs their examples."""

from __future__ import annotations

from modcrypt.iceberg.commands.iceberg_group import iceberg
from modcrypt.runtime.lazy_names import public_names
from tests.support.paths import ROOT

PAGES = ("how-to/iceberg", "how-to/iceberg-catalogs", "reference/iceberg")
TEXT = "".join((ROOT / f"docs/{page}.md").read_text() for page in PAGES)


def test_every_public_name_and_command_is_named() -> None:
    functions = {name for name in public_names("modcrypt.iceberg") if name.islower()}
    choices = {"FileKeyStore", "KeyPolicy", "KeyStore", "SqliteKeyStore"}
    assert choices <= set(public_names("modcrypt.iceberg"))
    assert {name for name in functions | choices if name not in TEXT} == set()
    assert [name for name in iceberg.commands if f"modcrypt iceberg {name} " not in TEXT] == []
