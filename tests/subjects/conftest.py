"""A vault of subjects' keys, and what opens it."""

from __future__ import annotations

from pathlib import Path

import pytest

import modcrypt as mc
from modcrypt.kms.key_tools import KeyTools
from modcrypt.subjects.vault import SubjectVault, create_vault


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> KeyTools:
    """Tools of a keyring in the working directory, which is an empty folder otherwise."""
    monkeypatch.chdir(tmp_path)
    mc.Keyring.create("lake.keyring", plaintext=True).create_key("people")
    return KeyTools("file:lake.keyring#people")


@pytest.fixture
def vault(tools: KeyTools) -> SubjectVault:
    """A vault in the working directory."""
    return create_vault("subjects.db", tools, "people")
