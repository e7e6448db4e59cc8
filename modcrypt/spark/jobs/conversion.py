"""Plans of conversions of the files of a folder on Spark, with references to keys."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from typing import Any

from modcrypt.errors import IntegrityError, KeyRetrievalError, KmsUnavailableError, ModcryptError
from modcrypt.jobs.conversion import ConversionVerb
from modcrypt.jobs.leaks.sidecars import check_sidecars
from modcrypt.jobs.listing import File, Folder, MakeFilesystem, check_apart, list_tables
from modcrypt.jobs.verbs.conversion_verbs import CONVERSIONS, ConversionReferences
from modcrypt.parquet.crypto.properties import is_keyed
from modcrypt.spark.jobs.driver import PROBED_FILES, TablePlan, check_settings
from modcrypt.spark.jobs.file_work import VerbJob


def make_conversion_job(
    verb: ConversionVerb, *, filesystem: MakeFilesystem | None = None, **how: Any
) -> VerbJob:
    """Return the job of a conversion; `how` has the further attributes of the references."""
    conversion = ConversionReferences(verb=verb, **how)
    arguments = {"conversion": conversion}
    return VerbJob(verb=CONVERSIONS[verb], filesystem=filesystem, arguments=arguments)


def plan_conversion(
    source: Any, destination: Any, *, filesystem: MakeFilesystem | None = None,
    drop_summaries: bool = False, allow_leaks: bool = False, **how: Any,
) -> TablePlan:  # fmt: skip
    """Plan the conversion of the files of a folder, and check what needs no executor.

    `destination` is None to replace the source files; `how` has the verb and further attributes of
    `ConversionReferences`. Raise as `encrypt_table`.
    """
    for name in ("decryption", "encryption"):
        if how.get(name) is not None:
            check_settings(how[name])
    folder = Folder.at(source, filesystem)
    if not folder.is_folder:
        exists = folder.place.stamp() is not None
        kind = NotADirectoryError if exists else FileNotFoundError
        number = errno.ENOTDIR if exists else errno.ENOENT
        raise kind(number, os.strerror(number), folder.name)
    target = None if destination is None else Folder.at(destination, filesystem)
    if target is not None:
        check_apart(folder, target)
    to = None if target is None else target.name
    job = make_conversion_job(source=folder.name, destination=to, filesystem=filesystem, **how)
    conversion: ConversionReferences = job.arguments["conversion"]
    # A copy omits files that a write note hides from readers, as it would have no such note.
    files = list_tables([folder], as_read=target is not None)
    check_first_files(conversion, files, None if filesystem is None else filesystem())
    if conversion.encryption is not None and conversion.verb == "encrypt" and not allow_leaks:
        check_sidecars(
            folder.place, None if target is None else target.place,
            conversion.encryption.encryption(), drop_summaries=drop_summaries,
        )  # fmt: skip
    return job, files


def check_first_files(
    references: ConversionReferences, files: Sequence[File], filesystem: Any = None
) -> None:
    """Plan the work on the first files, so that wrong settings fail before anything is done.

    Errors of single files are left to the tasks, which report them as rows.

    Raises:
        ValueError: A file lacks named columns, or two files would have the same AAD prefix.
        KeyRetrievalError: Keys can't be retrieved or wrapped.
        IntegrityError: The settings open none of the first files.
    """
    conversion = references.open(filesystem)
    if references.encryption is not None:
        references.encryption.check_distinct(conversion.target(file.name) for file in files)
    errors: list[ModcryptError] = []
    first = files[:PROBED_FILES]
    for file in first:
        try:
            conversion.check(file)
            break
        except KmsUnavailableError:
            raise
        except (KeyRetrievalError, IntegrityError) as error:
            errors.append(error)
        except (ModcryptError, OSError):
            pass
    # In place, the first files may be converted already and no longer open with the old keys.
    if len(errors) == len(first) and references.destination is not None:
        raise errors[0]
    new = conversion.encryption
    if is_keyed(new) and not references.dry_run:  # have the key service wrap keys once
        target = Folder(conversion.target(files[0].name), conversion.source.filesystem)
        new.for_file(target.place)
