"""Open a pyiceberg catalog by its URI, or by its name in pyiceberg's configuration.

pyiceberg reads `.pyiceberg.yaml` of the working directory, too, and adds the settings of a
configured catalog to a URI. Neither is the user's word: the file may come with a cloned folder, and
the credentials of a catalog are for its own server. So `find_settings` comes first, and its result
goes to `open_pyiceberg_catalog`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyiceberg.catalog import (
    PY_CATALOG_IMPL,
    Catalog,
    CatalogType,
    infer_catalog_type,
    load_catalog,
)
from pyiceberg.utils.config import PYICEBERG_HOME, PYICEBERG_YML, Config, merge_config

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


def open_pyiceberg_catalog(name: str, **properties: str) -> Catalog:
    """Open a catalog as pyiceberg's `load_catalog` does, a REST catalog with limited requests.

    Raise ValueError or ImportError as pyiceberg's `load_catalog`; and OSError if the server of a
    REST catalog failed, or its answer is refused.
    """
    settings: dict[str, Any] = merge_config(Config().get_catalog_config(name) or {}, {**properties})
    if not _is_rest(name, settings):
        return load_catalog(name, **properties)
    from modcrypt.iceberg.tables.rest_requests import LimitedRestCatalog  # importing it takes long
    from modcrypt.kms.services.bounded_http import UnacceptableAnswerError

    try:
        return LimitedRestCatalog(name, **settings)
    except UnacceptableAnswerError as error:
        raise OSError(f"the REST catalog's answer is refused: {error}") from None


def _is_rest(name: str, settings: dict[str, Any]) -> bool:
    if PY_CATALOG_IMPL in settings or not settings.get("uri"):
        return False
    if kind := settings.get("type"):
        return str(kind).lower() == CatalogType.REST.value
    return infer_catalog_type(name, settings) is CatalogType.REST
