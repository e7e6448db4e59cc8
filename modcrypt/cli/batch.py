"""What a command does with one file, done with all files of a folder: `Batch`.

One that fails doesn't stop the others. Each file appears complete or not at all, so whatever ends
a run leaves files that are done and files that are not; a record tells which, for the next run.
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
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, TypeAlias

import click

from modcrypt.cli.options.kms_options import refuse
from modcrypt.cli.output.failures import Failure, explain, printable
from modcrypt.cli.output.progress import batch_bar
from modcrypt.cli.shared import convert, print_line, table, together
from modcrypt.fork_safety import fork_safe

if TYPE_CHECKING:  # not to be loaded for the help
    from modcrypt.io.storage import Place
    from modcrypt.jobs.run_record import RunRecord
    from modcrypt.parquet.crypto.properties import Encryption, FileDecryptionProperties

__all__ = [
    "Batch",
    "Conversion",
    "File",
    "Files",
    "Task",
    "batch_options",
    "digest_of",
    "files_options",
    "in_place_option",
    "record_option",
    "size_in_words",
    "size_of",
]

Progress: TypeAlias = Callable[[int], None]

# --- options -------------------------------------------------------------------------------------

in_place_option = click.option(
    "--in-place", is_flag=True, help="Let the results take the place of SOURCE: no DESTINATION."
)
files_options = together(
    click.option(
        "--glob",
        metavar="PATTERN",
        help='Of a folder: only files whose path within it ends so, as "*.parquet".',
    ),
    click.option(
        "--jobs",
        metavar="N",
        type=click.IntRange(min=1),
        help="Of a folder: files at once. Default: as many as there are processors.",
    ),
)
record_option = click.option(
    "--record",
    metavar="FILE",
    help="Note finished files in FILE, and pass over those that it has and that are still as "
    "they were left: takes up a run that was interrupted.",
)
batch_options = together(
    files_options,
    record_option,
    click.option("--dry-run", is_flag=True, help="Only say what would be done."),
    click.option("--fail-fast", is_flag=True, help="Begin no further file when one has failed."),
)

_OF_FOLDERS = {"glob", "jobs", "fail_fast"}

# What makes no difference to the files that come out.
_NOT_RECORDED = {
    "source", "destination", "paths", "html", "in_place", "glob", "jobs", "record", "dry_run",
    "fail_fast", "force", "threads", "as_json", "audit",
    "passphrase_file", "passphrase_env", "passphrase_fd",
    "new_passphrase_file", "new_passphrase_env", "new_passphrase_fd",
}  # fmt: skip


# --- which files ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class File:
    """A file of a folder, or the one that is meant.

    Attributes:
        name: path or URL, as the library takes it.
        place: where it is.
        inside: its path within the folder; empty for the one file.
    """

    name: str
    place: Place
    inside: str = ""


@dataclass(frozen=True, slots=True)
class Files:
    """What a path or URL names: one file, or the visible files of a folder.

    Attributes:
        where: the path or URL.
        folder: whether it is a folder.
        found: the files, sorted by path.
    """

    where: str
    folder: bool
    found: tuple[File, ...]

    @classmethod
    def at(cls, where: str, glob: str | None, without: Sequence[str | None] = ()) -> Files:
        """Look there.

        Args:
            where: path or URL.
            glob: pattern of the files of a folder.
            without: paths of files that the run itself writes to, which are passed over.

        Raises:
            FileNotFoundError: it is not there.
            click.UsageError: a folder has no such files.
        """
        from modcrypt.io.storage import Place, locate

        place = Place(*locate(where, None))
        if not _is_folder(where, place):
            return cls(where, False, (File(where, place),))
        from modcrypt.parquet.datasets.discovery import list_files

        own = {os.path.realpath(path) for path in without if path is not None}
        found = [_file(where, place, one) for one in list_files(where, None)]
        visible = [file for file in found if file.place.real().path not in own]
        if not visible:
            raise click.UsageError(f"there are no files in {where}")
        matching = [file for file in visible if _matches(file.inside, glob)]
        if not matching:
            raise click.UsageError(f"none of the {len(visible)} files in {where} matches {glob}")
        return cls(where, True, tuple(matching))


def _is_folder(where: str, place: Place) -> bool:
    if place.filesystem is None:
        return os.path.isdir(place.path)
    from modcrypt.parquet.datasets.discovery import is_dataset

    return is_dataset(where, None)


def _file(where: str, folder: Place, place: Place) -> File:
    inside = place.path[len(folder.path) :].lstrip("/")
    return File(_name_in(where, folder, inside), place, inside)


def _name_in(where: str, folder: Place, inside: str) -> str:
    """Spell a path within a folder as the library takes it: as a path, or a URL."""
    if folder.filesystem is None:
        return os.path.join(folder.path, inside)
    from modcrypt.io.storage import locate

    name = f"{where.rstrip('/')}/{inside}"
    path = f"{folder.path.rstrip('/')}/{inside}"
    if locate(name, None)[1].lstrip("/") != path.lstrip("/"):
        raise click.UsageError(f"{where}: the URL takes no paths of files after it: give the files")
    return name


def _matches(inside: str, glob: str | None) -> bool:
    return glob is None or PurePosixPath(inside).match(glob)


# --- what is done with them ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One file that is to be converted; what the library's functions take."""

    source: str
    destination: str | Place
    overwrite: bool
    threads: int | None
    progress: Progress | None
    dry_run: bool = False


@dataclass(frozen=True, kw_only=True)
class Conversion:
    """What a command does with each file.

    Attributes:
        verb, doing, done: as "encrypt", "Encrypting" and "encrypted".
        work: converts a file; gives what more the result says.
        note: gives what people are told of such a result; nothing, if it is empty.
        once: whether what is done in place must not be done to a file twice.
    """

    verb: str
    doing: str
    done: str
    work: Callable[[Task], dict[str, Any]]
    note: Callable[[dict[str, Any]], str] = lambda more: ""
    once: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pair:
    """A file and what it becomes."""

    source: File
    destination: str
    place: Place
    make_folder: Callable[[], object]

    @property
    def target(self) -> str | Place:
        """The destination as the library takes it: in a folder, no link is written through."""
        return self.destination if self.place.root is None else self.place


@dataclass(slots=True, kw_only=True)
class _Result:
    """What became of one file: a word of the conversion's or `skipped`, or a failure."""

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
    """SOURCE and DESTINATION, files or folders, and how many at once; nothing is written yet.

    Args:
        options: the command's, out of which the values of `batch_options` are taken, and that of
            `in_place_option`, if it has that.
        source: a path or URL.
        destination: a path or URL; None with `--in-place`.

    Raises:
        click.UsageError: they don't fit together.
        OSError: SOURCE is not there.
    """

    def __init__(self, options: dict[str, Any], source: str, destination: str | None) -> None:
        self._glob: str | None = options.pop("glob")
        self._jobs: int | None = options.pop("jobs")
        self._record: str | None = options.pop("record")
        self._dry_run: bool = options.pop("dry_run")
        self._fail_fast: bool = options.pop("fail_fast")
        self._in_place: bool = options.pop("in_place", False)
        context = click.get_current_context()
        self._arguments = [text for value in context.params.values() for text in _texts(value)]
        self._run = {"command": context.info_name, "options": digest_of(context.params)}
        _check_names(source, destination, self._in_place, "in_place" in context.params)
        written = (self._record, context.params.get("audit"))
        self._files = Files.at(source, self._glob, written)
        if not self._files.folder:
            refuse(_OF_FOLDERS, f"that is for folders, and {source} is none")
        self._pairs = _paired(self._files, destination)
        self._folders = source, source if destination is None else destination

    def rooted(self, decryption: FileDecryptionProperties) -> FileDecryptionProperties:
        """Return properties whose AAD prefixes take up paths inside SOURCE, if it is a folder."""
        found: FileDecryptionProperties = self._rooted(decryption, self._folders[0])
        return found

    def check_prefixes(self, encryption: Encryption, *, shared: bool) -> Encryption:
        """Return properties whose AAD prefixes take up paths inside DESTINATION, if it is a folder.

        Args:
            encryption: Of all files.
            shared: Allow several files with the same AAD prefix.

        Raises:
            click.UsageError: Two files would have the same one.
        """
        found: Encryption = self._rooted(encryption, self._folders[1])
        if self._files.folder and not shared:
            from modcrypt.parquet.crypto.path_prefix import check_distinct

            try:
                prefix = getattr(found, "aad_prefix", None)
                check_distinct(prefix, [file.inside for file in self._files.found])
            except ValueError as error:
                message = str(error).replace("pass shared_aad_prefix=True", "--shared-aad-prefix")
                raise click.UsageError(
                    message.replace("in aad_prefix", "in --aad-prefix")
                ) from None
        return found

    def _rooted(self, properties: Any, folder: str) -> Any:
        from modcrypt.parquet.crypto.properties import rooted

        return rooted(properties, folder) if self._files.folder else properties

    def keep_columns(self, on_missing_key: str) -> None:
        """Refuse to replace files by what lacks some of their columns."""
        if self._in_place and on_missing_key != "error":
            raise click.UsageError("--in-place: columns without a key would be lost for good")

    def run(
        self, conversion: Conversion, *, force: bool, threads: int | None, as_json: bool
    ) -> int:
        """Convert the file, or all of them; give the exit code.

        Args:
            conversion: what is done.
            force: replace destinations that exist.
            threads: as the library takes it.
            as_json: print JSON.
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
        from modcrypt.io.buffers import usable_cores
        from modcrypt.jobs.run_record import RunRecord

        run.arguments, run.dry_run = self._arguments, self._dry_run
        started, results = time.perf_counter(), list[_Result]()
        with ExitStack() as stack:
            if self._record is not None:
                write = not self._dry_run
                try:
                    record = RunRecord(
                        self._record, self._run, lambda told: True, write=write, alone=write,
                        kin={"command": self._run["command"]},
                    )  # fmt: skip
                except BlockingIOError:
                    raise click.UsageError(
                        f"another run is writing to the record {self._record}"
                    ) from None
                run.record = stack.enter_context(record)
            coming = run.results(self._jobs or usable_cores())
            for result in stack.enter_context(closing(coming)):
                results.append(result)
                if as_json:
                    print_line(json.dumps(result.fields()))
        seconds = time.perf_counter() - started
        _report(run, results, len(self._pairs), seconds, as_json)
        codes = {one.failure.code for one in results if one.failure is not None}
        return 0 if not codes else codes.pop() if len(codes) == 1 else 1


def _check_names(source: str, destination: str | None, in_place: bool, may: bool) -> None:
    if "-" in (source, destination):
        raise click.UsageError(
            "pipes don't do: Parquet is read from its end, and written whole; "
            "modcrypt ags1 encrypts any file or pipe"
        )
    if in_place and destination is not None:
        raise click.UsageError("--in-place takes no DESTINATION")
    if destination is None and not in_place:
        hint = ": name it, or say --in-place" if may else ""
        raise click.UsageError(f"Missing argument 'DESTINATION'{hint}")


def _texts(value: object) -> Iterator[str]:
    """Give the texts in the value of an option."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, tuple):
        for one in value:
            yield from _texts(one)


def digest_of(parameters: dict[str, Any]) -> str:
    """Tell runs apart by what was typed, which the record need not repeat.

    A policy or key file counts by what is in it, wherever it lies and however that is spelt.
    """
    said = {name: _meant(value) for name, value in parameters.items() if name not in _NOT_RECORDED}
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:16]


def _meant(value: Any) -> Any:
    """Put what is in files in the place of their names, hashed."""
    if isinstance(value, tuple):
        return [_meant(one) for one in value]
    if not isinstance(value, str):
        return value
    before, reference, path = value.rpartition("file:")
    path = os.path.expanduser(path if reference else value)
    if reference and not before.endswith("="):  # a keyring, which changes with every rotation
        return ["file:", os.path.realpath(path)]
    try:
        with open(path, "rb") as file:
            return [before, hashlib.sha256(file.read(_MOST_READ)).hexdigest()]
    except (OSError, ValueError):
        return value


_MOST_READ = 4 << 20  # bytes of a file that an option names


# --- from sources to destinations ----------------------------------------------------------------


def _paired(files: Files, destination: str | None) -> list[_Pair]:
    from modcrypt.io.storage import Place, locate

    if destination is None:
        return [_pair(file, file.name, file.place) for file in files.found]
    place = Place(*locate(destination, None))
    if not files.folder:
        if destination.endswith("/"):
            raise click.UsageError(f"{files.where} is a file, and {destination} a folder")
        return [_pair(files.found[0], destination, place)]
    _check_folders(files, destination, place)
    return list(_pairs_in(files, destination, place))


def _pair(source: File, destination: str, place: Place) -> _Pair:
    return _Pair(source=source, destination=destination, place=place, make_folder=lambda: None)


def _pairs_in(files: Files, destination: str, place: Place) -> Iterator[_Pair]:
    from modcrypt.parquet.datasets.discovery import Folder

    folder = Folder(destination, None)
    sources = {file.place.real().path for file in files.found}
    for file in files.found:
        name = _name_in(destination, place, file.inside)
        target = place.below(file.inside)
        if place.filesystem is files.found[0].place.filesystem and target.real().path in sources:
            raise click.UsageError(f"{name} is a file of SOURCE: it would be replaced")

        def make_folder(inside: str = file.inside) -> None:
            folder.place(inside)

        yield _Pair(source=file, destination=name, place=target, make_folder=make_folder)


def _check_folders(files: Files, destination: str, place: Place) -> None:
    from modcrypt.io.storage import Place, locate

    source = Place(*locate(files.where, None))
    if place.filesystem is None and os.path.exists(place.path) and not os.path.isdir(place.path):
        raise NotADirectoryError(
            errno.ENOTDIR, "SOURCE is a folder, so DESTINATION is one", destination
        )
    if source.filesystem is not place.filesystem:
        return
    inner, outer = (one.real().path.rstrip("/") for one in (place, source))
    if inner == outer:
        raise click.UsageError("SOURCE and DESTINATION are the same folder")
    if inner.startswith(f"{outer}/"):
        raise click.UsageError(
            "DESTINATION lies within SOURCE: the next run would take its files for sources"
        )


# --- the run -------------------------------------------------------------------------------------


class _AbandonedError(Exception):
    """The run ends: a file that is half done is left as it was."""


class _Run:
    """The files of one run, some of them at once."""

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
        self._failed = fork_safe(threading.Event())  # and no further file is begun
        self._stop = fork_safe(threading.Event())  # and what is begun is abandoned

    def results(self, jobs: int) -> Generator[_Result]:
        """Give the results in the order of the files; those that were not begun have none."""
        if jobs > 1 and self._threads is None and len(self._pairs) > 1:
            self._threads = 1
        sizes = [size_of(pair.source.place) for pair in self._pairs]
        total = None if None in sizes else sum(size or 0 for size in sizes)
        with ExitStack() as stack:
            shown = stack.enter_context(batch_bar(self.conversion.doing, len(self._pairs), total))
            meter = _Meter(shown, self._stop)
            pool = stack.enter_context(ThreadPoolExecutor(jobs, "modcrypt-files"))
            stack.callback(pool.shutdown, wait=False, cancel_futures=True)
            stack.callback(self._stop.set)  # harmless when all is done
            for result in pool.map(lambda pair: self._one(pair, meter), self._pairs):
                if result is not None:
                    yield result

    def _one(self, pair: _Pair, meter: _Meter) -> _Result | None:
        if self._stop.is_set() or self._failed.is_set():
            return None
        size = size_of(pair.source.place)
        started = time.perf_counter()
        try:
            result = self._converted(pair, meter.of_file())
        except _AbandonedError:
            return None
        except Exception as error:  # the others go on; what it was, the report says
            failure = explain(error, self.arguments)
            result = _Result(pair=pair, result=failure.word, failure=failure)
            if self._fail_fast:
                self._failed.set()
        result.seconds = time.perf_counter() - started
        result.sizes = size, None if result.failure else size_of(pair.place)
        meter.done(size)
        return result

    def _converted(self, pair: _Pair, progress: Progress) -> _Result:
        noted = _Noted(self.record, pair, once=self.conversion.once)
        if noted.is_done():
            return _Result(pair=pair, result="skipped")
        noted.check_unchanged()
        overwrite = self._overwrite or noted.is_begun()
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
        noted.begin()
        more = self.conversion.work(task)
        noted.end()
        return _Result(pair=pair, result=self.conversion.done, more=more)


class _Noted:
    """What a record says of one file and what it becomes."""

    def __init__(self, record: RunRecord | None, pair: _Pair, *, once: bool) -> None:
        self._record, self._pair, self._once = record, pair, once
        self._name = pair.place.full_name
        self._source = pair.source.place.full_name

    def _stamps(self) -> list[Any]:
        from modcrypt.jobs.run_record import stamps_of

        source = self._pair.source.place.stamp()
        return [None if source is None else list(source), *stamps_of(self._pair.place)]

    def is_done(self) -> bool:
        """Tell whether both are as a run like this left them."""
        if self._record is None:
            return False
        stamps = self._stamps()
        told = None if None in stamps[:2] else self._record.told(self._name, stamps)
        return told is not None and told.get("source") == self._source

    def is_begun(self) -> bool:
        """Tell whether a run like this may have published the destination, and not noted it."""
        return self._last_begun() is not None and self._name != self._source

    def check_unchanged(self) -> None:
        """Refuse what an interrupted run may have replaced already: hashes are not hashed again.

        Raises:
            OSError: the file is another one than that run began with.
        """
        if self._record is None or self._name != self._source:
            return
        if self._once and self._is_done_otherwise():
            raise OSError(
                errno.ESTALE,
                "the record has it as done by a run with other options: what is hashed would be "
                "hashed again; it is left as it is",
                self._pair.source.name,
            )
        begun = self._last_begun()
        if begun is None or begun.get("was") == self._stamps()[0]:
            return
        raise OSError(
            errno.ESTALE,
            "it was changed after a run that was interrupted had begun it, most likely by that "
            "run: look at it; it is left as it is",
            self._pair.source.name,
        )

    def _is_done_otherwise(self) -> bool:
        """Tell whether the file is as any run of the command left it, or may have left it."""
        told = None if self._record is None else self._record.last_of_kin(self._name)
        if told is None:
            return False
        now = self._stamps()[0]
        if "begun" in told:
            return bool(told.get("was") != now)
        return bool(told["stamps"][1] == now)

    def _last_begun(self) -> dict[str, Any] | None:
        told = None if self._record is None else self._record.last(self._name)
        return told if told is not None and told.get("begun") == self._source else None

    def begin(self) -> None:
        """Note that the file is begun, before anything is written."""
        if self._record is not None:
            told = {"begun": self._source, "was": self._stamps()[0]}
            self._record.note(self._name, None, durable=self._name == self._source, **told)

    def end(self) -> None:
        """Note that it is done, and how it is left."""
        if self._record is not None:
            self._record.note(self._name, self._stamps(), source=self._source)


class _Meter:
    """Adds up what the threads have done."""

    def __init__(self, shown: Callable[[int, int], None], stop: threading.Event) -> None:
        self._shown, self._stop = shown, stop
        self._lock = fork_safe(threading.Lock())
        self._files, self._finished = 0, 0  # files, and the bytes of them
        self._running: dict[int, int] = {}  # thread to the bytes of its file

    def of_file(self) -> Progress:
        """Give what the library calls with the bytes done of one file."""

        def progress(done: int) -> None:
            if self._stop.is_set():
                raise _AbandonedError
            self._show(done, None)

        return progress

    def done(self, size: int | None) -> None:
        """Count a file that is done, one way or another."""
        self._show(0, size or 0)

    def _show(self, done: int, finished: int | None) -> None:
        with self._lock:
            self._running[threading.get_ident()] = done
            if finished is not None:
                self._files, self._finished = self._files + 1, self._finished + finished
            self._shown(self._finished + sum(self._running.values()), self._files)


def size_of(place: Place) -> int | None:
    """Give a local file's size; a store is not asked for each."""
    if place.filesystem is not None:
        return None
    try:
        return os.stat(place.path).st_size
    except OSError:
        return None


# --- the report ----------------------------------------------------------------------------------


def _report(
    run: _Run, results: Sequence[_Result], files: int, seconds: float, as_json: bool
) -> None:
    done = run.conversion.done
    counts = Counter("failed" if one.failure is not None else one.result for one in results)
    counts["not begun"] = files - len(results)
    names = (done, "planned", "skipped", "failed", "not begun")
    size = sum(one.sizes[0] or 0 for one in results if one.result in (done, "planned"))
    if as_json:
        totals = {name.replace(" ", "_"): counts[name] for name in names}
        more = {"source_bytes": size, "dry_run": run.dry_run, "seconds": round(seconds, 6)}
        print_line(json.dumps({"files": files, **totals, **more}))
        return
    for one in results:
        if one.result == "planned":
            print_line(printable(_planned(run.conversion.verb, one.pair)))
    rows = [
        (one.pair.source.name, one.result, one.failure.message)
        for one in results
        if one.failure is not None
    ]
    if rows:
        print_line(table(("file", "error", "message"), rows, left=(0, 1, 2)))
    _print_notes(run.conversion, results)
    words = {"planned": f"to {run.conversion.verb}"}
    told = ", ".join(f"{counts[name]} {words.get(name, name)}" for name in names if counts[name])
    of_size = f"; {size_in_words(size)}" if size else ""
    print_line(f"{files} file{'s' * (files != 1)}: {told}{of_size}")


def _planned(verb: str, pair: _Pair) -> str:
    if pair.destination == pair.source.name:
        return f"would {verb} {pair.source.name}"
    return f"would {verb} {pair.source.name} to {pair.destination}"


def _print_notes(conversion: Conversion, results: Sequence[_Result]) -> None:
    """Tell people what the results say more, each once."""
    if sys.stdout is not None:
        sys.stdout.flush()
    done = [one for one in results if one.result == conversion.done]
    for note, count in Counter(conversion.note(one.more) for one in done).items():
        if note:
            click.echo(f"modcrypt: {note} ({count} file{'s' * (count != 1)})", err=True)


def size_in_words(size: int) -> str:
    """Spell a number of bytes for people."""
    if size < 1 << 10:
        return f"{size} byte{'s' * (size != 1)}"
    left, unit = size / 1024, 0
    while left >= 1024 and unit < len(_UNITS) - 1:
        left, unit = left / 1024, unit + 1
    return f"{left:.1f} {_UNITS[unit]}"


_UNITS = ("KiB", "MiB", "GiB", "TiB")
