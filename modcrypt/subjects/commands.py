"""`modcrypt subjects`: create a vault of subjects' keys, erase subjects, and prove it."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any
from uuid import UUID

import click
import cloup

import modcrypt.subjects as package  # names that are imported on first use, not for the help
from modcrypt.cli.datasets.declared import find_lake, find_named
from modcrypt.cli.options import kms_options
from modcrypt.cli.options.signing_options import read_signing_key, sign_options
from modcrypt.cli.program import OTHERS, Program
from modcrypt.cli.shared import combine_options, confirm, print_json, print_line, request_option
from modcrypt.cli.shared_options import VerbGroup, shared_option
from modcrypt.errors import list_names, printable
from modcrypt.io.addresses import local_path
from modcrypt.report.text import format_count

if TYPE_CHECKING:  # not to be loaded for the help
    from modcrypt.kms.key_tools import KeyTools
    from modcrypt.lake.declarations.declaration import LakeDeclaration

MAX_LIST, DEFAULT_VAULT = 64 << 20, "subjects.db"  # size limit of ids from stdin in bytes
_UUID = re.compile(rb"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


def _example(text: str) -> str:
    return f"\b\nExample:\n  modcrypt subjects {text} --kms file:lake.keyring"


@cloup.group(cls=VerbGroup, epilog=_example("erase - --request GDPR-17 --yes") + " < ids.txt")
def subjects() -> None:
    """Erase single people from encrypted files, by a key for each.

    To erase a subject is to remove its key. The vault stores references of subjects, not their ids.
    """


vault_options = combine_options(
    shared_option(
        "--vault ADDRESS",
        help="Vault: path of an SQLite database or postgresql://HOST/DATABASE; ?keys=PLACE at the "
        f"end names its key file. Default: that of --policy, else {DEFAULT_VAULT}.",
    ),
    kms_options.service_options,
    kms_options.audit_option,
)  # fmt: skip


@subjects.command(epilog=_example("create people"))
@click.argument("master_key")
@vault_options
def create(*, master_key: str, as_json: bool, **options: Any) -> None:
    """Create a vault, a database and a key file, under a master key."""
    _find_evidence(options)  # before there is a vault: it may be refused
    with closing(package.create_vault(*_find_vault(options), master_key)) as vault:
        _print_status(vault.status(), as_json, options)


@subjects.command(epilog=_example("erase - --request GDPR-17 --yes") + " < ids.txt")
@click.argument("ids", metavar="[ID]...", nargs=-1)
@request_option
@vault_options
@sign_options
def erase(
    *, ids: Sequence[str], request: str | None, yes: bool, as_json: bool, **options: Any
) -> int:
    """Remove the keys of subjects for good.

    Other users can see arguments: the ID - reads ids from stdin, one per line; the text of a UUID
    is also its value in a column of UUIDs. Without an ID, complete the request, after an
    interruption or the restoration of a backup. Copies of the vault from before still open until
    the next `subjects rotate`. An erased subject never gets a new key. The evidence is beside
    modcrypt.toml, if it has [evidence], else beside the vault. The exit code is 1 if the vault does
    not know a subject.
    """
    if not request:
        raise click.UsageError("name the request to erase by --request")
    named = _read_subjects(ids)
    confirm(f"makes {format_count(len(named), 'subject')} unreadable for good", yes)
    with _open(options) as vault, _record("erase", options, request=request) as record:
        counts = vault.erase(vault.references(_add_uuids(vault, named)), request)
        record(counts)
    text = "{erased:,} erased, {before:,} erased before, {unknown:,} not in the vault"
    text = text.format(**counts)
    _print("erase", {"request": request, **counts}, as_json, text)
    return int(bool(counts["unknown"]))


@subjects.command(epilog=_example("status"))
@vault_options
def status(*, as_json: bool, **options: Any) -> int:
    """Count subjects, and report erasures and rotations that were interrupted.

    The record of evidence is checked, too. The exit code is 1 if any of these has a fault.
    """
    with _open(options) as vault:
        return _print_status(vault.status(), as_json, options)


def _print_status(status: Mapping[str, Any], as_json: bool, options: Mapping[str, Any]) -> int:
    from modcrypt.lake.evidence.evidence_check import check_declared

    declaration = _find_evidence(options)
    found = check_declared(declaration, events=0).findings if declaration else ()
    status = {**status, "faults": [f"line {each.line}: {each.message}" for each in found]}
    advice = {
        "older": "{older:,} keys of an older generation: run subjects rotate",
        "returned": "{returned:,} erased ones have rows: run subjects erase for {requests}",
        "missing": "{missing:,} erasures are missing from the database: it was altered, or is from "
        "before them; restore a backup from after the last erasure",
        "newer": "{newer:,} keys or erasures are newer than the key file: restore the latest one, "
        "or run subjects rotate if this is the latest",
        "faults": "the record of evidence has faults: {faults}",
    }
    text = (
        "generation {generation}: subjects {subjects:,}, erased {erased:,}, of these since the "
        "last rotation {since_rotation:,}"
    )
    text = "; ".join([text, *(advice[name] for name in advice if status[name])])
    shown = {**status, **{name: list_names(status[name]) for name in ("requests", "faults")}}
    _print("status", status, as_json, text.format(**shown))
    return int(not status["complete"] or bool(found))


@subjects.command(epilog=_example("prove - lake/people") + " < ids.txt")
@click.argument("subject", metavar="ID")
@click.argument("paths", metavar="[PATH]...", nargs=-1)
@vault_options
def prove(*, subject: str, paths: Sequence[str], as_json: bool, **options: Any) -> int:
    """Prove that a subject is erased: no generation has a key, and files no longer open.

    The ID - reads ids from stdin, one per line. PATH is a file, folder or Iceberg table whose
    values are tried.
    The exit code is 1 if a subject was not erased, or if anything of it opens.
    """
    from modcrypt.subjects.declaration import find_rows

    named, code = _read_subjects([subject]), 0
    decryption = kms_options.required_service(dict(options)).decryption()
    _, tools = _find_vault(options)
    with _open(options) as vault:
        named = _add_uuids(vault, named)
        for each, reference in zip(named, vault.references(named), strict=True):
            state, known = vault.examine(reference), _read_with(vault, tools)
            for _ in find_rows(paths, decryption, tools, known, each) if paths else ():
                pass
            opened, values = known.decrypted.total(), known.decrypted.total() + known.erased.total()
            proven = state["state"] == "erased" and not opened
            code = max(code, int(not proven))
            text = " ".join(filter(None, state.values()))
            text += f"; {opened:,} of {format_count(values, 'value')} open" * bool(paths)
            counts = {"proven": proven, "values": values, "opened": opened}
            _print("prove", {**state, **counts}, as_json, text)
    return code


@subjects.command(epilog=_example("export - lake/people") + " < ids.txt")
@click.argument("subject", metavar="ID")
@click.argument("paths", metavar="PATH...", nargs=-1, required=True)
@vault_options
def export(*, subject: str, paths: Sequence[str], as_json: bool, **options: Any) -> None:
    """Print all rows of a subject in files, as lines of JSON: its right of access.

    The ID - reads ids from stdin, one per line. Values that are erased are null, and their columns
    are named. PATH is a file, folder or Iceberg table: of tables, all snapshots are read, also
    rows that were deleted.
    """
    from modcrypt.cli.output.rows import rows_of
    from modcrypt.subjects.declaration import find_rows

    decryption = kms_options.required_service(dict(options)).decryption()
    named, (_, tools) = _read_subjects([subject]), _find_vault(options)
    with _open(options) as vault:
        named = _add_uuids(vault, named)
        known = _read_with(vault, tools)
        found = (find_rows(paths, decryption, tools, known, each) for each in named)
        for address, rows in chain.from_iterable(found):
            erased = sorted(+known.erased)
            known.erased.clear()  # of this file
            for row in chain.from_iterable(map(rows_of, rows.to_batches())):
                print_json("subjects.export", {"file": address, "row": row, "erased": erased})


@subjects.command(epilog=_example("rotate --yes"))
@click.argument("master_key", required=False)
@vault_options
@sign_options
def rotate(*, master_key: str | None, yes: bool, as_json: bool, **options: Any) -> int:
    """Wrap all keys under a new KEK, so that older copies of the database open nothing.

    Only then are erased keys gone from backups, except from those that also have the key file.
    Make a new backup of the database afterwards. An interrupted rotation is completed. A master
    key replaces that of the vault.
    """
    confirm("makes all backups of the vault's database useless", yes)
    with _open(options) as vault, _record("rotate", options) as record:
        done = vault.rotate(master_key)
        record({"rewrapped": done["subjects"]})
    return _print_status(done, as_json, options)


def _find_vault(options: Mapping[str, Any]) -> tuple[str, KeyTools]:
    """Return the address of the vault, and the tools of its key service."""
    settings = kms_options.other_service(kms_options.required_service(dict(options)))
    declared = settings.policy and settings.policy.subjects
    return options["vault"] or declared or DEFAULT_VAULT, settings.tools()


def _open(options: Mapping[str, Any]) -> closing[package.SubjectVault]:
    return closing(package.open_vault(*_find_vault(options)))


def _read_with(vault: package.SubjectVault, tools: KeyTools) -> package.Subjects:
    """Return subjects of a vault, with the columns of the policy: some files do not name them."""
    own: Any = tools.own_subjects
    return package.Subjects(vault=vault) if own is None else replace(own, vault=vault)


def _read_subjects(ids: Sequence[str]) -> list[bytes]:
    """Return the subjects of arguments, or of stdin for "-", without repetitions."""
    if "-" not in ids:
        return list(dict.fromkeys(map(os.fsencode, ids)))
    data = sys.stdin.buffer.read(MAX_LIST + 1)
    if len(ids) > 1 or len(data) > MAX_LIST:
        raise click.UsageError(f"the ID - stands alone, and reads at most {MAX_LIST} bytes")
    lines = dict.fromkeys(line.rstrip(b"\r") for line in data.split(b"\n") if line.strip())
    if not lines:  # the program that writes them may have failed
        raise click.UsageError("stdin has no ids; check what writes them")
    return list(lines)


def _add_uuids(vault: package.SubjectVault, subjects: Sequence[bytes]) -> list[bytes]:
    """Return subjects, with the bytes of UUIDs, and without their texts if only those are known."""
    uuids = {each: UUID(each.decode()).bytes for each in subjects if _UUID.fullmatch(each)}
    known = vault.list_known([*uuids, *uuids.values()])
    forms = ([form for form in (each, uuids.get(each)) if form in known] for each in subjects)
    return [form for each, found in zip(subjects, forms, strict=True) for form in found or [each]]


def _print(schema: str, fields: Mapping[str, Any], as_json: bool, text: str) -> None:
    if as_json:
        print_json(f"subjects.{schema}", fields)
    else:
        print_line(printable(text))


def _find_evidence(options: Mapping[str, Any]) -> LakeDeclaration | None:
    """Return what declares the record of evidence: of a lake, or beside vault or key file."""
    from modcrypt.lake.declarations.declaration import EvidenceDeclaration, LakeDeclaration
    from modcrypt.subjects.vault import split_address

    named = find_named(options["policy_file"])
    lake: Any = find_lake() if named is None else named.lake
    if lake is not None and lake.refusal is not None:
        raise lake.refusal
    declared: LakeDeclaration | None = None if lake is None else lake.declaration
    if declared is not None and declared.evidence is not None:
        return declared
    where, place = split_address(_find_vault(options)[0])
    path = local_path(where) or (place.path if place.filesystem is None else None)
    if path is None:
        return None
    own, path = EvidenceDeclaration(), os.path.abspath(path)
    return LakeDeclaration(path=path, kms="", datasets={}, digest="", evidence=own)


@contextmanager
def _record(
    event: str, options: Mapping[str, Any], **texts: Any
) -> Iterator[Callable[[Mapping[str, int]], None]]:
    """Record what a block does as evidence."""
    from modcrypt.lake.evidence.events import DatasetResult
    from modcrypt.lake.evidence.evidence_writer import EvidenceWriter

    if (declaration := _find_evidence(options)) is None:
        raise click.UsageError("with a key file in a store, modcrypt.toml needs [evidence]")
    writer = EvidenceWriter(declaration, read_signing_key(dict(options)))
    with writer.record(event, **texts) as results:
        yield lambda counts: results.append(
            DatasetResult.of("subjects", int(bool(counts.get("unknown"))), 0, counts)
        )


def add_commands(program: Program) -> None:
    """Add `modcrypt subjects` to the program, which finds this function by an entry point."""
    program.add_to_section(OTHERS, subjects)
