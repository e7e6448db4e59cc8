"""Shredding of the keys of files, and the proof of it, as jobs of Spark.

tasks     remove wrapped keys from files; for the proof, hash the files and try their keys
driver    ends master keys after all files (`end_master_keys`); examines what lies around the
          files, which is recognised by traces of all of them
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Unpack

from modcrypt.jobs.listing import folders_of, list_tables
from modcrypt.jobs.shredding.choice import criteria_of
from modcrypt.jobs.shredding.proof import Examination, Proof, ProvenFile, list_surroundings
from modcrypt.jobs.verbs.key_verbs import SHRED
from modcrypt.jobs.verbs.proof_verb import PROVE, decode_row, open_trial
from modcrypt.kms.settings import Settings
from modcrypt.runtime.former_names import accept_former_names
from modcrypt.spark.jobs.driver import JobOptions, plan_verb, run_table_job, settings_under
from modcrypt.spark.jobs.file_work import VerbJob

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@accept_former_names(where="source")
def shred_keys(
    spark: SparkSession,
    source: Any,
    settings: Settings | None = None,
    *,
    columns: Iterable[str] = (),
    master_keys: Iterable[str] = (),
    everything: bool = False,
    dry_run: bool = False,
    **options: Unpack[JobOptions],
) -> DataFrame:
    """Remove the wrapped keys of columns, of master keys or of whole files; this is final.

    As `modcrypt.jobs.shred_keys`; destroy master keys afterwards, when no file has failed.

    Args:
        spark, source, options: As in `verify_table`.
        settings: Settings with a key service that decrypts footers, where that is needed; None for
            no key service.
        columns: Dotted names of columns, as in `modcrypt.jobs.shred_keys`.
        master_keys: Ids of master keys: removes every key that they have wrapped.
        everything: Whether to remove all keys. Pass exactly one of `columns`, `master_keys` and
            `everything`.
        dry_run: Whether to report only what would be done, and write nothing.

    Returns:
        A row for each file: `path`, `result`, `keys`, `columns`, `whole` and `message`, as in
        `modcrypt.jobs.ShreddedFile`, `failed` and `worker`.

    Raises:
        ValueError, TypeError, KeyRetrievalError, OSError: As in `encrypt_table`.
    """
    report = run_table_job(
        spark, plan_verb, SHRED, source, settings, columns=columns, master_keys=master_keys,
        everything=everything, dry_run=dry_run, **options,
    )  # fmt: skip
    if settings is not None and not dry_run:
        settings.tools().wrapper.forget()  # cached keys would keep opening the shredded data
    return report


@accept_former_names(where="source")
def prove_shredded(
    spark: SparkSession,
    source: Any,
    settings: Settings | None = None,
    *,
    columns: Iterable[str] = (),
    master_keys: Iterable[str] = (),
    everything: bool = False,
    progress: Callable[[ProvenFile, int], object] | None = None,
    **options: Unpack[JobOptions],
) -> Proof:
    """Return a proof of what can still be read: `modcrypt.jobs.prove_shredded` on Spark.

    Args:
        spark, source, options: As in `verify_table`.
        settings: Settings of the key service that is asked to unwrap the remaining keys; without
            them, remaining key material proves nothing.
        columns, master_keys, everything: The keys that are selected, as in `shred_keys`.
        progress: Function called with each file's result and the number of files.

    Raises:
        ValueError, TypeError, KeyRetrievalError, OSError: As in `encrypt_table`.
    """
    wanted = criteria_of(columns, master_keys, everything)
    make = options.get("filesystem")
    folders = folders_of(source, make)
    files = list_tables(folders)
    settings = settings_under(settings, folders)
    examination = Examination(open_trial(settings, wanted))
    filesystem = None if make is None else make()
    surroundings = list_surroundings([folder.name for folder in folders], filesystem)
    job = VerbJob(verb=PROVE, settings=settings, filesystem=make, arguments={"wanted": wanted})
    report = run_table_job(spark, lambda **_: (job, files), **options)
    found: dict[str, ProvenFile] = {}
    for row in report.toLocalIterator():
        name, file, traces = decode_row(row.asDict())
        found[name] = file
        examination.trial.traces.add(traces)
        if progress is not None:
            progress(file, len(files))
    places = [file.place for file in files]
    results = [replace(found[file.name], path=file.place.listed_name) for file in files]
    return examination.conclude(places, results, surroundings)
