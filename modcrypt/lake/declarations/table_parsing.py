"""Parse the declaration of a dataset that is an Iceberg table (`kind = "iceberg"`)."""

from __future__ import annotations

import os
import re
import urllib.parse
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from modcrypt.errors import MAX_NAME, printable
from modcrypt.io.addresses import is_url
from modcrypt.lake.declarations.declaration import Rotation, TableDeclaration, locate_table
from modcrypt.lake.declarations.declaration_faults import FaultList
from modcrypt.lake.declarations.durations import parse_durations
from modcrypt.lake.declarations.inclusions import Inclusions
from modcrypt.lake.declarations.toml_lines import MemberPath
from modcrypt.pkmt1.strict_json import load_json

MAX_RESTRICTIONS = 1 << 20
"""Size limit of a file with read restrictions, in bytes: more than those of all columns take."""

KEY_POLICY: Mapping[str, Any] = {
    "kek_per": ("table", "partition", "day", "files"),
    "files": int,
    "wrapping": ("double", "single"),
    "kek_lifetime_days": int,
    "store": ("table", "key-store"),
}
"""Members that state a table's policy, with their values."""

TABLE_MEMBERS = (
    "kind", "location", "catalog", "catalog_name", "table", "namespace", "table_uuid",
    "location_map", "key_store", "master_key", "signed_by", "seal_at_least", "read_restrictions",
    *KEY_POLICY, "previous", "rotation",
)  # fmt: skip
TABLE_ROTATION = ("max_version_age", "rewrap_after", "max_kek_age")

FREE_MEMBERS = (
    "kind", "location", "table", "namespace", "table_uuid", "location_map", "master_key",
    "seal_at_least", "read_restrictions", *KEY_POLICY, "previous", "rotation",
)  # fmt: skip
"""Members that need no trust; `Inclusions` judges the places and files that some of them name."""

FREE_ROTATION = ("rewrap_after", "max_kek_age")
"""Members about rotation that need no trust: with others, `apply` changes master keys."""

_TEXTS = (
    "location", "catalog", "catalog_name", "table", "namespace", "table_uuid", "key_store",
    "master_key", "read_restrictions",
)  # fmt: skip


def parse_table(
    faults: FaultList, path: MemberPath, inclusions: Inclusions, given: Mapping[str, Any]
) -> TableDeclaration | None:
    """Return the declaration of a table; None if there are mistakes, which are added.

    Args:
        faults: Mistakes found so far.
        path: Names of the table's members in the declaration.
        inclusions: Takes what the declaration commands and includes, and resolves paths.
        given: Members of the dataset.
    """
    before = faults.total
    faults.check_names(path, given, TABLE_MEMBERS)
    texts = _take_texts(faults, path, given)
    _check_place(faults, path, texts)
    if "namespace" in texts:
        _check_shared(faults, path, given)
    if "master_key" not in texts:
        faults.add(path, "master_key is missing; set it to the id of the table's master key")
    policy = _take_policy(faults, path, given)
    if policy.get("store") == "key-store" and "key_store" not in texts:
        faults.add((*path, "store"), "store is key-store, so key_store must name a file")
    rotation = _take_map(faults, path, "rotation", given)
    faults.check_names((*path, "rotation"), rotation, TABLE_ROTATION)
    seconds = parse_durations(faults, (*path, "rotation"), rotation, TABLE_ROTATION)
    previous = _take_map(faults, path, "previous", given)
    faults.check_names((*path, "previous"), previous, ("master_keys",))
    former = _take_master_keys(faults, path, previous, texts.get("master_key"))
    mapped = _take_map(faults, path, "location_map", given)
    writers = _take_writers(faults, path, inclusions, given)
    restrictions = _read_restrictions(faults, path, inclusions, texts.get("read_restrictions"))
    inclusions.note_all(path, given, but=FREE_MEMBERS)
    inclusions.note_all((*path, "rotation"), rotation, but=FREE_ROTATION)
    if faults.total > before:
        return None
    table, namespace = texts.get("table"), texts.get("namespace")
    if "location" in texts:
        location = inclusions.place((*path, "location"), texts["location"])
    else:
        location = locate_table(table or f"namespace {namespace}")
    folder = inclusions.folder
    return TableDeclaration(
        name=path[-1], location=location, table=table, namespace=namespace,
        catalog=_resolve_catalog(folder, texts.get("catalog")),
        catalog_name=texts.get("catalog_name"), table_uuid=texts.get("table_uuid"),
        location_map={
            old: inclusions.place((*path, "location_map", old), str(new))
            for old, new in mapped.items()
        },
        key_store=None if "key_store" not in texts else _resolve(folder, texts["key_store"]),
        master_key=texts["master_key"], policy=policy, previous_master_keys=former,
        max_kek_age=seconds.pop("max_kek_age", None), rotation=Rotation(**seconds),
        signed_by=writers, seal_at_least=given.get("seal_at_least", 1),
        read_restrictions=restrictions,
    )  # fmt: skip


def _take_texts(faults: FaultList, path: MemberPath, given: Mapping[str, Any]) -> dict[str, str]:
    texts = {}
    for name in _TEXTS:
        value = given.get(name)
        if isinstance(value, str) and value:
            texts[name] = value
        elif value is not None:
            faults.add((*path, name), f"{name} must be a text that is not empty")
    return texts


def _take_writers(
    faults: FaultList, path: MemberPath, inclusions: Inclusions, given: Mapping[str, Any]
) -> tuple[str, ...]:
    """Return the lines of the writers' keys, which files may contain."""
    names, least = given.get("signed_by", []), given.get("seal_at_least")
    if least is not None and (type(least) is not int or least < 1 or not names):
        where = (*path, "seal_at_least")
        faults.add(where, "seal_at_least must be a whole number, 1 or more, and needs signed_by")
    if not isinstance(names, list) or not all(isinstance(name, str) and name for name in names):
        faults.add((*path, "signed_by"), "signed_by must be a list of verifying keys")
        return ()
    try:
        return inclusions.writers((*path, "signed_by"), names)
    except OSError as error:
        name = printable(str(error.filename), MAX_NAME)
        faults.add((*path, "signed_by"), f"{name}: {error.strerror}")
    except ValueError as error:
        faults.add((*path, "signed_by"), str(error))
    return ()


def _read_restrictions(
    faults: FaultList, path: MemberPath, inclusions: Inclusions, name: str | None
) -> Mapping[str, Any] | None:
    """Return the JSON of a file with read restrictions, which the reader of rows checks."""
    if name is None:
        return None
    where = (*path, "read_restrictions")
    try:
        data = inclusions.read(where, name, MAX_RESTRICTIONS + 1)
    except OSError as error:
        faults.add(where, f"{printable(name, MAX_NAME)}: {error.strerror}")
        return None
    except ValueError as error:
        faults.add(where, str(error))
        return None
    with suppress(ValueError, RecursionError):
        value = load_json(data)
        if isinstance(value, Mapping) and len(data) <= MAX_RESTRICTIONS:
            return value
    message = "is not a file with one JSON object, or repeats a member"
    faults.add(where, f"{printable(name, MAX_NAME)} {message}")
    return None


def _check_place(faults: FaultList, path: MemberPath, texts: Mapping[str, str]) -> None:
    """Check that the members name a folder, or a table or namespace of a catalog."""
    within = {"table", "namespace"} & texts.keys()
    in_catalog = {"catalog"} & texts.keys() | within
    if "location" in texts and (in_catalog or "catalog_name" in texts):
        faults.add((*path, "location"), "location names a table without a catalog; remove one")
    elif in_catalog and ("catalog" not in in_catalog or len(within) != 1):
        faults.add(path, "a table of a catalog needs catalog, and either table or namespace")
    elif "location" not in texts and not in_catalog:
        faults.add(path, "location is missing; or set catalog and table or namespace")
    uri = urllib.parse.urlsplit(texts.get("catalog", ""))
    parameters = {name.lower() for name in urllib.parse.parse_qs(uri.query)}
    if uri.password is not None or parameters & {"password", "passwd"}:
        message = "put a URI with a password into pyiceberg's configuration, and its name here"
        faults.add((*path, "catalog"), message)


def _check_shared(faults: FaultList, path: MemberPath, given: Mapping[str, Any]) -> None:
    """Report members that only one table can have."""
    for name in ("table_uuid", "seal_at_least", "read_restrictions"):
        if name in given:
            faults.add((*path, name), f"tables of a namespace differ in {name}; remove it")


def _take_policy(faults: FaultList, path: MemberPath, given: Mapping[str, Any]) -> dict[str, Any]:
    policy = {}
    for name, choices in KEY_POLICY.items():
        value = given.get(name)
        if value is None:
            continue
        if choices is int and (type(value) is not int or value < 1):
            faults.add((*path, name), f"{name} must be a whole number, 1 or more")
        elif choices is not int and value not in choices:
            faults.add((*path, name), f"{name} must be one of {', '.join(choices)}")
        else:
            policy[name] = value
    if policy.get("wrapping") == "single" and policy.get("kek_per", "table") in (
        "partition",
        "day",
    ):
        faults.add((*path, "wrapping"), "single wrapping needs kek_per = table or files")
    if policy.get("wrapping") == "single" and policy.get("store") == "key-store":
        faults.add((*path, "store"), "single wrapping has no KEKs for a key store")
    return policy


def _take_map(
    faults: FaultList, path: MemberPath, name: str, given: Mapping[str, Any]
) -> Mapping[str, Any]:
    value = given.get(name, {})
    if isinstance(value, Mapping):
        return value
    faults.add((*path, name), f"{name} must be a table")
    return {}


def _take_master_keys(
    faults: FaultList, path: MemberPath, previous: Mapping[str, Any], current: str | None
) -> tuple[str, ...]:
    """Return the ids of former master keys; each maps to the declared one."""
    where = (*path, "previous", "master_keys")
    keys = previous.get("master_keys", {})
    if not isinstance(keys, Mapping):
        faults.add(where, "master_keys must map OLD ids to NEW ids")
        return ()
    for old, new in keys.items():
        if new != current:
            faults.add(where, f"{new} is not the master key of the table", str(new))
        if old == current:
            faults.add(where, f"{old} is the master key of the table, not a previous one", old)
    return tuple(keys)


def _resolve(folder: Path, location: str) -> str:
    return location if is_url(location) else str(folder / os.path.expanduser(location))


def _resolve_catalog(folder: Path, catalog: str | None) -> str | None:
    """Return the URI of a catalog; that of a SQLite file is relative to the declaration."""
    match = re.fullmatch(r"(sqlite(?:\+\w+)?:///)([^/].*)", catalog or "")
    return catalog if match is None else f"{match[1]}{folder / match[2]}"
