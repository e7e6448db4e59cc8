"""The settings about keys as options of Spark's data source and parameters of SQL procedures."""

from __future__ import annotations

from collections.abc import Mapping

from modcrypt.settings.setting import NOT_ON_SPARK, Setting, settings_of
from modcrypt.settings.table import KeyReferences

KEY_OPTIONS: Mapping[str, Setting] = {
    setting.spelt_on_spark: setting
    for setting in settings_of(KeyReferences).values()
    if NOT_ON_SPARK not in setting.absent
}
"""Options that name keys, and what files must be, by their names."""

SHARED_OPTIONS = ("root", "sharedAadPrefix")
"""Options that mean the same for the old and the new files of a procedure."""


def write_java_source() -> str:
    """Return the source of the class with the names of a procedure's parameters about keys."""
    read = [name for name, setting in KEY_OPTIONS.items() if setting.use != "write"]
    write = [name for name, setting in KEY_OPTIONS.items() if setting.use != "read"]
    new = [name for name in write if name not in SHARED_OPTIONS]
    lists = [_write_list(*each) for each in (("READ", read), ("WRITE", write), ("NEW", new))]
    return f"package modcrypt; final class KeyOptions {{ {' '.join(lists)} }}"


def _write_list(name: str, options: list[str]) -> str:
    texts = ", ".join(f'"{option}"' for option in options)
    return f"static final String[] {name} = {{{texts}}};"
