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
from modcrypt.lake.declarations.members import Members
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

_TEXTS = (
    "location", "catalog", "catalog_name", "table", "namespace", "table_uuid", "key_store",
    "master_key", "read_restrictions",
)  # fmt: skip


class TableParsing(Members):
    """The parsing of one table, or of the tables of a namespace."""

    def parse(self) -> TableDeclaration | None:
        """Return the declaration of the table; None if there are mistakes, which are noted."""
        self.faults.check_names(self.path, self.given, TABLE_MEMBERS)
        texts = self._take_texts()
        self._check_place(texts)
        if "master_key" not in texts:
            self.fault((), "master_key is missing; set it to the id of the table's master key")
        policy = self._take_policy()
        if policy.get("store") == "key-store" and "key_store" not in texts:
            self.fault("store", "store is key-store, so key_store must name a file")
        former = self._take_master_keys(texts.get("master_key"))
        mapped = self.table("location_map")
        writers = self._take_writers()
        restrictions = self._read_restrictions(texts.get("read_restrictions"))
        self.inclusions.note_all(self.path, self.given, but=FREE_MEMBERS)
        seconds = self.rotation(TABLE_ROTATION)
        if self.has_faults:
            return None
        table, namespace = texts.get("table"), texts.get("namespace")
        if "location" in texts:
            location = self.inclusions.place((*self.path, "location"), texts["location"])
        else:
            location = locate_table(table or f"namespace {namespace}")
        folder = self.inclusions.folder
        return TableDeclaration(
            name=self.path[-1], location=location, table=table, namespace=namespace,
            catalog=_resolve_catalog(folder, texts.get("catalog")),
            catalog_name=texts.get("catalog_name"), table_uuid=texts.get("table_uuid"),
            location_map={
                old: self.inclusions.place((*self.path, "location_map", old), str(new))
                for old, new in mapped.items()
            },
            key_store=None if "key_store" not in texts else _resolve(folder, texts["key_store"]),
            master_key=texts["master_key"], policy=policy, previous_master_keys=former,
            max_kek_age=seconds.pop("max_kek_age", None), rotation=Rotation(**seconds),
            signed_by=writers, seal_at_least=self.given.get("seal_at_least", 1),
            read_restrictions=restrictions,
        )  # fmt: skip

    def _take_texts(self) -> dict[str, str]:
        texts = {}
        for name in _TEXTS:
            value = self.given.get(name)
            if isinstance(value, str) and value:
                texts[name] = value
            elif value is not None:
                self.fault(name, f"{name} must be a text that is not empty")
        return texts

    def _take_writers(self) -> tuple[str, ...]:
        """Return the lines of the writers' keys, which files may contain."""
        names, least = self.given.get("signed_by", []), self.given.get("seal_at_least")
        if least is not None and (type(least) is not int or least < 1 or not names):
            message = "seal_at_least must be a whole number, 1 or more, and needs signed_by"
            self.fault("seal_at_least", message)
        if isinstance(names, list) and all(isinstance(name, str) and name for name in names):
            return self.writers(names)
        self.fault("signed_by", "signed_by must be a list of verifying keys")
        return ()

    def _read_restrictions(self, name: str | None) -> Mapping[str, Any] | None:
        """Return the JSON of a file with read restrictions, which the reader of rows checks."""
        if name is None:
            return None
        where, data = (*self.path, "read_restrictions"), None
        with self.noting_errors("read_restrictions", name):
            data = self.inclusions.read(where, name, MAX_RESTRICTIONS + 1)
        if data is None:
            return None
        with suppress(ValueError, RecursionError):
            value = load_json(data)
            if isinstance(value, Mapping) and len(data) <= MAX_RESTRICTIONS:
                return value
        message = "is not a file with one JSON object, or repeats a member"
        self.fault("read_restrictions", f"{printable(name, MAX_NAME)} {message}")
        return None

    def _check_place(self, texts: Mapping[str, str]) -> None:
        """Check that the members name a folder, or a table or namespace of a catalog."""
        within = {"table", "namespace"} & texts.keys()
        in_catalog = {"catalog"} & texts.keys() | within
        if "location" in texts and (in_catalog or "catalog_name" in texts):
            self.fault("location", "location names a table without a catalog; remove one")
        elif in_catalog and ("catalog" not in in_catalog or len(within) != 1):
            self.fault((), "a table of a catalog needs catalog, and either table or namespace")
        elif "location" not in texts and not in_catalog:
            self.fault((), "location is missing; or set catalog and table or namespace")
        uri = urllib.parse.urlsplit(texts.get("catalog", ""))
        parameters = {name.lower() for name in urllib.parse.parse_qs(uri.query)}
        if uri.password is not None or parameters & {"password", "passwd"}:
            message = "put a URI with a password into pyiceberg's configuration, and its name here"
            self.fault("catalog", message)
        for name in ("table_uuid", "seal_at_least", "read_restrictions"):
            if "namespace" in texts and name in self.given:
                self.fault(name, f"tables of a namespace differ in {name}; remove it")

    def _take_policy(self) -> dict[str, Any]:
        policy = {}
        for name, choices in KEY_POLICY.items():
            value = self.given.get(name)
            if value is None:
                continue
            if choices is int and (type(value) is not int or value < 1):
                self.fault(name, f"{name} must be a whole number, 1 or more")
            elif choices is not int and value not in choices:
                self.fault(name, f"{name} must be one of {', '.join(choices)}")
            else:
                policy[name] = value
        if policy.get("wrapping") == "single":
            if policy.get("kek_per", "table") in ("partition", "day"):
                self.fault("wrapping", "single wrapping needs kek_per = table or files")
            if policy.get("store") == "key-store":
                self.fault("store", "single wrapping has no KEKs for a key store")
        return policy

    def _take_master_keys(self, current: str | None) -> tuple[str, ...]:
        """Return the ids of former master keys; each maps to the declared one."""
        where = ("previous", "master_keys")
        keys = self.table("previous", ("master_keys",)).get("master_keys", {})
        if not isinstance(keys, Mapping):
            self.fault(where, "master_keys must map OLD ids to NEW ids")
            return ()
        for old, new in keys.items():
            if new != current:
                self.fault(where, f"{new} is not the master key of the table", str(new))
            if old == current:
                message = f"{old} is the master key of the table, not a previous one"
                self.fault(where, message, old)
        return tuple(keys)


def _resolve(folder: Path, location: str) -> str:
    return location if is_url(location) else str(folder / os.path.expanduser(location))


def _resolve_catalog(folder: Path, catalog: str | None) -> str | None:
    """Return the URI of a catalog; that of a SQLite file is relative to the declaration."""
    match = re.fullmatch(r"(sqlite(?:\+\w+)?:///)([^/].*)", catalog or "")
    return catalog if match is None else f"{match[1]}{folder / match[2]}"
