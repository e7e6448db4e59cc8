"""pyiceberg's REST catalog, with requests that are limited from the first one on."""

from __future__ import annotations

from typing import Any

from pyiceberg.catalog.rest import RestCatalog
from requests import Session

from modcrypt.iceberg.tables.rest_requests import limit_session


class LimitedRestCatalog(RestCatalog):
    """A REST catalog whose answers are limited, and that keeps its user's settings apart.

    pyiceberg asks for a token and the server's settings when it creates the catalog, and adds the
    latter to the user's.
    """

    def __init__(self, name: str, **properties: Any) -> None:
        self.own_settings = dict(properties)
        super().__init__(name, **properties)

    def _create_session(self) -> Session:
        session = super()._create_session()
        limit_session(session)  # again: signing adds an adapter
        return session

    def _create_legacy_oauth2_auth_manager(self, session: Session) -> Any:
        limit_session(session)  # it asks for a token at once
        return super()._create_legacy_oauth2_auth_manager(session)
