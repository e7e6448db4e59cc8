"""A cache folder of its own for each test, and no declaration from the environment."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def own_lake_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep tests from the user's cache."""
    for name in ("MODCRYPT_CONFIG", "MODCRYPT_KMS", "VAULT_ADDR", "MODCRYPT_PASSPHRASE"):
        monkeypatch.delenv(name, raising=False)
    cache = tmp_path / "cache"
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    return cache
