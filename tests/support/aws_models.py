"""Clients of AWS that are cheap to make: botocore parses each description of a service once."""

from __future__ import annotations

from typing import Any

from botocore.loaders import JSONFileLoader

_parsed: dict[str, Any] = {}
_load_file = JSONFileLoader.load_file


def remember_models() -> None:
    """Have all clients that this process makes share the parsed descriptions."""

    def load_file(self: JSONFileLoader, path: str) -> Any:
        if path not in _parsed:
            _parsed[path] = _load_file(self, path)
        return _parsed[path]

    JSONFileLoader.load_file = load_file
