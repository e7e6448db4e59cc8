"""`modcrypt keys`: the master keys of a key service, and the keys of files that are there."""

from __future__ import annotations

import errno
import json
import os
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Literal

import click

import modcrypt
from modcrypt.cli import key_refs
from modcrypt.cli.options.kms_options import (
    Service,
    audit_option,
    pairs,
    reading_service_options,
    refuse,
    service_options,
)
from modcrypt.cli.output.failures import exit_code, in_options, printable
from modcrypt.cli.output.progress import files_bar
from modcrypt.cli.shared import json_option, print_line, root_option, table, threads_option
from modcrypt.cli.spark import decryption_settings, rotate_on_spark, scan_on_spark, spark_option
from modcrypt.io.storage import local_path
from modcrypt.parquet.crypto.properties import ALGORITHMS

if TYPE_CHECKING:  # not to be loaded for the help
    from modcrypt.jobs.key_rotation import RotatedFile
    from modcrypt.jobs.key_scan import ScannedKey
    from modcrypt.kms.client import MasterKey

__all__ = ["keys"]

# click keeps the lines of a paragraph after \b as they are.
_GROUP_EXAMPLE = """\b
Examples: from the first master key to its second version
  modcrypt keys create --kms file:lake.keyring footer
  modcrypt encrypt --kms file:lake.keyring#footer orders.parquet lake/orders.parquet
  modcrypt keys rotate --kms file:lake.keyring --key footer lake
  modcrypt keys disable --kms file:lake.keyring footer --version 1"""

_CREATE_EXAMPLE = """\b
Examples: a keyring and its first master key; one that is in use elsewhere
  modcrypt keys create --kms file:lake.keyring footer
  modcrypt keys create --kms file:lake.keyring pii --import-file pii.key"""

_LIST_EXAMPLE = """\b
Example:
  modcrypt keys list --kms file:lake.keyring"""

_ROTATE_EXAMPLE = """\b
Examples: a new version of a master key, and files brought under it; fresh KEKs
under another master key; an interrupted run that is taken up
  modcrypt keys rotate --kms file:lake.keyring --key footer lake
  modcrypt keys rotate --kms file:lake.keyring --what kek \\
      --new-master-key footer=vault lake
  modcrypt keys rotate --kms file:lake.keyring --record rotation.jsonl lake"""

_DISABLE_EXAMPLE = """\b
Example: what was wrapped under version 1 opens no more
  modcrypt keys disable --kms file:lake.keyring footer --version 1"""

_ENABLE_EXAMPLE = """\b
Example:
  modcrypt keys enable --kms file:lake.keyring footer --version 1"""

_DESTROY_EXAMPLE = """\b
Example:
  modcrypt keys destroy --kms file:lake.keyring footer --version 1 --yes"""

_SCAN_EXAMPLE = """\b
Examples: without any key; with columns under sealed footers, too
  modcrypt keys scan lake
  modcrypt keys scan --kms file:lake.keyring lake"""

_version_option = click.option(
    "--version",
    metavar="N",
    type=click.IntRange(min=1),
    help="An older version alone; of disable, all up to it.",
)
_lines_option = click.option(
    "--json", "as_json", is_flag=True, help="Print lines of JSON on stdout, failures included."
)


@click.group(epilog=_GROUP_EXAMPLE, invoke_without_command=True)
@click.pass_context
def keys(context: click.Context) -> None:
    """Manage master keys, and the keys of files that they wrap.

    A master key stays in its key service: a keyring, Vault, a cloud's KMS, a PKCS#11 token. What
    it wraps lies in the files.
    """
    if context.invoked_subcommand is None:
        click.echo(context.get_help(), err=True)
        context.exit(2)


# --- master keys ---------------------------------------------------------------------------------


@keys.command(epilog=_CREATE_EXAMPLE)
@click.argument("key_id", metavar="ID")
@service_options
@click.option(
    "--plaintext",
    is_flag=True,
    help="Make the keyring without a passphrase: who can read the file has the keys.",
)
@click.option(
    "--import-file",
    metavar="PATH",
    help="Into a keyring: take the key from a file of 16, 24 or 32 raw bytes, or of their hex or "
    "base64 text.",
)
@click.option(
    "--import-env",
    metavar="VARIABLE",
    help="Into a keyring: take the key from an environment variable with the hex or base64 text.",
)
@json_option
def create(
    *,
    key_id: str,
    plaintext: bool,
    import_file: str | None,
    import_env: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Make the master key ID, of 256 bits; and the keyring, if it is not there.

    A keyring is one file, sealed under a passphrase, or with --plaintext in the clear.
    """
    service = Service(options)
    if not service.is_keyring:
        refuse({"plaintext", "import_file", "import_env"}, "that is for keyrings, file:PATH")
    if plaintext:
        refuse(
            {"passphrase_file", "passphrase_env", "passphrase_fd"},
            "with --plaintext there is no passphrase",
        )
    more = _imported(import_file, import_env)
    client: Any = (
        _opened_or_new(service, plaintext, key_id) if service.is_keyring else service.client()
    )
    master = _administered(client, "create_key")(key_id, **more)
    _print_master("created", master, as_json)


def _imported(file: str | None, env: str | None) -> dict[str, Any]:
    """Give the value of a key that is in use elsewhere, as `create_key` takes it."""
    if file is not None and env is not None:
        raise click.UsageError("--import-file and --import-env exclude each other")
    if file is not None:
        return {"value": key_refs.from_file(file, "imported key")}
    return {} if env is None else {"value": key_refs.from_env(env, "imported key")}


def _opened_or_new(service: Service, plaintext: bool, key_id: str) -> Any:
    from modcrypt.kms.keyring.keyring import check_key_id, keyring_path

    check_key_id(key_id)  # or an empty keyring would be left behind
    try:
        if not plaintext:
            return service.client()
        return modcrypt.open_kms(service.uri)
    except FileNotFoundError:
        path = keyring_path(service.uri)
    except modcrypt.KeyAccessDeniedError:
        if not plaintext:
            raise
        raise click.UsageError("the keyring is there, and sealed: leave --plaintext out") from None
    return service.new_keyring(path, plaintext=plaintext)


@keys.command("list", epilog=_LIST_EXAMPLE)
@service_options
@json_option
def list_(*, as_json: bool, **options: Any) -> None:
    """List the master keys, without their values."""
    found: list[MasterKey] = _administered(Service(options).client(), "list_keys")()
    if as_json:
        print_line(json.dumps({"keys": [asdict(master) for master in found]}))
        return
    rows = [
        (m.id, m.version, _state(m), m.created, ", ".join(_disabled_versions(m)) or None)
        for m in found
    ]
    titles = ("master key", "version", "state", "created", "disabled versions")
    print_line(table(titles, rows, left=(0, 2, 3, 4)))


@keys.command(epilog=_DISABLE_EXAMPLE)
@click.argument("key_id", metavar="ID")
@_version_option
@service_options
@json_option
def disable(*, key_id: str, version: int | None, as_json: bool, **options: Any) -> None:
    """Stop the master key ID from unwrapping; or its versions up to one that is not the newest.

    Whatever is wrapped under it opens no more: rotate the files first.
    """
    change = _administered(Service(options).client(), "disable_key")
    _print_master("disabled", change(key_id, version), as_json, version)


@keys.command(epilog=_ENABLE_EXAMPLE)
@click.argument("key_id", metavar="ID")
@_version_option
@service_options
@json_option
def enable(*, key_id: str, version: int | None, as_json: bool, **options: Any) -> None:
    """Undo `disable`: of the master key ID, or of one version of it."""
    change = _administered(Service(options).client(), "enable_key")
    _print_master("enabled", change(key_id, version), as_json, version)


@keys.command(epilog=_DESTROY_EXAMPLE)
@click.argument("key_id", metavar="ID")
@_version_option
@service_options
@click.option("--yes", is_flag=True, help="Do it: nothing brings a destroyed key back.")
@json_option
def destroy(*, key_id: str, version: int | None, yes: bool, as_json: bool, **options: Any) -> None:
    """Destroy the master key ID, or one older version of it, for good.

    What it wrapped is lost, where no copy of the key is left, in a backup for one.
    """
    service = Service(options)
    if not yes:
        raise click.UsageError("what a destroyed key wrapped is lost for good: --yes says do it")
    from modcrypt.kms.client import MasterKey

    if version is not None and not service.is_keyring:
        raise click.UsageError("--version is for keyrings: this service destroys whole keys alone")
    change = _administered(service.client(), "destroy_key")
    master = change(key_id) if version is None else change(key_id, version)
    gone = MasterKey(id=key_id, enabled=False, destroyed=True)
    _print_master("destroyed", master or gone, as_json, version)


def _administered(client: Any, method: str) -> Any:
    """Give the method of a client that manages master keys."""
    found = getattr(client, method, None)
    if found is None:
        verb = method.partition("_")[0]
        raise click.UsageError(f"modcrypt can't {verb} keys of this key service: use its own tools")
    return found


def _print_master(done: str, master: MasterKey, as_json: bool, version: int | None = None) -> None:
    if as_json:
        print_line(json.dumps(asdict(master)))
        return
    versions = {
        "disabled": f", versions up to {version}",
        "enabled": f", version {version}",
        "destroyed": f", version {version}",
    }
    if version is not None:
        which = versions[done]
    else:
        which = "" if done in versions or master.version is None else f", version {master.version}"
    print_line(printable(f"{done} {master.id}{which}"))


def _state(master: MasterKey) -> str:
    if master.destroyed:
        return "destroyed"
    return "enabled" if master.enabled else "disabled"


def _disabled_versions(master: MasterKey) -> list[str]:
    gone = master.destroyed_versions
    return [f"{n} (destroyed)" if n in gone else str(n) for n in master.disabled_versions]


# --- rotation ------------------------------------------------------------------------------------


@keys.command(epilog=_ROTATE_EXAMPLE)
@click.argument("paths", metavar="[PATH]...", nargs=-1)
@reading_service_options
@root_option
@click.option(
    "--key", "key_id", metavar="ID", help="Add a version to this master key, before all else."
)
@click.option(
    "--what",
    type=click.Choice(["mek", "kek", "dek"]),
    default="mek",
    show_default=True,
    help="mek: wrap anew what master keys have wrapped. kek: wrap data keys under fresh key "
    "encryption keys. dek: seal all pages again under fresh data keys.",
)
@click.option(
    "--new-master-key",
    "new_master_keys",
    metavar="OLD=NEW",
    multiple=True,
    help="Bring what is under the master key OLD under NEW. The last = counts. Repeatable.",
)
@click.option(
    "--record",
    metavar="FILE",
    help="Note finished files in FILE, and pass over those that it has: takes up a run that was "
    "interrupted.",
)
@click.option("--dry-run", is_flag=True, help="Only say what would be done.")
@click.option(
    "--accept",
    metavar="ALGORITHM",
    type=click.Choice(ALGORITHMS),
    multiple=True,
    help="Accept files of this algorithm; repeatable. Default: both, where no page is opened; for "
    "dek AES_GCM_V1 alone; with a policy its own.",
)
@threads_option("How many files at once. Default: 4.")
@audit_option
@spark_option
@_lines_option
def rotate(
    *,
    paths: tuple[str, ...],
    key_id: str | None,
    what: Literal["mek", "kek", "dek"],
    new_master_keys: tuple[str, ...],
    record: str | None,
    dry_run: bool,
    accept: tuple[str, ...],
    threads: int | None,
    audit: str | None,
    spark_master: str | None,
    as_json: bool,
    **options: Any,
) -> int:
    """Add a version to a master key, wrap the keys of files anew, or both in this order.

    PATH is a file or a folder. Files whose keys are under the newest version are left alone. One
    that fails is as it was, and the others go on; the exit code is 1 then, or 3 or 4 if all failed
    for want of a key or of the key service.
    """
    from modcrypt.jobs.run_record import unfinished

    settings = None
    if spark_master is not None:
        settings = decryption_settings({**options, "accept": accept})
    service = Service(options)
    renamed = pairs(new_master_keys, "--new-master-key", "OLD=NEW")
    if not paths:
        if key_id is None:
            raise click.UsageError("--key ID adds a version to a master key, PATHs rotate files")
        refuse(_OF_FILES, "which files? Give PATHs")
    for path in paths:  # a version that is added for nothing is not taken back
        local = local_path(path)
        if local is not None and not os.path.exists(local):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
    tools = service.tools(audit)
    if key_id is not None:
        taken_up = record is not None and unfinished(record, what, renamed)
        if taken_up:
            click.echo(
                f"modcrypt: {record} has a run to be taken up: no version is added", err=True
            )
        elif dry_run:
            click.echo(f"modcrypt: would add a version to {key_id}", err=True)
            # What is under it is under an old version then, whatever its service says today.
            renamed = {key_id: f"{key_id} (its next version)", **renamed}
        else:
            master = _administered(tools.client, "rotate_key")(key_id)
            _print_master("rotated", master, as_json)
    if not paths:
        return 0
    if spark_master is not None and settings is not None:
        return rotate_on_spark(
            spark_master, paths, settings, what=what, new_master_keys=renamed, dry_run=dry_run,
            as_json=as_json,
        )  # fmt: skip
    said: dict[str, Any] = {"algorithms": accept} if accept else {}
    said["root"] = options["root"]
    started, done = time.perf_counter(), list[modcrypt.RotatedFile]()
    with files_bar("Rotating") as bar:

        def progress(file: RotatedFile, total: int) -> None:
            done.append(file)
            bar(len(done), total)
            if as_json:
                print_line(json.dumps(_fields(file)))

        modcrypt.rotate_keys(
            list(paths),
            tools,
            what=what,
            new_master_keys=renamed,
            decryption=tools.decryption(service.policy, **said)
            if service.policy or accept
            else None,
            record=record,
            dry_run=dry_run,
            threads=threads,
            progress=progress,
        )
    _print_summary(done, time.perf_counter() - started, dry_run, as_json)
    return exit_code(file.result for file in done if file.failed)


_OF_FILES = {"what", "new_master_keys", "record", "dry_run", "accept", "threads"}


def _fields(file: RotatedFile) -> dict[str, Any]:
    message = in_options(file.message)
    return {"file": file.path, "result": file.result, "keys": file.keys, "message": message}


def _print_summary(
    done: Sequence[RotatedFile], seconds: float, dry_run: bool, as_json: bool
) -> None:
    counts = Counter("failed" if file.failed else file.result for file in done)
    names = ("rotated", "current", "plaintext", "skipped", "failed")
    rewrapped = sum(file.keys for file in done)
    if as_json:
        totals = {name: counts[name] for name in names}
        more = {"keys": rewrapped, "dry_run": dry_run, "seconds": round(seconds, 6)}
        print_line(json.dumps({"files": len(done), **totals, **more}))
        return
    failures = [(file.path, file.result, in_options(file.message)) for file in done if file.failed]
    if failures:
        print_line(table(("file", "error", "message"), failures, left=(0, 1, 2)))
    words = {"rotated": "to rotate"} if dry_run else {}
    told = ", ".join(f"{counts[name]} {words.get(name, name)}" for name in names if counts[name])
    print_line(f"{len(done)} files: {told or 'nothing to do'}; {rewrapped} keys")


# --- scan ----------------------------------------------------------------------------------------


@keys.command(epilog=_SCAN_EXAMPLE)
@click.argument("paths", metavar="PATH...", nargs=-1, required=True)
@reading_service_options
@root_option
@audit_option
@spark_option
@_lines_option
def scan(
    *, paths: tuple[str, ...], audit: str | None, spark_master: str | None, as_json: bool,
    **options: Any,
) -> int:  # fmt: skip
    """Tell which master key opens which file and column; no key is needed.

    PATH is a file or a folder. Column keys in a sealed footer are only told with the key service
    that opens it. Nothing else is authenticated. The exit code is 1 where a file could not be
    looked into; 3 or 4 if all of those failed for want of a key or of the key service.
    """
    if spark_master is not None:
        return scan_on_spark(spark_master, paths, options, as_json=as_json)
    service = Service(options)
    tools = decryption = None
    if service.named:
        tools = service.tools(audit)
        decryption = tools.decryption(service.policy, root=options["root"])
    else:
        refuse({"audit", "master_keys"}, "--kms or --policy is needed with that")
    found = modcrypt.scan_keys(list(paths), tools, decryption=decryption)
    if as_json:
        return _print_scanned(found)
    scanned = list(found)
    rows = [_row(one) for one in scanned if one.kind != "error"]
    titles = ("file", "column", "master key", "version", "KEK", "storage")
    print_line(table(titles, rows, left=(0, 1, 2, 4, 5)))
    if not service.named and any(one.kind == "hidden" for one in scanned):
        print_line("(sealed): the keys of columns, if there are any, are told with --kms")
    failures = [one for one in scanned if one.kind == "error"]
    for one in failures:
        where = "" if one.message.startswith(one.file) else f"{one.file}: "
        click.echo(f"modcrypt: {printable(where + in_options(one.message))}", err=True)
    return exit_code(one.word for one in failures)


def _print_scanned(found: Iterator[ScannedKey]) -> int:
    words = set()
    for one in found:
        print_line(json.dumps({**one.fields(), "message": in_options(one.message)}))
        words |= {one.word} if one.kind == "error" else set()
    return exit_code(words)


def _row(one: ScannedKey) -> tuple[str | None, ...]:
    from modcrypt.jobs.key_scan import DESTROYED

    kinds = {"footer": "(footer)", "hidden": "(sealed)"}
    kek = None if one.kek_id is None else one.kek_id[:8]
    column = kinds.get(one.kind, one.column)
    master = f"{one.master_key_id} (destroyed)" if one.message == DESTROYED else one.master_key_id
    return one.file, column, master, one.version, kek, one.storage
