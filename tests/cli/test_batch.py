"""Commands over folders, as users meet them; most through `encrypt` and `decrypt`."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import modcrypt
from modcrypt.io.places import Place
from modcrypt.jobs import listing
from modcrypt.parquet.convert import encryptor
from modcrypt.parquet.datasets.write_notes import NOTES
from tests.support.cases import each_case
from tests.support.cli.answers import check_refusal, lines, run_ok
from tests.support.cli.forked import as_process
from tests.support.cli.program import (
    KEY,
    SHOW_PROGRESS,
    SLOW,
    environment,
    invoke,
    private,
    run,
    run_on_terminal,
    to_key,
)
from tests.support.keys import COLUMN_KEY, FOOTER_KEY
from tests.support.tables import read_with_pyarrow, small_table, write_plain
from tests.support.unfinished_files import unfinished_files

NAMES = ("country=NO/a.parquet", "country=NO/b.parquet", "country=SE/c.parquet", "d.parquet")
HIDDEN = ("_metadata", ".a.parquet.crc", "_tmp/e.parquet", ".f/g.parquet")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with footer.key, name.key, and a folder `lake` of four files and hidden ones."""
    private(tmp_path / "footer.key", FOOTER_KEY.hex().encode())
    private(tmp_path / "name.key", COLUMN_KEY.hex().encode())
    for rows, name in enumerate((*NAMES, *HIDDEN), 10):
        (tmp_path / "lake" / name).parent.mkdir(parents=True, exist_ok=True)
        write_plain(tmp_path / "lake" / name, small_table(rows))
    for name in HIDDEN:  # encryption refuses a folder whose hidden files have values
        (tmp_path / "lake" / name).write_bytes(b"hidden")
    return tmp_path


@pytest.fixture
def encrypted_folder(folder: Path) -> Path:
    """The same with the files of `lake` encrypted in `sealed`."""
    run_ok(folder, "encrypt", *KEY, "lake", "sealed")
    return folder


def files_in(folder: Path) -> list[str]:
    found = [path for path in folder.rglob("*") if path.is_file()]
    return sorted(path.relative_to(folder).as_posix() for path in found)


def contents(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in files_in(folder)}


# --- there and back ------------------------------------------------------------------------------


def test_pyarrow_reads_every_file_of_a_folder_that_was_encrypted(folder: Path) -> None:
    said = run_ok(folder, "encrypt", *KEY, "lake", "out/sealed")
    assert said.startswith("4 files: 4 encrypted; ")
    assert files_in(folder / "out" / "sealed") == sorted(NAMES)
    for rows, name in enumerate(NAMES, 10):
        theirs = read_with_pyarrow(folder / "out" / "sealed" / name, FOOTER_KEY)
        assert theirs.equals(small_table(rows))


def test_a_copy_lacks_the_files_of_a_write_that_is_not_complete(encrypted_folder: Path) -> None:
    """Readers of the source pass over them; the copy has no note that hides them."""
    notes = encrypted_folder / "sealed" / NOTES
    notes.mkdir()
    note = {"host": "h", "time": 0, "hidden": [sorted(NAMES)[0]]}
    (notes / "job.json").write_text(json.dumps(note))
    run_ok(encrypted_folder, "decrypt", *KEY, "sealed", "copy")
    assert files_in(encrypted_folder / "copy") == sorted(NAMES)[1:]
    # In place all change their keys, so that the write can be completed.
    new = to_key(encrypted_folder, "name.key")
    assert run_ok(encrypted_folder, "rekey", *KEY, *new, "--in-place", "sealed").startswith(
        "4 files"
    )


@pytest.mark.parametrize("source", [".", "../{}/lake", "{}/lake", "file://{}/lake", "a link"])
def test_a_folder_may_be_named_in_many_ways(folder: Path, source: str) -> None:
    (folder / "a link").symlink_to("lake")
    where = folder / "lake" if source == "." else folder
    name = source.format(folder.name if source.startswith("..") else folder)
    key = ("--key", f"file:{folder}/footer.key")
    run_ok(where, "encrypt", *key, name, f"file://{folder}/s%20t")
    assert files_in(folder / "s t") == sorted(NAMES)


def test_folders_of_a_store_do_too(folder: Path) -> None:
    fsspec = pytest.importorskip("fsspec")
    store = fsspec.filesystem("memory")
    try:
        run_ok(folder, "encrypt", *KEY, "lake", "memory://bucket/sealed")
        found = [f"/bucket/sealed/{name}" for name in sorted(NAMES)]
        assert sorted(store.find("/bucket")) == found
        run_ok(folder, "decrypt", *KEY, "memory://bucket/sealed", "memory://bucket/plain")
        run_ok(folder, "encrypt", *KEY, "memory://bucket/plain", "again")
        assert "same folder" in check_refusal(
            invoke(folder, "decrypt", *KEY, "memory://bucket/plain", "memory://bucket/plain/")
        )
        assert "within the source" in check_refusal(
            invoke(folder, "decrypt", *KEY, "memory://bucket", "memory://bucket/x")
        )
    finally:
        store.rm("/bucket", recursive=True)
    for rows, name in enumerate(NAMES, 10):
        assert read_with_pyarrow(folder / "again" / name, FOOTER_KEY).equals(small_table(rows))


def test_a_link_and_what_it_leads_to_are_one_file(folder: Path) -> None:
    (folder / "lake" / "z.parquet").symlink_to("d.parquet")
    assert run_ok(folder, "encrypt", *KEY, "lake", "out").startswith("4 files: ")


def test_a_pattern_narrows_a_folder(folder: Path) -> None:
    (folder / "lake" / "notes.txt").write_text("no Parquet")
    everything = invoke(folder, "encrypt", *KEY, "lake", "all", "--json")
    assert (everything.exit_code, lines(everything)[1]["failed"]) == (1, 1)
    run_ok(folder, "encrypt", *KEY, "lake", "out", "--glob", "*.parquet")
    assert files_in(folder / "out") == sorted(NAMES)
    run_ok(folder, "encrypt", *KEY, "lake", "norway", "--glob", "country=NO/*.parquet")
    assert files_in(folder / "norway") == ["country=NO/a.parquet", "country=NO/b.parquet"]
    none = invoke(folder, "encrypt", *KEY, "lake", "none", "--glob", "*.orc")
    assert "lake: none of 5 files matches *.orc" in check_refusal(none)


def test_each_file_has_its_line_of_json_and_then_there_are_totals(folder: Path) -> None:
    result = invoke(folder, "encrypt", *KEY, "lake", "out", "--json")
    files, totals = lines(result)
    assert (result.exit_code, result.stderr) == (0, "")
    for file, name in zip(files, NAMES, strict=True):
        assert file.pop("seconds") >= 0
        assert file == {
            "schema": "modcrypt.convert.file/1",
            "source": f"lake/{name}",
            "destination": f"out/{name}",
            "result": "encrypted",
            "message": "",
            "module": None,
            "dry_run": False,
            "source_bytes": (folder / "lake" / name).stat().st_size,
            "destination_bytes": (folder / "out" / name).stat().st_size,
            "proved": 0,
        }
    assert totals.pop("seconds") > 0
    assert totals == {
        "schema": "modcrypt.convert.totals/1",
        "files": 4, "encrypted": 4, "current": 0, "planned": 0, "failed": 0, "not_begun": 0,
        "source_bytes": sum(file["source_bytes"] for file in files), "dry_run": False,
    }  # fmt: skip


def test_what_was_left_out_is_reported_once_for_all_files(folder: Path) -> None:
    keys = (*KEY, "--column-key", "name=file:name.key")
    run_ok(folder, "encrypt", *keys, "lake", "sealed")
    result = invoke(folder, "decrypt", *KEY, "--on-missing-key", "drop", "sealed", "out")
    assert result.exit_code == 0
    assert (
        result.stderr == "modcrypt: columns left out because their key is missing: name (4 files)\n"
    )
    assert "name" not in pq.read_schema(folder / "out" / "d.parquet").names


def test_files_are_worked_on_at_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    both = threading.Barrier(2, timeout=60)
    encrypt = modcrypt.encrypt_parquet
    threads = set()

    def wait(*args: Any, **more: Any) -> None:
        both.wait()
        threads.add(more["threads"])
        encrypt(*args, **more)

    monkeypatch.setattr(encryptor, "encrypt_parquet", wait)
    run_ok(folder, "encrypt", *KEY, "lake", "out", "--jobs", "2")
    assert threads == {1}  # the files have the processors already
    assert files_in(folder / "out") == sorted(NAMES)


# --- files that fail -----------------------------------------------------------------------------


def test_one_file_that_fails_does_not_stop_the_others(encrypted_folder: Path) -> None:
    bad = encrypted_folder / "sealed" / NAMES[1]
    bad.write_bytes(bad.read_bytes()[:-9])
    answer = run(encrypted_folder, "decrypt", *KEY, "sealed", "out")
    titles, failure, summary = answer.stdout.splitlines()
    assert (answer.returncode, answer.stderr) == (1, "")
    assert titles.split() == ["file", "error", "message"]
    assert failure.split()[:2] == [f"sealed/{NAMES[1]}", "format"]
    assert summary.startswith("4 files: 3 decrypted, 1 failed; ")
    assert files_in(encrypted_folder / "out") == sorted({*NAMES} - {NAMES[1]})


def test_fail_fast_begins_no_further_file(folder: Path) -> None:
    (folder / "lake" / NAMES[1]).write_bytes(b"no Parquet")
    options = ("--fail-fast", "--jobs", "1")
    answer = invoke(folder, "encrypt", *KEY, "lake", "out", *options)
    assert answer.stdout.splitlines()[-1].startswith(
        "4 files: 1 encrypted, 1 failed, 2 not begun; "
    )
    assert files_in(folder / "out") == [NAMES[0]]
    _, totals = lines(invoke(folder, "encrypt", *KEY, "lake", "new", *options, "--json"))
    assert totals["not_begun"] == 2


def test_a_bug_in_one_file_is_reported_without_values(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encrypt = modcrypt.encrypt_parquet

    def fail_on_one(source: str, *args: Any, **more: Any) -> None:
        if source.endswith("b.parquet"):
            raise RuntimeError("plaintext of a page")
        encrypt(source, *args, **more)

    monkeypatch.setattr(encryptor, "encrypt_parquet", fail_on_one)
    result = invoke(folder, "encrypt", *KEY, "lake", "out")
    assert (result.exit_code, "plaintext" in result.output) == (70, False)
    assert "3 encrypted, 1 failed" in result.stdout


def test_a_key_among_the_arguments_is_not_repeated_of_any_file(folder: Path) -> None:
    key = FOOTER_KEY.hex()
    result = invoke(folder, "encrypt", *KEY, "--plaintext-column", key, "lake", "out")
    assert result.exit_code == 2
    assert "4 failed" in result.stdout
    assert key not in result.output


def test_a_file_that_vanishes_meanwhile_is_its_own_failure(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    list_tables = listing.list_tables

    def late(*args: Any, **more: Any) -> Any:
        files = list_tables(*args, **more)
        (folder / "lake" / NAMES[2]).unlink()
        return files

    monkeypatch.setattr(listing, "list_tables", late)
    files, _ = lines(invoke(folder, "encrypt", *KEY, "lake", "out", "--json"))
    assert [file["result"] for file in files] == ["encrypted", "encrypted", "file", "encrypted"]
    assert files[2]["message"] == f"lake/{NAMES[2]}: No such file or directory"


def test_names_of_files_cannot_forge_lines_or_colours(tmp_path: Path) -> None:
    private(tmp_path / "footer.key", FOOTER_KEY)
    (tmp_path / "lake").mkdir()
    (tmp_path / "lake" / "a\nb\x1b[2J").write_bytes(b"no Parquet")
    plan = invoke(tmp_path, "encrypt", *KEY, "lake", "out", "--dry-run").stdout
    done = invoke(tmp_path, "encrypt", *KEY, "lake", "out").stdout
    assert (len(plan.splitlines()), len(done.splitlines())) == (3, 3)
    assert "\x1b" not in plan + done
    assert r"a\nb\x1b[2J" in plan
    assert r"a\nb\x1b[2J" in done


# --- destinations --------------------------------------------------------------------------------


def test_destinations_that_exist_are_refused_one_by_one(folder: Path) -> None:
    (folder / "out").mkdir()
    (folder / "out" / "d.parquet").write_bytes(b"dear")
    files, _ = lines(invoke(folder, "encrypt", *KEY, "lake", "out", "--json"))
    assert [file["result"] for file in files] == ["encrypted"] * 3 + ["file"]
    assert files[3]["message"].startswith("out/d.parquet: destination exists and differs (it ")
    assert files[3]["message"].endswith("; pass --force to replace it")
    assert (folder / "out" / "d.parquet").read_bytes() == b"dear"
    run_ok(folder, "encrypt", *KEY, "lake", "out", "--force")
    assert (folder / "out" / "d.parquet").read_bytes()[:4] == b"PARE"


@each_case(
    ("source", "destination", "word", "part"),
    [
        ("lake", "lake", "usage", "the same folder"),
        ("lake/", "./lake", "usage", "the same folder"),
        ("lake", "link", "usage", "the same folder"),
        ("lake", "lake/out", "usage", "lies within the source"),
        (".", "out", "usage", "lies within the source"),
        ("lake", "link/out", "usage", "lies within the source"),
        ("lake", "footer.key", "file", "the source is a folder, so the destination must be one"),
        ("lake/country=NO", "back", "usage", "back/a.parquet is a file of SOURCE"),
        ("empty", "out", "usage", "empty: no files found"),
        ("absent", "out", "file", "absent: No such file"),
        ("lake", "-", "usage", "pipes"),
        ("lake", "", "usage", "a path is empty"),
    ],
)
def test_folders_that_do_not_fit_together_are_refused(
    folder: Path, source: str, destination: str, word: str, part: str
) -> None:
    (folder / "link").symlink_to("lake")
    (folder / "empty").mkdir()
    (folder / "back").mkdir()
    (folder / "back" / "a.parquet").symlink_to("../lake/country=NO/a.parquet")
    before = contents(folder)
    result = invoke(folder, "encrypt", *KEY, "--force", source, destination)
    assert part in check_refusal(result, word)
    assert contents(folder) == before


@pytest.mark.parametrize(
    "options", [("--glob", "*"), ("--jobs", "2"), ("--fail-fast",)], ids=lambda o: o[0]
)
def test_options_of_folders_are_refused_for_a_file(folder: Path, options: tuple[str, ...]) -> None:
    result = invoke(folder, "encrypt", *KEY, *options, "lake/d.parquet", "out")
    assert f"{options[0]}: this needs a folder" in check_refusal(result)


# --- in place ------------------------------------------------------------------------------------


def test_files_are_replaced_in_place_on_request(folder: Path) -> None:
    before = contents(folder / "lake")
    assert "--in-place" in check_refusal(invoke(folder, "encrypt", *KEY, "lake"))
    answer = run(folder, "encrypt", *KEY, "--in-place", "lake", "out")  # every path is a source
    assert (answer.returncode, "out: No such file" in answer.stderr) == (2, True)
    assert contents(folder / "lake") == before
    run_ok(folder, "encrypt", *KEY, "--in-place", "lake")
    assert read_with_pyarrow(folder / "lake" / NAMES[0], FOOTER_KEY).equals(small_table(10))
    assert contents(folder / "lake").keys() == before.keys()
    run_ok(folder, "decrypt", *KEY, "--in-place", "lake")
    assert contents(folder / "lake") == before


def test_several_sources_are_replaced_in_place(folder: Path) -> None:
    before = contents(folder / "lake")
    sources = ("lake/country=NO", "lake/d.parquet")
    said = run_ok(folder, "encrypt", *KEY, "--in-place", *sources)
    assert said.startswith("3 files: 3 encrypted")
    encrypted = {name for name, data in contents(folder / "lake").items() if data[:4] == b"PARE"}
    assert encrypted == {NAMES[0], NAMES[1], NAMES[3]}
    again = run_ok(folder, "encrypt", *KEY, "--in-place", *sources)
    assert again == "3 files: 3 current\n"
    run_ok(folder, "decrypt", *KEY, "--in-place", *sources)
    assert contents(folder / "lake") == before
    (folder / "link").symlink_to("lake")
    answer = invoke(folder, "encrypt", *KEY, "--in-place", "lake", "link/d.parquet")
    assert "are the same file" in check_refusal(answer)
    assert contents(folder / "lake") == before


@pytest.mark.parametrize("how", ["drop", "null"])
def test_columns_without_a_key_are_not_lost_in_place(encrypted_folder: Path, how: str) -> None:
    before = contents(encrypted_folder / "sealed")
    options = ("--on-missing-key", how, "--in-place")
    assert "lose columns" in check_refusal(
        invoke(encrypted_folder, "decrypt", *KEY, *options, "sealed")
    )
    assert contents(encrypted_folder / "sealed") == before


# --- dry runs and records ------------------------------------------------------------------------


def test_a_dry_run_says_what_would_be_done_and_does_nothing(folder: Path) -> None:
    before = contents(folder)
    plan = run_ok(folder, "encrypt", *KEY, "lake", "out", "--dry-run", "--record", "run.jsonl")
    *would, summary = plan.splitlines()
    assert would == [f"would encrypt lake/{name} to out/{name}" for name in NAMES]
    assert summary.startswith("4 files: 4 to encrypt; ")
    in_place = run_ok(folder, "encrypt", *KEY, "--in-place", "lake/d.parquet", "--dry-run")
    assert in_place.startswith("would encrypt lake/d.parquet\n1 file: 1 to encrypt; ")
    assert contents(folder) == before
    (folder / "out").mkdir()
    (folder / "out" / "d.parquet").write_bytes(b"dear")
    files, totals = lines(invoke(folder, "encrypt", *KEY, "lake", "out", "--dry-run", "--json"))
    assert [file["result"] for file in files] == ["planned"] * 3 + ["file"]
    assert (totals["planned"], totals["failed"], totals["dry_run"]) == (3, 1, True)


def test_each_command_finds_its_work_done_by_a_second_run(folder: Path) -> None:
    """Into another folder, in place, and for a single file; as on Spark."""
    private(folder / "new.key", b"n" * 16)
    private(folder / "hash.key", b"h" * 16)
    masks, new = ("--hash", "name", "--hash-key", "file:hash.key"), to_key(folder, "new.key")
    commands = [
        ("encrypt", *KEY, "lake", "sealed"),
        ("rekey", *KEY, *new, "sealed", "moved"),
        ("mask", *KEY, *masks, "sealed", "masked"),
        ("share", *KEY, "--column", "id", *new, "sealed", "shared"),
        ("decrypt", *KEY, "sealed", "back"),
        ("mask", *KEY, *masks, "--in-place", "sealed"),
        ("rekey", *KEY, *new, "--in-place", "sealed"),
        ("decrypt", "--key", "file:new.key", "--in-place", "sealed"),
        ("encrypt", *KEY, "lake/d.parquet", "one"),
        ("decrypt", *KEY, "one", "one.back"),
        ("encrypt", *KEY, "--in-place", "one.back"),
    ]
    for command in commands:
        first = lines_of(folder, *command)
        before = contents(folder)
        second = lines_of(folder, *command)
        assert {line["result"] for line in second} == {"current"}, command
        assert [line["source"] for line in second] == [line["source"] for line in first]
        assert "current" not in {line["result"] for line in first}
        assert contents(folder) == before


def test_a_source_with_other_values_is_not_taken_for_done(encrypted_folder: Path) -> None:
    """Even if it claims to be older, and has as many rows of the same columns."""
    table = small_table(13)
    changed = table.set_column(0, "id", pa.array(range(100, 113)))
    write_plain(encrypted_folder / "lake" / "d.parquet", changed)
    os.utime(encrypted_folder / "lake" / "d.parquet", (1, 1))
    files, _ = lines(invoke(encrypted_folder, "encrypt", *KEY, "lake", "sealed", "--json"))
    assert [file["result"] for file in files] == ["current"] * 3 + ["file"]
    assert "it has other values than its source in id" in files[3]["message"]
    run_ok(encrypted_folder, "encrypt", *KEY, "--force", "lake", "sealed")
    found = read_with_pyarrow(encrypted_folder / "sealed" / "d.parquet", FOOTER_KEY)
    assert found.equals(changed)


def test_columns_that_a_run_without_their_key_left_null_are_not_taken_for_done(
    folder: Path,
) -> None:
    keys = (*KEY, "--column-key", "name=file:name.key")
    run_ok(folder, "encrypt", *keys, "lake", "sealed")
    null = ("decrypt", "--on-missing-key", "null", "sealed", "out", "--json")
    for expected in ("decrypted", "current"):
        files, _ = lines(invoke(folder, *null, *KEY))
        assert {file["result"] for file in files} == {expected}
    files, _ = lines(invoke(folder, *null, *keys))
    assert {file["result"] for file in files} == {"file"}
    assert "other values than its source in name" in files[0]["message"]


def lines_of(folder: Path, *command: str) -> list[dict[str, Any]]:
    """Return the lines of the files, without totals."""
    said = run_ok(folder, *command, "--json").splitlines()
    return [line for line in map(json.loads, said) if "source" in line]


@pytest.mark.parametrize(
    "options",
    [
        ("--aad-prefix", "p", "--no-store-aad-prefix", "--shared-aad-prefix"),
        ("--plaintext-footer", "--plaintext-column", "flag"),
        ("--algorithm", "AES_GCM_CTR_V1"),
        ("--footer-key-metadata", "f", "--column-key", "address=file:name.key"),
        ("--v2-levels", "plaintext"),
        ("--kms", "file:lake.keyring#footer", "--aad-prefix", "{name}", "--single-wrapping"),
        ("--kms", "file:lake.keyring#footer", "--external-key-material"),
        ("--kms", "file:lake.keyring#footer", "--column-master-key", "name=pii"),
    ],
    ids=" ".join,
)
def test_whatever_the_options_a_second_run_finds_its_work(
    folder: Path, options: tuple[str, ...]
) -> None:
    ring = modcrypt.Keyring.create(folder / "lake.keyring", plaintext=True)
    for name in ("footer", "pii"):
        ring.create_key(name)
    keys = () if "--kms" in options else KEY
    for where in (("lake", "out"), ("--in-place", "lake"), ("out/d.parquet", "--in-place")):
        lines_of(folder, "encrypt", *keys, *options, *where)
        found = lines_of(folder, "encrypt", *keys, *options, *where)
        assert {line["result"] for line in found} == {"current"}
    other = ("--kms", "file:lake.keyring#pii") if "--kms" in options else ()
    result = invoke(folder, "encrypt", *keys, *other, "lake", "--in-place", "--json")
    if "--v2-levels" not in options:  # which the footer does not show
        assert (result.exit_code, lines(result)[0][0]["result"]) == (2, "different")


RECORD = ("--record", "run.jsonl")


def results(folder: Path, *arguments: str) -> list[str]:
    files, _ = lines(invoke(folder, *arguments, *RECORD, "--json"))
    return [file["result"] for file in files]


def test_recorded_files_are_skipped_until_they_change(folder: Path) -> None:
    encrypt = ("encrypt", *KEY, "lake", "out")
    assert results(folder, *encrypt) == ["encrypted"] * 4
    before = contents(folder / "out")
    assert results(folder, *encrypt) == ["current"] * 4
    assert results(folder, *encrypt, "--dry-run") == ["current"] * 4
    assert results(folder, *encrypt, "--force") == ["current"] * 4
    assert contents(folder / "out") == before
    assert run_ok(folder, *encrypt, *RECORD) == "4 files: 4 current\n"
    (folder / "out" / NAMES[0]).unlink()
    (folder / "out" / NAMES[1]).write_bytes(b"somebody's own")
    write_plain(folder / "lake" / NAMES[2], small_table(99))
    assert results(folder, *encrypt) == ["encrypted", "file", "file", "current"]
    assert results(folder, *encrypt, "--force") == ["current", *["encrypted"] * 2, "current"]
    assert read_with_pyarrow(folder / "out" / NAMES[2], FOOTER_KEY).equals(small_table(99))


def test_a_record_counts_for_the_same_command_and_options_only(folder: Path) -> None:
    encrypt = ("encrypt", *KEY, "lake", "out")
    assert results(folder, *encrypt) == ["encrypted"] * 4
    other = ("--column-key", "name=file:name.key", "--force")
    assert results(folder, *encrypt, *other) == ["encrypted"] * 4
    shutil.move(folder / "out", folder / "new")
    assert results(folder, "encrypt", *KEY, "lake", "new") == ["different"] * 4
    assert results(folder, "decrypt", *KEY, "new", "out") == ["no-key"] * 4
    key = FOOTER_KEY.hex()
    assert key not in (folder / "run.jsonl").read_text()


def test_what_a_killed_run_published_but_did_not_note_is_found_up_to_date(folder: Path) -> None:
    encrypt = ("encrypt", *KEY, "lake", "out", "--jobs", "1")
    assert results(folder, *encrypt) == ["encrypted"] * 4
    record = folder / "run.jsonl"
    noted = record.read_bytes().splitlines()
    last = max(n for n, line in enumerate(noted) if b'"source"' in line)
    record.write_bytes(b"\n".join(noted[:last]) + b"\n" + noted[last][:30])  # cut by a crash
    assert results(folder, *encrypt) == ["current"] * 4


def test_what_a_killed_run_replaced_in_place_is_found_up_to_date(folder: Path) -> None:
    encrypt = ("encrypt", *KEY, "--in-place", "lake", "--jobs", "1")
    assert results(folder, *encrypt) == ["encrypted"] * 4
    record = folder / "run.jsonl"
    noted = record.read_bytes().splitlines()
    last = max(n for n, line in enumerate(noted) if b'"source"' in line)
    record.write_bytes(b"\n".join(noted[:last]))
    before = contents(folder / "lake")
    assert results(folder, *encrypt) == ["current"] * 4
    assert contents(folder / "lake") == before
    # One that was begun, and is as it was, is done.
    write_plain(folder / "lake" / NAMES[3], small_table(13))
    stamp = list(Place(None, str(folder / "lake" / NAMES[3])).stamp() or ())
    begun = {**json.loads(noted[last - 2]), "was": stamp}
    record.write_text("\n".join([*map(bytes.decode, noted[: last - 2]), json.dumps(begun)]))
    assert results(folder, *encrypt) == ["current"] * 3 + ["encrypted"]


def test_a_run_that_was_killed_is_taken_up(large: Path) -> None:
    stop_after_one = """
import os, select
wait = select.select
def wait_if_done(*_):
    return wait([], [], [], 60 if os.path.exists("out/0.parquet") else 0)
select.select = wait_if_done
"""
    options = ("encrypt", *KEY, *RECORD, "--jobs", "1", "lake", "out")
    command = [sys.executable, "-c", stop_after_one + SLOW, "0", "3600", *options]
    with subprocess.Popen(
        **as_process(command, environment()), cwd=large, text=True, stdout=subprocess.PIPE,
    ) as process:  # fmt: skip
        while not (large / "out" / "0.parquet").exists():
            assert process.poll() is None
            time.sleep(0.01)
        while not any(unfinished_files(large / "out", process.pid)):
            assert process.poll() is None
            time.sleep(0.01)
        process.kill()
    assert process.returncode == -signal.SIGKILL
    done = [name for name in files_in(large / "out") if name[0] != "."]
    assert 0 < len(done) < 3
    taken_up = run(large, *options, "--json")
    files = [json.loads(line) for line in taken_up.stdout.splitlines()][:-1]
    assert taken_up.returncode == 0
    found = [file["result"] for file in files]
    assert found.count("current") == len(done)
    assert set(found) == {"current", "encrypted"}
    for number in range(3):
        read_with_pyarrow(large / "out" / f"{number}.parquet", FOOTER_KEY)


def test_two_runs_do_not_share_a_record(folder: Path) -> None:
    with (folder / "run.jsonl").open("wb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        result = invoke(folder, "encrypt", *KEY, *RECORD, "lake", "out")
    assert "another run is writing to the record run.jsonl" in check_refusal(result)
    assert not (folder / "out").exists()


def test_a_record_and_an_audit_in_the_folder_are_none_of_its_files(folder: Path) -> None:
    ring = modcrypt.Keyring.create(folder / "lake.keyring", plaintext=True)
    ring.create_key("footer")
    own = ("--record", "lake/run.jsonl", "--audit", "lake/audit.jsonl")
    encrypt = ("encrypt", "--kms", "file:lake.keyring#footer", *own, "lake")
    assert run_ok(folder, *encrypt, "one").startswith("4 files: 4 encrypted; ")
    assert run_ok(folder, *encrypt, "two").startswith("4 files: 4 encrypted; ")
    assert (folder / "lake" / "audit.jsonl").exists()
    assert run_ok(folder, *encrypt, "two") == "4 files: 4 current\n"


def test_a_record_that_cannot_be_written_is_2(folder: Path) -> None:
    result = invoke(folder, "encrypt", *KEY, "lake", "out", "--record", "absent/run.jsonl")
    check_refusal(result, "file")
    assert not (folder / "out").exists()


# --- signals and progress ------------------------------------------------------------------------


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """A folder with footer.key, and three files of 2 MB in `lake`."""
    private(tmp_path / "footer.key", FOOTER_KEY)
    (tmp_path / "lake").mkdir()
    table = pa.table({"value": range(250_000)})
    for number in range(3):
        path = tmp_path / "lake" / f"{number}.parquet"
        write_plain(path, table, use_dictionary=False, compression="none")
    return tmp_path


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("jobs", ["1", "3"])
def test_a_signal_leaves_what_is_done_and_nothing_half_done(
    large: Path, number: signal.Signals, jobs: str
) -> None:
    options = ("encrypt", *KEY, "--json", "--jobs", jobs, "lake", "out")
    with subprocess.Popen(
        **as_process([sys.executable, "-c", SLOW, "60", "3600", *options], environment()),
        cwd=large, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stdout.readline() == "writing\n"
        assert any(unfinished_files(large / "out", process.pid))
        process.send_signal(number)
        out, err = process.communicate()
    assert process.returncode == 128 + number
    assert err == f"modcrypt: error: interrupted: ended by {number.name}\n"
    assert json.loads(out.splitlines()[-1])["error"] == "interrupted"
    assert len(files_in(large / "out")) < 3
    for name in files_in(large / "out"):
        read_with_pyarrow(large / "out" / name, FOOTER_KEY)


def test_progress_shows_files_bytes_and_the_time_that_is_left(large: Path) -> None:
    options = ("encrypt", *KEY, "--jobs", "2", "lake", "out")
    command = [sys.executable, "-c", SHOW_PROGRESS, *options]
    answer, said = run_on_terminal(large, command, "stderr", columns=200)
    total = sum(path.stat().st_size for path in (large / "lake").iterdir()) / 2**20
    assert "Encrypting" in said
    assert "3/3 files" in said
    assert f"/{total:.1f} MiB" in said
    assert "0:00:0" in said  # the time that is left
    assert answer.stdout.startswith(b"3 files: 3 encrypted; ")


# --- several sources, and a folder as destination -------------------------------------------------


def test_several_sources_keep_their_names_in_a_folder(folder: Path) -> None:
    first, second = folder / "lake/d.parquet", folder / "lake/country=NO/b.parquet"
    shutil.copytree(folder / "lake", folder / "more")
    sources = ("lake/d.parquet", "lake/country=NO/b.parquet", "more")
    text = run_ok(folder, "encrypt", *KEY, *sources, "out/")
    assert "encrypted" in text.splitlines()[-1]
    made = contents(folder / "out").keys()
    assert {first.name, second.name} <= made
    assert {f"more/{name}" for name in NAMES} <= made
    again = run_ok(folder, "encrypt", *KEY, *sources, "out")
    assert again.splitlines()[-1].endswith(f"{len(made)} current")


def test_a_file_goes_into_a_folder(folder: Path) -> None:
    (folder / "out").mkdir()
    assert run_ok(folder, "encrypt", *KEY, "lake/d.parquet", "out").startswith(
        "1 file: 1 encrypted"
    )
    assert contents(folder / "out").keys() == {"d.parquet"}


def test_sources_of_the_same_name_are_refused(folder: Path) -> None:
    shutil.copytree(folder / "lake", folder / "more")
    answer = invoke(folder, "encrypt", *KEY, "lake/d.parquet", "more/d.parquet", "out")
    assert "would be the same file" in check_refusal(answer)
    assert not (folder / "out").exists()


def test_a_prefix_with_the_path_is_relative_to_the_destination(folder: Path) -> None:
    (folder / "lake.toml").write_text('footer_key = "f"\naad_prefix = "t/{path}"\n')
    kms = ("--kms", "file:ring")
    run_ok(folder, "keys", "create", *kms, "f", "--plaintext")
    policy = (*kms, "--policy", "lake.toml")
    run_ok(folder, "encrypt", *policy, "lake/d.parquet", "lake/country=SE/c.parquet", "out")
    run_ok(folder, "verify", *policy, "--strict", "out")
