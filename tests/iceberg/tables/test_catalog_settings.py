"""pyiceberg's configuration counts only if the user named it, and only for its own server."""

from __future__ import annotations

from pathlib import Path

import pytest

from modcrypt.iceberg.tables.catalog_opening import find_settings
from tests.support.cases import each_case

FILE = "catalog:\n  prod:\n    uri: https://catalog.example\n    py-io-impl: evil.Evil\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cloned folder, and a user without a configuration of pyiceberg."""
    (tmp_path / "home").mkdir()
    (tmp_path / "cloned").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("PYICEBERG_HOME", raising=False)
    monkeypatch.chdir(tmp_path / "cloned")
    return tmp_path


@each_case("catalog", ["prod", "sqlite:///catalog.db", "https://catalog.example"])
def test_the_file_of_the_working_directory_does_not_count(
    catalog: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "cloned/.pyiceberg.yaml").write_text(FILE)
    with pytest.raises(ValueError, match="set PYICEBERG_HOME to its folder"):
        find_settings(catalog, "prod")
    monkeypatch.setenv("PYICEBERG_HOME", str(folder / "cloned"))
    assert find_settings(catalog, "prod")
    monkeypatch.delenv("PYICEBERG_HOME")
    (folder / "home/.pyiceberg.yaml").write_text(FILE)
    assert find_settings(catalog, "prod")  # that of the home folder takes precedence


@each_case(
    ("uri", "name", "goes"),
    [
        ("https://catalog.example", None, True),
        ("https://other.example", None, False),
        ("https://other.example", "default", False),
        ("https://other.example", "lake", True),
        ("thrift://other.example:9083", None, False),
        ("sqlite:///catalog.db", None, True),
    ],
)
def test_credentials_go_only_to_the_server_that_is_configured_with_them(
    uri: str, name: str | None, goes: bool, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYICEBERG_CATALOG__DEFAULT__URI", "https://catalog.example")
    monkeypatch.setenv("PYICEBERG_CATALOG__DEFAULT__TOKEN", "Zq9-token")
    if goes:
        assert find_settings(uri, name)[1]["uri"] == uri
        return
    with pytest.raises(ValueError, match="whose credentials are not sent") as caught:
        find_settings(uri, name)
    assert "Zq9" not in str(caught.value)
