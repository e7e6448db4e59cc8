"""spec-vectors/seals against modcrypt; `tools/vectors.py check` has the independent verifier."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import modcrypt as mc
from modcrypt.errors import ERRORS_BY_WORD
from modcrypt.iceberg.format.table_versions import read_metadata
from modcrypt.iceberg.read.table_seals import check_table_seal
from modcrypt.io.places import Place
from modcrypt.kms.signing.ledger import SEAL_NAME
from modcrypt.kms.signing.signing_keys import check_verifying_keys
from tests.support.cases import each_case
from tools import seal_vectors, vectors, verify_seal

CASES: list[dict[str, Any]] = vectors.load("seals/cases.json")


def verify_folder(case: dict[str, Any], folder: Path) -> list[list[str]]:
    """Return the findings of modcrypt about the folder of a case."""
    for path, content in case["files"].items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(bytes.fromhex(content))
    by = [mc.VerifyingKey.parse(line) for line in case["signed_by"]]
    found = mc.verify_seal(folder, by, at_least=case["at_least"]).findings
    return [[finding.path, finding.problem] for finding in found]


def verify_table(case: dict[str, Any], folder: Path) -> None:
    place = Place(None, str(folder / "v2.metadata.json"))
    Path(place.path).write_text(case["metadata"])
    by = check_verifying_keys([mc.VerifyingKey.parse(line) for line in case["signed_by"]])
    check_table_seal(place, read_metadata(place), by, case["at_least"])


@each_case("case", CASES, ids=[case["id"] for case in CASES])
def test_modcrypt_judges_as_the_vectors_say(case: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / SEAL_NAME).write_bytes(case["seal"].encode())
    verify: Any = verify_table if "metadata" in case else verify_folder
    if case["expect"] == "ok":
        assert verify(case, tmp_path) == case.get("findings")
        return
    with pytest.raises(mc.ModcryptError) as caught:
        verify(case, tmp_path)
    assert type(caught.value) is ERRORS_BY_WORD[case["expect"]]


@each_case("case", CASES, ids=[case["id"] for case in CASES])
def test_the_independent_verifier_agrees(case: dict[str, Any]) -> None:
    assert verify_seal.find_disagreement(case) is None
    for word in {"ok", "integrity", "format"} - {case["expect"]}:
        assert verify_seal.find_disagreement({**case, "expect": word})


def test_modcrypt_seals_the_folder_as_the_vectors_do(tmp_path: Path) -> None:
    for path, content in seal_vectors.FILES.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_bytes(content)
    for expected in (seal_vectors.FIRST, seal_vectors.SECOND):
        mc.seal_dataset(tmp_path, seal_vectors.WRITER)
        assert (tmp_path / SEAL_NAME).read_bytes() == expected


def test_the_vectors_cover_what_their_page_lists() -> None:
    counts = Counter(case["expect"] for case in CASES)
    assert counts == {"ok": 15, "integrity": 25, "format": 27}
    findings = {kind for case in CASES for _, kind in case.get("findings", ())}
    assert findings == {"missing", "foreign", "changed"}
    assert all(json.loads(case["metadata"]) for case in CASES if "metadata" in case)
