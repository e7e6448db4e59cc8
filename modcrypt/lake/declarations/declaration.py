"""The declaration of a lake: what its datasets must look like. It holds no key and no password."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias
from urllib.parse import unquote_plus

from modcrypt.kms.policy import Policy
from modcrypt.kms.recipients.recipient import Recipient
from modcrypt.lake.declarations.columns import Rules
from modcrypt.lake.declarations.partitions import names_in
from modcrypt.lake.erasure.erasures import Erasure, Erasures
from modcrypt.parquet.crypto.path_prefix import PATH
from modcrypt.report.suggestions import suggest
from modcrypt.runtime.fork_safety import cached_property


@dataclass(frozen=True, kw_only=True)
class Previous:
    """Keys and prefixes that may still protect older files, until `apply` has changed them."""

    # Map of the id of an old master key to the declared one that replaces it.
    master_keys: Mapping[str, str] = field(default_factory=dict)
    aad_prefixes: Sequence[str] = ()  # former templates of AAD prefixes
    kms_aads: Sequence[str] = ()  # former values of `kms_aad`; empty text for none
    algorithms: Sequence[str] = ()  # former algorithms


@dataclass(frozen=True, kw_only=True)
class Rotation:
    """When keys are too old."""

    # Seconds after which a master key needs a new version; None for no limit.
    max_version_age: float | None = None
    # Seconds for which keys may stay under an older version of their master key once a newer one
    # exists; None for no limit.
    rewrap_after: float | None = None


@dataclass(frozen=True, kw_only=True)
class DatasetDeclaration:
    """The declaration of one dataset."""

    name: str  # name of the dataset
    location: str  # absolute path or URL of its folder or file
    # Absolute path or URL of a folder whose plaintext files `apply` encrypts into `location`; None
    # for none.
    source: str | None = None
    # Pattern that the paths of its files match; None for all visible files.
    include: str | None = None
    partitions: Sequence[str] = ()  # names of its Hive partitions
    strict: bool = True  # whether files that `include` does not match are faults
    # Members of its policy, without columns; text may contain `{partition.NAME}`.
    members: Mapping[str, Any]
    rules: Rules  # rules for its columns, by master key
    previous: Previous = field(default_factory=Previous)  # what may still protect older files
    rotation: Rotation = field(default_factory=Rotation)  # when keys are too old
    recipients: Sequence[Recipient] = ()  # recipients that open its files, too
    former_recipients: Sequence[Recipient] = ()  # recipients whose access has ended
    compromised: Sequence[str] = ()  # compromised master keys of the lake
    # Not in the digest of the declaration: a new line of the record changes no other result.
    # Which files, or columns of them, are erased by declaration and by record.
    erased: Sequence[Erasure] = field(default=(), repr=False)

    @cached_property
    def erasures(self) -> Erasures:
        """The statements about erased files, to search them."""
        return Erasures(self.erased)

    @property
    def footer_key(self) -> str:
        """Template of the id of the master key for footers."""
        return str(self.members["footer_key"])

    @property
    def aad_prefix(self) -> str | None:
        """Template of AAD prefixes; None for no prefix."""
        return self.members.get("aad_prefix")

    @property
    def key_templates(self) -> list[str]:
        """Templates of the ids of all master keys for new files."""
        return list(dict.fromkeys([self.footer_key, *(key for key in self.rules if key)]))

    @cached_property
    def used_partitions(self) -> tuple[str, ...]:
        """Names of the partitions on whose values a policy depends."""
        templates = [*self.key_templates, self.aad_prefix or "", *self.previous.aad_prefixes]
        used = {name for template in templates for name in names_in(template)}
        return tuple(sorted(used))

    @cached_property
    def needs_columns(self) -> bool:
        """True if a rule depends on the columns of each file."""
        return any(not rule.is_name for rules in self.rules.values() for rule in rules)

    @property
    def binds_paths(self) -> bool:
        """True if AAD prefixes bind each file to its path."""
        return PATH in (self.aad_prefix or "")

    @property
    def subject_policy(self) -> Policy:
        """A policy with the footer key, and with what is declared about keys of subjects."""
        names = ("subjects", "subject_key", "subject_columns", "subject_dataset", "kms_aad")
        members = {name: self.members[name] for name in names if name in self.members}
        return Policy(footer_key=self.footer_key, **members)


WHOLE_CATALOG = "*"  # namespace of a dataset that has all tables of a catalog


def locate_table(table: str) -> str:
    """Return the location, for people, of a table of a catalog."""
    return f"{table} in its catalog"


@dataclass(frozen=True, kw_only=True)
class TableDeclaration:
    """The declaration of a dataset that is an Iceberg table, or all tables of a namespace."""

    name: str  # name of the dataset; `DATASET/TABLE` for a table of a namespace
    location: str  # absolute path or URL of the table's folder; with a catalog, text for people
    # URI or configured name of its catalog, name of an SQL catalog in its database, and identifier
    # of the table; None for a table without a catalog.
    catalog: str | None = None
    catalog_name: str | None = None
    table: str | None = None
    # Namespace whose tables, with those in it, are the dataset; `"*"` for the whole catalog, None
    # for one table.
    namespace: str | None = None
    table_uuid: str | None = None  # UUID that the table must have; None for any
    # Folders that replace the beginnings of locations.
    location_map: Mapping[str, str] = field(default_factory=dict)
    key_store: str | None = None  # path of the file that keeps KEKs; None for none
    master_key: str  # id of its master key
    # Declared members of the table's `KeyPolicy`; others may have any value.
    policy: Mapping[str, Any] = field(default_factory=dict)
    # Former master keys, which `master_key` replaces.
    previous: Previous = field(default_factory=Previous)
    max_kek_age: float | None = None  # seconds after which KEKs are replaced; None for no limit
    # When versions of the master key are too old.
    rotation: Rotation = field(default_factory=Rotation)
    # Lines of verifying keys of writers, one of whom must have sealed the version that is read;
    # none to accept unsigned tables.
    signed_by: Sequence[str] = ()
    seal_at_least: int = 1  # number that the seal must have at least
    # Rows and masks to which reading is restricted, as a REST catalog sends them; None for none.
    read_restrictions: Mapping[str, Any] | None = None
    strict: bool = True  # whether old files in its folder that no snapshot names are faults
    compromised: Sequence[str] = ()  # compromised master keys of the lake
    # Which partitions or files are erased by declaration and by record.
    erased: Sequence[Erasure] = field(default=(), repr=False)

    @cached_property
    def erasures(self) -> Erasures:
        """The statements about erased files, to search them; paths encode spaces as plus signs."""
        return Erasures(self.erased, unquote_plus)

    @property
    def master_key_ids(self) -> list[str]:
        """Ids of the master keys that the table may be under."""
        return [self.master_key, *self.previous.master_keys]

    @property
    def key_templates(self) -> list[str]:
        """Id of the master key for new files, as that of a dataset of files."""
        return [self.master_key]

    def of_table(self, table: str) -> TableDeclaration | None:
        """Return the declaration of a table of the namespace; None if it has no such table."""
        within = "" if self.namespace == WHOLE_CATALOG else f"{self.namespace}."
        if self.namespace is None or not table.startswith(within):
            return None
        return replace(
            self, name=f"{self.name}/{table}", location=locate_table(table), table=table,
            namespace=None, erased=tuple(e for e in self.erased if e.table in ("", table)),
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class EvidenceDeclaration:
    """The declaration of the record of evidence."""

    # Reference to the key that signs its lines; None for the key of `--sign`, if any.
    sign: str | None = None
    # Reference to the passphrase of that key's file; None for none.
    sign_passphrase: str | None = field(default=None, repr=False)
    # Lines of verifying keys, one of which must have signed each line; none to accept lines without
    # a signature.
    signed_by: Sequence[str] = ()


AnyDataset: TypeAlias = DatasetDeclaration | TableDeclaration
"""The declaration of a dataset of any kind."""


@dataclass(frozen=True, kw_only=True)
class LakeDeclaration:
    """The declaration of a lake."""

    path: str  # path of the file that declares it
    kms: str  # URI of its key service
    datasets: Mapping[str, DatasetDeclaration]  # its datasets of Parquet files, by name
    # Its datasets that are Iceberg tables, by name.
    tables: Mapping[str, TableDeclaration] = field(default_factory=dict)
    compromised: Sequence[str] = ()  # compromised master keys, as `ID` or `ID@VERSION`
    # How what is done and found is recorded; None to record nothing.
    evidence: EvidenceDeclaration | None = None
    # Digest of all members but `compromised` and `evidence`, by which results of other declarations
    # are told apart.
    digest: str
    sha256: str = ""  # SHA-256 over the file and all files that it includes, in hex

    @property
    def all(self) -> dict[str, AnyDataset]:
        """Its datasets of both kinds, by name."""
        return {**self.datasets, **self.tables}

    def find(self, name: str) -> AnyDataset:
        """Return a dataset by its name, also a table of a namespace (`DATASET/TABLE`).

        Raise ValueError if the dataset is not declared.
        """
        dataset, _, table = name.partition("/")
        namespace = self.tables.get(dataset) if table else None
        declared = namespace.of_table(table) if namespace else self.all.get(name)
        if declared is None:
            raise ValueError(f"{self.path} declares no dataset {name}{suggest(name, self.all)}")
        return declared
