"""The vectors of spec-vectors/recipients, with modcrypt and with the independent verifier."""

from __future__ import annotations

import ast
import json
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import modcrypt as mc
from modcrypt.errors import ModcryptError
from modcrypt.keys import key_bytes
from modcrypt.kms.recipients.identity_retriever import IdentityKeys
from tests.support.cases import each_case
from tests.support.paths import ROOT
from tests.support.recipients import explicit_key
from tools import verify_pme, verify_recipients
from tools.recipient_vectors import PASSPHRASE, RECIPIENTS
from tools.verify_pme import VerifyError

Case = dict[str, Any]


def load(name: str) -> list[Case]:
    cases: list[Case] = json.loads((RECIPIENTS / name).read_text())["cases"]
    return cases


def each(name: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    cases = load(name)
    return each_case("case", cases, ids=[case["id"] for case in cases])


@cache
def identity(name: str, folder: Path) -> mc.Identity:
    """Load an identity from a copy: a checkout does not keep the mode of a private file."""
    copy = Path(shutil.copy(RECIPIENTS / name, folder))
    copy.chmod(0o600)
    return mc.Identity.load(copy, PASSPHRASE if name == "passphrase.key" else None)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("identities")


def verifiers_identity(name: str) -> verify_recipients.Identity:
    word = PASSPHRASE.encode() if name == "passphrase.key" else None
    return verify_recipients.open_identity((RECIPIENTS / name).read_bytes(), word)


def result_of(call: Callable[[], Any]) -> Any:
    """Return the result of a call, or its error code."""
    try:
        return call()
    except (ModcryptError, VerifyError) as error:
        return error.word


@each("lines.json")
def test_lines(case: Case) -> None:
    ours = result_of(lambda: mc.Recipient.parse(case["line"]))
    other = result_of(lambda: verify_recipients.parse_recipient(case["line"]))
    if case["expect"] == "ok":
        assert str(ours) == case["line"]
        assert (ours.kind, ours.public_key) == other
    else:
        assert ours == other == case["expect"]


@each_case("name", sorted(path.name for path in RECIPIENTS.glob("*.key")))
def test_identities(name: str, folder: Path) -> None:
    assert identity(name, folder).recipient.id == verifiers_identity(name).id


def test_a_wrong_passphrase_is_refused_by_both(folder: Path) -> None:
    path = Path(shutil.copy(RECIPIENTS / "passphrase.key", folder / "wrong.key"))
    path.chmod(0o600)
    assert result_of(lambda: mc.Identity.load(path, "wrong")) == "denied"
    data = path.read_bytes()
    assert result_of(lambda: verify_recipients.open_identity(data, b"wrong")) == "denied"


@each("key_metadata.json")
def test_key_metadata(case: Case, folder: Path) -> None:
    footer, aad = case["footer"].encode(), bytes.fromhex(case["file_aad"])
    column = case["column"].encode() if "column" in case else None
    keys = IdentityKeys((identity(case["identity"], folder),), None, lenient=False)
    keys.accept_file(footer, aad)

    def open_ours() -> list[str]:
        found = [keys.retrieve(footer, None)]
        found += [keys.retrieve(column, "c")] if column else []
        return [key_bytes(key).hex() for key in found if isinstance(key, mc.Key)]

    def open_theirs() -> list[str]:
        columns = {"c": column} if column else {}
        theirs = verifiers_identity(case["identity"])
        opened = verify_recipients.open_keys(footer, columns, theirs, aad)
        return [opened.footer_key.hex(), *(key.hex() for key in opened.column_keys.values())]

    if case["expect"] == "ok":
        wanted = [case["footer_key"], *([case["column_key"]] if column else [])]
        assert open_ours() == open_theirs() == wanted
    else:
        assert result_of(open_ours) == result_of(open_theirs) == case["expect"]


@each("files.json")
def test_files(case: Case, folder: Path) -> None:
    data = (RECIPIENTS / case["file"]).read_bytes()
    prefix = bytes.fromhex(case["aad_prefix"]) if "aad_prefix" in case else None
    me, theirs = identity(case["identity"], folder), verifiers_identity(case["identity"])
    ours = result_of(lambda: explicit_key(data, me, aad_prefix=prefix))
    other = result_of(lambda: verify_recipients.read_keys(data, theirs, prefix))
    if case["expect"] == "ok":
        assert ours == other.footer_key
        assert verify_pme.verify(data, other.footer_key, other.column_keys, prefix)
        decryption = mc.FileDecryptionProperties(key_retriever=me, aad_prefix=prefix)
        assert mc.read_table(data, decryption).num_rows == 3
    else:
        assert ours == other == case["expect"]


def test_the_verifier_shares_no_code_with_modcrypt() -> None:
    tree = ast.parse((ROOT / "tools/verify_recipients.py").read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            assert not (node.module or "").startswith("modcrypt")
            if node.module == "tools":
                assert [alias.name for alias in node.names] == ["verify_pme"]
        elif isinstance(node, ast.Import):
            assert not any(alias.name.startswith("modcrypt") for alias in node.names)
