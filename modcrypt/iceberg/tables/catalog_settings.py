"""The settings with which pyiceberg opens a catalog, named by its URI or in the configuration.

pyiceberg reads `.pyiceberg.yaml` of the working directory, too, and adds the settings of a
configured catalog to a URI. Neither is the user's word: the file may come with a cloned folder, and
the credentials of a catalog are for its own server.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyiceberg.utils.config import PYICEBERG_HOME, PYICEBERG_YML, Config

from modcrypt.errors import MAX_NAME, printable


def find_settings(
    catalog: str, name: str | None, *, create: bool = False
) -> tuple[str, Mapping[str, str]]:
    """Return the name and the properties for pyiceberg's `load_catalog`.

    Args:
        catalog: URI of the catalog, or its name in pyiceberg's configuration.
        name: Name of an SQL catalog in its database; None for `default`.
        create: Whether to create the tables of an SQL catalog.

    Raises:
        ValueError: The catalog is not configured, only a file in the working directory configures
            it, or credentials of another server would be sent to the URI.
    """
    _refuse_found_file()
    if ":" not in catalog:
        if Config().get_catalog_config(catalog) is None:
            raise ValueError(
                "pyiceberg's configuration (~/.pyiceberg.yaml, or PYICEBERG_CATALOG__NAME__URI) "
                f"has no catalog {printable(catalog, MAX_NAME)}"
            )
        return catalog, {}
    name = name or "default"
    configured: Mapping[str, Any] = Config().get_catalog_config(name) or {}
    if configured.get("uri") not in (None, catalog) and not catalog.startswith("sqlite"):
        raise ValueError(
            f"pyiceberg's configuration has another URI for the catalog {printable(name, MAX_NAME)}"
            ", whose credentials are not sent to this one; configure a catalog for this URI, and "
            "pass its name"
        )
    return name, {"uri": catalog, "init_catalog_tables": str(create).lower()}


def _refuse_found_file() -> None:
    """Raise if pyiceberg has its configuration from the working directory, which nobody named."""
    own = [os.environ.get(PYICEBERG_HOME), os.path.expanduser("~")]
    named = [Path(folder) / PYICEBERG_YML for folder in own if folder]
    found = Path.cwd() / PYICEBERG_YML
    if found.is_file() and not any(file.is_file() and file.stat().st_size for file in named):
        raise ValueError(
            f"{found} was not named, only found, and could have pyiceberg run code; if you agree, "
            f"set {PYICEBERG_HOME} to its folder"
        )
