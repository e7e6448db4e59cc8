"""`modcrypt inspect` and `verify` as users meet them; what they say is held against PyArrow."""

from __future__ import annotations

import itertools
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import modcrypt
from modcrypt.cli.verify import print_lines
from modcrypt.errors import KeyDisabledError, KeyMaterialError
from modcrypt.kms.pacing import pacer_of
from tests.support.cases import each_case, one_in
from tests.support.cli.answers import check_refusal, run_ok
from tests.support.cli.program import KEY, NAME_KEY, invoke, private, to_key
from tests.support.forging import flip
from tests.support.keys import COLUMN_KEY, FOOTER_KEY, OTHER_KEY
from tests.support.kms.memory_kms import MASTERS, MemoryKms
from tests.support.sleeps import note_sleeps
from tests.support.tables import small_table, write_plain

KEYS = (*KEY, *NAME_KEY)
RING = ("--kms", "file:lake.keyring")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with keys, plain.parquet, and sealed.parquet with a key of its own for `name`."""
    private(tmp_path / "footer.key", FOOTER_KEY.hex().encode())
    private(tmp_path / "name.key", COLUMN_KEY.hex().encode())
    private(tmp_path / "other.key", OTHER_KEY.hex().encode())
    write_plain(tmp_path / "plain.parquet")
    run_ok(tmp_path, "encrypt", *KEYS, "plain.parquet", "sealed.parquet")
    return tmp_path


@pytest.fixture
def lake(folder: Path) -> Path:
    """The same with three encrypted files in `lake`."""
    (folder / "plain").mkdir()
    for number in range(3):
        shutil.copy(folder / "plain.parquet", folder / "plain" / f"part-{number}.parquet")
    run_ok(folder, "encrypt", *KEYS, "plain", "lake")
    return folder


def as_json(folder: Path, *arguments: str, code: int = 0) -> dict[str, Any]:
    result = invoke(folder, *arguments, "--json")
    assert (result.exit_code, result.stderr) == (code, "")
    (line,) = result.stdout.splitlines()
    found: dict[str, Any] = json.loads(line)
    return found


def all_lines(folder: Path, *arguments: str, code: int = 0) -> list[dict[str, Any]]:
    result = invoke(folder, *arguments, "--json")
    assert result.exit_code == code
    return [json.loads(line) for line in result.stdout.splitlines()]


def body_of(folder: Path, path: str, kind: str = "data page") -> dict[str, Any]:
    """Return the region of a column's module."""
    shown = as_json(folder, "inspect", *KEYS, "--modules", "sealed.parquet")
    found = [m for m in shown["regions"] if (m["kind"], m["path"]) == (kind, path)]
    module: dict[str, Any] = found[0]
    return module


# --- inspect -------------------------------------------------------------------------------------


def test_without_a_key_it_reports_what_everybody_sees(folder: Path) -> None:
    said = run_ok(folder, "inspect", "sealed.parquet")
    size = (folder / "sealed.parquet").stat().st_size
    assert said.startswith(f"sealed.parquet: {size:,} bytes\n")
    assert "AES_GCM_V1" in said
    assert "not verified" in said
    assert "\nVisible without keys:\n" in said
    assert "\nHidden here:\n" in said
    for name in small_table().column_names:
        assert f" {name} " not in said
    found = as_json(folder, "inspect", "sealed.parquet")
    assert (found["footer_mode"], found["columns"], found["num_rows"]) == ("encrypted", None, None)


def test_with_keys_it_reports_the_columns_and_which_keys_fit(folder: Path) -> None:
    rows = dict(
        line.split(maxsplit=1)
        for line in run_ok(folder, "inspect", *KEY, "sealed.parquet").split("\n\n")[1].splitlines()
    )
    metadata = pq.read_metadata(folder / "plain.parquet")
    schema = [metadata.schema.column(c).path for c in range(metadata.num_columns)]
    assert list(rows) == ["column", *schema]
    assert rows["name"].split()[:4] == ["STRING", "column", "key", "no"]
    assert rows["id"].split()[:4] == ["INT64", "footer", "key", "yes"]
    values = metadata.row_group(0).column(0).num_values
    assert rows["id"].split()[-1] == str(values)
    found = as_json(folder, "inspect", *KEYS, "sealed.parquet")
    assert {column["has_key"] for column in found["columns"]} == {True}
    assert "regions" not in found


def test_the_module_table_says_the_same_to_people(folder: Path) -> None:
    options = ("inspect", *KEYS, "--modules", "sealed.parquet")
    regions = as_json(folder, *options)["regions"]
    title, *lines = run_ok(folder, *options).rpartition("\n\n")[2].splitlines()
    assert title.split()[:4] == ["module", "row", "group", "column"]
    assert len(lines) == len(regions)
    for line, region in zip(lines, regions, strict=True):
        assert line.startswith(region["kind"])
        assert str(region["start"]) in line.split()
        assert str(region["end"] - region["start"]) in line.split()
        assert line.endswith(region["state"])


def test_a_key_service_is_named_by_the_key_metadata_alone(folder: Path) -> None:
    ring = modcrypt.Keyring.create(folder / "lake.keyring", plaintext=True)
    ring.create_key("footer"), ring.create_key("pii")
    named = ("--kms", "file:lake.keyring#footer", "--column-master-key", "name=pii")
    run_ok(folder, "encrypt", *named, "--plaintext-footer", "plain.parquet", "kms.parquet")
    (folder / "lake.keyring").rename(folder / "away")
    said = run_ok(folder, "inspect", "kms.parquet")
    assert "master key footer" in said
    assert "master key pii" in said
    (folder / "away").rename(folder / "lake.keyring")
    found = as_json(folder, "inspect", *RING, "--audit", "audit.jsonl", "kms.parquet")
    assert {column["has_key"] for column in found["columns"]} == {True}
    assert (folder / "audit.jsonl").exists()


def test_a_plaintext_file_is_shown_as_what_it_is(folder: Path) -> None:
    said = run_ok(folder, "inspect", "plain.parquet")
    assert "Encryption" in said
    assert "none" in said
    assert "Visible without keys" not in said
    found = as_json(folder, "inspect", "plain.parquet")
    assert (found["encrypted"], found["num_rows"]) == (False, small_table().num_rows)


def test_files_of_folders_are_shown_one_after_the_other(lake: Path) -> None:
    (lake / "lake" / "part-1.parquet").write_bytes(b"no Parquet file")
    result = invoke(lake, "inspect", "lake", "sealed.parquet", "--jobs", "2")
    assert result.exit_code == 1
    heads = [line.partition(":")[0] for line in result.stdout.splitlines() if " bytes" in line]
    assert heads == ["lake/part-0.parquet", "lake/part-2.parquet", "sealed.parquet"]
    assert result.stderr.startswith("modcrypt: lake/part-1.parquet: format: ")
    found = all_lines(lake, "inspect", "lake", "--glob", "*-[12].*", code=1)
    assert [file["name"] for file in found] == ["lake/part-1.parquet", "lake/part-2.parquet"]
    assert [file.get("error") for file in found] == ["format", None]


# --- verify --------------------------------------------------------------------------------------


def test_an_authentic_file_is_0_also_when_all_must_be(folder: Path) -> None:
    said = run_ok(folder, "verify", *KEYS, "--strict", "sealed.parquet")
    assert said.splitlines()[-1].startswith("sealed.parquet: authentic; ")
    found = as_json(folder, "verify", *KEYS, "sealed.parquet")
    assert (found["ok"], found["complete"], found["findings"]) == (True, True, [])
    assert found["num_rows"] == small_table().num_rows


def test_what_there_was_no_key_for_is_said(folder: Path) -> None:
    said = run_ok(folder, "verify", *KEY, "sealed.parquet")
    assert "\n  column name: there is no key for it\n" in said
    verdict = said.splitlines()[-1]
    assert verdict.startswith(
        "sealed.parquet: no fault found, but not everything is authenticated; "
    )
    assert invoke(folder, "verify", *KEY, "--strict", "sealed.parquet").exit_code == 1


def test_without_any_key_it_is_3(folder: Path) -> None:
    for options in ((), ("--strict",)):
        result = invoke(folder, "verify", *options, "sealed.parquet")
        assert (result.exit_code, result.stderr) == (3, "")
        assert "nothing could be checked without a key" in result.stdout.splitlines()[-1]


@pytest.mark.parametrize("kind", ["data page", "data page header"])
def test_each_fault_is_reported_with_module_and_bytes(folder: Path, kind: str) -> None:
    places = [body_of(folder, path, kind) for path in ("name", "score")]
    for place in places:
        flip(folder / "sealed.parquet", place["start"] + 20)
    found = as_json(folder, "verify", *KEYS, "sealed.parquet", code=1)
    faults = [finding for finding in found["findings"] if finding["word"] == "tag"]
    assert [
        (fault["module"]["type"], fault["module"]["path"], fault["start"], fault["end"])
        for fault in faults
    ] == [(kind, place["path"], place["start"], place["end"]) for place in places]
    result = invoke(folder, "verify", *KEYS, "sealed.parquet")
    assert (result.exit_code, result.stderr) == (1, "")
    titles, *rows = result.stdout.splitlines()
    assert titles.split() == ["severity", "error", "module", "bytes", "meaning"]
    for row, place in zip(rows, places, strict=False):
        assert row.startswith("fault")
        assert f"{kind}, row group 0, column {place['path']}" in row
        assert f"{place['start']}-{place['end']}" in row
    assert "faults; " in result.stdout.splitlines()[-1]


def test_a_wrong_key_is_1(folder: Path) -> None:
    assert invoke(folder, "verify", "--key", "file:other.key", "sealed.parquet").exit_code == 1


def test_a_plaintext_file_is_wrong_only_where_keys_are_given(folder: Path) -> None:
    said = run_ok(folder, "verify", "plain.parquet")
    assert "not encrypted" in said.splitlines()[-1]
    assert invoke(folder, "verify", "--strict", "plain.parquet").exit_code == 1
    found = as_json(folder, "verify", *KEY, "plain.parquet", code=1)
    assert [finding["word"] for finding in found["findings"]] == ["plaintext"]


def test_pages_without_tags_must_be_asked_for_and_are_reported(folder: Path) -> None:
    ctr = ("--algorithm", "AES_GCM_CTR_V1", "--force")
    run_ok(folder, "encrypt", *KEY, *ctr, "plain.parquet", "sealed.parquet")
    assert invoke(folder, "verify", *KEY, "sealed.parquet").exit_code == 1
    accept = ("verify", *KEY, "--accept-algorithm", "AES_GCM_CTR_V1", "sealed.parquet")
    assert "\n  pages" in run_ok(folder, *accept)
    assert invoke(folder, *accept, "--strict").exit_code == 1


def test_the_rows_and_the_prefix_that_are_expected_are_checked(folder: Path) -> None:
    rows = small_table().num_rows
    verify = ("verify", *KEYS, "sealed.parquet")
    run_ok(folder, *verify, "--expected-rows", str(rows))
    found = as_json(folder, *verify, "--expected-rows", str(rows + 1), code=1)
    assert found["findings"][0]["word"] == "truncation"
    assert as_json(folder, *verify, "--aad-prefix", "x", code=1)["findings"]


def test_no_parquet_file_is_a_finding(folder: Path) -> None:
    found = as_json(folder, "verify", *KEY, "name.key", code=1)
    assert [finding["word"] for finding in found["findings"]] == ["format"]


# --- verify, of several files --------------------------------------------------------------------


def test_the_files_of_a_folder_are_verified_together(lake: Path) -> None:
    said = run_ok(lake, "verify", *KEYS, "lake", "--jobs", "2")
    assert said.splitlines()[-1].startswith("3 files: authentic; ")
    *files, totals = all_lines(lake, "verify", *KEYS, "lake")
    assert [file["name"] for file in files] == [f"lake/part-{n}.parquet" for n in range(3)]
    assert (totals["files"], totals["ok"], totals["complete"]) == (3, True, True)
    assert totals["num_rows"] == 3 * small_table().num_rows
    assert invoke(lake, "verify", "lake").exit_code == 3
    run_ok(lake, "verify", *KEYS, "--strict", "lake", "--glob", "*-[12].*")


def test_faults_are_reported_by_file_and_do_not_stop_the_others(lake: Path) -> None:
    flip(lake / "lake" / "part-1.parquet", 40)
    shutil.copy(lake / "lake" / "part-0.parquet", lake / "lake" / "part-3.parquet")
    (lake / "lake" / "part-4.parquet").write_bytes(b"no Parquet file")
    result = invoke(lake, "verify", *KEYS, "lake")
    assert (result.exit_code, result.stderr) == (1, "")
    titles, *rows = result.stdout.splitlines()
    assert titles.split() == ["file", "severity", "error", "module", "bytes", "meaning"]
    assert [row.split()[:3] for row in rows[:3]] == [
        ["lake/part-1.parquet", "fault", "tag"],
        ["lake/part-4.parquet", "fault", "format"],
        ["-", "fault", "integrity"],  # of the set
    ]
    assert "part-0.parquet" in rows[2]
    assert "part-3.parquet" in rows[2]
    assert rows[-1].startswith("5 files: 3 faults; ")
    totals = all_lines(lake, "verify", *KEYS, "lake", code=1)[-1]
    assert (totals["ok"], len(totals["findings"])) == (False, 1)


def test_a_set_that_is_numbered_is_checked_for_what_is_missing(lake: Path) -> None:
    for number in range(3):
        prefix = ("--aad-prefix", f"lake/{number}", "--force")
        run_ok(lake, "encrypt", *KEYS, *prefix, "plain.parquet", f"lake/part-{number}.parquet")
    verify = ("verify", *KEYS, "--aad-prefix-template", "lake/{i}", "lake")
    assert "pass --expected-parts" in run_ok(lake, *verify)
    run_ok(lake, *verify, "--strict", "--expected-parts", "3")
    rows = str(3 * small_table().num_rows)
    run_ok(lake, *verify, "--strict", "--expected-parts", "3", "--expected-rows", rows)
    assert invoke(lake, *verify, "--expected-rows", "1").exit_code == 1
    assert invoke(lake, *verify, "--expected-parts", "4").exit_code == 1
    (lake / "lake" / "part-2.parquet").unlink()
    found = all_lines(lake, *verify, "--expected-parts", "3", code=1)[-1]
    assert [finding["word"] for finding in found["findings"]] == ["aad-prefix"]
    (lake / "lake" / "part-0.parquet").unlink()
    assert invoke(lake, *verify, "--expected-parts", "3").exit_code == 1


# --- drawings ------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["inspect", "verify"])
def test_a_page_is_drawn_that_needs_nothing_else(folder: Path, command: str) -> None:
    run_ok(folder, command, *KEYS, "--html", "out.html", "sealed.parquet")
    page = (folder / "out.html").read_text()
    assert page.startswith("<!")
    assert "address.city" in page
    assert "Content-Security-Policy" in page
    before = (folder / "out.html").read_bytes()
    again = (command, *KEYS, "--html", "out.html", "sealed.parquet")
    assert "--force" in check_refusal(invoke(folder, *again), "file")
    assert (folder / "out.html").read_bytes() == before
    run_ok(folder, *again, "--force")


@pytest.mark.parametrize("command", ["inspect", "verify"])
def test_a_page_never_takes_the_place_of_a_file_that_is_looked_at(lake: Path, command: str) -> None:
    before = (lake / "sealed.parquet").read_bytes()
    own = (command, *KEYS, "--force", "--html", "./sealed.parquet", "sealed.parquet")
    assert "is the file to draw" in check_refusal(invoke(lake, *own))
    assert (lake / "sealed.parquet").read_bytes() == before
    assert "PATH names 3" in check_refusal(
        invoke(lake, command, *KEYS, "--html", "out.html", "lake")
    )
    assert "--force needs --html" in check_refusal(
        invoke(lake, command, *KEYS, "--force", "sealed.parquet")
    )
    assert not (lake / "out.html").exists()


# --- options -------------------------------------------------------------------------------------


@each_case(
    ("arguments", "word", "part"),
    [
        (("inspect",), "usage", "Missing argument"),
        (("verify",), "usage", "Missing argument"),
        (("inspect", "-"), "usage", "pipes"),
        (("verify", "-"), "usage", "pipes"),
        (("inspect", "absent"), "file", "absent: No such file"),
        (("verify", "absent"), "file", "absent: No such file"),
        (("verify", "empty"), "usage", "empty: no files found"),
        (("inspect", "--audit", "x", "sealed.parquet"), "usage", "--audit: this needs --kms"),
        (("verify", *RING, *KEY, "sealed.parquet"), "usage", "--key: keys come"),
        (("verify", "--accept-algorithm", "AES", "sealed.parquet"), "usage", "AES_GCM_CTR_V1"),
        (("verify", "--expected-rows", "-1", "sealed.parquet"), "usage", "x>=0"),
        (("verify", "--expected-parts", "1", "."), "usage", "needs --aad-prefix-template"),
        (("verify", "--aad-prefix-template", "x", "."), "usage", "{i}"),
        (
            ("verify", "--aad-prefix-template", "{i}", "--aad-prefix", "x", "."),
            "usage",
            "--aad-prefix-template and --aad-prefix exclude each other",
        ),
        (("inspect", "--key", "fd:0", "--key", "env:X", "sealed.parquet"), "usage", "given twice"),
    ],
)
def test_wrong_options_are_2_and_explained_in_one_line(
    folder: Path, arguments: tuple[str, ...], word: str, part: str
) -> None:
    (folder / "empty").mkdir()
    assert part in check_refusal(invoke(folder, *arguments), word)


def test_names_in_files_cannot_forge_lines_or_colours(folder: Path) -> None:
    hostile = "a\nmodcrypt: authentic\x1b[2J"
    write_plain(folder / "plain.parquet", pa.table({hostile: [1, 2], "b": [1, 2]}))
    own = ("--column-key", f"{hostile}=file:name.key", "--plaintext-footer", "--force")
    run_ok(folder, "encrypt", *KEY, *own, "plain.parquet", "sealed.parquet")
    os.rename(folder / "sealed.parquet", folder / "b\nad\x1b.parquet")
    for command in (("inspect", "--modules"), ("verify",)):
        for keys in ((), KEY):
            result = invoke(folder, *command, *keys, "b\nad\x1b.parquet")
            assert "\x1b" not in result.output
            assert not [line for line in result.output.splitlines() if line[:9] == "modcrypt:"]


# --- a verification that is taken up --------------------------------------------------------------


def cut_record(record: Path) -> None:
    """Remove the line that marks the end of the run."""
    lines = record.read_bytes().splitlines()
    record.write_bytes(b"\n".join(line for line in lines if b'"end": true' not in line) + b"\n")


def test_an_interrupted_verification_goes_on_with_what_it_has_not_found_right(lake: Path) -> None:
    command = ("verify", *KEYS, "lake", "--record", "record.jsonl")
    run_ok(lake, *command)
    cut_record(lake / "record.jsonl")
    flip(lake / "lake" / "part-1.parquet", 200)  # and so it is another file by now
    found = invoke(lake, *command)
    assert found.exit_code == 1
    assert (
        "modcrypt: 2 files already found correct; only compared with the others\n" in found.stderr
    )
    assert "part-1" in found.stdout
    assert "part-0" not in found.stdout


def test_a_verification_that_ended_is_begun_anew(lake: Path) -> None:
    command = ("verify", *KEYS, "lake", "--record", "record.jsonl")
    for _ in range(2):
        files = all_lines(lake, *command)
        assert files[-1]["files"] == 3


def test_files_with_faults_are_looked_at_again(lake: Path) -> None:
    command = ("verify", *KEYS, "lake", "--record", "record.jsonl")
    flip(lake / "lake" / "part-1.parquet", 200)
    all_lines(lake, *command, code=1)
    cut_record(lake / "record.jsonl")
    again = all_lines(lake, *command, code=1)
    assert again[-1]["files"] == 1


def test_nothing_is_left_of_a_single_file(lake: Path) -> None:
    command = ("verify", *KEYS, "lake/part-1.parquet", "--record", "record.jsonl")
    run_ok(lake, *command)
    cut_record(lake / "record.jsonl")
    (totals,) = all_lines(lake, *command)
    assert totals["files"] == 0


def test_a_record_and_a_whole_set_exclude_each_other(lake: Path) -> None:
    command = ("verify", *KEYS, "lake", "--record", "record.jsonl")
    said = check_refusal(invoke(lake, *command, "--expected-rows", "9"))
    assert "--expected-rows: --record skips files" in said


def test_a_record_is_not_written_over_a_file(lake: Path) -> None:
    before = (lake / "sealed.parquet").read_bytes()
    said = check_refusal(invoke(lake, "verify", *KEYS, "lake", "--record", "sealed.parquet"))
    assert "is not the record of a run" in said
    assert (lake / "sealed.parquet").read_bytes() == before


# --- under a policy ------------------------------------------------------------------------------

POLICY = ("--policy", "policy.toml")
POLICY_TEXT = """
kms = "test:"
footer_key = "kf"
plaintext_columns = ["day"]

[column_keys]
kc1 = ["name"]
kc2 = ["score", "address"]
"""


@pytest.fixture
def kms(folder: Path, monkeypatch: pytest.MonkeyPatch) -> MemoryKms:
    """The key service that policy.toml names; secret.parquet and the folder `many` are under it."""
    found = MemoryKms({**MASTERS, "other": b"another master!!"})
    monkeypatch.setattr("modcrypt.kms.settings.open_kms", lambda uri, **options: found)
    note_sleeps(monkeypatch)
    (folder / "policy.toml").write_text(POLICY_TEXT)
    run_ok(folder, "encrypt", *POLICY, "plain.parquet", "secret.parquet")
    (folder / "copies").mkdir()
    for number in range(2):
        shutil.copy(folder / "plain.parquet", folder / "copies" / f"{number}.parquet")
    run_ok(folder, "encrypt", *POLICY, "copies", "many")
    found.calls.clear()
    return found


def test_columns_that_the_policy_leaves_in_plaintext_are_no_findings(
    folder: Path, kms: MemoryKms
) -> None:
    said = run_ok(folder, "verify", *POLICY, "--strict", "secret.parquet").splitlines()
    assert said[0] == "Not authenticated by the format: file crypto metadata; column day"
    assert said[1].startswith("secret.parquet: authentic; ")
    assert len(said) == 2
    found = as_json(folder, "verify", *POLICY, "--strict", "secret.parquet")
    assert (found["complete"], found["findings"]) == (True, [])
    assert {part["path"] for part in found["not_authenticated"] if part["by_design"]} == {
        None,
        "day",
    }
    said = run_ok(folder, "verify", *POLICY, "--strict", "many").splitlines()
    parts = "file crypto metadata (2 files); column day (2 files)"
    assert said[0] == f"Not authenticated by the format: {parts}"
    # Without the policy, nobody has said that the column may be so.
    said = run_ok(folder, "verify", "--kms", "test:", "secret.parquet").splitlines()
    assert said[:2] == ["Not authenticated:", "  column day: it is in plaintext"]
    assert invoke(folder, "verify", "--kms", "test:", "--strict", "secret.parquet").exit_code == 1


UNOPENED: list[tuple[str, Callable[[MemoryKms, str], object], int, str]] = [
    (
        "denied",
        lambda kms, key: kms.denied.add(key),
        3,
        "access to its key is denied: {} is refused",
    ),
    (
        "disabled",
        lambda kms, key: kms.disabled.add(key),
        3,
        "its key cannot be used: {} is disabled",
    ),
    ("no-key", lambda kms, key: kms.masters.pop(key), 3, "there is no key for it: there is no {}"),
    (
        "unavailable",
        lambda kms, key: kms.broken.update({key: ConnectionError()}),
        4,
        "its key could not be retrieved: the key service is unavailable: ConnectionError",
    ),
]
each_reason = each_case(
    ("word", "happen", "code", "why"), UNOPENED, ids=[case[0] for case in UNOPENED]
)


@each_reason
def test_a_key_of_the_policy_that_cannot_be_had_is_reported_with_its_reason(
    word: str, happen: Callable[[MemoryKms, str], object], code: int, why: str, folder: Path,
    kms: MemoryKms, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    # Else the first column says how often the service was asked.
    monkeypatch.setattr(pacer_of(kms), "_patience", 0.0)
    happen(kms, "kc2")
    for path, files in (("secret.parquet", ""), ("many", " (2 files)")):
        result = invoke(folder, "verify", *POLICY, path)
        assert result.exit_code == code
        columns = "column score, address.zip, address.city"
        assert f"\n  {columns}{files}: {why.format('kc2')}\n" in f"\n{result.stdout}"
    found = as_json(folder, "verify", *POLICY, "secret.parquet", code=code)
    assert {part["word"] for part in found["not_authenticated"]} == {None, word}
    # Without a policy, nobody has said that the caller should have all keys.
    partly = invoke(folder, "verify", "--kms", "test:", "secret.parquet")
    assert partly.exit_code == (4 if code == 4 else 0)


@each_reason
def test_a_footer_key_that_cannot_be_had_is_reported_with_its_reason(
    word: str, happen: Callable[[MemoryKms, str], object], code: int, why: str, folder: Path,
    kms: MemoryKms,
) -> None:  # fmt: skip
    happen(kms, "kf")
    for options in (POLICY, ("--kms", "test:")):
        result = invoke(folder, "verify", *options, "secret.parquet")
        assert result.exit_code == code
        assert why.format("kf").replace("there is no key for it", "there is no footer key") in (
            result.stdout
        )
        verdict = result.stdout.splitlines()[-1]
        assert ("because the key service is unavailable" in verdict) == (code == 4)
        assert invoke(folder, "verify", *options, "many").exit_code == code


def test_parts_whose_keys_cannot_be_had_are_not_called_foreign(
    folder: Path, kms: MemoryKms
) -> None:
    """An AAD prefix that the file stores is taken at its word then, and that is reported."""
    for number in range(2):
        policy = modcrypt.Policy(footer_key="kf", aad_prefix=f"part-{number}")
        path = folder / "many" / f"{number}.parquet"
        modcrypt.write_table(small_table(), path, modcrypt.KeyTools(kms).encryption(policy))
    parts = ("--aad-prefix-template", "part-{i}", "--expected-parts", "2", "many")
    assert invoke(folder, "verify", *POLICY, *parts).exit_code == 1  # by another policy
    run_ok(folder, "verify", "--kms", "test:", "--strict", *parts)
    kms.unavailable = True
    result = invoke(folder, "verify", "--kms", "test:", *parts)
    assert result.exit_code == 4
    assert "stored AAD prefixes are unverified" in result.stdout


def test_a_run_that_is_taken_up_looks_again_at_what_had_no_key(
    folder: Path, kms: MemoryKms
) -> None:
    kms.broken["kc2"] = ConnectionError()
    record = (*POLICY, "--record", "run.jsonl", "many")
    assert invoke(folder, "verify", *record).exit_code == 4
    assert "result" not in (folder / "run.jsonl").read_text()


def test_a_fault_counts_more_than_a_key_that_cannot_be_had(folder: Path, kms: MemoryKms) -> None:
    kms.broken["kc2"] = ConnectionError()
    flip(folder / "secret.parquet", 40)
    assert invoke(folder, "verify", *POLICY, "secret.parquet").exit_code == 1


@each_case("command", [("inspect",), ("shred", "--all", "--prove")], ids=" ".join)
def test_an_unavailable_key_service_is_4_for_what_needs_no_key(
    command: tuple[str, ...], folder: Path, kms: MemoryKms
) -> None:
    kms.unavailable = True
    for path in ("secret.parquet", "many"):
        assert invoke(folder, *command, *POLICY, path).exit_code == 4, path


def corrupt(path: Path) -> None:
    for file in [path] if path.is_file() else path.iterdir():
        file.write_bytes(b"PAR1 is no Parquet PAR1")


CAUSES: dict[str, tuple[int, Callable[[MemoryKms], object]]] = {
    "lost": (3, lambda kms: kms.masters.pop("kf")),
    "denied": (3, lambda kms: kms.denied.add("kf")),
    "disabled": (3, lambda kms: kms.disabled.add("kf")),
    "destroyed": (3, lambda kms: kms.broken.update(kf=KeyDisabledError("it is destroyed"))),
    "differs": (3, lambda kms: kms.masters.update(kf=b"another master!!")),
    "unlike a key": (3, lambda kms: kms.broken.update(kf=KeyMaterialError("it is malformed"))),
    "unreachable": (4, lambda kms: setattr(kms, "unavailable", True)),
    "corrupted": (1, lambda kms: None),
}
NEW = ("--to", "footer.key.toml")
VERBS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "decrypt": (("decrypt",), ("out",)),
    "rekey": (("rekey", *NEW), ("out",)),
    "keys rotate": (("keys", "rotate"), ()),
    "keys rotate kek": (("keys", "rotate", "--what", "kek"), ()),
    "keys rotate dek": (("keys", "rotate", "--what", "dek"), ()),
    "keys scan": (("keys", "scan"), ()),
    "shred": (("shred", "--column", "name"), ()),
    "verify": (("verify",), ()),
    "schema": (("schema",), ()),
    "head": (("head",), ()),
    "cat": (("cat",), ()),
}


EXCEPTIONS = {
    # To verify, a wrapped key that does not fit is a fault, as any altered bytes are.
    ("verify", "differs"): 1,
    ("verify", "unlike a key"): 1,
}


@each_case(("verb", "cause"), itertools.product(VERBS, CAUSES), quick=one_in(5))
def test_a_cause_has_one_exit_code_whatever_the_verb(
    cause: str, verb: str, folder: Path, kms: MemoryKms
) -> None:
    to_key(folder, "footer.key")
    code, happen = CAUSES[cause]
    code = EXCEPTIONS.get((verb, cause), code)
    happen(kms)
    command, after = VERBS[verb]
    for path in ("secret.parquet", "many"):
        if cause == "corrupted":
            corrupt(folder / path)
        assert invoke(folder, *command, *POLICY, path, *after).exit_code == code, path
        assert not (folder / "out").exists() or not any((folder / "out").iterdir())
    if cause != "corrupted":
        corrupt(folder / "many" / "0.parquet")
        assert invoke(folder, *command, *POLICY, "many", *after).exit_code in (1, code)


def test_a_file_under_another_master_key_is_refused_until_that_is_declared(
    folder: Path, kms: MemoryKms
) -> None:
    text = POLICY_TEXT.replace("kf", "other").replace("kc1", "other1").replace("kc2", "other2")
    kms.masters |= {"other1": b"a master of columns"[:16], "other2": b"another of columns"[:16]}
    (folder / "theirs.toml").write_text(text)
    run_ok(folder, "encrypt", "--policy", "theirs.toml", "plain.parquet", "forged.parquet")
    kms.calls.clear()
    found = as_json(folder, "verify", *POLICY, "forged.parquet", code=1)
    assert [finding["word"] for finding in found["findings"]] == ["key-material"]
    said = check_refusal(
        invoke(folder, "decrypt", *POLICY, "forged.parquet", "out"), "key-material", 3
    )
    assert "footer key: the key in" in said
    assert "master key 'other', not under 'kf'; pass --master-key to accept" in said
    assert not kms.calls
    declared = ("--master-key", "other", "--master-key", "other1", "--master-key", "other2")
    run_ok(folder, "verify", *POLICY, *declared, "--strict", "forged.parquet")
    run_ok(folder, "decrypt", *POLICY, *declared, "forged.parquet", "out")
    run_ok(folder, "verify", "--kms", "test:", *declared, "forged.parquet")
    lacking = invoke(folder, "verify", "--kms", "test:", *declared[:2], "forged.parquet")
    assert lacking.exit_code == 1
    check_refusal(invoke(folder, "verify", *declared, *KEY, "sealed.parquet"))


# --- files that a resumed run skips --------------------------------------------------------------


PREFIX = ("--aad-prefix", "orders")


def test_a_resumed_verification_compares_all_files(lake: Path) -> None:
    command = ("verify", *KEYS, "lake", "--record", "record.jsonl")
    run_ok(lake, *command)
    cut_record(lake / "record.jsonl")
    shutil.copy(lake / "lake" / "part-0.parquet", lake / "lake" / "part-3.parquet")
    *files, found = all_lines(lake, *command, code=1)
    assert [Path(file["name"]).name for file in files] == ["part-3.parquet"]
    (finding,) = found["findings"]
    assert finding["word"] == "integrity"
    assert "part-0.parquet" in finding["message"]
    assert "part-3.parquet" in finding["message"]


def test_a_resumed_verification_finds_repeated_prefixes(folder: Path) -> None:
    (folder / "lake").mkdir()
    for number in range(2):
        target = f"lake/part-{number}.parquet"
        run_ok(folder, "encrypt", *KEYS, *PREFIX, "plain.parquet", target)
    run_ok(folder, "encrypt", *KEYS, *PREFIX, "--no-store-aad-prefix", "plain.parquet", "lake/2.pq")
    command = ("verify", *KEYS, *PREFIX, "lake", "--record", "record.jsonl")
    whole = all_lines(folder, *command, code=1)[-1]["findings"]
    cut_record(folder / "record.jsonl")
    assert all_lines(folder, *command, code=1)[-1]["findings"] == whole
    assert "3 files have the same AAD prefix" in whole[0]["message"]


def test_a_resumed_verification_compares_files_that_all_are_correct(lake: Path) -> None:
    shutil.copy(lake / "lake" / "part-0.parquet", lake / "lake" / "part-3.parquet")
    command = ("verify", *KEYS, "lake", "--record", "record.jsonl")
    all_lines(lake, *command, code=1)
    cut_record(lake / "record.jsonl")
    (totals,) = all_lines(lake, *command, code=1)
    assert (totals["files"], len(totals["findings"])) == (0, 1)


def test_a_file_that_cannot_be_read_again_is_verified_again(
    lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ("verify", *KEYS, "lake", "--record", "record.jsonl")
    run_ok(lake, *command)
    cut_record(lake / "record.jsonl")

    def fail(*_: object) -> None:
        raise PermissionError

    name = "modcrypt.jobs.dataset_verification.identify_source"
    monkeypatch.setattr(name, fail)
    assert all_lines(lake, *command)[-1]["files"] == 3


def test_a_file_that_spark_could_not_process_is_a_failure(
    capsys: pytest.CaptureFixture[str],
) -> None:
    failure = {"name": "a", "error": "file", "message": "No such file", "module": None}
    print_lines([failure], (), several=False, started=0.0)
    assert json.loads(capsys.readouterr().out) == {"schema": "modcrypt.failure/1", **failure}
