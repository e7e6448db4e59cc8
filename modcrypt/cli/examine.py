"""Options, files and the HTML page that commands which examine files or tables share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import click

from modcrypt.cli.options.parquet_options import decryption_settings
from modcrypt.cli.shared import combine_options, needs_one_of
from modcrypt.cli.spark import is_any_typed

if TYPE_CHECKING:  # not to be loaded for the help
    from modcrypt.iceberg.verify.key_trees import KeyTree
    from modcrypt.iceberg.verify.table_results import TableVerification
    from modcrypt.jobs.listing import File
    from modcrypt.parquet.crypto.properties import FileDecryptionProperties
    from modcrypt.parquet.verify.inspection import Inspection
    from modcrypt.parquet.verify.verification_results import Verification

html_options = combine_options(
    click.option(
        "--html",
        metavar="OUT",
        help="Write the result as a self-contained HTML page to OUT; not for several files.",
    ),
    click.option("--force", is_flag=True, help="Replace OUT if it exists."),
    needs_one_of("force", "html"),
)


def properties_of_options(
    reading: dict[str, Any], paths: Sequence[str]
) -> FileDecryptionProperties | None:
    """Return the properties that the options set; None if no option is typed."""
    if not is_any_typed(reading):
        return None
    settings = decryption_settings(reading)
    from modcrypt.jobs.listing import Folder

    if len(paths) == 1 and Folder.at(paths[0]).is_folder:
        settings = settings.under(paths[0])
    return settings.decryption()


def find_files(paths: Iterable[str], glob: str | None) -> list[File]:
    """Return the files at the paths, including those in folders, each once.

    Raises:
        FileNotFoundError: A path does not exist.
        ValueError: A folder has no matching files.
    """
    from modcrypt.jobs.listing import Folder, list_tables, place_at

    by_name: dict[str, File] = {}
    for path in paths:
        if path == "-":
            raise click.UsageError("pipes are not supported: Parquet needs random access")
        for file in list_tables([Folder.at(path, absolute=False)], glob=glob):
            by_name.setdefault(place_at(file.name).full_name, file)
    return list(by_name.values())


class HtmlPage:
    """The HTML page that --html requests.

    Args:
        out: Path of the page; None for no page.
        force: Whether to replace the path if it exists.
        files: Files that the command examines; None for a table.

    Raises:
        click.UsageError: There is not a single file to draw, or `out` is that file.
        FileExistsError: `out` exists, and `force` is False.
    """

    def __init__(self, out: str | None, force: bool, files: Sequence[File] | None = None) -> None:
        from modcrypt.io.places import place_of
        from modcrypt.jobs.listing import place_at

        self.out, self._force = out, force
        if out is None:
            return
        if files is not None and len(files) != 1:
            raise click.UsageError(f"--html draws a single file, but PATH names {len(files)}")
        place = place_of(out)
        assert place is not None  # it is a path
        if files is not None and place.resolve() == place_at(files[0].name).resolve():
            raise click.UsageError(f"{out} is the file to draw; pass another OUT to --html")
        if not force:
            place.check_absent()

    def write(self, result: Inspection | Verification | TableVerification | KeyTree) -> None:
        """Write the page about a result, if one is requested."""
        if self.out is None:
            return
        from modcrypt.html_report import render_html
        from modcrypt.io.destinations import open_sink

        with open_sink(self.out, overwrite=self._force) as sink:
            sink.append(render_html(result).encode())
