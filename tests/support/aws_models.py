"""Clients and servers of AWS that are cheap: what botocore and moto look up is remembered."""

from __future__ import annotations

import functools
from typing import Any

from botocore.loaders import JSONFileLoader
from moto.moto_server.werkzeug_app import DomainDispatcherApplication

_parsed: dict[str, Any] = {}
_load_file = JSONFileLoader.load_file
_get_backend = functools.cache(DomainDispatcherApplication.get_backend_for_host)


def remember_models() -> None:
    """Have all clients of this process share the parsed descriptions, and servers their services.

    moto lists its own 170 folders twice for each request to find the service of the host.
    """

    def load_file(self: JSONFileLoader, path: str) -> Any:
        if path not in _parsed:
            _parsed[path] = _load_file(self, path)
        return _parsed[path]

    def get_backend(self: DomainDispatcherApplication, host: str | None) -> Any:
        return _get_backend(self, host)

    JSONFileLoader.load_file = load_file
    DomainDispatcherApplication.get_backend_for_host = get_backend  # type: ignore[method-assign]
