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
from modcrypt.cli.shared_options import option_names
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
        by_code: Whether to count failures by their error codes instead of together.
        dry_run: Whether nothing is changed, which each line of JSON says; None for commands without
            that option.
        arguments: Arguments of the program, which messages may repeat.
    """

    def __init__(
        self, schema: str, as_json: bool, *, by_code: bool = False, dry_run: bool | None = None,
        arguments: Sequence[str] = (),
    ) -> None:  # fmt: skip
        self.schema, self.as_json, self._by_code = schema, as_json, by_code
        self._dry_run = dry_run
        self._of_run = {} if dry_run is None else {"dry_run": dry_run}
        self._arguments = arguments
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

    def print_fields(self, file: Any) -> None:
        """Print a result as a line of JSON."""
        print_json(self.schema, {**file.fields(), "message": self._explain(file), **self._of_run})

    def print_totals(self, names: Sequence[str], **more: Any) -> None:
        """Print the totals as a line of JSON, with the counts of these results."""
        totals = {name.replace(" ", "_"): self.counts[name] for name in names}
        seconds = round(time.perf_counter() - self._started, 6)
        schema = self.schema.removesuffix("file") + "totals"
        fields = {"files": self.counts.total(), **totals, **more, **self._of_run}
        print_json(schema, {**fields, "seconds": seconds})

    def print_failures(self, kind: str = "error") -> None:
        """Print a table of the failures, if there are any."""
        rows = [(file.path, file.result, self._explain(file)) for file in self.failures]
        if rows and not self.as_json:
            print_line(format_failures(rows, kind))
            if (more := self.counts["failed"] - len(rows)) > 0:
                print_line(f"and {more} more")

    def format_counts(self, names: Sequence[str], more: str = "", **words: str) -> str:
        """Return the number of files, and of each result; `words` replace its name."""
        counts = format_counts({name: self.counts[name] for name in names}, words)
        return f"{format_count(self.counts.total(), 'file')}: {counts or 'nothing to do'}{more}"

    def _explain(self, file: FileResult) -> str:
        """Return the message of a result, for the command line."""
        if file.failed:
            options = option_names(click.get_current_context().command)
            return show(file.result, file.message, self._arguments, options)
        return use_option_names(file.message)


class ConversionReport(FileReport):
    """The report of a conversion; Spark counts results in groups, and shows some of them."""

    def __init__(
        self, verb: ConversionVerb, dry_run: bool, as_json: bool, arguments: Sequence[str]
    ) -> None:
        from modcrypt.jobs.conversion import DONE

        super().__init__("convert.file", as_json, dry_run=dry_run, arguments=arguments)
        self._verb, self._done = verb, DONE[verb]
        self._notes, self._codes, self._size = Counter[str](), set[int](), 0

    def add(self, file: ConvertedFile) -> None:
        """Count and show the result of a file."""
        self.count(file.result, file.code, file.message, 1, file.bytes_in or 0)
        self.show(file)

    def count(self, result: str, code: int, message: str, count: int, size: int) -> None:
        """Count files with the same result."""
        self.counts["failed" if code else result] += count
        if code:
            self._codes.add(code)
        if result in (self._done, "planned"):
            self._size += size
        if result == self._done and message:
            self._notes[message] += count

    def show(self, file: ConvertedFile) -> None:
        """Print the line of one file, or keep it for `finish`."""
        if self.as_json:
            self.print_fields(file)
        elif file.failed:
            self.failures.append(file)
        elif file.result == "planned":
            where = "" if file.destination == file.path else f" to {file.destination}"
            print_line(printable(f"would {self._verb} {file.path}{where}"))

    def finish(self, not_begun: int = 0) -> int:
        """Print the totals, also of files that were not begun; return the exit code."""
        self.counts["not begun"] = not_begun
        erased = ("erased",) if self.counts["erased"] else ()
        names = (self._done, "current", "planned", *erased, "failed", "not begun")
        if self.as_json:
            self.print_totals(names, source_bytes=self._size)
            return common_code(self._codes)
        self.print_failures()
        sys.stdout.flush()
        for note, count in self._notes.items():
            click.echo(f"modcrypt: {note} ({format_count(count, 'file')})", err=True)
        size = f"; {format_size(self._size)}" if self._size else ""
        words = {"planned": f"to {self._verb}", "erased": "erased and left out"}
        print_line(self.format_counts(names, size, **words))
        return common_code(self._codes)
