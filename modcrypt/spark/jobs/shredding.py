"""Shredding of the keys of files, and the proof of it, as jobs of Spark.

tasks     remove wrapped keys from files; for the proof, hash the files and try their keys
driver    ends master keys after all files (`end_master_keys`); examines what lies around the
          files, which is recognised by traces of all of them
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Unpack

import pyarrow as pa

from modcrypt.jobs.failures import describe_failure
from modcrypt.jobs.key_scan import resolve_decryption
from modcrypt.jobs.listing import File, MakeFilesystem, list_tables
from modcrypt.jobs.shredding.choice import Criteria, criteria_of
from modcrypt.jobs.shredding.proof import Examination, Proof, ProvenFile, list_surroundings
from modcrypt.jobs.shredding.trial import KeyProof, Traces, Trial
from modcrypt.jobs.verbs.key_verbs import SHRED
from modcrypt.jobs.verbs.verb import Row
from modcrypt.kms.settings import Settings
from modcrypt.pkmt1.material import KeyReference
from modcrypt.runtime.former_names import accept_former_names
from modcrypt.spark.jobs.driver import JobOptions, folders_of, run_table_job, settings_under
from modcrypt.spark.jobs.file_work import TEXT, TableJob
from modcrypt.spark.jobs.verb_jobs import plan_verb

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


# --- the proof -----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ProofJob(TableJob):
    """A job that tries the selected keys of files and hashes the files; it writes nothing.

    The last row of a task has the traces of its files, from which the driver recognises copies and
    leftovers. Rows contain descriptions of keys, no key material.
    """

    settings: Settings | None
    wanted: Criteria
    filesystem: MakeFilesystem | None = None

    schema = pa.schema([("details", TEXT), ("traces", TEXT), ("worker", TEXT)])

    def rows(self, files: Sequence[File], filesystem: Any) -> Iterable[Row]:
        """Return a row for each examined file."""
        examination = _open_examination(self.settings, self.wanted)
        rows = self.process_each(
            files, lambda file: [_make_proof_row(file.name, examination.examine_file(file.place))]
        )
        rows[-1]["traces"] = _encode_traces(examination.trial.traces)
        return rows

    def make_failed_row(self, file: File, error: Exception) -> Row:
        """Return the row of a file that could not be examined."""
        message = ": ".join(describe_failure(error))
        return _make_proof_row(file.name, ProvenFile(path=file.name, message=message))


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
    examination = _open_examination(settings, wanted)
    filesystem = None if make is None else make()
    surroundings = list_surroundings([folder.name for folder in folders], filesystem)
    job = ProofJob(settings=settings, wanted=wanted, filesystem=make)
    report = run_table_job(spark, lambda **_: (job, files), **options)
    found: dict[str, ProvenFile] = {}
    for row in report.toLocalIterator():
        name, file = _decode_proof_row(row["details"])
        found[name] = file
        if row["traces"] is not None:
            examination.trial.traces.add(_decode_traces(row["traces"]))
        if progress is not None:
            progress(file, len(files))
    places = [file.place for file in files]
    results = [replace(found[file.name], path=file.place.path) for file in files]
    return examination.conclude(places, results, surroundings)


def _open_examination(settings: Settings | None, wanted: Criteria) -> Examination:
    if settings is None:
        return Examination(Trial(None, wanted, None))
    tools = settings.tools()
    decryption = resolve_decryption(tools, settings.requirements())
    return Examination(Trial(tools, wanted, decryption))


def _make_proof_row(name: str, found: ProvenFile) -> Row:
    return {"details": json.dumps({"name": name, **found.fields()})}


def _decode_proof_row(details: str) -> tuple[str, ProvenFile]:
    """Return the name of a file, and the findings about it."""
    fields = json.loads(details)
    name = fields.pop("name")
    keys = [KeyProof(**{**key, "columns": tuple(key["columns"])}) for key in fields["keys"]]
    return name, ProvenFile(**{**fields, "keys": tuple(keys)})


def _encode_traces(traces: Traces) -> str:
    values = {name: list(values) for name, values in asdict(traces).items()}
    uniques = [unique.hex() for unique in traces.uniques]
    references = [[reference.name, reference.write] for reference in traces.references]
    return json.dumps({**values, "uniques": uniques, "references": references})


def _decode_traces(text: str) -> Traces:
    values = json.loads(text)
    uniques = map(bytes.fromhex, values.pop("uniques"))
    references = (KeyReference(*reference) for reference in values.pop("references"))
    sets = {name: set(value) for name, value in values.items()}
    return Traces(uniques=set(uniques), references=set(references), **sets)
