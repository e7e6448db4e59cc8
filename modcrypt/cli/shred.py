"""`modcrypt shred`: the wrapped keys of data removed for good, and the proof of it."""

from __future__ import annotations

import errno
import json
import os
import time
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from modcrypt.cli.options.kms_options import Service, audit_option, refuse, service_options
from modcrypt.cli.output.failures import exit_code, in_options, printable
from modcrypt.cli.output.progress import files_bar
from modcrypt.cli.shared import print_line, root_option, table, threads_option
from modcrypt.io.storage import local_path
from modcrypt.parquet.crypto.properties import ALGORITHMS

if TYPE_CHECKING:  # not to be loaded for the help
    from modcrypt.jobs.shredding import ShreddedFile
    from modcrypt.jobs.shredding_proof import Proof, ProvenFile

__all__ = ["shred"]

# click keeps the lines of a paragraph after \b as they are.
_EXAMPLE = """\b
Examples: what would be shredded; a column, with proof; a tenant to its master key;
a partition, and its proof alone, whenever it is asked for
  modcrypt shred --kms file:lake.keyring --column ssn lake
  modcrypt shred --kms file:lake.keyring --column ssn --yes --prove lake
  modcrypt shred --kms file:lake.keyring --master-key tenant-7 \\
      --destroy-master-key --yes lake
  modcrypt shred --all --yes lake/day=2026-01-01
  modcrypt shred --kms file:lake.keyring --all --prove --json lake/day=2026-01-01"""


@click.command(epilog=_EXAMPLE)
@click.argument("paths", metavar="PATH...", nargs=-1, required=True)
@service_options
@root_option
@click.option(
    "--column",
    "columns",
    metavar="NAME",
    multiple=True,
    help="The keys of a column, or of all columns of a group. The rest stays readable. Repeatable.",
)
@click.option(
    "--master-key",
    "master_keys",
    metavar="ID",
    multiple=True,
    help="Every key that a master key has wrapped. Repeatable.",
)
@click.option("--all", "everything", is_flag=True, help="All keys of the files.")
@click.option(
    "--destroy-master-key",
    "destroy",
    is_flag=True,
    help="With --master-key: after all files, have the key service destroy it, or disable it where "
    "it can do no more. Whatever else it has wrapped is lost, too.",
)
@click.option("--yes", is_flag=True, help="Do it: nothing brings the keys back.")
@click.option("--dry-run", is_flag=True, help="Only say what would be done, --yes or not.")
@click.option(
    "--prove",
    is_flag=True,
    help="Look, afterwards or without --yes alone, at what can still be read, and report it with "
    "the hash of each file. All of each file is read.",
)
@click.option(
    "--record",
    metavar="FILE",
    help="Note finished files in FILE, and pass over those that it has: takes up a run that was "
    "interrupted.",
)
@click.option(
    "--accept",
    metavar="ALGORITHM",
    type=click.Choice(ALGORITHMS),
    multiple=True,
    help="Accept files of this algorithm; repeatable. Default: both, as no page is opened; with a "
    "policy its own.",
)
@threads_option("How many files at once. Default: 4.")
@audit_option
@click.option(
    "--json", "as_json", is_flag=True, help="Print lines of JSON on stdout, failures included."
)
def shred(
    *,
    paths: tuple[str, ...],
    columns: tuple[str, ...],
    master_keys: tuple[str, ...],
    everything: bool,
    destroy: bool,
    yes: bool,
    dry_run: bool,
    prove: bool,
    record: str | None,
    accept: tuple[str, ...],
    threads: int | None,
    audit: str | None,
    as_json: bool,
    **options: Any,
) -> int:
    """Make data unreadable for good: remove the wrapped keys of columns, master keys or all.

    PATH is a file or a folder. Without --yes nothing is changed, and only told what would be. A key
    service is needed for columns, and for footers that stay readable. The exit code is 1 where
    something that is meant stays readable, or could not be told; 3 or 4 if all files failed for
    want of a key or of the key service.
    """
    if sum(map(bool, (columns, master_keys, everything))) != 1:
        raise click.UsageError("one of --column, --master-key and --all says which keys are meant")
    if destroy and not master_keys:
        raise click.UsageError("--destroy-master-key is for the keys that --master-key names")
    for path in paths:
        local = local_path(path)
        if local is not None and not os.path.exists(local):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
    service = Service(options)
    tools: Any = None
    if service.named:
        tools = service.tools(audit)
    else:
        refuse({"audit", "accept", "destroy"}, "--kms or --policy is needed with that")
    said: dict[str, Any] = {"algorithms": accept} if accept else {}
    said["root"] = options["root"]
    decryption = None
    if service.policy or accept:
        decryption = tools.decryption(service.policy, master_key_ids=master_keys or None, **said)
    meant: dict[str, Any] = {
        "columns": columns, "master_keys": master_keys, "everything": everything,
        "decryption": decryption, "threads": threads,
    }  # fmt: skip
    codes = []
    if yes or dry_run or not prove:
        dry_run = dry_run or not yes
        options = {"destroy_master_keys": destroy, "record": record, "dry_run": dry_run}
        codes.append(_shredded(list(paths), tools, {**meant, **options}, as_json))
        if dry_run:
            click.echo("modcrypt: nothing was changed: --yes shreds for good", err=True)
    if prove:
        codes.append(_proven(list(paths), tools, meant, as_json))
    failed = {code for code in codes if code}
    return 0 if not failed else failed.pop() if len(failed) == 1 else 1


# --- shredding -----------------------------------------------------------------------------------


def _shredded(paths: list[str], tools: Any, options: dict[str, Any], as_json: bool) -> int:
    from modcrypt.jobs.shredding import shred_keys

    started, count = time.perf_counter(), 0
    with files_bar("Shredding") as bar:

        def progress(file: ShreddedFile, total: int) -> None:
            nonlocal count
            count += 1
            bar(count, total)
            if as_json:
                print_line(json.dumps(_fields(file)))

        done = shred_keys(paths, tools, progress=progress, **options)
    files = [file for file in done if file.master_key_id is None]
    ended = [file for file in done if file.master_key_id is not None]
    unmet = _unmet(options["columns"], files)
    if as_json:
        for file in ended:
            print_line(json.dumps(_fields(file)))
    _print_summary(files, ended, unmet, time.perf_counter() - started, options["dry_run"], as_json)
    return 1 if unmet else exit_code(file.result for file in done if file.failed)


def _unmet(columns: tuple[str, ...], files: Sequence[ShreddedFile]) -> list[str]:
    """Give the names of columns that no file has: misspelt, perhaps."""
    if any(file.failed for file in files):
        return []  # and one of them may have it
    met = {column for file in files for column in file.columns}
    return [
        name for name in columns
        if not any(column == name or column.startswith(f"{name}.") for column in met)
    ]  # fmt: skip


def _fields(file: ShreddedFile) -> dict[str, Any]:
    return {**file.fields(), "message": in_options(file.message)}


def _print_summary(
    files: Sequence[ShreddedFile], ended: Sequence[ShreddedFile], unmet: Sequence[str],
    seconds: float, dry_run: bool, as_json: bool,
) -> None:  # fmt: skip
    from modcrypt.jobs.shredding import REMAINS

    names = ("shredded", "current", "skipped", "failed")
    counts = Counter("failed" if file.failed else file.result for file in files)
    keys, whole = sum(file.keys for file in files), sum(file.whole for file in files)
    if as_json:
        totals = {name: counts[name] for name in names}
        more = {"keys": keys, "whole": whole, "unmet": list(unmet), "dry_run": dry_run}
        end = {"seconds": round(seconds, 6), "remains": REMAINS}
        print_line(json.dumps({"files": len(files), **totals, **more, **end}))
        return
    failures = [(file.path, file.result, in_options(file.message)) for file in files if file.failed]
    if failures:
        print_line(table(("file", "result", "message"), failures, left=(0, 1, 2)))
    notes = Counter(file.message for file in files if file.message and not file.failed)
    for note, count in notes.items():
        print_line(printable(f"{_counted(count, 'file')}: {in_options(note)}"))
    would = "would be " if dry_run else ""
    for file in ended:
        note = f": {file.message}" if file.message else ""
        print_line(printable(f"master key {file.master_key_id} {would}{file.result}{note}"))
    words = {"shredded": "to be shredded"} if dry_run else {}
    told = ", ".join(f"{counts[name]} {words.get(name, name)}" for name in names if counts[name])
    wholly = f", {_counted(whole, 'file')} as a whole" if whole else ""
    done = told or "nothing to do"
    print_line(f"{_counted(len(files), 'file')}: {done}; {_counted(keys, 'key')}{wholly}")
    for name in unmet:
        print_line(printable(f"no file has a column {name}"))
    if keys and not dry_run:
        print_line(REMAINS)


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'s' * (count != 1)}"


# --- the proof -----------------------------------------------------------------------------------


def _proven(paths: list[str], tools: Any, meant: dict[str, Any], as_json: bool) -> int:
    from modcrypt.jobs.shredding_proof import prove_shredded

    count = 0
    with files_bar("Looking") as bar:

        def progress(_file: ProvenFile, total: int) -> None:
            nonlocal count
            count += 1
            bar(count, total)

        proof = prove_shredded(paths, tools, progress=progress, **meant)
    if as_json:
        for file in proof.files:
            print_line(json.dumps(file.fields()))
        print_line(json.dumps(proof.summary()))
    else:
        _print_proof(proof)
    if proof.ok:
        return 0
    open_ends = [key for _, key in (*proof.still_readable, *proof.unknown)]
    unavailable = all(key.why.startswith("unavailable") for key in open_ends)
    return 4 if open_ends and unavailable and not (proof.unseen or proof.unmet) else 1


def _print_proof(proof: Proof) -> None:
    meant = proof.criteria
    which = "all keys"
    if meant.columns:
        which = f"the keys of {', '.join(meant.columns)}"
    elif meant.master_keys:
        which = f"keys under {', '.join(meant.master_keys)}"
    service = proof.key_service or "no key service"
    print_line(printable(f"modcrypt {proof.version}, {proof.time}: {which}; {service} was asked"))
    rows = [(_name(file), file.size, file.sha256) for file in proof.files]
    print_line("\n" + table(("file", "bytes", "SHA-256"), rows, left=(0, 2)))
    keys = [
        (_name(file), key.key, key.state, in_options(key.why))
        for file in proof.files
        for key in file.keys
    ]
    if keys:
        print_line("\n" + table(("file", "key", "state", "why"), keys, left=(0, 1, 2, 3)))
    unseen = [(_name(file), in_options(file.message)) for file in proof.unseen]
    if unseen:
        print_line("\n" + table(("file", "can't be looked into"), unseen, left=(0, 1)))
    for name in proof.unmet:
        print_line(printable(f"\nNo file has a column {name}."))
    if proof.others:
        names = ", ".join(proof.others)
        print_line(printable(f"\nNot looked into, as they hold no wrapped keys: {names}"))
    print_line("\nWhat this proof can't know:")
    for limit in proof.limits:
        print_line(f"- {limit}")
    print_line("\n" + _verdict(proof))


def _name(file: ProvenFile) -> str:
    return f"{file.path} (left over)" if file.leftover else file.path


def _verdict(proof: Proof) -> str:
    lost, still = len(proof.no_longer_readable), len(proof.still_readable)
    unknown = len(proof.unknown) + len(proof.unseen)
    counts = f"{lost} no longer readable, {still} still readable, {unknown} unknown"
    if proof.ok:
        refused = len(proof.refused)
        asked = f" {refused} of them are refused by {proof.key_service}, and so not gone from "
        return f"Proven: {counts}." + f"{asked}the files: is that where they were?" * bool(refused)
    nothing = "" if lost or still or unknown else ": nothing that is meant was found"
    return f"NOT proven: {counts}{nothing}."
