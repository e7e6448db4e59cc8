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
