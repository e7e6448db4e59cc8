"""`modcrypt seals`: sign what files a dataset has, and compare them with the seal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import cloup

import modcrypt
from modcrypt.cli.datasets.arguments import take_paths
from modcrypt.cli.datasets.requirements import declared_members
from modcrypt.cli.former_options import use_present_names
from modcrypt.cli.options.signing_options import SIGNING_SERVICES, signed_by_option, valid_option
from modcrypt.cli.output.progress import batch_bar
from modcrypt.cli.references import Reference, new_passphrase_option
from modcrypt.cli.shared import (
    combine_options,
    format_table,
    print_json,
    print_line,
    refuse_existing,
)
from modcrypt.cli.shared_options import VerbCommand, VerbGroup, jobs_option, option, shared_option
from modcrypt.errors import printable
from modcrypt.report.text import format_count

_GROUP_EXAMPLE = """\b
Example: a writer signs the files of a folder, and a reader compares them
  modcrypt keys generate --kind signing writer.key
  modcrypt seals create --sign file:writer.key lake
  modcrypt seals verify --signed-by writer.pub lake"""

_EXPORT_EXAMPLE = """\b
Example: a key of Vault's transit engine, which never leaves it
  modcrypt seals export "hcvault://vault.example.com/transit/keys/writer" writer.pub"""

_CREATE_EXAMPLE = """\b
Example:
  modcrypt seals create --sign file:writer.key lake"""

_ADD_EXAMPLE = """\b
Example: another tool has written two files
  modcrypt seals add --sign file:writer.key lake lake/day=2/*.parquet"""

_REMOVE_EXAMPLE = """\b
Example: another tool has removed a file
  modcrypt seals remove --sign file:writer.key lake day=1/part-0.parquet"""

_RECORD_EXAMPLE = """\b
Example: encrypt a new file into the dataset, and seal it
  modcrypt seals record --sign file:writer.key lake -- \\
    encrypt --key file:footer.key new.parquet lake/new.parquet"""

_COSIGN_EXAMPLE = """\b
Example: look at a proposal, then sign it
  modcrypt seals cosign --signed-by a.pub --sign file:b.key lake
  modcrypt seals cosign --signed-by a.pub --sign file:b.key --proposal 8:3f2a... lake"""

_WRITERS_EXAMPLE = """\b
Example: replace a key; afterwards two of three writers must sign
  modcrypt seals writers --sign file:old.key --sign file:new.key lake new.pub
  modcrypt seals writers --sign file:new.key --sign file:b.key --needed 2 \
    lake new.pub b.pub c.pub"""

_WITNESS_EXAMPLE = """\b
Example: an auditor countersigns every day; readers require it
  modcrypt seals witness --signed-by writer.pub --sign file:auditor.key --store audit lake
  modcrypt seals verify --signed-by writer.pub --witnessed-by auditor.pub \\
    --witness-store audit lake"""

_LOG_EXAMPLE = """\b
Example:
  modcrypt seals log --signed-by writer.pub lake"""

_VERIFY_EXAMPLE = """\b
Example: a seal that is not older than number 7
  modcrypt seals verify --signed-by writer.pub --at-least 7 lake"""

_SIGNING_KEY = Reference("signing key", services=SIGNING_SERVICES, bare=True)
_needed_option = shared_option(
    "--needed K",
    type=click.IntRange(min=1),
    default=1,
    help="Number of the writers who must have signed, or must sign each new seal. Default: 1.",
)
_at_least_option = shared_option(
    "--at-least N",
    type=click.IntRange(min=0),
    default=0,
    help="Require seal number N or a newer one, to detect a folder that was rolled back.",
)
_passphrase_option = new_passphrase_option(shared=True)


@cloup.group(cls=VerbGroup, epilog=_GROUP_EXAMPLE)
def seals() -> None:
    """Sign which files a dataset has, and verify that it has them.

    Anyone who can read an encrypted file can forge it, because its keys are symmetric. A seal lists
    the hashes of whole files, signed by their writer, and so detects what readers have made or
    altered, and files that are missing, foreign or moved.
    """


@seals.command(epilog=_EXPORT_EXAMPLE)
@click.argument("key", type=_SIGNING_KEY)
@click.argument("path", metavar="FILE.pub")
@_passphrase_option
def export(*, key: str, path: str, passphrase: str | None, as_json: bool) -> None:
    """Write the verifying key of a signing key to FILE.pub, which must not exist.

    KEY is file:PATH of `keys generate`, or the URI of a key that signs inside Vault or OpenBao
    (type ed25519), AWS KMS (ECC_NIST_EDWARDS25519 or ML_DSA_65) or a PKCS#11 token (edwards25519).
    Give FILE.pub to readers, and compare the id with them.
    """
    refuse_existing(Path(path))
    verifier = _load_key(key, passphrase).verifier
    with open(path, "x", encoding="ascii") as file:
        file.write(f"{verifier}\n")
    if as_json:
        print_json("seals.verifier", {"verifier": path, "id": verifier.hex_id})
        return
    print_line(f"verifier  {path}, id {verifier.hex_id}")


def _load_key(key: str, passphrase: str | None) -> modcrypt.SigningKey:
    from modcrypt.kms.signing.signing_keys import load_signing_key, names_service

    if passphrase is not None and names_service(key):
        raise click.UsageError("a passphrase is for a signing key in a file")
    return load_signing_key(key, passphrase)


_sign_options = combine_options(
    shared_option(
        "--sign REF...",
        type=_SIGNING_KEY,
        required=True,
        help="Signing key, also as the URI of a key in a key service. Repeatable.",
    ),
    _passphrase_option,
    signed_by_option,
    _at_least_option,
)
_propose_option = shared_option(
    "--propose", help="Propose the seal: other writers must sign it, too."
)
_folder = click.argument("folder", callback=take_paths)
_files = click.argument("files", nargs=-1, required=True)


@seals.command(epilog=_CREATE_EXAMPLE)
@_folder
@_sign_options
@option(
    "--accept FILE...",
    help="Sign this file, or the files below this folder, although it differs. Repeatable.",
)
@valid_option
def create(
    *, folder: str, accept: tuple[str, ...], jobs: int | None, as_json: bool, **options: Any
) -> None:
    """Sign what files FOLDER has, in FOLDER/_modcrypt_seal.json.

    Every visible file is read and hashed; no other key is needed. If there is an older seal, it
    must be signed with the same key, or one that --signed-by names, and the files must be those
    that it states: `add`, `remove` and `record` sign changes. --accept _modcrypt_seal.json
    continues after a seal that was lost or rolled back.
    """
    with batch_bar("Hashing", 0, None) as bar:
        sealed = modcrypt.jobs.seal_dataset(
            folder, _load_keys(options), accept=accept, jobs=jobs,
            progress=lambda done, total: bar(0, done), **_writing(options),
        )  # fmt: skip
    _print_result(sealed, as_json)


@seals.command(epilog=_ADD_EXAMPLE)
@_folder
@_files
@_sign_options
@valid_option
@_propose_option
def add(
    *, folder: str, files: tuple[str, ...], jobs: int | None, propose: bool, as_json: bool,
    **options: Any,
) -> None:  # fmt: skip
    """Sign that FILES were added to FOLDER or replaced, in the next seal.

    Only FILES are read and hashed; of a folder, all files below it. The new seal states of all
    other files what the old one did.
    """
    _print_update(
        modcrypt.jobs.update_seal(
            folder,
            _load_keys(options),
            added=files,
            jobs=jobs,
            propose=propose,
            **_writing(options),
        ),
        as_json,
    )


@seals.command(epilog=_REMOVE_EXAMPLE)
@_folder
@_files
@_sign_options
@valid_option
@_propose_option
def remove(
    *, folder: str, files: tuple[str, ...], propose: bool, as_json: bool, **options: Any
) -> None:
    """Sign that FILES were removed from FOLDER, in the next seal."""
    _print_update(
        modcrypt.jobs.update_seal(
            folder, _load_keys(options), removed=files, propose=propose, **_writing(options)
        ),
        as_json,
    )


@seals.command(cls=VerbCommand, epilog=_COSIGN_EXAMPLE, essential=["signed_by"])
@_folder
@_sign_options
@option("--proposal NAME", help="Sign this proposal. Dry run without it.")
def cosign(*, folder: str, proposal: str | None, as_json: bool, **options: Any) -> None:
    """Sign the seal of FOLDER that another writer has proposed.

    It prints what the proposal states, and its name; with --proposal it signs it. --signed-by
    names the other writers.
    """
    update, is_newest = modcrypt.jobs.cosign_seal(
        folder, _load_keys(options), proposal=proposal, **_trusting(options)
    )
    if as_json:
        print_json("seals.update", update.fields())
        return
    for mark, paths in (("+", update.added), ("-", update.removed)):
        for path in paths:
            print_line(f"{mark} {printable(path)}")
    state = "" if is_newest else f"; proposal {update.name}, which needs further signatures"
    advice = "" if is_newest or proposal else ": to sign it, pass its name by --proposal"
    print_line(f"{_describe_update(update)}{state}{advice}")


@seals.command(epilog=_RECORD_EXAMPLE)
@_folder
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@_sign_options
@valid_option
def record(*, folder: str, command: tuple[str, ...], **options: Any) -> Any:
    """Run a COMMAND of modcrypt, and sign what it writes to FOLDER and removes, in the next seal.

    Files are hashed as they are written, also by executors of Spark. If COMMAND fails, the files
    that it has written are signed.
    """
    program: Any = click.get_current_context().find_root().command
    arguments, former = use_present_names(program, command)
    with modcrypt.jobs.sealing(folder, _load_keys(options), **_writing(options)) as done:
        result = click.Command.main(
            program, arguments, "modcrypt", standalone_mode=False, obj=former
        )
    if done.update is not None:
        click.echo(_describe_update(done.update), err=True)
    return result


@seals.command(epilog=_WRITERS_EXAMPLE)
@_folder
@click.argument("writers", nargs=-1, required=True, metavar="VERIFIER...")
@_sign_options
@_needed_option
def writers(
    *, folder: str, writers: tuple[str, ...], needed: int, as_json: bool, **options: Any
) -> None:
    """Sign that from now on only these writers may sign seals of FOLDER; all others may not.

    VERIFIER is a .pub file or line. As many keys as were needed until now must --sign, and as many
    of the new ones as are needed from now on.
    """
    update = modcrypt.jobs.change_seal_writers(
        folder, _load_keys(options), _read_keys(writers), needed=needed, **_trusting(options)
    )
    _print_update(update, as_json)


@seals.command(cls=VerbCommand, epilog=_WITNESS_EXAMPLE, essential=["signed_by"])
@_folder
@_sign_options
@_needed_option
@option(
    "--store FOLDER",
    required=True,
    help="Folder for the signature, which writers of the dataset cannot change.",
)
def witness(*, folder: str, needed: int, store: str, **options: Any) -> None:
    """Countersign the newest seal of FOLDER, so that readers can require it.

    --signed-by names the writers, and --sign the key of the witness, which remembers what it has
    signed and refuses a seal that does not follow it.
    """
    number = modcrypt.jobs.witness_seal(
        folder, _load_keys(options)[0], _require_writers(options["signed_by"]), store,
        needed=needed, at_least=options["at_least"],
    )  # fmt: skip
    print_line(f"seal {number}: countersigned")


@seals.command(cls=VerbCommand, epilog=_LOG_EXAMPLE, essential=["signed_by"])
@_folder
@signed_by_option
@_needed_option
def log(*, folder: str, signed_by: tuple[str, ...], needed: int, as_json: bool) -> None:
    """Print who added, replaced and removed files of FOLDER, according to its seals."""
    from modcrypt.kms.signing.sealed_statements import format_time

    history = modcrypt.jobs.seal_log(folder, _require_writers(signed_by), needed=needed)
    if as_json:
        print_json("seals.log", history.fields())
        return
    if not history.complete:
        print_line(f"seals before number {history.entries[0].sequence} are missing")
    for entry in history.entries:
        made = "" if entry.time is None else f"  {format_time(entry.time)}"
        print_line(f"seal {entry.sequence}{made}  {', '.join(entry.signers) or 'unknown writer'}")
        for mark, paths in (("+", entry.added), ("~", entry.replaced), ("-", entry.removed)):
            for path in paths:
                print_line(f"  {mark} {printable(path)}")
        if entry.writers is not None:
            print_line(f"  writers: {', '.join(entry.writers)}")


@seals.command(cls=VerbCommand, epilog=_VERIFY_EXAMPLE, essential=["signed_by"])
@_folder
@signed_by_option
@_at_least_option
@_needed_option
@option("--dataset ID", help="Require the dataset with this id.")
@option(
    "--witnessed-by VERIFIER...",
    "witnessed_by",
    help="Require that this witness has countersigned: its .pub file or line. Repeatable.",
)
@option("--witness-store FOLDER", help="Folder of the signatures of witnesses.")
@option("--after NAME", help="Require the seal of this name, or one that follows it.")
@jobs_option
def verify(
    *, folder: str, signed_by: tuple[str, ...], witnessed_by: tuple[str, ...], as_json: bool,
    **options: Any,
) -> int:  # fmt: skip
    """Compare the files of FOLDER with its seal.

    The exit code is 1 if a file is missing, foreign, hidden or changed, or the seal is not signed
    by the writers, has expired, or is an older one.
    """
    signed_by, options["at_least"] = _required_seal({"signed_by": signed_by, **options})
    with batch_bar("Hashing", 0, None) as bar:
        result = modcrypt.jobs.verify_seal(
            folder, _require_writers(signed_by), witnessed_by=_read_keys(witnessed_by),
            progress=lambda done, total: bar(0, done), **options,
        )  # fmt: skip
    _print_result(result, as_json)
    return 0 if result.ok else 1


def _load_keys(options: dict[str, Any]) -> list[modcrypt.SigningKey]:
    """Return the keys that --sign names; a passphrase is that of each."""
    return [_load_key(key, options["passphrase"]) for key in options["sign"]]


def _trusting(options: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments that say which old seal is accepted."""
    signed_by, _ = _required_seal(options)  # the first seal is made under the declaration, too
    return {"signed_by": _read_keys(signed_by), "at_least": options["at_least"]}


def _required_seal(options: dict[str, Any]) -> tuple[tuple[str, ...], int]:
    """Return the writers and the least number that options or the declaration of a lake name."""
    declared = declared_members({"signed_by": options["signed_by"]})
    writers = options["signed_by"] or declared.get("signed_by") or ()
    return tuple(writers), max(options["at_least"], declared.get("seal_at_least") or 0)


def _writing(options: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of functions that make the next seal."""
    days = options["valid_days"]
    return {**_trusting(options), "valid_for": None if days is None else days * 86_400}


def _read_keys(texts: tuple[str, ...]) -> tuple[modcrypt.kms.VerifyingKey, ...]:
    from modcrypt.kms.signing.signing_keys import read_verifying_keys

    return read_verifying_keys(texts)


def _require_writers(texts: tuple[str, ...]) -> tuple[modcrypt.kms.VerifyingKey, ...]:
    if not texts:
        raise click.UsageError("no writer is named; use --signed-by")
    return _read_keys(texts)


def _print_result(result: modcrypt.jobs.SealVerification, as_json: bool) -> None:
    if as_json:
        print_json("seals.result", {**result.fields(), "ok": result.ok})
        return
    if result.findings:
        rows = [(printable(finding.path), finding.problem) for finding in result.findings]
        print_line(format_table(("file", "problem"), rows, left=(0, 1)))
    print_line(
        f"seal {result.sequence}: {format_count(result.files, 'file')}, signed by {result.signer}; "
        f"{format_count(len(result.findings), 'difference')}; name {result.name}"
    )


def _print_update(update: modcrypt.jobs.SealUpdate, as_json: bool) -> None:
    if as_json:
        print_json("seals.update", update.fields())
        return
    print_line(_describe_update(update))


def _describe_update(update: modcrypt.jobs.SealUpdate) -> str:
    return (
        f"seal {update.sequence}: {format_count(len(update.added), 'file')} added or replaced, "
        f"{len(update.removed)} removed, signed by {update.signer}"
    )
