"""The lake that a command finds: the datasets that its arguments name, and their settings.

A declaration that nobody named or trusted still says which datasets there are, so that a command
that needs it can say what is missing. Until it is trusted, it opens nothing, and is compared with
paths by their text alone: looking at a place outside its folder can contact a server.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from modcrypt.errors import KeyRetrievalError
from modcrypt.io.addresses import find_inside, local_path
from modcrypt.io.places import Place
from modcrypt.kms.signing.signing_keys import SigningKey
from modcrypt.lake.declarations.declaration import (
    DatasetDeclaration,
    LakeDeclaration,
    TableDeclaration,
)
from modcrypt.lake.declarations.declaration_file import read_content, require_valid
from modcrypt.lake.declarations.trust import check_trust, has_word
from modcrypt.lake.erasure_recording import Shredding, record_partition, record_shredding
from modcrypt.lake.evidence.events import DatasetResult
from modcrypt.lake.evidence.evidence_writer import EvidenceWriter
from modcrypt.lake.files.lake_files import make_matcher
from modcrypt.lake.lake_reference import LakeReference
from modcrypt.report.suggestions import suggest

_OF_TABLES = {
    "cat": "scan", "decrypt": "scan", "encrypt": "append", "head": "scan", "inspect": "tree",
    "keys rotate": "rotate mek", "keys scan": "keys", "rekey": "rotate dek", "schema": "scan",
    "seals create": "seal", "share": "scan", "shred": "shred",
}  # fmt: skip
"""Commands for Iceberg tables that do what a command does for files."""


@dataclass(frozen=True)
class FoundLake:
    """A declaration that a command found, or that its arguments name."""

    path: str
    # The declaration; None if it cannot be read or has mistakes.
    declaration: LakeDeclaration | None = None
    refusal: Exception | None = None  # why it decides about nothing; None if it may

    @property
    def is_valid(self) -> bool:
        """True if the declaration can be read and has no mistakes."""
        return self.declaration is not None

    def dataset_at(self, where: str) -> str | None:
        """Return the name of the dataset of Parquet files that a path or URL belongs to.

        Raise ValueError if several datasets share the folder.
        """
        datasets = () if self.declaration is None else self.declaration.datasets.values()
        found = [(len(d.location), d.name) for d in datasets if self._contains(d, where)]
        longest = max(found, default=(0, ""))[0]
        names = [name for length, name in found if length == longest]
        if len(names) > 1:
            raise ValueError(
                f"{where} belongs to several datasets of {self.path}: {', '.join(names)}; choose "
                f"one by --policy {self.path}#{names[0]}"
            )
        return names[0] if names else None

    def _contains(self, dataset: DatasetDeclaration, where: str) -> bool:
        inside, path = self._find_inside(where, dataset.location), local_path(where)
        if not inside or dataset.include is None or path is None or os.path.isdir(path):
            return inside is not None
        return bool(make_matcher(dataset.include)(inside))

    def _find_inside(self, where: str, location: str) -> str | None:
        """Return the path inside a folder; empty for the folder, None outside."""
        path, root = local_path(where), local_path(location)
        if path is None or root is None:
            return find_inside(where, location)
        if self.refusal is not None:  # by text alone: a path can lead to a server
            inside = os.path.relpath(os.path.abspath(path), os.path.abspath(root))
            inside = "" if inside == "." else inside
            return None if inside.partition("/")[0] == ".." else inside
        if os.path.realpath(path) == os.path.realpath(root):
            return ""
        return Place(None, path).inside(Place(None, root))

    def inside(self, name: str, where: str) -> str:
        """Return the path of a file or folder inside a dataset; empty for all of it."""
        return self._find_inside(where, self.locate(name) or "") or ""

    def may_have(self, where: str) -> bool:
        """Return whether a path may belong to a dataset or table, be the lake trusted or not."""
        if self.declaration is None:
            return True
        locations = (each.location for each in self.declaration.all.values())
        return any(self._find_inside(where, location) is not None for location in locations)

    def is_place_of(self, name: str, where: str, *, is_part: bool) -> bool:
        """Return whether a path is that of a dataset or table, or is inside it."""
        location = "" if self.declaration is None else self.declaration.find(name).location
        inside = self._find_inside(where, location)
        return inside == "" or (is_part and inside is not None)

    def split(self, text: str) -> tuple[str, str]:
        """Return the name of a dataset or table, and the path inside it, of an argument.

        The table of a namespace has two parts; nothing is above a dataset.
        """
        first, _, inside = text.partition("/")
        if self.has(text) or ".." in inside.split("/"):
            return text, ""
        return first, inside.lstrip("/")

    def has(self, name: str) -> bool:
        """Return whether a dataset, or a table of a namespace, is declared under a name."""
        try:
            return self.declaration is not None and bool(self.declaration.find(name))
        except ValueError:
            return False

    def locate(self, name: str) -> str | None:
        """Return the path or URL of a dataset of Parquet files; None for an Iceberg table.

        Raise ValueError if the dataset is not declared, or the declaration may not decide.
        """
        dataset = self._require().find(name)
        return dataset.location if isinstance(dataset, DatasetDeclaration) else None

    def suggest(self, name: str) -> str:
        """Return a question for the name of a dataset that resembles another."""
        return suggest(name, () if self.declaration is None else self.declaration.all)

    def settings(self, name: str, **options: Any) -> LakeReference:
        """Return the settings of a dataset; `options` are arguments of `Settings`.

        Raise ValueError as `locate`, or the dataset is an Iceberg table.
        """
        return LakeReference.of(self._require(), name, **options)

    @property
    def kms(self) -> str:
        """The URI of the declared key service; raise ValueError if it may not decide."""
        return self._require().kms

    def table_at(self, where: str, *, is_part: bool = False) -> str | None:
        """Return the name of the Iceberg table in a folder, or of which a path is metadata.

        With `is_part`, the path may be that of any file of its folder.
        """
        for table in self._require().tables.values():
            inside = None if table.table else self._find_inside(where, table.location)
            is_metadata = f"{inside or 'metadata'}/".startswith("metadata/")
            if inside is not None and (is_part or is_metadata):
                return table.name
        return None

    def table_options(self, name: str) -> dict[str, Any] | None:
        """Return the arguments that open an Iceberg table, by parameters of commands for tables.

        It is None for another dataset; `where` is the table itself. Raise ValueError as `locate`,
        or the dataset is a namespace, not one of its tables.
        """
        lake = self._require()
        table = lake.find(name)
        if not isinstance(table, TableDeclaration):
            return None
        if table.namespace is not None:
            raise ValueError(f"{name} is a namespace; name one of its tables, {name}/TABLE")
        return {
            "where": table.table or table.location, "kms": lake.kms, "catalog": table.catalog,
            "catalog_name": table.catalog_name, "key_store": table.key_store,
            "location_map": tuple(f"{a}={b}" for a, b in table.location_map.items()),
            "table_uuid": table.table_uuid, "master_key": table.master_key,
            "master_keys": tuple(table.master_key_ids),
            "signed_by": tuple(table.signed_by),
            "seal_at_least": table.seal_at_least if table.signed_by else None,
            "read_restrictions": table.read_restrictions, "declaration": table,
        }  # fmt: skip

    @contextmanager
    def record_erasure(
        self, parts: Mapping[str, Sequence[str]], *, signing_key: SigningKey | None,
        **shredding: Any,
    ) -> Iterator[Callable[[int, Mapping[str, int]], None]]:  # fmt: skip
        """Record what the block erases in datasets, and as evidence how it ends.

        Args:
            parts: Paths inside each dataset, by its name, as in `Shredding`.

        Yields:
            A function that takes the exit code and the numbers of files by result.
        """
        request = shredding["request"]
        with self.record_event("shred", list(parts), signing_key, request=request) as end:
            for name, inside in parts.items():
                described = Shredding(parts=inside, **shredding)
                record_shredding(self._require(), name, described, signing_key)
            yield end

    @contextmanager
    def record_event(
        self, event: str, names: Sequence[str], signing_key: SigningKey | None, **texts: Any
    ) -> Iterator[Callable[[int, Mapping[str, int]], None]]:
        """Record as evidence what the block does to datasets, and how it ends.

        Yields:
            A function that takes the exit code and the numbers of files by result.
        """
        writer = EvidenceWriter(self._require(), signing_key)
        with writer.record(event, **texts) as outcomes:

            def end(code: int, counts: Mapping[str, int]) -> None:
                known = counts if len(names) == 1 else {}  # else nobody knows which is whose
                results = (DatasetResult.of(n, code, sum(known.values()), known) for n in names)
                outcomes.extend(results)

            yield end

    @contextmanager
    def record_partition(
        self, name: str, partition: Mapping[str, str], request: str,
        signing_key: SigningKey | None,
    ) -> Iterator[Callable[[int, int], None]]:  # fmt: skip
        """Record what the block erases in a table, and as evidence how it ends.

        Yields:
            A function that takes the exit code and the number of files.
        """
        with self.record_event("shred", [name], signing_key, request=request) as end:
            record_partition(self._require(), name, partition, request, signing_key)
            yield lambda code, files: end(code, {"shredded": files})

    def advise(self, name: str, command: str) -> str:
        """Return which command works on a table instead of one that works on files."""
        better = _OF_TABLES.get(command.partition(" ")[2])
        how = f"use modcrypt iceberg {better} {name}" if better else "see modcrypt iceberg --help"
        return f"{name} is an Iceberg table, which {command} cannot use; {how}"

    def _require(self) -> LakeDeclaration:
        if self.refusal is not None or self.declaration is None:
            raise self.refusal or ValueError(f"{self.path} has mistakes")
        return self.declaration


def read_lake(path: Path, *, found: bool) -> FoundLake:
    """Return the lake of a declaration, without opening its key service.

    This keeps the rules of `open_declaration`: only what the user named or trusted decides.

    Args:
        found: Whether nobody named it.
    """
    try:
        content = read_content(path, is_found=found, reads_outside=not found or has_word(path))
        declaration = require_valid(content)
    except (OSError, ValueError, KeyRetrievalError) as error:
        return FoundLake(str(path), refusal=error)
    try:
        if found:
            check_trust(path, content.digest, content.commands)
    except (OSError, ValueError, KeyRetrievalError) as error:
        return FoundLake(str(path), declaration, error)
    return FoundLake(str(path), declaration)
