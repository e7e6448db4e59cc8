"""`modcrypt keys`: the master keys of a key service, and the wrapped keys in files."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Literal

import click
import cloup

import modcrypt
from modcrypt.cli.batch_report import Tally
from modcrypt.cli.datasets.requirements import check_rotation
from modcrypt.cli.engines import (
    iterate_rows,
    load_spark,
    refuse_local_options,
    start_spark,
)
from modcrypt.cli.keys.generation import generate
from modcrypt.cli.keys.key_scan import scan
from modcrypt.cli.options.confirmation import confirm
from modcrypt.cli.options.kms_options import (
    audit_option,
    parse_pairs,
    reading_service_options,
    refuse,
    required_service,
    service_options,
)
from modcrypt.cli.options.signing_options import (
    sign_options,
    signing_references,
    warn_about_lost_signatures,
)
from modcrypt.cli.output.progress import files_bar
from modcrypt.cli.references import key_option
from modcrypt.cli.shared import (
    accept_option,
    check_paths_exist,
    format_counts,
    format_table,
    optional_paths_argument,
    print_json,
    print_line,
    prove_option,
    read_key,
    record_option,
    root_option,
)
from modcrypt.cli.shared_options import (
    VerbGroup,
    option,
)
from modcrypt.errors import printable
from modcrypt.jobs.failures import exit_code
from modcrypt.report.text import format_count

if TYPE_CHECKING:  # not to be loaded for the help
    from modcrypt.jobs.key_rotation import RotatedFile
    from modcrypt.kms.client import MasterKey
    from modcrypt.kms.settings import Settings

_GROUP_EXAMPLE = """\b
Examples: create a master key, use it, rotate it and disable its first version
  modcrypt keys create --kms file:lake.keyring footer
  modcrypt encrypt --kms file:lake.keyring#footer orders.parquet lake/orders.parquet
  modcrypt keys rotate --kms file:lake.keyring --key footer lake
  modcrypt keys disable --kms file:lake.keyring footer --version 1"""

_CREATE_EXAMPLE = """\b
Examples: a keyring and its first master key; a key that is already used elsewhere
  modcrypt keys create --kms file:lake.keyring footer
  modcrypt keys create --kms file:lake.keyring pii --import file:pii.key"""

_LIST_EXAMPLE = """\b
Example:
  modcrypt keys list --kms file:lake.keyring"""

_ROTATE_EXAMPLE = """\b
Examples: a new version of a master key for all files of a folder; new KEKs under
another master key; a run that can be resumed
  modcrypt keys rotate --kms file:lake.keyring --key footer lake
  modcrypt keys rotate --kms file:lake.keyring --what kek \\
      --new-master-key footer=vault lake
  modcrypt keys rotate --kms file:lake.keyring --record rotation.jsonl lake"""

_DISABLE_EXAMPLE = """\b
Example: keys wrapped under version 1 can no longer be unwrapped
  modcrypt keys disable --kms file:lake.keyring footer --version 1"""

_ENABLE_EXAMPLE = """\b
Example:
  modcrypt keys enable --kms file:lake.keyring footer --version 1"""

_DESTROY_EXAMPLE = """\b
Example:
  modcrypt keys destroy --kms file:lake.keyring footer --version 1 --yes"""


_version_option = option(
    "--version N",
    type=click.IntRange(min=1),
    help="Older version of the master key; disable also stops all versions before it.",
)


@cloup.group(cls=VerbGroup, epilog=_GROUP_EXAMPLE)
def keys() -> None:
    """Make keys of every kind, and manage master keys and what they wrap.

    A master key stays in its key service: a keyring, Vault, a cloud's KMS or a PKCS#11 token. The
    files contain the keys that it wraps.
    """


# --- master keys ---------------------------------------------------------------------------------


@keys.command(epilog=_CREATE_EXAMPLE)
@click.argument("key_id", metavar="ID")
@service_options
@option(
    "--plaintext",
    help="Create the keyring without a passphrase; anyone who can read the file has the keys.",
)
@key_option("Keyring only: import a key of 16, 24 or 32 bytes", "--import")
def create(
    *,
    key_id: str,
    plaintext: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Create a master key, and the keyring if it does not exist.

    ID names the key, which has 256 bits. A keyring is one file, encrypted under a passphrase, or
    unencrypted with --plaintext.
    """
    settings = required_service(options)
    is_keyring = settings.uri.startswith("file:")
    if not is_keyring:
        refuse({"plaintext", "import"}, "this needs a keyring, --kms file:PATH")
    if plaintext:
        refuse({"passphrase"}, "--plaintext creates a keyring without a passphrase")
    value = read_key(options["import"], "imported key")
    more = {} if value is None else {"value": value}
    client: Any = (
        _open_or_create_keyring(settings, plaintext, key_id) if is_keyring else settings.client
    )
    master = _admin_method(client, "create_key")(key_id, **more)
    _print_master("created", master, as_json)


def _open_or_create_keyring(settings: Settings, plaintext: bool, key_id: str) -> Any:
    from modcrypt.kms.keyring.keyring import check_key_id

    check_key_id(key_id)  # before an empty keyring is created
    try:
        if not plaintext:
            return settings.client
        return modcrypt.kms.open_kms(settings.uri)
    except FileNotFoundError:
        return _create_keyring(settings, plaintext)
    except modcrypt.errors.KeyAccessDeniedError:
        if not plaintext:
            raise
        raise click.UsageError("the keyring exists and is encrypted; omit --plaintext") from None


def _create_keyring(settings: Settings, plaintext: bool) -> Any:
    from modcrypt.kms.key_references import PROMPT
    from modcrypt.kms.keyring.keyring_passphrase import ask_passphrase
    from modcrypt.kms.keyring.keyring_uri import keyring_path

    path = keyring_path(settings.uri)
    if plaintext:
        return modcrypt.Keyring.create(path, plaintext=True)
    if settings.passphrase != PROMPT:
        return modcrypt.Keyring.create(path, passphrase=settings.asker)
    name = settings.uri.partition("#")[0].partition("?")[0]
    passphrase = ask_passphrase(f"the new {name}", twice=True)
    return modcrypt.Keyring.create(path, passphrase=passphrase)


@keys.command("list", epilog=_LIST_EXAMPLE)
@service_options
def list_(*, as_json: bool, **options: Any) -> None:
    """List the master keys, without their values."""
    master_keys: list[MasterKey] = _admin_method(required_service(options).client, "list_keys")()
    if as_json:
        print_json("keys.list", {"keys": [asdict(master) for master in master_keys]})
        return
    rows = [
        (
            key.id,
            key.version,
            "destroyed" if key.destroyed else "enabled" if key.enabled else "disabled",
            key.created,
            ", ".join(
                f"{version} (destroyed)" if version in key.destroyed_versions else str(version)
                for version in key.disabled_versions
            ) or None,
        )
        for key in master_keys
    ]  # fmt: skip
    titles = ("master key", "version", "state", "created", "disabled versions")
    print_line(format_table(titles, rows, left=(0, 2, 3, 4)))


@keys.command(epilog=_DISABLE_EXAMPLE)
@click.argument("key_id", metavar="ID")
@_version_option
@service_options
def disable(*, key_id: str, version: int | None, as_json: bool, **options: Any) -> None:
    """Stop a master key, or older versions of it, from unwrapping.

    With --version, only versions up to that one, which is not the newest, are disabled. Files
    whose keys the master key ID wrapped become unreadable: rotate them first.
    """
    change = _admin_method(required_service(options).client, "disable_key")
    _print_master("disabled", change(key_id, version), as_json, version)


@keys.command(epilog=_ENABLE_EXAMPLE)
@click.argument("key_id", metavar="ID")
@_version_option
@service_options
def enable(*, key_id: str, version: int | None, as_json: bool, **options: Any) -> None:
    """Enable a disabled master key, or one version of it, again.

    ID is the master key.
    """
    change = _admin_method(required_service(options).client, "enable_key")
    _print_master("enabled", change(key_id, version), as_json, version)


@keys.command(epilog=_DESTROY_EXAMPLE)
@click.argument("key_id", metavar="ID")
@_version_option
@service_options
def destroy(*, key_id: str, version: int | None, yes: bool, as_json: bool, **options: Any) -> None:
    """Destroy a master key, or one older version of it, for good.

    The data whose keys the master key ID wrapped is lost, unless a copy of the key exists, for
    example in a backup.
    """
    settings = required_service(options)
    from modcrypt.kms.client import MasterKey

    if version is not None and not settings.uri.startswith("file:"):
        raise click.UsageError(
            "--version needs a keyring; this service can only destroy whole keys"
        )
    destroyed = key_id if version is None else f"{key_id}, version {version}"
    confirm(printable(f"destroys {destroyed}, and all that it has wrapped is lost for good"), yes)
    change = _admin_method(settings.client, "destroy_key")
    master = change(key_id) if version is None else change(key_id, version)
    gone = MasterKey(id=key_id, enabled=False, destroyed=True)
    _print_master("destroyed", master or gone, as_json, version)


def _admin_method(client: Any, method: str) -> Any:
    """Return the method of a client that manages master keys."""
    bound_method = getattr(client, method, None)
    if bound_method is None:
        verb = method.partition("_")[0]
        raise click.UsageError(
            f"modcrypt cannot {verb} keys of this key service; use the service's own tools"
        )
    return bound_method


def _print_master(done: str, master: MasterKey, as_json: bool, version: int | None = None) -> None:
    if as_json:
        print_json("keys.master", asdict(master))
        return
    versions = {
        "disabled": f", versions up to {version}",
        "enabled": f", version {version}",
        "destroyed": f", version {version}",
    }
    if version is not None:
        suffix = versions[done]
    else:
        suffix = "" if done in versions or master.version is None else f", version {master.version}"
    print_line(printable(f"{done} {master.id}{suffix}"))


# --- rotation ------------------------------------------------------------------------------------


@keys.command(epilog=_ROTATE_EXAMPLE)
@optional_paths_argument
@reading_service_options
@root_option
@option("--key ID", "key_id", help="Add a version to this master key first.")
@option(
    "--what",
    type=click.Choice(["mek", "kek", "dek"]),
    default="mek",
    show_default=True,
    help="Keys to replace: mek wraps again what master keys have wrapped; kek wraps data "
    "keys under new key encryption keys; dek encrypts all pages again under new data "
    "keys.",
)
@option(
    "--new-master-key OLD=NEW...",
    "new_master_keys",
    help="Move what is under the master key OLD to NEW. The last = separates the two. Repeatable.",
)
@option(
    "--double-wrapping/--single-wrapping",
    default=None,
    help="Wrap data keys under key encryption keys, or under master keys directly. Default: keep "
    "the wrapping of each key.",
)
@prove_option
@record_option
@sign_options
@accept_option
@audit_option
def rotate(
    *,
    paths: tuple[str, ...],
    key_id: str | None,
    what: Literal["mek", "kek", "dek"],
    new_master_keys: tuple[str, ...],
    double_wrapping: bool | None,
    prove: Literal["first", "all"],
    record: str | None,
    dry_run: bool,
    accept_algorithms: tuple[str, ...],
    jobs: int | None,
    spark_master: str | None,
    as_json: bool,
    **options: Any,
) -> int:
    """Add a version to a master key, or wrap file keys again.

    With --key and PATHs, both are done in this order. PATH is a file or a folder. Files whose keys
    are under the newest version stay unchanged. A file that fails is left as it was, and the
    others continue; the exit code is then that of the failure, or 1 if failures have different
    codes.
    """
    from modcrypt.jobs.run_record import has_unfinished_rotation

    if spark_master is not None:
        refuse_local_options()
    signing = signing_references(options)
    settings = required_service(options).evolve(
        accept_algorithms=accept_algorithms or None, **signing
    )
    renamed = parse_pairs(new_master_keys, "--new-master-key", "OLD=NEW")
    if not paths:
        if key_id is None:
            raise click.UsageError(
                "nothing to rotate; use --key ID to add a version to a master key, or name "
                "PATHs to rotate files"
            )
        refuse(_FILE_PARAMETERS, "this needs files; name PATHs")
    check_paths_exist(paths)  # first: an added version cannot be removed
    check_rotation(settings, key_id, renamed, double_wrapping)
    run: dict[str, Any] = {"what": what, "dry_run": dry_run, "double_wrapping": double_wrapping}
    with settings.hand_over() if paths and not dry_run else nullcontext():
        if key_id is not None:
            resumes = record is not None and has_unfinished_rotation(
                record, what, renamed, double_wrapping
            )
            if dry_run and not resumes:  # the real run would make today's newest version an old one
                renamed = {key_id: f"{key_id} (its next version)", **renamed}
            _add_version(settings, key_id, record if resumes else None, dry_run, as_json)
        if not paths:
            return 0
        run |= {"new_master_keys": renamed, "prove": prove}
        local = {"record": record, "jobs": jobs}
        return _rotate_files(list(paths), settings, run, local, spark_master, as_json)


def _add_version(
    settings: Settings, key_id: str, resumed: str | None, dry_run: bool, as_json: bool
) -> None:
    """Add a version to a master key, unless the run of a record is resumed."""
    if resumed is not None:
        click.echo(
            f"modcrypt: {resumed} has an unfinished run, which is resumed; no version is added",
            err=True,
        )
    elif dry_run:
        click.echo(f"modcrypt: would add a version to {key_id}", err=True)
    else:
        master = _admin_method(settings.tools().client, "rotate_key")(key_id)
        _print_master("rotated", master, as_json)


def _rotate_files(
    paths: list[str], settings: Settings, run: dict[str, Any], local: dict[str, Any],
    spark_master: str | None, as_json: bool,
) -> int:  # fmt: skip
    """Rotate the keys of files; return the exit code. `local` are arguments without Spark."""
    tally, lost = Tally("rotate", as_json), list[str]()
    with files_bar("Rotating") as bar:

        def show(file: RotatedFile, total: int) -> None:
            bar(total)
            tally.add(file)
            lost.extend([file.path] if file.lost_signature else [])

        if spark_master is not None:
            with start_spark(spark_master, "keys rotate") as spark:
                report = load_spark().rotate_keys(spark, paths, settings, **run)
                total = report.count()
                for row in iterate_rows(report.drop("failed", "worker")):
                    show(modcrypt.jobs.RotatedFile(**row), total)
        else:
            modcrypt.jobs.rotate_keys(
                paths, settings.tools(), decryption=settings.requirements(), progress=show,
                signing_key=settings.writer_key, **run, **local,
            )  # fmt: skip
    warn_about_lost_signatures(len(lost), "pass --sign to sign again")
    _print_totals(tally, run["dry_run"])
    return exit_code(file.result for file in tally.failures)


_FILE_PARAMETERS = {
    "what", "new_master_keys", "double_wrapping", "record", "dry_run", "accept_algorithms", "jobs",
    "sign", "prove",
}  # fmt: skip


def _print_totals(tally: Tally, dry_run: bool) -> None:
    names = ("rotated", "current", "plaintext", "failed")
    if tally.as_json:
        tally.print_totals(names, dry_run=dry_run)
        return
    tally.print_failures()
    words = {"rotated": "to rotate"} if dry_run else {}
    text = format_counts({name: tally.counts[name] for name in names}, words)
    files, keys = format_count(tally.counts.total(), "file"), format_count(tally.keys, "key")
    print_line(f"{files}: {text or 'nothing to do'}; {keys}")


keys.add_command(generate)
keys.add_command(scan)
