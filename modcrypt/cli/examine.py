"""Options, files and the HTML page that commands which examine files or tables share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from modcrypt.cli.options.parquet_options import decryption_settings
from modcrypt.cli.shared import combine_options, needs_one_of
from modcrypt.cli.spark import is_any_typed

if TYPE_CHECKING:  # not to be loaded for the help
    from modcrypt.iceberg.verify.key_trees import KeyTree
    from modcrypt.iceberg.verify.table_results import TableVerification
    from modcrypt.jobs.listing import File, Folder
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


class Examined(NamedTuple):
    """The files that a command examines, their page, and the properties that open them."""

    files: list[File]
    page: HtmlPage
    properties: FileDecryptionProperties | None


def find_examined(
    paths: Iterable[str], glob: str | None, html: str | None, force: bool, reading: dict[str, Any]
) -> Examined:
    """Return what a command examines, by its arguments and options.

    Raises:
        FileNotFoundError: A path does not exist.
        FileExistsError: The page exists, and is not to be replaced.
        ValueError: A folder has no matching files.
    """
    from modcrypt.jobs.listing import Folder

    if "-" in paths:
        raise click.UsageError("pipes are not supported: Parquet needs random access")
    folders = [Folder.at(path, absolute=False) for path in paths]
    files = _list_once(folders, glob)
    return Examined(files, HtmlPage(html, force, files), _read_properties(reading, folders))


def _list_once(folders: Sequence[Folder], glob: str | None) -> list[File]:
    """Return the files of folders; a file that several folders reach, once."""
    from modcrypt.jobs.listing import list_tables, place_at

    if len(folders) == 1:
        return list_tables(folders, glob=glob)
    by_name: dict[str, File] = {}
    for folder in folders:
        for file in list_tables([folder], glob=glob):
            by_name.setdefault(place_at(file.name).full_name, file)
    return list(by_name.values())


def _read_properties(
    reading: dict[str, Any], folders: Sequence[Folder]
) -> FileDecryptionProperties | None:
    """Return the properties that the options set; None if no option is typed."""
    if not is_any_typed(reading):
        return None
    settings = decryption_settings(reading)
    if len(folders) == 1 and folders[0].is_folder:
        settings = settings.under(folders[0].name)
    return settings.decryption()


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
