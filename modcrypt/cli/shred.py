"""`modcrypt shred`: permanent removal of wrapped keys, and a proof of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from modcrypt.cli.batch_report import FileReport
from modcrypt.cli.datasets.recording import record_erasures
from modcrypt.cli.engines import load_spark, refuse_local_options, show_results, start_spark
from modcrypt.cli.options.kms_options import (
    audit_option,
    names_service,
    refuse,
    service_options,
    service_settings,
)
from modcrypt.cli.options.signing_options import read_signing_key, sign_options, signing_references
from modcrypt.cli.output.failures import use_option_names
from modcrypt.cli.output.progress import files_bar
from modcrypt.cli.shared import (
    accept_option,
    check_paths_exist,
    format_table,
    needs_one_of,
    paths_argument,
    print_json,
    print_line,
    record_option,
    request_option,
    root_option,
)
from modcrypt.cli.shared_options import option, verb
from modcrypt.errors import printable
from modcrypt.jobs.failures import common_code, exit_code
from modcrypt.report.text import format_count

if TYPE_CHECKING:  # not to be loaded for the help
    from pyspark.sql import SparkSession

    from modcrypt.jobs.shredding.file_shredding import ShreddedFile
    from modcrypt.jobs.shredding.proof import Proof, ProvenFile
    from modcrypt.kms.key_tools import KeyTools
    from modcrypt.kms.settings import Settings

_EXAMPLE = """\b
Examples: a dry run; a column, with proof; a tenant with its master key; a partition;
a later proof for it
  modcrypt shred --kms file:lake.keyring --column ssn lake
  modcrypt shred --kms file:lake.keyring --column ssn --yes --prove lake
  modcrypt shred --kms file:lake.keyring --master-key tenant-7 \\
      --destroy-master-key --yes lake
  modcrypt shred --all --yes lake/day=2026-01-01
  modcrypt shred --kms file:lake.keyring --all --prove --json lake/day=2026-01-01"""


@verb(epilog=_EXAMPLE)
@paths_argument
@needs_one_of("destroy", "master_keys")
@service_options
@root_option
@option(
    "--column NAME...",
    "columns",
    help="Remove the keys of a column, or of all columns in a group; the rest stays "
    "readable. Repeatable.",
)
@option(
    "--master-key ID...",
    "master_keys",
    help="Remove every key that this master key has wrapped. Repeatable.",
)
@option("--all", "everything", help="Remove all keys of the files.")
@option(
    "--destroy-master-key",
    "destroy",
    help="With --master-key: after all files, destroy the master key, or disable it where "
    "the key service cannot destroy keys; all else that it wrapped is lost, too.",
)
@option(
    "--prove",
    help="Read all of each file to find what is still readable, and report it with the "
    "file's hash; runs after shredding, or alone without --yes.",
)
@request_option
@record_option
@accept_option
@audit_option
@sign_options
def shred(
    *, paths: tuple[str, ...], columns: tuple[str, ...], master_keys: tuple[str, ...],
    everything: bool, destroy: bool, yes: bool, dry_run: bool, prove: bool, record: str | None,
    accept_algorithms: tuple[str, ...], jobs: int | None, spark_master: str | None, as_json: bool,
    **options: Any,
) -> int:  # fmt: skip
    """Make data permanently unreadable by removing wrapped keys.

    Dry run unless --yes is given. PATH is a file or a folder; options select the keys of columns,
    those under master keys, or all. In a dataset of modcrypt.toml, what is erased is first
    recorded beside it, so that status and verify count it as erased. Columns, and footers that stay
    readable, need a key service. The exit code is 1 if selected data stays readable, or if
    modcrypt cannot tell; if files failed, it is that of the failure, or 1 if failures have
    different codes.
    """
    if sum(map(bool, (columns, master_keys, everything))) != 1:
        raise click.UsageError("select the keys by exactly one of --column, --master-key and --all")
    if spark_master is not None:
        refuse_local_options()
    check_paths_exist(paths)
    settings = service_settings(
        options, needed=names_service(),
        accept_algorithms=accept_algorithms or None, **signing_references(options),
    )  # fmt: skip
    if settings is None:
        refuse({"audit", "accept_algorithms", "destroy", "sign"}, "this needs --kms or --policy")
    elif settings.policy or accept_algorithms:
        settings = settings.evolve(master_key_ids=master_keys)
    selection: dict[str, Any] = {
        "columns": columns, "master_keys": master_keys, "everything": everything,
    }  # fmt: skip
    session = nullcontext() if spark_master is None else start_spark(spark_master, "shred")
    codes = []
    with session as spark:
        files = _Files(list(paths), settings, selection, jobs, spark)
        recording: AbstractContextManager[Any] = nullcontext(_record_nothing)
        if yes and not dry_run:
            recording = record_erasures(
                paths, selection, options["request"], plan=files.plan,
                read_signing_key=partial(read_signing_key, options),
            )  # fmt: skip
        with recording as record_end:
            if yes or dry_run or not prove:
                tally = _Tally(as_json, columns, dry_run or not yes)
                tally.run("Shredding", partial(files.shred, record, dry_run or not yes))
                if destroy:
                    tally.end_master_keys(files.tools, master_keys)
                codes.append(tally.finish())
                record_end(codes[-1], tally.counts)
        if prove:
            codes.append(_run_proof(files, as_json))
    return common_code(code for code in codes if code)


def _record_nothing(code: int, counts: Mapping[str, int]) -> None:
    pass


@dataclass(frozen=True)
class _Files:
    """Files whose selected keys are shredded, in threads or on Spark."""

    paths: list[str]
    settings: Settings | None
    selection: dict[str, Any]
    jobs: int | None
    spark: SparkSession | None

    @property
    def tools(self) -> KeyTools | None:
        """The tools of the key service."""
        return None if self.settings is None else self.settings.tools()

    def shred(
        self, record: str | None, dry_run: bool, show: Callable[[ShreddedFile, int], object]
    ) -> None:
        """Remove the keys, and call `show` with each result and the number of files."""
        settings = None if dry_run else self.settings
        with nullcontext() if settings is None else settings.hand_over():
            self._shred(show, record, dry_run)

    def _shred(
        self, show: Callable[[ShreddedFile, int], object], record: str | None, dry_run: bool
    ) -> None:
        from modcrypt.jobs.shredding.file_shredding import ShreddedFile
        from modcrypt.jobs.shredding.removal import shred_keys

        if self.spark is not None:
            report = load_spark().shred_keys(
                self.spark, self.paths, self.settings, dry_run=dry_run, **self.selection
            )
            show_results(report, ShreddedFile, show)
            return
        signing_key = None if self.settings is None else self.settings.writer_key
        shred_keys(
            self.paths, progress=show, record=record, dry_run=dry_run, signing_key=signing_key,
            **self._local,
        )  # fmt: skip

    def plan(self) -> list[ShreddedFile]:
        """Return the results of a dry run."""
        planned: list[ShreddedFile] = []
        self.shred(None, True, lambda file, total: planned.append(file))
        return planned

    def prove(self, show: Callable[[ProvenFile, int], object]) -> Proof:
        """Prove the shredding, and call `show` with each result and the number of files."""
        if self.spark is not None:
            proof: Proof = load_spark().prove_shredded(
                self.spark, self.paths, self.settings, progress=show, **self.selection
            )
            return proof
        from modcrypt.jobs.shredding.proof import prove_shredded

        return prove_shredded(self.paths, progress=show, **self._local)

    @property
    def _local(self) -> dict[str, Any]:
        requirements = None if self.settings is None else self.settings.requirements()
        return {
            **self.selection, "tools": self.tools, "jobs": self.jobs,
            "decryption": requirements,
        }  # fmt: skip


class _Tally(FileReport):
    """The report of a removal, of the selected columns and of the master keys that end with it."""

    def __init__(self, as_json: bool, columns: Sequence[str], dry_run: bool) -> None:
        super().__init__("shred.file", as_json, dry_run=dry_run)
        self._wanted = columns
        self._whole, self._notes, self._columns = 0, Counter[str](), set[str]()
        self._ended: list[ShreddedFile] = []

    def add(self, file: Any) -> None:
        """Count the result of a file, its columns and what remains to be said about it."""
        super().add(file)
        self._whole += file.whole
        self._columns.update(file.columns)
        if file.message and not file.failed:
            self._notes[file.message] += 1

    def end_master_keys(self, tools: KeyTools | None, master_keys: Sequence[str]) -> None:
        """Destroy master keys, unless a file has failed."""
        from modcrypt.jobs.shredding.removal import end_master_keys

        if tools is not None:
            failed, dry_run = self.counts["failed"], bool(self._dry_run)
            self._ended = end_master_keys(tools, master_keys, failed, dry_run=dry_run)

    def finish(self) -> int:
        """Print the totals and the results of master keys; return the exit code."""
        from modcrypt.jobs.shredding.removal import REMAINS

        unmet, names = self._list_unmet(), ("shredded", "current", "failed")
        if self.as_json:
            for file in self._ended:
                self.print_fields(file)
            more = {"whole": self._whole, "unmet": unmet, "remains": REMAINS}
            self.print_totals(names, keys=self.keys, **more)
        else:
            self._print_notes()
            wholly = f", {format_count(self._whole, 'file')} as a whole" if self._whole else ""
            words = {"shredded": "to be shredded"} if self._dry_run else {}
            keys = format_count(self.keys, "key")
            print_line(self.format_counts(names, f"; {keys}{wholly}", **words))
            for name in unmet:
                print_line(printable(f"no file has a column {name}"))
            if self.keys and not self._dry_run:
                print_line(REMAINS)
        if self._dry_run:
            click.echo("modcrypt: nothing was changed; pass --yes to shred permanently", err=True)
        failed = [*self.failures, *(file for file in self._ended if file.failed)]
        return 1 if unmet else exit_code(file.result for file in failed)

    def _print_notes(self) -> None:
        self.print_failures("result")
        for note, count in self._notes.items():
            print_line(printable(f"{format_count(count, 'file')}: {use_option_names(note)}"))
        would = "would be " if self._dry_run else ""
        for file in self._ended:
            note = f": {file.message}" if file.message else ""
            print_line(printable(f"master key {file.master_key_id} {would}{file.result}{note}"))

    def _list_unmet(self) -> list[str]:
        """Return the names of columns that no file has, perhaps because they are misspelt."""
        if self.failures:
            return []  # a failed file may have the column
        return [
            name for name in self._wanted
            if not any(column == name or column.startswith(f"{name}.") for column in self._columns)
        ]  # fmt: skip


def _run_proof(files: _Files, as_json: bool) -> int:
    with files_bar("Examining") as bar:
        proof = files.prove(lambda _, total: bar(total))
    if as_json:
        for file in proof.files:
            print_json("shred.proof-file", file.fields())
        print_json("shred.proof", proof.summary())
    else:
        _print_proof(proof)
    if proof.ok:
        return 0
    open_ends = [key for _, key in (*proof.still_readable, *proof.unknown)]
    unavailable = all(key.why.startswith("unavailable") for key in open_ends)
    return 4 if open_ends and unavailable and not (proof.unseen or proof.unmet) else 1


def _print_proof(proof: Proof) -> None:
    criteria = proof.criteria
    which = "all keys"
    if criteria.columns:
        which = f"the keys of {', '.join(criteria.columns)}"
    elif criteria.master_keys:
        which = f"keys under {', '.join(criteria.master_keys)}"
    service = proof.key_service or "no key service"
    print_line(printable(f"modcrypt {proof.version}, {proof.time}: {which}; {service} was asked"))
    rows = [(_format_name(file), file.size, file.sha256) for file in proof.files]
    print_line("\n" + format_table(("file", "bytes", "SHA-256"), rows, left=(0, 2)))
    keys = [
        (_format_name(file), key.key, key.state, use_option_names(key.why))
        for file in proof.files
        for key in file.keys
    ]
    if keys:
        print_line("\n" + format_table(("file", "key", "state", "why"), keys, left=(0, 1, 2, 3)))
    unseen = [(_format_name(file), use_option_names(file.message)) for file in proof.unseen]
    if unseen:
        print_line("\n" + format_table(("file", "cannot be inspected"), unseen, left=(0, 1)))
    for name in proof.unmet:
        print_line(printable(f"\nNo file has a column {name}."))
    if proof.others:
        names = ", ".join(proof.others)
        print_line(printable(f"\nNot inspected, because they hold no wrapped keys: {names}"))
    print_line("\nWhat this proof cannot know:")
    for limit in proof.limits:
        print_line(f"- {limit}")
    print_line("\n" + _verdict(proof))


def _format_name(file: ProvenFile) -> str:
    return f"{file.path} (left over)" if file.leftover else file.path


def _verdict(proof: Proof) -> str:
    lost, still = len(proof.no_longer_readable), len(proof.still_readable)
    unknown = len(proof.unknown) + len(proof.unseen)
    counts = f"{lost} no longer readable, {still} still readable, {unknown} unknown"
    if proof.ok:
        refused = len(proof.refused)
        refusal = f" {refused} of them are still in the files, but {proof.key_service} refuses "
        return f"Proven: {counts}." + f"{refusal}them; check that it is their key service." * bool(
            refused
        )
    nothing = "" if lost or still or unknown else ": no selected key was found"
    return f"NOT proven: {counts}{nothing}."
