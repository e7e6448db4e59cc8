"""Run a command's conversion of one file, of all files of a folder, or of a folder on Spark.

A failed file does not stop the others. Each file appears complete or not at all, so an interrupted
run leaves finished files and untouched ones; the next run finds the finished ones up to date.

Everything that the user may have got wrong is checked before the first file is written: options,
names that clash, a destination inside its source, values that would stay beside encrypted files.
Summaries of footers are removed last, and only if no file failed: until then they may be true.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click
import cloup

from modcrypt.cli.batch_report import ConversionReport
from modcrypt.cli.datasets.arguments import take_paths
from modcrypt.cli.engines import SHOWN, iterate_rows, load_spark, refuse_local_options, start_spark
from modcrypt.cli.former_options import FormerOptions
from modcrypt.cli.options.kms_options import refuse
from modcrypt.cli.options.parquet_options import decryption_settings
from modcrypt.cli.output.failures import use_option_names
from modcrypt.cli.output.progress import batch_bar, progress_bar
from modcrypt.cli.shared import combine_options, print_json, print_line, record_option
from modcrypt.cli.shared_options import dry_run_option, jobs_option, shared_option, spark_option
from modcrypt.errors import printable
from modcrypt.report.text import format_size

if TYPE_CHECKING:  # not to be loaded for the help
    from modcrypt.io.places import Place
    from modcrypt.jobs.conversion import Conversion, ConversionVerb, ConvertedFile
    from modcrypt.jobs.listing import File, Folder
    from modcrypt.jobs.run_record import Record
    from modcrypt.kms.proof import Prove
    from modcrypt.kms.settings import Settings


files_options = combine_options(
    shared_option(
        "--glob PATTERN", rare=True, help='Process only files that match, like "*.parquet".'
    ),
    jobs_option,
)
in_place_option = shared_option("--in-place", help="Overwrite each SOURCE; omit DESTINATION.")
batch_options = cloup.option_group(
    "Folders",
    files_options,
    record_option,
    dry_run_option,
    shared_option("--fail-fast", rare=True, help="Start no more files after a failure."),
    spark_option,
)

_OF_FOLDERS = {"glob", "jobs", "fail_fast", "drop_summaries"}


paths_argument = click.argument(
    "paths", metavar="SOURCE... [DESTINATION]", nargs=-1, required=True, callback=take_paths
)


class Batch:
    """The sources and the destination of a command; nothing is written before `run`.

    `paths` are those of the sources and, except with `--in-place`, of the destination. The values
    of `batch_options`, `in_place_option` and `output_options` are taken out of `options`.
    """

    def __init__(
        self, verb: ConversionVerb, paths: tuple[str, ...], options: dict[str, Any]
    ) -> None:
        self._verb, self._doing = verb, f"{verb.removesuffix('e').capitalize()}ing"
        names = ("glob", "jobs", "record", "dry_run", "fail_fast", "force", "threads", "as_json")
        self._options = {name: options.pop(name) for name in names}
        self._kept: dict[str, Any] = {
            "keep_unknown_fields": options.pop("keep_unknown_fields"),
            "exact": not options.pop("no_exact", False),
            "repair": options.pop("repair", False),
        }
        self._drop_summaries: bool = options.pop("drop_summaries", False)
        self._allow_leaks: bool = options.pop("allow_leaks", False)
        self._prove: Prove = options.pop("prove", "first")
        self._master: str | None = options.pop("spark_master")
        self._hand_over: Callable[[], AbstractContextManager[None]] = nullcontext
        in_place = options.pop("in_place", False)
        context = click.get_current_context()
        self._parameters = context.params | vars(context.obj or FormerOptions())
        sources, destination = _split_paths(paths, in_place, "in_place" in self._parameters)
        from modcrypt.jobs.listing import Folder  # not to be loaded for a usage error

        self._destination = None if destination is None else Folder.at(destination, absolute=False)
        self._source = self._make_source(sources, destination)
        if self._master is not None:
            if len(sources) > 1:
                raise click.UsageError("--spark takes one SOURCE: a folder")
            refuse_local_options()
            return
        self._is_folder = self._source.is_folder or self._is_set
        if self._is_folder:
            self._find_files()
        else:
            self._take_file(sources[0], destination)

    def _make_source(self, sources: Sequence[str], destination: str | None) -> Folder:
        """Return the only source, or all, whose files keep their names in a folder."""
        from modcrypt.jobs.listing import Folder, SourceSet

        only = Folder.at(sources[0], absolute=False)
        into_folder = (
            self._destination is not None
            and not only.is_folder
            and (str(destination).endswith("/") or self._destination.is_folder)
        )
        self._is_set = len(sources) > 1 or (into_folder and self._master is None)
        return SourceSet.of(sources) if self._is_set else only

    def _find_files(self) -> None:
        from modcrypt.jobs.listing import check_apart, list_tables, place_at

        source, target = self._source, self._destination
        # A copy would lack the markers by which readers skip files of incomplete writes.
        self._files: Sequence[File] = list_tables(
            source.members, as_read=target is not None, glob=self._options["glob"],
            without=(self._options["record"], self._parameters.get("audit")),
        )  # fmt: skip
        if target is None:
            self._check_named_once()
            return
        for member in source.members:
            check_apart(member, target)
        named: dict[str, str] = {}
        for file in self._files:
            other = named.setdefault(source.inside(file.name), file.name)
            if other != file.name:
                raise click.UsageError(
                    f"{other} and {file.name} would be the same file of DESTINATION; convert them "
                    "in two runs"
                )
        sources = {file.place.resolve() for file in self._files}
        for name in map(target.file, named):
            if place_at(name).resolve() in sources:
                raise click.UsageError(
                    f"{name} is a file of SOURCE and would be replaced; choose another DESTINATION"
                )

    def _check_named_once(self) -> None:
        """Raise click.UsageError if a file is found twice, which two threads would replace."""
        found: dict[Place, str] = {}
        for file in self._files:
            other = found.setdefault(file.place.resolve(), file.name)
            if other != file.name:
                raise click.UsageError(f"{other} and {file.name} are the same file; name it once")

    def _take_file(self, source: str, destination: str | None) -> None:
        from modcrypt.io.places import exists_error
        from modcrypt.jobs.listing import Folder

        refuse(_OF_FOLDERS, f"this needs a folder, but {source} is a file")
        self._source = Folder(source)
        if destination is None:
            return
        self._destination = Folder(destination)
        if self._destination.place.resolve() == self._source.place.resolve():
            if not self._options["force"]:
                raise exists_error(destination)
            self._destination = None

    def encryption(self, settings: Settings) -> Any:
        """Return the properties of the new files, or references to their keys for Spark."""
        # The record notices other keys at the same place.
        keys = settings.footer_key or "", *settings.column_keys.values()
        self._parameters = {**self._parameters, "keys": keys}
        self._hand_over = settings.hand_over
        if self._master is not None:
            return settings
        if self._is_folder:
            if self._has_root(self._destination):
                settings = settings.under((self._destination or self._source).name)
            try:
                settings.check_distinct(self._source.inside(file.name) for file in self._files)
            except ValueError as error:
                message = use_option_names(str(error))
                if "shared_aad_prefix" not in self._parameters:  # the policy of --to says it
                    message = message.partition("; use ")[0] + '; use "{path}" in its aad_prefix'
                raise click.UsageError(message) from None
        return settings.encryption()

    def decryption(self, options: dict[str, Any]) -> Any:
        """Return the properties that open the files, or references to their keys for Spark.

        Raise click.UsageError if the options contradict each other, or columns would be lost.
        """
        settings = decryption_settings(options)
        if self._master is not None:
            return settings
        if self._destination is None and options.get("on_missing_key", "error") != "error":
            raise click.UsageError(
                "--in-place would permanently lose columns without a key; write to a DESTINATION"
            )
        has_root = self._is_folder and self._has_root(None)
        return (settings.under(self._source.name) if has_root else settings).decryption()

    def _check_leaks(self, encryption: Any) -> None:
        """Raise ValueError if values of encrypted columns would stay readable beside the files."""
        to = None if self._destination is None else self._destination.place
        for source in self._source.members:
            # Loading the check takes a while, and most single files are in no folder NAME=VALUE.
            if self._is_folder or "=" in (to or source.place).resolve().path:
                from modcrypt.jobs.leaks.sidecars import check_sidecars

                check_sidecars(source.place, to, encryption, drop_summaries=self._drop_summaries)

    def _has_root(self, destination: Folder | None) -> bool:
        """Return whether the files have a common folder; several sources have none in place."""
        return destination is not None or not self._is_set

    def run(
        self, *, encryption: Any = None, decryption: Any = None, hash_key: Any = None,
        **changes: Any,
    ) -> int:  # fmt: skip
        """Convert the file, or all files; return the exit code.

        `encryption` and `decryption` are results of these methods, if the verb needs them.
        `hash_key` is the key of hashes, or the reference to it for Spark; `changes` are arguments
        of `Change`.
        """
        options = self._options
        from modcrypt.parquet.rewrite.changes import Change

        texts = [text for value in self._parameters.values() for text in _iterate_texts(value)]
        report = ConversionReport(self._verb, options["dry_run"], options["as_json"], texts)
        how: dict[str, Any] = {
            "verb": self._verb,
            "encryption": encryption,
            "decryption": decryption,
            "change": Change(**self._kept, **changes),
            "overwrite": options["force"],
            "dry_run": options["dry_run"],
        }
        if self._master is not None:
            how |= {"hash_key": hash_key, "prove": self._prove}
            with nullcontext() if options["dry_run"] else self._hand_over():
                return self._run_on_spark(self._master, report, how)
        from modcrypt.jobs.conversion import Conversion
        from modcrypt.jobs.listing import list_tables
        from modcrypt.kms.proof import WrapProof

        if not self._is_folder:
            self._files = list_tables([self._source])
        if self._verb == "encrypt" and not self._allow_leaks:
            self._check_leaks(encryption)
        with ExitStack() as stack:
            if not options["dry_run"]:
                stack.enter_context(self._hand_over())
            record = self._open_record()
            how["change"] = replace(how["change"], hash_key=hash_key)
            conversion = Conversion(
                source=self._source,
                destination=self._destination,
                threads=options["threads"],
                record=None if record is None else stack.enter_context(record),
                proof=WrapProof(self._prove),
                **how,
            )
            if not (self._is_folder or record is not None or options["dry_run"]):
                return self._run_single(conversion)
            for done in stack.enter_context(closing(self._convert_each(conversion))):
                report.add(done)
        return self._finish(report, len(self._files) - report.counts.total())

    def _list_folders(self) -> list[Folder]:
        return [member for member in self._source.members if member.is_folder]

    def _finish(self, report: ConversionReport, not_begun: int = 0) -> int:
        """Print the totals, and remove the summaries if nothing failed; return the exit code."""
        code = report.finish(not_begun)
        if self._drop_summaries and not (code or self._options["dry_run"]):
            from modcrypt.jobs.leaks.sidecars import drop_summaries

            written = self._list_folders() if self._destination is None else [self._destination]
            for folder in written:
                converted = None if self._options["glob"] is None else self._find_converted(folder)
                for place in drop_summaries(folder.place, converted):
                    click.echo(f"modcrypt: removed {printable(place.path)}", err=True)
        return code

    def _find_converted(self, folder: Folder) -> list[str]:
        """Return the paths of the selected files in a source, or those in the destination."""
        if self._destination is not None:
            return [self._source.inside(file.name) for file in self._files]
        found = (file.place.inside(folder.place) for file in self._files)
        return [path for path in found if path is not None]

    def _open_record(self) -> Record | None:
        path, dry_run = self._options["record"], self._options["dry_run"]
        if path is None:
            return None
        from modcrypt.jobs.run_record import Record

        run = {"command": self._verb, "options": digest_of(self._parameters)}
        try:
            return Record(path, run, write=not dry_run, alone=not dry_run)
        except BlockingIOError:
            raise click.UsageError(f"another run is writing to the record {path}") from None

    def _run_single(self, conversion: Conversion) -> int:
        """Convert a file that the user named; its failure is raised."""
        (file,) = self._files
        started = time.perf_counter()
        with progress_bar(self._doing, file.size) as progress:
            done = replace(conversion, progress=progress).process(file)
        done = replace(done, seconds=time.perf_counter() - started)
        if self._options["as_json"]:
            fields = done.fields()
            print_json("convert.file", {**fields, "dry_run": self._options["dry_run"]})
        elif done.result == "current":
            where = printable(done.destination)
            click.echo(f"modcrypt: {where}: up to date; nothing was done", err=True)
        else:
            print_line(printable(_describe(done)))
        if done.message:
            click.echo(f"modcrypt: {done.message}", err=True)
        return 0

    def _convert_each(self, conversion: Conversion) -> Generator[ConvertedFile]:
        """Yield the results in the order of the files; files that were not started have none."""
        from modcrypt.io.threads import usable_cores
        from modcrypt.jobs.engine import Job, Meter, run_job

        jobs = self._options["jobs"] or usable_cores()
        if jobs > 1 and conversion.threads is None and len(self._files) > 1:
            conversion = replace(conversion, threads=1)
        total = sum(file.size for file in self._files)
        with batch_bar(self._doing, len(self._files), total) as bar:
            meter = Meter(bar)
            yield from run_job(
                Job(replace(conversion, progress=meter.progress).run), self._files,
                jobs=jobs, meter=meter,
                is_last=lambda done: done.failed and self._options["fail_fast"],
            )  # fmt: skip

    def _run_on_spark(self, master: str, report: ConversionReport, how: dict[str, Any]) -> int:
        target = None if self._destination is None else self._destination.name
        with start_spark(master, self._verb) as spark:
            from modcrypt.jobs.conversion import ConvertedFile

            jobs = load_spark()
            if self._verb == "encrypt":
                how |= {"drop_summaries": self._drop_summaries, "allow_leaks": self._allow_leaks}
            frame = jobs.run_table_job(
                spark, jobs.plan_conversion, self._source.name, target, **how
            )
            shown = frame
            if not report.as_json:  # do not bring all rows to the driver
                shown = frame.where("failed or result = 'planned'").limit(SHOWN)
            for row in iterate_rows(shown):
                report.show(ConvertedFile.from_row(row))
            groups = frame.selectExpr(
                "result", "code", "if(failed, '', message) as message", "bytes_in"
            ).groupBy("result", "code", "message")
            for group in groups.agg({"*": "count", "bytes_in": "sum"}).collect():
                count, size = group["count(1)"], group["sum(bytes_in)"]
                report.count(group["result"], group["code"], group["message"], count, size or 0)
        return self._finish(report)


def _describe(done: ConvertedFile) -> str:
    """Return the one-line result of a file that was converted."""
    where = "" if done.destination == done.path else f" to {done.destination}"
    size = "" if done.bytes_out is None else f"; {format_size(done.bytes_out)}"
    return f"{done.result} {done.path}{where}{size}"


def _split_paths(
    paths: tuple[str, ...], in_place: bool, may: bool
) -> tuple[tuple[str, ...], str | None]:
    """Return the sources and the destination; raise click.UsageError if one is missing."""
    if in_place:
        return paths, None
    if len(paths) == 1:
        hint = "; name it or pass --in-place" if may else ""
        raise click.UsageError(f"Missing argument 'DESTINATION'{hint}")
    return paths[:-1], paths[-1]


def _iterate_texts(value: object) -> Iterator[str]:
    """Yield the texts in the value of an option."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, tuple):
        for item in value:
            yield from _iterate_texts(item)


# Parameters that do not change the resulting files.
_NOT_RECORDED = {
    "source", "destination", "paths", "html", "in_place", "glob", "jobs", "record", "dry_run",
    "fail_fast", "force", "threads", "as_json", "audit",
    "passphrase", "identity_passphrase", "sign_passphrase",
}  # fmt: skip


_SERVICES = {"kms"}  # a keyring's content changes with every rotation


def digest_of(parameters: dict[str, Any]) -> str:
    """Return a digest of typed options that distinguishes runs without storing the options.

    A policy or key file counts by its content, not by its path.
    """
    fingerprints = {
        name: value if name in _SERVICES else _fingerprint_value(value)
        for name, value in parameters.items()
        if name not in _NOT_RECORDED
    }
    return hashlib.sha256(json.dumps(fingerprints, sort_keys=True).encode()).hexdigest()[:16]


def _fingerprint_value(value: Any) -> Any:
    """Return an option's value, with the names of files replaced by hashes of their content."""
    if isinstance(value, tuple):
        return [_fingerprint_value(item) for item in value]
    if not isinstance(value, str):
        return value
    before, reference, path = value.rpartition("file:")
    path = os.path.expanduser(path if reference else value)
    try:
        with open(path, "rb") as file:
            return [before, hashlib.sha256(file.read(_MAX_FINGERPRINT_BYTES)).hexdigest()]
    except (OSError, ValueError):
        return value


_MAX_FINGERPRINT_BYTES = 4 << 20  # read from a file that an option names
