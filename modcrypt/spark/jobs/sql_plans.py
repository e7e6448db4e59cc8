"""Plans of jobs from the parameters of a SQL procedure, which are text.

source, destination   folders, for conversions; no destination replaces the files
path                  folder or file, for other verbs
policy, kms, ...      options of the data source `modcrypt` that name keys
newPolicy, newKms, ...  the same for the new keys of rekey
overwrite, what, ...  arguments of the verb, as it declares them
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

from modcrypt.jobs.verbs.conversion_verbs import CONVERSIONS
from modcrypt.jobs.verbs.verb import Verb
from modcrypt.kms.settings import Settings
from modcrypt.spark.jobs.conversion import plan_conversion
from modcrypt.spark.jobs.driver import TablePlan, plan_verb
from modcrypt.spark.key_options import KEY_OPTIONS, SHARED_OPTIONS
from modcrypt.spark.procedures import PROCEDURES, spell
from modcrypt.spark.source.options import read_options

Parameters = Mapping[str, str]  # parameters of a procedure, by their names in lower case
_KEYS = frozenset(name.lower() for name in KEY_OPTIONS)
_SHARED = frozenset(name.lower() for name in SHARED_OPTIONS) - {"root"}
_NEW = "new"


def plan_procedure(procedure: str, parameters: Parameters) -> TablePlan:
    """Plan the job of a procedure, and check what needs no executor."""
    for name in ("source", "destination", "path"):
        if urlsplit(parameters.get(name, "")).password is not None:
            raise ValueError(
                f"{name} contains a password, which Spark would log (not repeated here); set it in "
                "the environment of the executors"
            )
    verb = PROCEDURES[procedure]
    if verb.name in CONVERSIONS:
        return _plan_conversion(verb, parameters)
    path = parameters["path"]
    named = verb.needs_keys or _KEYS & parameters.keys()
    settings = _read_settings(parameters, path) if named else None
    return plan_verb(verb, path, settings, **_read_arguments(verb, parameters))


def _plan_conversion(verb: Verb, parameters: Parameters) -> TablePlan:
    source, destination = parameters["source"], parameters.get("destination")
    written = source if destination is None else destination
    keys: dict[str, Any] = {}
    if verb.name == "rekey":
        keys["decryption"] = _read_settings(parameters, source)
        keys["encryption"] = _read_settings(_take_new(parameters), written, "new keys")
    else:
        keys["encryption"] = _read_settings(parameters, written)
    arguments = _read_arguments(verb, parameters)
    return plan_conversion(source, destination, verb=verb.name, **keys, **arguments)


def _take_new(parameters: Parameters) -> Parameters:
    """Return the parameters of new keys without prefix, and those shared with the old."""
    new = {
        name.removeprefix(_NEW): value
        for name, value in parameters.items()
        if name.removeprefix(_NEW) in _KEYS and name.startswith(_NEW)
    }
    return {**new, **{name: parameters[name] for name in _SHARED & parameters.keys()}}


def _read_arguments(verb: Verb, parameters: Parameters) -> dict[str, Any]:
    return {
        name: _PARSERS[kind](spell(name), parameters[spell(name).lower()])
        for name, kind in (verb.parameters or {}).items()
        if spell(name).lower() in parameters
    }


def _read_flag(name: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError(f"{name} must be true or false")
    return text.lower() == "true"


def _read_ids(name: str, text: str) -> dict[str, str]:
    """Return the new ids of master keys, from a JSON object."""
    try:
        ids = json.loads(text)
    except (ValueError, RecursionError):
        ids = None
    if not isinstance(ids, dict) or not all(isinstance(new, str) for new in ids.values()):
        raise ValueError(f'{name} must be a JSON object of ids, as {{"old": "new"}}')
    return ids


_PARSERS: Mapping[type, Callable[[str, str], Any]] = {
    bool: _read_flag, dict: _read_ids, str: lambda _name, text: text,
}  # fmt: skip


def _read_settings(parameters: Parameters, where: str, what: str = "keys") -> Settings:
    keys = {name: value for name, value in parameters.items() if name in _KEYS}
    if not keys:
        raise ValueError(f"{what} are missing; pass a policy")
    settings, _ = read_options({"path": where, **keys})
    assert isinstance(settings, Settings)  # `_KEYS` contains no lake
    return settings
