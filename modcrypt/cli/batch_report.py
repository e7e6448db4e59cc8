"""Reports of runs over many files: lines for files, and totals."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from modcrypt.cli.output.failures import show, use_option_names
from modcrypt.cli.output.progress import files_bar
from modcrypt.cli.shared import format_counts, format_failures, print_json, print_line
from modcrypt.errors import printable
from modcrypt.jobs.failures import common_code, exit_code
from modcrypt.report.text import format_count, format_size

if TYPE_CHECKING:  # not to be loaded for the help
    from modcrypt.jobs.conversion import ConversionVerb, ConvertedFile
    from modcrypt.jobs.engine import FileResult


class FileReport:
    """Results of files, counted and printed the same from threads and from Spark.

    Args:
        schema: Name of the schema of each result as a line of JSON.
        as_json: Whether to print the results as JSON.
        by_code: Whether to count failures by their error codes instead of together.
    """

    def __init__(self, schema: str, as_json: bool, *, by_code: bool = False) -> None:
        self.schema, self.as_json, self._by_code = schema, as_json, by_code
        self.keys = self.unsigned = 0
        self.counts = Counter[str]()
        self.failures: list[Any] = []
        self._started = time.perf_counter()

    def run(self, doing: str, work: Callable[[Callable[[Any, int], object]], object]) -> None:
        """Count the results that `work` passes to its argument with the number of all files."""
        with files_bar(doing) as bar:

            def show(file: Any, total: int) -> None:
                bar(total)
                self.add(file)

            work(show)

    def add(self, file: Any) -> None:
        """Count the result of a file."""
        if self.as_json:
            self.print_fields(file)
        together = file.failed and not self._by_code
        self.counts["failed" if together else file.result] += 1
        self.keys += getattr(file, "keys", 0)
        self.unsigned += getattr(file, "lost_signature", False)
        if file.failed:
            self.failures.append(file)

    @property
    def code(self) -> int:
        """The exit code of the failures."""
        return exit_code(file.result for file in self.failures)

    def print_fields(self, file: FileResult) -> None:
        """Print a result as a line of JSON."""
        message = use_option_names(file.message)
        print_json(self.schema, {**file.fields(), "message": message})

    def print_totals(self, names: Sequence[str], **more: Any) -> None:
        """Print the totals as a line of JSON, with the counts of these results."""
        totals = {name: self.counts[name] for name in names}
        seconds = round(time.perf_counter() - self._started, 6)
        fields = {"files": self.counts.total(), **totals, "keys": self.keys, **more}
        schema = self.schema.removesuffix("file") + "totals"
        print_json(schema, {**fields, "seconds": seconds})

    def print_failures(self, kind: str = "error") -> None:
        """Print a table of the failures, if there are any."""
        rows = [(file.path, file.result, use_option_names(file.message)) for file in self.failures]
        if rows and not self.as_json:
            print_line(format_failures(rows, kind))

    def format_counts(self, names: Sequence[str], to_do: str = "", more: str = "") -> str:
        """Return the numbers of files and keys; `to_do` are the words for the first name."""
        words = {names[0]: to_do} if to_do else {}
        done = format_counts({name: self.counts[name] for name in names}, words)
        files, keys = format_count(self.counts.total(), "file"), format_count(self.keys, "key")
        return f"{files}: {done or 'nothing to do'}; {keys}{more}"


class BatchReport:
    """The report of a run to the user, the same locally and on Spark."""

    def __init__(
        self, verb: ConversionVerb, dry_run: bool, as_json: bool, arguments: Sequence[str]
    ) -> None:
        from modcrypt.jobs.conversion import DONE

        self._verb, self._done, self._dry_run = verb, DONE[verb], dry_run
        self.as_json, self._arguments = as_json, arguments
        self._started = time.perf_counter()
        self._counts, self._notes = Counter[str](), Counter[str]()
        self._codes, self._size = set[int](), 0
        self._failures: list[tuple[str, str, str]] = []

    @property
    def files(self) -> int:
        """Number of files counted so far."""
        return self._counts.total()

    def count(self, file: ConvertedFile) -> None:
        """Count one file."""
        self.add(file.result, file.code, file.message, 1, file.bytes_in or 0)

    def add(self, result: str, code: int, message: str, count: int, size: int) -> None:
        """Count files with the same result."""
        self._counts["failed" if code else result] += count
        if code:
            self._codes.add(code)
        if result in (self._done, "planned"):
            self._size += size
        if result == self._done and message:
            self._notes[message] += count

    def show(self, file: ConvertedFile) -> None:
        """Print the line of one file, or keep it for `finish`."""
        message = show(file.result, file.message, self._arguments) if file.failed else file.message
        if self.as_json:
            print_json("convert.file", {**file.fields(), "message": message})
        elif file.failed:
            self._failures.append((file.path, file.result, message))
        elif file.result == "planned":
            where = "" if file.destination == file.path else f" to {file.destination}"
            print_line(printable(f"would {self._verb} {file.path}{where}"))

    def finish(self, files: int) -> int:
        """Print the totals for `files` files, including those not begun; return the exit code."""
        counts = self._counts
        counts["not begun"] = files - self.files
        erased = ("erased",) if counts["erased"] else ()
        names = (self._done, "current", "planned", *erased, "failed", "not begun")
        if self.as_json:
            totals = {name.replace(" ", "_"): counts[name] for name in names}
            seconds = round(time.perf_counter() - self._started, 6)
            more = {"source_bytes": self._size, "dry_run": self._dry_run, "seconds": seconds}
            print_json("convert.totals", {"files": files, **totals, **more})
            return common_code(self._codes)
        if self._failures:
            print_line(format_failures(self._failures))
            if counts["failed"] > len(self._failures):
                print_line(f"and {counts['failed'] - len(self._failures)} more")
        if sys.stdout is not None:
            sys.stdout.flush()
        for note, count in self._notes.items():
            click.echo(f"modcrypt: {note} ({format_count(count, 'file')})", err=True)
        words = {"planned": f"to {self._verb}", "erased": "erased and left out"}
        text = format_counts({name: counts[name] for name in names}, words)
        of_size = f"; {format_size(self._size)}" if self._size else ""
        print_line(f"{format_count(files, 'file')}: {text}{of_size}")
        return common_code(self._codes)
