"""`modcrypt keys rotate`: add a version to a master key, and wrap the keys of files again."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Literal

import click

import modcrypt
from modcrypt.cli.batch_report import FileReport
from modcrypt.cli.datasets.recording import record_event
from modcrypt.cli.datasets.requirements import check_rotation
from modcrypt.cli.engines import load_spark, refuse_local_options, show_results, start_spark
from modcrypt.cli.options.kms_options import (
    audit_option,
    parse_pairs,
    reading_service_options,
    refuse,
    required_service,
)
from modcrypt.cli.options.signing_options import (
    sign_options,
    signing_references,
    warn_about_lost_signatures,
)
from modcrypt.cli.shared import (
    accept_option,
    check_paths_exist,
    optional_paths_argument,
    print_json,
    print_line,
    prove_option,
    record_option,
    root_option,
)
from modcrypt.cli.shared_options import option, verb
from modcrypt.errors import printable
from modcrypt.report.text import format_count

if TYPE_CHECKING:  # not to be loaded for the help
    from modcrypt.kms.client import MasterKey
    from modcrypt.kms.settings import Settings

_EXAMPLE = """\b
Examples: a new version of a master key for all files of a folder; new KEKs under
another master key; a run that can be resumed
  modcrypt keys rotate --kms file:lake.keyring --key footer lake
  modcrypt keys rotate --kms file:lake.keyring --what kek \\
      --new-master-key footer=vault lake
  modcrypt keys rotate --kms file:lake.keyring --record rotation.jsonl lake"""


@verb(epilog=_EXAMPLE)
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
    *, paths: tuple[str, ...], key_id: str | None, what: Literal["mek", "kek", "dek"],
    new_master_keys: tuple[str, ...], double_wrapping: bool | None, prove: Literal["first", "all"],
    record: str | None, dry_run: bool, accept_algorithms: tuple[str, ...], jobs: int | None,
    spark_master: str | None, as_json: bool, **options: Any,
) -> int:  # fmt: skip
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
    renamed = dict(check_rotation(settings, key_id, renamed, double_wrapping))
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
        master = admin_method(settings.tools().client, "rotate_key")(key_id)
        print_master("rotated", master, as_json)


def _rotate_files(
    paths: list[str], settings: Settings, run: dict[str, Any], local: dict[str, Any],
    spark_master: str | None, as_json: bool,
) -> int:  # fmt: skip
    """Rotate the keys of files; return the exit code. `local` are arguments without Spark."""

    def rotate(show: Callable[..., object]) -> None:
        if spark_master is not None:
            with start_spark(spark_master, "keys rotate") as spark:
                rotated = load_spark().rotate_keys(spark, paths, settings, **run)
                show_results(rotated, modcrypt.jobs.RotatedFile, show)
        else:
            modcrypt.jobs.rotate_keys(
                paths, settings.tools(), decryption=settings.requirements(), progress=show,
                signing_key=settings.writer_key, **run, **local,
            )  # fmt: skip

    report = FileReport("rotate.file", as_json, dry_run=run["dry_run"])
    recorded = () if run["dry_run"] else paths
    with record_event("rotate", recorded, lambda: settings.writer_key) as end:
        report.run("Rotating", rotate)
        end(report.code, report.counts)
    warn_about_lost_signatures(report.unsigned)
    names = ("rotated", "current", "plaintext", "failed")
    if as_json:
        report.print_totals(names, keys=report.keys)
    else:
        report.print_failures()
        words = {"rotated": "to rotate"} if run["dry_run"] else {}
        keys = format_count(report.keys, "key")
        print_line(report.format_counts(names, f"; {keys}", **words))
    return report.code


_FILE_PARAMETERS = {
    "what", "new_master_keys", "double_wrapping", "record", "dry_run", "accept_algorithms", "jobs",
    "sign", "prove",
}  # fmt: skip


def admin_method(client: Any, method: str) -> Any:
    """Return the method of a client that manages master keys."""
    if (bound_method := getattr(client, method, None)) is None:
        verb = method.partition("_")[0]
        raise click.UsageError(
            f"modcrypt cannot {verb} keys of this key service; use the service's own tools"
        )
    return bound_method


def print_master(done: str, master: MasterKey, as_json: bool, version: int | None = None) -> None:
    """Print what was done to a master key."""
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
