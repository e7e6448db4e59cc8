"""Run a command's work on one file or on all files of a folder: `Batch`.

A failed file does not stop the others. Each file appears complete or not at all, so an interrupted
run leaves finished files and untouched ones; a record tells the next run which are finished.

This module has more than 400 lines because pairing files, running, recording and reporting share
the state of one run.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import click

from modcrypt.cli.options.kms_options import refuse
from modcrypt.cli.output.failures import Failure, common_code, explain, printable
from modcrypt.cli.output.progress import batch_bar
from modcrypt.cli.shared import combine_options, convert, format_table, print_line
from modcrypt.cli.source_files import File, Files, files_options, join_name, size_of
from modcrypt.fork_safety import fork_safe
from modcrypt.report.text import format_size

if TYPE_CHECKING:  # not to be loaded for the help
    from modcrypt.io.places import Place
    from modcrypt.jobs.run_record import RunRecord
    from modcrypt.parquet.crypto.properties import Encryption, FileDecryptionProperties

__all__ = [
    "Batch",
    "Conversion",
    "Task",
    "batch_options",
    "digest_of",
    "in_place_option",
    "record_option",
]

Progress: TypeAlias = Callable[[int], None]

# --- options -------------------------------------------------------------------------------------

in_place_option = click.option(
    "--in-place", is_flag=True, help="Overwrite SOURCE in place; omit DESTINATION."
)
record_option = click.option(
    "--record",
    metavar="FILE",
    help="Resume file: record finished files in FILE, and skip those recorded there that "
    "have not changed since.",
)
batch_options = combine_options(
    files_options,
    record_option,
    click.option(
        "--dry-run", is_flag=True, help="Report what would be done, without writing anything."
    ),
    click.option("--fail-fast", is_flag=True, help="Start no further file after a failure."),
)

_OF_FOLDERS = {"glob", "jobs", "fail_fast"}

# Parameters that do not change the resulting files.
_NOT_RECORDED = {
    "source", "destination", "paths", "html", "in_place", "glob", "jobs", "record", "dry_run",
    "fail_fast", "force", "threads", "as_json", "audit",
    "passphrase_file", "passphrase_env", "passphrase_fd",
    "new_passphrase_file", "new_passphrase_env", "new_passphrase_fd",
}  # fmt: skip


# --- what is done with them ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A file to convert, with the arguments of the library's functions."""

    source: str
    destination: str | Place
    overwrite: bool
    threads: int | None
    progress: Progress | None
    dry_run: bool = False


@dataclass(frozen=True, kw_only=True)
class Conversion:
    """The work of a command on each file.

    Attributes:
        verb: Name of the work, such as "encrypt".
        doing: Its present participle, such as "Encrypting".
        done: Its past participle, such as "encrypted".
        work: Function that converts a file and returns further fields of its result.
        note: Function that returns a message about such fields for people, or an empty string.
        once: Whether the work must not be done twice to a file in place, as hashing.
    """

    verb: str
    doing: str
    done: str
    work: Callable[[Task], dict[str, Any]]
    note: Callable[[dict[str, Any]], str] = lambda more: ""
    once: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pair:
    """A source file and its destination."""

    source: File
    destination: str
    place: Place
    make_folder: Callable[[], object]

    @property
    def target(self) -> str | Place:
        """The destination as the library takes it; in a folder it follows no symbolic link."""
        return self.destination if self.place.root is None else self.place


@dataclass(slots=True, kw_only=True)
class _Result:
    """The outcome for one file: the conversion's `done`, `planned`, `skipped` or an error code."""

    pair: _Pair
    result: str
    failure: Failure | None = None
    seconds: float = 0.0
    more: dict[str, Any] = field(default_factory=dict)
    sizes: tuple[int | None, int | None] = (None, None)

    def fields(self) -> dict[str, Any]:
        failure = None if self.failure is None else self.failure.fields()
        return {
            "source": self.pair.source.name,
            "destination": self.pair.destination,
            "result": self.result,
            "message": "" if failure is None else failure["message"],
            "module": None if failure is None else failure["module"],
            "source_bytes": self.sizes[0],
            "destination_bytes": self.sizes[1],
            "seconds": round(self.seconds, 6),
            **self.more,
        }


class Batch:
    """SOURCE and DESTINATION of a command, files or folders; nothing is written before `run`.

    Args:
        options: Values of the command's options; those of `batch_options` and `in_place_option` are
            removed.
        source: Path or URL.
        destination: Path or URL; None with `--in-place`.

    Raises:
        click.UsageError: The options contradict each other.
        OSError: SOURCE does not exist.
    """

    def __init__(self, options: dict[str, Any], source: str, destination: str | None) -> None:
        self._glob: str | None = options.pop("glob")
        self._jobs: int | None = options.pop("jobs")
        self._record: str | None = options.pop("record")
        self._dry_run: bool = options.pop("dry_run")
        self._fail_fast: bool = options.pop("fail_fast")
        self._in_place: bool = options.pop("in_place", False)
        context = click.get_current_context()
        self._arguments = [
            text for value in context.params.values() for text in _iterate_texts(value)
        ]
        self._run = {"command": context.info_name, "options": digest_of(context.params)}
        _check_names(source, destination, self._in_place, "in_place" in context.params)
        written = (self._record, context.params.get("audit"))
        # A copy would lack the markers by which readers skip files of incomplete writes.
        as_read = destination is not None
        self._files = Files.find(source, self._glob, written, as_read=as_read)
        if not self._files.folder:
            refuse(_OF_FOLDERS, f"this needs a folder, but {source} is a file")
        self._pairs = _make_pairs(self._files, destination)
        self._folders = source, source if destination is None else destination

    def resolve_root(self, decryption: FileDecryptionProperties) -> FileDecryptionProperties:
        """Return properties whose AAD prefixes use paths inside SOURCE, if it is a folder."""
        resolved: FileDecryptionProperties = self._resolve_root(decryption, self._folders[0])
        return resolved

    def check_prefixes(self, encryption: Encryption, *, shared: bool) -> Encryption:
        """Return properties whose AAD prefixes use paths inside DESTINATION, if it is a folder.

        Args:
            encryption: Properties of all files.
            shared: Whether several files may have the same AAD prefix.

        Raises:
            click.UsageError: Two files would have the same AAD prefix.
        """
        resolved: Encryption = self._resolve_root(encryption, self._folders[1])
        if self._files.folder and not shared:
            from modcrypt.parquet.crypto.path_prefix import check_distinct

            try:
                prefix = getattr(resolved, "aad_prefix", None)
                check_distinct(prefix, [file.inside for file in self._files.members])
            except ValueError as error:
                message = str(error).replace("pass shared_aad_prefix=True", "--shared-aad-prefix")
                raise click.UsageError(
                    message.replace("in aad_prefix", "in --aad-prefix")
                ) from None
        return resolved

    def _resolve_root(self, properties: Any, folder: str) -> Any:
        from modcrypt.parquet.crypto.properties import set_prefix_root

        return set_prefix_root(properties, folder) if self._files.folder else properties

    def refuse_column_loss(self, on_missing_key: str) -> None:
        """Raise if files would be replaced by files that lack some of their columns."""
        if self._in_place and on_missing_key != "error":
            raise click.UsageError(
                "--in-place would permanently lose columns without a key; write to a DESTINATION"
            )

    def run(
        self, conversion: Conversion, *, force: bool, threads: int | None, as_json: bool
    ) -> int:
        """Convert the file, or all files; return the exit code.

        Args:
            conversion: Work on each file.
            force: Whether to replace existing destinations.
            threads: Number of threads for each file, as the library takes it.
            as_json: Whether to print JSON.
        """
        if self._files.folder or self._record is not None or self._dry_run:
            run = _Run(conversion, self._pairs, force or self._in_place, threads, self._fail_fast)
            return self._run_all(run, as_json)
        (pair,) = self._pairs

        def work(progress: Progress | None) -> dict[str, Any]:
            more = conversion.work(
                Task(
                    source=pair.source.name,
                    destination=pair.target,
                    overwrite=force or self._in_place,
                    threads=threads,
                    progress=progress,
                )
            )
            if note := conversion.note(more):
                click.echo(f"modcrypt: {note}", err=True)
            return more

        convert(conversion.doing, pair.source.name, pair.destination, work, as_json)
        return 0

    def _run_all(self, run: _Run, as_json: bool) -> int:
        from modcrypt.io.threads import usable_cores
        from modcrypt.jobs.run_record import RunRecord

        run.arguments, run.dry_run = self._arguments, self._dry_run
        started, results = time.perf_counter(), list[_Result]()
        with ExitStack() as stack:
            if self._record is not None:
                write = not self._dry_run
                try:
                    record = RunRecord(
                        self._record, self._run, lambda entry: True, write=write, alone=write,
                        related={"command": self._run["command"]},
                    )  # fmt: skip
                except BlockingIOError:
                    raise click.UsageError(
                        f"another run is writing to the record {self._record}"
                    ) from None
                run.record = stack.enter_context(record)
            outcomes = run.results(self._jobs or usable_cores())
            for result in stack.enter_context(closing(outcomes)):
                results.append(result)
                if as_json:
                    print_line(json.dumps(result.fields()))
        seconds = time.perf_counter() - started
        _report(run, results, len(self._pairs), seconds, as_json)
        return common_code(
            outcome.failure.code for outcome in results if outcome.failure is not None
        )


def _check_names(source: str, destination: str | None, in_place: bool, may: bool) -> None:
    if "-" in (source, destination):
        raise click.UsageError(
            "pipes are not supported: Parquet needs random access; use modcrypt ags1 for any "
            "file or pipe"
        )
    if in_place and destination is not None:
        raise click.UsageError("--in-place takes no DESTINATION")
    if destination is None and not in_place:
        hint = "; name it or pass --in-place" if may else ""
        raise click.UsageError(f"Missing argument 'DESTINATION'{hint}")


def _iterate_texts(value: object) -> Iterator[str]:
    """Yield the texts in the value of an option."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, tuple):
        for item in value:
            yield from _iterate_texts(item)


def digest_of(parameters: dict[str, Any]) -> str:
    """Return a digest of typed options that distinguishes runs without storing the options.

    A policy or key file counts by its content, not by its path.
    """
    fingerprints = {
        name: _fingerprint_value(value)
        for name, value in parameters.items()
        if name not in _NOT_RECORDED
    }
    return hashlib.sha256(json.dumps(fingerprints, sort_keys=True).encode()).hexdigest()[:16]


def _fingerprint_value(value: Any) -> Any:
    """Return an option's value, in which the hashed content of files replaces their names."""
    if isinstance(value, tuple):
        return [_fingerprint_value(item) for item in value]
    if not isinstance(value, str):
        return value
    before, reference, path = value.rpartition("file:")
    path = os.path.expanduser(path if reference else value)
    if reference and not before.endswith(
        "="
    ):  # a keyring, whose content changes with every rotation
        return ["file:", os.path.realpath(path)]
    try:
        with open(path, "rb") as file:
            return [before, hashlib.sha256(file.read(_MAX_FINGERPRINT_BYTES)).hexdigest()]
    except (OSError, ValueError):
        return value


_MAX_FINGERPRINT_BYTES = 4 << 20  # read from a file that an option names


# --- from sources to destinations ----------------------------------------------------------------


def _make_pairs(files: Files, destination: str | None) -> list[_Pair]:
    from modcrypt.io.places import Place
    from modcrypt.io.stores import locate

    if destination is None:
        return [_make_pair(file, file.name, file.place) for file in files.members]
    place = Place(*locate(destination, None))
    if not files.folder:
        if destination.endswith("/"):
            raise click.UsageError(
                f"{files.where} is a file, but {destination} is a folder; name a file as "
                "DESTINATION"
            )
        return [_make_pair(files.members[0], destination, place)]
    _check_folders(files, destination, place)
    return list(_make_folder_pairs(files, destination, place))


def _make_pair(source: File, destination: str, place: Place) -> _Pair:
    return _Pair(source=source, destination=destination, place=place, make_folder=lambda: None)


def _make_folder_pairs(files: Files, destination: str, place: Place) -> Iterator[_Pair]:
    from modcrypt.parquet.datasets.discovery import Folder

    folder = Folder(destination, None)
    sources = {file.place.resolve().path for file in files.members}
    for file in files.members:
        name = join_name(destination, place, file.inside)
        target = place.below(file.inside)
        if (
            place.filesystem is files.members[0].place.filesystem
            and target.resolve().path in sources
        ):
            raise click.UsageError(
                f"{name} is a file of SOURCE and would be replaced; choose another DESTINATION"
            )

        def make_folder(inside: str = file.inside) -> None:
            folder.place(inside)

        yield _Pair(source=file, destination=name, place=target, make_folder=make_folder)


def _check_folders(files: Files, destination: str, place: Place) -> None:
    from modcrypt.io.places import Place
    from modcrypt.io.stores import locate

    source = Place(*locate(files.where, None))
    if place.filesystem is None and os.path.exists(place.path) and not os.path.isdir(place.path):
        raise NotADirectoryError(
            errno.ENOTDIR, "SOURCE is a folder, so DESTINATION must be one", destination
        )
    if source.filesystem is not place.filesystem:
        return
    inner, outer = (folder.resolve().path.rstrip("/") for folder in (place, source))
    if inner == outer:
        raise click.UsageError("SOURCE and DESTINATION are the same folder")
    if inner.startswith(f"{outer}/"):
        raise click.UsageError(
            "DESTINATION lies within SOURCE; choose another folder, or the next run would read "
            "its files as sources"
        )


# --- the run -------------------------------------------------------------------------------------


class _AbandonedError(Exception):
    """The run ends, and an unfinished file is left as it was."""


class _Run:
    """A run over files, several of them concurrently."""

    record: RunRecord | None = None
    dry_run = False
    arguments: Sequence[str] = ()

    def __init__(
        self,
        conversion: Conversion,
        pairs: Sequence[_Pair],
        overwrite: bool,
        threads: int | None,
        fail_fast: bool,
    ) -> None:
        self.conversion = conversion
        self._pairs, self._overwrite, self._threads = pairs, overwrite, threads
        self._fail_fast = fail_fast
        self._failed = fork_safe(threading.Event())  # set: start no further file
        self._stop = fork_safe(threading.Event())  # set: abandon started files

    def results(self, jobs: int) -> Generator[_Result]:
        """Yield the results in the order of the files; files that were not started have none."""
        if jobs > 1 and self._threads is None and len(self._pairs) > 1:
            self._threads = 1
        sizes = [size_of(pair.source.place) for pair in self._pairs]
        total = None if None in sizes else sum(size or 0 for size in sizes)
        with ExitStack() as stack:
            update_bar = stack.enter_context(
                batch_bar(self.conversion.doing, len(self._pairs), total)
            )
            meter = _Meter(update_bar, self._stop)
            pool = stack.enter_context(ThreadPoolExecutor(jobs, "modcrypt-files"))
            stack.callback(pool.shutdown, wait=False, cancel_futures=True)
            stack.callback(self._stop.set)  # no effect after the last file
            for result in pool.map(lambda pair: self._process_file(pair, meter), self._pairs):
                if result is not None:
                    yield result

    def _process_file(self, pair: _Pair, meter: _Meter) -> _Result | None:
        if self._stop.is_set() or self._failed.is_set():
            return None
        size = size_of(pair.source.place)
        started = time.perf_counter()
        try:
            result = self._convert_file(pair, meter.file_progress())
        except _AbandonedError:
            return None
        except Exception as error:  # the report shows it; the other files continue
            failure = explain(error, self.arguments)
            result = _Result(pair=pair, result=failure.word, failure=failure)
            if self._fail_fast:
                self._failed.set()
        result.seconds = time.perf_counter() - started
        result.sizes = size, None if result.failure else size_of(pair.place)
        meter.count_file(size)
        return result

    def _convert_file(self, pair: _Pair, progress: Progress) -> _Result:
        entry = _RecordEntry(self.record, pair, once=self.conversion.once)
        if entry.is_done():
            return _Result(pair=pair, result="skipped")
        entry.check_unchanged()
        overwrite = self._overwrite or entry.is_begun()
        if not overwrite:
            pair.place.check_absent()
        task = Task(
            source=pair.source.name,
            destination=pair.target,
            overwrite=overwrite,
            threads=self._threads,
            progress=progress,
            dry_run=self.dry_run,
        )
        if self.dry_run:
            return _Result(pair=pair, result="planned", more=self.conversion.work(task))
        pair.make_folder()
        entry.begin()
        more = self.conversion.work(task)
        entry.end()
        return _Result(pair=pair, result=self.conversion.done, more=more)


class _RecordEntry:
    """The entry of a record for one file and its destination."""

    def __init__(self, record: RunRecord | None, pair: _Pair, *, once: bool) -> None:
        self._record, self._pair, self._once = record, pair, once
        self._name = pair.place.full_name
        self._source = pair.source.place.full_name

    def _stamps(self) -> list[Any]:
        from modcrypt.jobs.run_record import stamps_of

        source = self._pair.source.place.stamp()
        return [None if source is None else list(source), *stamps_of(self._pair.place)]

    def is_done(self) -> bool:
        """Return whether source and destination are as such a run left them."""
        if self._record is None:
            return False
        stamps = self._stamps()
        noted = None if None in stamps[:2] else self._record.find_done(self._name, stamps)
        return noted is not None and noted.get("source") == self._source

    def is_begun(self) -> bool:
        """Return whether such a run may have published the destination without recording it."""
        return self._last_begun() is not None and self._name != self._source

    def check_unchanged(self) -> None:
        """Raise if an interrupted run may have replaced the file: hashes must not be hashed again.

        Raises:
            OSError: The file is not the one that the run began with.
        """
        if self._record is None or self._name != self._source:
            return
        if self._once and self._is_done_otherwise():
            raise OSError(
                errno.ESTALE,
                "a run with other options has already processed this file, according to the "
                "record; it was left as it is, so that hashes are not hashed again",
                self._pair.source.name,
            )
        begun = self._last_begun()
        if begun is None or begun.get("was") == self._stamps()[0]:
            return
        raise OSError(
            errno.ESTALE,
            "file changed after an interrupted run had started it, probably by that run; it was "
            "left as it is: inspect it",
            self._pair.source.name,
        )

    def _is_done_otherwise(self) -> bool:
        """Return whether the file is as any run of the command left, or may have left, it."""
        noted = None if self._record is None else self._record.find_last_related(self._name)
        if noted is None:
            return False
        now = self._stamps()[0]
        if "begun" in noted:
            return bool(noted.get("was") != now)
        return bool(noted["stamps"][1] == now)

    def _last_begun(self) -> dict[str, Any] | None:
        noted = None if self._record is None else self._record.find_last(self._name)
        return noted if noted is not None and noted.get("begun") == self._source else None

    def begin(self) -> None:
        """Record that the file is started, before anything is written."""
        if self._record is not None:
            fields = {"begun": self._source, "was": self._stamps()[0]}
            self._record.note(self._name, None, durable=self._name == self._source, **fields)

    def end(self) -> None:
        """Record that the file is finished, and its state."""
        if self._record is not None:
            self._record.note(self._name, self._stamps(), source=self._source)


class _Meter:
    """A counter of the bytes and files that all threads have processed."""

    def __init__(self, update_bar: Callable[[int, int], None], stop: threading.Event) -> None:
        self._update_bar, self._stop = update_bar, stop
        self._lock = fork_safe(threading.Lock())
        self._files, self._finished = 0, 0  # finished files and their bytes
        self._running: dict[int, int] = {}  # bytes of the current file by thread

    def file_progress(self) -> Progress:
        """Return a function to call with the number of bytes done of one file."""

        def progress(done: int) -> None:
            if self._stop.is_set():
                raise _AbandonedError
            self._show(done, None)

        return progress

    def count_file(self, size: int | None) -> None:
        """Count a file as finished, whatever its result."""
        self._show(0, size or 0)

    def _show(self, done: int, finished: int | None) -> None:
        with self._lock:
            self._running[threading.get_ident()] = done
            if finished is not None:
                self._files, self._finished = self._files + 1, self._finished + finished
            self._update_bar(self._finished + sum(self._running.values()), self._files)


# --- the report ----------------------------------------------------------------------------------


def _report(
    run: _Run, results: Sequence[_Result], files: int, seconds: float, as_json: bool
) -> None:
    done = run.conversion.done
    counts = Counter(
        "failed" if result.failure is not None else result.result for result in results
    )
    counts["not begun"] = files - len(results)
    names = (done, "planned", "skipped", "failed", "not begun")
    size = sum(result.sizes[0] or 0 for result in results if result.result in (done, "planned"))
    if as_json:
        totals = {name.replace(" ", "_"): counts[name] for name in names}
        more = {"source_bytes": size, "dry_run": run.dry_run, "seconds": round(seconds, 6)}
        print_line(json.dumps({"files": files, **totals, **more}))
        return
    for result in results:
        if result.result == "planned":
            print_line(printable(_format_plan(run.conversion.verb, result.pair)))
    rows = [
        (result.pair.source.name, result.result, result.failure.message)
        for result in results
        if result.failure is not None
    ]
    if rows:
        print_line(format_table(("file", "error", "message"), rows, left=(0, 1, 2)))
    _print_notes(run.conversion, results)
    words = {"planned": f"to {run.conversion.verb}"}
    totals_text = ", ".join(
        f"{counts[name]} {words.get(name, name)}" for name in names if counts[name]
    )
    of_size = f"; {format_size(size)}" if size else ""
    print_line(f"{files} file{'s' * (files != 1)}: {totals_text}{of_size}")


def _format_plan(verb: str, pair: _Pair) -> str:
    if pair.destination == pair.source.name:
        return f"would {verb} {pair.source.name}"
    return f"would {verb} {pair.source.name} to {pair.destination}"


def _print_notes(conversion: Conversion, results: Sequence[_Result]) -> None:
    """Print further messages about the results, each once."""
    if sys.stdout is not None:
        sys.stdout.flush()
    done = [result for result in results if result.result == conversion.done]
    for note, count in Counter(conversion.note(result.more) for result in done).items():
        if note:
            click.echo(f"modcrypt: {note} ({count} file{'s' * (count != 1)})", err=True)
