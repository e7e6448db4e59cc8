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
from modcrypt.lake.declarations.declaration import (
    Previous,
    Rotation,
    TableDeclaration,
    locate_table,
)
from modcrypt.lake.declarations.member_table import (
    KEY_POLICY,
    TABLE_MEMBERS,
    TABLE_PREVIOUS,
    TABLE_ROTATION,
)  # fmt: skip
from modcrypt.lake.declarations.members import Members
from modcrypt.pkmt1.strict_json import load_json
from modcrypt.settings.table import list_table_policy_faults

MAX_RESTRICTIONS = 1 << 20
"""Size limit of a file with read restrictions, in bytes: more than those of all columns take."""


class TableParsing(Members):
    """The parsing of one table, or of the tables of a namespace."""

    def parse(self) -> TableDeclaration | None:
        """Return the declaration of the table; None if there are mistakes, which are noted."""
        given = self.take(TABLE_MEMBERS)
        self._check_place(given)
        if "master_key" not in self.given:
            self.fault((), "master_key is missing; set it to the id of the table's master key")
        policy = {name: given[name] for name in KEY_POLICY if name in given}
        self._check_policy(policy, given)
        former = self._take_previous(given.get("master_key"))
        writers = self.writers(given.get("signed_by", ()))
        restrictions = self._read_restrictions(given.get("read_restrictions"))
        self.note_commands(self.given, TABLE_MEMBERS)
        seconds = self.rotation(TABLE_ROTATION)
        erased = self.erased(given, None)
        for each in erased:
            if each.table and "namespace" not in given:
                self.fault("erased", "table is for a namespace; remove it")
        if self.has_faults:
            return None
        table, namespace = given.get("table"), given.get("namespace")
        if "location" in given:
            location = self.inclusions.place((*self.path, "location"), given["location"])
        else:
            location = locate_table(table or f"namespace {namespace}")
        folder = self.inclusions.folder
        return TableDeclaration(
            name=self.path[-1], location=location, table=table, namespace=namespace,
            catalog=_resolve_catalog(folder, given.get("catalog")),
            catalog_name=given.get("catalog_name"), table_uuid=given.get("table_uuid"),
            location_map={
                old: self.inclusions.place((*self.path, "location_map", old), new)
                for old, new in given.get("location_map", {}).items()
            },
            key_store=_resolve(folder, given["key_store"]) if "key_store" in given else None,
            master_key=given["master_key"], policy=policy, previous=former,
            max_kek_age=seconds.pop("max_kek_age", None), rotation=Rotation(**seconds),
            signed_by=writers, seal_at_least=given.get("seal_at_least", 1),
            read_restrictions=restrictions, strict=given.get("strict", True), erased=erased,
        )  # fmt: skip

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

    def _check_place(self, given: Mapping[str, Any]) -> None:
        """Check that the members name a folder, or a table or namespace of a catalog."""
        within = {"table", "namespace"} & given.keys()
        in_catalog = {"catalog"} & given.keys() | within
        if "location" in given and (in_catalog or "catalog_name" in given):
            self.fault("location", "location names a table without a catalog; remove one")
        elif in_catalog and ("catalog" not in in_catalog or len(within) != 1):
            self.fault((), "a table of a catalog needs catalog, and either table or namespace")
        elif "location" not in given and not in_catalog:
            self.fault((), "location is missing; or set catalog and table or namespace")
        uri = urllib.parse.urlsplit(given.get("catalog", ""))
        parameters = {name.lower() for name in urllib.parse.parse_qs(uri.query)}
        if uri.password is not None or parameters & {"password", "passwd"}:
            message = "put a URI with a password into pyiceberg's configuration, and its name here"
            self.fault("catalog", message)
        for name in ("table_uuid", "seal_at_least", "read_restrictions"):
            if "namespace" in given and name in given:
                self.fault(name, f"tables of a namespace differ in {name}; remove it")

    def _check_policy(self, policy: Mapping[str, Any], given: Mapping[str, Any]) -> None:
        if policy.get("store") == "key-store" and "key_store" not in given:
            self.fault("store", "store is key-store, so key_store must name a file")
        for name, faults in list_table_policy_faults(policy).items():
            for fault in faults:
                self.fault(name, fault)

    def _take_previous(self, current: str | None) -> Previous:
        """Return the former master keys; each maps to the declared one."""
        place = ("previous", "master_keys")
        keys = self.take(TABLE_PREVIOUS, "previous").get("master_keys", {})
        for old, new in keys.items():
            if new != current:
                self.fault(place, f"{new} is not the master key of the table", new)
            if old == current:
                message = f"{old} is the master key of the table, not a previous one"
                self.fault(place, message, old)
        return Previous(master_keys=keys)


def _resolve(folder: Path, location: str) -> str:
    return location if is_url(location) else str(folder / os.path.expanduser(location))


def _resolve_catalog(folder: Path, catalog: str | None) -> str | None:
    """Return the URI of a catalog; that of a SQLite file is relative to the declaration."""
    match = re.fullmatch(r"(sqlite(?:\+\w+)?:///)([^/].*)", catalog or "")
    return catalog if match is None else f"{match[1]}{folder / match[2]}"
