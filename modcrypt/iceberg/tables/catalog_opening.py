"""Open a pyiceberg catalog by its name in pyiceberg's configuration, or by its properties."""

from __future__ import annotations

from typing import Any

from pyiceberg.catalog import (
    PY_CATALOG_IMPL,
    Catalog,
    CatalogType,
    infer_catalog_type,
    load_catalog,
)
from pyiceberg.utils.config import Config, merge_config


def open_pyiceberg_catalog(name: str, **properties: str) -> Catalog:
    """Open a catalog as pyiceberg's `load_catalog` does, a REST catalog with limited requests.

    Raises:
        ValueError, ImportError: As pyiceberg's `load_catalog`.
        OSError: The server of a REST catalog failed, or its answer is refused.
    """
    settings: dict[str, Any] = merge_config(Config().get_catalog_config(name) or {}, {**properties})
    if not _is_rest(name, settings):
        return load_catalog(name, **properties)
    from modcrypt.iceberg.tables.rest_catalog import LimitedRestCatalog  # importing it takes long
    from modcrypt.kms.services.bounded_http import UnacceptableAnswerError

    try:
        return LimitedRestCatalog(name, **settings)
    except UnacceptableAnswerError as error:
        raise OSError(f"the REST catalog's answer is refused: {error}") from None


def _is_rest(name: str, settings: dict[str, Any]) -> bool:
    if PY_CATALOG_IMPL in settings or not settings.get("uri"):
        return False
    kind = settings.get("type")
    if kind:
        return str(kind).lower() == CatalogType.REST.value
    return infer_catalog_type(name, settings) is CatalogType.REST
