"""The SQL procedures: the verbs that declare parameters of one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from modcrypt.jobs.verbs.conversion_verbs import CONVERSIONS
from modcrypt.jobs.verbs.examination import INSPECT, VERIFY
from modcrypt.jobs.verbs.key_verbs import ROTATE, SCAN, SHRED
from modcrypt.jobs.verbs.verb import Verb
from modcrypt.spark.key_options import KEY_OPTIONS, SHARED_OPTIONS

VERBS = (*CONVERSIONS.values(), INSPECT, ROTATE, SCAN, SHRED, VERIFY)  # all verbs of files

PROCEDURES: Mapping[str, Verb] = {
    verb.name: verb
    for verb in sorted(VERBS, key=lambda verb: verb.name)
    if verb.parameters is not None
}
"""The verbs that are SQL procedures, by their names in order."""


def list_parameters(verb: Verb) -> list[str]:
    """Return the names of the parameters of a procedure, in their order."""
    converts = verb.name in CONVERSIONS
    use = "read" if verb.name == "encrypt" else "write"  # of keys that it does not take
    keys = [name for name, setting in KEY_OPTIONS.items() if setting.use != use]
    if verb.name == "rekey":
        new = [name for name, setting in KEY_OPTIONS.items() if setting.use != "read"]
        keys += [spell(f"new_{name}") for name in new if name not in SHARED_OPTIONS]
    paths = ["source", "destination"] if converts else ["path"]
    return [*paths, *keys, *map(spell, verb.parameters or ())]


def spell(name: str) -> str:
    """Return the name of a parameter for that of an argument, as `dryRun` for `dry_run`."""
    first, *others = name.split("_")
    return first + "".join(part[:1].upper() + part[1:] for part in others)


def write_java_source() -> str:
    """Return the source of the class with the procedures and the names of their parameters."""
    cases = " ".join(
        f'if (name.equals("{name}")) return new String[] {{{_quote(list_parameters(verb))}}};'
        for name, verb in PROCEDURES.items()
    )
    return (
        f"package modcrypt; final class Procedures {{"
        f" static final String[] NAMES = {{{_quote(PROCEDURES)}}};"
        f" static String[] parametersOf(String name) {{ {cases} return null; }} }}"
    )


def _quote(names: Iterable[str]) -> str:
    return ", ".join(f'"{name}"' for name in names)
