"""The judge of written files: what it finds in a file that was written otherwise than asked."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from tools.conformance import corpus
from tools.conformance.clients import modcrypt_client
from tools.conformance.corpus import Case
from tools.conformance.judge import judge_file
from tools.conformance.verdicts import FAIL_CLOSED, FAIL_OPEN

Json = dict[str, Any]
CASES = {case.name: case for case in corpus.write_cases() if case.format != "key-metadata"}
OTHER_KEY = "01" * 16


def write(case: Case, folder: Path, **changes: object) -> Json:
    """Let modcrypt write a scenario with other options, and return what was asked for."""
    request = corpus.write_request(case, folder)
    members = {name: value for name, value in changes.items() if name in request}
    options = {name: value for name, value in changes.items() if name not in request}
    asked = request | members
    if "options" in request:
        asked["options"] = request["options"] | options
    modcrypt_client.write(asked)
    return request


def faults(request: Json) -> list[tuple[str, str]]:
    return [(fault.kind, fault.text) for fault in judge_file(request, Path(request["path"]))]


@pytest.mark.parametrize("name", CASES)
def test_what_modcrypt_writes_has_no_fault(name: str, tmp_path: Path) -> None:
    if CASES[name].raw["outcome"] == "written":
        assert faults(write(CASES[name], tmp_path)) == []


@pytest.mark.parametrize(
    ("name", "changes", "kind", "text"),
    [
        ("ef-uniform", {"plaintext_footer": True}, FAIL_OPEN, "the footer has the other mode"),
        ("pf-uniform", {"plaintext_footer": False}, FAIL_CLOSED, "the footer has the other mode"),
        ("ef-uniform", {"plaintext_columns": ["name"]}, FAIL_OPEN, "name is not encrypted"),
        ("ef-columns", {"column_keys": {}}, FAIL_CLOSED, "id is under another kind of key"),
        ("prefix-not-stored", {"store_aad_prefix": True}, FAIL_OPEN, "in spite of the option"),
        ("prefix-stored", {"store_aad_prefix": False}, FAIL_CLOSED, "prefix is not stored"),
        ("key-metadata", {"column_key_metadata": {}}, FAIL_CLOSED, "has other key metadata"),
        ("ef-uniform", {"algorithm": "AES_GCM_CTR_V1"}, FAIL_CLOSED, "the verifier says"),
        ("prefix-stored", {"aad_prefix": "00"}, FAIL_CLOSED, "the verifier says"),
        ("ef-uniform", {"footer_key": OTHER_KEY}, FAIL_CLOSED, "the verifier says tag"),
        ("ags1-mib", {"key": OTHER_KEY}, FAIL_CLOSED, "the verifier says"),
        ("ags1-mib", {"aad_prefix": None}, FAIL_CLOSED, "the verifier says"),
    ],
)
def test_a_file_with_other_options_has_a_fault(
    name: str, changes: Json, kind: str, text: str, tmp_path: Path
) -> None:
    found = faults(write(CASES[name], tmp_path, **changes))
    assert any(kind == seen and text in said for seen, said in found), found


def test_a_plaintext_file_is_fail_open(tmp_path: Path) -> None:
    request = corpus.write_request(CASES["ef-uniform"], tmp_path)
    Path(request["path"]).write_bytes(Path(request["input"]).read_bytes())
    assert faults(request) == [(FAIL_OPEN, "the file is not encrypted")]


@pytest.mark.parametrize("name", ["ef-uniform", "ags1-mib-plus-one"])
def test_a_nonce_that_repeats_is_fail_open(name: str, tmp_path: Path) -> None:
    with mock.patch("modcrypt.aead.urandom", lambda size: bytes(size)):
        found = faults(write(CASES[name], tmp_path))
    assert any(kind == FAIL_OPEN and "more than once" in text for kind, text in found), found


def test_bytes_of_no_module_are_fail_open(tmp_path: Path) -> None:
    request = write(CASES["ef-uniform"], tmp_path)
    path = Path(request["path"])
    data = path.read_bytes()
    tail = int.from_bytes(data[-8:-4], "little") + 8
    path.write_bytes(data[:-tail] + b"\x03\0\0\0Ulm" + data[-tail:])
    assert [kind for kind, _ in faults(request)] == [FAIL_OPEN, FAIL_OPEN]
    assert "values of the table" in faults(request)[0][1]


@pytest.mark.parametrize(
    ("name", "text"), [("indexes", "no offset index"), ("bloom-filter", "no Bloom filter")]
)
def test_parts_that_were_asked_for_must_be_there(name: str, text: str, tmp_path: Path) -> None:
    bare = {"write_page_index": False, "bloom_filter_columns": []}
    assert text in str(faults(write(CASES[name], tmp_path, **bare)))


@pytest.mark.parametrize("field", [8, 12, 16, 17])
def test_a_plaintext_footer_shows_nothing_of_values(field: int, tmp_path: Path) -> None:
    """The judge is given a footer with one more field of the column metadata."""
    from tools.conformance import judge

    request = write(CASES["pf-columns"], tmp_path)
    read: Callable[..., Any] = judge._footer

    def read_with_field(*arguments: Any) -> Any:
        footer = read(*arguments)
        footer[4][0][1][0][3][field] = {}
        return footer

    with mock.patch("tools.conformance.judge._footer", read_with_field):
        found = faults(request)
    assert [kind for kind, _ in found] == [FAIL_OPEN]
    assert "shows" in found[0][1]


@pytest.mark.parametrize(
    "changes",
    [{"double_wrapping": True}, {"footer_master": "kc"}, {"internal_storage": False}],
)
def test_key_material_of_another_kind_is_noticed(changes: Json, tmp_path: Path) -> None:
    case = next(case for case in CASES.values() if case.format == "pkmt1" and (
        case.raw["options"]["internal_storage"] and not case.raw["options"]["double_wrapping"]
    ))  # fmt: skip
    found = faults(write(case, tmp_path, **changes))
    assert [kind for kind, _ in found] == [FAIL_CLOSED]
