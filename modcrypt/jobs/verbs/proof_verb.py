"""The verb that proves shredding, file by file: it tries the selected keys and hashes the file.

Its rows have descriptions of keys and no key material. They also have the traces of the file, from
which the caller recognises copies and leftovers around all files.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from modcrypt.jobs.engine import Job
from modcrypt.jobs.listing import File
from modcrypt.jobs.shredding.choice import Criteria
from modcrypt.jobs.shredding.proof import ProvenFile, examine_file, start_trial
from modcrypt.jobs.shredding.trial import KeyProof, Traces, Trial
from modcrypt.jobs.verbs.verb import Row, Verb
from modcrypt.kms.settings import Settings
from modcrypt.pkmt1.material import KeyReference


def open_trial(settings: Settings | None, wanted: Criteria) -> Trial:
    """Return a trial for a proof by references to keys; without any, no key is tried."""
    tools = None if settings is None else settings.tools()
    requirements = None if settings is None else settings.requirements()
    return start_trial(tools, wanted, requirements)


def decode_row(row: Mapping[str, Any]) -> tuple[str, ProvenFile, Traces]:
    """Return the name of a file, the findings about it, and its traces."""
    fields, traces = json.loads(row["details"]), json.loads(row["traces"])
    keys = [KeyProof(**{**key, "columns": tuple(key["columns"])}) for key in fields["keys"]]
    name = fields.pop("name")
    traces["uniques"] = map(bytes.fromhex, traces["uniques"])
    traces["references"] = (KeyReference(*each) for each in traces["references"])
    found = ProvenFile(**{**fields, "keys": tuple(keys)})
    return name, found, Traces(**{member: set(values) for member, values in traces.items()})


def _open(
    settings: Settings | None, _filesystem: Any, *, wanted: Criteria
) -> Job[File, tuple[ProvenFile, Traces]]:
    opened = open_trial(settings, wanted)

    def examine(file: File) -> tuple[ProvenFile, Traces]:
        trial = opened.for_file()
        return examine_file(trial, file.place), trial.traces

    return Job(examine)


def _describe(file: File, examined: tuple[ProvenFile, Traces]) -> list[Row]:
    found, traces = examined
    values = {name: list(values) for name, values in asdict(traces).items()}
    values["uniques"] = [unique.hex() for unique in traces.uniques]
    values["references"] = [[each.name, each.write] for each in traces.references]
    details = {"name": file.name, **found.fields()}
    return [{"details": json.dumps(details), "traces": json.dumps(values)}]


def _fail(_verb: Verb, file: File, error: Exception, **_arguments: Any) -> Row:
    failure, traces = ProvenFile.of_failure(file.place, error), Traces(names={file.place.name})
    return _describe(file, (failure, traces))[0]


PROVE = Verb(
    name="shred.proof-file", result=ProvenFile, columns="details traces worker", open=_open,
    describe=_describe, fail=_fail, types={"traces": str},
)  # fmt: skip
"""The verb that proves shredding."""
