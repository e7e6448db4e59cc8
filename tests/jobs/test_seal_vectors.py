"""spec-vectors/seals against modcrypt; `tools/vectors.py check` has the independent verifier."""

from __future__ import annotations

import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import modcrypt as mc
from modcrypt.errors import ERRORS_BY_WORD
from modcrypt.iceberg.format.table_versions import read_metadata
from modcrypt.iceberg.read.table_seals import check_table_seal
from modcrypt.io.places import Place
from modcrypt.jobs import dataset_seals
from modcrypt.kms.signing.ledger import ARCHIVE, SEAL_NAME
from modcrypt.kms.signing.signing_keys import check_verifying_keys
from tests.support.cases import each_case
from tools import ledger_vectors, seal_vectors, vectors, verify_seal

CASES: list[dict[str, Any]] = vectors.load("seals/cases.json")


def verify_folder(case: dict[str, Any], folder: Path) -> list[list[str]]:
    """Return the findings of modcrypt about the folder of a case."""
    for path, content in case["files"].items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(bytes.fromhex(content))
    by, witnesses = (
        [mc.kms.VerifyingKey.parse(line) for line in case[name]]
        for name in ("signed_by", "witnessed_by")
    )
    found = mc.jobs.verify_seal(
        folder, by, at_least=case["at_least"], needed=case["needed"], dataset=case["dataset"],
        witnessed_by=witnesses, witness_store=folder / "_modcrypt_seals",
    ).findings  # fmt: skip
    return [[finding.path, finding.problem] for finding in found]


def verify_table(case: dict[str, Any], folder: Path) -> None:
    place = Place(None, str(folder / "v2.metadata.json"))
    Path(place.path).write_text(case["metadata"])
    by = check_verifying_keys([mc.kms.VerifyingKey.parse(line) for line in case["signed_by"]])
    check_table_seal(place, read_metadata(place), by, case["at_least"], case["needed"])


@each_case("case", CASES, ids=[case["id"] for case in CASES])
def test_modcrypt_judges_as_the_vectors_say(case: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / SEAL_NAME).write_bytes(case["seal"].encode())
    for name, text in case.get("archive", {}).items():
        (tmp_path / ARCHIVE).mkdir(exist_ok=True)
        (tmp_path / ARCHIVE / name).write_bytes(text.encode())
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


def put_files(folder: Path, files: dict[str, bytes]) -> None:
    for path, content in files.items():
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_bytes(content)


@pytest.fixture
def fixed(monkeypatch: pytest.MonkeyPatch) -> mc.SigningKey:
    """The vectors' writer, without a memory of other tests; ids and times are the vectors'."""
    monkeypatch.setattr(dataset_seals, "new_dataset_id", lambda: ledger_vectors.DATASET)
    monkeypatch.setattr(time, "time", lambda: float(ledger_vectors.TIME))
    return seal_vectors.fixed_key("writer")


def test_modcrypt_seals_the_folder_as_the_vectors_do(tmp_path: Path, fixed: mc.SigningKey) -> None:
    put_files(tmp_path, ledger_vectors.OLD_FILES)
    mc.jobs.seal_dataset(tmp_path, fixed)
    assert (tmp_path / SEAL_NAME).read_bytes() == ledger_vectors.ONE
    put_files(tmp_path, {ledger_vectors.NEW: seal_vectors.FILES[ledger_vectors.NEW]})
    (tmp_path / ledger_vectors.GONE).unlink()
    mc.jobs.update_seal(tmp_path, fixed, added=[ledger_vectors.NEW], removed=[ledger_vectors.GONE])
    assert (tmp_path / SEAL_NAME).read_bytes() == ledger_vectors.TWO
    put_files(tmp_path, seal_vectors.FILES)
    mc.jobs.update_seal(tmp_path, fixed, added=[ledger_vectors.REPLACED])
    assert (tmp_path / SEAL_NAME).read_bytes() == ledger_vectors.THREE
    older = {path.name: path.read_text() for path in (tmp_path / ARCHIVE).iterdir()}
    assert older == ledger_vectors.OLDER


def test_modcrypt_follows_version_1_as_the_vectors_do(tmp_path: Path, fixed: mc.SigningKey) -> None:
    put_files(tmp_path, ledger_vectors.OLD_FILES)
    (tmp_path / SEAL_NAME).write_bytes(ledger_vectors.V1)
    put_files(tmp_path, seal_vectors.FILES)
    (tmp_path / ledger_vectors.GONE).unlink()
    changed = [ledger_vectors.NEW, ledger_vectors.REPLACED]
    mc.jobs.update_seal(tmp_path, fixed, added=changed, removed=[ledger_vectors.GONE])
    expected = next(case for case in CASES if case["id"] == "ledger-after-version-1")
    assert (tmp_path / SEAL_NAME).read_text() == expected["seal"]
    older = {path.name: path.read_text() for path in (tmp_path / ARCHIVE).iterdir()}
    assert older == expected["archive"]


def test_modcrypt_changes_writers_as_the_vectors_do(tmp_path: Path, fixed: mc.SigningKey) -> None:
    put_files(tmp_path, seal_vectors.FILES)
    mc.jobs.seal_dataset(tmp_path, fixed)
    new = ledger_vectors.SUCCESSOR
    mc.jobs.change_seal_writers(tmp_path, [fixed, new], [new.verifier])
    expected = ledger_vectors.change_writers([fixed, new], [new])
    data = (tmp_path / SEAL_NAME).read_bytes()
    assert json.loads(data.split(b"\n")[1])["writers"] == [expected]
    assert verify_seal.verify(tmp_path, str(fixed.verifier)) == []


def test_the_vectors_cover_what_their_page_lists() -> None:
    counts = Counter(case["expect"] for case in CASES)
    assert counts == {"ok": 39, "integrity": 95, "format": 96}
    findings = {kind for case in CASES for _, kind in case.get("findings", ())}
    assert findings == {"missing", "foreign", "changed"}
    assert all(json.loads(case["metadata"]) for case in CASES if "metadata" in case)
