"""`modcrypt verify --record`: skip the files that an interrupted run found correct."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from modcrypt.cli.options.option_digest import digest_of
from modcrypt.cli.verification.verification_text import exit_code
from modcrypt.report.text import format_count

if TYPE_CHECKING:  # not to be loaded for the help
    from modcrypt.jobs.listing import File
    from modcrypt.parquet.verify.verification_results import Verification


@contextmanager
def resume_verification(
    record_path: str | None, files: Sequence[File], strict: bool
) -> Iterator[dict[str, Any]]:
    """Yield the arguments of `verify_dataset` that skip and record correct files; {} if no record.

    At the end without an exception, the record is closed: the next run starts again.
    """
    if record_path is None:
        yield {}
        return
    from modcrypt.jobs.run_record import Record

    run = {"command": "verify", "options": digest_of(click.get_current_context().params)}
    places = {file.place.path: file.place for file in files}
    if len(places) < len(files):
        raise click.UsageError("--record needs files of a single store; verify one store at a time")
    with Record(
        record_path, run, lambda entry: "ended" not in entry, write=True, alone=True
    ) as record:
        verified = {path for path, place in places.items() if record.find(place) is not None}
        if verified:
            click.echo(
                f"modcrypt: {format_count(len(verified), 'file')} already found correct; only "
                "compared with the others",
                err=True,
            )

        def note(path: str, verification: Verification) -> None:
            if verification.modules and exit_code(verification, [verification], strict) == 0:
                record.add_file(places[path], result="ok")

        yield {"each": note, "verified": verified}
        record.end()
