"""Plans of jobs from the parameters of a SQL procedure, which are text.

source, destination   folders, for encrypt and rekey; no destination replaces the files
path                  folder or file, for inspect, rotate and verify
policy, kms, ...      options of the data source `modcrypt` that name keys
newPolicy, newKms, ...  the same for the new keys of rekey
overwrite, dryRun     true or false
allowLeaks            true or false, for encrypt
what, newMasterKeys   for rotate; newMasterKeys is a JSON object of ids
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import cast
from urllib.parse import urlsplit

import pyarrow as pa

from modcrypt.jobs.key_rewrapping import What
from modcrypt.kms.settings import Settings
from modcrypt.spark.jobs.conversion import TableConversion, plan_conversion
from modcrypt.spark.jobs.driver import TablePlan, plan_job
from modcrypt.spark.jobs.examination import InspectionJob, VerificationJob, plan_verification
from modcrypt.spark.jobs.key_jobs import ROTATED, plan_rotation
from modcrypt.spark.key_options import KEY_OPTIONS, SHARED_OPTIONS
from modcrypt.spark.source.options import read_options

Parameters = Mapping[str, str]
"""Parameters of a procedure, by their names in lower case."""

_KEYS = frozenset(name.lower() for name in KEY_OPTIONS)
_SHARED = frozenset(name.lower() for name in SHARED_OPTIONS) - {"root"}
_NEW = "new"


def report_schema(procedure: str) -> pa.Schema:
    """Return the schema of the report of a procedure."""
    return _PROCEDURES[procedure][0]


def plan_procedure(procedure: str, parameters: Parameters) -> TablePlan:
    """Plan the job of a procedure, and check what needs no executor."""
    for name in ("source", "destination", "path"):
        if urlsplit(parameters.get(name, "")).password is not None:
            raise ValueError(
                f"{name} contains a password, which Spark would log (not repeated here); set it in "
                "the environment of the executors"
            )
    return _PROCEDURES[procedure][1](parameters)


def _plan_encryption(parameters: Parameters) -> TablePlan:
    source, destination = _read_folders(parameters)
    encryption = _read_settings(parameters, source if destination is None else destination)
    allow_leaks = _read_flag(parameters, "allowLeaks")
    return plan_conversion(
        source, destination, verb="encrypt", encryption=encryption, allow_leaks=allow_leaks,
        **_read_flags(parameters),
    )  # fmt: skip


def _plan_rekeying(parameters: Parameters) -> TablePlan:
    source, destination = _read_folders(parameters)
    new = {
        name.removeprefix(_NEW): value
        for name, value in parameters.items()
        if name.removeprefix(_NEW) in _KEYS and name.startswith(_NEW)
    }
    shared = {name: parameters[name] for name in _SHARED & parameters.keys()}
    return plan_conversion(
        source, destination, verb="rekey",
        decryption=_read_settings(parameters, source),
        encryption=_read_settings({**new, **shared}, destination or source, "new keys"),
        **_read_flags(parameters),
    )  # fmt: skip


def _plan_rotation(parameters: Parameters) -> TablePlan:
    path = parameters["path"]
    return plan_rotation(
        path, _read_settings(parameters, path), what=cast(What, parameters.get("what", "mek")),
        new_master_keys=_read_ids(parameters.get("newmasterkeys", "{}")),
        dry_run=_read_flag(parameters, "dryRun"),
    )  # fmt: skip


def _plan_examination(parameters: Parameters, plan: Callable[..., TablePlan]) -> TablePlan:
    path = parameters["path"]  # no settings if no parameter names keys
    return plan(path, _read_settings(parameters, path) if _KEYS & parameters.keys() else None)


_PROCEDURES: dict[str, tuple[pa.Schema, Callable[[Parameters], TablePlan]]] = {
    "encrypt": (TableConversion.schema, _plan_encryption),
    "inspect": (
        InspectionJob.schema,
        partial(_plan_examination, plan=partial(plan_job, InspectionJob)),
    ),
    "rekey": (TableConversion.schema, _plan_rekeying),
    "rotate": (ROTATED, _plan_rotation),
    "verify": (VerificationJob.schema, partial(_plan_examination, plan=plan_verification)),
}

# --- parameters ----------------------------------------------------------------------------------


def _read_folders(parameters: Parameters) -> tuple[str, str | None]:
    return parameters["source"], parameters.get("destination")


def _read_flags(parameters: Parameters) -> dict[str, bool]:
    return {
        "overwrite": _read_flag(parameters, "overwrite"),
        "dry_run": _read_flag(parameters, "dryRun"),
    }


def _read_flag(parameters: Parameters, name: str) -> bool:
    text = parameters.get(name.lower(), "false").lower()
    if text not in ("true", "false"):
        raise ValueError(f"{name} must be true or false")
    return text == "true"


def _read_ids(text: str) -> dict[str, str]:
    """Return the new ids of master keys, from a JSON object."""
    try:
        ids = json.loads(text)
    except (ValueError, RecursionError):
        ids = None
    if not isinstance(ids, dict) or not all(isinstance(new, str) for new in ids.values()):
        raise ValueError('newMasterKeys must be a JSON object of ids, as {"old": "new"}')
    return ids


def _read_settings(parameters: Parameters, where: str, what: str = "keys") -> Settings:
    keys = {name: value for name, value in parameters.items() if name in _KEYS}
    if not keys:
        raise ValueError(f"{what} are missing; pass a policy")
    settings, _ = read_options({"path": where, **keys})
    assert isinstance(settings, Settings)  # `_KEYS` contains no lake
    return settings
