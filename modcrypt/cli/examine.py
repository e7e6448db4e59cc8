"""The HTML page of commands that examine files or tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import click

from modcrypt.cli.shared import combine_options, keep_code, needs_one_of
from modcrypt.cli.shared_options import force_option, shared_option

if TYPE_CHECKING:  # not to be loaded for the help
    from modcrypt.jobs.listing import File
    from modcrypt.report.html import Drawable


html_option = shared_option("--html OUT", help="Write the result as an HTML page to OUT.")
html_options = combine_options(html_option, force_option, needs_one_of("force", "html"))


def prepare_page(
    out: str | None, force: bool, files: Sequence[File] = ()
) -> Callable[[Drawable, int], int]:
    """Return the function that writes the page which --html requests; it does nothing without.

    It takes the result and the exit code, and returns the code; if it fails, the program ends with
    that code, unless it is 0. The page is about a table, or the only one of `files`. Raise
    click.UsageError if there are several files, or `out` is the file itself; and FileExistsError if
    `out` exists, and is not to be replaced.
    """
    from modcrypt.io.places import place_of

    if out is None:
        return lambda _result, code: code
    if len(files) > 1:
        raise click.UsageError(f"--html draws a single file, but PATH names {len(files)}")
    place = place_of(out)
    assert place is not None  # it is a path
    if files and place.resolve() == files[0].place.resolve():
        raise click.UsageError(f"{out} is the file to draw; pass another OUT to --html")
    if not force:
        place.check_absent()

    def write(result: Drawable, code: int) -> int:
        from modcrypt.io.destinations import open_sink

        with keep_code(code), open_sink(out, overwrite=force) as sink:
            sink.append(result.to_html().encode())
        return code

    return write
